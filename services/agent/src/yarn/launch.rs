//! What a container needs before its command runs, and the script that starts the command: a pure function of the launch context.
//!
//! The script is what a NodeManager writes: the environment as `export` lines, in which values may refer to earlier variables, and the
//! command in one `bash -c` with double quotes around it. Clients quote for these two expansions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Component, Path, PathBuf},
};

use godel_core_agent::LocalUserRow;
use godel_hadoop::{
    Exception, exception,
    yarn::{
        ContainerLaunchContextProto, ContainerRetryPolicyProto, LocalResourceProto, LocalResourceTypeProto,
        UrlProto,
    },
};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::{ids::ContainerId, localise};

/// Bytes of a launch context: a keeper reads all of it in one small file.
const CONTEXT_BYTES_MAX: usize = 512 << 10;
const TOKENS: &str = "container_tokens";
const SCRIPT: &str = "launch_container.sh";
/// Of an exception about shuffle services and the like.
const NO_AUXILIARY_SERVICE: &str = "org.apache.hadoop.yarn.exceptions.InvalidAuxServiceException";

/// A file that a container finds in its working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Resource {
    /// Where it is in the working directory.
    pub(crate) link: PathBuf,
    /// Where it is on this machine, or on `server`.
    pub(crate) source: PathBuf,
    /// The web server that has it, `host:port`; `None`: this machine has it.
    pub(crate) server: Option<String>,
    /// The server is asked over TLS, and shows a certificate of an authority in this file.
    pub(crate) ca_file: Option<PathBuf>,
    /// `None`: a web server's, which need not say so before.
    pub(crate) bytes: Option<u64>,
    /// When the source was changed last, Unix milliseconds; not looked at if a web server has it.
    pub(crate) changed_ms: i64,
    /// It is unpacked.
    pub(crate) is_archive: bool,
    /// Of an archive, entries whose whole names fit this regular expression are unpacked, and the archive is left beside them.
    pub(crate) pattern: Option<String>,
}

/// All that a container needs.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Launch {
    pub(crate) container: ContainerId,
    /// The directory of the run; empty until the run has one.
    pub(crate) root: PathBuf,
    pub(crate) resources: Vec<Resource>,
    /// Bytes of all resources, unpacked, at most.
    pub(crate) resource_bytes_max: u64,
    /// The credentials file.
    pub(crate) tokens: Vec<u8>,
    /// What the node says, before and above what the master asks for.
    pub(crate) fixed: Vec<(String, String)>,
    /// What the node says unless the master does.
    pub(crate) defaults: Vec<(String, String)>,
    /// What the master asks for, each after those that it refers to.
    pub(crate) asked: Vec<(String, String)>,
    pub(crate) command: String,
}

impl fmt::Debug for Launch {
    /// Without tokens and environment, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("container", &self.container)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// What the node adds to every launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchFacts {
    /// Where masters reach this node.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) java_home: Option<String>,
    pub(crate) hadoop_conf_dir: Option<String>,
    pub(crate) resource_bytes_max: u64,
    /// Certificates of authorities that web servers may have theirs from.
    pub(crate) ca_file: PathBuf,
    /// The user that containers run as which do not run as their submitter.
    pub(crate) local_user: Option<String>,
    /// As whom they may run; `None`: as anybody.
    pub(crate) users: Option<Vec<LocalUserRow>>,
    /// None runs as its submitter, where they have users.
    pub(crate) limit_users: bool,
}

fn refused(message: impl Into<String>) -> Exception {
    Exception::new(exception::YARN, message)
}

impl Launch {
    /// Reads a launch context.
    ///
    /// # Errors
    /// It asks for something that this node does not do.
    pub(crate) fn of(
        container: ContainerId,
        submitter: &str,
        context: &ContainerLaunchContextProto,
        facts: &LaunchFacts,
    ) -> Result<Self, Exception> {
        if let Some(service) = context.service_data.first() {
            let message = format!(
                "The auxService:{} does not exist: agents of godel run no auxiliary services. For Spark set spark.shuffle.service.enabled=false \
                 and spark.dynamicAllocation.shuffleTracking.enabled=true",
                service.key()
            );
            return Err(Exception::new(NO_AUXILIARY_SERVICE, message));
        }
        let retries = context.container_retry_context.as_ref().map(|retry| retry.retry_policy());
        if retries.is_some_and(|policy| policy != ContainerRetryPolicyProto::NeverRetry) {
            return Err(refused(
                "agents of godel do not start a container again: leave out the retry context",
            ));
        }
        if context.command.is_empty() {
            return Err(refused(format!("the launch context of {container} has no command")));
        }
        let n_bytes = context.encoded_len();
        if n_bytes > CONTEXT_BYTES_MAX {
            return Err(refused(format!(
                "the launch context of {container} has {n_bytes} bytes, and {CONTEXT_BYTES_MAX} are taken here: put what is large into a \
                 resource"
            )));
        }
        let mut resources = Vec::new();
        for pair in &context.local_resources {
            let Some(value) = &pair.value else { continue };
            resources.push(resource(pair.key(), value, &facts.ca_file)?);
        }
        let asked = context.environment.iter().map(|pair| (pair.key().to_owned(), expand(pair.value())));
        let asked: BTreeMap<String, String> = asked.collect();
        if let Some(name) = asked.keys().find(|name| !is_variable(name)) {
            return Err(refused(format!(
                "`{name}` cannot be the name of an environment variable of {container}"
            )));
        }
        let fixed = [
            ("CONTAINER_ID", container.to_string()),
            ("NM_HOST", facts.host.clone()),
            ("NM_PORT", facts.port.to_string()),
            // There is no web server of the node.
            ("NM_HTTP_PORT", "0".to_owned()),
            ("USER", submitter.to_owned()),
            ("LOGNAME", submitter.to_owned()),
        ];
        let defaults = [("JAVA_HOME", &facts.java_home), ("HADOOP_CONF_DIR", &facts.hadoop_conf_dir)];
        let defaults =
            defaults.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        Ok(Self {
            container,
            root: PathBuf::new(),
            resources,
            resource_bytes_max: facts.resource_bytes_max,
            tokens: context.tokens().to_vec(),
            fixed: fixed.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            defaults: defaults.collect(),
            asked: in_order(asked),
            command: expand(&context.command.join(" ")),
        })
    }

    /// The working directory.
    pub(crate) fn work_dir(&self) -> PathBuf {
        self.root.join("container")
    }

    /// What is written there is for this run alone.
    pub(crate) fn local_dir(&self) -> PathBuf {
        self.root.join("local")
    }

    /// What `<LOG_DIR>` stands for.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The file of the script.
    pub(crate) fn script_path(&self) -> PathBuf {
        self.work_dir().join(SCRIPT)
    }

    /// The file of the credentials.
    pub(crate) fn tokens_path(&self) -> PathBuf {
        self.work_dir().join(TOKENS)
    }

    /// The script that starts the command.
    pub(crate) fn script(&self) -> String {
        let logs = self.log_dir().display().to_string();
        let with_logs = |text: &str| text.replace("<LOG_DIR>", &logs);
        let paths = [
            ("PWD", self.work_dir()),
            ("LOCAL_DIRS", self.local_dir()),
            ("LOG_DIRS", self.log_dir()),
            ("HADOOP_TOKEN_FILE_LOCATION", self.tokens_path()),
        ];
        let paths = paths.map(|(name, path)| (name.to_owned(), path.display().to_string()));
        let own: Vec<(String, String)> = self.fixed.iter().cloned().chain(paths).collect();
        let is_own = |name: &str| own.iter().any(|(own, _)| own == name);
        let is_asked = |name: &str| self.asked.iter().any(|(asked, _)| asked == name);
        let mut script = "#!/bin/bash\nset -o pipefail -e\n".to_owned();
        let defaults = self.defaults.iter().filter(|(name, _)| !is_asked(name));
        for (name, value) in own.iter().chain(defaults) {
            script += &format!("export {name}={}\n", quoted(value));
        }
        for (name, value) in self.asked.iter().filter(|(name, _)| !is_own(name)) {
            script += &format!("export {name}=\"{}\"\n", with_logs(value));
        }
        script + &format!("exec /bin/bash -c \"{}\"\n", with_logs(&self.command))
    }
}

fn resource(link: &str, value: &LocalResourceProto, ca_file: &Path) -> Result<Resource, Exception> {
    let path = Path::new(link);
    let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_inside || link.is_empty() || [TOKENS, SCRIPT].contains(&link) {
        return Err(refused(format!(
            "a resource cannot be called `{link}` in the working directory of a container"
        )));
    }
    let url = value.resource.as_ref().filter(|url| url.file().starts_with('/'));
    let Some(url) = url else { return Err(refused(format!("the resource {link} has no absolute path"))) };
    let server = match url.scheme() {
        "" | "file" => None,
        "http" => Some(server_of(link, url, 80)?),
        "https" => Some(server_of(link, url, 443)?),
        other => {
            return Err(refused(format!(
                "the resource {link} is in {other}://, and agents of godel fetch resources from file:, http: and https: set spark.yarn.stagingDir or \
                 fs.defaultFS to a directory that all nodes share"
            )));
        }
    };
    let (is_archive, pattern) = match value.r#type() {
        LocalResourceTypeProto::File => (false, None),
        LocalResourceTypeProto::Archive => (true, None),
        LocalResourceTypeProto::Pattern => {
            let pattern = value.pattern.as_deref().unwrap_or(".*");
            localise::compile(pattern)
                .map_err(|why| refused(format!("the pattern of the resource {link}: {why}")))?;
            (true, Some(pattern.to_owned()))
        }
    };
    let bytes = u64::try_from(value.size()).ok();
    if bytes.is_none() && server.is_none() {
        return Err(refused(format!("the resource {link} has no size")));
    }
    let (source, changed_ms) = (PathBuf::from(url.file()), value.timestamp());
    let ca_file = (url.scheme() == "https").then(|| ca_file.to_owned());
    Ok(Resource { link: path.to_owned(), source, server, ca_file, bytes, changed_ms, is_archive, pattern })
}

/// Host and port of a web server.
fn server_of(link: &str, url: &UrlProto, port: i32) -> Result<String, Exception> {
    let is_host = |host: &str| {
        let is_plain =
            |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_' | ':' | '[' | ']');
        !host.is_empty() && host.chars().all(is_plain)
    };
    let is_path = url.file().bytes().all(|byte| byte.is_ascii_graphic());
    if !is_host(url.host()) || !is_path {
        return Err(refused(format!("the address of the resource {link} is none of a web server")));
    }
    let port = url.port.filter(|port| *port > 0).unwrap_or(port);
    Ok(format!("{}:{port}", url.host()))
}

/// What a client writes for every platform, as bash reads it.
fn expand(text: &str) -> String {
    text.replace("{{", "$").replace("}}", "").replace("<CPS>", ":")
}

fn is_variable(name: &str) -> bool {
    let is_word = name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    is_word && name.chars().next().is_some_and(|first| !first.is_ascii_digit())
}

/// In single quotes: nothing in it means anything.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a value refers to a variable.
fn refers(value: &str, name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
    let plain = value.split('$').skip(1).any(|rest| rest.strip_prefix(name).is_some_and(ends));
    plain || value.contains(&format!("${{{name}"))
}

/// Each variable after those that its value refers to; of a circle, by name.
fn in_order(mut left: BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits = |(name, value): (&String, &String)| {
            left.keys().any(|other| other != name && refers(value, other)).then(|| name.clone())
        };
        let waiting: BTreeSet<String> = left.iter().filter_map(waits).collect();
        let is_circle = waiting.len() == left.len();
        let (later, now): (BTreeMap<_, _>, BTreeMap<_, _>) =
            left.into_iter().partition(|(name, _)| !is_circle && waiting.contains(name));
        ordered.extend(now);
        left = later;
    }
    ordered
}

#[cfg(test)]
mod tests {
    use godel_hadoop::yarn::{StringBytesMapProto, StringLocalResourceMapProto, StringStringMapProto};

    use super::*;
    use crate::yarn::ids::AttemptId;

    const ID: ContainerId =
        ContainerId { attempt: AttemptId { cluster_ms: 9, application: 1, attempt: 1 }, number: 2 };

    fn context(env: &[(&str, &str)], command: &str) -> ContainerLaunchContextProto {
        let pair = |(key, value): &(&str, &str)| StringStringMapProto {
            key: Some((*key).to_owned()),
            value: Some((*value).to_owned()),
        };
        ContainerLaunchContextProto {
            environment: env.iter().map(pair).collect(),
            command: vec![command.to_owned()],
            ..ContainerLaunchContextProto::default()
        }
    }

    fn facts() -> LaunchFacts {
        let java_home = Some("/jdk".to_owned());
        LaunchFacts {
            host: "n1".to_owned(),
            port: 8041,
            java_home,
            ca_file: "/ca.pem".into(),
            ..LaunchFacts::default()
        }
    }

    #[test]
    fn a_script_is_what_a_node_manager_writes() {
        let env = [("CLASSPATH", "{{PWD}}<CPS>$HOME_DIR/x"), ("HOME_DIR", "{{PWD}}/a"), ("NM_PORT", "1")];
        let context = context(&env, "{{JAVA_HOME}}/bin/java -D'x=<LOG_DIR>' 1><LOG_DIR>/stdout");
        let launch = Launch::of(ID, "anna", &context, &facts()).unwrap();
        let launch = Launch { root: PathBuf::from("/r/it's"), ..launch };
        let expected = r#"#!/bin/bash
set -o pipefail -e
export CONTAINER_ID='container_9_0001_01_000002'
export NM_HOST='n1'
export NM_PORT='8041'
export NM_HTTP_PORT='0'
export USER='anna'
export LOGNAME='anna'
export PWD='/r/it'\''s/container'
export LOCAL_DIRS='/r/it'\''s/local'
export LOG_DIRS='/r/it'\''s/logs'
export HADOOP_TOKEN_FILE_LOCATION='/r/it'\''s/container/container_tokens'
export JAVA_HOME='/jdk'
export HOME_DIR="$PWD/a"
export CLASSPATH="$PWD:$HOME_DIR/x"
exec /bin/bash -c "$JAVA_HOME/bin/java -D'x=/r/it's/logs' 1>/r/it's/logs/stdout"
"#;
        assert_eq!(launch.script(), expected);
    }

    #[test]
    fn variables_stand_after_those_that_they_refer_to() {
        let order = |pairs: &[(&str, &str)]| -> Vec<String> {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            in_order(pairs.collect()).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(order(&[("A", "$B"), ("B", "${C}/x"), ("C", "1"), ("D", "$AB")]), ["C", "D", "B", "A"]);
        assert_eq!(order(&[("A", "$B"), ("B", "$A"), ("C", "$C:1")]), ["C", "A", "B"]);
    }

    #[test]
    fn what_a_node_does_not_do_is_refused_with_what_to_do() {
        let of =
            |context: &ContainerLaunchContextProto| Launch::of(ID, "anna", context, &facts()).unwrap_err();
        let shuffle = StringBytesMapProto { key: Some("spark_shuffle".to_owned()), value: None };
        let asked = ContainerLaunchContextProto { service_data: vec![shuffle], ..context(&[], "true") };
        assert_eq!(of(&asked).class, NO_AUXILIARY_SERVICE);
        assert!(of(&context(&[("A B", "1")], "true")).message.contains("`A B`"));
        assert!(of(&ContainerLaunchContextProto::default()).message.contains("has no command"));
        let with = |link: &str, scheme: &str, kind: LocalResourceTypeProto| {
            let url = UrlProto {
                scheme: Some(scheme.to_owned()),
                file: Some("/f".to_owned()),
                ..UrlProto::default()
            };
            let value = LocalResourceProto {
                resource: Some(url),
                size: Some(1),
                timestamp: Some(2),
                r#type: Some(kind.into()),
                ..LocalResourceProto::default()
            };
            let pair = StringLocalResourceMapProto { key: Some(link.to_owned()), value: Some(value) };
            ContainerLaunchContextProto { local_resources: vec![pair], ..context(&[], "true") }
        };
        use LocalResourceTypeProto::{Archive, File, Pattern};
        assert!(of(&with("x", "hdfs", File)).message.contains("is in hdfs://"));
        assert!(of(&with("x", "https", File)).message.contains("none of a web server"), "it has no host");
        let mut odd = with("x", "file", Pattern);
        odd.local_resources[0].value.as_mut().unwrap().pattern = Some("(?<=a)b".to_owned());
        assert!(of(&odd).message.contains("the pattern of the resource x"));
        for link in ["", "/x", "../x", "a/../../x", "container_tokens", "launch_container.sh"] {
            assert!(of(&with(link, "file", File)).message.contains("cannot be called"), "{link}");
        }
        let launch = Launch::of(ID, "anna", &with("a/b.zip", "file", Archive), &facts()).unwrap();
        assert!(launch.resources[0].is_archive && launch.resources[0].bytes == Some(1));
        let mut remote = with("x", "http", Pattern);
        let value = remote.local_resources[0].value.as_mut().unwrap();
        value.size = Some(-1);
        value.resource.as_mut().unwrap().host = Some("web".to_owned());
        let fetched = Launch::of(ID, "anna", &remote, &facts()).unwrap().resources.remove(0);
        assert_eq!((fetched.server.as_deref(), fetched.bytes), (Some("web:80"), None));
        assert_eq!((fetched.pattern.as_deref(), fetched.ca_file), (Some(".*"), None));
        let value = remote.local_resources[0].value.as_mut().unwrap();
        value.resource.as_mut().unwrap().scheme = Some("https".to_owned());
        let fetched = Launch::of(ID, "anna", &remote, &facts()).unwrap().resources.remove(0);
        assert_eq!((fetched.server.as_deref(), fetched.ca_file), (Some("web:443"), Some("/ca.pem".into())));
    }
}
