use std::collections::BTreeSet;

use godel_base::{
    ids::{Epoch, NodeId, Revision, UnitId},
    resources::Resources,
};
use godel_domain::{
    change::{Change, Lease, NodeScope, Partition, PartitionMode},
    lifecycle::{Counts, UnitPhase},
    node::{NodeReport, NodeSpec},
    records::Record,
    refusals::Refusals,
    running_units::{
        Bind, Evict, EvictionReason, Phase as RowPhase, Requeue, RunChange, RunningUnits, Statuses,
    },
    sight::Sight,
    submission::{GroupSubmission, Submission},
    txn::Receipt,
    unit::UnitRecord,
    unit_report::{ReportState, UnitReport},
};
use godel_rules::{admission::admit, lost_nodes::BrakeChange, partition::StrategyKind};
use godel_testkit::BuildUnit as _;

use super::{
    policy::PolicyKind,
    read::{ListChunk, ListFilter, SchedulerView},
    unit_entry::{UnitEntry, Whereabouts},
    *,
};

mod apply;
mod compactions;
mod daemons;
mod follows;
mod frozen;
mod gangs;
mod limits;
mod named;
mod node_evictions;
mod overload;
mod partition_mode;
mod pauses;
mod property;
mod queues;
mod reconcile;
mod rooms;
mod scopes;
mod standby;
mod sub_clusters;
mod surges;
mod taints;

const NOW: Millis = Millis(1_000);

fn uid(number: u64) -> String {
    format!("0190163d-8694-739b-aea5-{number:012x}")
}

fn spec(id: u64, replicas: u32) -> UnitRecord {
    let group =
        GroupSubmission { replicas, requests: vec![("cpu".into(), 100)], ..GroupSubmission::default() };
    let submission = Submission {
        name: format!("u{id}"),
        uid: uid(id),
        task_groups: vec![group],
        ..Submission::default()
    };
    UnitRecord::new(UnitId(id), admit(submission).unwrap().spec)
}

fn lease(name: &str, epoch: u64, holder: &str) -> Lease {
    Lease {
        name: format!("scheduler/{name}"),
        holder: holder.into(),
        epoch: Epoch(epoch),
        ..Lease::default()
    }
}

/// The only node.
fn list_node(core: &mut Dispatcher, now: Millis) {
    core.on_node_spec(&NodeSpec { id: NodeId(1), name: "n1".into(), ..NodeSpec::default() }, now);
    let capacity = Resources::new([("cpu", 10_000)]).unwrap();
    let report = NodeReport { id: NodeId(1), capacity, ready: true, ..NodeReport::default() };
    put(core, Record::NodeReport(report), now);
}

/// A record that has not changed since the last revision.
fn put(core: &mut Dispatcher, record: Record, now: Millis) {
    let revision = core.following().revision();
    core.on_change(&Change::Put(record), revision, Receipt { revision, time_ms: 5 }, now);
}

/// A dispatcher with a clock of its own revision counter.
struct Rig {
    core: Dispatcher,
    revision: u64,
    now: Millis,
}

impl Rig {
    fn new() -> Self {
        Self::with(Config::default())
    }

    /// Loaded and settled, with one node.
    fn with(config: Config) -> Self {
        let mut rig = Self::loading(config);
        rig.core.on_synced(Revision(rig.revision), rig.now);
        rig
    }

    fn loading(config: Config) -> Self {
        let mut core = Dispatcher::new(config);
        core.on_reset();
        list_node(&mut core, NOW);
        Self { core, revision: 10, now: NOW }
    }

    fn next(&mut self) -> Revision {
        self.revision += 1;
        self.core.on_revision(Revision(self.revision));
        Revision(self.revision)
    }

    fn put(&mut self, record: UnitRecord) -> Revision {
        let revision = self.next();
        self.core.on_unit(Arc::new(record), revision, Receipt { revision, time_ms: 5 }, self.now);
        revision
    }

    fn submit(&mut self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.put(spec(id, 2));
        }
    }

    fn rows(&mut self, unit: u64, change: RunChange) {
        let revision = self.next();
        self.core.on_rows(UnitId(unit), &change, revision, 77, self.now);
    }

    fn bind(&mut self, unit: u64, ordinals: &[u32]) {
        self.bind_group(unit, 0, ordinals);
    }

    fn bind_group(&mut self, unit: u64, group: usize, ordinals: &[u32]) {
        let group = u16::try_from(group).unwrap();
        let row = |ordinal: &u32| self.core.unit(UnitId(unit)).unwrap().rows.row(*ordinal).incarnation;
        let incarnations = ordinals.iter().map(row).collect();
        let nodes = vec![NodeId(1); ordinals.len()];
        self.rows(
            unit,
            RunChange::Bind(Bind {
                group,
                ordinals: ordinals.to_vec(),
                incarnations,
                nodes,
                ..Bind::default()
            }),
        );
    }

    fn status(&mut self, unit: u64, ordinals: &[u32], phase: RowPhase) {
        let row = |ordinal: &u32| self.core.unit(UnitId(unit)).unwrap().rows.row(*ordinal).incarnation;
        let incarnations = ordinals.iter().map(row).collect();
        let phases = vec![phase; ordinals.len()];
        let statuses = Statuses { ordinals: ordinals.to_vec(), incarnations, phases, ..Statuses::default() };
        self.rows(unit, RunChange::Statuses(statuses));
    }

    fn attach(&mut self, name: &str, epoch: u64, session: u64, inventory: &[(u64, u64)], credits: u32) {
        let inventory =
            inventory.iter().map(|(unit, revision)| (UnitId(*unit), Revision(*revision))).collect();
        let attach = Attach {
            name: name.into(),
            epoch: Epoch(epoch),
            session: SessionId(session),
            inventory,
            credits,
        };
        self.core.streams().on_attached(attach, self.now).unwrap();
    }

    fn report(&mut self, session: u64, unit: u64, state: ReportState) {
        let spec_revision = self.core.unit(UnitId(unit)).unwrap().spec_revision;
        let refusals = (state == ReportState::Parked).then(Arc::<Refusals>::default);
        let need = if state == ReportState::Parked { unit } else { 0 };
        let report = UnitReport {
            unit: UnitId(unit),
            spec_revision,
            state,
            refusals,
            need,
            unplaced: None,
            lacking: Vec::new(),
            assigned: 0,
        };
        self.core.streams().on_report(SessionId(session), report, self.now);
    }

    /// But for the split of nodes, which has a test of its own.
    fn step(&mut self) -> Vec<String> {
        let actions = self.core.step(self.now);
        actions.iter().filter(|action| !matches!(action, Action::WritePartition(_))).map(show).collect()
    }

    fn schedulers(&self) -> Vec<SchedulerView> {
        self.core.schedulers().views(self.core.partition(), self.core.nodes())
    }

    fn set_mode(&mut self, choice: ModeChoice) -> Option<Partition> {
        let Dispatcher { partition, nodes, assignments, .. } = &mut self.core;
        partition.set_mode(choice, nodes, assignments, self.now)
    }

    fn phase(&self, unit: u64) -> UnitPhase {
        self.core.unit(UnitId(unit)).unwrap().phase
    }
}

fn show(action: &Action) -> String {
    match action {
        Action::Assign(session, one) => {
            let scope = if one.permit.scope == NodeScope::Global { " on all nodes" } else { "" };
            let most = one.permit.places_max.map(|n| format!(", {n} at most")).unwrap_or_default();
            format!("assign {} to {}: {:?}{scope}{most}", one.record.id, session.0, one.ordinals)
        }
        Action::Revoke(session, unit) => format!("revoke {unit} from {}", session.0),
        Action::Close(session) => format!("close {}", session.0),
        Action::Evict(one) => format!("evict {} {:?} {:?}", one.unit, one.reason, one.ordinals),
        Action::End(record, _) => format!("end {} {:?}", record.id, record.status.ended),
        Action::Follow(record, _) => format!("follow {} {:?}", record.id, record.status.ordinals[0]),
        Action::Surge(record, _, _) => format!("surge {} {:?}", record.id, record.status.ordinals[0]),
        Action::Compact(record, _, compaction) => format!("compact {} {:?}", record.id, compaction.ordinals),
        Action::Delete(unit) => format!("delete {unit}"),
        Action::DeleteHistory(units) => format!("delete history {units:?}"),
        Action::WritePartition(one) => {
            format!("partition {:?} {:?} {}", one.mode, one.schedulers, one.slots.len())
        }
    }
}

#[test]
fn units_go_out_in_order_and_return_from_a_dead_scheduler_first() {
    let mut rig = Rig::new();
    rig.submit(1..=4);
    rig.put(spec(5, 2).priority(9));
    assert_eq!(rig.step(), [""; 0]);
    rig.attach("a", 1, 1, &[], 3);
    // 3 credits: the unit of high priority, then one that overdraws.
    assert_eq!(rig.step(), ["assign 5 to 1: [0, 1]", "assign 1 to 1: [0, 1]"]);
    assert_eq!((rig.phase(1), rig.phase(2)), (UnitPhase::Scheduling, UnitPhase::Queued));
    rig.core.streams().on_credits(SessionId(1), 1);
    assert_eq!(rig.step(), ["assign 2 to 1: [0, 1]"]);
    rig.bind(5, &[0, 1]);
    rig.bind(1, &[0]);
    assert_eq!(rig.schedulers()[0].running_units, 3);
    // Its lease expires: what is left comes first, ahead of what waited.
    rig.core.streams().on_lease(&lease("a", 1, ""), rig.now);
    rig.attach("b", 2, 2, &[], 100);
    let expect = [
        "close 1",
        "assign 1 to 2: [1]",
        "assign 2 to 2: [0, 1]",
        "assign 3 to 2: [0, 1]",
        "assign 4 to 2: [0, 1]",
    ];
    assert_eq!(rig.step(), expect);
    let summary = rig.core.summary();
    assert_eq!((summary.counters.redispatched, summary.counters.repairs, summary.queued_units), (2, 0, 0));
}

#[test]
fn a_unit_given_back_goes_to_another_while_one_is_untried() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.attach("b", 2, 2, &[], 0);
    rig.submit([1]);
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.report(1, 1, ReportState::Returned);
    assert_eq!(rig.step(), [""; 0], "b has no credit, a has failed it");
    rig.core.streams().on_credits(SessionId(2), 5);
    assert_eq!(rig.step(), ["assign 1 to 2: [0, 1]"]);
    rig.report(2, 1, ReportState::Returned);
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1] on all nodes"], "all tried");
}

#[test]
fn parked_units_hold_no_credit_and_show_why() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.attach("b", 2, 2, &[], 100);
    rig.submit([1]);
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.report(1, 1, ReportState::Parked);
    assert_eq!(rig.phase(1), UnitPhase::Unschedulable);
    assert!(rig.core.unit(UnitId(1)).unwrap().refusals.is_some());
    let loads = |rig: &Rig| {
        rig.schedulers().iter().map(|one| (one.running_units, one.parked_units)).collect::<Vec<_>>()
    };
    assert_eq!(loads(&rig), [(0, 1), (0, 0)]);
    rig.report(1, 1, ReportState::Woken);
    assert_eq!((rig.phase(1), loads(&rig)), (UnitPhase::Scheduling, vec![(2, 0), (0, 0)]));
    rig.bind(1, &[0, 1]);
    assert_eq!((rig.phase(1), loads(&rig)), (UnitPhase::Scheduled, vec![(0, 0), (0, 0)]));
    assert!(rig.core.unit(UnitId(1)).unwrap().refusals.is_none());
}

#[test]
fn done_before_the_rows_is_believed_for_a_while() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit([1, 2]);
    rig.step();
    rig.report(1, 1, ReportState::Done);
    rig.report(1, 2, ReportState::Done);
    assert_eq!(rig.step(), [""; 0]);
    rig.bind(1, &[0, 1]);
    rig.now = rig.now.plus(6_000);
    rig.core.step(rig.now);
    assert_eq!(rig.step(), [""; 0]);
    assert_eq!(rig.core.summary().counters.repairs, 1, "unit 2 was sent again");
    rig.bind(2, &[0, 1]);
    assert_eq!(rig.core.summary().dispatched_units, 0);
}

#[test]
fn cancel_revokes_and_evicts_until_nothing_is_left() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit([1]);
    rig.step();
    rig.bind(1, &[0]);
    rig.put(spec(1, 2).cancelled(true));
    assert_eq!(rig.step(), ["revoke 1 from 1", "evict 1 Cancelled [0]"]);
    assert_eq!(rig.step(), [""; 0]);
    rig.core.assignments.ends.on_evict_answer(UnitId(1), EvictionReason::Cancelled, false);
    rig.now = rig.now.plus(2_000);
    assert_eq!(rig.step(), ["evict 1 Cancelled [0]"], "not answered: asked again");
    let evict = Evict {
        ordinals: vec![0],
        incarnations: vec![0],
        reason: EvictionReason::Cancelled,
        by: String::new(),
        preemptor: UnitId(0),
    };
    rig.rows(1, RunChange::Evict(evict));
    rig.now = rig.now.plus(60_000);
    assert_eq!(rig.step(), [""; 0]);
    rig.status(1, &[0], RowPhase::Stopped);
    assert_eq!(
        (rig.phase(1), rig.core.summary().ended, rig.core.summary().counters.repairs),
        (UnitPhase::Cancelled, 1, 0)
    );
    rig.now = rig.now.plus(3_600_000);
    assert_eq!(rig.step(), ["delete 1"]);
    rig.core.assignments.on_delete_failed(UnitId(1), rig.now);
    rig.now = rig.now.plus(2_000);
    assert_eq!(rig.step(), ["delete 1"]);
    rig.core.on_unit_deleted(UnitId(1), rig.now);
    assert!(rig.core.unit(UnitId(1)).is_none());
    let gone = rig.core.assignments.reserve("default", "u1", &uid(1));
    assert!(matches!(gone, NameClaim::Gone { unit: UnitId(1), created: Revision(11), .. }), "{gone:?}");
    assert_eq!(rig.core.assignments.reserve("default", "u1", &uid(7)), NameClaim::New(UnitId(2)));
}

#[test]
fn scaling_reaches_the_scheduler_that_has_the_unit() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit([1]);
    rig.step();
    rig.put(spec(1, 4));
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1, 2, 3]"]);
    rig.bind(1, &[0, 1, 2]);
    rig.put(spec(1, 1));
    assert_eq!(rig.step(), ["revoke 1 from 1", "evict 1 ScaledIn [2, 1]"]);
    rig.put(spec(1, 2));
    assert_eq!(rig.phase(1), UnitPhase::Scheduled);
    rig.now = rig.now.plus(5_000);
    assert_eq!(rig.step(), ["evict 1 ScaledIn [2]"]);
}

#[test]
fn an_evicted_replica_goes_to_its_scheduler_or_to_the_head() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit([1]);
    rig.step();
    rig.bind(1, &[0]);
    let requeue = |rig: &mut Rig, ordinal: u32, incarnation: u32| {
        rig.status(1, &[ordinal], RowPhase::Stopped);
        let requeue = Requeue { ordinals: vec![ordinal], incarnations: vec![incarnation], anew: false };
        rig.rows(1, RunChange::Requeue(requeue));
    };
    requeue(&mut rig, 0, 1);
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.bind(1, &[0, 1]);
    rig.core.streams().on_detached(SessionId(1));
    rig.submit([2]);
    requeue(&mut rig, 1, 1);
    rig.attach("a", 1, 2, &[], 100);
    assert_eq!(rig.step(), ["assign 1 to 2: [1]", "assign 2 to 2: [0, 1]"]);
}

#[test]
fn a_new_leader_waits_for_schedulers_and_adopts_what_they_hold() {
    let mut rig = Rig::loading(Config::default());
    rig.submit(1..=4);
    rig.core.on_rows_loaded(UnitId(4), RunningUnits::default(), NOW);
    rig.core.streams().on_lease(&lease("a", 1, "h1"), NOW);
    rig.core.streams().on_lease(&lease("b", 2, "h2"), NOW);
    rig.core.on_synced(Revision(20), NOW);
    rig.attach("a", 1, 1, &[(1, 11), (9, 5)], 100);
    assert_eq!(rig.step(), ["revoke 9 from 1"], "b may hold the others");
    rig.submit([5]);
    assert_eq!(rig.step(), ["assign 5 to 1: [0, 1]"], "nobody can hold what is new");
    rig.attach("b", 2, 2, &[(2, 11), (1, 11)], 100);
    let expect =
        ["revoke 1 from 2", "assign 2 to 2: [0, 1]", "assign 3 to 2: [0, 1]", "assign 4 to 1: [0, 1]"];
    let mut actions = rig.step();
    actions.sort();
    let mut expect = expect.map(str::to_owned);
    expect.sort();
    // Unit 2 was at an older record there: it is sent again.
    assert_eq!(actions, expect);
}

#[test]
fn a_new_leader_does_not_wait_for_ever() {
    let mut rig = Rig::loading(Config::default());
    rig.submit([1]);
    rig.core.streams().on_lease(&lease("a", 1, "h1"), NOW);
    rig.core.streams().on_lease(&lease("b", 2, "h2"), NOW);
    rig.core.on_synced(Revision(20), NOW);
    rig.attach("a", 1, 1, &[], 100);
    assert!(!rig.step().iter().any(|action| action.starts_with("assign")));
    assert!(rig.core.next_wake(rig.now).unwrap() <= NOW.plus(3_000));
    rig.now = NOW.plus(3_000);
    assert!(rig.step().contains(&"assign 1 to 1: [0, 1]".to_owned()));
}

#[test]
fn stale_epochs_are_refused_and_newer_ones_close_streams() {
    let mut rig = Rig::new();
    rig.attach("a", 3, 1, &[], 100);
    rig.submit([1]);
    rig.step();
    let attach = |epoch: u64, session: u64| Attach {
        name: "a".into(),
        epoch: Epoch(epoch),
        session: SessionId(session),
        inventory: Vec::new(),
        credits: 100,
    };
    let refused = rig.core.streams().on_attached(attach(2, 2), rig.now);
    assert_eq!(refused, Err(AttachRefusal::StaleEpoch { current: Epoch(3), asked: Epoch(2) }));
    assert_eq!(rig.core.streams().on_attached(attach(3, 3), rig.now), Ok(()));
    assert_eq!(rig.step(), ["close 1", "assign 1 to 3: [0, 1]"], "the same process: its message was lost");
    assert_eq!(rig.core.streams().on_attached(attach(4, 4), rig.now), Ok(()));
    assert_eq!(rig.step(), ["close 3", "assign 1 to 4: [0, 1]"], "a new process holds nothing");
    rig.core.streams().on_lease(&lease("a", 4, ""), rig.now);
    assert!(rig.core.streams().on_attached(attach(4, 5), rig.now).is_err(), "expired");
}

#[test]
fn duplicates_are_found_on_their_way_and_after() {
    let mut rig = Rig::new();
    rig.core.assignments.units.directory.set_last_id(UnitId(41));
    let unit = UnitId(42);
    assert_eq!(rig.core.assignments.reserve("default", "u42", &uid(42)), NameClaim::New(unit));
    assert_eq!(rig.core.assignments.reserve("default", "u42", &uid(42)), NameClaim::InFlight(unit));
    assert_eq!(rig.core.assignments.reserve("default", "u42", &uid(43)), NameClaim::NameTaken(unit));
    rig.put(spec(42, 1));
    assert_eq!(rig.core.assignments.reserve("default", "other", &uid(42)), NameClaim::Duplicate(unit));
    assert_eq!(rig.core.assignments.reserve("other", "u42", &uid(43)), NameClaim::New(UnitId(43)));
    let refused = spec(42, 1).id(UnitId(43)).namespace("other").uid(uid(43));
    rig.core.assignments.units.directory.release(&refused);
    assert_eq!(
        rig.core.assignments.reserve("other", "u42", &uid(43)),
        NameClaim::New(UnitId(44)),
        "ids are never used again"
    );
}

#[test]
fn lists_page_in_order_of_namespace_and_name() {
    let mut rig = Rig::new();
    for id in 1..=5 {
        let labels = [("odd".to_owned(), (id % 2 == 1).to_string())].into();
        rig.put(spec(id, 1).name(format!("u{}", 9 - id)).labels(labels));
    }
    rig.put(spec(6, 1).namespace("a"));
    let ids = |chunk: &ListChunk| chunk.units.iter().map(|unit| unit.0).collect::<Vec<_>>();
    let all = ListFilter::default();
    let first = rig.core.units().list(&all, "", 100, 3);
    assert_eq!((ids(&first), first.n_matched, first.next.as_str()), (vec![6, 5, 4], 6, ""));
    let second = rig.core.units().list(&all, "default\0u5", 100, 3);
    assert_eq!((ids(&second), second.n_matched), (vec![3, 2, 1], 3));
    assert_eq!(ids(&rig.core.units().list(&all, "default\0u8", 100, 3)), [0u64; 0]);
    let odd = ListFilter { labels: [("odd".to_owned(), "true".to_owned())].into(), ..all.clone() };
    assert_eq!(ids(&rig.core.units().list(&odd, "", 100, 10)), [5, 3, 1]);
    let default = ListFilter { sight: Sight::All.within("default"), ..all.clone() };
    let chunk = rig.core.units().list(&default, "", 2, 10);
    assert_eq!(ids(&chunk), [5, 4]);
    assert_eq!(ids(&rig.core.units().list(&default, &chunk.next, 2, 10)), [3, 2]);
    let phase = ListFilter { phase: Some(UnitPhase::Running), ..all.clone() };
    assert_eq!(
        (ids(&rig.core.units().list(&phase, "", 100, 10)), rig.core.units().count_listed(&phase)),
        (vec![], Some(0))
    );
    assert_eq!(rig.core.units().count_listed(&all), Some(6));
}

#[test]
fn the_split_follows_leases_and_modes() {
    let mut rig = Rig::new();
    rig.core.streams().on_lease(&lease("a", 1, "h1"), rig.now);
    assert_eq!(rig.step(), [""; 0], "gathered for a moment");
    rig.core.streams().on_lease(&lease("b", 2, "h2"), rig.now);
    rig.now = rig.now.plus(500);
    let actions = rig.core.step(rig.now);
    assert_eq!(actions.iter().map(show).collect::<Vec<_>>(), ["partition Global [\"a\", \"b\"] 0"]);
    let Action::WritePartition(split) = actions[0].clone() else { panic!() };
    let revision = rig.next();
    rig.core.partition.on_partition(split, revision);
    assert_eq!(rig.set_mode(ModeChoice::Automatic), None);
    let preferred = rig.set_mode(ModeChoice::Fixed(PartitionMode::Preferred)).unwrap();
    assert_eq!((preferred.generation, preferred.slots.len()), (2, 1));
    let revision = rig.next();
    rig.core.partition.on_partition(preferred, revision);
    let shares = |rig: &Rig| rig.schedulers().iter().map(|one| one.nodes).collect::<Vec<_>>();
    assert_eq!(shares(&rig), [1, 0]);
    rig.core.on_node_spec(&NodeSpec { id: NodeId(2), name: "n2".into(), ..NodeSpec::default() }, rig.now);
    rig.now = rig.now.plus(500);
    let actions: Vec<String> = rig.core.step(rig.now).iter().map(show).collect();
    assert_eq!(actions, ["partition Preferred [\"a\", \"b\"] 2"]);
}

#[test]
fn what_no_node_could_hold_is_unschedulable_until_one_joins() {
    let mut rig = Rig::new();
    let mut large = spec(1, 1);
    large.spec.task_groups[0].template.demand.requests = Resources::new([("cpu", 20_000)]).unwrap();
    rig.put(large);
    assert_eq!(rig.phase(1), UnitPhase::Unschedulable);
    let refusals = rig.core.unit(UnitId(1)).unwrap().refusals.unwrap();
    assert_eq!(refusals.reasons[0].reason, "task group `main`: asks for 20 cpu; the largest node has 10");
    let capacity = Resources::new([("cpu", 20_000)]).unwrap();
    rig.core.on_node_report(&NodeReport { id: NodeId(2), capacity, ..NodeReport::default() }, rig.now);
    assert_eq!(rig.phase(1), UnitPhase::Queued);
}

#[test]
fn only_so_many_ended_units_are_kept() {
    let mut rig = Rig::with(Config { n_ended_max: 2, ..Config::default() });
    rig.submit(1..=4);
    for unit in 1..=4 {
        rig.bind(unit, &[0, 1]);
        rig.now = rig.now.plus(1);
        rig.status(unit, &[0, 1], RowPhase::Succeeded);
    }
    assert_eq!(rig.phase(4), UnitPhase::Completed);
    assert_eq!(rig.step(), ["delete 1", "delete 2"]);
    [1, 2].into_iter().for_each(|unit| rig.core.on_unit_deleted(UnitId(unit), rig.now));
    // The next ones gather for a moment.
    rig.submit([5]);
    rig.bind(5, &[0, 1]);
    rig.status(5, &[0, 1], RowPhase::Succeeded);
    assert_eq!(rig.step(), [""; 0]);
    rig.now = rig.now.plus(50);
    assert_eq!(rig.step(), ["delete 3"]);
}

#[test]
fn a_list_again_drops_what_is_gone() {
    let mut rig = Rig::new();
    rig.submit([1, 2]);
    rig.core.on_reset();
    let two = rig.core.unit(UnitId(2)).unwrap().record.clone();
    rig.core.on_unit(two, Revision(12), Receipt { revision: Revision(12), time_ms: 0 }, rig.now);
    rig.core.on_synced(Revision(rig.revision), rig.now);
    assert!(rig.core.unit(UnitId(1)).is_none() && rig.core.unit(UnitId(2)).is_some());
    assert_eq!(rig.core.summary().queued_units, 1);
}
