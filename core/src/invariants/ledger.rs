//! I2: everything that was acknowledged is there.

use std::collections::BTreeMap;

use super::{Acknowledged, Findings, History, Invariant, Report, world::World};
use crate::{
    change::Change,
    ids::{Revision, UnitId},
};

pub(super) fn check(world: &World, history: &History, ledger: Option<&[Acknowledged]>) -> Report {
    let mut findings = Findings::default();
    let Some(ledger) = ledger else {
        findings.checked(format!(
            "{} units present; no ledger of acknowledgements was given (--ledger FILE)",
            world.units.len()
        ));
        return findings.report(Invariant::I2);
    };
    let present: BTreeMap<&str, (&str, Revision)> = world
        .units
        .values()
        .filter_map(|unit| unit.spec.as_ref())
        .map(|spec| (spec.value.uid.as_str(), (spec.value.name.as_str(), spec.created)))
        .collect();
    let retired = retired(history);
    let mut n_retired = 0;
    for entry in ledger {
        let Acknowledged { uid, name, revision } = entry;
        match present.get(uid.as_str()) {
            None if retired.contains_key(uid.as_str()) => n_retired += 1,
            None => findings
                .add(|| format!("unit {name} ({uid}): acknowledged at revision {revision}, not there")),
            Some((is, _)) if *is != name && !name.ends_with(&format!("/{is}")) => {
                findings.add(|| format!("uid {uid}: acknowledged as {name}, is {is}"));
            }
            Some((_, created)) if created > revision => findings.add(|| {
                format!("unit {name} ({uid}): acknowledged at revision {revision}, but created at {created}")
            }),
            Some(_) => {}
        }
    }
    findings.checked(format!(
        "{} acknowledged submissions are there ({n_retired} of them ended and retired)",
        ledger.len()
    ));
    findings.report(Invariant::I2)
}

/// Uids of units that the history shows both put and, later, deleted.
fn retired(history: &History) -> BTreeMap<&str, Revision> {
    let mut uids: BTreeMap<UnitId, &str> = BTreeMap::new();
    let mut retired = BTreeMap::new();
    for commit in &history.commits {
        for change in &commit.changes {
            match change {
                Change::UnitSpec(spec) => {
                    uids.insert(spec.id, &spec.uid);
                }
                Change::UnitDeleted(unit) => {
                    if let Some(uid) = uids.remove(unit) {
                        retired.insert(uid, commit.revision);
                    }
                }
                _ => {}
            }
        }
    }
    retired
}
