//! Docker's Engine API by its socket: the calls that the containers of running units need, each with a deadline.
//!
//! Nothing is decided and nothing is kept here. The keeper of a run owns its container ([`crate::keeper`]); an agent only asks
//! whether the engine answers, and removes what keepers that were killed have left behind. What a container is made of, and
//! what the engine's answers mean, is [`body`].

pub(crate) mod body;

use std::{collections::HashMap, fmt, future::Future, path::Path, pin::Pin, time::Duration};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    container::LogOutput,
    models::{ContainerCreateBody, ContainerInspectResponse, ContainerSummaryStateEnum as State},
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, CreateImageOptionsBuilder,
        KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
        WaitContainerOptionsBuilder,
    },
};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};

use self::body::{Container, Facts, INCARNATION, INSTALLATION, NODE, ORDINAL, UNIT};
use crate::runtime::process::strays::{GRACE, NodeMark};

/// The engine answers a question in this time.
const ANSWER: Duration = Duration::from_secs(10);
/// It makes, starts or removes a container in this time: disks may be slow, and a removal ends processes.
const WORK: Duration = Duration::from_secs(120);
/// After so long without an end the state of a container is asked for.
const WAIT: Duration = Duration::from_secs(60);
/// The client's own limit, seconds: above all of these, so that it never decides.
const CLIENT_SECONDS: u64 = 180;

/// Why the engine has not done something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Error {
    what: &'static str,
    /// Its answer, if it gave one.
    pub(crate) status: Option<u16>,
    message: String,
}

/// What registries say of an image that nobody will deliver later either.
const FINAL_WORDS: [&str; 8] = [
    "manifest unknown",
    "not found",
    "denied",
    "unauthorized",
    "authentication required",
    "invalid reference",
    "no matching manifest",
    "http response to https client",
];
/// What was wanted of a registry.
const PULLED: &str = "it cannot be pulled";
/// Answers after which a question is worth asking again.
const PASSING: [u16; 2] = [408, 429];

impl Error {
    /// Nobody has answered: the engine is away.
    pub(crate) fn is_away(&self) -> bool {
        self.status.is_none()
    }

    /// Whether it may be otherwise in a while: nobody has answered, or whoever did is overloaded or broken.
    pub(crate) fn passes(&self) -> bool {
        let said = self.message.to_lowercase();
        // A registry speaks through the engine, which has no status for it.
        let is_final = self.what == PULLED && FINAL_WORDS.iter().any(|words| said.contains(words));
        match self.status {
            Some(status) if PASSING.contains(&status) => true,
            Some(500..=599) | None => !is_final,
            Some(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.message)
    }
}

impl std::error::Error for Error {}

/// What a container writes, as it comes. It ends with the container, or with the connection.
pub(crate) type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

/// A container that was found by its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Labelled {
    pub(crate) name: String,
    /// Of its replica; `None`: the label cannot be read.
    pub(crate) incarnation: Option<u32>,
    /// Its replica, as unit and ordinal; `None`: the labels cannot be read.
    pub(crate) replica: Option<(u64, u32)>,
    /// Its processes have not ended.
    pub(crate) is_running: bool,
    /// It has the uid of the node: it is not of an agent that spoke for the node before.
    pub(crate) is_own: bool,
}

/// The engine behind a socket, which has answered once.
#[derive(Debug)]
pub(crate) struct Engine {
    docker: Docker,
}

/// Waits for an answer until its time is over.
async fn within<T>(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, bollard::errors::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| refused(what, &error)),
        Err(_) => {
            Err(Error { what, status: None, message: format!("no answer in {} s", limit.as_secs_f64()) })
        }
    }
}

fn refused(what: &'static str, error: &bollard::errors::Error) -> Error {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, message } => {
            Error { what, status: Some(*status_code), message: message.trim().to_owned() }
        }
        bollard::errors::Error::DockerStreamError { error } => {
            Error { what, status: None, message: error.trim().to_owned() }
        }
        other => {
            let mut message = other.to_string();
            let mut cause = std::error::Error::source(other);
            while let Some(error) = cause {
                message = format!("{message}: {error}");
                cause = error.source();
            }
            Error { what, status: None, message }
        }
    }
}

/// What is wanted is so already, if the engine says this.
fn unless(answer: Result<(), Error>, statuses: &[u16]) -> Result<(), Error> {
    match answer {
        Err(Error { status: Some(status), .. }) if statuses.contains(&status) => Ok(()),
        answer => answer,
    }
}

impl Engine {
    /// Asks the engine for its version, and speaks that or an earlier one.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, Error> {
        const WHAT: &str = "the Docker engine does not answer";
        let Some(path) = socket.to_str() else {
            let message = format!("{} is no text", socket.display());
            return Err(Error { what: WHAT, status: None, message });
        };
        let docker = Docker::connect_with_unix(path, CLIENT_SECONDS, API_DEFAULT_VERSION);
        let docker = docker.map_err(|error| refused(WHAT, &error))?;
        let docker = within(WHAT, ANSWER, docker.negotiate_version()).await?;
        Ok(Self { docker })
    }

    pub(crate) async fn has_image(&self, image: &str) -> Result<bool, Error> {
        match within("the image cannot be looked for", ANSWER, self.docker.inspect_image(image)).await {
            Ok(_) => Ok(true),
            Err(Error { status: Some(404), .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fetches an image from its registry, in this time.
    pub(crate) async fn pull(&self, image: &str, limit: Duration) -> Result<(), Error> {
        let options = CreateImageOptionsBuilder::default().from_image(&body::reference(image)).build();
        let mut steps = self.docker.create_image(Some(options), None, None);
        let all = async {
            while steps.try_next().await?.is_some() {}
            Ok(())
        };
        within(PULLED, limit, all).await
    }

    pub(crate) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<(), Error> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.docker.create_container(Some(options), body);
        within("the container cannot be made", WORK, created).await.map(|_| ())
    }

    /// Reads what a container writes from now on.
    pub(crate) async fn attach(&self, name: &str) -> Result<Output, Error> {
        let options = AttachContainerOptionsBuilder::default().stdout(true).stderr(true).stream(true).build();
        let attached = self.docker.attach_container(name, Some(options));
        Ok(within("the output of the container cannot be read", ANSWER, attached).await?.output)
    }

    pub(crate) async fn start(&self, name: &str) -> Result<(), Error> {
        within("the container cannot be started", WORK, self.docker.start_container(name, None)).await
    }

    /// Returns what a container is doing; `None`: there is none of this name.
    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Error> {
        let asked = self.docker.inspect_container(name, None);
        match within("the state of the container is not known", ANSWER, asked).await {
            Ok(found) => Ok(Some(found)),
            Err(Error { status: Some(404), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits, after a pause, until a container has ended, the engine has gone away, or a while is over: which of them, its state says.
    pub(crate) async fn wait(&self, name: &str, pause: Duration) {
        tokio::time::sleep(pause).await;
        let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
        let mut ended = std::pin::pin!(self.docker.wait_container(name, Some(options)));
        // An exit code other than 0 is an error here.
        let _looked_at_then = tokio::time::timeout(WAIT, ended.next()).await;
    }

    /// Sends a signal to a container. One that does not run needs none.
    pub(crate) async fn kill(&self, name: &str, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::default().signal(signal).build();
        let killed = self.docker.kill_container(name, Some(options));
        unless(within("the container cannot be sent a signal", ANSWER, killed).await, &[404, 409])
    }

    /// Ends a container by force and removes it. One that is not there, or is being removed, is removed.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), Error> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = self.docker.remove_container(name, Some(options));
        unless(within("the container cannot be removed", WORK, removed).await, &[404, 409])
    }

    /// Finds the containers of a node, of one replica if that is given: those of its uid, and those of its name whose environment says
    /// that they are of the node all the same.
    pub(crate) async fn find(
        &self,
        node: &NodeMark,
        replica: Option<(u64, u32)>,
    ) -> Result<Vec<Labelled>, Error> {
        let mut found = self.list(format!("{INSTALLATION}={}", node.uid), replica).await?;
        found.iter_mut().for_each(|one| one.is_own = true);
        // One without a state directory has nothing that outlives it.
        if node.dir.is_none() {
            return Ok(found);
        }
        for one in self.list(format!("{NODE}={}", node.name), replica).await? {
            if found.iter().any(|known| known.name == one.name) {
                continue;
            }
            let config = self.inspect(&one.name).await?.and_then(|found| found.config);
            if node.is_of(&config.and_then(|config| config.env).unwrap_or_default()) {
                found.push(one);
            }
        }
        Ok(found)
    }

    async fn list(&self, label: String, replica: Option<(u64, u32)>) -> Result<Vec<Labelled>, Error> {
        let mut labels = vec![label];
        if let Some((unit, ordinal)) = replica {
            labels.extend([format!("{UNIT}={unit}"), format!("{ORDINAL}={ordinal}")]);
        }
        let filters = HashMap::from([("label".to_owned(), labels)]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let found =
            within("containers cannot be listed", ANSWER, self.docker.list_containers(Some(options))).await?;
        let labelled = |one: bollard::models::ContainerSummary| {
            let labels = one.labels.unwrap_or_default();
            let incarnation = labels.get(INCARNATION).and_then(|label| label.parse().ok());
            let unit = labels.get(UNIT).and_then(|label| label.parse().ok());
            let ordinal = labels.get(ORDINAL).and_then(|label| label.parse().ok());
            let is_running = matches!(one.state, Some(State::RUNNING | State::PAUSED));
            let name = one.names.into_iter().flatten().next().or(one.id)?;
            let name = name.trim_start_matches('/').to_owned();
            Some(Labelled { name, incarnation, replica: unit.zip(ordinal), is_running, is_own: false })
        };
        Ok(found.into_iter().filter_map(labelled).collect())
    }

    /// Ends a container that no run owns, politely first, and removes it.
    async fn end(&self, one: &Labelled) -> Result<(), Error> {
        if one.is_running
            && let Some(found) = self.inspect(&one.name).await?
        {
            self.kill(&one.name, &Facts::of(&found).stop_signal).await?;
            // One that is deaf ends by its removal.
            let _in_time = tokio::time::timeout(GRACE, self.wait(&one.name, Duration::ZERO)).await;
        }
        self.remove(&one.name).await
    }
}

/// Finds the containers of a node.
///
/// # Errors
/// The engine does not answer.
pub(crate) async fn of_node(socket: &Path, node: &NodeMark) -> Result<Vec<Labelled>, Error> {
    Engine::connect(socket).await?.find(node, None).await
}

/// Ends containers that no run owns, all at the same time, and removes them.
///
/// # Errors
/// The engine does not answer, or does not remove one.
pub(crate) async fn end(socket: &Path, strays: &[Labelled]) -> Result<(), Error> {
    if strays.is_empty() {
        return Ok(());
    }
    let engine = Engine::connect(socket).await?;
    let ended = futures_util::future::join_all(strays.iter().map(|one| engine.end(one))).await;
    ended.into_iter().collect()
}

/// Removes the container of a run whose keeper does not live, from a thread that may wait.
///
/// # Errors
/// The engine does not answer, or does not remove it.
pub(crate) fn remove_left(container: &Container) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let removed = runtime.block_on(async {
        let engine = Engine::connect(&container.socket).await?;
        engine.remove(&container.name).await
    });
    removed.map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        let error = |status, message: &str| Error { what: PULLED, status, message: message.to_owned() };
        for (status, message, passes) in [
            (
                Some(500),
                "Get \"https://reg:5000/v2/\": dial tcp 10.0.0.1:5000: connect: connection refused",
                true,
            ),
            (
                Some(500),
                "Get \"https://reg/v2/\": net/http: request canceled (Client.Timeout exceeded)",
                true,
            ),
            (Some(500), "no such host", true),
            (Some(503), "service unavailable", true),
            (Some(429), "toomanyrequests: you have reached your pull rate limit", true),
            (None, "no answer in 600 s", true),
            (None, "error trying to connect: No such file or directory", true),
            (Some(404), "manifest for web:9 not found: manifest unknown", false),
            (Some(404), "pull access denied for web, repository does not exist", false),
            (Some(500), "unauthorized: authentication required", false),
            (None, "no matching manifest for linux/arm64 in the manifest list entries", false),
            (Some(400), "invalid reference format", false),
        ] {
            assert_eq!(error(status, message).passes(), passes, "{message}");
        }
        let away = Error { what: "the Docker engine does not answer", ..error(None, "Socket not found: /x") };
        assert!(away.passes() && away.is_away());
    }
}
