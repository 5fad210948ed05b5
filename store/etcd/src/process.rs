//! An etcd of one's own on this machine, for tests and measurements: one member or several, which can be killed, paused,
//! started again and replaced, and whose disk can be filled.
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
use admin::Operator;
use disk::Disk;

mod admin;
mod disk;

pub use admin::AdminError;

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
    /// No file system can be mounted for its data.
    #[error("no disk of a member's own: {0}")]
    NoDisk(String),
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
    /// Each has a disk of its own of so many bytes, which can be filled; in memory, and only root may have that.
    pub disk_bytes: Option<u64>,
    /// Further arguments of each.
    pub args: Vec<String>,
    /// What clients need for TLS, if the arguments say that it is spoken.
    pub tls: Option<TlsFiles>,
}

impl ProcessConfig {
    /// One member with its data in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            n_members: 1,
            quota_bytes: None,
            disk_bytes: None,
            args: Vec::new(),
            tls: None,
        }
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
    /// It joins a cluster that exists: it replaces another one.
    is_added: bool,
    /// Dropped after the child was killed.
    disk: Option<Disk>,
}

impl MemberProcess {
    fn new() -> io::Result<Self> {
        let (client_port, peer_port) = (free_port()?, free_port()?);
        Ok(Self { client_port, peer_port, child: None, is_added: false, disk: None })
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }
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
            let members = (0..config.n_members).map(|_| MemberProcess::new());
            let members = members.collect::<io::Result<Vec<_>>>()?;
            let mut processes = Self { config: config.clone(), members };
            processes.mount_disks()?;
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

    /// Whether a member has ended by itself, or was killed.
    pub fn has_ended(&mut self, member: usize) -> bool {
        let child = self.members[member].child.as_mut();
        child.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// The member that leads, if one says so.
    pub fn leader(&self) -> Option<usize> {
        let leads = |member: &usize| self.operator(*member).and_then(|operator| operator.leads());
        (0..self.members.len()).find(|member| leads(member).unwrap_or(false))
    }

    /// Kills a member and deletes its data.
    ///
    /// # Errors
    /// The data of the member cannot be deleted.
    pub fn lose(&mut self, member: usize) -> io::Result<()> {
        self.kill(member);
        disk::clear(&self.data_dir(member))
    }

    /// Has the others remove a member that was lost, and starts another one in its place, at the same address; it may not
    /// answer yet.
    ///
    /// # Errors
    /// Nobody else answers, or the others do not agree within the time of a start.
    pub fn replace(&mut self, member: usize) -> Result<(), AdminError> {
        let peer_url = self.members[member].peer_url();
        self.ask_others(member, |operator| operator.remove_member(&peer_url))?;
        self.ask_others(member, |operator| operator.add_member(&peer_url))?;
        self.members[member].is_added = true;
        self.spawn(member).map_err(|error| AdminError(error.to_string()))
    }

    /// Whether each member has a disk of its own.
    pub fn has_disks(&self) -> bool {
        self.config.disk_bytes.is_some()
    }

    /// Takes all room that is left on the disk of a member, which it must have.
    ///
    /// # Errors
    /// Something else is wrong with that disk.
    pub fn fill_disk(&self, member: usize) -> io::Result<()> {
        self.disk(member)?.fill()
    }

    /// Gives the room back that [`EtcdProcesses::fill_disk`] has taken.
    ///
    /// # Errors
    /// Something is wrong with that disk.
    pub fn free_disk(&self, member: usize) -> io::Result<()> {
        self.disk(member)?.free()
    }

    /// Does what etcd's documentation says after an alarm for want of space: compacts, defragments each member, and disarms it.
    ///
    /// # Errors
    /// A member does not answer.
    pub fn free_space(&self) -> Result<(), AdminError> {
        self.operator(0)?.compact()?;
        for member in 0..self.members.len() {
            self.operator(member)?.defragment()?;
        }
        self.operator(0)?.disarm()
    }

    fn operator(&self, member: usize) -> Result<Operator, AdminError> {
        Operator::at(&self.client_url(&self.members[member]), self.config.tls.as_ref())
    }

    /// Asks the others until one has done it: members that have just come are not ready for changes.
    fn ask_others(
        &self,
        member: usize,
        ask: impl Fn(&Operator) -> Result<(), AdminError>,
    ) -> Result<(), AdminError> {
        let start = Instant::now();
        loop {
            let mut last = AdminError("there is no other member".to_owned());
            for other in (0..self.members.len()).filter(|other| *other != member) {
                match ask(&self.operator(other)?) {
                    Ok(()) => return Ok(()),
                    Err(error) => last = error,
                }
            }
            if start.elapsed() > START_PATIENCE {
                return Err(last);
            }
            std::thread::sleep(START_INTERVAL);
        }
    }

    fn disk(&self, member: usize) -> io::Result<&Disk> {
        let disk = self.members[member].disk.as_ref();
        disk.ok_or_else(|| io::Error::other("the member has no disk of its own"))
    }

    fn mount_disks(&mut self) -> Result<(), NotStarted> {
        let Some(bytes) = self.config.disk_bytes else { return Ok(()) };
        for member in 0..self.members.len() {
            let disk = Disk::mount(&self.data_dir(member), bytes).map_err(NotStarted::NoDisk)?;
            self.members[member].disk = Some(disk);
        }
        Ok(())
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
        let peers = self.members.iter().enumerate();
        let peers: Vec<_> = peers.map(|(idx, peer)| format!("m{idx}={}", peer.peer_url())).collect();
        let own = &self.members[member];
        let (client_url, peer_url) = (self.client_url(own), own.peer_url());
        let cluster_state = if own.is_added { "existing" } else { "new" };
        let data_dir = self.data_dir(member);
        let log = File::options().create(true).append(true).open(self.log_path(member))?;
        let mut command = Command::new("etcd");
        command
            .arg(format!("--name=m{member}"))
            .arg(format!("--data-dir={}", data_dir.display()))
            .arg(format!("--listen-client-urls={client_url}"))
            .arg(format!("--advertise-client-urls={client_url}"))
            .arg(format!("--listen-peer-urls={peer_url}"))
            .arg(format!("--initial-advertise-peer-urls={peer_url}"))
            .arg(format!("--initial-cluster={}", peers.join(",")))
            .arg(format!("--initial-cluster-state={cluster_state}"))
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
