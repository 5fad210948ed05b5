//! Submissions: the JSON of `POST /apps`, with its launch context as the message that nodes read.

use std::collections::BTreeMap;

use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use godel_core_yarn::{
    adapter::AppSubmission,
    asks::{AskGroup, ExecutionType},
    ids::YarnApplicationId,
};
use godel_core_yarn_leader::{SubmittedApp, YarnAmount};
use godel_domain::names::{N_TAGS_MAX, TAG_LEN_MAX};
use godel_hadoop::{
    credentials::{Credentials, read_url_token},
    yarn::{
        ApplicationAccessTypeProto, ApplicationAclMapProto, ContainerLaunchContextProto, LocalResourceProto,
        LocalResourceTypeProto, LocalResourceVisibilityProto, StringBytesMapProto,
        StringLocalResourceMapProto, StringStringMapProto, UrlProto,
    },
};
use prost::Message as _;
use serde_json::Value;

use super::problem::Problem;

/// Bytes of a name, a kind, a queue or a label expression.
const TEXT_LEN_MAX: usize = 1_000;

/// Base64 with or without its padding, as Hadoop takes it.
const ANY_PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const PLAIN: GeneralPurpose = GeneralPurpose::new(&STANDARD, ANY_PADDING);
const FOR_URLS: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, ANY_PADDING);

fn wrong(path: &str, why: &str) -> Problem {
    Problem::bad_request(format!("{path}: {why}"))
}

/// A number, which older clients write as a text.
pub(super) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A field with its path: absent and `null` are the same.
#[derive(Clone)]
struct Field<'a> {
    value: Option<&'a Value>,
    path: String,
}

impl<'a> Field<'a> {
    fn root(value: &'a Value) -> Self {
        Self { value: Some(value), path: String::new() }
    }

    fn get(&self, name: &str) -> Self {
        let value = self.value.and_then(|value| value.get(name)).filter(|value| !value.is_null());
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { value, path }
    }

    fn read<T>(&self, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, Problem> {
        let Some(value) = self.value else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.path, &format!("is no {what}")))
    }

    fn text(&self) -> Result<Option<&'a str>, Problem> {
        self.read("text", Value::as_str)
    }

    /// Text of bounded length without control characters.
    fn name(&self) -> Result<Option<&'a str>, Problem> {
        let name = self.text()?.filter(|text| !text.is_empty());
        if name.is_some_and(|name| name.len() > TEXT_LEN_MAX || name.chars().any(char::is_control)) {
            return Err(wrong(&self.path, "is too long, or has control characters"));
        }
        Ok(name)
    }

    fn number(&self) -> Result<Option<i64>, Problem> {
        self.read("whole number", number)
    }

    fn flag(&self) -> Result<bool, Problem> {
        Ok(self.read("boolean", flag)?.unwrap_or(false))
    }

    /// Items of a list, or the only one, which YARN writes without its list.
    fn items(&self) -> impl Iterator<Item = Self> + use<'_, 'a> {
        let items: &[Value] = match self.value {
            None => &[],
            Some(Value::Array(items)) => items,
            Some(one) => std::slice::from_ref(one),
        };
        let item = |(n, value): (usize, &'a Value)| Self {
            value: Some(value).filter(|value| !value.is_null()),
            path: format!("{}[{n}]", self.path),
        };
        items.iter().enumerate().map(item)
    }

    /// Keys and values of a map, which YARN writes as entries.
    fn entries(&self) -> Result<Vec<(String, Self)>, Problem> {
        let entry = |entry: Self| {
            let key = entry.get("key");
            let name = key.text()?.ok_or_else(|| wrong(&key.path, "is missing"))?;
            Ok((name.to_owned(), entry.get("value")))
        };
        self.get("entry").items().map(entry).collect()
    }

    fn base64(&self) -> Result<Bytes, Problem> {
        let text = self.text()?.unwrap_or_default().trim();
        let decoded = PLAIN.decode(text).or_else(|_| FOR_URLS.decode(text));
        decoded.map(Bytes::from).map_err(|_| wrong(&self.path, "is no base64"))
    }
}

/// Reads the body of a submission by `user`.
pub(super) fn read(body: &Value, user: &str) -> Result<(YarnApplicationId, SubmittedApp), Problem> {
    let body = Field::root(body);
    let id = body.get("application-id");
    let text = id
        .text()?
        .ok_or_else(|| wrong("application-id", "is missing: POST /apps/new-application gives one"))?;
    let id: YarnApplicationId = text.parse().map_err(|_| wrong("application-id", "is no application id"))?;
    if body.get("reservation-id").value.is_some() {
        return Err(wrong(
            "reservation-id",
            "YARN's reservations are not supported: `godel reservation create` reserves room",
        ));
    }
    let label = body.get("app-node-label-expression").name()?.unwrap_or_default().trim();
    // The last one counts, which is YARN's own name for it; older adapters read the other one.
    let mut own = None;
    for key in ["am-node-label-expression", "am-container-node-label-expression"] {
        own = body.get(key).name()?.or(own);
    }
    let own = own.map(str::trim);
    let master = if body.get("unmanaged-AM").flag()? {
        None
    } else {
        Some(AskGroup {
            priority: 0,
            execution: ExecutionType::Guaranteed,
            capability: resource(&body.get("resource"))?.to_capability(),
            label: own.unwrap_or(label).to_owned(),
        })
    };
    let launch = launch_context(&body.get("am-container-spec"))?;
    if master.is_some() && launch.command.is_empty() {
        return Err(wrong("am-container-spec.commands", "are missing: they start the master"));
    }
    let whole = |name: &str, default: i32| {
        let field = body.get(name);
        let number = field.number()?.map_or(Ok(default), i32::try_from);
        number.map_err(|_| wrong(&field.path, "is too large"))
    };
    let name =
        |field: &str, default: &str| Ok::<_, Problem>(body.get(field).name()?.unwrap_or(default).to_owned());
    let submission = AppSubmission {
        name: name("application-name", "N/A")?,
        user: user.to_owned(),
        queue: name("queue", "")?,
        kind: name("application-type", "YARN")?,
        priority: whole("priority", 0)?,
        master,
        label: label.to_owned(),
        max_attempts: whole("max-app-attempts", 0)?,
        validity_interval_ms: body.get("attempt-failures-validity-interval").number()?.unwrap_or(-1),
        keeps_containers: body.get("keep-containers-across-application-attempts").flag()?,
        lifetime_ms: lifetime(&body.get("application-timeouts"))?,
    };
    let tags = tags(&body.get("application-tags"))?;
    Ok((id, SubmittedApp { submission, launch: launch.encode_to_vec().into(), tags }))
}

fn resource(field: &Field<'_>) -> Result<YarnAmount, Problem> {
    let mut amount = YarnAmount {
        memory_mb: field.get("memory").number()?.unwrap_or(0),
        vcores: field.get("vCores").number()?.unwrap_or(0),
        others: BTreeMap::new(),
    };
    for one in field.get("resourceInformations").get("resourceInformation").items() {
        let name = one.get("name");
        let name = name.name()?.ok_or_else(|| wrong(&name.path, "is missing"))?;
        let value = one.get("value").number()?.unwrap_or(0);
        match name {
            "memory-mb" => amount.memory_mb = value,
            "vcores" => amount.vcores = value,
            _ => drop(amount.others.insert(name.to_owned(), value)),
        }
    }
    if amount.memory_mb <= 0 && amount.vcores <= 0 {
        return Err(wrong(&field.path, "memory or vCores above 0 are required"));
    }
    Ok(amount)
}

fn tags(field: &Field<'_>) -> Result<Vec<String>, Problem> {
    let mut tags = Vec::new();
    for tag in field.get("tag").items() {
        let word = tag.name()?.ok_or_else(|| wrong(&tag.path, "is empty"))?;
        if word.len() > TAG_LEN_MAX || tags.len() >= N_TAGS_MAX {
            let most = format!("at most {N_TAGS_MAX} tags of {TAG_LEN_MAX} bytes are allowed");
            return Err(wrong(&tag.path, &most));
        }
        tags.push(word.to_lowercase());
    }
    Ok(tags)
}

/// The lifetime, in seconds as YARN gives it, in milliseconds.
fn lifetime(field: &Field<'_>) -> Result<Option<i64>, Problem> {
    let mut lifetime = None;
    for (kind, seconds) in field.entries()? {
        let known = seconds.number()?.filter(|seconds| *seconds > 0 && kind.eq_ignore_ascii_case("LIFETIME"));
        let seconds = known.ok_or_else(|| wrong(&seconds.path, "is no LIFETIME above 0 seconds"))?;
        lifetime = Some(seconds.saturating_mul(1_000));
    }
    Ok(lifetime)
}

fn launch_context(spec: &Field<'_>) -> Result<ContainerLaunchContextProto, Problem> {
    let mut launch = ContainerLaunchContextProto::default();
    for (key, value) in spec.get("local-resources").entries()? {
        let value = Some(local_resource(&value)?);
        launch.local_resources.push(StringLocalResourceMapProto { key: Some(key), value });
    }
    for (key, value) in spec.get("environment").entries()? {
        let value = Some(value.text()?.unwrap_or_default().to_owned());
        launch.environment.push(StringStringMapProto { key: Some(key), value });
    }
    for command in spec.get("commands").get("command").items() {
        launch.command.extend(command.text()?.map(str::to_owned));
    }
    for (key, value) in spec.get("service-data").entries()? {
        launch.service_data.push(StringBytesMapProto { key: Some(key), value: Some(value.base64()?) });
    }
    for (key, acl) in spec.get("application-acls").entries()? {
        let access = match key.as_str() {
            "VIEW_APP" => ApplicationAccessTypeProto::AppaccessViewApp,
            "MODIFY_APP" => ApplicationAccessTypeProto::AppaccessModifyApp,
            _ => return Err(wrong(&acl.path, "is for VIEW_APP or MODIFY_APP")),
        };
        let acl = acl.text()?.map(str::to_owned);
        launch.application_ac_ls.push(ApplicationAclMapProto { access_type: Some(access.into()), acl });
    }
    launch.tokens = credentials(&spec.get("credentials"))?;
    Ok(launch)
}

/// A credentials file; `None`: there are no credentials.
fn credentials(field: &Field<'_>) -> Result<Option<Bytes>, Problem> {
    let mut credentials = Credentials::default();
    for (alias, value) in field.get("tokens").entries()? {
        let token = read_url_token(value.base64()?);
        let token = token.map_err(|_| wrong(&value.path, "is no encoded token"))?;
        credentials.tokens.insert(alias, token);
    }
    for (alias, value) in field.get("secrets").entries()? {
        credentials.secrets.insert(alias, value.base64()?);
    }
    let is_empty = credentials.tokens.is_empty() && credentials.secrets.is_empty();
    Ok((!is_empty).then(|| credentials.write().into()))
}

fn local_resource(field: &Field<'_>) -> Result<LocalResourceProto, Problem> {
    let at = field.get("resource");
    let address =
        at.text()?.and_then(url).ok_or_else(|| wrong(&at.path, "is no address as hdfs://host:9000/path"))?;
    let word =
        |name: &str| Ok::<_, Problem>(field.get(name).text()?.unwrap_or_default().to_ascii_uppercase());
    let kind = match word("type")?.as_str() {
        "ARCHIVE" => LocalResourceTypeProto::Archive,
        "FILE" => LocalResourceTypeProto::File,
        "PATTERN" => LocalResourceTypeProto::Pattern,
        _ => return Err(wrong(&field.get("type").path, "is not ARCHIVE, FILE or PATTERN")),
    };
    let visibility = match word("visibility")?.as_str() {
        "PUBLIC" => LocalResourceVisibilityProto::Public,
        "PRIVATE" => LocalResourceVisibilityProto::Private,
        "APPLICATION" => LocalResourceVisibilityProto::Application,
        _ => return Err(wrong(&field.get("visibility").path, "is not PUBLIC, PRIVATE or APPLICATION")),
    };
    Ok(LocalResourceProto {
        resource: Some(address),
        size: Some(field.get("size").number()?.unwrap_or(0)),
        timestamp: Some(field.get("timestamp").number()?.unwrap_or(0)),
        r#type: Some(kind.into()),
        visibility: Some(visibility.into()),
        pattern: field.get("pattern").text()?.map(str::to_owned),
        should_be_uploaded_to_shared_cache: None,
    })
}

/// `scheme://user@host:port/path`, as YARN keeps addresses: without a port it is -1.
fn url(text: &str) -> Option<UrlProto> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme =
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let (authority, file) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let (user, address) = match authority.rsplit_once('@') {
        Some((user, address)) => (Some(user.to_owned()), address),
        None => (None, authority),
    };
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, i32::from(port.parse::<u16>().ok()?)),
        _ => (address, -1),
    };
    (is_scheme && file.starts_with('/')).then(|| UrlProto {
        scheme: Some(scheme.to_owned()),
        host: (!host.is_empty()).then(|| host.to_owned()),
        port: Some(port),
        file: Some(file.to_owned()),
        user_info: user,
    })
}

#[cfg(test)]
mod tests;
