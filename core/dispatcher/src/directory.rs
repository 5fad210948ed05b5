//! Who is called what: names, uids and ids of units, those on their way to the store included.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    ops::Bound,
};

use godel_base::{
    ids::{IdSet, Revision, UnitId},
    time::Millis,
};
use godel_domain::{names, unit::UnitRecord};
use godel_rules::admission::same;
use rustc_hash::FxHashMap;

/// A uid stays known at least so long after its submission: ten minutes.
const UID_MS_MIN: u64 = 600_000;
/// Uids of deleted units that are remembered.
const GONE_MAX: usize = 1_000_000;

/// What a submission's uid and name are already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameClaim {
    /// Nothing: the unit gets this id, uid and name are taken from now on.
    New(UnitId),
    /// Submitted before and durable.
    Duplicate(UnitId),
    /// Submitted before and on its way to the store.
    InFlight(UnitId),
    /// Submitted before, ended and deleted.
    Gone {
        /// Its id.
        unit: UnitId,
        /// Of its submission.
        created: Revision,
        /// Of what was submitted, see [`same::digest`]; `None`: that is not known.
        digest: Option<u64>,
    },
    /// The name belongs to another unit.
    NameTaken(UnitId),
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    last_id: u64,
    names: BTreeMap<Box<str>, UnitId>,
    uids: BTreeMap<u128, UnitId>,
    in_flight: IdSet<UnitId>,
    gone: FxHashMap<u128, (UnitId, Revision, Option<u64>)>,
    gone_until: VecDeque<(Millis, u128)>,
}

/// Key of a name: namespace and name in their order.
pub(super) fn key(namespace: &str, name: &str) -> Box<str> {
    let mut key = String::with_capacity(namespace.len() + 1 + name.len());
    key.push_str(namespace);
    key.push('\0');
    key.push_str(name);
    key.into_boxed_str()
}

impl Directory {
    pub(super) fn set_last_id(&mut self, last: UnitId) {
        self.last_id = self.last_id.max(last.0);
    }

    pub(super) fn reserve(&mut self, namespace: &str, name: &str, uid: &str) -> NameClaim {
        let uid = match self.uids.entry(names::uuid(uid).unwrap_or_default()) {
            Entry::Vacant(uid) => uid,
            Entry::Occupied(known) if self.in_flight.contains(known.get()) => {
                return NameClaim::InFlight(*known.get());
            }
            Entry::Occupied(known) => return NameClaim::Duplicate(*known.get()),
        };
        if let Some((unit, created, digest)) = self.gone.get(uid.key()).copied() {
            return NameClaim::Gone { unit, created, digest };
        }
        match self.names.entry(key(namespace, name)) {
            Entry::Occupied(taken) => NameClaim::NameTaken(*taken.get()),
            Entry::Vacant(name) => {
                self.last_id += 1;
                let unit = UnitId(self.last_id);
                name.insert(unit);
                uid.insert(unit);
                self.in_flight.insert(unit);
                NameClaim::New(unit)
            }
        }
    }

    /// The transaction was refused: uid and name are free again, the id is lost.
    pub(super) fn release(&mut self, record: &UnitRecord) {
        if self.in_flight.remove(&record.id) {
            self.names.remove(&key(&record.spec.namespace, &record.spec.name));
            self.uids.remove(&names::uuid(&record.spec.uid).unwrap_or_default());
        }
    }

    /// The unit is durable.
    pub(super) fn insert(&mut self, record: &UnitRecord) {
        self.set_last_id(record.id);
        if !self.in_flight.remove(&record.id) {
            self.names.insert(key(&record.spec.namespace, &record.spec.name), record.id);
            self.uids.insert(names::uuid(&record.spec.uid).unwrap_or_default(), record.id);
        }
    }

    /// The unit's record is gone; its uid stays known for the rest of ten minutes from `now`.
    pub(super) fn remove(&mut self, record: &UnitRecord, created: Revision, now: Millis) {
        let uid = names::uuid(&record.spec.uid).unwrap_or_default();
        let name = key(&record.spec.namespace, &record.spec.name);
        if self.names.get(&name) == Some(&record.id) {
            self.names.remove(&name);
        }
        if self.uids.get(&uid) == Some(&record.id) {
            self.uids.remove(&uid);
        }
        let digest = || same::digest(&record.spec, record.status.submitted.as_deref());
        self.gone.insert(uid, (record.id, created, (!record.status.updated).then(digest)));
        self.gone_until.push_back((now.plus(UID_MS_MIN), uid));
        while let Some((until, uid)) = self.gone_until.front().copied() {
            if until > now && self.gone_until.len() <= GONE_MAX {
                break;
            }
            self.gone_until.pop_front();
            self.gone.remove(&uid);
        }
    }

    /// Units on their way to the store.
    pub(super) fn n_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn by_name(&self, namespace: &str, name: &str) -> Option<UnitId> {
        self.names.get(&key(namespace, name)).copied()
    }

    pub(super) fn by_uid(&self, uid: u128) -> Option<UnitId> {
        self.uids.get(&uid).copied()
    }

    /// Units of a namespace whose names begin with `prefix`, in order.
    pub(super) fn by_name_prefix<'a>(
        &'a self,
        namespace: &str,
        prefix: &str,
    ) -> impl Iterator<Item = UnitId> + 'a {
        let first = key(namespace, prefix);
        self.names
            .range(first.clone()..)
            .take_while(move |(name, _)| name.starts_with(&*first))
            .map(|(_, unit)| *unit)
    }

    /// Units whose uids begin with `prefix`.
    pub(super) fn by_uid_prefix(&self, prefix: &str) -> impl Iterator<Item = UnitId> + '_ {
        let range = names::uuid_range(prefix).into_iter();
        range.flat_map(|(first, last)| self.uids.range(first..=last).map(|(_, unit)| *unit))
    }

    /// Names after `after` (all when empty) that begin with `prefix`, in order of namespace and name.
    pub(super) fn after<'a>(
        &'a self,
        prefix: &'a str,
        after: &str,
    ) -> impl Iterator<Item = (&'a str, UnitId)> {
        let start = if after.is_empty() { prefix } else { after };
        let skip = usize::from(start >= prefix && !after.is_empty() && self.names.contains_key(after));
        self.names
            .range::<str, _>((Bound::Included(start.max(prefix)), Bound::Unbounded))
            .skip(skip)
            .take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(name, unit)| (&**name, *unit))
    }
}
