//! What the leader decides, without anything that waits.

use std::collections::BTreeMap;

use godel_base::{
    ids::{NodeId, UnitId},
    resources::Resources,
    time::Millis,
};
use godel_core_yarn::{
    AppAcls, YarnUser,
    adapter::{
        AdapterTerms, AllocateCall, AppRecord, AppSubmission, MASTER, MasterRefusal, NO_REQUEST_ID,
        Registration,
    },
    application::PublicAppState,
    asks::{ANY, AskGroup, AskKey, AskRow, ExecutionType},
    ids::YarnAttemptId,
};
use godel_domain::{
    node::{NodeReport, NodeSpec},
    running_units::{Bind, Phase, RunChange, Statuses},
    unit::{UnitRecord, WorkloadClass},
    yarn_keys::YarnKeyPeriod,
};
use godel_testkit::{BuildUnit as _, unit};

use super::*;
use crate::{
    AppCaller, AppSubmitter, ChangedField, LaunchRefusal, ManagerRefusal, MasterLaunch, RecordsFailure,
    RegisterAnswer, SubmittedApp, UnitCall, UnitCallRefusal, UnitCallRefused, YarnAmount, YarnWrite,
    names::{MASTER_GROUP, PORT_ATTRIBUTE, unit_name},
    outbox::JobTicket,
};

mod records;

/// Who calls where nobody is judged.
const BELIEVED: AppCaller<'_> = AppCaller { user: YarnUser::believed("ann", &[]), cause: None };

type Order = YarnOrder<&'static str, &'static str>;

fn config() -> YarnLeaderConfig {
    YarnLeaderConfig {
        terms: AdapterTerms::default(),
        namespace: "yarn".to_owned(),
        root_queue: String::new(),
        rack_key: "rack".to_owned(),
        label_key: "label".to_owned(),
        launch_timeout_ms: 120_000,
        minimum_allocation: YarnAmount::default(),
        applications_max: 10,
        completed_max: 10,
        launch_bytes_max: 100,
        key_period: YarnKeyPeriod { every_ms: 1_000_000, lead_ms: 1_000 },
    }
}

fn group(priority: i32) -> AskGroup {
    let capability = [("cpu".to_owned(), 1_000), ("memory".to_owned(), 1 << 30)].into();
    AskGroup { priority, execution: ExecutionType::Guaranteed, capability, label: String::new() }
}

fn submitted() -> SubmittedApp {
    let submission = AppSubmission {
        name: "pi".to_owned(),
        user: "ann".to_owned(),
        queue: String::new(),
        kind: "SPARK".to_owned(),
        priority: 0,
        master: Some(group(0)),
        label: String::new(),
        max_attempts: 2,
        validity_interval_ms: 0,
        keeps_containers: false,
        lifetime_ms: None,
    };
    SubmittedApp { submission, launch: (*b"run").into(), tags: Vec::new() }
}

/// A leader, and a store, a dispatcher and nodes that answer when the test says so.
struct Played {
    leader: YarnLeader<&'static str, &'static str>,
    now_ms: u64,
    revision: u64,
    orders: Vec<Order>,
    /// Records of the store.
    stored: BTreeMap<YarnApplicationId, StoredApp>,
}

impl Played {
    /// One node that starts containers, and a leader that stands by.
    fn new() -> Self {
        let mut leader = YarnLeader::new(config(), AdapterRules::default(), 1);
        let labels = [(PORT_ATTRIBUTE.to_owned(), "8041".to_owned())].into();
        let spec = NodeSpec { id: NodeId(1), name: "n1".to_owned(), labels, ..NodeSpec::default() };
        let capacity = Resources::new([("cpu", 8_000), ("memory", 16 << 30)]).unwrap();
        let report = NodeReport { id: NodeId(1), capacity, ready: true, ..NodeReport::default() };
        leader.load(&Change::Put(Record::NodeSpec(spec)), Revision(1), 1);
        leader.load(&Change::Put(Record::NodeReport(report)), Revision(1), 1);
        let mut played =
            Self { leader, now_ms: 1_000, revision: 1, orders: Vec::new(), stored: BTreeMap::new() };
        played.with(|leader, at, out| leader.on_synced(Revision(1), at, out));
        played
    }

    fn leading() -> Self {
        let mut played = Self::new();
        played.lead();
        played
    }

    fn lead(&mut self) {
        assert!(self.leader.may_lead(Revision(1)));
        let stored = self.stored.values().cloned().collect();
        self.with(|leader, at, out| leader.lead(stored, at, out));
    }

    fn at(&self) -> AdapterTime {
        AdapterTime { now: Millis(self.now_ms), wall_ms: i64::try_from(self.now_ms).unwrap() }
    }

    fn with<T>(
        &mut self,
        what: impl FnOnce(&mut YarnLeader<&'static str, &'static str>, AdapterTime, &mut Vec<Order>) -> T,
    ) -> T {
        let at = self.at();
        what(&mut self.leader, at, &mut self.orders)
    }

    /// The first order of a kind, taken.
    fn take<T>(&mut self, read: impl Fn(&Order) -> Option<T>) -> Option<T> {
        let idx = self.orders.iter().position(|order| read(order).is_some())?;
        read(&self.orders.remove(idx))
    }

    fn call(&mut self) -> Option<(JobTicket, UnitCall)> {
        self.take(|order| match order {
            YarnOrder::Call(ticket, call) => Some((*ticket, call.clone())),
            _ => None,
        })
    }

    fn answer(&mut self, caller: &str) -> Option<Result<(), ManagerRefusal>> {
        self.take(|order| match order {
            YarnOrder::Answer(waits, answer) if *waits == caller => Some(answer.clone()),
            _ => None,
        })
    }

    fn registered(&mut self) -> Option<Result<RegisterAnswer, ManagerRefusal>> {
        self.take(|order| match order {
            YarnOrder::AnswerMaster(_, answer) => Some(answer.clone()),
            _ => None,
        })
    }

    fn written(&mut self) -> Option<(JobTicket, Vec<YarnWrite>)> {
        self.take(|order| match order {
            YarnOrder::Write(ticket, writes, _) => Some((*ticket, writes.clone())),
            _ => None,
        })
    }

    /// Methods of the calls on whose behalf the next transaction is made.
    fn methods(&self) -> Vec<&str> {
        let mut written = self.orders.iter().filter_map(|order| match order {
            YarnOrder::Write(_, _, causes) => Some(causes),
            _ => None,
        });
        written.next().into_iter().flatten().map(|cause| cause.method.as_str()).collect()
    }

    fn paused(&mut self) -> Option<JobTicket> {
        self.take(|order| match order {
            YarnOrder::Pause(ticket, _) => Some(*ticket),
            _ => None,
        })
    }

    fn launch(&mut self) -> Option<(JobTicket, MasterLaunch)> {
        self.take(|order| match order {
            YarnOrder::Launch(ticket, launch) => Some((*ticket, (**launch).clone())),
            _ => None,
        })
    }

    /// The store takes what is written, as often as there is something.
    fn store(&mut self) {
        while let Some((ticket, writes)) = self.written() {
            self.keep(writes);
            self.with(|leader, at, out| leader.work().on_written(ticket, Ok(()), at, out));
        }
    }

    fn keep(&mut self, writes: Vec<YarnWrite>) {
        for write in writes {
            match write {
                YarnWrite::Application(record, notes) => {
                    let stored = StoredApp { record: *record, notes, acls: AppAcls::default() };
                    self.stored.insert(stored.record.id, stored);
                }
                YarnWrite::ApplicationGone(id) => drop(self.stored.remove(&id)),
                YarnWrite::Keys(_) => {}
            }
        }
    }

    fn commit(&mut self, changes: Vec<Change>) {
        self.revision += 1;
        let commit = Commit { revision: Revision(self.revision), time_ms: self.at().wall_ms, changes };
        self.with(|leader, at, out| leader.apply(&commit, at, out));
    }

    /// The dispatcher takes a call; what it writes is read with the next commit.
    fn accept(&mut self, ticket: JobTicket) {
        let revision = Revision(self.revision + 1);
        self.with(|leader, at, out| leader.work().on_called(ticket, Ok(revision), at, out));
    }

    fn refuse(&mut self, ticket: JobTicket, reason: UnitCallRefusal, why: &str) {
        let refused = UnitCallRefused { reason, why: why.to_owned() };
        self.with(|leader, at, out| leader.work().on_called(ticket, Err(refused), at, out));
    }

    fn submit(&mut self, caller: &'static str) -> YarnApplicationId {
        let (id, _) = self.leader.new_application().unwrap();
        self.with(|leader, at, out| {
            leader.submit(id, submitted(), AppSubmitter::default(), caller, at, out);
        });
        id
    }

    fn state(&self, id: YarnApplicationId) -> PublicAppState {
        self.leader.shown(0).application(id).unwrap().state
    }

    /// An application whose unit is there and whose master has a place.
    fn placed(&mut self) -> YarnApplicationId {
        let id = self.submit("client");
        self.store();
        let (ticket, _) = self.call().unwrap();
        self.accept(ticket);
        self.commit(vec![Change::Put(Record::Unit(Arc::new(unit_of(id, &[]))))]);
        self.store();
        let bind = Bind { ordinals: vec![MASTER], nodes: vec![NodeId(1)], ..Bind::default() };
        self.commit(vec![Change::Rows(UnitId(1), RunChange::Bind(bind))]);
        self.store();
        id
    }

    /// One whose master has registered.
    fn running(&mut self) -> YarnAttemptId {
        let application = self.placed();
        let (ticket, _) = self.launch().unwrap();
        self.with(|leader, at, out| leader.work().on_launched(ticket, Ok(()), at, out));
        let attempt = YarnAttemptId { application, number: 1 };
        self.with(|leader, at, out| {
            leader.register(attempt, Registration::default(), "master", at, out);
        });
        assert!(self.registered().unwrap().is_ok());
        self.store();
        attempt
    }

    fn ask(&mut self, attempt: YarnAttemptId, priorities: &[i32]) {
        let row = |priority: &i32| AskRow {
            key: AskKey { group: group(*priority), allocation_request_id: NO_REQUEST_ID },
            name: ANY.to_owned(),
            n: 1,
            relax_locality: true,
            label: None,
        };
        let call = AllocateCall { asks: priorities.iter().map(row).collect(), ..AllocateCall::default() };
        self.with(|leader, at, out| leader.allocate(attempt, &call, 0.5, at, out)).unwrap();
    }
}

/// The unit of an application, with its master and groups of so many replicas.
fn unit_of(id: YarnApplicationId, groups: &[(String, u32)]) -> UnitRecord {
    let mut record = unit(unit_name(id)).class(WorkloadClass::Yarn);
    record.spec.namespace = "yarn".to_owned();
    let template = record.spec.task_groups[0].clone();
    record.spec.task_groups.clear();
    record.status.ordinals.clear();
    let mut first = 0;
    for (name, n) in [(MASTER_GROUP.to_owned(), 1)].iter().chain(groups) {
        let mut group = template.clone();
        group.name.clone_from(name);
        record.spec.task_groups.push(group);
        record.status.ordinals.push(vec![(first, first + n)]);
        first += n;
    }
    record
}

#[test]
fn a_client_is_answered_when_its_application_is_recorded() {
    let mut played = Played::leading();
    let id = played.submit("client");
    assert_eq!((played.answer("client"), played.call()), (None, None), "nobody is told of it yet");
    let (ticket, writes) = played.written().unwrap();
    assert!(matches!(&writes[..], [YarnWrite::Application(record, _)] if record.id == id));
    assert!(played.written().is_none());
    played.with(|leader, at, out| leader.work().on_written(ticket, Ok(()), at, out));
    assert_eq!(played.answer("client"), Some(Ok(())));
    assert!(matches!(played.call(), Some((_, UnitCall::Submit(unit))) if unit.application == id));
    // The same again changes nothing, and is recorded already.
    played.with(|leader, at, out| {
        leader.submit(id, submitted(), AppSubmitter::default(), "again", at, out);
    });
    assert_eq!(played.answer("again"), Some(Ok(())));
    let mut other = submitted();
    other.submission.name = "other".to_owned();
    played.with(|leader, at, out| leader.submit(id, other, AppSubmitter::default(), "other", at, out));
    assert_eq!(played.answer("other"), Some(Err(ManagerRefusal::Taken(id))));
}

#[test]
fn a_record_that_is_not_written_in_time_is_not_waited_for() {
    let mut played = Played::leading();
    played.submit("client");
    let tick = |played: &mut Played| {
        played.with(|leader, at, out| leader.tick(at, &mut || [7; YARN_SECRET_LEN], out));
    };
    played.now_ms += 9_000;
    tick(&mut played);
    assert_eq!(played.answer("client"), None);
    played.now_ms += 1_000;
    tick(&mut played);
    assert!(matches!(played.answer("client"), Some(Err(ManagerRefusal::Unavailable(_)))));
}

#[test]
fn refused_records_are_written_again_after_a_pause() {
    let mut played = Played::leading();
    let id = played.submit("client");
    let (ticket, _) = played.written().unwrap();
    let refused = Err(RecordsFailure::Refused);
    played.with(|leader, at, out| leader.work().on_written(ticket, refused, at, out));
    played.submit("second");
    assert!(played.written().is_none(), "nothing is written before the pause is over");
    let pause = played.paused().unwrap();
    played.with(|leader, at, out| leader.work().on_paused(pause, at, out));
    played.store();
    assert_eq!((played.answer("client"), played.answer("second")), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(played.state(id), PublicAppState::Submitted);
}

#[test]
fn a_record_of_which_nothing_is_known_is_read_by_who_leads_next() {
    let mut played = Played::leading();
    let id = played.submit("client");
    let (ticket, writes) = played.written().unwrap();
    played.with(|leader, _, out| leader.step_down(Some("n2:7704".to_owned()), out));
    let standby = ManagerRefusal::Standby(Some("n2:7704".to_owned()));
    assert_eq!(played.answer("client"), Some(Err(standby)));
    assert!(!played.leader.may_lead(Revision(1)), "it may be written yet");
    played.keep(writes);
    let lost = Err(RecordsFailure::LeaseLost);
    played.with(|leader, at, out| leader.work().on_written(ticket, lost, at, out));
    played.lead();
    assert_eq!(played.state(id), PublicAppState::Submitted);
    assert!(matches!(played.call(), Some((_, UnitCall::Submit(_)))), "its unit is submitted now");
    // An answer that comes while it leads ends the leadership.
    played.submit("late");
    let (ticket, _) = played.written().unwrap();
    played.with(|leader, at, out| leader.work().on_written(ticket, lost, at, out));
    assert!(!played.leader.leads());
    assert_eq!(played.answer("late"), Some(Err(ManagerRefusal::Standby(None))));
}

#[test]
fn a_leader_that_begins_knows_only_records() {
    let mut played = Played::leading();
    let recorded = played.submit("client");
    played.store();
    let forgotten = played.submit("second");
    let mut next = Played::new();
    next.stored = played.stored.clone();
    next.lead();
    assert_eq!(next.state(recorded), PublicAppState::Submitted);
    let unknown = next.leader.shown(0).application(forgotten).unwrap_err();
    assert_eq!(unknown, ManagerRefusal::NoApplication(forgotten));
    assert!(next.leader.new_application().unwrap().0.cluster_timestamp > recorded.cluster_timestamp);
}

#[test]
fn a_takeover_amid_a_submission_submits_the_same_unit_again() {
    let mut played = Played::leading();
    let id = played.submit("client");
    played.store();
    let (old, first) = played.call().unwrap();
    played.with(|leader, _, out| leader.step_down(None, out));
    // The dispatcher has taken it, and nobody heard of that.
    played.commit(vec![Change::Put(Record::Unit(Arc::new(unit_of(id, &[]))))]);
    played.lead();
    let (ticket, second) = played.call().unwrap();
    assert_eq!(first, second);
    played.accept(old);
    assert_eq!(played.state(id), PublicAppState::Submitted, "an answer to the last leader is nobody's");
    played.accept(ticket);
    assert_eq!(played.state(id), PublicAppState::Submitted, "what it wrote is not read yet");
    played.commit(Vec::new());
    assert_eq!(played.state(id), PublicAppState::Accepted);
}

#[test]
fn a_unit_that_is_refused_fails_its_application() {
    let mut played = Played::leading();
    let id = played.submit("client");
    played.store();
    let (ticket, _) = played.call().unwrap();
    played.refuse(ticket, UnitCallRefusal::Invalid, "the queue is full");
    played.store();
    let shown = played.leader.shown(0).application(id).unwrap();
    assert_eq!(shown.state, PublicAppState::Failed);
    assert_eq!(shown.diagnostics, "The application was refused: the queue is full");
}

#[test]
fn a_master_that_cannot_be_reached_is_started_again_until_its_time_is_over() {
    let mut played = Played::leading();
    let id = played.placed();
    let unreached = || Err(LaunchRefusal::Unavailable("no route".to_owned()));
    let (ticket, launch) = played.launch().unwrap();
    assert_eq!((launch.node.name.as_str(), &*launch.launch), ("n1", &b"run"[..]));
    played.with(|leader, at, out| leader.work().on_launched(ticket, unreached(), at, out));
    let pause = played.paused().unwrap();
    assert!(played.launch().is_none());
    assert!(played.leader.shown(0).application(id).unwrap().diagnostics.ends_with("no route"));
    played.with(|leader, at, out| leader.work().on_paused(pause, at, out));
    let (ticket, _) = played.launch().unwrap();
    played.now_ms += 120_000;
    played.with(|leader, at, out| leader.work().on_launched(ticket, unreached(), at, out));
    played.store();
    let attempts = played.leader.shown(0).attempts(id).unwrap();
    assert_eq!((attempts.len(), attempts[0].diagnostics.as_str()), (2, "no route"));
    // What is on the node leaves first.
    assert_eq!(played.call(), None);
    let statuses = Statuses { ordinals: vec![MASTER], phases: vec![Phase::Failed], ..Statuses::default() };
    played.commit(vec![Change::Rows(UnitId(1), RunChange::Statuses(statuses))]);
    let (ticket, call) = played.call().unwrap();
    assert!(matches!(call, UnitCall::Retry(..)));
    played.refuse(ticket, UnitCallRefusal::NotNow, "it has not ended yet");
    let pause = played.paused().unwrap();
    played.with(|leader, at, out| leader.work().on_paused(pause, at, out));
    assert!(matches!(played.call(), Some((_, UnitCall::Retry(..)))));
}

#[test]
fn a_master_that_registers_early_is_answered_when_its_start_is_known() {
    let mut played = Played::leading();
    let application = played.placed();
    let attempt = YarnAttemptId { application, number: 1 };
    let (ticket, _) = played.launch().unwrap();
    played.with(|leader, at, out| leader.register(attempt, Registration::default(), "early", at, out));
    assert!(played.registered().is_none());
    played.with(|leader, at, out| leader.work().on_launched(ticket, Ok(()), at, out));
    assert_eq!(played.registered().unwrap().unwrap().user, "ann");
    played.with(|leader, at, out| leader.register(attempt, Registration::default(), "twice", at, out));
    let twice = MasterRefusal::AlreadyRegistered(attempt);
    assert_eq!(played.registered(), Some(Err(ManagerRefusal::Master(twice))));
}

#[test]
fn replicas_that_have_no_room_together_are_asked_for_in_halves() {
    let mut played = Played::leading();
    let attempt = played.running();
    played.ask(attempt, &[1, 2]);
    let (ticket, call) = played.call().unwrap();
    let UnitCall::Grow(both) = call else { panic!("{call:?}") };
    assert_eq!(both.added.len(), 2);
    played.refuse(ticket, UnitCallRefusal::Invalid, "too many task groups");
    let (ticket, call) = played.call().unwrap();
    let UnitCall::Grow(first) = call else { panic!("{call:?}") };
    assert_eq!(first.added[..], both.added[..1]);
    let group = (first.added[0].name.clone(), 1);
    played.accept(ticket);
    assert_eq!(played.call(), None, "the first half is not read yet");
    let unit = Arc::new(unit_of(attempt.application, &[group]));
    played.commit(vec![Change::Put(Record::Unit(unit))]);
    let (ticket, call) = played.call().unwrap();
    let UnitCall::Grow(second) = call else { panic!("{call:?}") };
    assert_eq!(second.added[..], both.added[1..]);
    played.refuse(ticket, UnitCallRefusal::Invalid, "too many task groups");
    let refused = played.take(|order| match order {
        YarnOrder::Note(YarnNote::Refused(id, _, why)) => Some((*id, why.clone())),
        _ => None,
    });
    assert_eq!(refused, Some((attempt.application, "too many task groups".to_owned())));
    assert_eq!(played.call(), None, "it is asked for later");
}

#[test]
fn an_application_moves_when_the_dispatcher_has_taken_it() {
    let mut played = Played::leading();
    let id = played.placed();
    let moved = |played: &mut Played, caller| {
        played.with(|leader, at, out| leader.move_to(id, BELIEVED, "default", caller, at, out))
    };
    assert_eq!(moved(&mut played, "mover").as_deref(), Ok("root.default"));
    let (ticket, call) = played.call().unwrap();
    assert!(matches!(call, UnitCall::Change(_, ChangedField::Queue(queue)) if queue == "default"));
    played.accept(ticket);
    assert_eq!(played.answer("mover"), None);
    played.commit(Vec::new());
    assert_eq!(played.answer("mover"), Some(Ok(())));
    moved(&mut played, "refused").unwrap();
    let (ticket, _) = played.call().unwrap();
    played.refuse(ticket, UnitCallRefusal::Other, "not there");
    assert_eq!(played.answer("refused"), Some(Err(ManagerRefusal::Invalid("not there".to_owned()))));
    let nowhere =
        played.with(|leader, at, out| leader.move_to(id, BELIEVED, "nowhere", "lost", at, out)).unwrap_err();
    assert_eq!(nowhere, ManagerRefusal::NoQueue("nowhere".to_owned()));
}

#[test]
fn records_say_what_was_last_decided() {
    let mut played = Played::leading();
    let attempt = played.running();
    let stored = &played.stored[&attempt.application];
    let AppRecord { attempts, version, .. } = &stored.record;
    assert!(attempts[0].registration.is_some() && *version > 0);
    assert_eq!(stored.notes.attempts[0].launch_ms, 1_000);
    let killed =
        played.with(|leader, at, out| leader.kill(attempt.application, BELIEVED, "", at, out)).unwrap();
    assert!(!killed, "its end is not recorded");
    played.store();
    assert_eq!(played.state(attempt.application), PublicAppState::Killed);
}
