//! The processes of a run: the parts of the control plane and the agents, each from this program, each with its log, and the
//! etcd that the store may be in. They die with this value.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use godel_client::{
    exit::{Code, Failure},
    usage,
};

use super::{
    engine::{BenchEtcd, StoreEngine},
    report::mib,
};

/// Time for a process to say its first line; the agents say theirs when all of their nodes are connected.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(300);
/// Lines of a log that a failure shows.
const N_TAIL_LINES: usize = 10;

/// A running child.
struct ChildProcess {
    name: String,
    log: PathBuf,
    child: Child,
    /// Kept open: a child whose reader is gone would fail at its next line.
    lines: Lines<BufReader<ChildStdout>>,
}

/// See the module.
pub(super) struct BenchProcesses {
    program: PathBuf,
    dir: PathBuf,
    running: Vec<ChildProcess>,
    etcd: Option<BenchEtcd>,
}

impl BenchProcesses {
    /// None yet; logs go to `dir`.
    pub(super) fn new(dir: &Path) -> Result<Self, Failure> {
        Ok(Self { program: crate::godel()?, dir: dir.to_owned(), running: Vec::new(), etcd: None })
    }

    /// Starts the etcd that the engine needs, or again after a kill; its endpoints, none for another engine.
    pub(super) async fn start_etcd(&mut self, engine: StoreEngine) -> Result<Vec<String>, Failure> {
        let StoreEngine::Etcd { n_members } = engine else { return Ok(Vec::new()) };
        let etcd = match self.etcd.take() {
            Some(etcd) => etcd.restart().await?,
            None => BenchEtcd::start(&self.dir.join("etcd"), n_members).await?,
        };
        Ok(self.etcd.insert(etcd).endpoints())
    }

    /// Starts one and waits for its first line.
    pub(super) async fn start(&mut self, name: &str, args: &[String]) -> Result<String, Failure> {
        self.start_logging(name, args, "warn").await
    }

    /// The same for a process that would have a machine of its own elsewhere: it gets the CPU time that the others leave.
    pub(super) async fn start_behind(&mut self, name: &str, args: &[String]) -> Result<String, Failure> {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(&self.program);
        self.start_command(command, name, args, "warn").await
    }

    /// The same with a filter of its log.
    pub(super) async fn start_logging(
        &mut self,
        name: &str,
        args: &[String],
        filter: &str,
    ) -> Result<String, Failure> {
        self.start_command(Command::new(&self.program), name, args, filter).await
    }

    async fn start_command(
        &mut self,
        mut command: Command,
        name: &str,
        args: &[String],
        filter: &str,
    ) -> Result<String, Failure> {
        let log = self.log(name);
        let failed = |error: std::io::Error| Failure::failed(format!("{name} cannot be started: {error}"));
        let stderr = File::options().create(true).append(true).open(&log).map_err(failed)?;
        let mut child = command
            .args(args)
            .args(["--log", filter])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::failed(format!("{name} has no output")))?;
        let mut process =
            ChildProcess { name: name.to_owned(), log, child, lines: BufReader::new(stdout).lines() };
        let line = tokio::time::timeout(FIRST_LINE_TIMEOUT, process.lines.next_line()).await;
        let line = line
            .map_err(|_| Failure::new(Code::Timeout, format!("{name} did not report that it is ready")))?
            .map_err(failed)?;
        let line = line.ok_or_else(|| process.ended_early())?;
        self.running.push(process);
        Ok(line)
    }

    /// The log of one.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// Fails if any of them has ended.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for process in &mut self.running {
            if !matches!(process.child.try_wait(), Ok(None)) {
                return Err(process.ended_early());
            }
        }
        Ok(())
    }

    /// SIGKILL for one, and its end.
    pub(super) async fn kill(&mut self, name: &str) {
        let (killed, kept) =
            std::mem::take(&mut self.running).into_iter().partition(|process| process.name == name);
        self.running = kept;
        kill(killed).await;
    }

    /// SIGKILL for all at once, and their ends.
    pub(super) async fn kill_all(&mut self) {
        kill(std::mem::take(&mut self.running)).await;
        if let Some(etcd) = &mut self.etcd {
            etcd.kill();
        }
    }

    /// Names and process ids, this process included.
    pub(super) fn pids(&self) -> Vec<(String, u32)> {
        let children =
            self.running.iter().filter_map(|process| Some((process.name.clone(), process.child.id()?)));
        let etcd = self.etcd.iter().flat_map(BenchEtcd::pids);
        children.chain(etcd).chain([("load".to_owned(), std::process::id())]).collect()
    }
}

/// What the system says of each process, where that is known.
pub(super) fn each<T>(pids: &[(String, u32)], look: impl Fn(u32) -> Option<T>) -> BTreeMap<String, T> {
    pids.iter().filter_map(|(name, pid)| Some((name.clone(), look(*pid)?))).collect()
}

/// What each process holds, in MiB.
pub(super) fn memory(pids: &[(String, u32)], look: impl Fn(u32) -> Option<u64>) -> BTreeMap<String, f64> {
    each(pids, |pid| look(pid).map(mib))
}

/// CPU time of each process since its start.
pub(super) fn cpu(pids: &[(String, u32)]) -> BTreeMap<String, Duration> {
    each(pids, usage::cpu_time)
}

/// CPU seconds of each process since an earlier look.
pub(super) fn used(
    before: &BTreeMap<String, Duration>,
    after: &BTreeMap<String, Duration>,
) -> BTreeMap<String, f64> {
    let since = |(name, cpu): (&String, &Duration)| {
        let before = before.get(name).copied().unwrap_or_default();
        (name.clone(), cpu.saturating_sub(before).as_secs_f64())
    };
    after.iter().map(since).collect()
}

async fn kill(mut processes: Vec<ChildProcess>) {
    for process in &mut processes {
        // One that has ended already is as good as killed.
        let _ended = process.child.start_kill();
    }
    for process in &mut processes {
        let _status = process.child.wait().await;
    }
}

impl ChildProcess {
    fn ended_early(&self) -> Failure {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(N_TAIL_LINES)..].join("\n");
        Failure::failed(format!("{} ended early; the end of {}:\n{tail}", self.name, self.log.display()))
    }
}
