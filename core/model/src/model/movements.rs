//! Movements of a case: what the store keeps of them and what must hold of it, plans made by chance, and what goes wrong amid a move.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{Epoch, NodeId, RunningUnitId, UnitId},
    resources::CPU,
};
use godel_core_dispatcher::record_changes::Edit;
use godel_core_rescheduler::{
    Binpack, DriverTerms, FailureDomainSpread, LoadBalance, MovePhase, MoveRate, MovementMove,
    MovementRecord, OrderedPlan, PolicyConfig, PolicyScope, Protection, QuietTime, RecordedReason,
    RescheduleConfig, RescheduleKind, Trigger,
};
use godel_core_rescheduler_leader::{
    PlanDone, PlanWork, RescheduleLeaderConfig, RescheduleWrite, SnapshotConfig, StoredMovements,
    WriteFailure, WriteTicket,
};
use godel_domain::{
    allocation::DeviceSet, hold::Hold, lifecycle, queue_spec::QueueSpec, record_change::RecordChange,
    running_units::EvictionReason,
};

use super::{
    naive,
    net::{Event, Part},
    numbers::{Numbers, idx},
    people,
    reach::Mark,
    rescheduler::{Death, LEASE, ReschedulerSettings},
    store::Store,
    units,
    world::Model,
};

/// Policies of a case.
const POLICIES: [&str; 3] = ["balance", "pack", "spread"];
/// Moves of a plan made by chance.
const N_SCATTERED: u64 = 8;

/// The rescheduler's records as the store keeps them, and what they ever said.
#[derive(Default)]
pub(super) struct KeptMovements {
    movements: BTreeMap<u64, MovementRecord>,
    rates: BTreeMap<UnitId, Vec<u64>>,
    /// Moves that a record once said the binder is asked for.
    asked: BTreeSet<(String, RunningUnitId)>,
    /// Moves that the binder made.
    made: BTreeSet<(String, RunningUnitId)>,
}

impl KeptMovements {
    /// What a leader finds that begins now.
    pub(super) fn stored(&self) -> StoredMovements {
        StoredMovements {
            movements: self.movements.values().cloned().collect(),
            rates: self.rates.iter().map(|(unit, times)| (*unit, times.clone())).collect(),
        }
    }

    /// All moves that are recorded.
    pub(super) fn moves(&self) -> impl Iterator<Item = &MovementMove> {
        self.movements.values().flat_map(|movement| &movement.moves)
    }

    /// Takes a change; says what is wrong with it.
    fn write(&mut self, record: RescheduleWrite) -> Result<(), String> {
        match record {
            RescheduleWrite::Rate(unit, times) => drop(self.rates.insert(unit, times)),
            RescheduleWrite::RateGone(unit) => drop(self.rates.remove(&unit)),
            RescheduleWrite::MovementGone(name) => {
                self.movements.retain(|_, movement| movement.name != name);
            }
            RescheduleWrite::Movement(movement) => {
                let open = self.movements.values().find(|known| !known.is_ended());
                if let Some(open) = open.filter(|open| open.name != movement.name) {
                    return Err(format!("{} begins while {} is open", movement.name, open.name));
                }
                let asked = movement.moves.iter().filter(|one| one.n_tries > 0);
                self.asked.extend(asked.map(|one| (movement.name.clone(), one.id)));
                let before = self.movements.insert(movement.number, Arc::unwrap_or_clone(movement));
                if let Some(before) = before.filter(MovementRecord::is_ended) {
                    return Err(format!("{} has ended, and is written again", before.name));
                }
            }
        }
        Ok(())
    }

    /// The binder makes a move: a record has to say since before that it is asked for.
    pub(super) fn on_hold(&mut self, hold: &Hold) -> Result<(), String> {
        let Some(target) = &hold.movement else { return Ok(()) };
        let key = (target.movement.to_string(), target.from);
        if !self.asked.contains(&key) {
            return Err(format!("a move that no record speaks of: {key:?}"));
        }
        self.made.insert(key);
        Ok(())
    }

    /// Whether a batch is written down of which the binder has not made every move.
    pub(super) fn is_between(&self) -> bool {
        self.movements.values().filter(|movement| !movement.is_ended()).any(|movement| {
            let waits = |one: &&MovementMove| one.phase == MovePhase::Waiting && one.n_tries > 0;
            let is_made = |one: &MovementMove| self.made.contains(&(movement.name.clone(), one.id));
            movement.moves.iter().filter(waits).any(|one| !is_made(one))
        })
    }

    /// Once nothing happens any more every movement has ended, and each move that was made counts for the rate of its unit.
    pub(super) fn at_rest(&self) -> Result<(), String> {
        if let Some(open) = self.movements.values().find(|movement| !movement.is_ended()) {
            return Err(format!("a movement that does not end: {open:?}"));
        }
        let mut made: BTreeMap<UnitId, usize> = BTreeMap::new();
        for (_, from) in &self.made {
            *made.entry(from.unit).or_default() += 1;
        }
        for (unit, n) in made {
            let counted = self.rates.get(&unit).map_or(0, Vec::len);
            if counted < n {
                return Err(format!("unit {unit} was moved {n} times, of which its rate counts {counted}"));
            }
        }
        Ok(())
    }
}

/// Returns what the rescheduler of a case is started with.
pub(super) fn settings(sub_cluster_key: &str, numbers: &mut Numbers) -> ReschedulerSettings {
    let zone = Some(units::ZONE.to_owned());
    let kinds = [
        RescheduleKind::LoadBalance(LoadBalance { hot: 0.7, calm: 0.6 }),
        RescheduleKind::Binpack(Binpack { use_max: 0.7, ends_within_ms: 0 }),
        RescheduleKind::Spread(FailureDomainSpread { level: zone, n_domains: 2 }),
    ];
    let policy = |(at, kind): (usize, RescheduleKind)| {
        let policy = PolicyConfig {
            kind,
            enabled: true,
            dry_run: false,
            triggers: vec![Trigger::Request],
            scope: PolicyScope::default(),
            checked_by: POLICIES[..at].iter().map(|name| (*name).to_owned()).collect(),
            moved_max_percent: 50,
        };
        (POLICIES[at].to_owned(), policy)
    };
    let failed_max_percent = numbers.pick(&[30, 100, 100]);
    let plan_age_max_ms = 300;
    ReschedulerSettings {
        policies: RescheduleConfig {
            policies: kinds.into_iter().enumerate().map(policy).collect(),
            protection: Protection::default(),
            rate: MoveRate { n_moves_max: 4, within_ms: 3_600_000 },
            quiet: QuietTime { n_pending_max: 1_000, for_ms: 0 },
            failed_max_percent,
            plan_age_max_ms,
        },
        leader: RescheduleLeaderConfig {
            driver: DriverTerms {
                move_timeout_ms: numbers.pick(&[100, 500, 2_000]),
                movement_timeout_ms: numbers.pick(&[1_000, 2_500]),
                retry_ms: (20, 200),
                failed_max_percent,
                plan_age_max_ms,
                n_replans_max: 2,
            },
            snapshot: SnapshotConfig {
                sub_cluster_key: sub_cluster_key.to_owned(),
                other_load: false,
                restart_ms: 100,
            },
            moves_max: 20,
            bound_ms: 0,
            make_room_after_ms: numbers.pick(&[0, 400]),
            movements_max: 200,
            movements_ttl_ms: 3_600_000,
        },
        seed: numbers.next(),
        look_ms: 250,
    }
}

/// Something of the rescheduler happens.
pub(super) fn on_event(model: &mut Model, event: Event) {
    match event {
        Event::Write(life, epoch, ticket, records) => on_write(model, life, epoch, ticket, records),
        Event::Move(call) => {
            if call.caller.is_some() {
                die(model, Death::Asked);
            }
            model.binder.move_units(*call, &mut model.net);
            model.wake(Part::Binder);
        }
        Event::Moved(life, answered) => {
            if answered.answer.is_ok() {
                die(model, Death::Answered);
            }
            if let Some(part) = model.rescheduler.as_mut().filter(|part| part.life == life) {
                part.on_answered(*answered, &model.net);
            }
        }
        Event::Written(life, ticket, answer) => {
            if let Some(part) = model.rescheduler.as_mut().filter(|part| part.life == life) {
                part.on_written(ticket, answer, &model.net);
            }
        }
        Event::Movements(life) => {
            if let Some(part) = model.rescheduler.as_mut().filter(|part| part.life == life) {
                part.on_movements(model.movements.stored());
            }
        }
        Event::Plan(life, work) => {
            if model.rescheduler.as_ref().is_some_and(|part| part.life == life) {
                let done = plan(model, *work);
                if let Some(part) = &mut model.rescheduler {
                    part.on_plan(done, &model.net);
                }
            }
        }
        Event::Refusals(life, gang) => {
            let view = model.dispatcher.core().unit(gang).filter(|_| model.dispatcher.is_up());
            let refused_by = view.map(|view| {
                let reasons = view.refusals.iter().flat_map(|refusals| &refusals.reasons);
                reasons.map(|one| one.plugin.to_string()).collect::<Vec<_>>()
            });
            if let Some(part) = model.rescheduler.as_mut().filter(|part| part.life == life) {
                part.on_gang(gang, refused_by.as_deref(), &model.net);
            }
        }
        other => unreachable!("not of the rescheduler: {other:?}"),
    }
    model.wake(Part::Rescheduler);
}

/// Records arrive at the store, which now and then takes the first of them only.
fn on_write(model: &mut Model, life: u64, epoch: Epoch, ticket: WriteTicket, records: Vec<RescheduleWrite>) {
    let lease = model.store.world.leases.get(LEASE).map(|lease| &lease.value);
    let is_led = lease.is_some_and(|lease| lease.epoch == epoch && !lease.holder.is_empty());
    let (n_taken, answer) = if !is_led {
        (0, Err(WriteFailure::LeaseLost))
    } else if model.net.numbers.chance(3) {
        (idx(model.net.numbers.next(), records.len()), Err(WriteFailure::Refused))
    } else {
        (records.len(), Ok(()))
    };
    for record in records.into_iter().take(n_taken) {
        model.net.trace(|| format!("RECORD {record:?}"));
        model.net.active_at = model.net.now;
        if let Err(wrong) = model.movements.write(record) {
            model.wrong.get_or_insert(wrong);
        }
    }
    if model.movements.is_between() {
        die(model, Death::Recorded);
    }
    model.net.send((10, 0), Event::Written(life, ticket, answer));
}

/// The rescheduler dies if this is where it is to die.
fn die(model: &mut Model, death: Death) {
    if model.rescheduler.as_ref().is_some_and(|part| part.dies == Some(death)) {
        let mut numbers = Numbers::new(model.net.numbers.next());
        model.kill(Part::Rescheduler, &mut numbers);
    }
}

/// What is said of the death of a rescheduler.
pub(super) fn mark_death(model: &mut Model) {
    if model.rescheduler.as_ref().is_some_and(|part| part.is_up()) && model.movements.is_between() {
        model.net.reach.mark(Mark::KilledBeforeHold);
    }
}

/// The nodes that running units leave because of a movement, or to which they go.
pub(super) fn moving(store: &Store) -> BTreeSet<NodeId> {
    let holds = store.world.holds.values().map(|hold| &hold.value);
    let targets = holds.filter(|hold| hold.movement.is_some()).map(|hold| hold.node);
    let leaving = store.rows.values().flat_map(|rows| rows.live());
    let leaving = leaving.filter(|(_, row)| row.eviction == Some(EvictionReason::Rescheduled));
    targets.chain(leaving.map(|(_, row)| row.node)).collect()
}

/// Somebody wants something of the rescheduler: a policy that runs, room for a unit, or the end of what it does.
pub(super) fn ask(model: &mut Model, numbers: &mut Numbers) {
    if !people::may_move(model) {
        return;
    }
    let Some(part) = model.rescheduler.as_mut().filter(|part| part.is_up()) else { return };
    match numbers.below(12) {
        0 => part.abort(),
        1 => {
            let units = model.store.world.units.keys().copied();
            let waits = |unit: &UnitId| {
                let rows = model.store.rows.get(unit).cloned().unwrap_or_default();
                model
                    .store
                    .record(*unit)
                    .is_some_and(|record| !lifecycle::pending(record, &rows).0.is_empty())
            };
            let waiting: Vec<UnitId> = units.filter(waits).collect();
            if !waiting.is_empty() {
                part.make_room(numbers.pick(&waiting));
            }
        }
        _ => part.ask_for_run(numbers.pick(&POLICIES)),
    }
    model.wake(Part::Rescheduler);
}

/// Makes a plan: the one that is wanted, or, as long as faults happen, often one by chance: the binder has to bear with any.
fn plan(model: &mut Model, mut work: PlanWork) -> PlanDone {
    let mut done = work.unmade();
    let is_scattered = model.scatters && !model.is_calm && model.net.numbers.chance(75);
    done.plan = match is_scattered {
        true => Ok(scatter(model)),
        false => work.make(),
    };
    if let Ok(plan) = &done.plan
        && !plan.moves.is_empty()
    {
        let unit = plan.moves[0].id.unit;
        model.net.trace(|| format!("PLAN {:?}", plan.moves));
        if !is_scattered {
            model.net.reach.mark(Mark::Planned);
        }
        if model.is_tight && model.net.numbers.chance(70) {
            fill_queue(model, unit);
        }
    }
    done
}

/// Some running units are to go to nodes of the cluster, whether they fit there or not.
fn scatter(model: &mut Model) -> OrderedPlan {
    let nodes = model.agents.ids();
    let store = &model.store;
    let live: Vec<(RunningUnitId, NodeId)> = store
        .rows
        .iter()
        .flat_map(|(unit, rows)| {
            let ids = rows
                .live()
                .map(|(ordinal, row)| (RunningUnitId::new(*unit, ordinal, row.incarnation), row.node));
            ids.collect::<Vec<_>>()
        })
        .collect();
    if live.is_empty() || nodes.is_empty() {
        return OrderedPlan::default();
    }
    let starts_first = |unit: UnitId| store.record(unit).is_some_and(|record| record.spec.max_surge > 0);
    let meets =
        |unit: UnitId| model.meets && store.record(unit).is_some_and(|record| units::is_met(&record.spec));
    let of = |picked: &dyn Fn(UnitId) -> bool| -> Vec<_> {
        live.iter().copied().filter(|(id, _)| picked(id.unit)).collect()
    };
    let is_kept = |unit: UnitId| {
        let mut budgets = store.world.budgets.values().map(|budget| &budget.value.selector);
        let record = store.record(unit);
        let selects = |selector: &BTreeMap<String, String>| {
            selector
                .iter()
                .all(|(key, value)| record.is_some_and(|record| record.spec.labels.get(key) == Some(value)))
        };
        budgets.any(selects)
    };
    let (surging, meeting, kept) = (of(&starts_first), of(&meets), of(&is_kept));
    let mut n_live: BTreeMap<NodeId, usize> = nodes.iter().map(|node| (*node, 0)).collect();
    live.iter().for_each(|(_, node)| *n_live.entry(*node).or_default() += 1);
    // Most moves go where there may be room.
    let mut calm = nodes.clone();
    calm.sort_by_key(|node| n_live[node]);
    calm.truncate(calm.len().div_ceil(3));
    let numbers = &mut model.net.numbers;
    let mut moves: BTreeMap<RunningUnitId, MovementMove> = BTreeMap::new();
    for _ in 0..=numbers.below(if model.meets { 2 * N_SCATTERED } else { N_SCATTERED }) {
        let of = if !kept.is_empty() && numbers.chance(40) {
            &kept
        } else if !meeting.is_empty() && numbers.chance(80) {
            &meeting
        } else if !surging.is_empty() && numbers.chance(85) {
            &surging
        } else {
            &live
        };
        let (id, from) = numbers.pick(of);
        let targets = if numbers.chance(60) { &calm } else { &nodes };
        let elsewhere: Vec<NodeId> = targets.iter().copied().filter(|node| *node != from).collect();
        let to = if elsewhere.is_empty() || numbers.chance(5) { from } else { numbers.pick(&elsewhere) };
        let batch = u32::from(numbers.chance(40));
        let spec = store.record(id.unit).map(|record| &record.spec);
        let name = spec.map(|spec| format!("{}/{}", spec.namespace, spec.name));
        let name = name.unwrap_or_else(|| format!("unit {}", id.unit));
        moves.insert(id, scattered(id, name, (from, to), batch));
    }
    // Batches are numbered without gaps.
    let first = moves.values().map(|one| one.batch).min().unwrap_or(0);
    moves.values_mut().for_each(|one| one.batch -= first);
    let n_batches = moves.values().map(|one| one.batch + 1).max().unwrap_or(0);
    OrderedPlan { moves: moves.into_values().collect(), n_batches, ..OrderedPlan::default() }
}

fn scattered(id: RunningUnitId, unit: String, (from, to): (NodeId, NodeId), batch: u32) -> MovementMove {
    let named = |node: NodeId| (node, format!("n{node}"));
    MovementMove {
        id,
        unit,
        from: named(from),
        to: named(to),
        devices: DeviceSet::NONE,
        batch,
        is_detour: false,
        cost_ms: 0,
        reason: RecordedReason::default(),
        phase: MovePhase::Waiting,
        actual: None,
        detail: String::new(),
        n_tries: 0,
        changed_ms: 0,
        surge_ordinal: None,
    }
}

/// The queue of a unit may use no more than it does.
fn fill_queue(model: &mut Model, unit: UnitId) {
    let Some(record) = model.store.record(unit) else { return };
    let mut spec = QueueSpec::new(&record.spec.queue);
    let used = naive::queues(&model.store);
    let cpu = used.get(&spec.name).and_then(|sums| sums.get(CPU)).copied().unwrap_or(0);
    spec.max.insert(CPU.to_owned(), cpu);
    let change = RecordChange::Put(Arc::new(spec));
    let edit = Edit { queues: vec![change], ..Edit::default() };
    model.dispatcher.edit(&edit);
    model.wake(Part::Dispatcher);
}
