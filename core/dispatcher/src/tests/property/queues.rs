//! Queues beside the random lives: records come and go, and what each queue is charged is summed anew.

use godel_domain::{
    queue_spec::{PriorityClass, QueuePolicy, QueueSpec},
    unit::TaskGroup,
};

use super::*;

/// Queues that units name; a record may come, change and go.
pub(super) const QUEUES: [&str; 5] = ["default", "lim", "two.a", "two.b", "two"];

/// A unit unlike the ones before it: of any queue, with one or two groups, with or without a priority class.
pub(super) fn mixed(id: u64) -> UnitRecord {
    let n = |of: u64| usize::try_from(id % of).unwrap();
    let unit = spec(id, 1 + u32::try_from(id % 3).unwrap())
        .queue(QUEUES[n(4)])
        .owner(format!("o{}", id % 2))
        .priority_class(if n(3) == 0 { "gold".to_owned() } else { String::new() });
    if n(5) < 2 {
        let second = TaskGroup { name: "second".to_owned(), ..unit.spec.task_groups[0].clone() };
        return unit.group(second).min_member(2);
    }
    unit
}

/// Of the queued and the parked: running units that must fit at least, and all that are pending.
type Waiters = BTreeMap<UnitId, (u32, u32)>;

impl World {
    pub(super) fn put_queue(&mut self, queue: usize, max: Option<u8>, policy: usize, weight: u32) {
        let max = max.iter().map(|max| ("cpu".to_owned(), i64::from(*max) * 100)).collect();
        let policy = QueuePolicy::ALL[policy];
        let record = QueueSpec { max, policy, weight, ..QueueSpec::new(QUEUES[queue]) };
        let revision = self.rig.next();
        self.rig.core.on_change(
            &Change::Put(Record::Queue(Arc::new(record))),
            revision,
            Receipt { revision, time_ms: 5 },
            self.rig.now,
        );
    }

    pub(super) fn put_class(&mut self, value: i32) {
        let (name, description) = ("gold".to_owned(), String::new());
        let gold = PriorityClass { name, value, preemptible: true, description };
        let revision = self.rig.next();
        self.rig.core.on_change(
            &Change::Put(Record::PriorityClass(gold)),
            revision,
            Receipt { revision, time_ms: 5 },
            self.rig.now,
        );
    }

    /// Who may be charged in a step.
    pub(super) fn waiting(&self) -> (Waiters, BTreeMap<QueueIdx, i128>) {
        let core = &self.rig.core;
        let waiters = core.assignments.units.entries.iter().filter_map(|(unit, entry)| {
            let placed = !entry.rows.rows.is_empty();
            let n = if placed { 1 } else { entry.record.spec.min_member };
            match entry.place {
                Whereabouts::Queued(_) => Some((*unit, (n, entry.counts.pending))),
                Whereabouts::Dispatched(held) if held.parked.is_some() => {
                    // For the others its queue is charged already.
                    Some((*unit, (0, entry.counts.pending.min(held.unplaced.unwrap_or(u32::MAX)))))
                }
                Whereabouts::Dispatched(_)
                | Whereabouts::Idle
                | Whereabouts::Unsettled
                | Whereabouts::Paused => None,
            }
        });
        let (tree, usage) = (core.queueing().quota().tree(), core.queueing().quota().usage());
        let queues = QUEUES.iter().filter_map(|path| tree.find(path));
        (waiters.collect(), queues.map(|queue| (queue, usage.used(queue, "cpu"))).collect())
    }

    /// Each unit that left its queue fit at least in part, in the order in which they left.
    pub(super) fn check_handed_out(
        &self,
        (mut waiters, mut used): (Waiters, BTreeMap<QueueIdx, i128>),
        actions: &[Action],
    ) -> Result<(), TestCaseError> {
        let core = &self.rig.core;
        let tree = core.queueing().quota().tree();
        for action in actions {
            // One that waits on only hears that its record is another.
            let Action::Assign(_, one) = action else { continue };
            if one.permit.places_max == Some(0) {
                continue;
            }
            let Some((n_least, n_pending)) = waiters.remove(&one.record.id) else { continue };
            let queue = core.assignments.units.entries[&one.record.id].account.queue;
            for level in tree.upwards(queue) {
                let used = used.entry(level).or_default();
                let max = tree.record(level).and_then(|record| record.max.get("cpu"));
                // One that goes out as one of a full queue takes the place of others there, or none.
                if let Some(max) = max.filter(|_| n_least > 0 && !one.permit.at_maximum) {
                    let with_it = *used + i128::from(n_least) * 100;
                    prop_assert!(
                        with_it <= i128::from(*max),
                        "unit {}: {} of {} in {}",
                        one.record.id,
                        with_it,
                        max,
                        tree.path(level)
                    );
                }
                *used += i128::from(n_pending.min(one.permit.places_max.unwrap_or(u32::MAX))) * 100;
            }
        }
        Ok(())
    }

    /// The watch was lost and everything is listed anew.
    pub(super) fn list(&mut self) {
        let core = &mut self.rig.core;
        let tree = core.queueing().quota().tree();
        let queues: Vec<_> = tree.iter().filter_map(|queue| tree.record(queue).cloned()).collect();
        let units: Vec<_> = core
            .assignments
            .units
            .entries
            .values()
            .map(|entry| (Arc::clone(&entry.record), entry.revision, entry.rows.clone()))
            .collect();
        let classes: Vec<_> = core.queueing().classes().get("gold").cloned().into_iter().collect();
        core.on_reset();
        list_node(core, self.rig.now);
        for (spec, revision, rows) in units {
            let unit = spec.id;
            core.on_unit(spec, revision, Receipt { revision, time_ms: 5 }, self.rig.now);
            core.on_rows_loaded(unit, rows, self.rig.now);
        }
        for queue in queues {
            let revision = core.queueing().queue_versions(&queue.name).unwrap().revision;
            core.on_change(
                &Change::Put(Record::Queue(queue)),
                revision,
                Receipt { revision, time_ms: 5 },
                self.rig.now,
            );
        }
        for class in classes {
            let revision = core.queueing().class_versions(&class.name).unwrap().revision;
            core.on_change(
                &Change::Put(Record::PriorityClass(class)),
                revision,
                Receipt { revision, time_ms: 5 },
                self.rig.now,
            );
        }
        core.on_synced(Revision(self.rig.revision), self.rig.now);
    }

    /// Queues are charged for what is live, and for what a scheduler works on; what is bound is noted apart.
    pub(super) fn check_queues(&self) -> Result<(), TestCaseError> {
        let core = &self.rig.core;
        let mut expected: BTreeMap<QueueIdx, (i128, i128, u64, usize)> = BTreeMap::new();
        for (unit, entry) in &core.assignments.units.entries {
            prop_assert!(entry.is_sound(), "unit {}: {:?} {:?}", unit, entry.shares, entry.place);
            let under_way = match entry.place {
                Whereabouts::Dispatched(held) if held.parked.is_none() => {
                    entry.counts.pending.saturating_sub(held.unplaced.unwrap_or(0))
                }
                Whereabouts::Dispatched(held) => {
                    entry.counts.pending.saturating_sub(held.unplaced.unwrap_or(u32::MAX))
                }
                _ => 0,
            };
            let charged = entry.counts.live + under_way;
            let queue = entry.account.queue;
            expected.entry(queue).or_default().3 += 1;
            for level in core.queueing().quota().tree().upwards(queue) {
                let sums = expected.entry(level).or_default();
                sums.0 += i128::from(charged);
                sums.1 += i128::from(entry.counts.live);
                sums.2 += u64::from(entry.counts.pending > 0);
            }
        }
        for path in QUEUES {
            let Some(queue) = core.queueing().quota().tree().find(path) else { continue };
            let (charged, bound, n_wanting, n_enrolled) = expected.get(&queue).copied().unwrap_or_default();
            let usage = core.queueing().quota().usage();
            prop_assert_eq!(usage.running_units(queue), charged, "{}", path);
            prop_assert_eq!(usage.used(queue, "cpu"), 100 * charged, "{}", path);
            prop_assert_eq!(usage.bound(queue).0, bound, "{}", path);
            prop_assert_eq!(core.assignments.queueing.queues.n_enrolled(queue), n_enrolled, "{}", path);
            let Some(view) = core.queueing().queue_view(path) else { continue };
            prop_assert_eq!(i128::from(view.running_units), bound, "{}", path);
            prop_assert_eq!(
                view.used_with_children.get("cpu").copied().unwrap_or(0),
                100 * i64::try_from(bound).unwrap()
            );
            prop_assert_eq!(view.pending_units, n_wanting, "{}", path);
            let users = core.queueing().queue_users(path, core.units()).n;
            prop_assert_eq!(users, if path == "default" { 0 } else { n_enrolled }, "{}", path);
        }
        Ok(())
    }
}
