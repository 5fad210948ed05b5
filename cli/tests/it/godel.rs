//! The binary as a child process.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Runs the binary to its end.
pub(crate) fn run(words: &[&str], env: &[(&str, &str)]) -> Output {
    run_for(words, env, LONG)
}

/// Runs the binary to its end, which must come in time.
pub(crate) fn run_for(words: &[&str], env: &[(&str, &str)], time: Duration) -> Output {
    let mut child = command(words).envs(env.iter().copied()).spawn().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read_out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let read_err = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let status = wait(&mut child, time).unwrap_or_else(|| panic!("{words:?} does not end"));
    Output { status, stdout: read_out.join().unwrap(), stderr: read_err.join().unwrap() }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_godel"));
    command
        .args(words)
        .env_remove("GODEL_ADDR")
        .env_remove("GODEL_CONTEXT")
        .env("GODEL_CONTEXTS", "/nonexistent/contexts.yaml")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn wait(child: &mut Child, time: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Starts a part on its own; killed when this is dropped.
pub(crate) fn serve_alone(words: &[&str]) -> Killed {
    let mut command = command(&[&["serve"][..], words].concat());
    command.env("GODEL_LOG", "error").stdout(Stdio::null()).stderr(Stdio::null());
    Killed(command.spawn().unwrap())
}

/// Runs the binary again and again until it ends well; what it prints then.
pub(crate) fn until_ok(words: &[&str]) -> String {
    let deadline = Instant::now() + LONG;
    loop {
        let output = run(words, &[]);
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        assert!(Instant::now() < deadline, "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

pub(crate) fn exit_code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// A child that does not outlive a test that fails.
pub(crate) struct Killed(Child);

impl Killed {
    /// SIGTERM; it must end well.
    pub(crate) fn stop(mut self) {
        terminate(&mut self.0);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

fn terminate(child: &mut Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let status = wait(child, LONG).expect("it stops");
    assert!(status.success(), "{status}");
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended already where the test went well.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// `godel up` on free ports in a directory of its own.
pub(crate) struct Up {
    child: Killed,
    address: String,
    dir: TempDir,
}

impl Up {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), flags)
    }

    pub(crate) fn start_in(dir: TempDir, flags: &[&str]) -> Self {
        Self::start_with_data(dir, "data", flags)
    }

    pub(crate) fn start_with_data(dir: TempDir, data: &str, flags: &[&str]) -> Self {
        Self::start_logging(dir, data, flags, ("warn", Stdio::inherit()))
    }

    /// With lines of its log of such a filter going there.
    pub(crate) fn start_logging(dir: TempDir, data: &str, flags: &[&str], log: (&str, Stdio)) -> Self {
        let data_dir = dir.path().join(data);
        let mut words = vec!["up", "--port", "0", "-o", "json", "--data-dir", data_dir.to_str().unwrap()];
        words.extend(flags);
        let mut command = command(&words);
        command.stderr(log.1).env("GODEL_LOG", log.0).env("GODEL_CONTEXTS", contexts_in(&dir));
        let mut child = Killed(command.spawn().unwrap());
        let stdout = child.0.stdout.take().unwrap();
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.trim().strip_prefix("\"state\": \"") {
                    let address = address.trim_end_matches(',').trim_end_matches('"').to_owned();
                    // The test may have given up.
                    let _gone = tx.send(address);
                }
            }
        });
        match rx.recv_timeout(LONG) {
            Ok(address) => Self { child, address, dir },
            Err(_) => panic!("`godel up` does not come up: {:?}", child.0.try_wait()),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A further part beside it; killed when this is dropped.
    pub(crate) fn serve(&self, words: &[&str]) -> Killed {
        self.spawn(&[&["serve"][..], words].concat())
    }

    /// The same for `godel agent`, or anything else that runs until it is stopped.
    pub(crate) fn spawn(&self, words: &[&str]) -> Killed {
        let mut command = command(words);
        command
            .env("GODEL_ADDR", &self.address)
            .env("GODEL_LOG", "error")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Killed(command.spawn().unwrap())
    }

    pub(crate) fn client(&self) -> Godel {
        let mut client = self.person();
        client.env.push(("GODEL_ADDR".to_owned(), self.address.clone()));
        client
    }

    /// Who has the context that it keeps if it speaks TLS, and names no address.
    pub(crate) fn person(&self) -> Godel {
        Godel { env: vec![("GODEL_CONTEXTS".to_owned(), contexts_in(&self.dir))] }
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) -> TempDir {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
        self.dir
    }

    /// SIGTERM; it must end well.
    pub(crate) fn stop(mut self) -> TempDir {
        terminate(&mut self.child.0);
        self.dir
    }
}

fn contexts_in(dir: &TempDir) -> String {
    dir.path().join("contexts.yaml").display().to_string()
}

/// The client's verbs against one control plane.
pub(crate) struct Godel {
    /// Says where it is.
    env: Vec<(String, String)>,
}

/// A command that runs beside the test.
pub(crate) struct Following(Child);

impl Following {
    /// Its exit code, and what it complained about.
    pub(crate) fn end(mut self) -> (i32, String) {
        let Some(status) = wait(&mut self.0, LONG) else { panic!("it does not end") };
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.code().unwrap(), said)
    }
}

impl Godel {
    /// Who has the contexts of that file.
    pub(crate) fn with_contexts(contexts: &Path) -> Self {
        Self { env: vec![("GODEL_CONTEXTS".to_owned(), contexts.display().to_string())] }
    }

    /// Begins a command, and goes on.
    pub(crate) fn spawn(&self, words: &[&str]) -> Following {
        let mut command = command(words);
        command.envs(self.env.iter().cloned()).stdout(Stdio::null()).stderr(Stdio::piped());
        Following(command.spawn().unwrap())
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        run(words, &self.vars())
    }

    fn vars(&self) -> Vec<(&str, &str)> {
        self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// With one more variable of the environment.
    pub(crate) fn run_with(&self, words: &[&str], variable: (&str, &str)) -> Output {
        run(words, &[self.vars(), vec![variable]].concat())
    }

    #[track_caller]
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(exit_code(&output), 0, "{words:?}\n{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let text = self.ok(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}\n{text}"))
    }

    /// Asks until the answer is as wished.
    #[track_caller]
    pub(crate) fn until(&self, words: &[&str], wished: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + LONG;
        loop {
            let answer = self.json(words);
            if wished(&answer) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?} still says {answer}");
        }
    }

    #[track_caller]
    pub(crate) fn audit(&self) -> String {
        self.ok(&["audit"])
    }
}
