//! One child process with its log: start, kill, freeze, thaw.

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, prlimit, waitid};

/// How a process is started, and started again.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment on top of ours.
    pub env: Vec<(String, String)>,
}

/// A child process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    command: CommandLine,
    log: PathBuf,
    child: Option<Child>,
    is_frozen: bool,
}

impl Process {
    /// Does not start it yet. Its output goes to `<dir>/<name>.log`.
    pub fn new(name: &str, command: CommandLine, dir: &Path) -> Self {
        Self {
            name: name.into(),
            command,
            log: dir.join(format!("{name}.log")),
            child: None,
            is_frozen: false,
        }
    }

    /// Name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its standard output and error go, over all its starts.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts it with `extra_env` for this start alone.
    ///
    /// # Panics
    /// When it runs already or cannot be started.
    pub fn start(&mut self, extra_env: &[(String, String)]) {
        assert!(!self.is_running(), "{} runs already", self.name);
        let out = open_log(&self.log);
        let err = out.try_clone().expect("a file handle can be duplicated");
        let child = Command::new(&self.command.program)
            .args(&self.command.args)
            // The tail of a log is to show what happened, not the frames of one panic.
            .env("RUST_BACKTRACE", "0")
            .envs(self.command.env.iter().cloned())
            .envs(extra_env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", self.command));
        self.child = Some(child);
        self.is_frozen = false;
    }

    /// Whether it has been started and has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// How it ended, if it has. The next `start` may follow.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error says that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)).id()
    }

    /// Lets it have so many file descriptors, from now on, as `ulimit -n` does.
    ///
    /// # Panics
    /// When it does not run.
    pub fn limit_descriptors(&self, n: u64) {
        let limit = Rlimit { current: Some(n), maximum: Some(n) };
        prlimit(Some(self.pid()), Resource::Nofile, limit)
            .unwrap_or_else(|error| panic!("the limit of {}: {error}", self.name));
    }

    /// SIGTERM: asks for a graceful stop.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP, and waits until no thread of it goes on: on a busy machine that takes a while.
    ///
    /// # Panics
    /// When it does not run.
    pub fn freeze(&mut self) {
        self.signal(Signal::STOP);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), stopped)
            .unwrap_or_else(|error| panic!("{} does not stop: {error}", self.name));
        self.is_frozen = true;
    }

    /// Whether it was frozen and goes on only when it is thawed.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// SIGCONT.
    pub fn thaw(&mut self) {
        self.signal(Signal::CONT);
        self.is_frozen = false;
    }

    /// The last `n_lines` of the log.
    pub fn tail(&self, n_lines: usize) -> String {
        let text = read_log(&self.log);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(n_lines)..].join("\n")
    }

    /// Log lines at level ERROR or WARN, and panics.
    pub fn complaints(&self) -> Vec<String> {
        read_log(&self.log).lines().filter(|line| is_complaint(line)).map(str::to_owned).collect()
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.id()).ok().and_then(Pid::from_raw).expect("a child has a valid pid")
    }

    /// The whole log.
    pub fn text(&self) -> String {
        read_log(&self.log)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal)
            .unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.name));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn open_log(path: &Path) -> File {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()))
}

fn read_log(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The level is the second word of a text log line, or a field of a JSON one.
fn is_complaint(line: &str) -> bool {
    let level = line.split_whitespace().nth(1).unwrap_or_default();
    matches!(level, "ERROR" | "WARN")
        || line.contains("\"level\":\"ERROR\"")
        || line.contains("\"level\":\"WARN\"")
        || line.contains("panicked at")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_from_other_lines() {
        for (line, expected) in [
            ("2026-01-01T00:00:00.000000Z  WARN godel_kit::lease: lease lost", true),
            ("2026-01-01T00:00:00.000000Z ERROR godel_state: log write failed", true),
            ("2026-01-01T00:00:00.000000Z  INFO godel_state: WARN is only a word here", false),
            (r#"{"timestamp":"x","level":"WARN","message":"y"}"#, true),
            (r#"{"timestamp":"x","level":"INFO","message":"ERROR"}"#, false),
            ("thread 'main' panicked at src/main.rs:1:1:", true),
            ("", false),
        ] {
            assert_eq!(is_complaint(line), expected, "{line}");
        }
    }
}
