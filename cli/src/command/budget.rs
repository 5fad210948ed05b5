//! `godel budget`.

use godel_core::budget::spec::Limit;
use godel_proto::v1;

use super::queue::titled;
use crate::{
    args::budget::{Budget, BudgetSettings},
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    views::{BudgetView, parse_limit},
};

pub(super) async fn run(client: &Client, budget: Budget, format: Format) -> Result<(), Failure> {
    match budget {
        Budget::Create { name, settings } => {
            let mut budget = v1::DisruptionBudget { name, ..v1::DisruptionBudget::default() };
            settle(&mut budget, settings)?;
            let (name, answer) = (budget.name.clone(), create(client, budget).await?);
            let how = if answer.duplicate { "had been created" } else { "created" };
            output::say(format!("disruption budget {name} {how} at revision {}", answer.revision));
            Ok(())
        }
        Budget::List => {
            let budgets = client.list_budgets().await?;
            let views: Vec<BudgetView> = budgets.iter().map(BudgetView::from).collect();
            output::print_list(format, &views, "disruption budgets")
        }
        Budget::Describe { name } => {
            let view = BudgetView::from(&get(client, &name).await?);
            match format {
                Format::Json | Format::Yaml => output::print_value(format, &view),
                Format::Table | Format::Wide => output::print(&titled(&view)),
            }
        }
        Budget::Set { name, settings, revision } => {
            let status = get(client, &name).await?;
            let mut budget = status.budget.unwrap_or_default();
            settle(&mut budget, settings)?;
            // What was read is what is changed.
            let expected_revision = if revision == 0 { status.revision } else { revision };
            let revision = update(client, budget, expected_revision).await?;
            output::say(format!("disruption budget {name} updated at revision {revision}"));
            Ok(())
        }
        Budget::Delete { names, revision } => {
            for name in names {
                let request = v1::DeleteBudgetRequest { name: name.clone(), expected_revision: revision };
                let answer = client
                    .budgets(|mut budgets| {
                        let request = request.clone();
                        async move { budgets.delete_budget(request).await }
                    })
                    .await
                    .map_err(hint)?
                    .into_inner();
                output::say(format!("disruption budget {name} deleted at revision {}", answer.revision));
            }
            Ok(())
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
        .budgets(|mut budgets| {
            let request = request.clone();
            async move { budgets.create_budget(request).await }
        })
        .await
        .map_err(|failure| match failure.code {
            Code::Conflict => failure.hint("`godel budget set` changes it, `godel apply -f` replaces it"),
            _ => failure,
        })?;
    Ok(answer.into_inner())
}

async fn update(
    client: &Client,
    budget: v1::DisruptionBudget,
    expected_revision: u64,
) -> Result<u64, Failure> {
    let request = v1::UpdateBudgetRequest { budget: Some(budget), expected_revision };
    let answer = client
        .budgets(|mut budgets| {
            let request = request.clone();
            async move { budgets.update_budget(request).await }
        })
        .await
        .map_err(hint)?;
    Ok(answer.into_inner().revision)
}

async fn get(client: &Client, name: &str) -> Result<v1::DisruptionBudgetStatus, Failure> {
    let answer = client
        .budgets(|mut budgets| {
            let request = v1::GetBudgetRequest { name: name.to_owned() };
            async move { budgets.get_budget(request).await }
        })
        .await
        .map_err(hint)?;
    Ok(answer.into_inner().budget.unwrap_or_default())
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
