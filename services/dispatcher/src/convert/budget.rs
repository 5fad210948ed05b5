//! Disruption budgets as shown.

use godel_core_dispatcher::{budgets::BudgetView, queues::Versions};
use godel_proto::v1;
use godel_rules::budget::Use;
use godel_wire::to_proto;

/// A disruption budget as shown.
pub(crate) fn budget(view: BudgetView) -> v1::DisruptionBudgetStatus {
    let BudgetView { spec, versions, n_units, used, floor, allowed } = view;
    let Versions { create_revision, revision, create_time_ms } = versions;
    let Use { expected, available } = used;
    v1::DisruptionBudgetStatus {
        budget: Some(to_proto::budget(&spec)),
        create_revision: create_revision.0,
        revision: revision.0,
        create_time_ms,
        units: n_units,
        expected,
        available,
        required: floor,
        allowed,
    }
}
