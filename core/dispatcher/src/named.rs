//! The unit that a name stands for: whole names and whole uids for whoever changes something, unique prefixes of them
//! for whoever reads.

use godel_base::ids::UnitId;
use godel_domain::{names, sight::Sight};

use super::units::Units;

/// Names listed when a name stands for none, or a prefix for several.
const MATCHES_SHOWN: usize = 5;

/// Why a name stands for no unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No unit has it; names of units of the namespace that begin with it, or whose uids do.
    NotFound(Vec<String>),
    /// A prefix of several, or the name of one and the uid of another; the first of them, as `namespace/name`.
    Ambiguous(Vec<String>),
}

impl Units {
    /// The unit that `text` names: its whole name in `namespace`, or its whole uid, which is one of all namespaces.
    /// Whatever changes a unit takes nothing less.
    ///
    /// # Errors
    /// There is none, or `text` is the name of one unit and the uid of another.
    pub fn find(&self, namespace: &str, text: &str) -> Result<UnitId, Unresolved> {
        self.whole(&Sight::All, namespace, text)?.ok_or_else(|| {
            let spec = |unit: &UnitId| self.get(*unit).map(|entry| entry.record.spec.name.clone());
            Unresolved::NotFound(self.begin_with(namespace, text).iter().filter_map(spec).collect())
        })
    }

    /// The unit that `text` names as [`Self::find`] says, if it is in `namespace`: for who may change units of that namespace only. Of units elsewhere nothing
    /// is told.
    ///
    /// # Errors
    /// There is none there.
    pub fn find_within(&self, namespace: &str, text: &str) -> Result<UnitId, Unresolved> {
        let is_here = |unit: UnitId| {
            self.get(unit).is_some_and(|entry| entry.record.spec.namespace == or_default(namespace))
        };
        match self.find(namespace, text) {
            Ok(unit) if is_here(unit) => Ok(unit),
            Ok(_) | Err(Unresolved::Ambiguous(_)) => Err(Unresolved::NotFound(Vec::new())),
            Err(none) => Err(none),
        }
    }

    /// The unit that `text` stands for when it is only looked at: as [`Self::find`] says, or a prefix that only one
    /// unit of `namespace` has, of its name or of its uid. A unit that is not in sight is answered as one that is not there, and prefixes stand for units of
    /// namespaces that are seen as a whole.
    ///
    /// # Errors
    /// None or several.
    pub fn resolve(&self, sight: &Sight, namespace: &str, text: &str) -> Result<UnitId, Unresolved> {
        if !sight.sees(namespace) {
            // Single units of it may be seen, by whole names and uids.
            let here = self.whole(&sight.clone().within(or_default(namespace)), namespace, text)?;
            return here.ok_or_else(|| Unresolved::NotFound(Vec::new()));
        }
        if let Some(unit) = self.whole(sight, namespace, text)? {
            return Ok(unit);
        }
        match self.begin_with(namespace, text).as_slice() {
            [] => Err(Unresolved::NotFound(Vec::new())),
            [unit] => Ok(*unit),
            several => Err(Unresolved::Ambiguous(several.iter().map(|unit| self.full_name(*unit)).collect())),
        }
    }

    /// The unit in sight of this whole name or uid.
    fn whole(&self, sight: &Sight, namespace: &str, text: &str) -> Result<Option<UnitId>, Unresolved> {
        let known = |unit: &UnitId| {
            let spec = self.get(*unit).map(|entry| &entry.record.spec);
            spec.is_some_and(|spec| sight.sees_unit_of(&spec.namespace, &spec.owner))
        };
        let by_name = self.directory.by_name(or_default(namespace), text).filter(known);
        let uid = names::uuid(&text.to_ascii_lowercase());
        let by_uid = uid.and_then(|uid| self.directory.by_uid(uid)).filter(known);
        match (by_name, by_uid) {
            (Some(one), Some(other)) if one != other => {
                Err(Unresolved::Ambiguous([one, other].map(|unit| self.full_name(unit)).into()))
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    /// The first units of a namespace whose names or uids begin with `text`.
    fn begin_with(&self, namespace: &str, text: &str) -> Vec<UnitId> {
        let (namespace, text) = (or_default(namespace), text.to_ascii_lowercase());
        let mut found: Vec<UnitId> = Vec::new();
        if text.is_empty() {
            return found;
        }
        let is_here =
            |unit: &UnitId| self.get(*unit).is_some_and(|entry| entry.record.spec.namespace == namespace);
        let by_name = self.directory.by_name_prefix(namespace, &text);
        for unit in by_name.chain(self.directory.by_uid_prefix(&text)).filter(is_here) {
            if !found.contains(&unit) {
                found.push(unit);
            }
            if found.len() >= MATCHES_SHOWN {
                break;
            }
        }
        found
    }

    fn full_name(&self, unit: UnitId) -> String {
        self.name(unit).unwrap_or_default()
    }
}

fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}
