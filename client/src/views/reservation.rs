//! Reservations as shown.

use std::collections::BTreeMap;

use godel_base::quantity;
use godel_proto::v1;
use serde::Serialize;

use super::{amounts, node::pairs};
use crate::{
    output::{self, View, shown},
    unit_file::words,
};

/// A reservation and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReservationView {
    /// Unique.
    pub name: String,
    /// Of the units that own it.
    pub namespace: String,
    /// Labels of the units that own it.
    pub selector: BTreeMap<String, String>,
    /// Running units that it has room for.
    pub slots: u32,
    /// Slots that are held and that nobody is in.
    pub held: u32,
    /// Slots that a running unit is in.
    pub used: u32,
    /// Slots for which no node has room.
    pub waiting: u32,
    /// What each slot has room for.
    pub requests: BTreeMap<String, i64>,
    /// Devices of each slot, by kind.
    pub devices: BTreeMap<String, u32>,
    /// How each slot lies in the zones of its node, by the keys of a file; empty: anyhow.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<&'static str, &'static str>,
    /// Labels that its nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// From then on it holds nothing, Unix milliseconds; 0: it holds until it is deleted.
    pub expires_ms: i64,
    /// It holds nothing any more.
    pub expired: bool,
    /// Free text.
    pub description: String,
    /// Slots that are held or used; empty in a list.
    pub places: Vec<PlaceView>,
    /// Of its record.
    pub revision: u64,
    /// Of its record, Unix milliseconds.
    pub create_time_ms: i64,
}

/// Where a slot is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceView {
    /// From 0 on.
    pub slot: u32,
    /// Name.
    pub node: String,
    /// Who is in it, as namespace/name; empty: nobody.
    pub unit: String,
    /// Which replica of it.
    pub ordinal: u32,
}

impl From<&v1::ReservationStatus> for ReservationView {
    fn from(status: &v1::ReservationStatus) -> Self {
        let spec = status.reservation.clone().unwrap_or_default();
        let demand = spec.demand.unwrap_or_default();
        let place = |place: &v1::ReservedPlace| {
            let v1::ReservedPlace { slot, node, unit, ordinal } = place.clone();
            PlaceView { slot, node, unit, ordinal }
        };
        Self {
            name: spec.name,
            namespace: spec.namespace,
            selector: spec.selector.into_iter().collect(),
            slots: spec.slots,
            held: status.held,
            used: status.used,
            waiting: status.waiting,
            requests: amounts(demand.requests.as_ref()),
            topology: demand.zones.map(|zones| topology(&zones)).unwrap_or_default(),
            devices: demand.devices.into_iter().map(|devices| (devices.kind, devices.count)).collect(),
            node_selector: spec.node_selector.into_iter().collect(),
            expires_ms: spec.expires_ms.unwrap_or_default(),
            expired: status.expired,
            description: spec.description,
            places: status.places.iter().map(place).collect(),
            revision: status.revision,
            create_time_ms: status.create_time_ms,
        }
    }
}

fn topology(zones: &v1::ZoneRequest) -> BTreeMap<&'static str, &'static str> {
    let word = |of: i32, words: &[(&'static str, i32)]| {
        words.iter().find(|(_, number)| *number == of).map(|(word, _)| *word)
    };
    let policy = word(zones.policy, &words::ZONE_POLICY).map(|word| ("policy", word));
    let cpu_mode = word(zones.cpu_mode, &words::CPU_MODE).map(|word| ("cpu_mode", word));
    policy.into_iter().chain(cpu_mode).collect()
}

impl ReservationView {
    /// A line for each slot that is there.
    pub fn places(&self) -> String {
        let who = |place: &PlaceView| match place.unit.as_str() {
            "" => "held".to_owned(),
            unit => format!("{unit} {}", place.ordinal),
        };
        let line = |place: &PlaceView| {
            format!("slot {:<8} {}  {}\n", place.slot, shown(&place.node), shown(&who(place)))
        };
        self.places.iter().map(line).collect()
    }
}

impl View for ReservationView {
    const HEADERS: &'static [&'static str] = &["NAME", "SLOTS", "HELD", "USED", "WAITING", "EXPIRES"];
    const WIDE: &'static [&'static str] =
        &["NAMESPACE", "OWNERS", "ROOM", "NODES", "DESCRIPTION", "REVISION"];

    fn row(&self) -> Vec<String> {
        let expires = match (self.expired, self.expires_ms) {
            (true, _) => "expired".to_owned(),
            (false, 0) => "never".to_owned(),
            (false, at) => output::time(at),
        };
        let counts = [self.slots, self.held, self.used, self.waiting].map(|n| n.to_string());
        [self.name.clone()].into_iter().chain(counts).chain([expires]).collect()
    }

    fn wide(&self) -> Vec<String> {
        let requests = self.requests.iter();
        let devices = self.devices.iter().map(|(kind, count)| format!("{kind}={count}"));
        let topology = self.topology.iter().map(|(key, word)| format!("{key}={word}"));
        let room = requests.map(|(name, amount)| format!("{name}={}", quantity::show(name, *amount)));
        vec![
            self.namespace.clone(),
            pairs(&self.selector),
            room.chain(devices).chain(topology).collect::<Vec<_>>().join(","),
            pairs(&self.node_selector),
            self.description.clone(),
            self.revision.to_string(),
        ]
    }
}
