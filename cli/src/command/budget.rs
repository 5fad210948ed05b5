//! `godel budget`.

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    views::{BudgetView, parse_limit},
};
use godel_domain::budget_spec::Limit;
use godel_proto::v1;

use super::{
    describe_each,
    each::{Done, each},
    print_described,
    queue::{created, exists, titled},
};
use crate::args::budget::{Budget, BudgetSettings};

const BUDGET: &str = "disruption budget";

pub(super) async fn run(client: &Client, budget: Budget, format: Format) -> Result<(), Failure> {
    match budget {
        Budget::Create { names, settings } => {
            let create = each(format, BUDGET, &names, async |name| {
                let mut budget = v1::DisruptionBudget { name, ..v1::DisruptionBudget::default() };
                settle(&mut budget, settings.clone())?;
                let answer = create(client, budget).await?;
                Ok(created(answer.duplicate, answer.revision))
            });
            create.await.map(drop)
        }
        Budget::List => {
            let budgets = client.list_budgets().await?;
            let views: Vec<BudgetView> = budgets.iter().map(BudgetView::from).collect();
            output::print_list(format, &views, "disruption budgets")
        }
        Budget::Describe { names } => {
            let look = async |name: String| Ok::<_, Failure>(BudgetView::from(&get(client, &name).await?));
            print_described(format, BUDGET, describe_each(&names, look).await, titled)
        }
        Budget::Set { names, settings, revision } => {
            let set = each(format, BUDGET, &names, async |name| {
                let status = get(client, &name).await?;
                let mut budget = status.budget.unwrap_or_default();
                settle(&mut budget, settings.clone())?;
                // What was read is what is changed.
                let expected_revision = if revision == 0 { status.revision } else { revision };
                Ok(Done::at("updated", update(client, budget, expected_revision).await?))
            });
            set.await.map(drop)
        }
        Budget::Delete { names, revision } => {
            let deleted = each(format, BUDGET, &names, async |name| {
                let request = v1::DeleteBudgetRequest { name, expected_revision: revision };
                let call = client.budgets(async |mut budgets| budgets.delete_budget(request.clone()).await);
                Ok(Done::at("deleted", call.await.map_err(hint)?.revision))
            });
            deleted.await.map(drop)
        }
    }
}

/// What a file says: created, changed, or there as given. The word for that, and the revision.
pub(super) async fn apply(
    client: &Client,
    budget: &v1::DisruptionBudget,
) -> Result<(&'static str, u64), Failure> {
    match create(client, budget.clone()).await {
        Ok(answer) if answer.duplicate => Ok(("unchanged", answer.revision)),
        Ok(answer) => Ok(("created", answer.revision)),
        Err(failure) if failure.code == Code::Conflict => {
            Ok(("updated", update(client, budget.clone(), 0).await?))
        }
        Err(failure) => Err(failure),
    }
}

async fn create(client: &Client, budget: v1::DisruptionBudget) -> Result<v1::CreateBudgetResponse, Failure> {
    let request = v1::CreateBudgetRequest { budget: Some(budget) };
    let answer = client
        .budgets(async |mut budgets| budgets.create_budget(request.clone()).await)
        .await
        .map_err(|failure| match failure.code {
            Code::Conflict => {
                exists(failure).hint("`godel budget set` changes it, `godel apply -f` replaces it")
            }
            _ => failure,
        })?;
    Ok(answer)
}

async fn update(
    client: &Client,
    budget: v1::DisruptionBudget,
    expected_revision: u64,
) -> Result<u64, Failure> {
    let request = v1::UpdateBudgetRequest { budget: Some(budget), expected_revision };
    let answer = client
        .budgets(async |mut budgets| budgets.update_budget(request.clone()).await)
        .await
        .map_err(hint)?;
    Ok(answer.revision)
}

async fn get(client: &Client, name: &str) -> Result<v1::DisruptionBudgetStatus, Failure> {
    let answer = client
        .budgets(async |mut budgets| budgets.get_budget(v1::GetBudgetRequest { name: name.to_owned() }).await)
        .await
        .map_err(hint)?;
    Ok(answer.budget.unwrap_or_default())
}

fn hint(failure: Failure) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint("`godel budget list` shows what there is"),
        _ => failure,
    }
}

/// Changes what the flags name, and nothing else.
fn settle(budget: &mut v1::DisruptionBudget, settings: BudgetSettings) -> Result<(), Failure> {
    let BudgetSettings { namespace, unit, selector, max_unavailable, min_available, description } = settings;
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
