//! `godel budget`.

use godel_client::{
    client::Client,
    exit::Failure,
    output::Format,
    views::{BudgetView, parse_limit},
};
use godel_domain::budget_spec::Limit;
use godel_proto::v1;

use super::{
    each::Done,
    records::{self, CreatedRecord, NamedRecord, StoredRecord, exists, hint},
};
use crate::args::budget::{Budget, BudgetSettings};

pub(super) async fn run(client: &Client, verb: Budget, format: Format) -> Result<(), Failure> {
    match verb {
        Budget::Create(new) => records::create::<NamedBudgets>(client, new, format).await,
        Budget::List => records::list::<NamedBudgets>(client, format).await,
        Budget::Describe(names) => records::describe::<NamedBudgets>(client, names, format).await,
        Budget::Set(changed) => records::set::<NamedBudgets>(client, changed, format).await,
        Budget::Delete(deleted) => records::delete::<NamedBudgets>(client, deleted, format).await,
    }
}

/// Disruption budgets.
pub(super) struct NamedBudgets;

impl NamedRecord for NamedBudgets {
    const NAMES: [&str; 2] = ["disruption budget", "disruption budgets"];
    const VERB: &str = "budget";
    type Settings = BudgetSettings;
    type Record = v1::DisruptionBudget;
    type View = BudgetView;

    fn fresh(name: String) -> Self::Record {
        v1::DisruptionBudget { name, ..v1::DisruptionBudget::default() }
    }

    fn settle(budget: &mut Self::Record, settings: BudgetSettings) -> Result<(), Failure> {
        let BudgetSettings { namespace, unit, selector, max_unavailable, min_available, description } =
            settings;
        budget.namespace = namespace.unwrap_or(std::mem::take(&mut budget.namespace));
        if let Some(unit) = unit {
            (budget.unit, budget.selector) = (unit, [].into());
        }
        if !selector.is_empty() {
            (budget.unit, budget.selector) = (String::new(), selector.into_iter().collect());
        }
        let wrong = |flag: &'static str| move |error: String| Failure::usage(format!("{flag}: {error}"));
        if let Some(most) = max_unavailable {
            let limit = parse_limit(Limit::MaxUnavailable, &most).map_err(wrong("--max-unavailable"))?;
            budget.limit = Some(limit);
        }
        if let Some(least) = min_available {
            let limit = parse_limit(Limit::MinAvailable, &least).map_err(wrong("--min-available"))?;
            budget.limit = Some(limit);
        }
        budget.description = description.unwrap_or(std::mem::take(&mut budget.description));
        Ok(())
    }

    async fn list(client: &Client) -> Result<Vec<BudgetView>, Failure> {
        Ok(client.list_budgets().await?.iter().map(BudgetView::from).collect())
    }

    async fn get(client: &Client, name: String) -> Result<StoredRecord<Self>, Failure> {
        let request = v1::GetBudgetRequest { name };
        let call = client.budgets(async |mut budgets| budgets.get_budget(request.clone()).await);
        let status = call.await.map_err(hint::<Self>)?.budget.unwrap_or_default();
        let (view, revision) = (BudgetView::from(&status), status.revision);
        Ok(StoredRecord { view, record: status.budget.unwrap_or_default(), revision })
    }

    async fn create(client: &Client, budget: Self::Record) -> Result<CreatedRecord, Failure> {
        let request = v1::CreateBudgetRequest { budget: Some(budget) };
        let call = client.budgets(async |mut budgets| budgets.create_budget(request.clone()).await);
        let answer = call.await.map_err(exists::<Self>)?;
        Ok(CreatedRecord { is_duplicate: answer.duplicate, revision: answer.revision })
    }

    async fn update(client: &Client, budget: Self::Record, revision: u64) -> Result<Done, Failure> {
        let request = v1::UpdateBudgetRequest { budget: Some(budget), expected_revision: revision };
        let call = client.budgets(async |mut budgets| budgets.update_budget(request.clone()).await);
        Ok(Done::at("updated", call.await.map_err(hint::<Self>)?.revision))
    }

    async fn delete(client: &Client, name: String, revision: u64) -> Result<u64, Failure> {
        let request = v1::DeleteBudgetRequest { name, expected_revision: revision };
        let call = client.budgets(async |mut budgets| budgets.delete_budget(request.clone()).await);
        Ok(call.await.map_err(hint::<Self>)?.revision)
    }
}
