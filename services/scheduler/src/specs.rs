//! Records of all units, read only while disruption budgets or terms select some of them, or a profile counts kinds of work: a
//! scheduler places units that it is given, and needs nothing else of the others.

use std::future::pending;

use godel_kit::{
    client::Directory,
    informer::{FollowConfig, FollowEvent, Informer},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Reads records of units, or does not.
pub(crate) struct Specs {
    directory: Directory,
    reading: Option<Reading>,
}

/// All units are offered once for each selection, and again when they change.
struct Reading {
    selection: u64,
    follower: Informer,
    _stop: DropGuard,
}

impl Specs {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory, reading: None }
    }

    /// Reads anew for another selection, and nothing without one.
    pub(crate) fn follow(&mut self, selection: Option<u64>, stop: &CancellationToken) {
        if self.reading.as_ref().map(|reading| reading.selection) == selection {
            return;
        }
        self.reading = selection.map(|selection| {
            let stop = stop.child_token();
            let (kinds, config) = (godel_core_scheduler::FOLLOWS_SELECTED, FollowConfig::default());
            let follower = Informer::spawn(self.directory.state(), kinds, config, stop.clone());
            Reading { selection, follower, _stop: stop.drop_guard() }
        });
    }

    /// The next event, as [`Informer::next`]; none ever while nothing is read.
    pub(crate) async fn next(&mut self) -> Option<FollowEvent> {
        match &mut self.reading {
            Some(reading) => reading.follower.next().await,
            None => pending().await,
        }
    }

    /// The next event if one waits already.
    pub(crate) fn try_next(&mut self) -> Option<FollowEvent> {
        self.reading.as_mut()?.follower.try_next()
    }
}
