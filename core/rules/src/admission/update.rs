//! Changes of a unit's record that somebody writes as a whole: what may be changed, and when.
//!
//! A change is a whole unit as it is to be from now on. What differs from the record is of one of four kinds:
//!
//! | when | what |
//! |---|---|
//! | until the unit has ended | labels, priority, priority class, queue, limits of time, restarts, replicas, `max_surge`, `movable`, a smaller `min_member`, task groups added behind the others |
//! | while nothing of it is on a node | a larger `min_member`, where its replicas may go, and what they run |
//! | before it had its first node | what its replicas take, its pool, and how it is treated |
//! | never | who it is: name, uid, owner, class, the task groups that it has, affinity, topology |
//!
//! What is bound is accounted for as the first binding of its task group says. So what replicas take and which pool pays stay
//! as they are once there was such a binding. In which queue the unit counts, and with which rank it stands against others, are
//! its preemption terms: whoever writes the record writes those of what is bound beside it
//! ([`RunChange::Terms`](godel_domain::running_units::RunChange::Terms)).

use godel_domain::{
    lifecycle::Counts,
    limits::SPEC_BYTES_MAX,
    running_units::RunningUnits,
    unit::{TaskGroup, Template, UnitRecord, UnitSpec},
};

use super::{
    SpecViolation,
    grow::{add_group, own_fits},
    scale::{ScaleRefusal, scale},
};

/// A record that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitUpdate {
    /// The unit as it is to be.
    pub record: UnitRecord,
    /// It rests on where the running units are: none may be bound meanwhile.
    pub rests_on_rows: bool,
    /// It names another queue or priority class, which must take it.
    pub is_moved: bool,
    /// It names another queue, which must have room for all that is on a node.
    pub takes_rows_along: bool,
}

const NEVER: &str = "cannot be changed: submit it as a new unit";
const UNBOUND: &str = "can be changed only before the unit has had a node: submit it as a new unit";
const IDLE: &str =
    "can be changed only while nothing of the unit is on a node: suspend it first, and resume it afterwards";

/// When a field may be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeTime {
    /// While nothing is on a node.
    Idle,
    /// Before the first node.
    Unbound,
    Never,
}

/// What differs, and what of that may not as things are.
struct Differing {
    is_idle: bool,
    is_unbound: bool,
    violations: Vec<SpecViolation>,
    rests_on_rows: bool,
}

impl Differing {
    fn note(&mut self, is_other: bool, time: ChangeTime, field: &str) {
        if !is_other {
            return;
        }
        let (is_allowed, why) = match time {
            ChangeTime::Idle => (self.is_idle, IDLE),
            ChangeTime::Unbound => (self.is_unbound, UNBOUND),
            ChangeTime::Never => (false, NEVER),
        };
        self.rests_on_rows = true;
        if !is_allowed {
            self.violations.push(SpecViolation { field: field.to_owned(), description: why.to_owned() });
        }
    }
}

/// The record of a unit as `wanted` says; `None` if it says so already. Of `wanted` an empty uid or owner says nothing, nor
/// do the replicas of a daemon.
///
/// # Errors
/// Every field that cannot be changed as things are, and what to do instead; or see [`ScaleRefusal`].
pub fn update(
    record: &UnitRecord,
    rows: &RunningUnits,
    counts: &Counts,
    wanted: &UnitSpec,
) -> Result<Option<UnitUpdate>, ScaleRefusal> {
    if record.status.cancelled {
        return Err(ScaleRefusal::Cancelled);
    }
    let is_idle = counts.live == 0;
    let is_unbound = is_idle && rows.groups.iter().all(Option::is_none);
    let mut found = Differing { is_idle, is_unbound, violations: Vec::new(), rests_on_rows: false };
    compare(&record.spec, wanted, &mut found);
    if !found.violations.is_empty() {
        return Err(ScaleRefusal::Invalid(found.violations));
    }
    let mut next = scaled(record, rows, wanted)?;
    let (uid, owner) = (next.spec.uid, next.spec.owner);
    let groups = next.spec.task_groups.into_iter().zip(&wanted.task_groups);
    // Of a group that nothing is left of nobody says anything.
    let task_groups = groups.enumerate().map(|(idx, (group, wanted))| match group.is_vacant(idx) {
        true => group,
        false => TaskGroup {
            template: wanted.template.clone(),
            min_member: wanted.min_member,
            topology: wanted.topology.clone(),
            ..group
        },
    });
    next.spec = UnitSpec { uid, owner, task_groups: task_groups.collect(), ..wanted.clone() };
    let n_known = record.spec.task_groups.len();
    for group in wanted.task_groups.iter().skip(n_known) {
        add_group(&mut next, rows, group.clone())?;
    }
    if next.spec == record.spec {
        return Ok(None);
    }
    check_own(record, &next)?;
    let is_moved = wanted.task_groups.len() > n_known
        || (&next.spec.queue, &next.spec.priority_class) != (&record.spec.queue, &record.spec.priority_class);
    let takes_rows_along = !is_unbound && next.spec.queue != record.spec.queue;
    // What was submitted is not known any more: a repeated submission is known by its uid and name alone.
    next.status.updated = true;
    Ok(Some(UnitUpdate { record: next, rests_on_rows: found.rests_on_rows, is_moved, takes_rows_along }))
}

/// That what a unit says of itself and of its own groups stays within what its record may have.
fn check_own(record: &UnitRecord, next: &UnitRecord) -> Result<(), ScaleRefusal> {
    let own = |unit: &UnitRecord| {
        let groups = unit.spec.task_groups.iter().take(next.n_own_groups());
        (unit.spec.labels.clone(), groups.map(|group| group.template.clone()).collect::<Vec<_>>())
    };
    if own_fits(next) || own(record) == own(next) {
        return Ok(());
    }
    let description = format!("its labels and templates have more than {SPEC_BYTES_MAX} bytes: shorten them");
    Err(ScaleRefusal::Invalid(vec![SpecViolation { field: "unit".to_owned(), description }]))
}

/// Looks at every field that may not be changed at any time.
fn compare(spec: &UnitSpec, wanted: &UnitSpec, found: &mut Differing) {
    use ChangeTime::{Idle, Never, Unbound};
    // A new field breaks the build here: say when it may be changed.
    let UnitSpec {
        namespace,
        name,
        uid,
        labels: _,
        owner,
        class,
        task_groups,
        min_member,
        queue,
        priority: _,
        priority_class: _,
        pool,
        restart_policy,
        profile,
        ttl_after_finished_ms: _,
        max_restarts: _,
        on_eviction,
        on_below_min,
        on_failure,
        scheduling_timeout_ms: _,
        active_deadline_ms: _,
        preemptible,
        min_run_ms,
        affinity,
        topology,
        max_surge: _,
        movable: _,
    } = wanted;
    found.note(*namespace != spec.namespace, Never, "meta.namespace");
    found.note(*name != spec.name, Never, "meta.name");
    found.note(!uid.is_empty() && *uid != spec.uid, Never, "meta.uid");
    found.note(!owner.is_empty() && *owner != spec.owner, Never, "meta.owner");
    found.note(*class != spec.class, Never, "workload_class");
    let is_same = |(a, b): (&TaskGroup, &TaskGroup)| a.name == b.name;
    let has_all_groups =
        task_groups.len() >= spec.task_groups.len() && task_groups.iter().zip(&spec.task_groups).all(is_same);
    found.note(!has_all_groups, Never, "task_groups");
    if task_groups.len() > spec.task_groups.len() && spec.is_daemon() {
        found.note(true, Never, "task_groups");
    }
    for (idx, added) in task_groups.iter().enumerate().skip(spec.task_groups.len()) {
        found.note(added.min_member > 0, Idle, &format!("task_groups[{idx}].min_member"));
    }
    if has_all_groups {
        let groups = task_groups.iter().zip(&spec.task_groups).enumerate();
        for (idx, (new, old)) in groups.filter(|(idx, (_, old))| !old.is_vacant(*idx)) {
            let is_more = new.min_member > old.min_member;
            found.note(is_more, Idle, &format!("task_groups[{idx}].min_member"));
            found.note(new.topology != old.topology, Never, &format!("task_groups[{idx}].topology"));
            // A new field breaks the build here: say when it may be changed.
            let Template { demand, node_selector, tolerations, node_affinity, max_load, run } = &new.template;
            let (old, field) = (&old.template, |leaf: &str| format!("task_groups[{idx}].template.{leaf}"));
            found.note(*demand != old.demand, Unbound, &field("demand"));
            found.note(*node_selector != old.node_selector, Idle, &field("node_selector"));
            found.note(*tolerations != old.tolerations, Idle, &field("tolerations"));
            found.note(*node_affinity != old.node_affinity, Idle, &field("node_affinity"));
            found.note(*max_load != old.max_load, Idle, &field("max_load"));
            found.note(*run != old.run, Idle, &field("run"));
        }
    }
    found.note(*min_member > spec.min_member, Idle, "min_member");
    if found.is_unbound {
        // Nothing moves along, and nothing may come to.
        found.note(*queue != spec.queue, Unbound, "queue");
    }
    found.note(*pool != spec.pool, Unbound, "pool");
    found.note(*restart_policy != spec.restart_policy, Unbound, "restart_policy");
    found.note(*profile != spec.profile, Unbound, "profile");
    found.note(*on_eviction != spec.on_eviction, Unbound, "on_eviction");
    found.note(*on_below_min != spec.on_below_min, Unbound, "on_below_min");
    found.note(*on_failure != spec.on_failure, Unbound, "on_failure");
    found.note(*preemptible != spec.preemptible, Unbound, "preemptible");
    found.note(*min_run_ms != spec.min_run_ms, Unbound, "min_run_ms");
    found.note(*affinity != spec.affinity, Never, "affinity");
    found.note(*topology != spec.topology, Never, "topology");
}

/// The record with the replicas of each task group as wanted: those that grow first, so that some are always left.
fn scaled(record: &UnitRecord, rows: &RunningUnits, wanted: &UnitSpec) -> Result<UnitRecord, ScaleRefusal> {
    let mut next = record.clone();
    if record.spec.is_daemon() {
        return Ok(next);
    }
    let groups = || wanted.task_groups.iter().zip(&record.spec.task_groups);
    let growing = groups().filter(|(new, old)| new.replicas > old.replicas);
    for (new, _) in growing.chain(groups().filter(|(new, old)| new.replicas < old.replicas)) {
        if let Some(scaled) = scale(&next, rows, &new.name, new.replicas)? {
            next = scaled;
        }
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use godel_base::ids::{NodeId, Revision, UnitId};
    use godel_domain::{
        running_units::{Bind, RunChange},
        submission::{GroupSubmission, Submission},
    };
    use godel_testkit::BuildUnit as _;

    use super::*;
    use crate::admission::admit;

    fn unit() -> UnitRecord {
        let group = GroupSubmission { replicas: 3, ..GroupSubmission::default() };
        let submission = Submission {
            name: "u".to_owned(),
            uid: "0190163d-8694-739b-aea5-000000000001".to_owned(),
            task_groups: vec![group],
            ..Submission::default()
        };
        UnitRecord::new(UnitId(1), admit(submission).unwrap().spec)
    }

    fn bound() -> RunningUnits {
        let mut rows = RunningUnits::default();
        let bind = Bind { ordinals: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
        rows.apply(&RunChange::Bind(bind), Revision(1), 1, |_, _, _| {});
        rows
    }

    fn look(
        rows: &RunningUnits,
        change: impl FnOnce(&mut UnitSpec),
    ) -> Result<Option<UnitUpdate>, Vec<String>> {
        let record = unit();
        let mut wanted = UnitSpec { uid: String::new(), owner: String::new(), ..record.spec.clone() };
        change(&mut wanted);
        match update(&record, rows, &Counts::of(&record, rows), &wanted) {
            Ok(update) => Ok(update),
            Err(ScaleRefusal::Invalid(violations)) => {
                Err(violations.into_iter().map(|one| one.field).collect())
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_from_the_record_may_be_changed_at_any_time() {
        let done = look(&bound(), |spec| {
            spec.labels.insert("app".to_owned(), "web".to_owned());
            (spec.priority, spec.active_deadline_ms, spec.max_restarts) = (7, 9_000, 1);
            spec.movable = Some(false);
            spec.task_groups[0].replicas = 5;
        });
        let UnitUpdate { record, rests_on_rows, is_moved, takes_rows_along } = done.unwrap().unwrap();
        assert_eq!((record.spec.priority, record.spec.replicas(), record.status.updated), (7, 5, true));
        assert_eq!(record.spec.movable, Some(false));
        assert_eq!(record.status.ordinals[0], [(0, 5)]);
        assert_eq!(record.spec.uid, unit().spec.uid, "the uid stays");
        assert!(!rests_on_rows && !is_moved && !takes_rows_along);
        assert_eq!(look(&bound(), |_| {}), Ok(None));
    }

    #[test]
    fn a_template_waits_until_nothing_is_on_a_node() {
        let run = |spec: &mut UnitSpec| spec.task_groups[0].template.run.command = vec!["x".to_owned()];
        assert_eq!(look(&bound(), run), Err(vec!["task_groups[0].template.run".to_owned()]));
        let mut left = bound();
        left.rows.get_mut(0).unwrap().phase = godel_domain::running_units::Phase::Pending;
        assert!(look(&left, run).unwrap().unwrap().rests_on_rows);
        let queue = |spec: &mut UnitSpec| "prod".clone_into(&mut spec.queue);
        for rows in [&left, &bound()] {
            let moved = look(rows, queue).unwrap().unwrap();
            assert!(moved.is_moved && moved.takes_rows_along && !moved.rests_on_rows);
        }
        let pool = |spec: &mut UnitSpec| spec.pool = godel_domain::demand::Pool::BestEffort;
        assert_eq!(look(&left, pool), Err(vec!["pool".to_owned()]), "the pool pays that paid first");
        let moved = look(&RunningUnits::default(), queue).unwrap().unwrap();
        assert!(moved.is_moved && moved.rests_on_rows && !moved.takes_rows_along);
    }

    #[test]
    fn every_field_that_cannot_be_changed_is_named() {
        let refused = look(&bound(), |spec| {
            "other".clone_into(&mut spec.name);
            "somebody".clone_into(&mut spec.owner);
            spec.pool = godel_domain::demand::Pool::BestEffort;
            spec.min_member = 2;
            spec.task_groups[0].template.node_selector.insert("a".to_owned(), "b".to_owned());
        });
        let expected =
            ["meta.name", "meta.owner", "task_groups[0].template.node_selector", "min_member", "pool"];
        assert_eq!(refused, Err(expected.map(str::to_owned).into()));
        let cancelled = unit().cancelled(true);
        let counts = Counts::of(&cancelled, &RunningUnits::default());
        let spec = cancelled.spec.clone();
        let refused = update(&cancelled, &RunningUnits::default(), &counts, &spec);
        assert_eq!(refused, Err(ScaleRefusal::Cancelled));
    }
}
