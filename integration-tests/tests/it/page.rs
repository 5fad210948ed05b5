//! Pages of the documentation: their blocks of commands, and a shell that runs them in a network of its own, so that its ports are free.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    settings::{godel_bin, next_to_tests},
    wait::{LIMIT, wait_for},
};
use godel_testkit::skip;
use tempfile::TempDir;

/// Follows until it is stopped: its first line is waited for.
const FOLLOWS: &str = "WatchUnits";

/// A file of the repository.
pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The blocks of commands in a page, by the heading that each is below, in the order of the page.
pub(crate) fn blocks_by_heading(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(in_repository(page)).unwrap();
    let mut blocks: Vec<(String, String)> = Vec::new();
    let (mut heading, mut is_inside) = (String::new(), false);
    for line in text.lines() {
        match line {
            "```sh" => {
                is_inside = true;
                blocks.push((heading.clone(), String::new()));
            }
            "```" => is_inside = false,
            _ if is_inside => {
                let (_, block) = blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            _ if line.starts_with('#') => line.clone_into(&mut heading),
            _ => {}
        }
    }
    blocks
}

/// The blocks of commands in a page that are directly below a heading.
pub(crate) fn blocks(page: &str, heading: &str) -> Vec<String> {
    let all = blocks_by_heading(page).into_iter();
    let blocks: Vec<String> = all.filter(|(above, _)| above == heading).map(|(_, block)| block).collect();
    assert!(!blocks.is_empty(), "{page} has no block below `{heading}`");
    blocks
}

/// The commands of a block: a line, with those that it goes on in.
pub(crate) fn commands(block: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut end: Option<String> = None;
    let mut quotes = 0;
    for line in block.lines() {
        let goes_on = commands.last().is_some_and(|last| last.ends_with("\\\n")) || quotes % 2 == 1;
        if end.is_some() || goes_on {
            commands.last_mut().unwrap().push_str(line);
        } else {
            commands.push(line.to_owned());
            quotes = 0;
        }
        commands.last_mut().unwrap().push('\n');
        if end.as_deref() == Some(line) {
            end = None;
        } else if end.is_none() {
            quotes += line.split('#').next().unwrap().matches('\'').count();
            let here = line.split_once("<<'").and_then(|(_, rest)| rest.split_once('\''));
            end = here.map(|(word, _)| word.to_owned());
            if here.is_some() {
                quotes = 0;
            }
        }
    }
    commands
}

/// A shell in a network and with processes of its own: what it started ends with it.
pub(crate) struct Shell {
    pub(crate) dir: TempDir,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// `None`, said in the output of the test, where this machine makes no namespaces.
    pub(crate) fn open() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(godel_bin(), bin.join("godel")).unwrap();
        symlink(next_to_tests("godel-test-grpcurl"), bin.join("grpcurl")).unwrap();
        // As in the checkout, where `make run` starts the demo.
        symlink(in_repository("data"), dir.path().join("data")).unwrap();
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--pid", "--mount-proc", "--fork", "--kill-child"]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(bin).chain(std::env::split_paths(&path));
        let mut child = unshare
            .args(["bash", "--norc"])
            .current_dir(dir.path())
            .env("PATH", std::env::join_paths(paths).unwrap())
            .env("EDITOR", "true")
            // Contexts are kept there, and no cluster of these tests becomes the current one of whoever runs them.
            .env("HOME", dir.path())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("GODEL_CONTEXTS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut shell = Self { dir, child, input, output };
        if shell.run("ip link set lo up").is_none_or(|(code, _)| code != 0) {
            skip("this machine makes no network of its own for this user");
            return None;
        }
        Some(shell)
    }

    /// Returns the exit code of a command and what it printed. `None`: the shell is gone.
    pub(crate) fn run(&mut self, command: &str) -> Option<(i32, String)> {
        let end = "end of this command";
        writeln!(self.input, "{{ {command}\n}} 2>&1 </dev/null; code=$?; echo; echo \"{end} $code\"").ok()?;
        let mut text = String::new();
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(code) = line.strip_prefix(end) {
                return Some((code.trim().parse().ok()?, text.trim().to_owned()));
            }
            text.push_str(&line);
        }
    }

    /// Starts what goes on beside the commands, with its output in a file.
    pub(crate) fn start(&mut self, command: &str) {
        let (code, text) = self.run(&format!("{{ {command}\n}} >>background.log 2>&1")).unwrap();
        assert_eq!(code, 0, "{command}: {text}");
    }

    /// Waits until a command succeeds and its output is right.
    pub(crate) async fn wait(&mut self, command: &str, is_right: impl Fn(&str) -> bool) {
        wait_for(command, LIMIT * 3, async || -> Result<()> {
            let (code, text) = self.run(command).unwrap_or_default();
            ensure!(code == 0 && is_right(&text), "{text}");
            Ok(())
        })
        .await;
    }

    /// Runs the commands of a block in order. Each has to succeed, and to say something if it is one of godel or grpcurl.
    #[allow(clippy::print_stdout, reason = "a failing test shows it")]
    pub(crate) fn play(&mut self, block: &str) {
        for command in commands(block) {
            if command.split('#').next().unwrap().trim_end().ends_with('&') {
                self.start(&command);
                continue;
            }
            let line = if command.contains(FOLLOWS) {
                format!("{} | head -n 1", command.trim_end())
            } else {
                command.clone()
            };
            let (code, text) = self.run(&line).unwrap_or_else(|| panic!("{command}: the shell ended"));
            assert_eq!(code, 0, "{command}: {text}");
            let is_kept = command.contains(" > ");
            let speaks = !is_kept && (command.starts_with("godel") || command.starts_with("grpcurl"));
            assert!(!speaks || !text.is_empty(), "{command}: it printed nothing");
            println!("$ {command}{text}");
        }
    }
}

impl Drop for Shell {
    #[allow(clippy::print_stdout, reason = "a failing test shows it")]
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
        if std::thread::panicking() {
            println!("{}", fs::read_to_string(self.dir.path().join("background.log")).unwrap_or_default());
        }
    }
}
