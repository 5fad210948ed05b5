//! Admission: whether a submitted unit may become a record, and what it is once its defaults are filled in.
//!
//! Works on [`Submission`], the lenient shape of what a client wrote, and collects every violation at once.
//! Keeps no state. Ids, uniqueness of names and room in queues are the dispatcher's business; whether any node
//! could ever hold a replica is [`feasibility`]'s.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use godel_base::duration;
use godel_domain::{
    defaults::{self, AppliedDefault, DefaultValue},
    demand::Pool,
    limits::{
        ACTIVE_DEADLINE_MS_MAX, MIN_RUN_MS_MAX, REPLICAS_MAX, RESTARTS_MAX, SCHEDULING_TIMEOUT_MS_MAX,
        SPEC_BYTES_MAX, TTL_MS_MAX,
    },
    names::{self, ENTRIES_MAX},
    queue_spec::{PRIORITY_MAX, SYSTEM_PRIORITY},
    submission::{Given, GroupSubmission, Submission},
    surge::N_SURGES_MAX,
    task_group_record::TASK_GROUPS_MAX,
    unit::{OnBelowMin, OnEviction, TaskGroup, UnitSpec, WorkloadClass},
    unit_topology::UnitTopology,
};

mod affinity;
mod daemon;
pub mod feasibility;
pub mod grow;
mod minima;
pub mod retry;
pub mod same;
pub mod scale;
pub mod stop;
mod template;
mod topology;
pub mod update;
pub mod welcome;
mod zones;

/// Most task groups of one unit.
pub const GROUPS_MAX: usize = TASK_GROUPS_MAX;
/// Fields filled in of most units.
const N_DEFAULTS: usize = 13;
/// Violations named in one answer.
pub const VIOLATIONS_MAX: usize = 100;

/// One wrong field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpecViolation {
    /// Path within the unit, as `task_groups[0].replicas`.
    pub field: String,
    /// What is wrong.
    pub description: String,
}

/// A unit that may become a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The unit with its defaults.
    pub spec: UnitSpec,
    /// What was filled in, in order of the fields.
    pub defaults: Vec<AppliedDefault>,
}

fn queue(given: String, report: &mut ViolationList, defaults: &mut Vec<AppliedDefault>) -> String {
    if given.is_empty() {
        defaults.push(AppliedDefault::word("queue", "default"));
        return "default".to_owned();
    }
    report.named("queue", names::queue(&given));
    given
}

/// Checks a whole unit that another one is to become, as [`admit`] does: it may have groups that were added, and no uid of its
/// own.
///
/// # Errors
/// As [`admit`].
pub fn admit_whole(mut submission: Submission) -> Result<Admitted, Vec<SpecViolation>> {
    const BYTES_MAX: usize = SPEC_BYTES_MAX + grow::ADDED_BYTES_MAX;
    /// Stands for the uid that the unit has.
    const OWN_UID: &str = "00000000-0000-7000-8000-000000000000";
    // What its own record may have is judged once it is known which groups that has.
    if submission.encoded_len <= BYTES_MAX {
        submission.encoded_len = 0;
    }
    let has_uid = !submission.uid.is_empty();
    if !has_uid {
        OWN_UID.clone_into(&mut submission.uid);
    }
    let mut admitted = admit(submission)?;
    if !has_uid {
        admitted.spec.uid.clear();
    }
    Ok(admitted)
}

/// Checks a submission and fills in its defaults.
///
/// # Errors
/// Every violation (at most [`VIOLATIONS_MAX`]), in order of the fields.
pub fn admit(mut submission: Submission) -> Result<Admitted, Vec<SpecViolation>> {
    let mut report = ViolationList::default();
    let mut defaults = Vec::with_capacity(N_DEFAULTS);
    generate_name(&mut submission, &mut report);
    check_meta(&submission, &mut report);
    let class = class(submission.class, &mut report, &mut defaults);
    let by_class = defaults::of(class);
    let pool_of_groups = match submission.pool {
        Given::Value(pool) => pool,
        Given::Absent | Given::Unknown(_) => by_class.pool,
    };
    let task_groups = groups(submission.task_groups, pool_of_groups, class, &mut report, &mut defaults);
    let replicas = task_groups.iter().map(|group| u64::from(group.replicas)).sum::<u64>();
    if replicas > u64::from(REPLICAS_MAX) {
        report
            .add("task_groups", format_args!("{replicas} replicas over all groups; at most {REPLICAS_MAX}"));
    }
    let min_member = if class == WorkloadClass::Daemon {
        daemon::min_member(submission.min_member, &mut report, &mut defaults)
    } else {
        minima::min_member(submission.min_member, &task_groups, by_class, &mut report, &mut defaults)
    };
    let queue = queue(submission.queue, &mut report, &mut defaults);
    let namespace = if submission.namespace.is_empty() { "default".to_owned() } else { submission.namespace };
    let mut uid = submission.uid;
    uid.make_ascii_lowercase();
    let spec = UnitSpec {
        namespace,
        name: submission.name,
        uid,
        labels: submission.labels,
        owner: submission.owner,
        class,
        task_groups,
        min_member,
        queue,
        priority: priority(
            submission.priority,
            &submission.priority_class,
            by_class,
            &mut report,
            &mut defaults,
        ),
        priority_class: submission.priority_class,
        pool: pool(submission.pool, by_class, &mut report, &mut defaults),
        restart_policy: report.choose(
            "restart_policy",
            submission.restart_policy,
            by_class.restart_policy,
            defaults::restart_name,
            &mut defaults,
        ),
        profile: profile(submission.profile, &mut report),
        ttl_after_finished_ms: ttl_ms(submission.ttl_after_finished_ms, &mut report, &mut defaults),
        max_restarts: max_restarts(submission.max_restarts, by_class, &mut report, &mut defaults),
        on_eviction: report.choose(
            "on_eviction",
            submission.on_eviction,
            OnEviction::Requeue,
            defaults::on_eviction_name,
            &mut defaults,
        ),
        on_below_min: report.choose(
            "on_below_min",
            submission.on_below_min,
            OnBelowMin::Keep,
            defaults::on_below_min_name,
            &mut defaults,
        ),
        on_failure: report.choose(
            "on_failure",
            submission.on_failure,
            by_class.on_failure,
            defaults::on_failure_name,
            &mut defaults,
        ),
        preemptible: preemptible(submission.preemptible, by_class, &mut defaults),
        min_run_ms: report.lasts("min_run_ms", submission.min_run_ms, MIN_RUN_MS_MAX),
        scheduling_timeout_ms: report.limit(
            "scheduling_timeout_ms",
            submission.scheduling_timeout_ms,
            SCHEDULING_TIMEOUT_MS_MAX,
            "leave it out for the default of 5m",
        ),
        active_deadline_ms: report.limit(
            "active_deadline_ms",
            submission.active_deadline_ms,
            ACTIVE_DEADLINE_MS_MAX,
            "leave it out for a unit without a deadline",
        ),
        affinity: affinity::unit_affinity(submission.affinity, &mut report, &mut defaults),
        topology: topology::unit_topology(submission.topology, &mut report),
        max_surge: submission.max_surge,
        movable: submission.movable,
    };
    check_whole(&spec, &mut report);
    report.finish(Admitted { spec, defaults })
}

/// What one field may say depends on others.
fn check_whole(spec: &UnitSpec, report: &mut ViolationList) {
    if spec.is_daemon() {
        daemon::check(spec, report);
    }
    topology::check_levels(spec, report);
    check_max_surge(spec, report);
    check_movable(spec, report);
}

/// Whether the rescheduler could do what the unit allows.
fn check_movable(spec: &UnitSpec, report: &mut ViolationList) {
    let is_never_moved = matches!(spec.class, WorkloadClass::Daemon | WorkloadClass::Yarn);
    if is_never_moved && spec.movable == Some(true) {
        let class = defaults::class_name(spec.class);
        report
            .add("movable", format_args!("replicas of units of class {class} are never moved; leave it out"));
    }
}

/// Whether replacements may start before what they replace stops. A new ordinal would begin a segment of its own.
fn check_max_surge(spec: &UnitSpec, report: &mut ViolationList) {
    let field = "max_surge";
    let given = spec.max_surge;
    if given > N_SURGES_MAX {
        report.add(field, format_args!("{given} is not in 0..={N_SURGES_MAX}"));
    }
    if given > 0 && spec.class != WorkloadClass::Service {
        let class = defaults::class_name(spec.class);
        report.add(
            field,
            format_args!(
                "of class service only: two of a replica of a unit of class {class} must not run at once"
            ),
        );
    }
    let has_segments = |topology: &UnitTopology| topology.segments.is_some();
    let of_groups = spec.task_groups.iter().filter_map(|group| group.topology.as_deref());
    if given > 0 && of_groups.chain([&spec.topology]).any(has_segments) {
        report.add(field, "not beside segments: a replacement would begin another segment");
    }
}

/// The schedulers know which profiles there are.
fn profile(given: String, report: &mut ViolationList) -> String {
    if !given.is_empty() {
        report.named("profile", names::name(&given, names::NAMESPACE_LEN_MAX));
    }
    given
}

fn class(
    given: Given<WorkloadClass>,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> WorkloadClass {
    match given {
        Given::Value(class) => class,
        Given::Absent => {
            let class = WorkloadClass::Batch;
            defaults.push(AppliedDefault::word("workload_class", defaults::class_name(class)));
            class
        }
        Given::Unknown(code) => {
            report.add("workload_class", format_args!("{code} is no workload class"));
            WorkloadClass::Batch
        }
    }
}

fn ttl_ms(given: Option<u64>, report: &mut ViolationList, defaults: &mut Vec<AppliedDefault>) -> u64 {
    let Some(given) = given else {
        let default = i64::try_from(defaults::TTL_AFTER_FINISHED_MS).unwrap_or(i64::MAX);
        defaults.push(AppliedDefault::number("ttl_after_finished_ms", default));
        return defaults::TTL_AFTER_FINISHED_MS;
    };
    report.lasts("ttl_after_finished_ms", given, TTL_MS_MAX)
}

fn max_restarts(
    given: Option<u32>,
    by_class: &defaults::ClassDefaults,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> u32 {
    let Some(given) = given else {
        defaults.push(AppliedDefault::number("max_restarts", i64::from(by_class.max_restarts)));
        return by_class.max_restarts;
    };
    if given > RESTARTS_MAX {
        report.add("max_restarts", format_args!("{given} is not in 0..={RESTARTS_MAX}"));
    }
    given
}

fn preemptible(
    given: Option<bool>,
    by_class: &defaults::ClassDefaults,
    defaults: &mut Vec<AppliedDefault>,
) -> bool {
    given.unwrap_or_else(|| {
        defaults.push(AppliedDefault::word("preemptible", by_class.preemptible_name()));
        by_class.preemptible
    })
}

/// Collects violations; formats nothing until there is one.
#[derive(Debug, Default)]
struct ViolationList {
    violations: Vec<SpecViolation>,
}

impl ViolationList {
    fn add(&mut self, field: impl fmt::Display, description: impl fmt::Display) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations
                .push(SpecViolation { field: field.to_string(), description: description.to_string() });
        }
    }

    fn named(&mut self, field: impl fmt::Display, checked: Result<(), names::BadName>) {
        if let Err(bad) = checked {
            self.add(field, bad);
        }
    }

    fn choose<T: Copy>(
        &mut self,
        field: &'static str,
        given: Given<T>,
        default: T,
        name: fn(T) -> &'static str,
        defaults: &mut Vec<AppliedDefault>,
    ) -> T {
        match given {
            Given::Value(value) => value,
            Given::Absent => {
                defaults.push(AppliedDefault::word(field, name(default)));
                default
            }
            Given::Unknown(code) => {
                self.add(field, format_args!("{code} stands for nothing"));
                default
            }
        }
    }

    /// A duration of which 0 is one.
    fn lasts(&mut self, field: &'static str, given: u64, max: u64) -> u64 {
        if given > max {
            let (given, max) = (duration::show_ms(given), duration::show_ms(max));
            self.add(field, format_args!("{given} is longer than {max}"));
        }
        given
    }

    /// A duration of which 0 makes no sense; 0 for an absent one.
    fn limit(&mut self, field: &'static str, given: Option<u64>, max: u64, instead: &str) -> u64 {
        if given == Some(0) {
            self.add(field, format_args!("0s is too short; {instead}"));
        }
        given.map_or(0, |given| self.lasts(field, given, max))
    }

    fn finish<T>(self, value: T) -> Result<T, Vec<SpecViolation>> {
        if self.violations.is_empty() { Ok(value) } else { Err(self.violations) }
    }
}

/// Collects the violations of the template of a task group.
struct TemplateReport<'r> {
    /// Position of the task group.
    idx: usize,
    report: &'r mut ViolationList,
}

impl TemplateReport<'_> {
    fn path_of(&self, field: impl fmt::Display) -> String {
        format!("task_groups[{}].template.{field}", self.idx)
    }

    fn add(&mut self, field: impl fmt::Display, description: impl fmt::Display) {
        self.report.add(format_args!("task_groups[{}].template.{field}", self.idx), description);
    }

    fn named(&mut self, field: impl fmt::Display, checked: Result<(), names::BadName>) {
        if let Err(bad) = checked {
            self.add(field, bad);
        }
    }
}

/// A name follows from the uid alone: the same submission has the same name however often it is made.
fn generate_name(submission: &mut Submission, report: &mut ViolationList) {
    let prefix = std::mem::take(&mut submission.generate_name);
    if prefix.is_empty() {
        return;
    }
    if !submission.name.is_empty() {
        report.add("generate_name", "give a name or `generate_name`, not both");
        return;
    }
    submission.name = names::generated(&prefix, names::uuid(&submission.uid).unwrap_or_default());
    if let Err(bad) = names::name(&submission.name, names::NAME_LEN_MAX) {
        report.add("generate_name", format_args!("with its ending: {bad}"));
        // It is told once.
        submission.name = names::generated("", 0);
    }
}

fn check_meta(submission: &Submission, report: &mut ViolationList) {
    if submission.encoded_len > SPEC_BYTES_MAX {
        report.add("unit", format_args!("{} bytes; at most {SPEC_BYTES_MAX}", submission.encoded_len));
    }
    if !submission.namespace.is_empty() {
        report.named("meta.namespace", names::name(&submission.namespace, names::NAMESPACE_LEN_MAX));
    }
    report.named("meta.name", names::name(&submission.name, names::NAME_LEN_MAX));
    if names::uuid(&submission.uid).is_none() {
        report.add("meta.uid", "not a hyphenated UUID");
    }
    check_labels(&submission.labels, "meta.labels", report);
    report.named("meta.owner", names::text(&submission.owner, names::NAME_LEN_MAX));
}

fn check_labels(labels: &BTreeMap<String, String>, field: &str, report: &mut ViolationList) {
    if labels.len() > ENTRIES_MAX {
        report.add(field, format_args!("{} entries; at most {ENTRIES_MAX}", labels.len()));
    }
    for (key, value) in labels {
        report.named(format_args!("{field}[{key:?}]"), names::label_key(key));
        report.named(format_args!("{field}[{key:?}]"), names::text(value, names::NAME_LEN_MAX));
    }
}

fn groups(
    submitted: Vec<GroupSubmission>,
    pool: Pool,
    class: WorkloadClass,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> Vec<TaskGroup> {
    let given_minima = minima::given(&submitted);
    if submitted.is_empty() {
        report.add("task_groups", "at least one is needed");
    }
    if submitted.len() > GROUPS_MAX {
        report.add("task_groups", format_args!("{} groups; at most {GROUPS_MAX}", submitted.len()));
    }
    let mut groups: Vec<TaskGroup> = Vec::with_capacity(submitted.len().min(GROUPS_MAX));
    // Of several groups one may have no replicas for a while, as one that was scaled to none.
    let has_some = submitted.len() > 1 && submitted.iter().any(|group| group.replicas > 0);
    let least = match class {
        WorkloadClass::Daemon => None,
        _ if has_some => Some(0),
        _ => Some(scale::least_replicas(class)),
    };
    for (idx, group) in submitted.into_iter().take(GROUPS_MAX).enumerate() {
        let group = admit_group(idx, group, pool, least, &groups, report, defaults);
        groups.push(group);
    }
    minima::of_groups(&given_minima, &mut groups, defaults::of(class), report, defaults);
    groups
}

/// One task group beside `others`, with its defaults filled in; `least`: the fewest replicas that it may have, if that is the
/// submitter's business.
fn admit_group(
    idx: usize,
    mut group: GroupSubmission,
    pool: Pool,
    least: Option<u32>,
    others: &[TaskGroup],
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> TaskGroup {
    if let Some(least) = least.filter(|least| !(*least..=REPLICAS_MAX).contains(&group.replicas)) {
        report.add(
            format_args!("task_groups[{idx}].replicas"),
            format_args!("{} is not in {least}..={REPLICAS_MAX}", group.replicas),
        );
    }
    let name = if group.name.is_empty() {
        let field = match idx {
            // Most units have one group.
            0 => Cow::Borrowed("task_groups[0].name"),
            _ => Cow::Owned(format!("task_groups[{idx}].name")),
        };
        defaults.push(AppliedDefault { field, value: DefaultValue::Word("main") });
        "main".to_owned()
    } else {
        report.named(
            format_args!("task_groups[{idx}].name"),
            names::name(&group.name, names::NAMESPACE_LEN_MAX),
        );
        std::mem::take(&mut group.name)
    };
    if others.iter().any(|other| other.name == name) {
        report.add(format_args!("task_groups[{idx}].name"), format_args!("`{name}` stands twice"));
    }
    let replicas = group.replicas;
    let topology = group.topology.take().filter(|topology| !topology.is_empty());
    let topology = topology.map(|given| Box::new(topology::of_group(idx, *given, report)));
    let template = template::template(group, pool, &mut TemplateReport { idx, report }, defaults);
    TaskGroup { name, replicas, min_member: 0, template, topology }
}

/// Of a unit that names a priority class and gives no priority it is 0: what the class is worth, and whether there is one,
/// is the dispatcher's to say.
fn priority(
    given: Option<i32>,
    priority_class: &str,
    by_class: &defaults::ClassDefaults,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> i32 {
    if !priority_class.is_empty() {
        report.named("priority_class", names::label(priority_class));
        match given {
            None => return 0,
            Some(0) => {
                report.add(
                    "priority",
                    "0 beside a priority class: leave it out to have the priority of the class",
                );
                return 0;
            }
            Some(_) => {}
        }
    }
    let Some(given) = given else {
        defaults.push(AppliedDefault::number("priority", i64::from(by_class.priority)));
        return by_class.priority;
    };
    if !(-PRIORITY_MAX..SYSTEM_PRIORITY).contains(&given) {
        let most = SYSTEM_PRIORITY - 1;
        report.add(
            "priority",
            format_args!(
                "{given} is not in {}..={most}; above that are priority classes only, as `system`",
                -PRIORITY_MAX
            ),
        );
    }
    given
}

fn pool(
    given: Given<Pool>,
    by_class: &defaults::ClassDefaults,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> Pool {
    report.choose("pool", given, by_class.pool, defaults::pool_name, defaults)
}

#[cfg(test)]
mod tests;
