//! When the container of a run is to stop, and which signal it is sent: what its agent says, and the deadlines meanwhile.

use std::{
    fs::File,
    future::pending,
    io,
    time::{Duration, Instant},
};

use godel_domain::run_end::RunEndReason;
use tokio::net::unix::pipe::Receiver;

use super::{contact::alone_for_ms, files::Run, stops};

/// Ends what does not end politely.
pub(super) const SIGKILL: &str = "SIGKILL";
/// Deadlines are looked at this often: contact is written to a file.
const TICK: Duration = Duration::from_secs(5);
/// A signal that was not delivered, or did not help, is sent again after this.
const RETRY: Duration = Duration::from_secs(1);

/// What a keeper has been told of the end of its run.
pub(super) struct Stopping<'a> {
    run: &'a Run,
    control: Receiver,
    /// Ends with the agent.
    agent: Option<Receiver>,
    begun: Instant,
    stop: Option<KeeperStop>,
}

/// It is to stop.
struct KeeperStop {
    reason: RunEndReason,
    kill_at: Instant,
    /// The polite signal was delivered.
    is_asked: bool,
    /// No signal is sent before.
    send_at: Instant,
}

impl<'a> Stopping<'a> {
    pub(super) fn new(run: &'a Run, control: File) -> io::Result<Self> {
        let agent = if run.ends_with_agent {
            Some(Receiver::from_owned_fd(rustix::stdio::stdin().try_clone_to_owned()?)?)
        } else {
            None
        };
        let control = Receiver::from_file(control)?;
        Ok(Self { run, control, agent, begun: Instant::now(), stop: None })
    }

    /// Why it is to stop, if it is.
    pub(super) fn reason(&self) -> Option<RunEndReason> {
        self.stop.as_ref().map(|stop| stop.reason)
    }

    /// Waits until it is to stop.
    pub(super) async fn told(&mut self) -> RunEndReason {
        loop {
            self.changed().await;
            if let Some(reason) = self.reason() {
                return reason;
            }
        }
    }

    /// Waits until something is said, or a deadline is over. What was said is not lost if nobody waits any longer.
    pub(super) async fn changed(&mut self) {
        let pause = self.pause();
        tokio::select! {
            said = read(&self.control) => said.into_iter().for_each(|(grace_ms, reason)| self.tell(grace_ms, reason)),
            () = end_of(self.agent.as_ref()), if self.stop.is_none() => {
                self.tell(self.run.grace_ms.into(), RunEndReason::AgentStopped);
            }
            () = tokio::time::sleep(pause) => {}
        }
        if self.stop.is_none() && alone_for_ms(self.run, self.begun) == Some(0) {
            self.tell(0, RunEndReason::NoContact);
        }
    }

    /// Stops it politely, and by force after the grace. A later stop may only be sooner.
    fn tell(&mut self, grace_ms: u64, reason: RunEndReason) {
        let now = Instant::now();
        let kill_at = now.checked_add(Duration::from_millis(grace_ms)).unwrap_or(now);
        match &mut self.stop {
            Some(stop) => stop.kill_at = stop.kill_at.min(kill_at),
            None => self.stop = Some(KeeperStop { reason, kill_at, is_asked: false, send_at: now }),
        }
    }

    /// Until something has to be done even if nothing is said.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        match &self.stop {
            None => alone_for_ms(self.run, self.begun)
                .map_or(TICK, |ms| TICK.min(Duration::from_millis(ms.max(1)))),
            Some(stop) if stop.is_asked => stop.kill_at.max(stop.send_at).saturating_duration_since(now),
            Some(stop) => stop.send_at.saturating_duration_since(now),
        }
    }

    /// The signal that is to be sent now, if one is; `polite` is the first.
    pub(super) fn due_signal<'b>(&self, polite: &'b str) -> Option<&'b str> {
        let (stop, now) = (self.stop.as_ref()?, Instant::now());
        if stop.send_at > now {
            None
        } else if stop.kill_at <= now {
            Some(SIGKILL)
        } else {
            Some(polite).filter(|_| !stop.is_asked)
        }
    }

    /// A signal was sent. One that ends by force is sent again until it has helped.
    pub(super) fn sent(&mut self, is_delivered: bool) {
        let now = Instant::now();
        if let Some(stop) = &mut self.stop {
            let is_last = stop.kill_at <= now;
            stop.is_asked |= is_delivered;
            stop.send_at = if is_delivered && !is_last { now } else { now + RETRY };
        }
    }
}

/// What an agent has written into the control pipe.
async fn read(control: &Receiver) -> Vec<(u64, RunEndReason)> {
    let mut bytes = [0; 512];
    match read_some(control, &mut bytes).await {
        Some(n) => stops(&bytes[..n]),
        // It is open for writing here as well: it does not end.
        None => pending().await,
    }
}

/// Waits for the end of a pipe.
async fn end_of(pipe: Option<&Receiver>) {
    let Some(pipe) = pipe else { return pending().await };
    while read_some(pipe, &mut [0; 64]).await.is_some_and(|n| n > 0) {}
}

/// Reads what is there, once something is; `None`: the pipe is broken.
async fn read_some(pipe: &Receiver, bytes: &mut [u8]) -> Option<usize> {
    loop {
        pipe.readable().await.ok()?;
        match pipe.try_read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::control;

    fn stopping<'a>(run: &'a Run, dir: &std::path::Path) -> Stopping<'a> {
        Stopping::new(run, control(dir).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_stop_is_polite_first_and_only_gets_sooner() {
        let (run, dir) = (Run::default(), tempfile::tempdir().unwrap());
        let mut stopping = stopping(&run, dir.path());
        assert_eq!((stopping.reason(), stopping.due_signal("SIGQUIT")), (None, None));
        std::fs::write(dir.path().join("control"), "stop 60000 drained\nnonsense\n").unwrap();
        assert_eq!(stopping.told().await, RunEndReason::Told, "a reason of another version is the plain one");
        assert_eq!(stopping.due_signal("SIGQUIT"), Some("SIGQUIT"));
        stopping.sent(false);
        assert_eq!(stopping.due_signal("SIGQUIT"), None, "it is sent again after a while");
        stopping.stop.as_mut().unwrap().send_at = Instant::now();
        assert_eq!(stopping.due_signal("SIGQUIT"), Some("SIGQUIT"));
        stopping.sent(true);
        assert_eq!(stopping.due_signal("SIGQUIT"), None, "it was asked");
        std::fs::write(dir.path().join("control"), "stop 0 agent-stopped\nstop 90000 told\n").unwrap();
        stopping.changed().await;
        assert_eq!(
            (stopping.due_signal("SIGQUIT"), stopping.reason()),
            (Some(SIGKILL), Some(RunEndReason::Told))
        );
    }

    #[tokio::test]
    async fn without_contact_it_ends_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let run = Run { stop_after_ms: 1, contact: dir.path().join("contact"), ..Run::default() };
        let mut stopping = stopping(&run, dir.path());
        assert_eq!(stopping.told().await, RunEndReason::NoContact);
        assert_eq!(stopping.due_signal("SIGTERM"), Some(SIGKILL));
    }
}
