//! I2: everything that was acknowledged is there.
//!
//! Without a submitter's ledger the store's own history says what was acknowledged: every unit that it shows submitted is
//! there, or was deleted. A store that has lost the end of its history is found with a ledger only.

use std::collections::BTreeMap;

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    change::Change,
    records::{Record, RecordKey, RecordKind},
};

use super::{Acknowledged, Evidence, History, Start, verdict::Findings};

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    let submitted = Submitted::new(&evidence.history);
    check_submitted(evidence, &submitted, &mut findings);
    let of_history = format!(
        "{} units submitted in the history are there, {} more ended and were deleted",
        submitted.kept.len(),
        submitted.retired.len(),
    );
    let since = evidence.history.since();
    let of_ledger = match &evidence.ledger {
        None => "no ledger of a submitter to compare with (--ledger FILE)".to_owned(),
        Some(ledger) => check_ledger(evidence, ledger, &submitted, &mut findings),
    };
    findings.checked(format!("{of_ledger}; {of_history}{since}"));
    findings
}

/// Every unit that the history shows and does not show deleted is listed.
fn check_submitted(evidence: &Evidence, submitted: &Submitted<'_>, findings: &mut Findings) {
    for (id, (uid, at)) in &submitted.kept {
        if evidence.listed.units.get(id).is_none_or(|unit| unit.record.is_none()) {
            findings.add(|| format!("unit id {id} ({uid}): submitted at revision {at}, not there"));
        }
    }
}

/// Compares a ledger; what was looked at.
fn check_ledger(
    evidence: &Evidence,
    ledger: &[Acknowledged],
    submitted: &Submitted<'_>,
    findings: &mut Findings,
) -> String {
    let present: BTreeMap<&str, (&str, Revision)> = evidence
        .listed
        .units
        .values()
        .filter_map(|unit| unit.record.as_ref())
        .map(|record| (record.value.spec.uid.as_str(), (record.value.spec.name.as_str(), record.created)))
        .collect();
    let has_unreadable = evidence
        .unreadable
        .iter()
        .any(|one| matches!(one.key.kind(), None | Some(RecordKind::Unit | RecordKind::Rows)));
    let floor = evidence.history.floor;
    let (mut n_retired, mut n_before, mut n_unread) = (0, 0, 0);
    for entry in ledger {
        let Acknowledged { uid, name, revision } = entry;
        match present.get(uid.as_str()) {
            None if submitted.retired.contains_key(uid.as_str()) => n_retired += 1,
            None if has_unreadable => n_unread += 1,
            // Whether it was deleted, in order, before the history begins nothing says any more.
            None if *revision < floor && !submitted.started_with(uid) => n_before += 1,
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
    if n_before > 0 {
        findings.not_judged(format!(
            "{n_before} acknowledged submissions are not there, and the history begins at revision {floor}, after them: \
             they may have ended and been deleted before"
        ));
    }
    if n_unread > 0 {
        findings.not_judged(format!(
            "{n_unread} acknowledged submissions are not found, and may be what cannot be read"
        ));
    }
    format!(
        "{} acknowledged submissions are there ({n_retired} of them ended and were deleted)",
        ledger.len() - n_before - n_unread
    )
}

/// Units that a history shows.
#[derive(Default)]
struct Submitted<'a> {
    /// By id: uid, and revision at which it was first seen.
    kept: BTreeMap<UnitId, (&'a str, Revision)>,
    /// By uid, of those deleted: when.
    retired: BTreeMap<&'a str, Revision>,
    /// Uids of those that were there when the history began.
    at_start: std::collections::BTreeSet<&'a str>,
}

impl<'a> Submitted<'a> {
    fn new(history: &'a History) -> Self {
        let mut submitted = Self::default();
        if let Start::Kept(world) = &history.start {
            for (id, record) in world.units.iter().filter_map(|(id, unit)| Some((*id, unit.record.as_ref()?)))
            {
                submitted.kept.insert(id, (&record.value.spec.uid, record.created));
                submitted.at_start.insert(&record.value.spec.uid);
            }
        }
        for commit in &history.commits {
            for change in &commit.changes {
                match change {
                    Change::Put(Record::Unit(record)) => {
                        submitted.kept.entry(record.id).or_insert((&record.spec.uid, commit.revision));
                    }
                    Change::Gone(RecordKey::Unit(unit)) => {
                        if let Some((uid, _)) = submitted.kept.remove(unit) {
                            submitted.retired.insert(uid, commit.revision);
                        }
                    }
                    _ => {}
                }
            }
        }
        submitted
    }

    fn started_with(&self, uid: &str) -> bool {
        self.at_start.contains(uid)
    }
}
