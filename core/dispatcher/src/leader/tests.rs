//! Submissions, changes of units and of named records: one at a time where they could spoil each other, answered when durable.

use std::sync::Arc;

use godel_domain::{
    queue_spec::QueueSpec,
    record_change::RecordChange,
    records::Record,
    running_units::Bind,
    submission::{GroupChanges, GroupSubmission, Submission},
    txn::{RecordRef, TxnRefusal, TxnRefusalReason},
    unit::{UnitRecord, UnitSpec},
    unit_caller::UnitCaller,
};
use godel_rules::admission::{
    admit,
    retry::{RetryRefusal, RetryScope},
};

use super::*;
use crate::{Config, record_changes::Edit};

mod principals;

const NOW: Millis = Millis(1_000);

#[derive(Default)]
struct Txn {
    changes: Vec<Change>,
    required: Vec<String>,
}

impl TxnBuilder for Txn {
    fn push(&mut self, change: &Change) -> usize {
        self.changes.push(change.clone());
        1
    }

    fn require(&mut self, record: RecordRef<'_>, revision: Revision) -> usize {
        self.required.push(format!("{record:?} {revision}"));
        0
    }
}

/// What the leader said and wrote. Callers are numbers.
#[derive(Default)]
struct Sent {
    txns: VecDeque<(Txn, TxnTicket<Self>)>,
    submitted: Vec<(u32, UnitId, bool)>,
    refused: Vec<(u32, NotSubmitted)>,
    answers: Vec<(u32, Result<Option<Revision>, ChangeFailure>)>,
    edited: Vec<(u32, Result<Revision, EditFailure>)>,
    is_full: bool,
}

impl DispatcherOutbox for Sent {
    type Submitter = u32;
    type Caller = u32;
    type Editor = u32;
    type Record = ();
    type Txn = Txn;

    fn encode(&mut self, _record: &UnitRecord) -> ((), usize) {
        ((), 1)
    }

    fn begin(&mut self) -> Txn {
        Txn::default()
    }

    fn submit(&mut self, txn: Txn, ticket: TxnTicket<Self>) -> Result<(), (TxnTicket<Self>, NotSent)> {
        if self.is_full {
            return Err((ticket, NotSent::Full));
        }
        self.txns.push_back((txn, ticket));
        Ok(())
    }

    fn submit_units(&mut self, batch: UnitBatch<Self>) -> Result<(), (UnitBatch<Self>, NotSent)> {
        if self.is_full {
            return Err((batch, NotSent::Full));
        }
        let mut txn = Txn::default();
        for unit in &batch.units {
            txn.push(&Change::Put(Record::Unit(Arc::clone(&unit.record))));
        }
        self.txns.push_back((txn, TxnTicket::Units(batch)));
        Ok(())
    }

    fn submitted(
        &mut self,
        _core: &Dispatcher,
        submitter: u32,
        _spec: &UnitSpec,
        unit: UnitId,
        _revision: Revision,
        is_duplicate: bool,
    ) {
        self.submitted.push((submitter, unit, is_duplicate));
    }

    fn not_submitted(&mut self, submitter: u32, _spec: UnitSpec, why: NotSubmitted) {
        self.refused.push((submitter, why));
    }

    fn answer(&mut self, caller: u32, answer: Result<Option<Revision>, ChangeFailure>) {
        self.answers.push((caller, answer));
    }

    fn edited(&mut self, editor: u32, answer: Result<Edited, EditFailure>) {
        self.edited.push((editor, answer.map(|edited| edited.revision)));
    }

    fn send(&mut self, _messages: Vec<Outgoing>) -> Vec<SessionId> {
        Vec::new()
    }

    fn new_uid(&mut self) -> String {
        "new".to_owned()
    }
}

struct Rig {
    leader: DispatcherLeader<Sent>,
    sent: Sent,
    revision: u64,
}

fn spec(name: &str, uid: u64, queue: &str) -> UnitSpec {
    let group =
        GroupSubmission { replicas: 1, requests: vec![("cpu".into(), 100)], ..GroupSubmission::default() };
    let submission = Submission {
        name: name.to_owned(),
        uid: format!("0190163d-8694-739b-aea5-{uid:012x}"),
        queue: queue.to_owned(),
        task_groups: vec![group],
        ..Submission::default()
    };
    admit(submission).unwrap().spec
}

impl Rig {
    /// Has read an empty store, and leads.
    fn new() -> Self {
        let config = DispatcherLeaderConfig {
            units_max: 5,
            txn_units_max: 2,
            txn_bytes_max: 100,
            txns_in_flight_max: 1,
            edit_bytes_max: 4,
            sub_cluster_key: String::new(),
        };
        let leader = DispatcherLeader::new(Dispatcher::new(Config::default()), UnitId(0), config);
        let mut rig = Self { leader, sent: Sent::default(), revision: 1 };
        rig.leader.reset();
        rig.leader.lead(Revision(1));
        rig.leader.on_synced(Revision(1), NOW, &mut rig.sent);
        rig
    }

    fn submit(&mut self, submitter: u32, spec: UnitSpec) {
        self.submit_as(submitter, spec, "");
    }

    fn submit_as(&mut self, submitter: u32, spec: UnitSpec, principal: &str) {
        let submission = UnitSubmission { spec, by: UnitCaller::new(principal), submitter };
        self.leader.submit(submission, NOW, &mut self.sent);
    }

    fn step(&mut self) {
        self.leader.step(NOW, 1_000, &mut self.sent);
    }

    /// The next transaction is durable. Returns what it changed; the watch has yet to show it.
    fn commit(&mut self) -> Vec<Change> {
        let (txn, ticket) = self.sent.txns.pop_front().expect("a transaction is under way");
        self.revision += 1;
        let receipt = Receipt { revision: Revision(self.revision), time_ms: 1 };
        self.leader.on_answer(ticket, Ok(receipt), NOW, &mut self.sent);
        txn.changes
    }

    fn show(&mut self, changes: Vec<Change>) {
        let commit = Commit { revision: Revision(self.revision), time_ms: 1, changes };
        self.leader.apply(&commit, NOW, &mut self.sent);
    }

    /// Commits everything and shows it, until nothing more comes.
    fn settle(&mut self) {
        self.step();
        while !self.sent.txns.is_empty() {
            let changes = self.commit();
            self.show(changes);
            self.step();
        }
    }

    fn refuse(&mut self, reason: TxnRefusalReason) {
        let (_, ticket) = self.sent.txns.pop_front().expect("a transaction is under way");
        let refusal = TxnRefusal { reason, index: 0, revision: Revision(0), message: String::new() };
        let failure = TxnFailure::Refused(refusal);
        self.leader.on_answer(ticket, Err(failure), NOW, &mut self.sent);
    }

    fn change(&mut self, caller: u32, name: &str, kind: UnitChangeKind) {
        self.change_as(caller, name, kind, "");
    }

    fn change_as(&mut self, caller: u32, name: &str, kind: UnitChangeKind, principal: &str) {
        let (namespace, name, by) = (String::new(), name.to_owned(), UnitCaller::new(principal));
        let expected_revision = Revision(0);
        let change = UnitChange { namespace, name, expected_revision, kind, by, is_bound: false, caller };
        self.leader.change(change, NOW, &mut self.sent);
    }

    fn edit(&mut self, editor: u32, queues: Vec<RecordChange<Arc<QueueSpec>>>) {
        let edit = Edit { queues, ..Edit::default() };
        self.leader.edit(EditRequest { edit, is_unreadable: false, editor }, &mut self.sent);
    }
}

fn put(path: &str) -> RecordChange<Arc<QueueSpec>> {
    RecordChange::Put(Arc::new(QueueSpec::new(path)))
}

#[test]
fn units_that_gather_go_together_and_are_answered_when_durable() {
    let mut rig = Rig::new();
    for (submitter, name) in [(1, "a"), (2, "b"), (3, "c")] {
        rig.submit(submitter, spec(name, submitter.into(), ""));
    }
    rig.step();
    assert_eq!((rig.sent.txns.len(), rig.sent.txns[0].0.changes.len()), (1, 2), "one transaction at a time");
    assert!(rig.sent.submitted.is_empty());
    rig.commit();
    assert_eq!(rig.sent.submitted, [(1, UnitId(1), false), (2, UnitId(2), false)]);
    rig.settle();
    assert_eq!(rig.sent.submitted[2..], [(3, UnitId(3), false)]);
}

#[test]
fn a_uid_again_hears_what_the_first_one_hears() {
    let mut rig = Rig::new();
    rig.submit(1, spec("a", 1, ""));
    rig.submit(2, spec("a", 1, ""));
    rig.submit(3, spec("other", 1, ""));
    rig.submit(4, spec("a", 2, ""));
    assert_eq!(rig.sent.refused, [(4, NotSubmitted::NameTaken(NameHolder::Coming))]);
    rig.settle();
    assert_eq!(rig.sent.submitted, [(1, UnitId(1), false), (2, UnitId(1), true)]);
    assert!(matches!(&rig.sent.refused[1], (3, NotSubmitted::UidTaken { .. })));
    rig.submit(5, spec("a", 1, ""));
    assert_eq!(rig.sent.submitted[2..], [(5, UnitId(1), true)], "also once it is durable");
}

#[test]
fn a_refused_transaction_frees_names_and_answers_all_who_wait() {
    let mut rig = Rig::new();
    rig.submit(1, spec("a", 1, ""));
    rig.submit(2, spec("a", 1, ""));
    rig.step();
    rig.refuse(TxnRefusalReason::StoreFull);
    let who: Vec<u32> = rig.sent.refused.iter().map(|(submitter, _)| *submitter).collect();
    assert_eq!(who, [1, 2]);
    rig.submit(3, spec("a", 3, ""));
    rig.settle();
    assert_eq!(rig.sent.submitted, [(3, UnitId(2), false)]);
}

#[test]
fn a_full_pipeline_keeps_units_in_their_order() {
    let mut rig = Rig::new();
    rig.sent.is_full = true;
    rig.submit(1, spec("a", 1, ""));
    rig.step();
    rig.submit(2, spec("b", 2, ""));
    rig.sent.is_full = false;
    rig.settle();
    assert_eq!(rig.sent.submitted, [(1, UnitId(1), false), (2, UnitId(2), false)]);
}

#[test]
fn units_beyond_the_maximum_are_refused() {
    let mut rig = Rig::new();
    for id in 1..=6 {
        rig.submit(id, spec(&format!("u{id}"), id.into(), ""));
        rig.settle();
    }
    assert_eq!(rig.sent.refused, [(6, NotSubmitted::TooManyUnits)]);
}

#[test]
fn changes_of_a_unit_go_one_after_the_other() {
    let mut rig = Rig::new();
    rig.submit(1, spec("a", 1, ""));
    rig.settle();
    rig.change(7, "a", UnitChangeKind::Suspend);
    rig.change(8, "a", UnitChangeKind::Cancel);
    rig.change(9, "none", UnitChangeKind::Cancel);
    assert_eq!(rig.sent.txns.len(), 1);
    assert_eq!(rig.sent.txns[0].0.required, ["Unit(UnitId(1)) 2"]);
    assert!(matches!(&rig.sent.answers[..], [(9, Err(ChangeFailure::Unresolved { .. }))]));
    rig.settle();
    assert_eq!(rig.sent.answers[1], (7, Ok(Some(Revision(3)))));
    assert_eq!(rig.sent.answers[2], (8, Ok(Some(Revision(4)))));
    assert!(rig.leader.core().unit(UnitId(1)).is_some_and(|view| view.record.status.cancelled));
}

#[test]
fn a_change_that_lost_a_race_says_so() {
    let mut rig = Rig::new();
    rig.submit(1, spec("a", 1, ""));
    rig.settle();
    rig.change(7, "a", UnitChangeKind::Suspend);
    rig.refuse(TxnRefusalReason::Precondition);
    assert!(matches!(&rig.sent.answers[..], [(7, Err(ChangeFailure::Txn(TxnFailure::Refused(_))))]));
    rig.change(8, "a", UnitChangeKind::Suspend);
    assert_eq!(rig.sent.txns.len(), 1, "the unit is free for the next change");
}

#[test]
fn a_queue_goes_only_between_submissions_that_name_it() {
    let mut rig = Rig::new();
    rig.edit(1, vec![put("q")]);
    rig.settle();
    assert_eq!(rig.sent.edited, [(1, Ok(Revision(2)))]);
    rig.submit(5, spec("a", 1, "q"));
    rig.step();
    // The unit is on its way: the queue stays until it is durable, and then it has a unit.
    rig.edit(2, vec![RecordChange::Delete("q".to_owned())]);
    rig.step();
    assert_eq!(rig.sent.txns.len(), 1);
    rig.submit(6, spec("b", 2, "q"));
    let changes = rig.commit();
    rig.show(changes);
    rig.step();
    assert!(matches!(&rig.sent.edited[1..], [(2, Err(EditFailure::Refused(_)))]));
    rig.settle();
    assert_eq!(rig.sent.submitted, [(5, UnitId(1), false), (6, UnitId(2), false)]);
}

#[test]
fn a_change_of_queues_is_answered_once_the_watch_shows_it() {
    let mut rig = Rig::new();
    rig.edit(1, vec![put("q")]);
    rig.step();
    let changes = rig.commit();
    assert!(matches!(&changes[..], [Change::Put(Record::Queue(spec))] if spec.uid == "new"));
    rig.step();
    assert!(rig.sent.edited.is_empty());
    rig.show(changes);
    rig.step();
    assert_eq!(rig.sent.edited, [(1, Ok(Revision(2)))]);
    let many = ["a", "b", "c", "d", "e"].map(put);
    rig.edit(2, many.into());
    rig.step();
    assert_eq!(rig.sent.edited[1..], [(2, Err(EditFailure::TooLarge(5)))]);
}

#[test]
fn an_answered_pause_is_in_force_and_a_repeat_changes_nothing() {
    let mut rig = Rig::new();
    let pause = |rig: &mut Rig, caller, paused| {
        rig.leader.set_pause(Scope::All, paused, String::new(), caller, 5, &mut rig.sent);
    };
    pause(&mut rig, 1, true);
    assert!(rig.leader.core().pauses().get(&Scope::All).is_none());
    rig.commit();
    assert!(rig.leader.core().pauses().get(&Scope::All).is_some_and(|pause| pause.since_ms == 5));
    pause(&mut rig, 2, true);
    assert_eq!(rig.sent.answers, [(1, Ok(Some(Revision(2)))), (2, Ok(None))]);
    pause(&mut rig, 3, false);
    rig.settle();
    assert!(rig.leader.core().pauses().get(&Scope::All).is_none());
    let unknown = Scope::Queue("none".to_owned());
    rig.leader.set_pause(unknown, true, String::new(), 4, 5, &mut rig.sent);
    assert_eq!(rig.sent.answers[3], (4, Err(ChangeFailure::UnknownQueue("none".to_owned()))));
}

#[test]
fn a_new_leader_acts_on_nothing_before_its_grant_is_read() {
    let mut rig = Rig::new();
    rig.leader.reset();
    rig.leader.lead(Revision(9));
    rig.leader.on_synced(Revision(8), NOW, &mut rig.sent);
    assert!(rig.leader.core().following().is_listing());
    rig.leader.on_synced(Revision(9), NOW, &mut rig.sent);
    assert!(!rig.leader.core().following().is_listing());
}

#[test]
fn a_retry_and_a_deletion_of_a_unit_exclude_each_other() {
    let mut rig = Rig::new();
    rig.submit(1, spec("a", 1, ""));
    rig.settle();
    rig.change(7, "a", UnitChangeKind::Cancel);
    rig.settle();
    rig.change(8, "a", UnitChangeKind::Delete);
    rig.change(9, "a", UnitChangeKind::Retry(RetryScope::Failed));
    let kept = |changes: &[Change]| {
        changes.iter().any(|change| matches!(change, Change::Put(Record::UnitHistory(_))))
    };
    assert!(rig.sent.txns.len() == 1 && kept(&rig.sent.txns[0].0.changes), "what is kept goes with it");
    rig.refuse(TxnRefusalReason::StoreFull);
    rig.settle();
    assert_eq!(rig.sent.answers[2], (9, Ok(Some(Revision(4)))), "{:?}", rig.sent.answers);
    let is_wanted = |rig: &Rig| rig.leader.core().unit(UnitId(1)).is_some_and(|view| view.record.is_wanted());
    assert!(is_wanted(&rig), "nothing of it has ended that would have to come back first");
    rig.change(10, "a", UnitChangeKind::Delete);
    assert!(matches!(&rig.sent.answers[3], (10, Err(ChangeFailure::NotDeleted(..)))));
    // Again: it runs already.
    rig.change(11, "a", UnitChangeKind::Retry(RetryScope::All));
    assert_eq!(rig.sent.answers[4], (11, Ok(Some(Revision(4)))));
}

#[test]
fn retention_leaves_a_unit_alone_that_is_to_run_again() {
    let mut rig = Rig::new();
    rig.submit(1, UnitSpec { ttl_after_finished_ms: 0, ..spec("a", 1, "") });
    rig.settle();
    rig.change(7, "a", UnitChangeKind::Cancel);
    let changes = rig.commit();
    rig.show(changes);
    rig.change(8, "a", UnitChangeKind::Retry(RetryScope::Failed));
    rig.step();
    assert_eq!(rig.sent.txns.len(), 1, "the retry, and no deletion");
    rig.settle();
    assert_eq!(rig.sent.answers[1], (8, Ok(Some(Revision(4)))));
    assert!(rig.leader.core().unit(UnitId(1)).is_some_and(|view| view.record.is_wanted()));
}

#[test]
fn an_added_group_is_written_alone_under_the_units_revision() {
    let mut rig = Rig::new();
    rig.submit(1, spec("a", 1, ""));
    rig.settle();
    let grow = |name: &str| {
        let group = GroupSubmission { name: name.to_owned(), replicas: 2, ..GroupSubmission::default() };
        UnitChangeKind::Grow(Box::new(GroupChanges { added: vec![group], ..GroupChanges::default() }))
    };
    rig.change(7, "a", grow("b"));
    let kinds = |rig: &Rig| -> Vec<String> {
        let kind = |change: &Change| match change {
            Change::Put(Record::Unit(record)) => format!("unit of {}", record.own().spec.task_groups.len()),
            Change::Put(Record::TaskGroup(group)) => format!("group {} {:?}", group.idx, group.ordinals),
            other => panic!("{other:?}"),
        };
        rig.sent.txns[0].0.changes.iter().map(kind).collect()
    };
    assert_eq!(kinds(&rig), ["unit of 1", "group 1 [(1, 3)]"], "its own record says that groups follow");
    rig.settle();
    rig.change(8, "a", grow("c"));
    assert_eq!(kinds(&rig), ["group 2 [(3, 5)]"]);
    assert_eq!(rig.sent.txns[0].0.required, ["Unit(UnitId(1)) 3"]);
    rig.settle();
    rig.change(9, "a", UnitChangeKind::Scale { group: "b".to_owned(), replicas: 3 });
    assert_eq!(kinds(&rig), ["unit of 1", "group 1 [(1, 3), (5, 6)]"], "the submitted size is noted once");
    rig.settle();
    rig.change(10, "a", UnitChangeKind::Stop { ordinals: vec![4] });
    assert_eq!(kinds(&rig), ["group 2 [(3, 4), (6, 6)]"]);
    rig.settle();
    // Asked for again with a revision that is past: it was heard.
    let (namespace, kind) = (String::new(), grow("c"));
    let (name, by) = ("a".to_owned(), UnitCaller::default());
    let again =
        UnitChange { namespace, name, expected_revision: Revision(3), kind, by, is_bound: false, caller: 11 };
    rig.leader.change(again, NOW, &mut rig.sent);
    assert!(rig.sent.txns.is_empty() && matches!(rig.sent.answers.last(), Some((11, Ok(_)))));
    let view = rig.leader.core().unit(UnitId(1)).unwrap();
    assert_eq!((view.counts.replicas, view.counts.pending), (5, 5));
    // A cancellation concerns its own record alone.
    rig.change(12, "a", UnitChangeKind::Cancel);
    assert_eq!(kinds(&rig), ["unit of 1"]);
    rig.settle();
    rig.change(13, "a", UnitChangeKind::RetryReplicas { ordinals: vec![0], preferred: Vec::new() });
    let refused = rig.sent.answers.last();
    assert!(matches!(refused, Some((13, Err(ChangeFailure::NotRetried(_, RetryRefusal::NotWanted))))));
}

#[test]
fn a_unit_moves_to_a_queue_that_stays() {
    let mut rig = Rig::new();
    rig.edit(1, vec![put("q")]);
    rig.settle();
    rig.submit(1, spec("a", 1, ""));
    rig.settle();
    let moved = |queue: &str| {
        let spec = UnitSpec { uid: String::new(), ..spec("a", 1, queue) };
        UnitChangeKind::Update(Box::new(spec))
    };
    rig.change(7, "a", moved("nowhere"));
    assert!(matches!(&rig.sent.answers[..], [(7, Err(ChangeFailure::Unwelcome(_)))]));
    rig.change(8, "a", moved("q"));
    assert_eq!(rig.sent.txns[0].0.required, ["Unit(UnitId(1)) 3", "Rows(UnitId(1)) 0"]);
    // It is on its way: the queue stays until that is durable, and then it has a unit.
    rig.edit(2, vec![RecordChange::Delete("q".to_owned())]);
    rig.step();
    assert_eq!(rig.sent.txns.len(), 1);
    rig.settle();
    assert!(matches!(&rig.sent.edited[1..], [(2, Err(EditFailure::Refused(_)))]));
    assert_eq!(rig.sent.answers[1], (8, Ok(Some(Revision(4)))));
    // A repeated submission is known by its uid and name.
    rig.submit(2, spec("a", 1, ""));
    assert_eq!(rig.sent.submitted[1..], [(2, UnitId(1), true)]);
    rig.submit(3, spec("b", 1, ""));
    assert!(matches!(&rig.sent.refused[..], [(3, NotSubmitted::UidTaken { .. })]));
}

#[test]
fn a_running_unit_moves_with_its_terms_where_there_is_room() {
    let mut rig = Rig::new();
    let limited = |path: &str, cpu| {
        let max = [("cpu".to_owned(), cpu)].into();
        RecordChange::Put(Arc::new(QueueSpec { max, ..QueueSpec::new(path) }))
    };
    for (editor, change) in [(1, limited("full", 99)), (2, limited("b", 100)), (3, put("open"))] {
        rig.edit(editor, vec![change]);
        rig.settle();
    }
    rig.submit(1, spec("a", 1, ""));
    rig.settle();
    let unit = rig.leader.core().unit(UnitId(1)).unwrap().record.spec.clone();
    let bind = Bind {
        demand: Arc::new(unit.task_groups[0].template.demand.clone()),
        ordinals: vec![0],
        nodes: vec![godel_base::ids::NodeId(1)],
        ..Bind::default()
    };
    rig.revision += 1;
    let bound_at = rig.revision;
    rig.show(vec![Change::Rows(UnitId(1), RunChange::Bind(bind))]);
    let moved = |queue: &str| {
        UnitChangeKind::Update(Box::new(UnitSpec { uid: String::new(), ..spec("a", 1, queue) }))
    };
    rig.change(7, "a", moved("full"));
    let Some((7, Err(failure @ ChangeFailure::NoRoomToMove(why)))) = rig.sent.answers.last() else {
        panic!("{:?}", rig.sent.answers)
    };
    assert!(rig.sent.txns.is_empty(), "{failure:?}");
    assert_eq!(
        why.to_string(),
        "what runs of unit default/a takes 100m of cpu, and queue full uses 0 of at most 99m: wait until some of that is \
         free, raise the maximum of full, or scale the unit down first"
    );
    rig.change(8, "a", moved("b"));
    let (txn, _) = &rig.sent.txns[0];
    assert_eq!(txn.required, ["Unit(UnitId(1)) 5", "Queue(\"b\") 3"], "not on its rows");
    let is_terms = |change: &Change| matches!(change, Change::Rows(UnitId(1), RunChange::Terms(terms)) if terms.others.queue.as_deref() == Some("b"));
    assert!(is_terms(&txn.changes[1]), "{:?}", txn.changes);
    assert!(
        matches!(&txn.changes[2], Change::Put(Record::Queue(spec)) if spec.name == "b"),
        "bindings are judged again"
    );
    rig.settle();
    let used = |rig: &Rig, path: &str| {
        let quota = rig.leader.core().queueing().quota();
        quota.usage().used(quota.tree().find(path).unwrap(), "cpu")
    };
    assert_eq!((used(&rig, "default"), used(&rig, "b")), (0, 100));
    let view = rig.leader.core().unit(UnitId(1)).unwrap();
    assert_eq!(view.rows.standing(0).and_then(|terms| terms.queue.as_deref()), Some("b"));
    assert_eq!(view.rows_revision, Revision(bound_at), "as in the store");
    // Without a maximum nothing rests on the queue; a change of rank alone moves nothing.
    rig.change(9, "a", moved("open"));
    assert_eq!(rig.sent.txns[0].0.changes.len(), 2);
    rig.settle();
    let risen = UnitSpec { uid: String::new(), priority: 7, ..spec("a", 1, "open") };
    rig.change(10, "a", UnitChangeKind::Update(Box::new(risen)));
    let changes = &rig.sent.txns[0].0.changes;
    assert!(matches!(&changes[1], Change::Rows(_, RunChange::Terms(terms)) if terms.others.priority == 7));
    rig.settle();
    let mut labelled = UnitSpec { uid: String::new(), priority: 7, ..spec("a", 1, "open") };
    labelled.labels.insert("app".to_owned(), "a".to_owned());
    rig.change(11, "a", UnitChangeKind::Update(Box::new(labelled)));
    assert_eq!(rig.sent.txns[0].0.changes.len(), 1, "its terms stay");
}
