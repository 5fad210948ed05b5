//! What an application master asks for: the table behind `allocate`.
//!
//! A row of `allocate` is a state, not a change: what is asked for under one key and one name replaces what was asked there
//! before. Rows of nodes, racks and `*` of one key are linked: the number at `*` is how many containers are wanted in
//! all, the others say where. A key with another capability is another key.
//!
//! [`AskTable`] remembers the rows and which ordinals of the unit were opened for them. [`AskTable::settle`] compares both: it says
//! how many replicas of which task group are to be added, and which waiting ordinals are not wanted any more. A call that
//! changes no row changes nothing there.

use std::collections::{BTreeMap, BTreeSet};

/// Name of the row that counts all containers.
pub const ANY: &str = "*";
/// Most rows of one application.
pub const N_ROWS_MAX: usize = 100_000;
/// Most containers that one row asks for.
pub const N_CONTAINERS_MAX: u32 = 100_000;

/// In which pool a container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecutionType {
    /// In the guaranteed pool.
    #[default]
    Guaranteed,
    /// In the best-effort pool.
    Opportunistic,
}

/// What stays the same for containers that are alike: a task group of the unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskGroup {
    /// Lower goes first within the application.
    pub priority: i32,
    /// In which pool.
    pub execution: ExecutionType,
    /// Amounts by resource, as godel counts them.
    pub capability: BTreeMap<String, i64>,
    /// Label expression of nodes; empty: nodes without a partition.
    pub label: String,
}

/// Which rows are linked: a group, and the number by which its master tells asks apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskKey {
    /// What is asked for.
    pub group: AskGroup,
    /// 0 from masters that do not use them.
    pub allocation_request_id: i64,
}

/// A row as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskRow {
    /// Which rows it is linked with.
    pub key: AskKey,
    /// A node, a rack or `*`.
    pub name: String,
    /// How many containers.
    pub n: u32,
    /// Elsewhere is as good, after a while.
    pub relax_locality: bool,
}

/// Why an ask is refused (InvalidResourceRequestException).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAsk {
    /// More rows than are kept.
    #[error("the application asks in more than {N_ROWS_MAX} rows; at most that many are kept")]
    Rows,
    /// More containers than one row may ask for.
    #[error("{n} containers of `{name}`; one row asks for at most {N_CONTAINERS_MAX}")]
    Containers {
        /// Of the row.
        name: String,
        /// As asked.
        n: u32,
    },
    /// Nothing is asked for.
    #[error("a container needs memory and CPUs above 0")]
    Capability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    n: u32,
    relax_locality: bool,
}

/// What is to be changed of the unit so that it fits the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskChanges {
    /// Replicas to add, by key; keys of one group are replicas of one task group.
    pub add: Vec<(AskKey, u32)>,
    /// Waiting ordinals that nobody wants any more, the newest of their keys first.
    pub release: Vec<u32>,
}

impl AskChanges {
    /// Nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.release.is_empty()
    }
}

/// Where the container of an ordinal was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AskLocality {
    /// On a node that was named.
    Node,
    /// In a rack that was named.
    Rack,
    /// Anywhere.
    OffSwitch,
}

/// The rows of one application, and the ordinals that wait for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskTable {
    rows: BTreeMap<AskKey, BTreeMap<String, Wanted>>,
    n_rows: usize,
    /// Ordinals without a place, by key.
    waiting: BTreeMap<AskKey, BTreeSet<u32>>,
    /// Replicas that are being added, whose ordinals are not known yet.
    growing: BTreeMap<AskKey, u32>,
    keys: BTreeMap<u32, AskKey>,
    /// The rows that count one less because an ordinal has a place, until its master knows of it.
    unfetched: BTreeMap<u32, Vec<(String, bool)>>,
}

impl AskTable {
    /// Takes rows over, all of them or none. Returns whether any differs from what was there.
    ///
    /// # Errors
    /// The first row that is not accepted.
    pub fn update(&mut self, rows: &[AskRow]) -> Result<bool, BadAsk> {
        for row in rows {
            if row.n > N_CONTAINERS_MAX {
                return Err(BadAsk::Containers { name: row.name.clone(), n: row.n });
            }
            if row.n > 0 && !row.key.group.capability.values().any(|amount| *amount > 0) {
                return Err(BadAsk::Capability);
            }
        }
        let is_new = |row: &&AskRow| {
            row.n > 0 && !self.rows.get(&row.key).is_some_and(|named| named.contains_key(&row.name))
        };
        if self.n_rows + rows.iter().filter(is_new).count() > N_ROWS_MAX {
            return Err(BadAsk::Rows);
        }
        let mut has_changed = false;
        for AskRow { key, name, n, relax_locality } in rows {
            let wanted = Wanted { n: *n, relax_locality: *relax_locality };
            let before = self.rows.get(key).and_then(|named| named.get(name)).copied();
            // Nothing wanted of what was not wanted.
            if before == Some(wanted) || (before.is_none() && *n == 0) {
                continue;
            }
            has_changed = true;
            self.put(key, name, wanted);
        }
        Ok(has_changed)
    }

    fn put(&mut self, key: &AskKey, name: &str, wanted: Wanted) {
        let named = self.rows.entry(key.clone()).or_default();
        let before = if wanted.n == 0 { named.remove(name) } else { named.insert(name.to_owned(), wanted) };
        match (before.is_some(), wanted.n > 0) {
            (false, true) => self.n_rows += 1,
            (true, false) => self.n_rows -= 1,
            (true, true) | (false, false) => {}
        }
        if named.is_empty() {
            self.rows.remove(key);
        }
    }

    /// What the unit lacks of what is wanted, and has too much of.
    #[must_use]
    pub fn settle(&self) -> AskChanges {
        let mut changes = AskChanges::default();
        let keys: BTreeSet<&AskKey> = self.rows.keys().chain(self.waiting.keys()).collect();
        for key in keys {
            let n_wanted = self.n_wanted(key);
            let waiting = self.waiting.get(key);
            let n_waiting = waiting.map_or(0, |ordinals| u32::try_from(ordinals.len()).unwrap_or(u32::MAX));
            let n_coming = n_waiting.saturating_add(self.growing.get(key).copied().unwrap_or(0));
            if n_wanted > n_coming {
                changes.add.push((key.clone(), n_wanted - n_coming));
            }
            let n_over = n_waiting.saturating_sub(n_wanted);
            let newest = waiting.into_iter().flatten().rev().copied();
            changes.release.extend(newest.take(usize::try_from(n_over).unwrap_or(usize::MAX)));
        }
        changes
    }

    /// Keys under which containers are wanted that have no place, and how many.
    pub fn wanted(&self) -> impl Iterator<Item = (&AskKey, u32)> {
        self.rows.keys().map(|key| (key, self.n_wanted(key))).filter(|(_, n)| *n > 0)
    }

    /// Containers that are wanted under a key and have no place.
    pub fn n_wanted(&self, key: &AskKey) -> u32 {
        self.rows.get(key).and_then(|named| named.get(ANY)).map_or(0, |wanted| wanted.n)
    }

    /// Replicas are being added: they are not asked for again.
    pub fn growing(&mut self, add: &[(AskKey, u32)]) {
        for (key, n) in add {
            *self.growing.entry(key.clone()).or_default() += n;
        }
    }

    /// Replicas that were being added are not: they are asked for again.
    pub fn not_grown(&mut self, key: &AskKey, n: u32) {
        if let Some(growing) = self.growing.get_mut(key) {
            *growing = growing.saturating_sub(n);
            if *growing == 0 {
                self.growing.remove(key);
            }
        }
    }

    /// Nothing is wanted any more. The ordinals that waited.
    pub fn clear(&mut self) -> Vec<u32> {
        self.rows.clear();
        self.n_rows = 0;
        self.unfetched.clear();
        let waiting: Vec<u32> = std::mem::take(&mut self.waiting).into_values().flatten().collect();
        waiting.iter().for_each(|ordinal| drop(self.keys.remove(ordinal)));
        waiting
    }

    /// Replicas were added for a key.
    pub fn opened(&mut self, key: &AskKey, ordinals: impl IntoIterator<Item = u32>) {
        for ordinal in ordinals {
            self.waiting.entry(key.clone()).or_default().insert(ordinal);
            self.keys.insert(ordinal, key.clone());
        }
    }

    /// An ordinal was released while it waited, or ended: nothing of it is kept. Its key, if it was known.
    pub fn forget(&mut self, ordinal: u32) -> Option<AskKey> {
        let key = self.keys.remove(&ordinal)?;
        self.unfetched.remove(&ordinal);
        self.no_longer_waits(&key, ordinal);
        Some(key)
    }

    /// An ordinal has a place on a node of a rack: the rows ask for one less, as YARN counts them down. `None`: the ordinal did
    /// not wait.
    pub fn placed(&mut self, ordinal: u32, node: &str, rack: &str) -> Option<(AskKey, AskLocality)> {
        let key = self.keys.get(&ordinal)?.clone();
        if !self.no_longer_waits(&key, ordinal) {
            return None;
        }
        let is_named = |name: &str| self.rows.get(&key).is_some_and(|named| named.contains_key(name));
        let locality = match (is_named(node), is_named(rack)) {
            (true, _) => AskLocality::Node,
            (false, true) => AskLocality::Rack,
            (false, false) => AskLocality::OffSwitch,
        };
        let counted: &[&str] = match locality {
            AskLocality::Node => &[node, rack, ANY],
            AskLocality::Rack => &[rack, ANY],
            AskLocality::OffSwitch => &[ANY],
        };
        let mut of = Vec::with_capacity(counted.len());
        for name in counted {
            if let Some(relax_locality) = self.one_less(&key, name) {
                of.push(((*name).to_owned(), relax_locality));
            }
        }
        self.unfetched.insert(ordinal, of);
        Some((key, locality))
    }

    /// The master of an ordinal knows of its place.
    pub fn fetched(&mut self, ordinal: u32) {
        self.unfetched.remove(&ordinal);
    }

    /// An ordinal has lost its place before its master knew of it: the rows ask for one more again, as YARN puts requests back
    /// (`recoverResourceRequestForContainer`).
    pub fn lost(&mut self, ordinal: u32) {
        let (Some(key), Some(counted)) = (self.keys.get(&ordinal).cloned(), self.unfetched.remove(&ordinal))
        else {
            return;
        };
        for (name, relax_locality) in counted {
            let known = self.rows.get(&key).and_then(|named| named.get(&name)).copied();
            let Wanted { n, relax_locality } = known.unwrap_or(Wanted { n: 0, relax_locality });
            self.put(&key, &name, Wanted { n: n.saturating_add(1), relax_locality });
        }
    }

    /// Returns whether the row lets a container go elsewhere; `None`: there is no such row.
    fn one_less(&mut self, key: &AskKey, name: &str) -> Option<bool> {
        let wanted = self.rows.get(key).and_then(|named| named.get(name)).copied()?;
        self.put(key, name, Wanted { n: wanted.n.saturating_sub(1), ..wanted });
        Some(wanted.relax_locality)
    }

    fn no_longer_waits(&mut self, key: &AskKey, ordinal: u32) -> bool {
        let Some(ordinals) = self.waiting.get_mut(key) else { return false };
        let did_wait = ordinals.remove(&ordinal);
        if ordinals.is_empty() {
            self.waiting.remove(key);
        }
        did_wait
    }

    /// Nodes and racks that a key must have, because no row lets it go anywhere: empty if it may.
    pub fn required(&self, key: &AskKey) -> Vec<&str> {
        let Some(named) = self.rows.get(key) else { return Vec::new() };
        if named.get(ANY).is_none_or(|any| any.relax_locality) {
            return Vec::new();
        }
        named.keys().map(String::as_str).filter(|name| *name != ANY).collect()
    }

    /// Nodes and racks that a key would rather have.
    pub fn preferred(&self, key: &AskKey) -> Vec<&str> {
        let named = self.rows.get(key).into_iter().flatten();
        named.map(|(name, _)| name.as_str()).filter(|name| *name != ANY).collect()
    }
}

/// What a call of `allocate` is, by the response that its master has seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateTurn {
    /// The next one.
    Next,
    /// The last one again: its answer was lost, and is given again.
    Repeat,
    /// Neither (InvalidApplicationMasterRequestException).
    Wrong {
        /// The response that it should have seen.
        expected: i32,
    },
}

/// Judges the response that a master has seen last, against the last one that was given.
pub fn turn(seen: i32, last: i32) -> AllocateTurn {
    if next_response(seen) == last {
        AllocateTurn::Repeat
    } else if seen == last {
        AllocateTurn::Next
    } else {
        AllocateTurn::Wrong { expected: last }
    }
}

/// The number of the response after one; after the largest comes 0.
pub fn next_response(last: i32) -> i32 {
    last.wrapping_add(1) & i32::MAX
}

#[cfg(test)]
mod tests;
