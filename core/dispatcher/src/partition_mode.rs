//! How nodes are split: told by hand, or changed by itself as the load goes.

use std::collections::BTreeMap;

use godel_domain::{
    change::{Partition, PartitionMode},
    ids::{Epoch, Revision},
    time::Millis,
};
use godel_queueing::QueueIdx;
use godel_rules::partition_mode::{self, Streak, Window};

use super::{Action, Dispatcher};

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

impl Dispatcher {
    /// Schedulers say what they have counted so far. One not heard before says where it stands; a new process counts
    /// from 0.
    pub fn on_counted(&mut self, counted: Vec<SchedulerCounts>) {
        for now in counted {
            if let Some(before) = self.shuffler.counted.get(&now.scheduler) {
                if before.epoch > now.epoch {
                    continue;
                }
                let is_same = before.epoch == now.epoch;
                let since = |now: u64, before: u64| if is_same { now.saturating_sub(before) } else { now };
                let placed = since(now.placed, before.placed);
                self.shuffler.conflicts += since(now.conflicts, before.conflicts);
                self.shuffler.placed += placed;
            }
            self.shuffler.counted.insert(now.scheduler.clone(), now);
        }
    }

    /// Another way to split nodes: the record to be written, or `None` when it is in force already.
    pub fn set_mode(&mut self, choice: ModeChoice, now: Millis) -> Option<Partition> {
        let (mode, by_hand, reason) = match choice {
            ModeChoice::Fixed(mode) => (mode, true, "set by hand"),
            ModeChoice::Automatic => (self.partition.whole().mode, false, "left to the load by hand"),
        };
        let known = self.partition.whole();
        let is_known = self.partition.revision() > Revision(0) || !by_hand;
        if is_known && (mode, by_hand) == (known.mode, known.by_hand) {
            return None;
        }
        self.shuffler.streak = Streak::default();
        Some(self.changed_partition(mode, by_hand, reason.to_owned(), now))
    }

    /// At the end of a window: whether the load asks for another mode.
    pub(super) fn shuffle(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let config = &self.config.shuffle;
        if !config.is_on {
            return;
        }
        let began = *self.shuffler.began.get_or_insert(now);
        if now < began.plus(config.window_ms) {
            return;
        }
        let window = Window {
            ms: now.since(began),
            allocated_permille: self.allocated_permille(),
            placed: std::mem::take(&mut self.shuffler.placed),
            conflicts: std::mem::take(&mut self.shuffler.conflicts),
        };
        self.shuffler.began = Some(now);
        self.shuffler.counted.retain(|name, _| self.schedulers.find(name).is_some());
        let Partition { mode, by_hand, .. } = *self.partition.whole();
        if by_hand || self.partition_writing {
            self.shuffler.streak = Streak::default();
            return;
        }
        let (streak, switch) = partition_mode::follow(config, mode, self.shuffler.streak, &window);
        self.shuffler.streak = streak;
        if let Some(switch) = switch {
            let split = self.changed_partition(switch.mode, false, switch.reason, now);
            actions.push(Action::WritePartition(split));
        }
    }

    /// When the window under way ends.
    pub(super) fn window_ends(&self) -> Option<Millis> {
        let began = self.shuffler.began.filter(|_| self.config.shuffle.is_on)?;
        Some(began.plus(self.config.shuffle.window_ms))
    }

    fn changed_partition(
        &mut self,
        mode: PartitionMode,
        by_hand: bool,
        reason: String,
        now: Millis,
    ) -> Partition {
        self.mode = mode;
        self.partition_due = None;
        self.partition_writing = true;
        let split = self.split(mode).unwrap_or_else(|| {
            self.touch_partition(now);
            let known = self.partition.whole();
            Partition { mode, generation: known.generation + 1, ..known.clone() }
        });
        Partition { by_hand, reason, changed_ms: self.wall_ms, ..split }
    }

    /// Of the scarcest resource, what is bound.
    fn allocated_permille(&self) -> u32 {
        let total = self.capacities.total();
        let share = |(name, amount): (&str, i128)| {
            u32::try_from((amount * 1_000).checked_div(i128::from(*total.get(name)?))?).ok()
        };
        self.quota().usage().bound(QueueIdx::ROOT).1.filter_map(share).max().unwrap_or(0)
    }
}
