//! What becomes of one property: mapped, approximated or unsupported.

/// How much of a property godel keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fidelity {
    /// All of it.
    Mapped,
    /// Nearly all; the effect says what differs.
    Approximated,
    /// Nothing; the effect says what follows.
    Unsupported,
}

impl Fidelity {
    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Approximated => "approximated",
            Self::Unsupported => "unsupported",
        }
    }
}

/// What becomes of one property.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PropertyFinding {
    /// Its whole name.
    pub property: String,
    /// Its value; `… (default)` where it is not set and its default has an effect.
    pub value: String,
    /// How much of it is kept.
    pub fidelity: Fidelity,
    /// What that means, in a sentence.
    pub effect: String,
}
