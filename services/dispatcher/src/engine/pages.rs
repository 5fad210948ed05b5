//! Pages of lists and single records, as the API shows them.

use godel_base::ids::UnitId;
use godel_core_dispatcher::Dispatcher;
use godel_domain::queue_spec::DEFAULT_QUEUE;
use godel_kit::status;
use godel_proto::v1;
use tonic::{Code, Status};

use super::failures::unresolved;
use crate::{
    convert,
    requests::{HistoryCall, ListCall, ListPart, Page, PageCall, RowsPage},
};

/// A page that has so many bytes takes no further record; a queue has at most 400 KiB, mostly owners.
const PAGE_BYTES: usize = 512 << 10;

/// The unit that somebody who reads names: prefixes do.
pub(super) fn resolve(core: &Dispatcher, namespace: &str, name: &str) -> Result<UnitId, Status> {
    core.units().resolve(namespace, name).map_err(|why| unresolved(namespace, name, &why))
}

/// A unit with a page of its running units.
pub(super) fn show_unit(
    core: &Dispatcher,
    unit: UnitId,
    page: &RowsPage,
) -> Result<v1::GetUnitResponse, Status> {
    let Some(view) = core.unit(unit) else { return Ok(v1::GetUnitResponse::default()) };
    let from = page.from(unit)?;
    let (running_units, next) = convert::running_units(core, &view, from, page.n_max);
    Ok(v1::GetUnitResponse {
        unit: Some(convert::unit(core, &view)),
        running_units,
        next_page_token: next.map(|next| RowsPage::token(unit, next)).unwrap_or_default(),
    })
}

/// A page of units.
pub(super) fn list_units(core: &Dispatcher, call: ListCall) {
    let ListCall { mut filter, node, after, n_scan, n_units, reply } = call;
    if !node.is_empty() {
        filter.node = core.nodes().find(&node);
        if filter.node.is_none() {
            let _ = reply.send(Err(unknown_node(&node)));
            return;
        }
    }
    let chunk = core.units().list(&filter, &after, n_scan, n_units);
    let views = chunk.units.iter().filter_map(|unit| core.unit(*unit));
    let part = ListPart {
        units: views.map(|view| convert::unit(core, &view)).collect(),
        n_matched: chunk.n_matched,
        next: chunk.next,
        total: core.units().count_listed(&filter),
        revision: core.following().revision(),
    };
    // The caller may be gone.
    let _ = reply.send(Ok(part));
}

/// A part of a list of ended units.
pub(super) fn list_history(core: &Dispatcher, call: HistoryCall) {
    let HistoryCall { filter, before, n_scan, n_units, reply } = call;
    // The caller may be gone.
    let _ = reply.send(core.units().list_history(&filter, before, n_scan, n_units));
}

fn unknown_node(name: &str) -> Status {
    let message = format!("no node `{name}`: `godel node list` shows which there are");
    status::with_info(Code::NotFound, status::reason::UNKNOWN_NAME, message, [("node", name)])
}

pub(super) fn show_queue(core: &Dispatcher, name: &str) -> Option<v1::QueueStatus> {
    core.queueing().queue_view(name).map(convert::queue::queue)
}

pub(super) fn list_queues(core: &Dispatcher, call: PageCall<v1::QueueStatus>) {
    let tree = core.queueing().quota().tree();
    let names = tree.after(&call.after).map(|queue| tree.path(queue));
    let has_record = tree.find(DEFAULT_QUEUE).is_some_and(|queue| tree.record(queue).is_some());
    let total = tree.n_records() + usize::from(!has_record);
    page(core, call, total, names, |name| show_queue(core, name));
}

pub(super) fn show_class(core: &Dispatcher, name: &str) -> Option<v1::PriorityClassStatus> {
    core.queueing().classes().get(name).map(|class| convert::queue::priority_class(core, class))
}

pub(super) fn list_classes(core: &Dispatcher, call: PageCall<v1::PriorityClassStatus>) {
    let classes = core.queueing().classes();
    let after = call.after.clone();
    let names = classes.iter().map(|class| class.name.as_str()).filter(|name| **name > *after);
    page(core, call, classes.iter().count(), names, |name| show_class(core, name));
}

pub(super) fn show_budget(core: &Dispatcher, name: &str) -> Option<v1::DisruptionBudgetStatus> {
    core.budgets().view(name).map(convert::budget::budget)
}

pub(super) fn list_budgets(core: &Dispatcher, call: PageCall<v1::DisruptionBudgetStatus>) {
    let budgets = core.budgets().all();
    let after = call.after.clone();
    let names = budgets.iter().map(|budget| budget.spec.name.as_str()).filter(|name| **name > *after);
    page(core, call, budgets.len(), names, |name| show_budget(core, name));
}

pub(super) fn show_reservation(core: &Dispatcher, name: &str) -> Option<v1::ReservationStatus> {
    core.reservation(name).map(convert::reservation::reservation)
}

/// Without the slots one by one: who wants these asks for one reservation.
pub(super) fn list_reservations(core: &Dispatcher, call: PageCall<v1::ReservationStatus>) {
    let reservations = core.reservations().specs();
    let after = call.after.clone();
    let names = reservations.keys().map(String::as_str).filter(|name| **name > *after);
    page(core, call, reservations.len(), names, |name| {
        let status = show_reservation(core, name)?;
        Some(v1::ReservationStatus { places: Vec::new(), ..status })
    });
}

fn page<'a, T: prost::Message>(
    core: &Dispatcher,
    call: PageCall<T>,
    total: usize,
    names: impl Iterator<Item = &'a str>,
    show: impl Fn(&str) -> Option<T>,
) {
    let PageCall { n_max, reply, .. } = call;
    let (mut items, mut n_bytes, mut next) = (Vec::new(), 0, "");
    let mut names = names.peekable();
    while let Some(name) = names.next() {
        let Some(item) = show(name) else { continue };
        n_bytes += item.encoded_len();
        items.push(item);
        if (items.len() >= n_max || n_bytes >= PAGE_BYTES) && names.peek().is_some() {
            next = name;
            break;
        }
    }
    let revision = core.following().revision();
    let _ = reply.send(Page { items, next: next.to_owned(), total, revision });
}
