//! What is shown of applications, attempts, containers, nodes and queues, from memory.

use std::collections::BTreeMap;

use godel_core_yarn::{
    adapter::{MASTER, OPPORTUNISTIC, YarnApplication},
    application::PublicAppState,
    attempt::AttemptState,
    container::PublicContainerState,
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_domain::{
    names::yarn_user,
    queue_spec::{DEFAULT_QUEUE, QueueSpec, parent},
    running_units::{Phase, RunningUnit},
};

use crate::{
    answers::{LaunchNode, ManagerRefusal},
    notes::AttemptNotes,
    picture::{Applicant, YarnPicture, YarnUnit, add, state_of},
    queues::{ROOT, yarn_name},
    reports::{
        AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, QueueReport, YarnAmount,
        YarnNodeReport,
    },
    state::{AppEntry, KnownHeadroom, LeaderState},
    waits,
};

/// Characters that are kept of what a master says at its end.
pub(crate) const DIAGNOSTICS_MAX: usize = 8 << 10;
/// What a container may ask for while no node is known: YARN's default.
const LARGEST_DEFAULT: (i64, i64) = (8_192, 4);

/// The most that one container may ask for: what the largest node has.
pub(crate) fn largest(state: &LeaderState) -> YarnAmount {
    let largest = &state.picture.sums.largest;
    if largest.memory_mb > 0 {
        return largest.clone();
    }
    let (memory_mb, vcores) = LARGEST_DEFAULT;
    YarnAmount { memory_mb, vcores, others: BTreeMap::new() }
}

/// What an application could get now, for its master. It is worked out once for the same sums, asks and queue.
pub(crate) fn headroom(state: &mut LeaderState, id: YarnApplicationId) -> YarnAmount {
    let LeaderState { picture, adapter, entries, .. } = state;
    let Some((application, entry)) = adapter.get(id).zip(entries.get_mut(&id)) else {
        return YarnAmount::default();
    };
    let (submission, asks) = (application.submission(), application.asks());
    let versions = (picture.room.version, asks.version());
    let known = entry.headroom.as_ref();
    if let Some(known) = known.filter(|known| known.versions == versions && known.queue == submission.queue) {
        return known.room.clone();
    }
    let terms = asks.terms();
    let mut labels = asks.labels();
    if labels.is_empty() {
        labels.insert(&terms.label);
    }
    let applicant = Applicant {
        queue: &submission.queue,
        owner: &submission.user,
        labels: &labels,
        refused: &terms.refused,
    };
    let room = picture.headroom(applicant);
    entry.headroom = Some(KnownHeadroom { versions, queue: submission.queue.clone(), room: room.clone() });
    room
}

/// What an application waits for.
fn pending(application: &YarnApplication) -> (YarnAmount, u32) {
    let (mut amount, mut count) = (YarnAmount::default(), 0_u32);
    for (key, n) in application.asks().wanted() {
        add(&mut amount, &YarnAmount::from_capability(&key.group.capability), i64::from(n));
        count = count.saturating_add(n);
    }
    let waits = application.attempts().last().is_some_and(|attempt| attempt.state == AttemptState::Scheduled);
    if let Some(master) = application.submission().master.as_ref().filter(|_| waits) {
        add(&mut amount, &YarnAmount::from_capability(&master.capability), 1);
        count = count.saturating_add(1);
    }
    (amount, count)
}

/// What the running units of an application take now.
fn used(picture: &YarnPicture, id: YarnApplicationId) -> (YarnAmount, u32) {
    let (mut sum, mut count) = (YarnAmount::default(), 0_u32);
    for unit in picture.units_of(id) {
        let amounts = unit.amounts();
        for (_, row) in unit.rows.live() {
            if let Some(amount) = amounts.get(usize::from(row.group)) {
                add(&mut sum, amount, 1);
                count = count.saturating_add(1);
            }
        }
    }
    (sum, count)
}

/// MiB-seconds and CPU-seconds of an application until a time, Unix milliseconds; `None`: its unit is not known. Running units show their
/// last incarnation only: what the masters of earlier attempts took, from their start to their end, stands in the notes of these attempts.
pub(crate) fn used_seconds(
    picture: &YarnPicture,
    application: &YarnApplication,
    attempts: &[AttemptNotes],
    until_ms: i64,
) -> Option<(i64, i64)> {
    let (mut memory, mut cpu) = picture.used_seconds(application.id(), until_ms)?;
    let master = application.submission().master.as_ref();
    let amount = master.map(|master| YarnAmount::from_capability(&master.capability)).unwrap_or_default();
    // The first attempt is incarnation 0.
    let n_earlier = picture.unit(application.id()).map_or(0, |unit| unit.row(MASTER).incarnation);
    let earlier = attempts.iter().take(usize::try_from(n_earlier).unwrap_or(usize::MAX));
    for attempt in earlier.filter(|attempt| attempt.launch_ms > 0) {
        let seconds = attempt.finish_ms.saturating_sub(attempt.launch_ms).max(0) / 1_000;
        memory = memory.saturating_add(amount.memory_mb.saturating_mul(seconds));
        cpu = cpu.saturating_add(amount.vcores.saturating_mul(seconds));
    }
    Some((memory, cpu))
}

/// An application.
pub(crate) fn application(
    state: &LeaderState,
    application: &YarnApplication,
    entry: &AppEntry,
    now_ms: i64,
) -> AppReport {
    let submission = application.submission();
    let (used, n_containers) = used(&state.picture, application.id());
    let (pending, n_pending) = if application.is_over() { Default::default() } else { pending(application) };
    let (start_ms, finish_ms) = application.times_ms();
    let until = finish_ms.unwrap_or(now_ms);
    let used_seconds = used_seconds(&state.picture, application, &entry.notes.attempts, until);
    let (memory_seconds, vcore_seconds) = used_seconds.unwrap_or(entry.notes.used_seconds);
    let attempt = application.attempts().last();
    let said = entry.notes.attempts.last().map(|notes| notes.diagnostics.as_str()).unwrap_or_default();
    // Why the last one was not started is told already.
    let said = if application.diagnostics().contains(said) { "" } else { said };
    let is_finished = application.public_state() == PublicAppState::Finished;
    let waits = waits::shown(application, entry);
    let lines = [application.diagnostics(), said, &waits];
    let diagnostics = lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    AppReport {
        id: application.id(),
        name: submission.name.clone(),
        user: submission.user.clone(),
        queue: yarn_name(&state.config.root_queue, &submission.queue),
        kind: submission.kind.clone(),
        tags: entry.notes.tags.clone(),
        priority: submission.priority,
        state: application.public_state(),
        final_status: application.final_status(),
        diagnostics,
        start_ms,
        launch_ms: entry.notes.attempts.first().map_or(0, |notes| notes.launch_ms),
        finish_ms: finish_ms.unwrap_or(0),
        progress: if is_finished { 1.0 } else { entry.progress },
        attempt: application.attempts().current(),
        is_launched: attempt.is_some_and(|attempt| attempt.state.is_launched()),
        registration: attempt.and_then(|attempt| attempt.registration.clone()),
        master_node: attempt.and_then(|attempt| attempt.node.clone()),
        is_unmanaged: submission.master.is_none(),
        label: submission.label.clone(),
        master_label: submission.master.as_ref().map(|master| master.label.clone()).unwrap_or_default(),
        used,
        n_containers,
        pending,
        n_pending,
        memory_seconds,
        vcore_seconds,
        timeout_at_ms: submission.lifetime_ms.map(|lifetime| start_ms.saturating_add(lifetime)),
    }
}

/// Applications that a filter lets through, the newest first.
pub(crate) fn applications(state: &LeaderState, filter: &AppFilter, now_ms: i64) -> Vec<AppReport> {
    let root = &state.config.root_queue;
    let limit = filter.limit.unwrap_or(usize::MAX);
    let mut known: Vec<(&YarnApplication, &AppEntry)> = state
        .adapter
        .iter()
        .filter_map(|application| Some((application, state.entries.get(&application.id())?)))
        .filter(|(application, entry)| is_let_through(filter, application, entry, root))
        .collect();
    known.sort_by_key(|(application, _)| std::cmp::Reverse((application.times_ms().0, application.id())));
    known.into_iter().take(limit).map(|(of, entry)| self::application(state, of, entry, now_ms)).collect()
}

fn is_let_through(filter: &AppFilter, application: &YarnApplication, entry: &AppEntry, root: &str) -> bool {
    let submission = application.submission();
    let is_within = |range: Option<(i64, i64)>, at: Option<i64>| {
        range.is_none_or(|(from, to)| at.is_some_and(|at| (from..=to).contains(&at)))
    };
    let queue = yarn_name(root, &submission.queue);
    let is_queue = |name: &String| {
        *name == queue || queue.rsplit('.').next() == Some(name) || queue.strip_prefix("root.") == Some(name)
    };
    let (start_ms, finish_ms) = application.times_ms();
    let lets = |is_empty: bool, is_in: bool| is_empty || is_in;
    // Clients of YARN know no owners, but names.
    let is_of = |user: &str| user == submission.user || user == yarn_user(&submission.user);
    lets(filter.states.is_empty(), filter.states.contains(&application.public_state()))
        && lets(filter.final_statuses.is_empty(), filter.final_statuses.contains(&application.final_status()))
        && lets(
            filter.kinds.is_empty(),
            filter.kinds.iter().any(|kind| kind.eq_ignore_ascii_case(&submission.kind)),
        )
        && lets(filter.tags.is_empty(), filter.tags.iter().any(|tag| entry.notes.tags.contains(tag)))
        && lets(filter.users.is_empty(), filter.users.iter().any(|user| is_of(user)))
        && lets(filter.queues.is_empty(), filter.queues.iter().any(is_queue))
        && is_within(filter.started_ms, Some(start_ms))
        && is_within(filter.finished_ms, finish_ms)
        && filter.name.as_ref().is_none_or(|name| *name == submission.name)
}

/// Attempts of an application.
pub(crate) fn attempts(application: &YarnApplication, entry: &AppEntry) -> Vec<AttemptReport> {
    let none = AttemptNotes::default();
    let noted = entry.notes.attempts.iter().chain(std::iter::repeat(&none));
    let current = application.attempts().current();
    let shown = application.attempts().iter().zip(noted).map(|(attempt, notes)| {
        let has_place = attempt.node.is_some();
        let how = attempt.how_ended().filter(|_| attempt.state.is_over());
        let diagnostics = match how {
            _ if !notes.diagnostics.is_empty() => notes.diagnostics.clone(),
            Some(how) => how,
            None if current == Some(attempt.id) => waits::shown(application, entry),
            None => String::new(),
        };
        AttemptReport {
            id: attempt.id,
            state: attempt.state,
            master: has_place.then_some(YarnContainerId {
                attempt: attempt.id,
                epoch: 0,
                number: u64::from(MASTER) + 1,
            }),
            node: attempt.node.clone(),
            registration: attempt.registration.clone(),
            diagnostics,
            start_ms: notes.start_ms,
            finish_ms: notes.finish_ms,
        }
    });
    shown.collect()
}

/// Containers of an attempt: its master and what was asked for since it began, as far as they have a place.
pub(crate) fn containers(
    state: &LeaderState,
    application: &YarnApplication,
    id: YarnAttemptId,
) -> Vec<ContainerReport> {
    let picture = &state.picture;
    let Some(unit) = picture.unit(application.id()) else { return Vec::new() };
    let amounts: Vec<Vec<YarnAmount>> = picture.units_of(application.id()).map(YarnUnit::amounts).collect();
    let amount = |of_unit: usize, row: &RunningUnit| {
        amounts.get(of_unit).and_then(|of| of.get(usize::from(row.group))).cloned().unwrap_or_default()
    };
    let mut shown = Vec::new();
    let attempt = application.attempts().iter().find(|attempt| attempt.id == id);
    let row = unit.row(MASTER);
    if let Some(node) = attempt.and_then(|attempt| attempt.node.clone())
        && row.incarnation.checked_add(1) == Some(id.number)
        && row.phase != Phase::Pending
    {
        let id = YarnContainerId { attempt: id, epoch: 0, number: u64::from(MASTER) + 1 };
        let state = match row.phase {
            Phase::Pending | Phase::Bound | Phase::Starting => PublicContainerState::New,
            Phase::Running => PublicContainerState::Running,
            Phase::Succeeded | Phase::Failed | Phase::Stopped => PublicContainerState::Complete,
        };
        shown.push(report(id, unit, MASTER, amount(0, &row), state, node));
    }
    for (ordinal, container) in
        application.containers().iter().filter(|(_, container)| container.id.attempt == id)
    {
        let Some(unit) = picture.unit_of(application.id(), ordinal) else { continue };
        let (row, of_unit) = (unit.row(ordinal), usize::from(ordinal >= OPPORTUNISTIC));
        let (amount, node) = (amount(of_unit, &row), container.node.clone());
        shown.push(ContainerReport {
            key: Some(container.key.clone()),
            ..report(container.id, unit, ordinal, amount, container.state.public(), node)
        });
    }
    shown
}

fn report(
    id: YarnContainerId,
    unit: &YarnUnit,
    ordinal: u32,
    amount: YarnAmount,
    state: PublicContainerState,
    node: String,
) -> ContainerReport {
    let (row, end) = (unit.row(ordinal), unit.end(ordinal));
    let is_over = row.phase.is_ended();
    ContainerReport {
        id,
        key: None,
        amount,
        state,
        node,
        start_ms: row.bound_time_ms,
        finish_ms: if is_over { end.ended_ms } else { 0 },
        exit: if is_over { unit.exit_of(ordinal).0 } else { YarnExitStatus::INVALID.0 },
        diagnostics: end.reason.map(|reason| reason.name().to_owned()).unwrap_or_default(),
    }
}

/// Why a node gets nothing new whose agent has not renewed itself.
const EXPIRED: &str = "the certificate of its agent has expired";

/// Nodes that run containers of YARN and have changed since `told`.
pub(crate) fn nodes(state: &LeaderState, now_ms: i64, told: u64) -> Vec<YarnNodeReport> {
    let picture = &state.picture;
    let mut shown = Vec::new();
    for (id, node) in picture.nodes.iter().filter(|(_, node)| told == 0 || node.change > told) {
        let Some(launch) = picture.launch_node(*id) else { continue };
        let (used, n_containers) = picture.sums.by_node.get(id).cloned().unwrap_or_default();
        let is_ready = node.report.as_ref().is_some_and(|report| report.ready);
        let mut attributes = node.report.as_ref().map(|report| report.attributes.clone()).unwrap_or_default();
        attributes.extend(node.spec.iter().flat_map(|spec| spec.labels.clone()));
        let spec = node.spec.as_ref();
        let quarantine =
            spec.and_then(|spec| spec.quarantine.as_ref()).map(|quarantine| quarantine.reason.clone());
        let expired = spec.and_then(|spec| spec.identity_expired_since_ms).map(|_| EXPIRED.to_owned());
        let trouble = node.report.as_ref().map(|report| report.trouble.clone());
        shown.push(YarnNodeReport {
            host: launch.host,
            port: launch.port,
            rack: picture.rack(*id),
            state: state_of(node, n_containers),
            total: YarnPicture::total(node),
            used,
            n_containers,
            label: picture.label(node, &state.config.label_key).unwrap_or_default().to_owned(),
            attributes,
            heard_ms: if is_ready { now_ms } else { node.heard_ms },
            health: quarantine.or(expired).or(trouble).unwrap_or_default(),
        });
    }
    shown
}

/// The name in godel of a node that a client names by its host, with or without its port, or by that name.
///
/// # Errors
/// There is none, or several have that host.
pub(crate) fn node_name(state: &LeaderState, asked: &str) -> Result<String, ManagerRefusal> {
    let launches = state.picture.nodes.keys().filter_map(|id| state.picture.launch_node(*id));
    let is_meant = |node: &LaunchNode| {
        node.name == asked || node.host == asked || format!("{}:{}", node.host, node.port) == asked
    };
    let named: Vec<String> = launches.filter(is_meant).map(|node| node.name).collect();
    match named.as_slice() {
        [name] => Ok(name.clone()),
        [] => {
            Err(ManagerRefusal::Invalid(format!("there is no node `{asked}` that runs containers of YARN")))
        }
        several => Err(ManagerRefusal::Invalid(format!(
            "{} nodes have the host `{asked}`: name one with its port",
            several.len()
        ))),
    }
}

/// What is free in per cent of what is whole, by memory, or by CPUs where no memory is said.
fn percent(part: &BTreeMap<String, i64>, whole: &YarnAmount) -> Option<f32> {
    let part = YarnAmount::from_capability(part);
    let share = |part: i64, whole: i64| {
        (part > 0 && whole > 0).then(|| {
            let hundredths = part.saturating_mul(10_000) / whole;
            f32::from(u16::try_from(hundredths.min(10_000)).unwrap_or(10_000)) / 100.0
        })
    };
    share(part.memory_mb, whole.memory_mb).or_else(|| share(part.vcores, whole.vcores))
}

/// Queues in YARN's shape, those above before those below.
pub(crate) fn queues(state: &LeaderState) -> Vec<QueueReport> {
    let root = state.config.root_queue.as_str();
    let sums = &state.picture.sums;
    let mut waits: BTreeMap<&str, (YarnAmount, u32, u32, u32)> = BTreeMap::new();
    for application in state.adapter.iter().filter(|application| !application.is_over()) {
        let (amount, n) = pending(application);
        let has_place = application.attempts().last().is_some_and(|attempt| attempt.node.is_some());
        let mut path = Some(application.submission().queue.as_str());
        let mut note = |path| {
            let sum = waits.entry(path).or_default();
            add(&mut sum.0, &amount, 1);
            sum.1 = sum.1.saturating_add(n);
            sum.2 += u32::from(has_place);
            sum.3 += u32::from(!has_place);
        };
        while let Some(queue) = path {
            note(queue);
            path = parent(queue);
        }
        note("");
    }
    let default = QueueSpec::new(DEFAULT_QUEUE);
    let known = state.picture.queues.values().map(|spec| &**spec);
    let is_default_known = state.picture.queues.contains_key(DEFAULT_QUEUE);
    let mut specs: BTreeMap<&str, &QueueSpec> = known
        .filter(|spec| {
            root.is_empty()
                || spec.name == root
                || spec.name.strip_prefix(root).is_some_and(|rest| rest.starts_with('.'))
        })
        .map(|spec| (spec.name.as_str(), spec))
        .collect();
    if root.is_empty() && !is_default_known {
        specs.insert(DEFAULT_QUEUE, &default);
    }
    let mut shown = Vec::with_capacity(specs.len() + 1);
    let whole = QueueSpec::new("");
    let top = specs.remove(root).unwrap_or(&whole);
    let all = std::iter::once((root, top)).chain(specs.iter().map(|(path, spec)| (*path, *spec)));
    for (path, spec) in all {
        let is_root = path == root;
        let is_leaf = !is_root
            && !specs.keys().any(|other| other.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')));
        let absolute = if is_root { 100.0 } else { percent(&spec.min, &sums.total).unwrap_or(0.0) };
        let absolute_max = if is_root { 100.0 } else { percent(&spec.max, &sums.total).unwrap_or(100.0) };
        let above = parent(path)
            .and_then(|above| specs.get(above))
            .and_then(|above| percent(&above.min, &sums.total));
        let above = above.filter(|above| *above > 0.0).unwrap_or(100.0);
        let (used, n_containers) = if is_root && root.is_empty() {
            (sums.used.clone(), u32::try_from(sums.n_containers).unwrap_or(u32::MAX))
        } else {
            sums.by_queue.get(path).cloned().unwrap_or_default()
        };
        let absolute_used = percent(&used.to_capability(), &sums.total).unwrap_or(0.0);
        let (pending, n_pending_containers, n_active, n_pending) =
            waits.get(path).cloned().unwrap_or_default();
        shown.push(QueueReport {
            path: if is_root { ROOT.to_owned() } else { yarn_name(root, path) },
            capacity: absolute * 100.0 / above,
            maximum_capacity: absolute_max,
            absolute_capacity: absolute,
            absolute_maximum_capacity: absolute_max,
            absolute_used_capacity: absolute_used,
            used_capacity: if absolute > 0.0 { absolute_used * 100.0 / absolute } else { 0.0 },
            is_running: true,
            used,
            pending,
            n_containers,
            n_pending_containers,
            n_active,
            n_pending,
            submit_owners: spec.submit_owners.clone(),
            is_leaf,
        });
    }
    shown
}

/// Applications by public state.
pub(crate) fn states(state: &LeaderState) -> BTreeMap<PublicAppState, u64> {
    let mut states = BTreeMap::new();
    for application in state.adapter.iter() {
        *states.entry(application.public_state()).or_default() += 1;
    }
    states
}

/// The cluster; a standby shows itself too.
pub(crate) fn cluster(state: &LeaderState) -> ClusterReport {
    let sums = &state.picture.sums;
    let mut report = ClusterReport {
        cluster_timestamp: state.cluster_timestamp,
        started_ms: state.started_ms,
        is_active: state.leads(),
        total: sums.total.clone(),
        used: sums.used.clone(),
        n_containers: sums.n_containers,
        applications: states(state),
        minimum_allocation: state.config.minimum_allocation.clone(),
        maximum_allocation: largest(state),
        ..ClusterReport::default()
    };
    for application in state.adapter.iter().filter(|application| !application.is_over()) {
        let (amount, n) = pending(application);
        add(&mut report.pending, &amount, 1);
        report.n_pending_containers += u64::from(n);
    }
    for (id, node) in &state.picture.nodes {
        if state.picture.launch_node(*id).is_some() {
            let n_containers = sums.by_node.get(id).map_or(0, |(_, n)| *n);
            *report.nodes.entry(state_of(node, n_containers)).or_default() += 1;
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_base::{
        ids::{NodeId, Revision, UnitId},
        resources::Resources,
    };
    use godel_core_yarn::{
        adapter::{AdapterTerms, AdapterTime, AppSubmission, YarnAdapter},
        asks::{AskGroup, ExecutionType},
    };
    use godel_domain::{
        change::Change,
        records::Record,
        running_units::{Bind, Requeue, RunChange, Statuses},
        unit::WorkloadClass,
    };
    use godel_testkit::{BuildUnit as _, unit};

    use super::*;

    #[test]
    fn masters_of_earlier_attempts_are_in_the_sums() {
        let id = YarnApplicationId { cluster_timestamp: 1, number: 1 };
        let capability = [("memory".to_owned(), 2 << 30), ("cpu".to_owned(), 3_000)].into();
        let execution = ExecutionType::Guaranteed;
        let submission = AppSubmission {
            name: "a".to_owned(),
            user: "anna".to_owned(),
            queue: "default".to_owned(),
            kind: "SPARK".to_owned(),
            priority: 0,
            master: Some(AskGroup { priority: 0, execution, capability, label: String::new() }),
            label: String::new(),
            max_attempts: 0,
            validity_interval_ms: -1,
            keeps_containers: false,
            lifetime_ms: None,
        };
        let mut adapter = YarnAdapter::new(AdapterTerms::default());
        adapter.submit(id, submission, AdapterTime::default(), &mut Vec::new()).unwrap();
        let application = adapter.get(id).unwrap();

        let mut record = unit("application-1-0001").class(WorkloadClass::Yarn);
        record.spec.namespace = "yarn".to_owned();
        let requests = Resources::new([("cpu", 3_000), ("memory", 2 << 30)]).unwrap();
        record.spec.task_groups[0].template.demand.requests = requests;
        let mut picture = YarnPicture::new("yarn", "rack");
        let ended = |launch_ms, finish_ms| AttemptNotes { launch_ms, finish_ms, ..AttemptNotes::default() };
        let attempts = [ended(2_000, 12_000), ended(0, 15_000), ended(20_000, 0)];
        let sums = |picture: &YarnPicture, until_ms| used_seconds(picture, application, &attempts, until_ms);
        assert_eq!(sums(&picture, 30_000), None, "its unit is not known");

        picture.apply(&Change::Put(Record::Unit(Arc::new(record))), Revision(1), 1);
        let bound = |incarnation| {
            let (ordinals, nodes) = (vec![MASTER], vec![NodeId(1)]);
            let bind = Bind { ordinals, incarnations: vec![incarnation], nodes, ..Bind::default() };
            Change::Rows(UnitId(1), RunChange::Bind(bind))
        };
        let runs = |incarnation| {
            let (ordinals, phases) = (vec![MASTER], vec![Phase::Running]);
            let statuses =
                Statuses { ordinals, phases, incarnations: vec![incarnation], ..Statuses::default() };
            Change::Rows(UnitId(1), RunChange::Statuses(statuses))
        };
        picture.apply(&bound(0), Revision(2), 500);
        assert_eq!(sums(&picture, 11_000), Some((0, 0)), "it has not started");
        picture.apply(&runs(0), Revision(2), 1_000);
        assert_eq!(sums(&picture, 11_000), Some((10 * 2_048, 30)), "the first attempt, by its running unit");
        let requeued = |incarnation| {
            let requeue = Requeue { ordinals: vec![MASTER], incarnations: vec![incarnation], anew: false };
            Change::Rows(UnitId(1), RunChange::Requeue(requeue))
        };
        let failed = |incarnation| {
            let (ordinals, phases) = (vec![MASTER], vec![Phase::Failed]);
            let statuses =
                Statuses { ordinals, phases, incarnations: vec![incarnation], ..Statuses::default() };
            Change::Rows(UnitId(1), RunChange::Statuses(statuses))
        };
        picture.apply(&failed(0), Revision(3), 12_000);
        picture.apply(&requeued(1), Revision(4), 13_000);
        assert_eq!(sums(&picture, 30_000), Some((10 * 2_048, 30)), "the first attempt, by its notes");
        // The master of the second one was never started.
        picture.apply(&bound(1), Revision(5), 14_000);
        picture.apply(&failed(1), Revision(5), 15_000);
        picture.apply(&requeued(2), Revision(5), 15_000);
        assert_eq!(sums(&picture, 30_000), Some((10 * 2_048, 30)));
        picture.apply(&bound(2), Revision(6), 19_000);
        picture.apply(&runs(2), Revision(6), 20_000);
        assert_eq!(sums(&picture, 30_000), Some((20 * 2_048, 60)), "the first and the third one");
    }
}
