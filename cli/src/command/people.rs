//! `godel token`, `godel principal`, `godel whoami` and `godel auth`.

mod yarn;

use std::path::Path;

use clap::ValueEnum as _;
use godel_client::{
    client::Client,
    exit::Failure,
    output::{self, Format, View, ViewColumn, count, field, time},
    renewal::take_trust,
    view,
};
use godel_kit::clock::SystemClock;
use godel_pki::private_files;
use godel_proto::v1;

use super::{
    each::{Done, each},
    identity::millis,
};
use crate::args::people::{
    AuthVerb, CanI, NewToken, ObjectKind, PrincipalFlags, PrincipalVerb, RoleOfPerson, TokenVerb,
};

/// Width of the titles of `godel whoami`.
const WIDTH: usize = 18;

view! {
    struct TokenView from (token: (v1::PersonToken, i64)) with {
        let (token, now_ms) = token;
        let standing = match (token.is_revoked, token.ends_ms <= now_ms) {
            (true, _) => "revoked",
            (false, true) => "expired",
            (false, false) => "valid",
        };
    } {
        id: String = token.token_id,
        principal: String = token.principal,
        standing: &'static str = standing,
        created_ms: i64 = token.created_ms,
        ends_ms: i64 = token.ends_ms,
    }
}

impl View for TokenView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("ID", |view| view.id.clone()),
        ("PRINCIPAL", |view| view.principal.clone()),
        ("STANDING", |view| view.standing.to_owned()),
        ("CREATED", |view| time(view.created_ms)),
        ("ENDS", |view| time(view.ends_ms)),
    ];
}

view! {
    struct PrincipalView from (principal: v1::Principal) {
        name: String = principal.name,
        role: String = principal.role,
        groups: Vec<String> = principal.groups,
        default_namespace: String = default_namespace(principal.default_namespace),
        namespaces: Vec<String> = principal.namespaces,
        queues: Vec<String> = principal.queues,
        created_ms: i64 = principal.created_ms,
        tokens_refused_before_ms: i64 = principal.tokens_refused_before_ms,
    }
}

impl View for PrincipalView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("ROLE", |view| view.role.clone()),
        ("GROUPS", |view| view.groups.join(",")),
        ("DEFAULT-NAMESPACE", |view| view.default_namespace.clone()),
        ("NAMESPACES", |view| view.namespaces.join(",")),
        ("QUEUES", |view| view.queues.join(",")),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("CREATED", |view| time(view.created_ms)),
        ("REFUSED-BEFORE", |view| time(view.tokens_refused_before_ms)),
    ];
}

fn default_namespace(namespace: String) -> String {
    if namespace.is_empty() { "default".to_owned() } else { namespace }
}

fn terms(flags: PrincipalFlags, replace_lists: bool) -> v1::PrincipalTerms {
    let PrincipalFlags { role, groups, namespaces, queues, default_namespace } = flags;
    let role = role.as_ref().and_then(RoleOfPerson::to_possible_value);
    let role = role.map(|value| value.get_name().to_owned()).unwrap_or_default();
    v1::PrincipalTerms { role, groups, namespaces, queues, default_namespace, replace_lists }
}

fn is_for_people(format: Format) -> bool {
    matches!(format, Format::Table | Format::Wide)
}

pub(super) async fn token(client: &Client, verb: TokenVerb, format: Format) -> Result<(), Failure> {
    match verb {
        TokenVerb::Create(wanted) => create(client, wanted, format).await,
        TokenVerb::List { principal } => {
            let request = v1::ListTokensRequest { principal };
            let listed = client.read(async || client.identities().list_tokens(request.clone()).await).await?;
            let v1::ListTokensResponse { tokens, now_ms } = listed.into_inner();
            let views: Vec<TokenView> =
                tokens.into_iter().map(|token| TokenView::from((token, now_ms))).collect();
            output::print_list(format, &views, "tokens")
        }
        TokenVerb::Revoke { ids, all_of: None } => {
            let revoked = each(format, "token", &ids, async |token_id| {
                let request = v1::RevokeTokenRequest { token_id, principal: String::new() };
                client.read(async || client.identities().revoke_token(request.clone()).await).await?;
                Ok(Done::at("revoked", 0))
            });
            revoked.await.map(drop)
        }
        TokenVerb::Revoke { all_of: Some(principal), .. } => {
            let request = v1::RevokeTokenRequest { token_id: String::new(), principal: principal.clone() };
            let answer =
                client.read(async || client.identities().revoke_token(request.clone()).await).await?;
            let n_revoked = answer.into_inner().n_revoked;
            if is_for_people(format) {
                output::say(format!(
                    "all tokens of {principal} are revoked: {} and those of sessions",
                    count(n_revoked, "created token")
                ));
                return Ok(());
            }
            output::print_value(format, &serde_json::json!({"principal": principal, "revoked": n_revoked}))
        }
    }
}

/// Prints only the token to standard output, so that it can go into a file; what it is good for goes to standard error.
async fn create(client: &Client, wanted: NewToken, format: Format) -> Result<(), Failure> {
    let NewToken { principal, flags, ttl, file, yarn, yarn_address } = wanted;
    if let Some(file) = [&file, &yarn].into_iter().flatten().find(|file| file.exists()) {
        return Err(Failure::usage(format!("{} exists already", file.display()))
            .hint("name a new file: it is made for its owner alone"));
    }
    // Before there is a token that nobody has.
    let services = match &yarn {
        Some(_) => yarn::services(client, yarn_address).await?,
        None => Vec::new(),
    };
    let request = v1::CreateTokenRequest {
        principal,
        ttl_ms: millis(ttl),
        terms: Some(terms(flags, false)),
        for_yarn: yarn.is_some(),
    };
    let answer = client.identities().create_token(request).await;
    let v1::CreateTokenResponse { token, info, principal, yarn_password } =
        answer.map_err(|status| client.explain(status))?.into_inner();
    let info = info.unwrap_or_default();
    if let Some(file) = &file {
        write_token(client, file, &token).await?;
    }
    if let Some(file) = &yarn {
        yarn::write(file, &token, &yarn_password, &info, services)?;
    }
    let info = TokenView::from((info, 0));
    let shows_token = file.is_none() && yarn.is_none();
    let principal = PrincipalView::from(principal.unwrap_or_default());
    if !is_for_people(format) {
        let mut made = serde_json::json!({"info": info, "principal": principal});
        if shows_token {
            made["token"] = token.into();
        }
        return output::print_value(format, &made);
    }
    if shows_token {
        output::print_raw(&format!("{token}\n"))?;
    }
    let mut said = format!(
        "token {} is valid for {} as {}, until {}\nwhoever has it calls as {}; on the other machine:",
        info.id,
        info.principal,
        principal.role,
        time(info.ends_ms),
        info.principal,
    );
    if shows_token || file.is_some() {
        let shown = file.map_or_else(|| "FILE".to_owned(), |file| file.display().to_string());
        let state = super::identity::address_for_others(client.address());
        said.push_str(&format!("\n  godel login --token-file {shown} --state {state}"));
    }
    if let Some(file) = yarn {
        said.push_str(&format!("\n  export HADOOP_TOKEN_FILE_LOCATION={}", file.display()));
    }
    output::say(said);
    Ok(())
}

/// Writes a token with the roots of the cluster, by which whoever logs in with it knows the cluster.
async fn write_token(client: &Client, file: &Path, token: &str) -> Result<(), Failure> {
    let now_ms = SystemClock::shared().wall_ms();
    let trust = client.read(async || take_trust(client, now_ms).await).await?;
    private_files::create(file, format!("{token}\n{}", trust.roots).as_bytes())
        .map_err(|error| Failure::chain(godel_client::exit::Code::Failed, &error))
}

pub(super) async fn principal(client: &Client, verb: PrincipalVerb, format: Format) -> Result<(), Failure> {
    match verb {
        PrincipalVerb::List => {
            let request = v1::ListPrincipalsRequest {};
            let listed = client.read(async || client.identities().list_principals(request).await).await?;
            let views: Vec<PrincipalView> =
                listed.into_inner().principals.into_iter().map(PrincipalView::from).collect();
            output::print_list(format, &views, "principals")
        }
        PrincipalVerb::Set { principal, flags, replace } => {
            let terms = Some(terms(flags, replace));
            let request = v1::SetPrincipalRequest { principal, terms };
            let answer =
                client.read(async || client.identities().set_principal(request.clone()).await).await?;
            let view = PrincipalView::from(answer.into_inner().principal.unwrap_or_default());
            if is_for_people(format) {
                output::say(format!("principal {} has role {}", view.name, view.role));
                return Ok(());
            }
            output::print_value(format, &view)
        }
        PrincipalVerb::Delete { principals } => {
            let deleted = each(format, "principal", &principals, async |principal| {
                let request = v1::DeletePrincipalRequest { principal };
                let answer = client.identities().delete_principal(request).await;
                answer.map_err(|status| client.explain(status))?;
                Ok(Done { said: Some("deleted, and its tokens revoked"), ..Done::at("deleted", 0) })
            });
            deleted.await.map(drop)
        }
    }
}

/// Who calls, as JSON.
#[derive(serde::Serialize)]
struct CallerView {
    caller: String,
    cluster: String,
    principal: Option<PrincipalView>,
    token: String,
    token_ends_ms: i64,
}

impl CallerView {
    fn text(&self) -> String {
        let mut text = field(WIDTH, "caller", &self.caller);
        let mut add = |title: &str, words: &str| {
            if !words.is_empty() {
                text.push_str(&field(WIDTH, title, words));
            }
        };
        add("cluster", &self.cluster);
        if let Some(principal) = &self.principal {
            add("role", &principal.role);
            add("groups", &principal.groups.join(", "));
            add("default namespace", &principal.default_namespace);
            add("namespaces", &principal.namespaces.join(", "));
            let all = || "all".to_owned();
            add("queues", &if principal.queues.is_empty() { all() } else { principal.queues.join(", ") });
        }
        if !self.token.is_empty() {
            add("token", &format!("{}, until {}", self.token, time(self.token_ends_ms)));
        }
        text
    }
}

pub(super) async fn whoami(client: &Client, format: Format) -> Result<(), Failure> {
    let answer = client.read(async || client.identities().who_am_i(v1::WhoAmIRequest {}).await).await?;
    let v1::WhoAmIResponse { caller, principal, token_id, token_ends_ms, cluster } = answer.into_inner();
    let principal = principal.map(PrincipalView::from);
    let view = CallerView { caller, cluster, principal, token: token_id, token_ends_ms };
    output::show(format, &view, || view.text())
}

pub(super) async fn auth(client: &Client, verb: AuthVerb, format: Format) -> Result<(), Failure> {
    let AuthVerb::CanI(CanI { method, objects, as_principal }) = verb;
    let mut request = v1::CanIRequest { method, as_principal, ..v1::CanIRequest::default() };
    for (kind, name) in objects {
        match kind {
            ObjectKind::Namespace => request.namespace = name,
            ObjectKind::Queue => request.queue = name,
            ObjectKind::Owner => request.owner = name,
        }
    }
    let answer = client.read(async || client.identities().can_i(request.clone()).await).await?;
    let v1::CanIResponse { is_allowed, why, principal, method } = answer.into_inner();
    if is_for_people(format) {
        output::print(if is_allowed { "yes\n" } else { "no\n" })?;
    } else {
        let answer = serde_json::json!({
            "allowed": is_allowed, "why": why, "principal": principal, "method": method
        });
        output::print_value(format, &answer)?;
    }
    if is_allowed { Ok(()) } else { Err(Failure::failed(why)) }
}
