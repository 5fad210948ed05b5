//! Defaults by workload class: one table, rendered into the docs.

use std::{borrow::Cow, fmt};

use crate::{
    demand::Pool,
    unit::{OnBelowMin, OnEviction, OnFailure, RestartPolicy, WorkloadClass},
};

/// Kept so long after its end by default: one hour.
pub const TTL_AFTER_FINISHED_MS: u64 = 3_600 * 1_000;
/// In-place restarts by default.
pub const MAX_RESTARTS: u32 = 3;
/// The same of a daemon, which a node needs for as long as it is there: three days of pauses of 5 min.
pub const DAEMON_RESTARTS: u32 = 1_000;
/// Running units that a domain of a spread may have above the domain with the fewest by default.
pub const MAX_SKEW: u32 = 1;

/// The built-in profile that spreads.
const LEAST_ALLOCATED: &str = "least-allocated";
/// The built-in profile that packs.
const MOST_ALLOCATED: &str = "most-allocated";

/// Size of the first binding by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinMember {
    /// One replica is worth something.
    One,
    /// All of them or none.
    Replicas,
}

/// What a running unit does whose node has lost contact for so long that state may soon give it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutContact {
    /// Its agent stops it: two of it at a time would do harm.
    Stops,
    /// As [`Self::Stops`] if `min_member` is above 1, which makes a gang of it.
    StopsAsGang,
    /// It goes on: a second one beside it does no harm, a gap does.
    GoesOn,
}

/// Defaults of one workload class.
#[derive(Clone, Copy, Debug)]
pub struct ClassDefaults {
    /// The class.
    pub class: WorkloadClass,
    /// Size of the first binding.
    pub min_member: MinMember,
    /// Pays for it.
    pub pool: Pool,
    /// Higher wins.
    pub priority: i32,
    /// Of replicas that ended by themselves.
    pub restart_policy: RestartPolicy,
    /// Name of the built-in profile that its units are placed by.
    pub profile: &'static str,
    /// In-place restarts of a replica in a row.
    pub max_restarts: u32,
    /// Whether its agent stops it when contact is lost.
    pub without_contact: WithoutContact,
    /// Of a unit of which a running unit has failed for good.
    pub on_failure: OnFailure,
    /// May have to leave for units of higher rank.
    pub preemptible: bool,
    /// Why these.
    pub reason: &'static str,
}

/// The table, one line per class, in order of the API's numbers.
pub const TABLE: [ClassDefaults; 8] = [
    ClassDefaults {
        class: WorkloadClass::Service,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 100,
        restart_policy: RestartPolicy::Always,
        profile: LEAST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::GoesOn,
        on_failure: OnFailure::Keep,
        preemptible: true,
        reason: "each replica serves by itself; spread keeps latency low and losses small",
    },
    ClassDefaults {
        class: WorkloadClass::Stateful,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 100,
        restart_policy: RestartPolicy::Always,
        profile: LEAST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::Stops,
        on_failure: OnFailure::Keep,
        preemptible: true,
        reason: "as a service; stable ordinals, each of them once, started in their order",
    },
    ClassDefaults {
        class: WorkloadClass::Batch,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::OnFailure,
        profile: MOST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::StopsAsGang,
        on_failure: OnFailure::Keep,
        preemptible: true,
        reason: "replicas are independent unless min_member says otherwise; packing leaves whole nodes for large work",
    },
    ClassDefaults {
        class: WorkloadClass::Gang,
        min_member: MinMember::Replicas,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::OnFailure,
        profile: MOST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::Stops,
        on_failure: OnFailure::Stop,
        preemptible: true,
        reason: "all or nothing; packing keeps members close",
    },
    ClassDefaults {
        class: WorkloadClass::Stream,
        min_member: MinMember::Replicas,
        pool: Pool::Guaranteed,
        priority: 50,
        restart_policy: RestartPolicy::Always,
        profile: LEAST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::GoesOn,
        on_failure: OnFailure::Keep,
        preemptible: true,
        reason: "a streaming job needs every operator, and runs for ever",
    },
    ClassDefaults {
        class: WorkloadClass::Training,
        min_member: MinMember::Replicas,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::OnFailure,
        profile: MOST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::Stops,
        on_failure: OnFailure::Stop,
        preemptible: true,
        reason: "synchronous steps need every worker; packing saves whole GPU nodes",
    },
    ClassDefaults {
        class: WorkloadClass::Yarn,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::Never,
        profile: MOST_ALLOCATED,
        max_restarts: MAX_RESTARTS,
        without_contact: WithoutContact::GoesOn,
        on_failure: OnFailure::Keep,
        preemptible: true,
        reason: "the application master restarts its containers itself; YARN fences older attempts",
    },
    ClassDefaults {
        class: WorkloadClass::Daemon,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 1_000,
        restart_policy: RestartPolicy::Always,
        profile: LEAST_ALLOCATED,
        max_restarts: DAEMON_RESTARTS,
        without_contact: WithoutContact::GoesOn,
        on_failure: OnFailure::Keep,
        preemptible: false,
        reason: "nodes depend on it, hence first",
    },
];

impl ClassDefaults {
    /// As an applied default names it.
    pub fn preemptible_name(&self) -> &'static str {
        if self.preemptible { "true" } else { "false" }
    }
}

/// The line of a class.
pub fn of(class: WorkloadClass) -> &'static ClassDefaults {
    let idx = match class {
        WorkloadClass::Service => 0,
        WorkloadClass::Stateful => 1,
        WorkloadClass::Batch => 2,
        WorkloadClass::Gang => 3,
        WorkloadClass::Stream => 4,
        WorkloadClass::Training => 5,
        WorkloadClass::Yarn => 6,
        WorkloadClass::Daemon => 7,
    };
    &TABLE[idx]
}

/// Whether an agent stops running units of such a unit once it has been without contact for too long.
pub fn stops_without_contact(class: WorkloadClass, min_member: u32) -> bool {
    match of(class).without_contact {
        WithoutContact::Stops => true,
        WithoutContact::StopsAsGang => min_member > 1,
        WithoutContact::GoesOn => false,
    }
}

/// The table as Markdown, for the docs.
pub fn render() -> String {
    let mut out = "| class | min_member | pool | priority | restart policy | max_restarts | on_failure | profile | without contact | preemptible | why |\n\
                   |---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for line in &TABLE {
        let min_member = match line.min_member {
            MinMember::One => "1",
            MinMember::Replicas => "replicas",
        };
        out += &format!(
            "| {} | {min_member} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            class_name(line.class),
            pool_name(line.pool),
            line.priority,
            restart_name(line.restart_policy),
            line.max_restarts,
            on_failure_name(line.on_failure),
            line.profile,
            match line.without_contact {
                WithoutContact::Stops => "stops",
                WithoutContact::StopsAsGang => "stops if min_member > 1",
                WithoutContact::GoesOn => "goes on",
            },
            if line.preemptible { "yes" } else { "no" },
            line.reason,
        );
    }
    out
}

/// A default that was filled in; shown as `field = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedDefault {
    /// Path within the unit.
    pub field: Cow<'static, str>,
    /// What was filled in.
    pub value: DefaultValue,
}

/// Value of a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// A number.
    Number(i64),
    /// A name.
    Word(&'static str),
}

impl AppliedDefault {
    /// Of a number.
    pub const fn number(field: &'static str, value: i64) -> Self {
        Self { field: Cow::Borrowed(field), value: DefaultValue::Number(value) }
    }

    /// Of a name.
    pub const fn word(field: &'static str, value: &'static str) -> Self {
        Self { field: Cow::Borrowed(field), value: DefaultValue::Word(value) }
    }
}

impl fmt::Display for AppliedDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            DefaultValue::Number(value) => write!(f, "{} = {value}", self.field),
            DefaultValue::Word(value) => write!(f, "{} = {value}", self.field),
        }
    }
}

/// As unit files write it.
pub fn class_name(class: WorkloadClass) -> &'static str {
    match class {
        WorkloadClass::Service => "service",
        WorkloadClass::Stateful => "stateful",
        WorkloadClass::Batch => "batch",
        WorkloadClass::Gang => "gang",
        WorkloadClass::Stream => "stream",
        WorkloadClass::Training => "training",
        WorkloadClass::Yarn => "yarn",
        WorkloadClass::Daemon => "daemon",
    }
}

/// As unit files write it.
pub fn pool_name(pool: Pool) -> &'static str {
    match pool {
        Pool::Guaranteed => "guaranteed",
        Pool::BestEffort => "best-effort",
    }
}

/// As unit files write it.
pub fn restart_name(policy: RestartPolicy) -> &'static str {
    match policy {
        RestartPolicy::Never => "never",
        RestartPolicy::OnFailure => "on-failure",
        RestartPolicy::Always => "always",
    }
}

/// As unit files write it.
pub fn on_eviction_name(what: OnEviction) -> &'static str {
    match what {
        OnEviction::Requeue => "requeue",
        OnEviction::Fail => "fail",
    }
}

/// As unit files write it.
pub fn on_below_min_name(what: OnBelowMin) -> &'static str {
    match what {
        OnBelowMin::Keep => "keep",
        OnBelowMin::Restart => "restart",
        OnBelowMin::Stop => "stop",
    }
}

/// As unit files write it.
pub fn on_failure_name(what: OnFailure) -> &'static str {
    match what {
        OnFailure::Keep => "keep",
        OnFailure::Restart => "restart",
        OnFailure::Stop => "stop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_rendered() {
        for line in &TABLE {
            assert_eq!(of(line.class).class, line.class);
        }
        let text = render();
        assert_eq!(text.lines().count(), 2 + TABLE.len());
        assert!(
            text.contains(
                "| gang | replicas | guaranteed | 0 | on-failure | 3 | stop | most-allocated | stops |"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_would_do_harm_twice_stops_without_contact() {
        use WorkloadClass::{Batch, Daemon, Gang, Service, Stateful, Stream, Training, Yarn};
        for (class, alone, as_gang) in [
            (Service, false, false),
            (Stateful, true, true),
            (Batch, false, true),
            (Gang, true, true),
            (Stream, false, false),
            (Training, true, true),
            (Yarn, false, false),
            (Daemon, false, false),
        ] {
            assert_eq!(stops_without_contact(class, 1), alone, "{class:?}");
            assert_eq!(stops_without_contact(class, 2), as_gang, "{class:?}");
        }
    }
}
