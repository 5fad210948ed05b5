//! Whether anything is on its way to a node.

use godel_audit::{World, held_up};

use crate::{
    client::Client,
    exit::{Code, Failure},
};

/// Why pending units cannot be judged now.
pub(super) async fn busy(client: &Client, world: &World) -> Result<Option<String>, Failure> {
    let mut quiet = match Quiet::look(client).await {
        Ok(quiet) => quiet,
        Err(failure) if failure.code == Code::Unreachable => {
            return Ok(Some("no dispatcher answers".to_owned()));
        }
        Err(failure) => return Err(failure),
    };
    // What has no room under a maximum stays in the dispatcher's queues: nothing goes on with it.
    quiet.queued = quiet.queued.saturating_sub(u64::try_from(held_up(world)).unwrap_or(u64::MAX));
    Ok(quiet.busy())
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
    /// Asks the dispatcher and every scheduler.
    ///
    /// # Errors
    /// The dispatcher does not answer.
    pub async fn look(client: &Client) -> Result<Self, Failure> {
        let store = client.store_status().await?;
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
        assert!(Quiet { queued: 1, ..quiet }.busy().unwrap().contains("1 units are queued"));
        assert!(Quiet { schedulers: 0, ..quiet }.busy().unwrap().contains("no scheduler"));
        assert!(Quiet { read_up_to: 6, ..quiet }.busy().unwrap().contains("revision 6 of 7"));
    }
}
