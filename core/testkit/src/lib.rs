//! Builders of records for tests: each gives a record that is valid, with what most tests do not care about filled in.
//!
//! - `demand`: demands: one that takes only CPU, and its changes as a chain of calls.
//! - `follow`: whether a follower takes the records that it declares, and no others.
//! - `node`: nodes: one that is ready, and its changes as a chain of calls.
//! - `skip`: what a test says that this machine does not allow.
//! - `unit`: units: one that is valid, and its changes as a chain of calls.

mod demand;
mod follow;
mod node;
mod skip;
mod unit;

use godel_domain::budget_spec::{Amount, BudgetSpec, Limit};

pub use demand::{BuildDemand, demand};
pub use follow::check_follows;
pub use node::{TestNode, node};
pub use skip::skip;
pub use unit::{BuildUnit, group, unit};

/// Returns a budget named `web` of the units that are labelled `app: web`: `max_unavailable` of their running units may be
/// missing.
pub fn web_budget(max_unavailable: u32) -> BudgetSpec {
    BudgetSpec {
        name: "web".to_owned(),
        namespace: "default".to_owned(),
        selector: [("app".to_owned(), "web".to_owned())].into(),
        limit: Limit::MaxUnavailable(Amount::Count(max_unavailable)),
        ..BudgetSpec::default()
    }
}
