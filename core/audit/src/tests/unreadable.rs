//! What cannot be read is left out, named, and of no consequence for what is judged.

use super::*;
use godel_domain::records::{Record, RecordKey};

fn of(key: RecordKey) -> UnreadableRecord {
    UnreadableRecord { key, field: "record.x".to_owned(), why: "is bad".to_owned(), revision: None }
}

/// As a reader would have it that cannot read what these say.
fn unread(story: &Story, unreadable: Vec<UnreadableRecord>, is_read: impl Fn(&Change) -> bool) -> Evidence {
    let mut evidence = Story(
        story
            .0
            .iter()
            .map(|changes| changes.iter().filter(|change| is_read(change)).cloned().collect())
            .collect(),
    )
    .evidence();
    evidence.agents = story.evidence().agents;
    evidence.unreadable = unreadable;
    evidence
}

fn concerned(evidence: &Evidence) -> Vec<Invariant> {
    let reports = check_all(evidence);
    for report in &reports {
        assert!(!report.has_failed(), "{report}");
    }
    reports.iter().filter(|report| !report.holds()).map(|report| report.invariant).collect()
}

#[test]
fn missing_records_make_clauses_not_judged_instead_of_failed() {
    use Invariant::{I1, I3, I4, I5, I6, I7, I8, I9, I10};
    let (story, _) = Story::healthy();
    let node_1 = unread(
        &story,
        vec![of(RecordKey::NodeReport(NodeId(1)))],
        |change| !matches!(change, Change::Put(Record::NodeReport(report)) if report.id == NodeId(1)),
    );
    assert_eq!(concerned(&node_1), [I1, I6, I7, I8, I9, I10]);
    let unit_1 = unread(&story, vec![of(RecordKey::Unit(UnitId(1)))], |change| {
        !matches!(change, Change::Put(Record::Unit(_)))
    });
    assert_eq!(concerned(&unit_1), Invariant::ALL);
    let rows_1 =
        unread(&story, vec![of(RecordKey::Rows(UnitId(1)))], |change| !matches!(change, Change::Rows(..)));
    assert_eq!(concerned(&rows_1), [I1, I3, I4, I5, I6, I7, I8, I9, I10]);
    let lease = unread(&story, vec![of(RecordKey::Lease("binder".to_owned()))], |change| {
        !matches!(change, Change::Put(Record::Lease(_)))
    });
    assert_eq!(concerned(&lease), [I7, I9]);
    let unknown = unread(&story, vec![of(RecordKey::Unknown)], |change| {
        !matches!(change, Change::Put(Record::Unit(_) | Record::NodeReport(_)))
    });
    assert_eq!(concerned(&unknown), Invariant::ALL);
}

#[test]
fn what_can_be_read_is_judged_all_the_same() {
    let (story, _) = Story::healthy();
    let big = spec(2, 1, 1, demand(9000, None));
    let story = story.then(vec![unit(&big)]).then(vec![bind(&big, &[(0, 2, 0)], 0)]);
    let evidence = unread(
        &story,
        vec![of(RecordKey::NodeReport(NodeId(1)))],
        |change| !matches!(change, Change::Put(Record::NodeReport(report)) if report.id == NodeId(1)),
    );
    fails(&evidence, Invariant::I1, "node n2: guaranteed cpu 11000 of 4000");
    let report = &check_all(&evidence)[0];
    assert_eq!(report.not_judged, ["what cannot be read is left out: node report 1"]);
}

#[test]
fn a_missing_acknowledged_unit_may_be_an_unreadable_one() {
    let (story, _) = Story::healthy();
    let mut evidence = unread(&story, vec![of(RecordKey::Unit(UnitId(1)))], |change| {
        !matches!(change, Change::Put(Record::Unit(_)))
    });
    let (uid, name) = ("uid-1".to_owned(), "unit-1".to_owned());
    evidence.ledger = Some(vec![Acknowledged { uid, name, revision: Revision(4) }]);
    let report = &check_all(&evidence)[1];
    assert!(!report.has_failed(), "{report}");
    assert_eq!(
        report.not_judged[0],
        "1 acknowledged submissions are not found, and may be what cannot be read"
    );
}
