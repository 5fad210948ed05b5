//! What becomes of each property of the CapacityScheduler, and what its queues take from it besides amounts.

use std::collections::BTreeMap;

use godel_domain::queue_spec::{QueuePolicy, QueueSpec, WEIGHT_MAX, show_share};

use super::{
    DOMINANT, ImportWork, NOBODY,
    tree::{YarnQueue, YarnQueues, label},
};
use crate::{
    access::AccessList,
    capacity::{Decimal, QueueAmounts, QueueCapacity, portion, show},
    findings::Fidelity::{Approximated, Mapped, Unsupported},
    findings::{Fidelity, PropertyFinding},
    mapping::QueueMappings,
    properties::{OF_QUEUES, OF_SCHEDULER, PREFIX, look_up},
};

/// Largest amount that a queue of godel may name.
const AMOUNT_MAX: i64 = 1 << 60;
/// Percentage of users that share nothing with each other.
const WHOLE: &str = "100";

/// The order of a queue's units: `fifo` where all have one priority, as without a maximum for it.
pub(super) fn policy(work: &ImportWork<'_>, path: &str) -> QueuePolicy {
    let shares = work.get(path, "minimum-user-limit-percent").is_some_and(|text| !is_whole(&text));
    let is_fair = work.get(path, "ordering-policy").is_some_and(|text| text == "fair");
    if is_fair || shares {
        return QueuePolicy::FairShare;
    }
    let n_priorities = work.configuration.get("yarn.cluster.max-application-priority");
    if n_priorities.is_none_or(|text| text == "0") { QueuePolicy::Fifo } else { QueuePolicy::Priority }
}

fn is_whole(percent: &str) -> bool {
    Decimal::parse(percent) == Decimal::parse(WHOLE)
}

/// What users weigh beside each other where the policy asks.
pub(super) fn owner_weights(work: &ImportWork<'_>, path: &str, policy: QueuePolicy) -> BTreeMap<String, u32> {
    if policy != QueuePolicy::FairShare {
        return BTreeMap::new();
    }
    let prefix = format!("{PREFIX}{path}.user-settings.");
    let weight = |name: &str| {
        let user = name.strip_prefix(&prefix)?.strip_suffix(".weight")?;
        Some((user.to_owned(), whole_weight(&work.configuration.get(name)?)?))
    };
    work.configuration.names().filter_map(weight).collect()
}

/// What one owner may take: so many times the guarantee of the queue; nothing where it has none, or where that is switched off.
pub(super) fn max_per_owner(work: &ImportWork<'_>, path: &str, min: &QueueAmounts) -> QueueAmounts {
    let text = work.get(path, "user-limit-factor").unwrap_or_else(|| "1".to_owned());
    let Some(factor) = Decimal::parse(&text).filter(|factor| *factor > Decimal::default()) else {
        return QueueAmounts::new();
    };
    let one = Decimal(Decimal::HUNDRED.0 / 100);
    let mut most = portion(min, factor, one);
    most.values_mut().for_each(|amount| *amount = (*amount).min(AMOUNT_MAX));
    most
}

/// Thousandths of its maximum that application masters may take of a queue, if a property says so: of the queue, or of all.
pub(super) fn am_share(work: &ImportWork<'_>, path: &str) -> Option<u32> {
    let own = work.get(path, "maximum-am-resource-percent");
    let text = own.or_else(|| work.configuration.get(&format!("{PREFIX}maximum-am-resource-percent")))?;
    let thousandth = Decimal::HUNDRED.0 / 100_000;
    let milli = Decimal::parse(&text)?.0.div_ceil(thousandth).clamp(1, 1_000);
    u32::try_from(milli).ok()
}

fn whole_weight(text: &str) -> Option<u32> {
    let weight = u32::try_from(Decimal::parse(text)?.whole()?).ok()?;
    (1..=WEIGHT_MAX).contains(&weight).then_some(weight)
}

/// Notes every property, and the defaults that have an effect.
pub(super) fn report(work: &mut ImportWork<'_>, tree: &YarnQueues) {
    let names: Vec<String> =
        work.configuration.names().filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect();
    for name in names {
        let value = work.configuration.get(&name).unwrap_or_default();
        let rest = &name[PREFIX.len()..];
        let (fidelity, effect) = match tree.split(rest) {
            Some((queue, key)) => of_queue(work, queue, key, &value, tree),
            None if rest.starts_with("root.") => unlisted(),
            None => of_scheduler(work, rest, &value),
        };
        work.import.findings.push(PropertyFinding { property: name, value, fidelity, effect });
    }
    if work.configuration.get(&format!("{PREFIX}resource-calculator")).is_none() {
        let (fidelity, effect) = of_scheduler(work, "resource-calculator", "");
        let property = format!("{PREFIX}resource-calculator");
        let value = "DefaultResourceCalculator (default)".to_owned();
        work.import.findings.push(PropertyFinding { property, value, fidelity, effect });
    }
    if work.configuration.get(&format!("{PREFIX}maximum-am-resource-percent")).is_none() {
        let property = format!("{PREFIX}maximum-am-resource-percent");
        let effect = "application masters may fill a queue that says nothing itself: write the property down to have `am_share`";
        let (value, effect) = ("0.1 (default)".to_owned(), effect.to_owned());
        work.import.findings.push(PropertyFinding { property, value, fidelity: Unsupported, effect });
    }
    for queue in tree.queues.iter().filter(|queue| queue.children.is_empty()) {
        if work.get(&queue.path, "user-limit-factor").is_none() {
            let (fidelity, effect) = user_limit(work.spec(queue), "1");
            work.note(&queue.path, "user-limit-factor", "1 (default)", fidelity, effect);
        }
    }
}

fn user_limit(spec: Option<&QueueSpec>, value: &str) -> (Fidelity, String) {
    match spec.map(|spec| &spec.max_per_owner) {
        _ if value.starts_with('-') => (Mapped, "one owner may use all that the queue may".to_owned()),
        Some(most) if !most.is_empty() => (
            Approximated,
            format!("max_per_owner {}; it does not follow the size of the cluster: import again when that changes", show(most)),
        ),
        _ => (
            Unsupported,
            "one owner may use all that the queue may: YARN counts from the capacity of a queue, and this one has none".to_owned(),
        ),
    }
}

fn masters(work: &ImportWork<'_>, queue: &YarnQueue, value: &str) -> (Fidelity, String) {
    if !queue.children.is_empty() {
        return (Unsupported, "YARN reads it for queues without others below them only".to_owned());
    }
    let spec = work.spec(queue).filter(|spec| spec.am_share_milli > 0);
    match spec {
        Some(spec) => (
            Approximated,
            format!(
                "am_share {} of the maximum {}, which does not follow the size of the cluster; unlike in YARN a master that is \
                 larger does not start at all",
                show_share(spec.am_share_milli),
                show(&spec.max)
            ),
        ),
        None => {
            (Unsupported, format!("`{value}` is no share of 0 to 1: application masters may fill the queue"))
        }
    }
}

fn unlisted() -> (Fidelity, String) {
    (Unsupported, "no `queues` names this queue: YARN does not read the property either".to_owned())
}

fn of_queue(
    work: &ImportWork<'_>,
    queue: &YarnQueue,
    key: &str,
    value: &str,
    tree: &YarnQueues,
) -> (Fidelity, String) {
    let spec = work.spec(queue);
    let say = |fidelity, effect: &str| (fidelity, effect.to_owned());
    let amounts = |what: &str, amounts: Option<&BTreeMap<String, i64>>| match amounts {
        Some(amounts) if !amounts.is_empty() => format!("{what} {}", show(amounts)),
        _ => format!("no {what}"),
    };
    let is_absolute = matches!(QueueCapacity::parse(value), Ok(QueueCapacity::Absolute(_)));
    match key {
        "queues" => names(queue, tree),
        "capacity" if queue.path == "root" => say(Mapped, "root has all that is imported for"),
        "capacity" => {
            let min = amounts("guarantee", spec.map(|spec| &spec.min));
            let weight = spec.map_or(1, |spec| spec.weight);
            if is_absolute {
                (Mapped, format!("{min}, weight {weight}"))
            } else {
                (
                    Approximated,
                    format!(
                        "{min}, weight {weight}; the guarantee does not follow the size of the cluster: import again when that changes"
                    ),
                )
            }
        }
        "maximum-capacity" if queue.name.is_none() => say(
            Unsupported,
            "root is no queue of its own in godel: import below one (`--under yarn`) and set its maximum",
        ),
        "maximum-capacity" => {
            let max = amounts("maximum", spec.map(|spec| &spec.max));
            if is_absolute || spec.is_some_and(|spec| spec.max.is_empty()) {
                (Mapped, max)
            } else {
                (
                    Approximated,
                    format!(
                        "{max}; it does not follow the size of the cluster: import again when that changes"
                    ),
                )
            }
        }
        "allow-zero-capacity-sum" => say(Mapped, "its queues may have no guarantee at all"),
        "ordering-policy" if !queue.children.is_empty() => say(
            Approximated,
            "siblings below their guarantees go first, then the smallest share for its weight; priorities of queues do not count",
        ),
        "ordering-policy" => ordering(work, queue, value),
        "ordering-policy.fair.enable-size-based-weight" => {
            say(Unsupported, "owners share, not applications: the size of an application does not count")
        }
        "user-limit-factor" if !queue.children.is_empty() => {
            say(Unsupported, "YARN reads it for queues without others below them only")
        }
        "user-limit-factor" => user_limit(spec, value),
        "maximum-am-resource-percent" => masters(work, queue, value),
        "minimum-user-limit-percent" if is_whole(value) => {
            say(Mapped, "owners wait for one another in the order of the queue")
        }
        "minimum-user-limit-percent" => say(
            Approximated,
            "policy fair-share: owners who ask for room get equal shares, whatever their number; what one may take at most is \
             max_per_owner (user-limit-factor)",
        ),
        "acl_submit_applications" | "acl_administer_queue" => access(work, queue, key, value),
        "state" if value.eq_ignore_ascii_case("RUNNING") => {
            say(Mapped, "the queue takes units and serves them")
        }
        "state" => {
            let path = queue.name.as_deref().unwrap_or("PATH");
            (
                Unsupported,
                format!(
                    "the queue is imported as one that runs; `godel admin pause queue/{path}` keeps its units waiting"
                ),
            )
        }
        "disable_preemption" if value.eq_ignore_ascii_case("false") => {
            say(Mapped, "other queues reclaim their guarantees from this one")
        }
        "disable_preemption" => say(
            Unsupported,
            "other queues reclaim their guarantees from this one; a priority class with `preemptible: false` protects units",
        ),
        _ => match (look_up(OF_QUEUES, key), key.strip_prefix("user-settings.")) {
            (Some((fidelity, effect)), _) => say(fidelity, effect),
            (None, Some(_)) => user_weight(work, queue, key, value),
            // Of a child that is not listed, as `root.a.old.capacity`.
            (None, None) if key.contains('.') => unlisted(),
            (None, None) => unknown(),
        },
    }
}

fn unknown() -> (Fidelity, String) {
    (Unsupported, "godel does not know this property".to_owned())
}

fn names(queue: &YarnQueue, tree: &YarnQueues) -> (Fidelity, String) {
    let own = |child: &usize| {
        let queue = &tree.queues[*child];
        let name = queue.path.rsplit_once('.').map_or("", |(_, name)| name);
        (name.to_owned(), queue.name.clone().unwrap_or_default())
    };
    let pairs: Vec<(String, String)> = queue.children.iter().map(own).collect();
    let shown = pairs.iter().map(|(yarn, godel)| format!("{yarn} is {godel}")).collect::<Vec<_>>().join(", ");
    let is_same = pairs.iter().all(|(yarn, _)| label(yarn) == *yarn);
    (if is_same { Mapped } else { Approximated }, shown)
}

fn ordering(work: &ImportWork<'_>, queue: &YarnQueue, value: &str) -> (Fidelity, String) {
    let policy = policy(work, &queue.path);
    match (value, policy) {
        ("fifo", QueuePolicy::Fifo) => (Mapped, "policy fifo".to_owned()),
        ("fifo", QueuePolicy::Priority) => (
            Approximated,
            "policy priority: as in YARN, but a unit that waits gains one priority a minute".to_owned(),
        ),
        ("fifo", _) => (Approximated, "policy fair-share, since users of the queue share it".to_owned()),
        ("fair", _) => {
            (Approximated, "policy fair-share: owners get equal shares, not applications".to_owned())
        }
        (_, policy) => (Unsupported, format!("godel has no such order: policy {policy}")),
    }
}

fn access(work: &ImportWork<'_>, queue: &YarnQueue, key: &str, value: &str) -> (Fidelity, String) {
    let property = format!("{PREFIX}{}.{key}", queue.path);
    let text = work.configuration.get_untrimmed(&property).unwrap_or_else(|| value.to_owned());
    if !work.configuration.is_true("yarn.acl.enable", false) {
        return (Mapped, "yarn.acl.enable is not true: nobody is refused, as in YARN".to_owned());
    }
    let about = if key == "acl_submit_applications" {
        "decides who may submit, here or below"
    } else {
        "whoever may administer a queue may submit to it; the adapter asks who ends or moves applications if \
         `yarn.conf_dir` names this folder"
    };
    let spec = work.spec(queue);
    let shown = match spec.map(|spec| spec.submit_owners.as_slice()) {
        Some([]) if queue.children.is_empty() => "; everyone may submit, here or from above".to_owned(),
        Some([only]) if only == NOBODY => format!("; nobody may submit: the only owner is `{NOBODY}`"),
        Some(owners) if !owners.is_empty() => format!("; submit_owners {}", owners.join(", ")),
        _ => String::new(),
    };
    let is_open = queue.children.is_empty() && spec.is_some_and(|spec| spec.submit_owners.is_empty());
    match AccessList::parse(&text) {
        // A list that lets in fewer than one above it changes nothing, in YARN either.
        _ if is_open && key == "acl_submit_applications" => (Mapped, format!("{about}{shown}")),
        AccessList::Only { groups, .. } if !groups.is_empty() => {
            let groups = groups.into_iter().collect::<Vec<_>>().join(", ");
            (
                Unsupported,
                format!(
                    "{about}; godel knows no groups: members of {groups} may not submit unless they are listed as users{shown}"
                ),
            )
        }
        _ if key == "acl_submit_applications" => (Mapped, format!("{about}{shown}")),
        _ => (Approximated, format!("{about}{shown}")),
    }
}

fn user_weight(work: &ImportWork<'_>, queue: &YarnQueue, key: &str, value: &str) -> (Fidelity, String) {
    if !key.ends_with(".weight") {
        return unknown();
    }
    match (policy(work, &queue.path), whole_weight(value)) {
        (QueuePolicy::FairShare, Some(weight)) => {
            (Approximated, format!("owner_weights {weight} under policy fair-share"))
        }
        (QueuePolicy::FairShare, None) => {
            (Unsupported, format!("a weight of an owner is a whole number of 1 to {WEIGHT_MAX}"))
        }
        _ => {
            (Unsupported, "owners have no weights unless they share the queue (policy fair-share)".to_owned())
        }
    }
}

fn of_scheduler(work: &ImportWork<'_>, key: &str, value: &str) -> (Fidelity, String) {
    match key {
        "resource-calculator" if value.ends_with(DOMINANT) => {
            (Mapped, "guarantees and maxima of every resource".to_owned())
        }
        "resource-calculator" => (
            Mapped,
            "guarantees and maxima of memory only; CPUs are still checked on each node, which YARN does not"
                .to_owned(),
        ),
        "maximum-am-resource-percent" => {
            (Approximated, "am_share of every queue that says nothing itself, as shares of their maxima".to_owned())
        }
        "queue-mappings" => match QueueMappings::read(work.configuration) {
            Ok(_) => (
                Mapped,
                "the adapter applies the rules to submissions if `yarn.conf_dir` names this folder; units of godel go to the \
                 queue that they name"
                    .to_owned(),
            ),
            Err(wrong) => (Unsupported, wrong),
        },
        "queue-mappings-override.enable" => (
            Mapped,
            "whether rules decide for applications that name a queue, too, if `yarn.conf_dir` names this folder".to_owned(),
        ),
        _ => look_up(OF_SCHEDULER, key)
            .map_or_else(unknown, |(fidelity, effect)| (fidelity, effect.to_owned())),
    }
}
