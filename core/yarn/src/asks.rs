//! What an application master asks for: the table behind `allocate`.
//!
//! A row of `allocate` is a state, not a change: what is asked for under one key and one name replaces what was asked there
//! before. Rows of nodes, racks and `*` of one key are linked, whatever label `*` has: the number at `*` is how many containers are wanted in
//! all, the others say where. A key with another capability is another key.
//!
//! [`AskTable`] remembers the rows, and which ordinals of the unit were opened for which wishes. [`AskTable::settle`] compares the wishes that
//! follow from the rows now, see [`wishes`](wishes::wishes), with those that wait: it says how many replicas with which wish are to be added,
//! and which waiting ordinals are not wanted any more. So what waits follows every change of rows, label, blacklist and racks. A call that
//! changes nothing of these changes nothing there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::wishes::{
    AskWish, N_PLACES_MAX, N_REFUSED_MAX, NAMES_BYTES_MAX, PlaceRow, RequestRows, WishTerms, is_rack,
    names_bytes,
};

pub use self::{
    refusals::BadAsk,
    turns::{AllocateTurn, next_response, turn},
};

mod refusals;
mod turns;
pub mod wishes;

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
    /// Which rows it is linked with. Its label is empty: [`Self::label`] says it.
    pub key: AskKey,
    /// A node, a rack or `*`.
    pub name: String,
    /// How many containers.
    pub n: u32,
    /// Of `*` and racks: places beyond those that the rows below name are as good, after a while.
    pub relax_locality: bool,
    /// Label expression; empty: nodes without a partition; `None`: that of the application. It counts at `*`.
    pub label: Option<String>,
}

/// Hosts and racks that a master does not want any more containers on, and those that it wants again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlacklistChange {
    /// Named from now on.
    pub add: Vec<String>,
    /// Not named any more, also if it is among those to add.
    pub remove: Vec<String>,
}

/// What is to be changed of the unit so that it fits the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskChanges {
    /// Replicas to add.
    pub add: Vec<AskGrowth>,
    /// Waiting ordinals that nobody wants any more, the newest of their keys first.
    pub release: Vec<u32>,
}

/// Replicas to add for a key, all with the same wish. Those of one group with one wish are replicas of one task group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskGrowth {
    /// For which rows.
    pub key: AskKey,
    /// Where they may go.
    pub wish: Arc<AskWish>,
    /// How many.
    pub n: u32,
}

impl AskGrowth {
    /// What stays the same for the containers, with the label that they have.
    pub fn group(&self) -> AskGroup {
        AskGroup { label: self.wish.label.clone(), ..self.key.group.clone() }
    }
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
    rows: BTreeMap<AskKey, RequestRows>,
    n_rows: usize,
    terms: WishTerms,
    /// Ordinals without a place, by key.
    waiting: BTreeMap<AskKey, Vec<WaitingWish>>,
    /// The key of each ordinal, with the label under which it was opened.
    keys: BTreeMap<u32, AskKey>,
    /// The rows that count one less because an ordinal has a place, until its master knows of it.
    unfetched: BTreeMap<u32, Vec<(String, bool)>>,
    /// Keys of which something has changed since they were settled.
    unsettled: BTreeSet<AskKey>,
    /// Keys for which replicas could not be added: they are settled with the next change.
    not_grown: BTreeSet<AskKey>,
    /// Rises with each change of rows and terms.
    version: u64,
}

/// What waits with one wish.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WaitingWish {
    wish: Arc<AskWish>,
    ordinals: BTreeSet<u32>,
    /// Replicas that are being added, whose ordinals are not known yet.
    n_growing: u32,
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
            refusals::check_name(&row.name)?;
        }
        let is_new = |row: &&AskRow| {
            row.n > 0 && !self.rows.get(&row.key).is_some_and(|rows| rows.places.contains_key(&row.name))
        };
        if self.n_rows + rows.iter().filter(is_new).count() > N_ROWS_MAX {
            return Err(BadAsk::Rows);
        }
        self.check_places(rows)?;
        let mut has_changed = false;
        for AskRow { key, name, n, relax_locality, label } in rows {
            let row = PlaceRow { n: *n, relax_locality: *relax_locality };
            let known = self.rows.get(key);
            let before = known.and_then(|known| known.places.get(name)).copied();
            let is_label_new = name == ANY && *n > 0 && known.is_none_or(|known| known.label != *label);
            // Nothing wanted of what was not wanted.
            if (before == Some(row) && !is_label_new) || (before.is_none() && *n == 0) {
                continue;
            }
            has_changed = true;
            self.put(key, name, row);
            if is_label_new && let Some(known) = self.rows.get_mut(key) {
                known.label.clone_from(label);
            }
        }
        Ok(has_changed)
    }

    /// Judges what rows of one key say together.
    fn check_places(&self, rows: &[AskRow]) -> Result<(), BadAsk> {
        // Names and their bytes, by key.
        let of_known = |key: &AskKey| -> (usize, usize) {
            self.rows.get(key).map_or((0, 0), |known| {
                let n_any = usize::from(known.places.contains_key(ANY));
                (known.places.len() - n_any, known.n_bytes())
            })
        };
        let mut names: BTreeMap<&AskKey, (usize, usize)> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.n > 0 && row.name != ANY) {
            let known = self.rows.get(&row.key);
            let (n, n_bytes) = names.entry(&row.key).or_insert_with(|| of_known(&row.key));
            if known.is_none_or(|known| !known.places.contains_key(&row.name)) {
                *n += 1;
                *n_bytes += names_bytes([row.name.as_str()]);
            }
            let Some(label) = &row.label else { continue };
            let any = rows.iter().rfind(|any| any.name == ANY && any.key == row.key && any.n > 0);
            let of_any = match (any, known) {
                (Some(any), _) => &any.label,
                (None, Some(known)) if known.places.contains_key(ANY) => &known.label,
                (None, Some(_) | None) => continue,
            };
            if of_any.as_ref().unwrap_or(&self.terms.label) != label {
                return Err(BadAsk::LabelOfPlace { name: row.name.clone(), label: label.clone() });
            }
        }
        let of_any = rows.iter().filter(|row| row.n > 0 && row.name == ANY && !row.relax_locality);
        for key in of_any.map(|row| &row.key) {
            names.entry(key).or_insert_with(|| of_known(key));
        }
        let is_strict = |key: &AskKey| {
            let any = rows.iter().rfind(|row| row.name == ANY && row.key == *key);
            let known = || self.rows.get(key)?.places.get(ANY).map(|any| any.relax_locality);
            !any.map(|any| any.relax_locality).or_else(known).unwrap_or(true)
        };
        let is_long =
            |(_, (n, n_bytes)): &(&AskKey, (usize, usize))| *n > N_PLACES_MAX || *n_bytes > NAMES_BYTES_MAX;
        match names.into_iter().filter(is_long).find(|(key, _)| is_strict(key)) {
            Some((_, (n, n_bytes))) => Err(BadAsk::Places { n, n_bytes }),
            None => Ok(()),
        }
    }

    /// Takes rows and a change of the blacklist over, both or neither. Returns whether anything differs from what was there.
    ///
    /// # Errors
    /// The first row that is not accepted, or the blacklist would be too long.
    pub fn take(&mut self, rows: &[AskRow], blacklist: &BlacklistChange) -> Result<bool, BadAsk> {
        let refused = self.refused_after(blacklist)?;
        let has_changed = self.update(rows)?;
        let Some(refused) = refused else { return Ok(has_changed) };
        self.set_refused(Arc::new(refused));
        Ok(true)
    }

    /// The blacklist after a change; `None`: it stays as it is.
    fn refused_after(&self, change: &BlacklistChange) -> Result<Option<BTreeSet<String>>, BadAsk> {
        if change.add.iter().any(|name| name == ANY) {
            return Err(BadAsk::BlacklistAny);
        }
        change.add.iter().try_for_each(|name| refusals::check_name(name))?;
        let known = &self.terms.refused;
        let leaves = |name: &String| change.remove.contains(name);
        let adds = change.add.iter().any(|name| !known.contains(name) && !leaves(name));
        if !adds && !change.remove.iter().any(|name| known.contains(name)) {
            return Ok(None);
        }
        let mut refused = BTreeSet::clone(known);
        refused.extend(change.add.iter().cloned());
        refused.retain(|name| !leaves(name));
        let n_bytes = names_bytes(refused.iter().map(String::as_str));
        if n_bytes > NAMES_BYTES_MAX || refused.len() > N_REFUSED_MAX {
            return Err(BadAsk::Blacklist { n: refused.len(), n_bytes });
        }
        Ok(Some(refused))
    }

    /// Sets the blacklist.
    pub fn set_refused(&mut self, refused: Arc<BTreeSet<String>>) {
        if self.terms.refused != refused {
            self.terms.refused = refused;
            self.version += 1;
            self.unsettled.extend(self.rows.keys().cloned());
        }
    }

    /// Sets the label of requests that have none.
    pub fn set_label(&mut self, label: &str) {
        if self.terms.label != label {
            label.clone_into(&mut self.terms.label);
            self.version += 1;
            self.unsettled.extend(self.rows.keys().cloned());
        }
    }

    /// Sets the rack of each host of the cluster.
    pub fn set_racks(&mut self, racks: &Arc<BTreeMap<String, String>>) {
        let names_hosts = |rows: &RequestRows| rows.places.keys().any(|name| name != ANY && !is_rack(name));
        let concerned = self.rows.iter().filter(|(_, rows)| names_hosts(rows));
        self.unsettled.extend(concerned.map(|(key, _)| key.clone()));
        self.terms.racks = Arc::clone(racks);
    }

    /// Rises with each change of what is asked for, and of the blacklist.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What wishes follow, beside the rows.
    pub fn terms(&self) -> &WishTerms {
        &self.terms
    }

    fn put(&mut self, key: &AskKey, name: &str, row: PlaceRow) {
        self.version += 1;
        let rows = self.rows.entry(key.clone()).or_default();
        match (rows.put(name, row).is_some(), row.n > 0) {
            (false, true) => self.n_rows += 1,
            (true, false) => self.n_rows -= 1,
            (true, true) | (false, false) => {}
        }
        if rows.places.is_empty() {
            self.rows.remove(key);
        }
        self.unsettled.insert(key.clone());
    }

    /// Something has changed since the unit was made to fit.
    pub fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// What the unit lacks of what is wanted, and has too much of. It is taken for done: what is to be added grows.
    #[must_use]
    pub fn settle(&mut self) -> AskChanges {
        let mut changes = AskChanges::default();
        self.unsettled.append(&mut self.not_grown);
        for key in std::mem::take(&mut self.unsettled) {
            self.settle_key(key, &mut changes);
        }
        changes
    }

    fn settle_key(&mut self, key: AskKey, changes: &mut AskChanges) {
        let n_max = wishes::n_wishes_max(self.rows.len(), &self.terms.refused);
        let wanted = self.rows.get(&key).map(|rows| wishes::wishes(rows, &self.terms, n_max));
        let waiting = self.waiting.entry(key.clone()).or_default();
        let mut is_wanted = vec![0; waiting.len()];
        let mut lacking: Vec<(AskWish, u32)> = Vec::new();
        for (wish, n) in wanted.into_iter().flatten() {
            match waiting.iter().position(|known| *known.wish == wish) {
                Some(at) => is_wanted[at] = n,
                None => lacking.push((wish, n)),
            }
        }
        let mut over: Vec<u32> = Vec::new();
        for (of, n) in waiting.iter_mut().zip(is_wanted) {
            let n_waiting = u32::try_from(of.ordinals.len()).unwrap_or(u32::MAX);
            let n_more = n.saturating_sub(n_waiting.saturating_add(of.n_growing));
            if n_more > 0 {
                changes.add.push(AskGrowth { key: key.clone(), wish: Arc::clone(&of.wish), n: n_more });
                of.n_growing += n_more;
            }
            let n_over = usize::try_from(n_waiting.saturating_sub(n)).unwrap_or(usize::MAX);
            over.extend(of.ordinals.iter().rev().take(n_over));
        }
        for (wish, n) in lacking {
            let wish = Arc::new(wish);
            changes.add.push(AskGrowth { key: key.clone(), wish: Arc::clone(&wish), n });
            waiting.push(WaitingWish { wish, ordinals: BTreeSet::new(), n_growing: n });
        }
        over.sort_unstable_by_key(|ordinal| std::cmp::Reverse(*ordinal));
        changes.release.extend(over);
        self.tidy(&key);
    }

    /// Forgets wishes with which nothing waits.
    fn tidy(&mut self, key: &AskKey) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        waiting.retain(|of| !of.ordinals.is_empty() || of.n_growing > 0);
        if waiting.is_empty() {
            self.waiting.remove(key);
        }
    }

    /// Keys under which containers are wanted that have no place, and how many.
    pub fn wanted(&self) -> impl Iterator<Item = (&AskKey, u32)> {
        self.rows.iter().map(|(key, rows)| (key, rows.n_wanted())).filter(|(_, n)| *n > 0)
    }

    /// Containers that are wanted under a key and have no place.
    pub fn n_wanted(&self, key: &AskKey) -> u32 {
        self.rows.get(key).map_or(0, RequestRows::n_wanted)
    }

    /// Labels of the requests for which containers are wanted.
    pub fn labels(&self) -> BTreeSet<&str> {
        let wanted = self.rows.values().filter(|rows| rows.n_wanted() > 0);
        wanted.map(|rows| rows.label.as_ref().unwrap_or(&self.terms.label).as_str()).collect()
    }

    /// Whether the rows of a key have a label already.
    pub fn has_label(&self, key: &AskKey, label: &str) -> bool {
        self.rows.get(key).is_some_and(|rows| rows.label.as_deref() == Some(label))
    }

    /// Replicas that were being added are not: they are asked for again with the next change.
    pub fn not_grown(&mut self, AskGrowth { key, wish, n }: &AskGrowth) {
        self.note_grown(key, wish, *n);
        self.not_grown.insert(key.clone());
        self.tidy(key);
    }

    fn note_grown(&mut self, key: &AskKey, wish: &Arc<AskWish>, n: u32) {
        let waiting = self.waiting.get_mut(key).into_iter().flatten();
        if let Some(of) = waiting.into_iter().find(|of| of.wish == *wish) {
            of.n_growing = of.n_growing.saturating_sub(n);
        }
    }

    /// Nothing is wanted any more. The ordinals that waited.
    pub fn clear(&mut self) -> Vec<u32> {
        self.rows.clear();
        self.n_rows = 0;
        self.version += 1;
        self.unfetched.clear();
        let mut waiting = Vec::new();
        for (key, wishes) in &mut self.waiting {
            for of in wishes {
                waiting.extend(std::mem::take(&mut of.ordinals));
            }
            self.unsettled.insert(key.clone());
        }
        let keys: Vec<AskKey> = self.waiting.keys().cloned().collect();
        keys.iter().for_each(|key| self.tidy(key));
        waiting.iter().for_each(|ordinal| drop(self.keys.remove(ordinal)));
        waiting
    }

    /// Replicas were added.
    pub fn opened(&mut self, growth: &AskGrowth, ordinals: std::ops::Range<u32>) {
        let AskGrowth { key, wish, n: _ } = growth;
        self.note_grown(key, wish, ordinals.end.saturating_sub(ordinals.start));
        let waiting = self.waiting.entry(key.clone()).or_default();
        let at = waiting.iter().position(|of| of.wish == *wish).unwrap_or_else(|| {
            waiting.push(WaitingWish { wish: Arc::clone(wish), ordinals: BTreeSet::new(), n_growing: 0 });
            waiting.len() - 1
        });
        if let Some(of) = waiting.get_mut(at) {
            of.ordinals.extend(ordinals.clone());
        }
        let shown = AskKey { group: growth.group(), ..key.clone() };
        self.keys.extend(ordinals.map(|ordinal| (ordinal, shown.clone())));
        // Its master may have wanted something else in the meantime.
        self.unsettled.insert(key.clone());
        self.tidy(key);
    }

    /// An ordinal was released while it waited, or ended: nothing of it is kept. Its key, if it was known.
    pub fn forget(&mut self, ordinal: u32) -> Option<AskKey> {
        let key = self.keys.remove(&ordinal)?;
        self.unfetched.remove(&ordinal);
        self.no_longer_waits(&linked(&key), ordinal);
        Some(key)
    }

    /// An ordinal has a place on a node of a rack: the rows ask for one less, as YARN counts them down. `None`: the ordinal did
    /// not wait.
    pub fn placed(&mut self, ordinal: u32, node: &str, rack: &str) -> Option<(AskKey, AskLocality)> {
        let shown = self.keys.get(&ordinal)?.clone();
        let key = linked(&shown);
        if !self.no_longer_waits(&key, ordinal) {
            return None;
        }
        let is_named = |name: &str| self.rows.get(&key).is_some_and(|rows| rows.places.contains_key(name));
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
        Some((shown, locality))
    }

    /// The master of an ordinal knows of its place.
    pub fn fetched(&mut self, ordinal: u32) {
        self.unfetched.remove(&ordinal);
    }

    /// An ordinal has lost its place before its master knew of it: the rows ask for one more again, as YARN puts requests back
    /// (`recoverResourceRequestForContainer`).
    pub fn lost(&mut self, ordinal: u32) {
        let (Some(shown), Some(counted)) =
            (self.keys.get(&ordinal).cloned(), self.unfetched.remove(&ordinal))
        else {
            return;
        };
        let key = linked(&shown);
        let had_rows = self.rows.contains_key(&key);
        for (name, relax_locality) in counted {
            let known = self.rows.get(&key).and_then(|rows| rows.places.get(&name)).copied();
            let PlaceRow { n, relax_locality } = known.unwrap_or(PlaceRow { n: 0, relax_locality });
            self.put(&key, &name, PlaceRow { n: n.saturating_add(1), relax_locality });
        }
        if let Some(rows) = self.rows.get_mut(&key).filter(|_| !had_rows) {
            rows.label = Some(shown.group.label);
        }
    }

    /// Returns whether the row lets a container go elsewhere; `None`: there is no such row.
    fn one_less(&mut self, key: &AskKey, name: &str) -> Option<bool> {
        let row = self.rows.get(key).and_then(|rows| rows.places.get(name)).copied()?;
        self.put(key, name, PlaceRow { n: row.n.saturating_sub(1), ..row });
        Some(row.relax_locality)
    }

    fn no_longer_waits(&mut self, key: &AskKey, ordinal: u32) -> bool {
        let waiting = self.waiting.get_mut(key).into_iter().flatten();
        let did_wait = waiting.into_iter().any(|of| of.ordinals.remove(&ordinal));
        if did_wait {
            self.tidy(key);
        }
        did_wait
    }

    /// The wishes with which containers of a key wait or are being added, and how many.
    #[cfg(test)]
    fn waiting_wishes(&self, key: &AskKey) -> Vec<(&AskWish, u32)> {
        let waiting = self.waiting.get(key).into_iter().flatten();
        let count = |of: &WaitingWish| u32::try_from(of.ordinals.len()).unwrap_or(u32::MAX) + of.n_growing;
        waiting.map(|of| (&*of.wish, count(of))).collect()
    }
}

/// The key of the rows that an ordinal was opened for.
fn linked(key: &AskKey) -> AskKey {
    let AskGroup { priority, execution, ref capability, label: _ } = key.group;
    let group = AskGroup { priority, execution, capability: capability.clone(), label: String::new() };
    AskKey { group, allocation_request_id: key.allocation_request_id }
}

#[cfg(test)]
mod tests;
