//! What must hold once nothing happens any more.

use std::collections::BTreeMap;

use godel_audit::{
    Evidence, HandedOut, History, Invariant, InvariantReport, Scan, Service, World, check_all,
    world::WorldNode,
};
use godel_base::{
    ids::{NodeId, Revision, UnitId},
    resources::{CPU, MEMORY},
};
use godel_cluster::Cluster;
use godel_core_dispatcher::read::UnitView;
use godel_domain::{
    change::Change, demand::Pool, hold::Hold, lifecycle, records::Record, reservation_spec::ReservationSpec,
    running_units::Phase, unit::OnEviction,
};
use godel_queueing::Usage;
use godel_rules::daemon::{NodeUse, node_use};

use super::{
    dispatcher, identities,
    naive::{self, NaiveSums},
    reach::Mark,
    world::Model,
};

/// Everything, at the end of a case.
pub(super) fn at_rest(model: &mut Model, has_faults: bool) -> Result<(), String> {
    let reports = audit(model);
    first_failure(&reports)?;
    let of_order = reports.iter().find(|report| report.invariant == Invariant::I10);
    if of_order.is_some_and(|report| report.checked.starts_with(|c: char| ('1'..='9').contains(&c))) {
        model.net.reach.mark(Mark::Shared);
    }
    no_leftovers(model)?;
    match &model.people {
        Some(people) => people.at_rest(model.dispatcher.answers())?,
        None => principals(model)?,
    }
    daemons(model)?;
    pictures(model)?;
    identities::at_rest(model)?;
    model.movements.at_rest()?;
    let repairs = model.dispatcher.repairs + model.dispatcher.core().summary().counters.repairs;
    if !has_faults && repairs > 0 {
        model.net.reach.mark(Mark::Repaired);
    }
    let is_waiting = |(unit, rows): (&UnitId, _)| {
        model.store.record(*unit).is_some_and(|record| !lifecycle::pending(record, rows).0.is_empty())
    };
    let is_new = |unit: &&UnitId| !model.store.rows.contains_key(*unit);
    if model.store.rows.iter().any(is_waiting) || model.store.world.units.keys().any(|unit| is_new(&unit)) {
        model.net.reach.mark(Mark::Waiting);
    }
    Ok(())
}

/// What is wrong with the history.
pub(super) fn judge(model: &Model) -> Result<(), String> {
    first_failure(&audit(model))
}

fn first_failure(reports: &[InvariantReport]) -> Result<(), String> {
    reports.iter().find(|report| report.has_failed()).map_or(Ok(()), |report| Err(report.to_string()))
}

/// What `godel audit` says of the whole history, a list, and what agents say.
fn audit(model: &Model) -> Vec<InvariantReport> {
    let mut listed_again = World::default();
    for listed in model.store.list() {
        listed_again.load(listed.created.revision, listed.revision, &listed.change);
    }
    listed_again.revision = model.store.revision();
    let history = History {
        floor: Revision(1),
        commits: model.store.commits.clone(),
        up_to: model.store.revision(),
        ..History::default()
    };
    let evidence = Evidence {
        listed: model.store.world.clone(),
        listed_again,
        before: None,
        history,
        ledger: Some(model.dispatcher.ledger().to_vec()),
        agents: model.agents.reports(),
        processes: Vec::new(),
        local: Vec::new(),
        busy: None,
        service: Service {
            floor_percent: Some(godel_queueing::Config::default().floor_percent),
            handed_out: Some(handed_out(model)),
            known_after_ms: model.net.known_after_ms(),
        },
        unreadable: Vec::new(),
    };
    check_all(&evidence)
}

fn handed_out(model: &Model) -> BTreeMap<UnitId, Vec<HandedOut>> {
    let commits = &model.store.commits;
    let time_ms = |revision: Revision| {
        let n = commits.partition_point(|commit| commit.revision <= revision);
        commits[..n].last().map_or(0, |commit| commit.time_ms)
    };
    let of_unit = |times: &Vec<(i64, Revision)>| {
        times.iter().map(|(at_ms, heard)| HandedOut { at_ms: *at_ms, heard_ms: time_ms(*heard) }).collect()
    };
    model.dispatcher.handed_out.iter().map(|(unit, times)| (*unit, of_unit(times))).collect()
}

/// Every record of a unit says who submitted it, whatever has become of the unit.
fn principals(model: &Model) -> Result<(), String> {
    for change in model.store.commits.iter().flat_map(|commit| &commit.changes) {
        let Change::Put(Record::Unit(record)) = change else { continue };
        if record.status.principal != dispatcher::principal_of(&record.spec.uid) {
            return Err(format!("{} of principal `{}`", record.id, record.status.principal));
        }
    }
    Ok(())
}

/// Nothing stays assumed, held or evicting for ever, and nothing that should come back stays away.
fn no_leftovers(model: &Model) -> Result<(), String> {
    let store = &model.store;
    for (unit, rows) in &store.rows {
        let Some(spec) = store.record(*unit) else { return Err(format!("rows of {unit} without a record")) };
        if let Some(surge) = spec.status.surges.first().filter(|_| spec.is_wanted()) {
            return Err(format!("a replacement that neither runs nor is given up: {unit} {surge:?}"));
        }
        for (ordinal, row) in &rows.rows {
            let what = format!("{unit}/{ordinal} {row:?}");
            let is_wanted = spec.is_wanted() && spec.group_of(ordinal).is_some();
            if row.phase.is_live() && row.eviction.is_some() {
                return Err(format!("evicting for ever: {what}"));
            }
            if row.phase.is_live() && !is_wanted {
                return Err(format!("nobody wants it: {what}"));
            }
            let is_lost = !model.agents.is_in_contact(row.node);
            if row.phase.is_live() && is_lost {
                return Err(format!("on a lost node: {what}"));
            }
            if row.phase == Phase::Stopped && is_wanted && spec.spec.on_eviction == OnEviction::Requeue {
                return Err(format!("it does not come back: {what}"));
            }
        }
    }
    let stays = |hold: &Hold| {
        let spec = hold.slot.as_ref().and_then(|slot| store.world.reservations.get(&*slot.reservation));
        let is_wanted = |spec: &ReservationSpec| {
            hold.ordinals.iter().all(|number| *number < spec.slots) && *hold.demand == spec.demand
        };
        spec.is_some_and(|spec| is_wanted(&spec.value) && !spec.value.is_expired(model.net.wall_ms()))
    };
    if let Some((id, hold)) = store.world.holds.iter().find(|(_, hold)| !stays(&hold.value)) {
        return Err(format!("held for ever: {id} {hold:?}"));
    }
    if !model.dispatcher.is_up() || !model.binder.is_up() {
        return Err("a part does not come back".to_owned());
    }
    let evictions = model.dispatcher.core().summary().evictions;
    if evictions > 0 {
        return Err(format!("{evictions} evictions asked for and not made"));
    }
    Ok(())
}

/// Each daemon has as many replicas as there are nodes for it, what runs on nodes that take nothing new counted in.
fn daemons(model: &Model) -> Result<(), String> {
    let world = &model.store.world;
    for (id, rows) in &world.units {
        let Some(record) = rows.record.as_ref().map(|record| &record.value) else { continue };
        let is_over = model.dispatcher.core().unit(*id).is_none_or(|unit| unit.phase.is_terminal());
        let Some(group) = record.spec.task_groups.first().filter(|_| record.spec.is_daemon() && !is_over)
        else {
            continue;
        };
        let use_of = |node: &WorldNode| match (&node.spec, &node.report) {
            (Some(spec), Some(report)) => {
                node_use(&group.template, &spec.value.taints, report.value.runtime, |key| {
                    let own = spec.value.labels.get(key);
                    own.or_else(|| report.value.attributes.get(key)).map(String::as_str)
                })
            }
            _ => NodeUse::Refused,
        };
        let stays = |node: NodeId| {
            let mut rows = rows.rows.iter().filter(|(ordinal, _)| record.group_of(**ordinal).is_some());
            rows.any(|(_, row)| row.node == node && row.is_live())
        };
        let is_for = |(id, node): &(&NodeId, &WorldNode)| match use_of(node) {
            NodeUse::Wanted => true,
            NodeUse::Kept => stays(**id),
            NodeUse::Refused => false,
        };
        let n_nodes = world.nodes.iter().filter(is_for).count();
        let n = record.iter_ordinals().count();
        if n != n_nodes || record.spec.replicas() as usize != n {
            return Err(format!("daemon {id} has {n} replicas for {n_nodes} nodes"));
        }
    }
    Ok(())
}

/// Each part's picture is what the records say: whatever was assumed is forgotten.
fn pictures(model: &mut Model) -> Result<(), String> {
    let binder = &model.binder;
    if !binder.is_idle() {
        return Err("the binder has something under way for ever".to_owned());
    }
    compare_nodes("binder", binder.core().cluster(), model)?;
    compare_queues("binder", binder.core().picture().quota().usage(), model, |path| {
        binder.core().picture().quota().tree().find(path)
    })?;
    if let Some(rescheduler) = &model.rescheduler {
        if !rescheduler.is_up() {
            return Err("the rescheduler does not come back".to_owned());
        }
        compare_nodes("rescheduler", rescheduler.core().picture().cluster(), model)?;
    }
    for (idx, scheduler) in model.schedulers.iter().enumerate() {
        let stats = scheduler.core.stats();
        if !scheduler.is_up() {
            return Err(format!("s{idx} does not come back"));
        }
        // Those that search for others of lower rank are tried again and again, and those that wait for room have turns again.
        if stats.in_flight > 0 {
            if !model.is_large {
                model.net.reach.mark(Mark::Restless);
            }
        } else if stats.running_units == 0 {
            compare_nodes(&format!("s{idx}"), scheduler.core.cluster(), model)?;
        }
    }
    Ok(())
}

fn compare_nodes(whose: &str, cluster: &Cluster, model: &Model) -> Result<(), String> {
    for (id, node) in &model.store.world.nodes {
        let (sums, taken) = naive::node(&model.store, *id, Pool::Guaranteed);
        let Some((allocated, free)) = cluster.free().node_state(*id) else {
            return Err(format!("{whose} does not know node {id}"));
        };
        for name in [CPU, MEMORY] {
            let is = sums.get(name).copied().unwrap_or(0);
            if allocated.get(name) != is {
                return Err(format!("{whose}: node {id} has {} {name} taken, not {is}", allocated.get(name)));
            }
        }
        let n_devices = node.report.as_ref().map_or(0, |report| report.value.devices.len());
        let left: Vec<u32> = taken[..n_devices].iter().map(|taken| 1_000 - taken).collect();
        if free != left {
            return Err(format!("{whose}: node {id} has devices {free:?} left, not {left:?}"));
        }
    }
    Ok(())
}

fn compare_queues(
    whose: &str,
    usage: &Usage,
    model: &Model,
    find: impl Fn(&str) -> Option<godel_queueing::QueueIdx>,
) -> Result<(), String> {
    let used = naive::queues(&model.store);
    for path in super::units::QUEUES {
        let Some(queue) = find(path) else { continue };
        let none = NaiveSums::new();
        let sums = used.get(path).unwrap_or(&none);
        let is = |name: &str| i128::from(sums.get(name).copied().unwrap_or(0));
        let says = [usage.used(queue, CPU), usage.used(queue, "gpu"), usage.running_units(queue)];
        if says != [is(CPU), is("gpu"), is("")] {
            return Err(format!("{whose}: queue {path} uses {says:?}, by the records {sums:?}"));
        }
        let of = |name: &str| used.get(name).and_then(|sums| sums.get(CPU)).copied().unwrap_or(0);
        for owner in ["o0", "o1"] {
            let by_records = of(&naive::of_owner(path, owner));
            if let Some(says) = usage.used_by_owner(queue, owner, CPU)
                && says != i128::from(by_records)
            {
                return Err(format!(
                    "{whose}: {owner} uses {says} of queue {path}, by the records {by_records}"
                ));
            }
        }
        let (says, by_records) =
            (usage.used(queue, &format!("{CPU} of application masters")), of(&naive::of_masters(path)));
        if says != i128::from(by_records) {
            return Err(format!("{whose}: masters use {says} of queue {path}, by the records {by_records}"));
        }
    }
    Ok(())
}

/// What the dispatcher says of units that wait, for people who read a failure.
pub(super) fn waiting(model: &Model) -> Vec<String> {
    let core = model.dispatcher.core();
    let views = core.units().ids_after(UnitId(0)).filter_map(|unit| core.unit(unit));
    let told = |view: UnitView<'_>| {
        let reasons = view.refusals.iter().flat_map(|refusals| &refusals.reasons);
        let reasons: Vec<&str> = reasons.map(|one| one.reason.as_str()).collect();
        let (id, phase, at) = (view.record.id, view.phase, view.scheduler.unwrap_or("nobody"));
        format!("unit {id} is {phase:?} at {at}: {}", reasons.join(", "))
    };
    views.filter(|view| view.counts.pending > 0).map(told).collect()
}

/// A plain look at the state, for people who read a failure.
pub(super) fn shown(model: &Model) -> String {
    let scan = Scan::new(&model.store.world);
    let mut text = String::new();
    for (id, unit) in &model.store.world.units {
        let Some(record) = &unit.record else { continue };
        let rows: Vec<String> = unit
            .rows
            .iter()
            .map(|(ordinal, row)| {
                format!("{ordinal}:{:?}@{} i{} {:?}", row.phase, row.node, row.incarnation, row.eviction)
            })
            .collect();
        text += &format!(
            "unit {id} {} prio {} {} min {} {:?} fits {:?} {}\n",
            record.value.spec.queue,
            record.value.spec.priority,
            record.value.spec.priority_class,
            record.value.spec.min_member,
            record.value.spec.pool,
            scan.place(&record.value, unit),
            rows.join(" "),
        );
    }
    text
}
