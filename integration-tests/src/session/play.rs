//! Runs the commands of a session.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{io::AsyncReadExt as _, process::Command, time::timeout};

use super::{Kind, Session, Step, matches, settled};
use crate::{
    settings::godel_bin,
    wait::{LIMIT, wait_for},
};

/// Where sessions are played: the directory of their files, and the environment of their commands.
#[derive(Clone, Debug)]
pub struct Player {
    /// The working directory; it is shown as `DIR`.
    pub dir: PathBuf,
    /// Variables beside those that every command needs.
    pub env: Vec<(String, String)>,
}

/// What came of a session.
#[derive(Debug)]
pub struct Played {
    /// The session with what was printed, where that is not what it said.
    pub session: Session,
    /// Each step that went otherwise than it says.
    pub wrong: Vec<String>,
}

impl Player {
    /// Plays all steps in order, also after one that went wrong.
    pub async fn play(&self, mut session: Session) -> Played {
        let mut wrong = Vec::new();
        for step in session.steps_mut() {
            match step.kind {
                Kind::Run => wrong.extend(self.run(step).await.err()),
                Kind::Until => self.until(&step.command).await,
                Kind::Daemon => wrong.extend(self.daemon(step).await.err()),
            }
        }
        let wrong = wrong.iter().map(|error| format!("{error:#}")).collect();
        Played { session, wrong }
    }

    /// Runs a command to its end: its code, and its lines as steps have them.
    ///
    /// # Errors
    /// It cannot be started, or does not end.
    pub async fn printed(&self, command: &str, env: &[(&str, &str)]) -> Result<(i32, Vec<String>)> {
        self.printed_by(&self.output(command, env).await?)
    }

    fn printed_by(&self, output: &Output) -> Result<(i32, Vec<String>)> {
        let mut lines = self.lines(&output.stdout);
        lines.extend(self.lines(&output.stderr).iter().map(|line| format!("! {line}")));
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        Ok((output.status.code().context("it was killed")?, lines))
    }

    async fn output(&self, command: &str, env: &[(&str, &str)]) -> Result<Output> {
        let mut shell = self.shell(command);
        shell.envs(env.iter().copied());
        Ok(timeout(LIMIT, shell.output()).await.with_context(|| format!("`{command}` does not end"))??)
    }

    async fn run(&self, step: &mut Step) -> Result<()> {
        let output = self.output(&step.command, &[]).await?;
        if output.status.success() && step.is_json() {
            let is_json = is_json(&output.stdout);
            ensure!(is_json, "line {}: `{}` prints no JSON", step.line, step.command);
        }
        let (code, lines) = self.printed_by(&output)?;
        judge(step, code, lines)
    }

    async fn until(&self, command: &str) {
        wait_for(command, LIMIT, async || -> Result<()> {
            let (code, lines) = self.printed(command, &[]).await?;
            ensure!(code == 0, "exit code {code}: {}", lines.join("\n"));
            Ok(())
        })
        .await;
    }

    async fn daemon(&self, step: &mut Step) -> Result<()> {
        let mut shell = self.shell(&format!("exec {}", step.command));
        shell.stderr(Stdio::null()).kill_on_drop(true);
        let mut child = shell.spawn()?;
        let mut stdout = child.stdout.take().context("its output is piped")?;
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        let is_printed = async {
            while !matches(&step.output, &self.lines(&text)) {
                let n = stdout.read(&mut part).await?;
                ensure!(n > 0, "line {}: `{}` ends too soon", step.line, step.command);
                text.extend_from_slice(&part[..n]);
            }
            Ok(())
        };
        let ended = timeout(LIMIT, is_printed).await;
        let lines = self.lines(&text);
        if let Ok(ended) = ended {
            ended?;
        } else {
            bail!("line {}: `{}` printed only\n{}", step.line, step.command, lines.join("\n"));
        }
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.context("it runs")?, rustix::process::Signal::TERM)?;
        let status = timeout(LIMIT, child.wait()).await.context("it does not stop")??;
        judge(step, status.code().context("it was killed")?, lines)
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("PATH=\"$BIN:$PATH\"; {command}")])
            .env("BIN", godel_bin().with_file_name(""))
            .current_dir(&self.dir)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        shell
    }

    fn lines(&self, bytes: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(bytes).replace(&self.dir.display().to_string(), "DIR");
        text.lines().map(settled).collect()
    }
}

/// Compares, and puts into the step what was printed where it is something else.
fn judge(step: &mut Step, code: i32, lines: Vec<String>) -> Result<()> {
    if step.code == code && matches(&step.output, &lines) {
        return Ok(());
    }
    let said = std::mem::replace(step, Step { code, output: lines, ..step.clone() });
    bail!("line {}: expected\n{}printed\n{}", said.line, said.text(), step.text());
}

/// Whether a text is one JSON document, or several one after the other.
fn is_json(text: &[u8]) -> bool {
    let documents = serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>();
    let documents: Result<Vec<_>, _> = documents.collect();
    documents.is_ok_and(|documents| !documents.is_empty())
}
