//! Pages of lists and single records, as the API shows them.

use godel_base::ids::{Revision, UnitId};
use godel_core_dispatcher::{Dispatcher, read::ListFilter};
use godel_domain::{queue_spec::DEFAULT_QUEUE, sight::Sight};
use godel_kit::status;
use godel_proto::v1;
use godel_wire::{BadField, hidden::HideNames as _};
use tonic::{Code, Status};

use crate::{convert, engine::unresolved};

/// A page that has so many bytes takes no further record; a queue has at most 400 KiB, mostly owners.
const PAGE_BYTES: usize = 512 << 10;

/// A page of a list of records, in order of name.
pub(crate) struct RecordPage<T> {
    pub(crate) items: Vec<T>,
    /// Name of the last item; empty on the last page.
    pub(crate) next: String,
    pub(crate) total: usize,
    pub(crate) revision: Revision,
}

/// A bounded part of a list of units.
pub(crate) struct ListPart {
    pub(crate) units: Vec<v1::Unit>,
    pub(crate) n_matched: u32,
    pub(crate) next: String,
    pub(crate) total: Option<u64>,
    pub(crate) revision: Revision,
}

/// A page of a unit's running units.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsPage {
    /// At most so many.
    pub(crate) n_max: usize,
    /// The unit of the page before, and the ordinal to go on at; `None`: the first page.
    pub(crate) after: Option<(UnitId, u32)>,
}

impl RowsPage {
    /// The token of the page that begins at an ordinal.
    pub(crate) fn token(unit: UnitId, ordinal: u32) -> String {
        format!("{unit}.{ordinal}")
    }

    /// What [`RowsPage::token`] made; `None` if it did not.
    pub(crate) fn parse(token: &str) -> Option<(UnitId, u32)> {
        let (unit, ordinal) = token.split_once('.')?;
        Some((UnitId(unit.parse().ok()?), ordinal.parse().ok()?))
    }

    /// The ordinal that the page begins at.
    pub(crate) fn from(&self, unit: UnitId) -> Result<u32, Status> {
        match self.after {
            None => Ok(0),
            Some((of, ordinal)) if of == unit => Ok(ordinal),
            Some(_) => {
                let description = "the token belongs to another unit that had this name: start again";
                Err(status::invalid_argument([BadField::new("page_token", description)]))
            }
        }
    }
}

/// The unit that somebody who reads names: prefixes do. Of what is not in sight there is nothing.
pub(crate) fn resolve(
    core: &Dispatcher,
    sight: &Sight,
    namespace: &str,
    name: &str,
) -> Result<UnitId, Status> {
    core.units().resolve(sight, namespace, name).map_err(|why| unresolved(namespace, name, &why))
}

/// A unit with a page of its running units.
pub(crate) fn show_unit(
    core: &Dispatcher,
    sight: &Sight,
    namespace: &str,
    name: &str,
    page: &RowsPage,
) -> Result<v1::GetUnitResponse, Status> {
    let unit = resolve(core, sight, namespace, name)?;
    let Some(view) = core.unit(unit) else { return Ok(v1::GetUnitResponse::default()) };
    let from = page.from(unit)?;
    let (running_units, next) = convert::running_units(core, &view, from, page.n_max);
    let answer = v1::GetUnitResponse {
        unit: Some(convert::unit(core, &view)),
        running_units,
        next_page_token: next.map(|next| RowsPage::token(unit, next)).unwrap_or_default(),
    };
    Ok(answer.within_sight(sight))
}

/// Units after a name, so many of those looked at; `node`: the name of a node of the filter, empty: none.
pub(crate) fn list_units(
    core: &Dispatcher,
    mut filter: ListFilter,
    node: &str,
    after: &str,
    n_scan: usize,
    n_units: usize,
) -> Result<ListPart, Status> {
    if !node.is_empty() {
        filter.node = core.nodes().find(node);
        if filter.node.is_none() {
            return Err(unknown_node(node));
        }
    }
    let chunk = core.units().list(&filter, after, n_scan, n_units);
    let views = chunk.units.iter().filter_map(|unit| core.unit(*unit));
    Ok(ListPart {
        units: views.map(|view| convert::unit(core, &view)).collect(),
        n_matched: chunk.n_matched,
        next: chunk.next,
        total: core.units().count_listed(&filter),
        revision: core.following().revision(),
    })
}

fn unknown_node(name: &str) -> Status {
    let message = format!("no node `{name}`: `godel node list` shows which there are");
    status::with_info(Code::NotFound, status::reason::UNKNOWN_NAME, message, [("node", name)])
}

pub(crate) fn show_queue(core: &Dispatcher, name: &str) -> Option<v1::QueueStatus> {
    core.queueing().queue_view(name).map(convert::queue::queue)
}

pub(crate) fn list_queues(core: &Dispatcher, after: &str, n_max: usize) -> RecordPage<v1::QueueStatus> {
    let tree = core.queueing().quota().tree();
    let names = tree.after(after).map(|queue| tree.path(queue));
    let has_record = tree.find(DEFAULT_QUEUE).is_some_and(|queue| tree.record(queue).is_some());
    let total = tree.n_records() + usize::from(!has_record);
    page(core, n_max, total, names, |name| show_queue(core, name))
}

pub(crate) fn show_class(core: &Dispatcher, name: &str) -> Option<v1::PriorityClassStatus> {
    core.queueing().classes().get(name).map(|class| convert::queue::priority_class(core, class))
}

pub(crate) fn list_classes(
    core: &Dispatcher,
    after: &str,
    n_max: usize,
) -> RecordPage<v1::PriorityClassStatus> {
    let classes = core.queueing().classes();
    let names = classes.iter().map(|class| class.name.as_str()).filter(|name| *name > after);
    page(core, n_max, classes.iter().count(), names, |name| show_class(core, name))
}

pub(crate) fn show_budget(core: &Dispatcher, name: &str) -> Option<v1::DisruptionBudgetStatus> {
    core.budgets().view(name).map(convert::budget::budget)
}

pub(crate) fn list_budgets(
    core: &Dispatcher,
    after: &str,
    n_max: usize,
) -> RecordPage<v1::DisruptionBudgetStatus> {
    let budgets = core.budgets().all();
    let names = budgets.iter().map(|budget| budget.spec.name.as_str()).filter(|name| *name > after);
    page(core, n_max, budgets.len(), names, |name| show_budget(core, name))
}

pub(crate) fn show_reservation(core: &Dispatcher, name: &str) -> Option<v1::ReservationStatus> {
    core.reservation(name).map(convert::reservation::reservation)
}

/// Without the slots one by one: who wants these asks for one reservation.
pub(crate) fn list_reservations(
    core: &Dispatcher,
    after: &str,
    n_max: usize,
) -> RecordPage<v1::ReservationStatus> {
    let reservations = core.reservations().specs();
    let names = reservations.keys().map(String::as_str).filter(|name| *name > after);
    page(core, n_max, reservations.len(), names, |name| {
        let status = show_reservation(core, name)?;
        Some(v1::ReservationStatus { places: Vec::new(), ..status })
    })
}

fn page<'a, T: prost::Message>(
    core: &Dispatcher,
    n_max: usize,
    total: usize,
    names: impl Iterator<Item = &'a str>,
    show: impl Fn(&str) -> Option<T>,
) -> RecordPage<T> {
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
    RecordPage { items, next: next.to_owned(), total, revision: core.following().revision() }
}
