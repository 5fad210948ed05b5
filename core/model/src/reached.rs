//! What the model reaches and no scenario provokes from outside: the coverage of scenarios counts it.

/// A change of a running unit's phase that cases of the model contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelChange {
    /// As [`PhaseChange`](godel_domain::running_units::PhaseChange) shows it.
    pub change: &'static str,
    /// The step or event of the model that makes it.
    pub by: &'static str,
}

/// Changes of the phase that depend on when an agent speaks, which only the model decides. The tests of the model fail if its
/// cases do not contain one of them.
pub const CHANGES: &[ModelChange] = &[
    // Agents that run what is assigned speak of it once it runs; these say as well that they have it.
    ModelChange { change: "bound-starting", by: "StepKind::CutAgent" },
    ModelChange { change: "starting-succeeded", by: "StepKind::Succeed" },
    ModelChange { change: "starting-failed", by: "StepKind::Fail" },
    ModelChange { change: "starting-running-again", by: "StepKind::Fail" },
    ModelChange { change: "running-running-again", by: "StepKind::Fail" },
];
