//! Properties that mean the same whatever their queue, with what becomes of them.

use crate::findings::Fidelity::{self, Approximated, Mapped, Unsupported};

/// What every property of the CapacityScheduler begins with.
pub(crate) const PREFIX: &str = "yarn.scheduler.capacity.";

/// A name, or what names begin with if it ends with `.` or `-`, and what becomes of it.
type KnownProperty = (&'static str, Fidelity, &'static str);

/// Of one queue, without its path. What depends on the value stands in `import`.
pub(crate) const OF_QUEUES: &[KnownProperty] = &[
    ("minimum-user-limit", Unsupported, "YARN does not read it: the property is minimum-user-limit-percent"),
    (
        "maximum-applications",
        Unsupported,
        "any number of units may wait in the queue; `dispatcher.units_max` counts for all queues together",
    ),
    ("max-parallel-apps", Unsupported, "any number of units of the queue may run beside one another"),
    (
        "priority",
        Unsupported,
        "a queue is not served before its siblings; give its units a priority class instead",
    ),
    (
        "maximum-allocation",
        Unsupported,
        "a running unit may ask for as much as a node has; larger requests are told at submission",
    ),
    (
        "maximum-allocation-mb",
        Unsupported,
        "a running unit may ask for as much memory as a node has; larger requests are told at submission",
    ),
    (
        "maximum-allocation-vcores",
        Unsupported,
        "a running unit may ask for as many CPUs as a node has; larger requests are told at submission",
    ),
    (
        "maximum-application-lifetime",
        Unsupported,
        "no unit of the queue is ended for its age; a unit says `active_deadline` itself",
    ),
    (
        "default-application-lifetime",
        Unsupported,
        "no unit of the queue is ended for its age; a unit says `active_deadline` itself",
    ),
    (
        "accessible-node-labels",
        Unsupported,
        "units of the queue may use every node; a unit says `node_selector` itself",
    ),
    (
        "accessible-node-labels.",
        Unsupported,
        "a queue has one guarantee and one maximum over all nodes, none of nodes with a label",
    ),
    (
        "default-node-label-expression",
        Unsupported,
        "units that name no nodes may use every node; a unit says `node_selector` itself",
    ),
    (
        "auto-create-child-queue.",
        Unsupported,
        "queues are not created by themselves; `godel queue create` creates them",
    ),
    (
        "auto-queue-creation-v2.",
        Unsupported,
        "queues are not created by themselves; `godel queue create` creates them",
    ),
    (
        "leaf-queue-template.",
        Unsupported,
        "queues are not created by themselves; `godel queue create` creates them",
    ),
    ("intra-queue-preemption.", Unsupported, "within one queue, priority alone decides who may preempt whom"),
    ("multi-node-sorting.", Unsupported, "the profile of the scheduler orders nodes"),
    (
        "acl_application_max_priority",
        Unsupported,
        "whoever may submit to the queue may name any priority class",
    ),
];

/// Of the whole CapacityScheduler, without its prefix.
pub(crate) const OF_SCHEDULER: &[KnownProperty] = &[
    (
        "maximum-applications",
        Unsupported,
        "any number of units may wait; `dispatcher.units_max` bounds all queues together",
    ),
    ("max-parallel-apps", Unsupported, "any number of units may run beside one another"),
    (
        "user.",
        Unsupported,
        "the units of one user are not counted; `fair-share` of a queue orders its owners",
    ),
    (
        "node-locality-delay",
        Unsupported,
        "a unit does not wait for a node that it prefers; `node_affinity` says which nodes it must have",
    ),
    ("rack-locality-additional-delay", Unsupported, "a unit does not wait for a rack that it prefers"),
    ("rack-locality-full-reset", Unsupported, "a unit does not wait for a rack that it prefers"),
    ("mapping-rule-format", Unsupported, "rules are those of `queue-mappings`, whatever the format says"),
    (
        "mapping-rule-json",
        Unsupported,
        "an application goes to the queue that it or a rule of `queue-mappings` names",
    ),
    (
        "mapping-rule-json-file",
        Unsupported,
        "an application goes to the queue that it or a rule of `queue-mappings` names",
    ),
    (
        "app-tag-based-placement.",
        Unsupported,
        "tags of an application do not choose its queue: it goes to the one that it or a rule of `queue-mappings` names",
    ),
    ("workflow-priority-mappings", Unsupported, "a unit has the priority that it names"),
    ("workflow-priority-mappings-override.enable", Unsupported, "a unit has the priority that it names"),
    ("per-node-heartbeat.", Mapped, "godel assigns to all nodes at once and has no limit for each heartbeat"),
    (
        "schedule-asynchronously.",
        Mapped,
        "godel always schedules asynchronously, with any number of schedulers",
    ),
    ("per-queue-preemption.", Unsupported, "every queue with a guarantee reclaims it"),
    ("application.fail-fast", Unsupported, "the control plane starts whatever queue a stored unit names"),
    ("multi-node-placement-enabled", Mapped, "godel always compares several nodes"),
    ("multi-node-sorting.", Unsupported, "the profile of the scheduler orders nodes"),
    (
        "reservations-continue-look-all-nodes",
        Mapped,
        "godel always looks at all nodes before it holds room on one",
    ),
    ("lazy-preemption-enabled", Unsupported, "victims are asked to leave when their room is needed"),
];

/// Of `yarn-site.xml`. What depends on the value stands in `site`.
pub(crate) const OF_SITE: &[KnownProperty] = &[
    (
        "yarn.scheduler.minimum-allocation-",
        Unsupported,
        "requests are not rounded up: a running unit is given exactly what it asks for",
    ),
    (
        "yarn.scheduler.maximum-allocation-",
        Unsupported,
        "a running unit may ask for as much as a node has; larger requests are told at submission",
    ),
    (
        "yarn.scheduler.increment-allocation-",
        Unsupported,
        "requests are not rounded up: a running unit is given exactly what it asks for",
    ),
    (
        "yarn.cluster.max-application-priority",
        Approximated,
        "priorities are those of priority classes; higher wins, as in YARN",
    ),
    ("yarn.node-labels.", Approximated, "nodes have labels of their own, which `godel node label` sets"),
    (
        "yarn.nodemanager.resource.memory-mb",
        Approximated,
        "the agent finds the memory of its machine and keeps `agent.reserve_memory` back",
    ),
    (
        "yarn.nodemanager.resource.cpu-vcores",
        Approximated,
        "the agent finds the CPUs of its machine and keeps `agent.reserve_cpu` back",
    ),
    (
        "yarn.nodemanager.resource.detect-hardware-capabilities",
        Mapped,
        "the agent always finds what its machine has",
    ),
    (
        "yarn.nodemanager.pmem-check-enabled",
        Approximated,
        "the agent limits memory by control groups where `agent.cgroups` allows it",
    ),
    ("yarn.nodemanager.vmem-", Unsupported, "virtual memory is neither counted nor limited"),
    (
        "yarn.nodemanager.linux-container-executor.",
        Unsupported,
        "the agent runs commands itself; see `agent` in docs/configuration.md",
    ),
    (
        "yarn.log-aggregation-",
        Approximated,
        "output stays on its node and is read with `godel unit logs` as long as the unit is kept",
    ),
    (
        "yarn.log-aggregation.",
        Approximated,
        "output stays on its node and is read with `godel unit logs` as long as the unit is kept",
    ),
    (
        "yarn.nodemanager.",
        Unsupported,
        "godel's agent runs instead of the NodeManager; its settings are `agent` in docs/configuration.md",
    ),
    (
        "yarn.resourcemanager.",
        Unsupported,
        "godel has no ResourceManager: clients of YARN cannot connect, and units are submitted with `godel unit submit`",
    ),
    ("yarn.client.", Unsupported, "clients of YARN cannot connect; `godel` is the client"),
    ("yarn.app.", Unsupported, "godel runs no application masters of YARN"),
    (
        "yarn.timeline-service.",
        Unsupported,
        "there is no timeline service; `godel history` shows ended units",
    ),
    ("yarn.federation.", Unsupported, "one control plane has all nodes"),
    ("yarn.sharedcache.", Unsupported, "there is no shared cache"),
    ("yarn.router.", Unsupported, "one control plane has all nodes"),
    ("yarn.web-proxy.", Unsupported, "there is no proxy for pages of applications"),
    ("yarn.http.policy", Unsupported, "godel serves no pages"),
    ("yarn.acl.reservation-enable", Unsupported, "whoever reaches the control plane may make reservations"),
];

/// What a table says of a name: the longest entry that fits.
pub(crate) fn look_up(table: &'static [KnownProperty], name: &str) -> Option<(Fidelity, &'static str)> {
    let fits = |known: &&KnownProperty| {
        let (key, _, _) = **known;
        key == name || (key.ends_with(['.', '-']) && name.starts_with(key))
    };
    let found = table.iter().filter(fits).max_by_key(|(key, _, _)| key.len());
    found.map(|(_, fidelity, effect)| (*fidelity, *effect))
}
