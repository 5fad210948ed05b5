//! `godel unit list`.

use std::cmp::Reverse;

use godel_client::{
    client::Client,
    exit::Failure,
    output::{self, Format, count},
    unit_file,
    views::UnitView,
};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;

use crate::{
    args::{List, SortKey},
    command::wait,
};

pub(super) async fn list(client: &Client, wanted: List, format: Format) -> Result<(), Failure> {
    let List { namespace, phase, queue, owner, node, class, selector, sort, limit } = wanted;
    let phase = phase.map(|word| wait::phase(&word)).transpose()?;
    let class = class.map(|word| unit_file::parse_class(&word)).transpose();
    let class = class.map_err(|why| Failure::usage(format!("--class: {why}")))?;
    let request = v1::ListUnitsRequest {
        namespace: namespace.unwrap_or_default(),
        phase: phase.unwrap_or_default().into(),
        label_selector: selector.into_iter().collect(),
        queue,
        owner,
        node,
        workload_class: class.unwrap_or_default(),
        ..v1::ListUnitsRequest::default()
    };
    // The first ones of another order may be anywhere in the list.
    let n_read = if sort == SortKey::Name { limit } else { usize::MAX };
    let (units, total) = client.list_units(request, n_read).await?;
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
