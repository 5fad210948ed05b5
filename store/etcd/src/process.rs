//! An etcd of one's own on this machine, for tests and measurements: one member or several, which can be killed, paused and
//! started again.
//!
//! Everything listens on the loopback. Its data lasts as long as its directory.

use std::{
    fs::File,
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Client, ClientConfig, TlsFiles,
    kv::{Etcd, Request},
};

/// How long a start may take.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether it has started.
const START_INTERVAL: Duration = Duration::from_millis(20);
/// How often other ports are tried: another process may take one first.
const N_START_TRIES: u32 = 5;
/// The last lines of a member's log that an error shows.
const N_LOG_LINES: usize = 5;

/// Why there is no etcd.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// None is installed.
    #[error("no `etcd` is in PATH; Debian has it in the package etcd-server")]
    NotInstalled,
    /// It could not be started.
    #[error("etcd could not be started")]
    Io(#[from] io::Error),
    /// It has ended, or answers nothing.
    #[error("etcd does not answer: {0}")]
    NoAnswer(String),
}

/// How the members are started.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Where they keep their data; created if absent.
    pub dir: PathBuf,
    /// How many there are.
    pub n_members: usize,
    /// The quota of their databases; `None`: etcd's default.
    pub quota_bytes: Option<u64>,
    /// Further arguments of each.
    pub args: Vec<String>,
    /// What clients need for TLS, if the arguments say that it is spoken.
    pub tls: Option<TlsFiles>,
}

impl ProcessConfig {
    /// One member with its data in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), n_members: 1, quota_bytes: None, args: Vec::new(), tls: None }
    }
}

/// A cluster of members on this machine. They are killed when it is dropped.
#[derive(Debug)]
pub struct EtcdProcesses {
    config: ProcessConfig,
    members: Vec<MemberProcess>,
}

#[derive(Debug)]
struct MemberProcess {
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

impl EtcdProcesses {
    /// Starts all members and waits until they answer.
    ///
    /// # Errors
    /// See [`NotStarted`].
    pub fn start(config: ProcessConfig) -> Result<Self, NotStarted> {
        if find_program("etcd").is_none() {
            return Err(NotStarted::NotInstalled);
        }
        let mut last = NotStarted::NoAnswer("it was not tried".to_owned());
        for _ in 0..N_START_TRIES {
            let _absent = std::fs::remove_dir_all(&config.dir);
            std::fs::create_dir_all(&config.dir)?;
            let members = (0..config.n_members)
                .map(|_| {
                    Ok(MemberProcess { client_port: free_port()?, peer_port: free_port()?, child: None })
                })
                .collect::<io::Result<Vec<_>>>()?;
            let mut processes = Self { config: config.clone(), members };
            let started = (0..config.n_members).try_for_each(|member| processes.spawn(member));
            match started.map_err(NotStarted::from).and_then(|()| processes.wait_until_ready()) {
                Ok(()) => return Ok(processes),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Endpoints of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| self.client_url(member)).collect()
    }

    fn client_url(&self, member: &MemberProcess) -> String {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", member.client_port)
    }

    /// A client of all members, whose calls may take so long.
    pub fn client(&self, timeout: Duration) -> Arc<dyn Etcd> {
        let config =
            ClientConfig { endpoints: self.endpoints(), timeout, tls: self.config.tls.clone(), user: None };
        Arc::new(Client::start(&config).expect("the endpoints are whole"))
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a member again, with the data that it had; it may not answer yet.
    ///
    /// # Errors
    /// See [`NotStarted`].
    pub fn restart(&mut self, member: usize) -> Result<(), NotStarted> {
        self.kill(member);
        Ok(self.spawn(member)?)
    }

    /// Stops a member without ending it: it keeps its connections and answers nothing.
    pub fn pause(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// Has a paused member go on.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    /// The data directory of a member.
    pub fn data_dir(&self, member: usize) -> PathBuf {
        self.config.dir.join(format!("m{member}"))
    }

    /// Process of a member, while it runs.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].child.as_ref().map(Child::id)
    }

    /// Waits until the cluster answers reads: it has a leader then.
    ///
    /// # Errors
    /// A member has ended, or no member answers.
    pub fn wait_until_ready(&mut self) -> Result<(), NotStarted> {
        let client = self.client(Duration::from_secs(1));
        let start = Instant::now();
        let probe = crate::RangeRequest { from: "a".into(), to: "b".into(), limit: 1, keys_only: true };
        loop {
            let why = match client.call(Request::Range(probe.clone())) {
                Ok(_) => return Ok(()),
                Err(error) => error.to_string(),
            };
            for member in 0..self.members.len() {
                let ended = self.members[member].child.as_mut().map(Child::try_wait);
                if let Some(Ok(Some(status))) = ended {
                    return Err(NotStarted::NoAnswer(format!(
                        "it ended with {status}: {}",
                        self.last_lines(member)
                    )));
                }
            }
            if start.elapsed() > START_PATIENCE {
                return Err(NotStarted::NoAnswer(why));
            }
            std::thread::sleep(START_INTERVAL);
        }
    }

    fn signal(&self, member: usize, signal: Signal) {
        if let Some(child) = &self.members[member].child {
            // It may have ended by itself.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn spawn(&mut self, member: usize) -> io::Result<()> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers = self.members.iter().enumerate();
        let peers: Vec<_> = peers.map(|(idx, peer)| format!("m{idx}={}", url(peer.peer_port))).collect();
        let (client_url, peer_port) =
            (self.client_url(&self.members[member]), self.members[member].peer_port);
        let data_dir = self.data_dir(member);
        let log = File::options().create(true).append(true).open(self.log_path(member))?;
        let mut command = Command::new("etcd");
        command
            .arg(format!("--name=m{member}"))
            .arg(format!("--data-dir={}", data_dir.display()))
            .arg(format!("--listen-client-urls={client_url}"))
            .arg(format!("--advertise-client-urls={client_url}"))
            .arg(format!("--listen-peer-urls={}", url(peer_port)))
            .arg(format!("--initial-advertise-peer-urls={}", url(peer_port)))
            .arg(format!("--initial-cluster={}", peers.join(",")))
            .arg("--initial-cluster-state=new")
            .args(["--logger=zap", "--log-level=warn"])
            .args(self.config.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}")))
            .args(&self.config.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.members[member].child = Some(command.spawn()?);
        Ok(())
    }

    fn log_path(&self, member: usize) -> PathBuf {
        self.config.dir.join(format!("m{member}.log"))
    }

    fn last_lines(&self, member: usize) -> String {
        let text = std::fs::read_to_string(self.log_path(member)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(N_LOG_LINES)..].join("\n")
    }
}

impl Drop for EtcdProcesses {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }
}

/// A port that is free now.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir: PathBuf| Path::new(&dir).join(name)).find(|file| file.is_file())
}
