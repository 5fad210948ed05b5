//! Schedulers: their leases, streams, credits and what each of them holds.

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::ids::{Epoch, IdSet, UnitId};

use super::policy::{SchedulerCandidate, hash_name};

/// A stream of a scheduler, numbered by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

#[derive(Debug, Default)]
pub(super) struct Schedulers {
    pub(super) all: Vec<SchedulerEntry>,
    by_name: BTreeMap<String, usize>,
    by_session: BTreeMap<SessionId, usize>,
}

#[derive(Debug)]
pub(super) struct SchedulerEntry {
    pub(super) name: String,
    pub(super) name_hash: u64,
    pub(super) address: String,
    pub(super) epoch: Epoch,
    /// Its lease is in force.
    pub(super) live: bool,
    pub(super) session: Option<SessionId>,
    /// Below 0 after a unit larger than what was left.
    pub(super) credits: i64,
    pub(super) held: IdSet<UnitId>,
    pub(super) parked: u32,
    pub(super) outstanding: u64,
    pub(super) dispatched: u64,
    /// Assignments of its stream.
    pub(super) n_assigned: u64,
}

impl Schedulers {
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The scheduler of that name, known from now on.
    pub(super) fn intern(&mut self, name: &str) -> usize {
        if let Some(idx) = self.find(name) {
            return idx;
        }
        self.all.push(SchedulerEntry {
            name: name.to_owned(),
            name_hash: hash_name(name),
            address: String::new(),
            epoch: Epoch(0),
            live: false,
            session: None,
            credits: 0,
            held: IdSet::default(),
            parked: 0,
            outstanding: 0,
            dispatched: 0,
            n_assigned: 0,
        });
        self.by_name.insert(name.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }

    pub(super) fn of_session(&self, session: SessionId) -> Option<usize> {
        self.by_session.get(&session).copied()
    }

    /// Ends the stream of a scheduler, if it has one.
    pub(super) fn close(&mut self, idx: usize) -> Option<SessionId> {
        let session = self.all[idx].session.take()?;
        self.by_session.remove(&session);
        self.all[idx].credits = 0;
        Some(session)
    }

    pub(super) fn open(&mut self, idx: usize, session: SessionId, credits: u32) {
        self.by_session.insert(session, idx);
        self.all[idx].session = Some(session);
        self.all[idx].credits = i64::from(credits);
        self.all[idx].n_assigned = 0;
    }

    /// Those that may get a unit now, in order.
    pub(super) fn candidates(&self) -> impl Iterator<Item = SchedulerCandidate> + '_ {
        let ready = |(_, one): &(usize, &SchedulerEntry)| one.session.is_some() && one.credits > 0;
        self.all.iter().enumerate().filter(ready).map(|(scheduler, one)| SchedulerCandidate {
            scheduler,
            name_hash: one.name_hash,
            outstanding: one.outstanding,
            dispatched: one.dispatched,
        })
    }

    /// One has a stream.
    pub(super) fn is_any_attached(&self) -> bool {
        !self.by_session.is_empty()
    }

    /// Names of those with a lease in force.
    pub(super) fn live(&self) -> BTreeSet<String> {
        self.all.iter().filter(|one| one.live).map(|one| one.name.clone()).collect()
    }

    /// Each one with a lease in force has a stream.
    pub(super) fn all_attached(&self) -> bool {
        self.all.iter().all(|one| !one.live || one.session.is_some())
    }
}

impl SchedulerEntry {
    /// Changes what a held unit counts for.
    pub(super) fn reload(&mut self, load: &mut u32, new: u32) {
        self.outstanding = self.outstanding - u64::from(*load) + u64::from(new);
        *load = new;
    }
}
