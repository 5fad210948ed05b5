//! Defaults by workload class: one table, rendered into the docs.

use std::{borrow::Cow, fmt};

use crate::{
    demand::Pool,
    unit::{RestartPolicy, ScoringProfile, WorkloadClass},
};

/// Kept so long after its end by default: one hour.
pub const TTL_AFTER_FINISHED_MS: u64 = 3_600 * 1_000;
/// In-place restarts by default.
pub const MAX_RESTARTS: u32 = 3;

/// Size of the first binding by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinMember {
    /// One replica is worth something.
    One,
    /// All of them or none.
    Replicas,
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
    /// Node preference.
    pub scoring: ScoringProfile,
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
        scoring: ScoringProfile::LeastAllocated,
        reason: "each replica serves by itself; spread keeps latency low and losses small",
    },
    ClassDefaults {
        class: WorkloadClass::Stateful,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 100,
        restart_policy: RestartPolicy::Always,
        scoring: ScoringProfile::LeastAllocated,
        reason: "as a service; stable ordinals",
    },
    ClassDefaults {
        class: WorkloadClass::Batch,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::OnFailure,
        scoring: ScoringProfile::MostAllocated,
        reason: "replicas are independent; packing leaves whole nodes for large work",
    },
    ClassDefaults {
        class: WorkloadClass::Gang,
        min_member: MinMember::Replicas,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::OnFailure,
        scoring: ScoringProfile::MostAllocated,
        reason: "all or nothing; packing keeps members close",
    },
    ClassDefaults {
        class: WorkloadClass::Stream,
        min_member: MinMember::Replicas,
        pool: Pool::Guaranteed,
        priority: 50,
        restart_policy: RestartPolicy::Always,
        scoring: ScoringProfile::LeastAllocated,
        reason: "a streaming job needs every operator, and runs for ever",
    },
    ClassDefaults {
        class: WorkloadClass::Training,
        min_member: MinMember::Replicas,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::OnFailure,
        scoring: ScoringProfile::MostAllocated,
        reason: "synchronous steps need every worker; packing saves whole GPU nodes",
    },
    ClassDefaults {
        class: WorkloadClass::Yarn,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 0,
        restart_policy: RestartPolicy::Never,
        scoring: ScoringProfile::MostAllocated,
        reason: "the application master restarts its containers itself",
    },
    ClassDefaults {
        class: WorkloadClass::Daemon,
        min_member: MinMember::One,
        pool: Pool::Guaranteed,
        priority: 1_000,
        restart_policy: RestartPolicy::Always,
        scoring: ScoringProfile::LeastAllocated,
        reason: "nodes depend on it, hence first",
    },
];

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

/// The table as Markdown, for the docs.
pub fn render() -> String {
    let mut out = "| class | min_member | pool | priority | restart policy | scoring profile | why |\n\
                   |---|---|---|---|---|---|---|\n"
        .to_owned();
    for line in &TABLE {
        let min_member = match line.min_member {
            MinMember::One => "1",
            MinMember::Replicas => "replicas",
        };
        out += &format!(
            "| {} | {min_member} | {} | {} | {} | {} | {} |\n",
            class_name(line.class),
            pool_name(line.pool),
            line.priority,
            restart_name(line.restart_policy),
            scoring_name(line.scoring),
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
pub fn scoring_name(profile: ScoringProfile) -> &'static str {
    match profile {
        ScoringProfile::LeastAllocated => "least-allocated",
        ScoringProfile::MostAllocated => "most-allocated",
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
            text.contains("| gang | replicas | guaranteed | 0 | on-failure | most-allocated |"),
            "{text}"
        );
    }
}
