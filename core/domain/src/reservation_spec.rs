//! What people write: reservations, and what of one is wrong by itself.

use std::{collections::BTreeMap, hash::Hasher as _};

use rustc_hash::FxHasher;

use crate::{
    demand::{Demand, DeviceRequest},
    limits::{AMOUNT_MAX, amount_out_of_range},
    names::{self, BadName, ENTRIES_MAX, NAME_LEN_MAX, NAMESPACE_LEN_MAX},
    record_change::{DESCRIPTION_LEN_MAX, Ground, Report},
    zone::CpuMode,
};
use godel_base::{quantity::MILLI_WHOLE, resources::CPU};

/// Thousandths of one CPU.
const MILLI_CPU: i64 = 1_000;

/// Most slots of one.
pub const N_SLOTS_MAX: u32 = 4_096;

/// A reservation as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationSpec {
    /// A label, unique.
    pub name: String,
    /// Of the units that own it.
    pub namespace: String,
    /// Labels that a unit must have to own it, all of them; not empty.
    pub selector: BTreeMap<String, String>,
    /// How many running units it has room for.
    pub slots: u32,
    /// What each of them may take, of the guaranteed pool.
    pub demand: Demand,
    /// Labels that its nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// From then on it holds nothing, Unix milliseconds; `None`: it holds until it is deleted.
    pub expires_ms: Option<i64>,
    /// Free text.
    pub description: String,
}

impl ReservationSpec {
    /// It holds nothing any more.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.expires_ms.is_some_and(|at| at <= now_ms)
    }

    /// Whether a unit with these marks owns it.
    pub fn is_marked(&self, marks: &[u64]) -> bool {
        let mut selector = self.selector.iter();
        !self.selector.is_empty()
            && selector.all(|(key, value)| marks.contains(&mark(&self.namespace, key, value)))
    }

    /// Reports each field that is wrong whatever other reservations there are.
    pub fn check_fields(&self, report: &mut Report) {
        report.named("name", names::label(&self.name));
        report.named("namespace", names::name(&self.namespace, NAMESPACE_LEN_MAX));
        if self.selector.is_empty() {
            let description = "no labels of units: say for whom the room is kept";
            report.add(Ground::Invalid, "selector", description.to_owned());
        }
        labels("selector", &self.selector, report);
        labels("node_selector", &self.node_selector, report);
        if self.slots > N_SLOTS_MAX {
            report.add(Ground::Invalid, "slots", format!("{} is above {N_SLOTS_MAX}", self.slots));
        }
        let demand = &self.demand;
        if demand.amounts().all(|(_, amount)| amount == 0) {
            let description = "asks for nothing: say what a slot has room for";
            report.add(Ground::Invalid, "demand", description.to_owned());
        }
        for (name, amount) in demand.requests.iter() {
            report.named(&format!("demand.requests[{name:?}]"), names::asked(name));
            if !(0..=AMOUNT_MAX).contains(&amount) {
                let description = amount_out_of_range(name, amount);
                report.add(Ground::Invalid, &format!("demand.requests[{name:?}]"), description);
            }
        }
        for (at, devices) in demand.devices.iter().enumerate() {
            report.named(&format!("demand.devices[{at}].kind"), names::device_kind(&devices.kind));
            if devices.models.len() > ENTRIES_MAX {
                let description = format!("{} models; at most {ENTRIES_MAX}", devices.models.len());
                report.add(Ground::Invalid, &format!("demand.devices[{at}].models"), description);
            }
        }
        lies(demand, report);
        if let Some(at) = self.expires_ms.filter(|at| *at <= 0) {
            report.add(Ground::Invalid, "expires_ms", format!("{at} is no time"));
        }
        report.named("description", names::text(&self.description, DESCRIPTION_LEN_MAX));
    }
}

/// The labels of a unit, as schedulers keep them: hashed, since most never matter. Should two be alike by accident, the
/// binder, which compares the labels themselves, refuses the slot.
pub fn marks(namespace: &str, labels: &BTreeMap<String, String>) -> impl Iterator<Item = u64> {
    labels.iter().map(move |(key, value)| mark(namespace, key, value))
}

fn mark(namespace: &str, key: &str, value: &str) -> u64 {
    let mut hasher = FxHasher::default();
    for part in [namespace, key, value] {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

/// Where a slot lies on its node: as for replicas, or no replica would ever take it.
fn lies(demand: &Demand, report: &mut Report) {
    if demand.zones.is_some_and(|zones| zones.cpu_mode == CpuMode::Dedicated) {
        let milli = demand.requests.get(CPU);
        if milli <= 0 || milli % MILLI_CPU != 0 {
            let description = "dedicated CPUs are whole ones: keep a whole number of `cpu`, 1 or more";
            report.add(Ground::Invalid, "demand.zones.cpu_mode", description.to_owned());
        }
    }
    for (at, request) in demand.devices.iter().enumerate() {
        let Some(terms) = &request.terms else { continue };
        let field = |leaf: &str| format!("demand.devices[{at}].terms.{leaf}");
        for (leaf, text) in [("link", &terms.link), ("profile", &terms.profile)] {
            report.named(&field(leaf), names::text(text, NAMESPACE_LEN_MAX));
        }
        let other = &terms.same_zone_as;
        let is_beside = |known: &DeviceRequest| known.kind == *other && known.kind != request.kind;
        if !other.is_empty() && !demand.devices.iter().any(is_beside) {
            let description = format!("`{other}` names no other kind that is kept");
            report.add(Ground::Invalid, &field("same_zone_as"), description);
        }
        if !terms.profile.is_empty() && (request.count, request.milli) != (1, MILLI_WHOLE) {
            let description = "a profile is of one whole device".to_owned();
            report.add(Ground::Invalid, &field("profile"), description);
        }
    }
}

fn labels(field: &str, labels: &BTreeMap<String, String>, report: &mut Report) {
    if labels.len() > ENTRIES_MAX {
        report.add(Ground::Invalid, field, format!("{} entries; at most {ENTRIES_MAX}", labels.len()));
    }
    for (key, value) in labels {
        let value: Result<(), BadName> = names::text(value, NAME_LEN_MAX);
        for checked in [names::label_key(key), value] {
            report.named(&format!("{field}[{key:?}]"), checked);
        }
    }
}
