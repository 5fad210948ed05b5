//! Decisions that the binder has answered and whose records are not read yet: what they take is assumed until then.
//!
//! An answer comes on another stream than the records that show it. A binding and a hold are in the records from the revision
//! on that the answer names, so its decision stays here until everything up to that revision has been read.

use std::collections::VecDeque;

use godel_base::ids::{ReplicaId, Revision, UnitId};
use godel_domain::decision::{Decision, GroupPlacement};

/// Decisions that were answered and not read yet.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Ascending.
    bound: VecDeque<(Revision, Decision)>,
    /// The binder holds their room; ascending.
    held: VecDeque<(Revision, Decision)>,
    /// A list is under way.
    lists: bool,
    /// What the last list showed: what was bound before it and had gone by then was never read.
    listed: Revision,
}

/// What has become of an answered decision now that its revision is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The rows of its running units were read, and have ended what was assumed.
    Shown(Decision),
    /// It was bound before a list, and may have gone before it: nothing that was read has ended what was assumed.
    Listed(Decision),
    /// Its holds were read, or have ended since.
    Held(Decision),
}

impl Unread {
    /// A list begins: what it will show is not known yet.
    pub(crate) fn begin_list(&mut self) {
        self.lists = true;
    }

    /// Everything up to `revision` has been read. True if that is the end of a list.
    pub(crate) fn end_list(&mut self, revision: Revision) -> bool {
        let ends = std::mem::take(&mut self.lists);
        if ends {
            self.listed = revision;
        }
        ends
    }

    /// A decision was bound at a revision, all of it or some; `read`: everything up to there has been read.
    pub(crate) fn put_bound(&mut self, revision: Revision, decision: Decision, read: Revision) {
        if revision > read || revision <= self.listed {
            put(&mut self.bound, revision, decision);
        }
    }

    /// The binder holds room for a decision since a revision.
    pub(crate) fn put_held(&mut self, revision: Revision, decision: Decision) {
        put(&mut self.held, revision, decision);
    }

    /// Takes out a decision whose revision has been read, bound ones first, in the order of revisions.
    pub(crate) fn take_read(&mut self, read: Revision) -> Option<Read> {
        let is_read = |(revision, _): &mut (Revision, Decision)| *revision <= read;
        if let Some((revision, decision)) = self.bound.pop_front_if(is_read) {
            let is_listed = revision <= self.listed;
            return Some(if is_listed { Read::Listed(decision) } else { Read::Shown(decision) });
        }
        self.held.pop_front_if(is_read).map(|(_, decision)| Read::Held(decision))
    }

    /// Running units of a unit whose holds were granted after everything that has been read.
    pub(crate) fn held_of(&self, unit: UnitId, read: Revision) -> impl Iterator<Item = ReplicaId> + '_ {
        let is_unread =
            move |(since, decision): &&(Revision, Decision)| *since > read && decision.unit == unit;
        let decisions = self.held.iter().filter(is_unread).map(|(_, decision)| decision);
        decisions.flat_map(|decision| &decision.groups).flat_map(GroupPlacement::replicas)
    }
}

/// Answers come in the order of revisions, but for those that are given a second time.
fn put(queue: &mut VecDeque<(Revision, Decision)>, revision: Revision, decision: Decision) {
    if queue.back().is_none_or(|(last, _)| *last <= revision) {
        queue.push_back((revision, decision));
    } else {
        let at = queue.partition_point(|(other, _)| *other <= revision);
        queue.insert(at, (revision, decision));
    }
}

#[cfg(test)]
mod tests {
    use godel_base::ids::NodeId;

    use super::*;

    fn decision(id: u64) -> Decision {
        let group = GroupPlacement { ordinals: vec![3], nodes: vec![NodeId(1)], ..GroupPlacement::default() };
        Decision { id, unit: UnitId(id), groups: vec![group], ..Decision::default() }
    }

    #[test]
    fn what_is_read_is_taken_once_in_order_of_revisions() {
        let mut unread = Unread::default();
        for (revision, id) in [(10, 1), (30, 2), (20, 3)] {
            unread.put_bound(Revision(revision), decision(id), Revision(5));
        }
        unread.put_bound(Revision(5), decision(4), Revision(5));
        unread.put_held(Revision(15), decision(5));
        assert_eq!(unread.take_read(Revision(9)), None);
        assert_eq!(unread.take_read(Revision(20)), Some(Read::Shown(decision(1))));
        assert_eq!(unread.take_read(Revision(20)), Some(Read::Shown(decision(3))));
        assert_eq!(unread.held_of(UnitId(5), Revision(14)).collect::<Vec<_>>(), [ReplicaId::new(3, 0)]);
        assert_eq!(unread.held_of(UnitId(5), Revision(15)).count(), 0);
        assert_eq!(unread.take_read(Revision(20)), Some(Read::Held(decision(5))));
        assert_eq!(unread.take_read(Revision(20)), None);
        assert_eq!(unread.take_read(Revision(30)), Some(Read::Shown(decision(2))));
    }

    #[test]
    fn bindings_before_a_list_are_not_in_it_if_they_ended() {
        let mut unread = Unread::default();
        unread.put_bound(Revision(10), decision(1), Revision(5));
        unread.begin_list();
        assert!(unread.end_list(Revision(12)) && !unread.end_list(Revision(13)));
        assert_eq!(unread.take_read(Revision(12)), Some(Read::Listed(decision(1))));
        unread.put_bound(Revision(11), decision(2), Revision(12));
        assert_eq!(unread.take_read(Revision(12)), Some(Read::Listed(decision(2))));
    }
}
