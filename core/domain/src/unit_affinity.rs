//! Where replicas of a unit go in relation to running units: beside those of some units, apart from those of others, spread
//! evenly over domains.
//!
//! A domain is all nodes that have the same value of a label, the topology key: a rack, a zone. With the key [`NODE`] each
//! node is a domain of its own.

use crate::label_expression::LabelExpression;

/// The topology key by which each node is a domain.
pub const NODE: &str = "node";
/// Most terms of one kind.
pub const N_TERMS_MAX: usize = 8;
/// Heaviest preference.
pub const TERM_WEIGHT_MAX: u32 = 100;
/// Greatest difference that a spread can allow.
pub const MAX_SKEW_MAX: u32 = 10_000;

/// Everything that a unit says of where its replicas go in relation to running units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnitAffinity {
    /// Replicas go to domains where units of these run.
    pub near: Vec<UnitTerm>,
    /// Replicas go to domains where no unit of these runs, nor do units of these go where replicas are.
    pub apart: Vec<UnitTerm>,
    /// Running units are spread evenly over domains.
    pub spread: Vec<SpreadTerm>,
}

/// Some units, and how near is near.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitTerm {
    /// Conditions on the labels of units of the same namespace; none: the unit itself.
    pub units: Vec<LabelExpression>,
    /// Topology key.
    pub topology: String,
    /// How much it is preferred, 1 to [`TERM_WEIGHT_MAX`]; 0: it is required.
    pub weight: u32,
}

/// How evenly running units are spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadTerm {
    /// Conditions on the labels of units of the same namespace that are counted; none: the unit itself.
    pub units: Vec<LabelExpression>,
    /// Topology key.
    pub topology: String,
    /// So many more than the domain with the fewest a domain may have, 1 to [`MAX_SKEW_MAX`].
    pub max_skew: u32,
    /// How much it is preferred, 1 to [`TERM_WEIGHT_MAX`]; 0: it is required.
    pub weight: u32,
}

impl UnitAffinity {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.near.is_empty() && self.apart.is_empty() && self.spread.is_empty()
    }
}
