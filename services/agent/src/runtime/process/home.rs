//! Where the runs of an agent are, and how their keepers are started.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, DirBuilder},
    io::{self, Read as _},
    os::unix::{fs::DirBuilderExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use godel_core_agent::RunKey;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    HostedRun, Program,
    strays::{KEEPS, NodeMark},
    usages::KnownRun,
};
use crate::{
    Config, LocalUserConfig,
    bandwidth::Bandwidths,
    cgroup::{GroupRecord, Groups},
    claim::DirClaim,
    condition,
    docker::body::{self, Container, ContainerLimits},
    keeper::{
        self,
        files::{self, RUN},
    },
    logs::{self, LogLimits},
    procfs::Process,
    volumes::{self, KeptVolumes, VOLUMES, Volumes},
};

/// Directories and files below the state directory.
const RUNS: &str = "runs";
const LOGS: &str = "logs";
const CONTACT: &str = "contact";
/// A keeper that has said nothing for so long is believed to work: its end is waited for.
const READY_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Replicas whose volumes are reported, at most.
const N_KEPT_MAX: usize = 1_000;
/// Bytes of what a keeper says that cannot do its work.
const N_WORDS_MAX: u64 = 1024;
/// Starts of one incarnation whose directories are not removed yet.
const N_DIRS_MAX: u32 = 10_000;

/// The runs of one node.
#[derive(Debug)]
pub(crate) struct Home {
    /// Name of the node.
    pub(super) node: String,
    pub(super) dir: PathBuf,
    /// Nobody finds the directory again: it goes with the agent, and so do the runs.
    is_temporary: bool,
    keeper: Vec<OsString>,
    log_max_bytes: u64,
    log_files: usize,
    /// As whom runs may start; empty: as anybody.
    users: Vec<LocalUserConfig>,
    /// See [`files::Run::cluster_paths`].
    cluster_paths: Vec<PathBuf>,
    /// See [`files::Run::only_principal`].
    only_principal: String,
    pub(super) groups: Option<Groups>,
    /// Names its group, and what else it makes of its own in the kernel.
    pub(super) group: String,
    /// Runs by the names of their directories.
    pub(super) known: Mutex<BTreeMap<String, KnownRun>>,
    pub(super) bandwidths: Mutex<Bandwidths>,
    /// Empty: the node runs no images, or has had no engine yet.
    images: OnceLock<Images>,
    /// The uid of the node.
    uid: String,
    /// The state directory is this agent's alone.
    claim: Option<Arc<DirClaim>>,
    /// The store of what begins.
    store: AtomicU64,
}

/// How containers are run.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    /// The socket of the engine.
    pub(crate) socket: PathBuf,
    /// The uid of the node.
    pub(crate) installation: String,
    pub(crate) pull_timeout: Duration,
}

/// A keeper that has been started and is ready.
pub(super) struct Begun {
    pub(super) child: Child,
    pub(super) keeper: LiveKeeper,
}

/// The keeper of a run, which lives.
#[derive(Debug)]
pub(crate) struct LiveKeeper {
    pub(super) opened: OwnedFd,
    pub(super) process: Process,
    /// That of its run.
    pub(super) group: Option<GroupRecord>,
}

impl Home {
    /// Makes the directories, in a temporary one without a state directory.
    ///
    /// # Errors
    /// They cannot be made.
    pub(crate) fn open(
        config: &Config,
        node: &str,
        keeper: Vec<OsString>,
        open_groups: impl FnOnce(&str) -> Option<Groups>,
    ) -> io::Result<Self> {
        let make = |dir: &Path| DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let (dir, is_temporary) = match &config.state_dir {
            Some(dir) => (std::path::absolute(dir)?, false),
            None => (std::env::temp_dir().join(format!("godel-agent-{}", uuid::Uuid::new_v4())), true),
        };
        make(&dir.join(RUNS))?;
        make(&dir.join(LOGS))?;
        let group = if is_temporary { std::process::id().to_string() } else { group_name(&dir)? };
        Ok(Self {
            node: node.to_owned(),
            dir,
            is_temporary,
            keeper,
            log_max_bytes: config.log_max_bytes,
            log_files: config.log_files,
            users: config.user_table().unwrap_or_default().into_iter().map(LocalUserConfig::of).collect(),
            cluster_paths: config.own_cluster_paths(),
            only_principal: config.only_principal(rustix::process::geteuid().is_root()),
            groups: open_groups(&group),
            group,
            known: Mutex::default(),
            bandwidths: Mutex::new(Bandwidths::off("nobody has looked what the machine can do")),
            images: OnceLock::new(),
            uid: String::new(),
            claim: None,
            store: AtomicU64::new(0),
        })
    }

    /// Lets it run images as well.
    pub(crate) fn with_images(self, images: Option<Images>) -> Self {
        images.into_iter().for_each(|images| self.set_images(images));
        self
    }

    /// Its engine has answered for the first time.
    pub(crate) fn set_images(&self, images: Images) {
        // It is the same one later.
        let _known = self.images.set(images);
    }

    /// Says whose runs these are, and by what their directory is this agent's.
    pub(crate) fn owned_by(mut self, uid: &str, claim: Option<Arc<DirClaim>>) -> Self {
        uid.clone_into(&mut self.uid);
        self.claim = claim;
        self
    }

    /// By what the processes of this node are known, whatever became of its directory.
    pub(super) fn node_mark(&self) -> NodeMark {
        let dir = (!self.is_temporary).then(|| self.dir.display().to_string());
        NodeMark {
            uid: self.uid.clone(),
            name: self.node.clone(),
            dir,
            store: self.store.load(Ordering::Relaxed),
        }
    }

    /// The same as long as state has not let this agent speak for the node: an agent with another directory may still do so.
    pub(super) fn unheard_mark(&self) -> NodeMark {
        NodeMark { store: 0, ..self.node_mark() }
    }

    /// Why nothing can be started here just now; empty: it can.
    pub(super) fn trouble(&self) -> String {
        condition::look(&self.dir, self.claim.as_deref(), false).0
    }

    /// What is looked at to see whether the node can start something.
    pub(crate) fn looked(&self, engine: Option<PathBuf>) -> condition::Looked {
        condition::Looked { dir: self.dir.clone(), claim: self.claim.clone(), engine }
    }

    /// Notes that there was contact with state `age_ms` ago, for what must not go on without.
    pub(crate) fn renew_contact(&self, age_ms: u64) {
        if let Err(error) = keeper::renew(&self.dir.join(CONTACT), age_ms) {
            tracing::error!(%error, "contact cannot be noted: running units that must not go on without will stop");
        }
    }

    pub(super) fn runs(&self) -> PathBuf {
        self.dir.join(RUNS)
    }

    /// Makes the directory of one start of an incarnation.
    pub(super) fn make_dir(&self, key: RunKey, incarnation: u32) -> io::Result<PathBuf> {
        if let Some(loss) = self.claim.as_ref().and_then(|claim| claim.check().err()) {
            return Err(io::Error::other(format!("the state directory {}", loss.words())));
        }
        let name = logs::dir_name(key, incarnation);
        for n in 0..N_DIRS_MAX {
            let dir = self.dir.join(RUNS).join(format!("{name}.{n}"));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| dir),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Starts the keeper of a run and waits until its command runs or cannot be started.
    pub(super) fn begin(
        &self,
        dir: &Path,
        run: HostedRun,
        program: &Program,
        restarts: u32,
        in_row: u32,
    ) -> io::Result<Begun> {
        let HostedRun { key, incarnation, .. } = run;
        let container = self.container(dir, program)?;
        // The engine makes the group of a container.
        let group = if container.is_some() { None } else { self.group(program, run) };
        let lists = self.join(dir, group.as_ref(), &program.bandwidth);
        let record = files::Run {
            node: self.node.clone(),
            unit: key.unit,
            ordinal: key.ordinal,
            incarnation,
            restarts,
            in_row,
            mark: uuid::Uuid::new_v4().to_string(),
            command: program.command.clone(),
            env: program.env.clone(),
            directory: program.directory.clone(),
            user: program.user.clone(),
            otherwise_user: program.otherwise_user.clone(),
            owner: program.owner.clone(),
            owner_groups: program.owner_groups.clone(),
            users: self.users.clone(),
            cluster_paths: self.cluster_paths.clone(),
            principal: program.principal.clone(),
            only_principal: self.only_principal.clone(),
            umask: program.umask,
            group,
            container,
            log_dir: self.log_dir(key, incarnation),
            log_max_bytes: self.log_max_bytes,
            log_files: self.log_files,
            stop_after_ms: program.stop_after_ms,
            contact: self.dir.join(CONTACT),
            grace_ms: program.stop_grace_ms,
            ends_with_agent: self.is_temporary,
            assignment: program.assignment.clone(),
            volumes: self.volumes(program),
            bandwidth: program.bandwidth.clone(),
            lists,
            launch: program.launch.clone(),
        };
        let record = of_container(record, dir);
        let mut env = with_volumes(&record, key);
        // By these it is found without its directory.
        env.extend(self.node_mark().variables().into_iter().map(|(name, value)| (name.to_owned(), value)));
        let record = files::Run { env, ..record };
        let begun = files::write(dir, RUN, &record).and_then(|()| self.spawn(dir, &record));
        if let (Err(_), Some(group)) = (&begun, &record.group) {
            // The next agent sweeps it otherwise.
            let _stays = crate::cgroup::reopen(group).remove();
        }
        begun
    }

    /// The volumes of a program.
    fn volumes(&self, program: &Program) -> Volumes {
        let (root, store) = (self.dir.join(VOLUMES), self.store.load(Ordering::Relaxed));
        Volumes { root, uid: program.unit_uid.clone(), store, asked: program.volumes.clone() }
    }

    /// Runs that begin, and volumes that are removed, are of this store from now on.
    pub(crate) fn set_store(&self, store: u64) {
        self.store.store(store, Ordering::Relaxed);
    }

    /// What is kept for replicas, if something has changed since; and when it changed last.
    pub(crate) fn kept_volumes(&self, since: Option<SystemTime>) -> Option<(SystemTime, Vec<KeptVolumes>)> {
        let root = self.dir.join(VOLUMES);
        let changed_at = volumes::changed_at(&root).filter(|at| since != Some(*at))?;
        Some((changed_at, volumes::all(&root).take(N_KEPT_MAX).collect()))
    }

    /// The container in which a program runs; `None`: it is a process.
    fn container(&self, dir: &Path, program: &Program) -> io::Result<Option<Container>> {
        let Some(image) = &program.image else { return Ok(None) };
        let Some(Images { socket, installation, pull_timeout }) = self.images.get() else {
            return Err(io::Error::other("the unit has an image, and this node runs none (`agent.docker`)"));
        };
        let dir_name = dir.file_name().unwrap_or_default().to_string_lossy();
        let n_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Some(Container {
            socket: socket.clone(),
            installation: installation.clone(),
            name: body::name(installation, &dir_name),
            image: image.clone(),
            pull_timeout_ms: u64::try_from(pull_timeout.as_millis()).unwrap_or(u64::MAX),
            limits: ContainerLimits::of(&program.limits, n_cpus),
            gpus: program.gpus.clone(),
        }))
    }

    fn spawn(&self, dir: &Path, record: &files::Run) -> io::Result<Begun> {
        let Some((program, arguments)) = self.keeper.split_first() else {
            return Err(io::Error::other("this agent was started without a keeper"));
        };
        // What is in the environment of the agent is none of its business.
        let mut child = Command::new(program)
            .arg0("godel")
            .args(arguments)
            .arg(dir)
            .env_clear()
            // By these it is found without its directory.
            .envs(self.node_mark().variables())
            .env(KEEPS, &record.mark)
            .stdin(if self.is_temporary { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pid =
            i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        // It cannot be another one: it is not waited for before.
        let opened = pidfd_open(pid, PidfdFlags::empty())?;
        let process = Process::of(child.id()).ok_or(io::ErrorKind::NotFound)?;
        let keeper = LiveKeeper { opened, process, group: record.group.clone() };
        let Some(mut output) = child.stdout.take() else { return Ok(Begun { child, keeper }) };
        let n_ready = poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&READY_TIMEOUT)).unwrap_or(0);
        let mut words = Vec::new();
        if n_ready > 0 {
            // A keeper that is ready says a line, and no more as long as it lives.
            output.by_ref().take(1).read_to_end(&mut words)?;
        }
        if n_ready == 0 || words == keeper::READY {
            return Ok(Begun { child, keeper });
        }
        // It has ended, or will in a moment.
        output.take(N_WORDS_MAX).read_to_end(&mut words)?;
        let _ended = child.wait();
        let words = String::from_utf8_lossy(&words).trim().to_owned();
        let words = if words.is_empty() { "its keeper has ended at once".to_owned() } else { words };
        Err(io::Error::other(words))
    }

    /// Makes the group of a run with its limits. Without one it runs unlimited, which is logged.
    fn group(&self, program: &Program, run: HostedRun) -> Option<GroupRecord> {
        let RunKey { unit, ordinal } = run.key;
        let name = logs::dir_name(run.key, run.incarnation);
        match self.groups.as_ref()?.make(&name, &program.limits) {
            Ok((group, failed)) => {
                for error in failed {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(unit_id = unit, ordinal, error, "a limit of a running unit is not kept");
                }
                Some(group.record())
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    unit_id = unit,
                    ordinal,
                    error,
                    "a running unit runs without a control group: its limits are not kept"
                );
                None
            }
        }
    }

    /// The processes in the groups of runs, by the names of the groups.
    pub(super) fn group_pids(&self) -> Vec<(String, Vec<u32>)> {
        self.groups.as_ref().map(Groups::pids).unwrap_or_default()
    }

    /// How containers are run here; `None`: the node runs no images.
    pub(super) fn images(&self) -> Option<&Images> {
        self.images.get()
    }

    /// Removes groups in which nothing is, but for those of `kept`.
    pub(super) fn sweep_groups(&self, kept: &[GroupRecord]) {
        if let Some(groups) = &self.groups {
            groups.sweep(kept);
        }
    }

    /// The directory of the log of one incarnation.
    pub(crate) fn log_dir(&self, key: RunKey, incarnation: u32) -> PathBuf {
        self.dir.join(LOGS).join(logs::dir_name(key, incarnation))
    }

    /// Removes logs of runs that are over: those of `gone` units, and what the limits do not keep; and volumes of `gone` units. Returns the other
    /// units of which logs or volumes are kept though nothing of theirs runs here any more.
    pub(crate) fn sweep_logs(&self, limits: LogLimits, gone: &BTreeSet<u64>) -> BTreeSet<u64> {
        let runs = fs::read_dir(self.runs()).into_iter().flatten().flatten();
        let live = runs.filter_map(|run| Some(run.file_name().to_str()?.rsplit_once('.')?.0.to_owned()));
        let live: BTreeSet<String> = live.collect();
        let mut kept = logs::sweep(&self.dir.join(LOGS), &live, limits, gone);
        let live = live.iter().filter_map(|name| Some(logs::run_of(name)?.0.unit)).collect();
        kept.extend(volumes::sweep(&self.dir.join(VOLUMES), gone, &live, self.store.load(Ordering::Relaxed)));
        kept
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_temporary {
            // Keepers that are ending may still write there.
            let _some_stay = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A run with the command and the directory of its YARN container, if it is one.
fn of_container(mut run: files::Run, dir: &Path) -> files::Run {
    if let Some(launch) = &mut run.launch {
        launch.root = dir.to_owned();
        run.command = vec!["/bin/bash".to_owned(), launch.script_path().display().to_string()];
        run.directory = Some(launch.work_dir().display().to_string());
    }
    run
}

/// The environment of a run, with the paths of its volumes.
fn with_volumes(run: &files::Run, key: RunKey) -> BTreeMap<String, String> {
    let mut env = run.env.clone();
    env.extend(run.volumes.environment(key));
    env
}

/// The name of the agent's control group, which the next agent finds again: chosen once for a state directory.
fn group_name(dir: &Path) -> io::Result<String> {
    let path = dir.join("group");
    if let Ok(name) = fs::read_to_string(&path)
        && uuid::Uuid::parse_str(name.trim()).is_ok()
    {
        return Ok(name.trim().to_owned());
    }
    let name = uuid::Uuid::new_v4().to_string();
    let fresh = dir.join("group.new");
    fs::write(&fresh, format!("{name}\n"))?;
    fs::rename(fresh, path)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_what_has_a_directory_stay() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state_dir: Some(dir.path().to_owned()), ..Config::default() };
        let home = Home::open(&config, "n", Vec::new(), |_| None).unwrap();
        let key = |unit| RunKey { unit, ordinal: 0 };
        for unit in [1, 2] {
            fs::create_dir(home.log_dir(key(unit), 0)).unwrap();
            fs::write(home.log_dir(key(unit), 0).join("0"), "text").unwrap();
        }
        let first = home.make_dir(key(2), 0).unwrap();
        let second = home.make_dir(key(2), 0).unwrap();
        assert_eq!((first.ends_with("runs/2-0-0.0"), second.ends_with("runs/2-0-0.1")), (true, true));
        let limits = LogLimits { keep: Duration::from_secs(3600), bytes_max: 1 << 20 };
        assert_eq!(home.sweep_logs(limits, &BTreeSet::new()), BTreeSet::from([1]));
        assert_eq!(home.sweep_logs(limits, &BTreeSet::from([1, 2])), BTreeSet::new());
        assert_eq!((home.log_dir(key(1), 0).exists(), home.log_dir(key(2), 0).exists()), (false, true));
    }

    #[test]
    fn the_group_of_a_state_directory_keeps_its_name() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = group_name(dir.path()).unwrap();
        assert_eq!(group_name(dir.path()).unwrap(), name);
        assert_ne!(group_name(other.path()).unwrap(), name);
        fs::write(dir.path().join("group"), "../../etc").unwrap();
        assert!(uuid::Uuid::parse_str(&group_name(dir.path()).unwrap()).is_ok());
    }
}
