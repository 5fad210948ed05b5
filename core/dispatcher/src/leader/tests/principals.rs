//! Who has submitted a unit: written once, and kept whatever is changed of the unit and whoever changes it.

use godel_testkit::BuildUnit as _;

use super::*;

const ADMIN: &str = "person/admin";
const YARN: &str = "yarn/y1";

fn principal(rig: &Rig) -> String {
    let view = rig.leader.core().unit(UnitId(1)).unwrap();
    view.record.status.principal.clone()
}

fn update(spec: &UnitSpec, command: &str) -> UnitChangeKind {
    let mut spec = spec.clone();
    spec.task_groups[0].template.run.command = vec![command.to_owned()];
    UnitChangeKind::Update(Box::new(spec))
}

#[test]
fn a_unit_says_who_submitted_it_whatever_is_changed_of_it() {
    let mut rig = Rig::new();
    let first = spec("a", 1, "");
    rig.submit_as(1, first.clone(), ADMIN);
    // The same uid again, on its way and later, is the first one's unit.
    rig.submit_as(2, first.clone(), YARN);
    rig.settle();
    assert_eq!(principal(&rig), ADMIN);
    rig.submit_as(3, first.clone(), "person/ann");
    assert_eq!(rig.sent.submitted[2], (3, UnitId(1), true));
    for (caller, kind) in [
        (4, update(&first, "b")),
        (5, UnitChangeKind::Scale { group: "main".to_owned(), replicas: 2 }),
        (6, UnitChangeKind::Stop { ordinals: vec![1] }),
        (7, UnitChangeKind::Suspend),
        (8, UnitChangeKind::Resume),
        (9, UnitChangeKind::Cancel),
        (10, UnitChangeKind::Retry(RetryScope::Failed)),
    ] {
        rig.change_as(caller, "a", kind, "person/ann");
        rig.settle();
        assert!(matches!(rig.sent.answers.last(), Some((who, Ok(_))) if *who == caller), "{caller}");
        assert_eq!(principal(&rig), ADMIN, "{caller}");
    }
}

#[test]
fn a_submission_that_was_kept_back_has_its_principal() {
    let mut rig = Rig::new();
    rig.edit(1, vec![put("q")]);
    rig.settle();
    rig.edit(2, vec![RecordChange::Delete("q".to_owned())]);
    rig.step();
    rig.submit_as(3, spec("a", 1, "q"), YARN);
    rig.refuse(TxnRefusalReason::StoreFull);
    rig.settle();
    assert_eq!((rig.sent.submitted.len(), principal(&rig).as_str()), (1, YARN));
}

#[test]
fn a_service_changes_what_units_of_its_role_run_and_a_person_what_all_run() {
    for (submitted_by, by, may) in [
        (ADMIN, ADMIN, true),
        (YARN, ADMIN, true),
        (ADMIN, YARN, false),
        (ADMIN, "", true),
        ("", YARN, false),
        (YARN, "yarn/y2", true),
        ("person/yarn", YARN, false),
    ] {
        let mut rig = Rig::new();
        let first = spec("a", 1, "");
        rig.submit_as(1, first.clone(), submitted_by);
        rig.settle();
        rig.change_as(2, "a", update(&first, "b"), by);
        rig.settle();
        match rig.sent.answers.last() {
            Some((2, Ok(_))) => assert!(may, "{by} changes a unit of {submitted_by}"),
            Some((2, Err(ChangeFailure::NotOwn(unit, whose)))) => {
                assert!(!may && unit == "default/a" && whose == submitted_by, "{by}: {submitted_by}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(principal(&rig), submitted_by);
    }
    // An application that was submitted in plain text goes on.
    let application = godel_testkit::unit("a").class(godel_domain::unit::WorkloadClass::Yarn);
    assert!(application.may_be_rewritten_by(YARN) && !application.may_be_rewritten_by("scheduler/s1"));
}

#[test]
fn who_is_bound_to_a_namespace_changes_no_unit_of_another_one_by_its_uid() {
    let mut rig = Rig::new();
    let first = UnitSpec { namespace: "team-b".to_owned(), ..spec("a", 1, "") };
    rig.submit_as(1, first.clone(), ADMIN);
    rig.settle();
    let change = |namespace: &str, name: &str, caller| UnitChange {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        expected_revision: Revision(0),
        kind: UnitChangeKind::Cancel,
        by: UnitCaller::new("person/ann"),
        is_bound: true,
        caller,
    };
    for (caller, namespace, name, may) in [
        (2, "team-a", first.uid.as_str(), false),
        (3, "team-a", "a", false),
        (4, "team-b", first.uid.as_str(), true),
    ] {
        rig.leader.change(change(namespace, name, caller), NOW, &mut rig.sent);
        rig.settle();
        match rig.sent.answers.last() {
            Some((who, Ok(_))) => assert!(may && *who == caller, "{namespace}/{name}"),
            Some((who, Err(ChangeFailure::Unresolved { .. }))) => {
                assert!(!may && *who == caller, "{namespace}/{name}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_queue_takes_units_of_those_whom_its_list_names_when_they_come_and_when_they_move() {
    let by = |names: &[&str]| UnitCaller {
        principal: "person/ann".into(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let mut rig = Rig::new();
    let closed = QueueSpec { submit_owners: vec!["etl".to_owned()], ..QueueSpec::new("q") };
    rig.edit(1, vec![RecordChange::Put(Arc::new(closed))]);
    rig.settle();
    for (submitter, names, owner, is_taken) in
        [(2, &["ann", "etl"][..], "ann", true), (3, &["ann"], "ann", false), (4, &[], "etl", true)]
    {
        let spec =
            UnitSpec { owner: owner.to_owned(), ..spec(&format!("u{submitter}"), submitter.into(), "q") };
        let submission = UnitSubmission { spec, by: by(names), submitter };
        rig.leader.submit(submission, NOW, &mut rig.sent);
        rig.settle();
        assert_eq!(rig.sent.submitted.iter().any(|(who, ..)| *who == submitter), is_taken, "{submitter}");
        let is_refused = rig.sent.refused.iter().any(|(who, why)| {
            *who == submitter && matches!(why, NotSubmitted::Unwelcome(wrong) if wrong.len() == 1)
        });
        assert_eq!(is_refused, !is_taken, "{submitter}");
    }
    let free = UnitSpec { owner: "ann".to_owned(), ..spec("free", 9, "") };
    rig.submit_as(5, free.clone(), "person/ann");
    rig.settle();
    for (caller, names, is_taken) in [(6, &["ann"][..], false), (7, &["ann", "etl"], true)] {
        let moved = UnitSpec { queue: "q".to_owned(), ..free.clone() };
        let change = UnitChange {
            namespace: String::new(),
            name: "free".to_owned(),
            expected_revision: Revision(0),
            kind: UnitChangeKind::Update(Box::new(moved)),
            by: by(names),
            is_bound: false,
            caller,
        };
        rig.leader.change(change, NOW, &mut rig.sent);
        rig.settle();
        match rig.sent.answers.last() {
            Some((who, Ok(_))) => assert!(is_taken && *who == caller, "{names:?}"),
            Some((who, Err(ChangeFailure::Unwelcome(_)))) => {
                assert!(!is_taken && *who == caller, "{names:?}")
            }
            other => panic!("{other:?}"),
        }
    }
}
