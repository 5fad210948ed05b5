//! Whether anything is on its way to a node.

use std::time::Duration;

use godel_audit::{World, held_up};
use godel_proto::v1;

use crate::{
    client::Client,
    exit::{Code, Failure},
};

/// Pause before readers are asked again that have yet to read what was committed when they were asked first.
const PAUSE: Duration = Duration::from_millis(50);
/// How often they are asked.
const N_ASKS: u32 = 40;

/// Why pending units cannot be judged at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) why: String,
    /// Units come and go, and none of them waits for a scheduler: who waits at each of several looks can be judged all the same.
    pub(super) only_goes_on: bool,
}

/// Why pending units cannot be judged now.
pub(super) async fn busy(client: &Client, world: &World) -> Result<Option<Busy>, Failure> {
    let mut quiet = match Quiet::look(client).await {
        Ok(quiet) => quiet,
        Err(failure) if failure.code == Code::Unreachable => {
            return Ok(Some(Busy { why: "no dispatcher answers".to_owned(), only_goes_on: false }));
        }
        Err(failure) => return Err(failure),
    };
    // What has no room under a maximum stays in the dispatcher's queues: nothing goes on with it.
    quiet.queued = quiet.queued.saturating_sub(u64::try_from(held_up(world)).unwrap_or(u64::MAX));
    Ok(quiet.busy().map(|why| Busy { why, only_goes_on: quiet.only_goes_on() }))
}

/// Whether anything is on its way to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quiet {
    /// Units in the dispatcher's queues.
    pub queued: u64,
    /// Units handed out to schedulers that are neither parked nor bound, as either side sees it.
    pub at_work: u64,
    /// Decisions on their way to the binder.
    pub in_flight: u64,
    /// Units that found no place.
    pub parked: u64,
    /// Schedulers attached.
    pub schedulers: u64,
    /// Store revision that the slowest reader has read.
    pub read_up_to: u64,
    /// Store revision.
    pub revision: u64,
}

impl Quiet {
    /// Asks the dispatcher and every scheduler. What was committed before that they have read when this returns, unless they are stuck: where
    /// commits never end somebody is always about to read the last one.
    ///
    /// # Errors
    /// The dispatcher does not answer.
    pub async fn look(client: &Client) -> Result<Self, Failure> {
        let store = client.store_status().await?;
        let mut n_asks = 0;
        loop {
            let quiet = Self::ask(client, &store).await?;
            n_asks += 1;
            if quiet.read_up_to >= quiet.revision || n_asks >= N_ASKS {
                return Ok(quiet);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(client: &Client, store: &v1::GetStoreStatusResponse) -> Result<Self, Failure> {
        let dispatcher = client.dispatcher_status().await?;
        let mut quiet = Self {
            queued: dispatcher.queued_units,
            // Handed out and not reported parked: perhaps still on its way to a scheduler.
            at_work: dispatcher.dispatched_units.saturating_sub(dispatcher.parked_units),
            revision: store.revision,
            read_up_to: dispatcher.revision,
            ..Self::default()
        };
        for scheduler in client.schedulers().await?.schedulers.iter().filter(|scheduler| scheduler.attached) {
            quiet.schedulers += 1;
            // One that does not answer has what the dispatcher counts as handed out.
            let Ok(status) = client.scheduler_status(scheduler).await else { continue };
            quiet.at_work += u64::from(status.ready_units) + u64::from(status.backoff_units);
            quiet.in_flight += u64::from(status.in_flight);
            quiet.parked += u64::from(status.parked_units);
            quiet.read_up_to = quiet.read_up_to.min(status.revision);
        }
        Ok(quiet)
    }

    /// Whether something is tried or decided, and nothing waits for that or has yet to be read.
    fn only_goes_on(&self) -> bool {
        self.schedulers > 0 && self.queued == 0 && self.read_up_to >= self.revision
    }

    /// What is going on; `None` when nothing is.
    pub fn busy(&self) -> Option<String> {
        if self.schedulers == 0 {
            return Some("no scheduler is attached".to_owned());
        }
        if self.queued + self.at_work + self.in_flight > 0 {
            let Self { queued, at_work, in_flight, .. } = self;
            return Some(format!(
                "{queued} units are queued, {at_work} tried, {in_flight} decisions in flight"
            ));
        }
        (self.read_up_to < self.revision)
            .then(|| format!("revision {} of {} is read", self.read_up_to, self.revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_named() {
        let quiet = Quiet { schedulers: 3, parked: 9, revision: 7, read_up_to: 7, ..Quiet::default() };
        assert_eq!(quiet.busy(), None);
        let at_work = Quiet { at_work: 3, in_flight: 2, ..quiet };
        assert!(at_work.busy().is_some() && at_work.only_goes_on());
        assert!(
            !Quiet { queued: 1, ..at_work }.only_goes_on()
                && !Quiet { read_up_to: 6, ..at_work }.only_goes_on()
        );
        assert!(Quiet { queued: 1, ..quiet }.busy().unwrap().contains("1 units are queued"));
        assert!(Quiet { schedulers: 0, ..quiet }.busy().unwrap().contains("no scheduler"));
        assert!(Quiet { read_up_to: 6, ..quiet }.busy().unwrap().contains("revision 6 of 7"));
    }
}
