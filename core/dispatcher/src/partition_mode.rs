//! How nodes are split: told by hand, or changed by itself as the load goes.

use std::collections::BTreeMap;

use godel_base::{
    ids::{Epoch, Revision},
    time::Millis,
};
use godel_domain::change::{Partition, PartitionMode};
use godel_rules::partition_mode::{self, LoadWindow, Streak, Switch};

use super::{Action, assignments::Assignments, nodes::Nodes, partition::Partitioning};

/// Who decides how nodes are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeChoice {
    /// This mode, until told otherwise.
    Fixed(PartitionMode),
    /// The load; begins with the mode in force.
    Automatic,
}

/// What a scheduler has counted since its lease was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounts {
    /// As in its lease `scheduler/<name>`.
    pub scheduler: String,
    /// Of its lease.
    pub epoch: Epoch,
    /// Running units bound by its decisions.
    pub placed: u64,
    /// Running units refused because another party was faster.
    pub conflicts: u64,
}

/// The window under way.
#[derive(Debug, Default)]
pub(super) struct Shuffler {
    streak: Streak,
    began: Option<Millis>,
    placed: u64,
    conflicts: u64,
    /// Last said by each scheduler.
    counted: BTreeMap<String, SchedulerCounts>,
}

impl Shuffler {
    /// Schedulers say what they have counted so far. One not heard before says where it stands; a new process counts
    /// from 0.
    pub(super) fn on_counted(&mut self, counted: Vec<SchedulerCounts>) {
        for now in counted {
            if let Some(before) = self.counted.get(&now.scheduler) {
                if before.epoch > now.epoch {
                    continue;
                }
                let is_same = before.epoch == now.epoch;
                let since = |now: u64, before: u64| if is_same { now.saturating_sub(before) } else { now };
                let placed = since(now.placed, before.placed);
                self.conflicts += since(now.conflicts, before.conflicts);
                self.placed += placed;
            }
            self.counted.insert(now.scheduler.clone(), now);
        }
    }
}

impl Partitioning {
    /// Another way to split nodes: the record to be written, or `None` when it is in force already.
    pub(super) fn set_mode(
        &mut self,
        choice: ModeChoice,
        nodes: &Nodes,
        assignments: &Assignments,
        now: Millis,
    ) -> Option<Partition> {
        let known = self.records.whole();
        let (mode, by_hand, reason) = match choice {
            ModeChoice::Fixed(mode) => (mode, true, "set by hand"),
            ModeChoice::Automatic => (known.mode, false, "left to the load by hand"),
        };
        let is_known = self.records.revision() > Revision(0) || !by_hand;
        if is_known && (mode, by_hand) == (known.mode, known.by_hand) {
            return None;
        }
        self.shuffler.streak = Streak::default();
        let reason = reason.to_owned();
        let split = self.change_mode(mode, nodes, assignments, now);
        Some(Partition { by_hand, reason, changed_ms: assignments.wall_ms, ..split })
    }

    /// At the end of a window: whether the load asks for another mode.
    pub(super) fn follow_load(
        &mut self,
        nodes: &Nodes,
        assignments: &Assignments,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        if !self.shuffle.is_on {
            return;
        }
        let shuffler = &mut self.shuffler;
        let began = *shuffler.began.get_or_insert(now);
        if now < began.plus(self.shuffle.window_ms) {
            return;
        }
        let window = LoadWindow {
            ms: now.since(began),
            allocated_permille: nodes.allocated_permille(assignments.queueing.quota()),
            placed: std::mem::take(&mut shuffler.placed),
            conflicts: std::mem::take(&mut shuffler.conflicts),
        };
        shuffler.began = Some(now);
        shuffler.counted.retain(|name, _| assignments.schedulers.find(name).is_some());
        let Partition { mode, by_hand, .. } = *self.records.whole();
        if by_hand || self.is_writing {
            shuffler.streak = Streak::default();
            return;
        }
        let (streak, switch) = partition_mode::follow(&self.shuffle, mode, shuffler.streak, &window);
        shuffler.streak = streak;
        if let Some(Switch { mode, reason }) = switch {
            let split = self.change_mode(mode, nodes, assignments, now);
            let changed_ms = assignments.wall_ms;
            actions.push(Action::WritePartition(Partition { by_hand: false, reason, changed_ms, ..split }));
        }
    }

    /// When the window under way ends.
    pub(super) fn window_ends(&self) -> Option<Millis> {
        let began = self.shuffler.began.filter(|_| self.shuffle.is_on)?;
        Some(began.plus(self.shuffle.window_ms))
    }

    fn change_mode(
        &mut self,
        mode: PartitionMode,
        nodes: &Nodes,
        assignments: &Assignments,
        now: Millis,
    ) -> Partition {
        self.mode = mode;
        self.due = None;
        self.is_writing = true;
        self.split(mode, nodes, assignments).unwrap_or_else(|| {
            self.touch(now);
            let known = self.records.whole();
            Partition { mode, generation: known.generation + 1, ..known.clone() }
        })
    }
}
