//! Commands of the system that are started and waited for: `nft` and `tc`.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// A command that has not ended within this time is ended.
const TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Where they are.
const PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";
/// Bytes of what a command says that has failed.
const N_WORDS_MAX: usize = 300;

/// Starts commands, one at a time.
#[derive(Debug)]
pub(super) struct Commands {
    /// Input and output are files here: none of a command that hangs holds up anybody.
    dir: PathBuf,
}

impl Commands {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Runs a command with an input, and returns what it has printed.
    ///
    /// # Errors
    /// It is not there, fails, or takes too long: in words.
    pub(super) fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
        let file = |name: &str| self.dir.join(format!("{program}.{name}"));
        let cannot = |error: io::Error| format!("`{program}` cannot be run: {error}");
        let (output, errors) = (file("output"), file("errors"));
        fs::write(file("input"), input).map_err(cannot)?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .stdin(File::open(file("input")).map_err(cannot)?)
            .stdout(File::create(&output).map_err(cannot)?)
            .stderr(File::create(&errors).map_err(cannot)?)
            .spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("there is no program `{program}` on this node: install it"),
            _ => cannot(error),
        })?;
        let status = wait(child).map_err(cannot)?;
        let words = || fs::read(&errors).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        match status {
            None => Err(format!("`{program}` did not end within {} s", TIMEOUT.tv_sec)),
            Some(status) if status.success() => {
                let bytes = fs::read(&output).map_err(cannot)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Some(status) => {
                let mut words = words().unwrap_or_default();
                words.truncate(words.floor_char_boundary(N_WORDS_MAX));
                Err(format!("`{program}` failed ({status}): {}", words.replace('\n', " ")))
            }
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        for program in [super::network::NFT, super::network::TC] {
            for name in ["input", "output", "errors"] {
                let _absent = fs::remove_file(self.dir.join(format!("{program}.{name}")));
            }
        }
    }
}

/// Waits for the end of a child; `None`: it has taken too long, and was ended.
fn wait(mut child: std::process::Child) -> io::Result<Option<ExitStatus>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let has_ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&TIMEOUT))? > 0;
    if !has_ended {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok(has_ended.then_some(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_say_what_they_print_and_why_they_fail() {
        let dir = tempfile::tempdir().unwrap();
        let commands = Commands::new(dir.path());
        assert_eq!(commands.run("cat", &[], "hello\n").unwrap(), "hello\n");
        let failed = commands.run("sh", &["-c", "echo wrong >&2; exit 3"], "").unwrap_err();
        assert_eq!(failed, "`sh` failed (exit status: 3): wrong");
        let absent = commands.run("godel-no-such-program", &[], "").unwrap_err();
        assert_eq!(absent, "there is no program `godel-no-such-program` on this node: install it");
    }
}
