//! What a policy wants of a layout: a number that it lowers, kept up to date move by move, and what other policies must not do.

use std::fmt;

use crate::layout::{Layout, NodeIdx, RunIdx};

/// Changes smaller than this are rounding.
pub const EPSILON: f64 = 1e-9;

/// What a policy wants of a layout. A goal is made for one layout and is told of every move of it.
///
/// What it protects from other policies is its [`bound`](Self::bound): it objects to every single move that would raise it, so
/// no sequence of moves that it did not object to raises it.
pub trait Goal {
    /// Returns the objective, which the policy lowers. It is never negative.
    fn value(&self) -> f64;

    /// Returns by how much a move would change the objective; below zero is better. The room needs not be there.
    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64;

    /// Takes note of a move, which the layout shows already.
    fn on_moved(&mut self, layout: &Layout<'_>, unit: RunIdx, from: NodeIdx, to: NodeIdx);

    /// Returns what other policies must not raise; the objective, unless the policy says otherwise.
    fn bound(&self) -> f64 {
        self.value()
    }

    /// Returns which check forbids a move of another policy: one that raises the bound above what it was at first.
    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint>;
}

/// Which question of a check between policies was answered with no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckPoint {
    /// May the running unit leave its node?
    Leave,
    /// May the running unit enter the other node?
    Enter,
    /// May the running unit move at all?
    Move,
}

impl fmt::Display for CheckPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leave => "may leave",
            Self::Enter => "may enter",
            Self::Move => "may move",
        })
    }
}
