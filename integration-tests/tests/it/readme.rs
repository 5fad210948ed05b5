//! The blocks of the README, line by line in order, each on a cluster in a network of its own, so that its ports are free. What
//! builds, tests or benchmarks is looked up in the Makefile alone; the block of containers is played by `deploy/test-compose.sh`.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    settings::{godel_bin, next_to_tests},
    trace::Tasks,
    wait::{LIMIT, wait_for},
};
use godel_testkit::skip;
use tempfile::TempDir;

/// Follows until it is stopped: its first line is waited for.
const FOLLOWS: &str = "WatchUnits";

/// The blocks of the README by the heading that they stand under.
fn blocks(heading: &str) -> Vec<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let mut blocks = Vec::new();
    let (mut is_below, mut is_inside) = (false, false);
    for line in readme.lines() {
        match line {
            "```sh" => {
                is_inside = true;
                if is_below {
                    blocks.push(String::new());
                }
            }
            "```" => is_inside = false,
            _ if is_inside && is_below => {
                let block = blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            _ if !is_inside && line.starts_with('#') => is_below = line == heading,
            _ => {}
        }
    }
    assert!(!blocks.is_empty(), "the README has no block below `{heading}`");
    blocks
}

/// The commands of a block: a line, with those that it goes on in.
fn commands(block: &str) -> Vec<String> {
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
struct Shell {
    dir: TempDir,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// `None`, said in the output of the test, where this machine makes no namespaces.
    fn open() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(godel_bin(), bin.join("godel")).unwrap();
        symlink(next_to_tests("godel-test-grpcurl"), bin.join("grpcurl")).unwrap();
        // As in the checkout, where `make run` starts the demo.
        symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("../data"), dir.path().join("data")).unwrap();
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
    fn run(&mut self, command: &str) -> Option<(i32, String)> {
        let end = "end of this command";
        writeln!(self.input, "{{ {command}\n}} 2>&1 </dev/null; echo; echo \"{end} $?\"").ok()?;
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
    fn start(&mut self, command: &str) {
        let (code, text) = self.run(&format!("{{ {command}\n}} >>background.log 2>&1")).unwrap();
        assert_eq!(code, 0, "{command}: {text}");
    }

    /// Waits until a command succeeds and its output is right.
    async fn wait(&mut self, command: &str, is_right: impl Fn(&str) -> bool) {
        wait_for(command, LIMIT * 3, async || -> Result<()> {
            let (code, text) = self.run(command).unwrap_or_default();
            ensure!(code == 0 && is_right(&text), "{text}");
            Ok(())
        })
        .await;
    }

    /// Runs the commands of a block in order. Each has to succeed, and to say something if it is one of godel or grpcurl.
    #[allow(clippy::print_stdout, reason = "a failing test shows it")]
    fn play(&mut self, block: &str) {
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

#[test]
fn what_the_readme_makes_is_in_the_makefile() {
    for block in blocks("# godel") {
        for command in commands(&block) {
            let target = command.split_whitespace().nth(1).unwrap();
            let makefile = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let output = Command::new("make").arg("-n").arg(target).current_dir(makefile).output().unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// The demo has fewer tasks than with `make run`: the unit that the README names is among them.
#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_works_line_by_line() {
    let Some(mut shell) = Shell::open() else { return };
    let blocks = blocks("## Quick start");
    let [demo, own, processes] = &blocks[..] else { panic!("{} blocks", blocks.len()) };
    Tasks::first(300).unwrap().write(&shell.dir.path().join("tasks.csv")).unwrap();
    shell.start("godel demo --tasks tasks.csv --json summary.json &");
    shell.wait("cat summary.json", |text| text.contains("placed")).await;
    shell.play(demo);
    shell.play(own);

    let Some(mut shell) = Shell::open() else { return };
    shell.play(processes);
    shell.wait("godel node list -o json | grep -c '\"name\"'", |text| text == "100").await;
    for block in self::blocks("## Use grpcurl") {
        shell.play(&block);
    }
}
