use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId};
use godel_core_rescheduler::{
    Binpack, DriverTerms, MovementPhase, PolicyConfig, PolicyScope, RescheduleKind, Trigger,
};
use godel_domain::{
    change::Change,
    records::Record,
    requested_move::MadeMove,
    running_units::{Bind, Phase, RunChange, Statuses},
    unit::UnitRecord,
};
use godel_testkit::{BuildUnit as _, node, unit};

use super::*;
use crate::{MovesAsked, MovesUnanswered, PlanAnswer, PlanDone, PlanWork, RescheduleWrite, SnapshotConfig};

const UNIT: UnitId = UnitId(7);
const NOW: i64 = 1_000_000;

/// What a leader said.
#[derive(Default)]
struct Heard {
    written: Vec<(WriteTicket, Vec<RescheduleWrite>)>,
    /// Who waited for each.
    waited: Vec<Vec<u32>>,
    asked: Vec<MovesAsked>,
    works: Vec<PlanWork>,
    planned: Vec<(u32, Result<PlanAnswer, CallRefusal>)>,
    aborted: Vec<(u32, Result<MovementRecord, AbortRefusal>)>,
}

impl RescheduleOutbox for Heard {
    type Caller = u32;

    fn write(&mut self, ticket: WriteTicket, records: Vec<RescheduleWrite>, callers: &[&u32]) {
        self.written.push((ticket, records));
        self.waited.push(callers.iter().map(|caller| **caller).collect());
    }

    fn move_units(&mut self, asked: MovesAsked) {
        self.asked.push(asked);
    }

    fn plan(&mut self, work: PlanWork) {
        self.works.push(work);
    }

    fn ask_refusals(&mut self, _gang: &UnitRecord) {}

    fn planned(&mut self, caller: u32, answer: Result<PlanAnswer, CallRefusal>) {
        self.planned.push((caller, answer));
    }

    fn aborted(&mut self, caller: u32, answer: Result<MovementRecord, AbortRefusal>) {
        self.aborted.push((caller, answer));
    }
}

impl Heard {
    /// The last records, as one who leads next would find them.
    fn stored(&self) -> StoredMovements {
        let mut stored = StoredMovements::default();
        for record in &self.written.last().expect("something is written").1 {
            match record {
                RescheduleWrite::Movement(movement) => stored.movements.push(MovementRecord::clone(movement)),
                RescheduleWrite::Rate(unit, times) => stored.rates.push((*unit, times.clone())),
                RescheduleWrite::MovementGone(_) | RescheduleWrite::RateGone(_) => {}
            }
        }
        stored
    }

    fn ticket(&self) -> WriteTicket {
        self.written.last().expect("something is written").0
    }
}

/// A cluster of two nodes, on each of which a replica runs that would fit beside the other one.
fn leader() -> ReschedulerLeader<u32> {
    let config = RescheduleLeaderConfig {
        driver: DriverTerms {
            move_timeout_ms: 60_000,
            movement_timeout_ms: 600_000,
            retry_ms: (500, 15_000),
            failed_max_percent: 50,
            plan_age_max_ms: 5_000,
            n_replans_max: 3,
        },
        snapshot: SnapshotConfig {
            sub_cluster_key: "sub-cluster".to_owned(),
            other_load: false,
            restart_ms: 1_000,
        },
        moves_max: 10,
        bound_ms: 0,
        make_room_after_ms: 0,
        movements_max: 10,
        movements_ttl_ms: 600_000,
    };
    let mut leader = ReschedulerLeader::new(config.clone(), 1);
    let pack = PolicyConfig {
        kind: RescheduleKind::Binpack(Binpack { use_max: 0.9, ends_within_ms: 0 }),
        enabled: true,
        dry_run: false,
        triggers: vec![Trigger::Request],
        scope: PolicyScope::default(),
        checked_by: Default::default(),
        moved_max_percent: 100,
    };
    let policies = [("pack".to_owned(), pack)].into();
    leader.configure(config, RescheduleConfig { policies, ..RescheduleConfig::default() }, NOW).unwrap();
    for id in [1, 2] {
        let known = node(id).cpu(1_000).has("running-units", 100);
        leader.picture_mut().load(&Change::Put(Record::NodeSpec(known.spec)), Revision(1), 1);
        leader.picture_mut().load(&Change::Put(Record::NodeReport(known.report)), Revision(1), 1);
    }
    let record = unit("u").replicas(2).cpu(100).id(UNIT);
    let demand = Arc::new(record.spec.task_groups[0].template.demand.clone());
    leader.picture_mut().load(&Change::Put(Record::Unit(Arc::new(record))), Revision(1), 1);
    let ordinals = vec![0, 1];
    let nodes = vec![NodeId(1), NodeId(2)];
    let bind = Bind { demand, ordinals: ordinals.clone(), nodes, ..Bind::default() };
    leader.picture_mut().load(&Change::Rows(UNIT, RunChange::Bind(bind)), Revision(1), 1);
    let phases = vec![Phase::Running; 2];
    let statuses = Statuses { ordinals, phases, ..Statuses::default() };
    leader.picture_mut().load(&Change::Rows(UNIT, RunChange::Statuses(statuses)), Revision(1), 1);
    leader.picture_mut().on_synced(Revision(1));
    leader
}

/// A leader whose first movement is about to be written, of one move.
fn moving() -> (ReschedulerLeader<u32>, Heard) {
    let (mut leader, mut heard) = (leader(), Heard::default());
    leader.lead(StoredMovements::default(), &mut heard);
    leader.run_policy("pack".to_owned(), 1, &mut heard);
    leader.step(NOW, &mut heard);
    let mut work = heard.works.pop().expect("a plan is wanted");
    let done = PlanDone { plan: work.make(), ..work.unmade() };
    leader.on_plan(done, NOW, &mut heard);
    leader.step(NOW, &mut heard);
    (leader, heard)
}

#[test]
fn the_binder_is_asked_once_the_record_is_durable() {
    let (mut leader, mut heard) = moving();
    assert_eq!((heard.written.len(), heard.asked.len(), heard.planned.len()), (1, 0, 0));
    leader.step(NOW + 10, &mut heard);
    assert_eq!(heard.written.len(), 1, "one set of records at a time");
    leader.on_written(heard.ticket(), Ok(()), NOW + 20, &mut heard);
    assert_eq!((heard.asked.len(), heard.planned.len()), (1, 1));
    let asked = &heard.asked[0];
    assert_eq!((asked.movement.as_str(), asked.moves.len()), ("pack-1", 1));
    assert_eq!(asked.expires_ms, NOW + 20 + 60_000);
    assert_eq!(heard.planned[0].1.as_ref().unwrap().movement, "pack-1");
    assert_eq!(heard.waited, [[heard.planned[0].0]], "it is written on behalf of who waits");
    // The answer is written down, with the rate of the unit.
    let answer = Ok(vec![Ok(MadeMove { hold: HoldId(3), surge: None })]);
    let MovesAsked { number, asked, .. } = heard.asked.remove(0);
    leader.on_moves_answered(MovesAnswered { number, asked, answer }, NOW + 30);
    leader.step(NOW + 30, &mut heard);
    let stored = heard.stored();
    assert_eq!(stored.rates, [(UNIT, vec![u64::try_from(NOW + 30).unwrap()])]);
    assert_eq!(stored.movements[0].counts().all, 1);
}

#[test]
fn what_the_store_refuses_is_not_asked_for_and_written_again_later() {
    let (mut leader, mut heard) = moving();
    leader.on_written(heard.ticket(), Err(WriteFailure::Refused), NOW, &mut heard);
    leader.step(NOW + 999, &mut heard);
    assert_eq!((heard.written.len(), heard.asked.len(), heard.planned.len()), (1, 0, 0));
    assert_eq!(leader.next_ms(), Some(NOW + 1_000));
    leader.step(NOW + 2_000, &mut heard);
    assert_eq!(heard.written.len(), 2);
    leader.on_written(heard.ticket(), Ok(()), NOW + 2_000, &mut heard);
    assert_eq!(heard.planned.len(), 1, "the movement is there");
    let caller = heard.planned[0].0;
    assert_eq!(heard.waited, [[caller], [caller]], "and again when it was refused");
    leader.step(NOW + 4_000, &mut heard);
    leader.on_written(heard.ticket(), Ok(()), NOW + 4_000, &mut heard);
    assert_eq!(heard.asked.len(), 1);
}

#[test]
fn the_next_leader_asks_again_for_what_is_recorded() {
    let (mut first, mut heard) = moving();
    let stored = heard.stored();
    first.on_written(heard.ticket(), Ok(()), NOW, &mut heard);
    first.step_down(&mut heard);
    assert!(!first.leads() && first.may_lead() && first.movements().next().is_none());
    let (mut next, mut later) = (leader(), Heard::default());
    let rates = vec![(UnitId(9), vec![5, 6])];
    next.lead(StoredMovements { rates, ..stored }, &mut later);
    assert_eq!(next.manager().log().iter().count(), 2);
    next.step(NOW + 50, &mut later);
    next.on_written(later.ticket(), Ok(()), NOW + 50, &mut later);
    assert_eq!(later.asked.len(), 1);
    assert_eq!(
        (later.asked[0].movement.clone(), &later.asked[0].moves),
        ("pack-1".to_owned(), &heard.asked[0].moves)
    );
    // An answer to a leadership that is over changes nothing.
    first.on_written(WriteTicket { term: 1, number: 9 }, Ok(()), NOW, &mut heard);
    assert_eq!(heard.asked.len(), 1);
}

#[test]
fn what_is_being_written_is_waited_for_before_the_next_term() {
    let (mut leader, mut heard) = moving();
    leader.reset(StoreId(1), &mut heard);
    leader.picture_mut().on_synced(Revision(2));
    assert!(!leader.leads() && !leader.may_lead(), "its record is not in a list that is read now");
    leader.on_written(heard.ticket(), Ok(()), NOW, &mut heard);
    assert!(leader.may_lead() && heard.asked.is_empty());
}

#[test]
fn who_ends_a_movement_hears_it_when_that_is_recorded() {
    let (mut leader, mut heard) = moving();
    leader.abort("pack-1".to_owned(), "enough".to_owned(), 5, &mut heard);
    leader.abort("pack-2".to_owned(), String::new(), 6, &mut heard);
    leader.step(NOW, &mut heard);
    assert!(heard.aborted.is_empty(), "its beginning is being written");
    leader.on_written(heard.ticket(), Ok(()), NOW, &mut heard);
    let MovesAsked { number, asked, .. } = heard.asked.remove(0);
    let answer = Err(MovesUnanswered::Unusable("no".to_owned()));
    leader.step(NOW, &mut heard);
    assert_eq!((heard.written.len(), heard.aborted.len()), (2, 0));
    leader.on_written(heard.ticket(), Ok(()), NOW, &mut heard);
    let (caller, movement) = heard.aborted.remove(0);
    assert_eq!((caller, movement.unwrap().ending), (5, Some(MovementPhase::Aborted)));
    leader.on_moves_answered(MovesAnswered { number, asked, answer }, NOW);
    leader.step(NOW, &mut heard);
    assert_eq!(heard.aborted, [(6, Err(AbortRefusal::Unknown("pack-2".to_owned())))]);
}

#[test]
fn nobody_waits_for_one_who_leads_no_more() {
    let (mut leader, mut heard) = moving();
    leader.abort("pack-1".to_owned(), String::new(), 2, &mut heard);
    leader.show_plan("pack".to_owned(), 3, &mut heard);
    leader.on_written(heard.ticket(), Err(WriteFailure::LeaseLost), NOW, &mut heard);
    assert!(!leader.leads());
    assert_eq!(heard.aborted, [(2, Err(AbortRefusal::NotLeading))]);
    let refused =
        |(caller, answer): &(u32, Result<PlanAnswer, CallRefusal>)| (*caller, answer.as_ref().err().copied());
    let planned: Vec<_> = heard.planned.iter().map(refused).collect();
    assert_eq!(planned, [(1, Some(CallRefusal::NotLeading)), (3, Some(CallRefusal::NotLeading))]);
    leader.run_policy("pack".to_owned(), 4, &mut heard);
    assert_eq!(heard.planned.last().map(refused), Some((4, Some(CallRefusal::NotLeading))));
    let id = RunningUnitId::new(UNIT, 0, 0);
    assert_eq!(leader.picture().cluster().rows().of(id.unit).map(|rows| rows.live().count()), Some(2));
}
