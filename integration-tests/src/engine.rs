//! The Docker engine of this machine, for tests of containers: an image without a registry, and the containers that there are.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use bollard::{
    API_DEFAULT_VERSION, Docker, body_full,
    models::ContainerCreateBody,
    query_parameters::{
        CreateContainerOptionsBuilder, CreateImageOptionsBuilder, ListContainersOptionsBuilder,
        RemoveImageOptions,
    },
};
use tokio_stream::StreamExt as _;

use crate::settings;

/// Where the engine listens, if there is one.
const SOCKET: &str = "/var/run/docker.sock";
const TIMEOUT_SECONDS: u64 = 60;
/// What the image has of this machine, with the libraries of each.
const PROGRAMS: [&str; 3] = ["sh", "sleep", "tail"];

/// A container: its name, and its labels.
pub type Containers = BTreeMap<String, HashMap<String, String>>;

/// The engine, with an image of a few programs of this machine.
pub struct Engine {
    docker: Docker,
    /// The name of the image.
    pub image: String,
}

impl Engine {
    /// Connects, and makes the image.
    ///
    /// # Errors
    /// There is no engine here that answers.
    ///
    /// # Panics
    /// There is a socket that cannot be used, where everything has to be tested (`CI=true`), or the image cannot be made.
    pub async fn open() -> Result<Self> {
        match Self::connect().await {
            Ok(docker) => {
                let image = format!("godel-test-{}:1", std::process::id());
                import(&docker, &image).await.expect("an image can be made of programs of this machine");
                Ok(Self { docker, image })
            }
            Err(error) => {
                let must_run = settings::is_ci() && Path::new(SOCKET).exists();
                assert!(!must_run, "{SOCKET} is there, and nobody answers: {error:#}");
                Err(error)
            }
        }
    }

    async fn connect() -> Result<Docker> {
        let docker = Docker::connect_with_unix(SOCKET, TIMEOUT_SECONDS, API_DEFAULT_VERSION)?;
        Ok(docker.negotiate_version().await?)
    }

    /// Returns the containers of a node that run, or all of them.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn containers(&self, node: &str, which: Which) -> Result<BTreeMap<String, String>> {
        Ok(self.list(node, which).await?.into_iter().map(|one| (one.0, one.1)).collect())
    }

    /// Returns the labels of the containers of a node by name.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn labels(&self, node: &str) -> Result<Containers> {
        Ok(self.list(node, Which::All).await?.into_iter().map(|one| (one.0, one.2)).collect())
    }

    async fn list(&self, node: &str, which: Which) -> Result<Vec<(String, String, HashMap<String, String>)>> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("godel.node={node}")])]);
        let options =
            ListContainersOptionsBuilder::default().all(which == Which::All).filters(&filters).build();
        let found = self.docker.list_containers(Some(options)).await?;
        let name = |names: Option<Vec<String>>| names.and_then(|names| Some(names.first()?.clone()));
        let parts =
            found.into_iter().map(|one| Some((name(one.names)?, one.id?, one.labels.unwrap_or_default())));
        parts.collect::<Option<Vec<_>>>().context("a container without a name")
    }

    /// Makes and starts a container that nobody keeps.
    ///
    /// # Errors
    /// The engine does not.
    pub async fn leave(&self, name: &str, labels: HashMap<String, String>) -> Result<()> {
        let body = ContainerCreateBody {
            image: Some(self.image.clone()),
            entrypoint: Some(["sleep", "100000"].map(str::to_owned).to_vec()),
            labels: Some(labels),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        self.docker.create_container(Some(options), body).await?;
        Ok(self.docker.start_container(name, None).await?)
    }

    /// Removes the image.
    pub async fn close(self) {
        // Another test of this process may use it.
        let _in_use = self.docker.remove_image(&self.image, None::<RemoveImageOptions>, None).await;
    }
}

/// Which containers are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that run.
    Running,
    /// Those that have ended, too.
    All,
}

/// Makes an image of programs of this machine and their libraries.
async fn import(docker: &Docker, image: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let root = dir.path().join("root");
    for program in PROGRAMS {
        let mut found = ["/bin", "/usr/bin"].iter().map(|folder| Path::new(folder).join(program));
        let found = found.find(|path| path.exists()).with_context(|| format!("no {program} here"))?;
        copy(&found, &root.join("bin").join(program))?;
        let libraries = Command::new("ldd").arg(&found).output()?;
        for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace() {
            if word.starts_with('/') {
                copy(Path::new(word), &root.join(word.trim_start_matches('/')))?;
            }
        }
    }
    let archive = Command::new("tar").arg("-C").arg(&root).args(["-c", "."]).output()?;
    ensure!(archive.status.success(), "tar: {}", String::from_utf8_lossy(&archive.stderr));
    let (repo, tag) = image.split_once(':').context("an image has a tag")?;
    let options = CreateImageOptionsBuilder::default().from_src("-").repo(repo).tag(tag).build();
    let mut steps = docker.create_image(Some(options), Some(body_full(archive.stdout.into())), None);
    while steps.try_next().await?.is_some() {}
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}
