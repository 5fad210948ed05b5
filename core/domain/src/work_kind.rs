//! Kinds of work that go well together on one node: what must answer at once, and what fills the time between.

use crate::unit::{UnitSpec, WorkloadClass};

/// Label of a unit that says its kind of work, whatever its class is: [`WorkKind::name`].
pub const WORK_LABEL: &str = "godel.dev/work";

/// How a unit minds, and strains, its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// Neither of the others.
    #[default]
    Neutral,
    /// It has to answer at once, and is idle in between.
    Latency,
    /// It is always busy, and nobody waits for each step of it.
    Batch,
}

impl WorkKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Neutral, Self::Latency, Self::Batch];

    /// As the label says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::Latency => "latency",
            Self::Batch => "batch",
        }
    }

    /// Returns the kind of a unit: the one that its label says, else that of its class.
    pub fn of(spec: &UnitSpec) -> Self {
        let declared = spec.labels.get(WORK_LABEL);
        let declared = declared.and_then(|label| Self::ALL.into_iter().find(|kind| kind.name() == label));
        declared.unwrap_or(match spec.class {
            WorkloadClass::Service | WorkloadClass::Stateful | WorkloadClass::Stream => Self::Latency,
            WorkloadClass::Batch | WorkloadClass::Gang | WorkloadClass::Training | WorkloadClass::Yarn => {
                Self::Batch
            }
            WorkloadClass::Daemon => Self::Neutral,
        })
    }

    /// Returns the kind that goes well with this one.
    pub fn complement(self) -> Self {
        match self {
            Self::Neutral => Self::Neutral,
            Self::Latency => Self::Batch,
            Self::Batch => Self::Latency,
        }
    }
}
