//! `godel unit list`.

use std::cmp::Reverse;

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    unit_file,
    views::UnitView,
};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;

use crate::{
    args::{ListArgs, SortKey},
    command::wait,
};

/// Where units are that name no namespace.
const DEFAULT_NAMESPACE: &str = "default";

pub(super) async fn list(client: &Client, wanted: ListArgs, format: Format) -> Result<(), Failure> {
    let ListArgs { namespace, phase, queue, owner, node, class, selector, sort, limit } = wanted;
    let phase = phase.map(|word| wait::phase(&word)).transpose()?;
    let class = class.map(|word| unit_file::parse_class(&word)).transpose();
    let class = class.map_err(|why| Failure::usage(format!("--class: {why}")))?;
    let within = namespace.unwrap_or_default();
    let request = v1::ListUnitsRequest {
        namespace: within.clone(),
        phase: phase.unwrap_or_default().into(),
        label_selector: selector.into_iter().collect(),
        queue: queue.clone(),
        owner,
        node,
        workload_class: class.unwrap_or_default(),
        ..v1::ListUnitsRequest::default()
    };
    // The first ones of another order may be anywhere in the list.
    let n_read = if sort == SortKey::Name { limit } else { usize::MAX };
    let (units, total) = client.list_units(request, n_read).await?;
    if units.is_empty() {
        exists(client, &within, &queue).await?;
    }
    let now_ms = SystemClock::new().wall_ms();
    let mut views: Vec<UnitView> = units.iter().map(|unit| UnitView::from(unit).at(now_ms)).collect();
    order(&mut views, sort);
    views.truncate(limit);
    output::print_list(format, &views, "units")?;
    if views.len() < total {
        output::say(format!("{} of {}; --limit shows more", views.len(), count(total, "unit")));
    }
    Ok(())
}

/// Whether there is what a list without entries asked for: a mistyped name is no empty list.
///
/// # Errors
/// There is no such queue, or nothing is in the namespace.
pub(super) async fn exists(client: &Client, namespace: &str, queue: &str) -> Result<(), Failure> {
    if !queue.is_empty() && !client.list_queues().await?.iter().any(|known| path_of(known) == queue) {
        let said = format!("no queue {}", shown(queue));
        return Err(Failure::new(Code::NotFound, said).hint("`godel queue list` shows all queues"));
    }
    if namespace.is_empty() || namespace == DEFAULT_NAMESPACE {
        return Ok(());
    }
    let of_namespace =
        v1::ListUnitsRequest { namespace: namespace.to_owned(), ..v1::ListUnitsRequest::default() };
    if client.list_units(of_namespace, 1).await?.1 == 0 {
        let said = format!("no namespace {}: no unit is in it", shown(namespace));
        return Err(Failure::new(Code::NotFound, said).hint("a namespace exists while units are in it"));
    }
    Ok(())
}

fn path_of(known: &v1::QueueStatus) -> &str {
    let meta = known.queue.as_ref().and_then(|queue| queue.meta.as_ref());
    meta.map_or("", |meta| &meta.name)
}

/// Units come in order of namespace and name, which stays the order of those that are equal.
fn order(views: &mut [UnitView], sort: SortKey) {
    let phase = |view: &UnitView| {
        let known = |name: &str| name.eq_ignore_ascii_case(&view.phase);
        godel_client::views::PHASES.iter().position(|name| known(name))
    };
    match sort {
        SortKey::Name => {}
        SortKey::Age => views.sort_by_key(|view| Reverse(view.create_time_ms)),
        SortKey::Phase => views.sort_by_key(phase),
        SortKey::Priority => views.sort_by_key(|view| Reverse(view.priority)),
        SortKey::Queue => views.sort_by(|a, b| a.queue.cmp(&b.queue)),
        SortKey::Owner => views.sort_by(|a, b| a.owner.cmp(&b.owner)),
        SortKey::Replicas => views.sort_by_key(|view| Reverse(view.replicas)),
    }
}
