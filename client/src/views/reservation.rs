//! Reservations as shown.

use std::collections::BTreeMap;

use godel_base::quantity;
use godel_proto::v1;

use super::{amounts, node::pairs};
use crate::{
    output::{self, View, ViewColumn, shown},
    unit_file::words,
    view,
};

view! {
    /// A reservation and what it holds.
    pub struct ReservationView from (status: &v1::ReservationStatus) with {
        let spec = status.reservation.clone().unwrap_or_default();
        let demand = spec.demand.unwrap_or_default();
    } {
        /// Unique.
        pub name: String = spec.name,
        /// Of the units that own it.
        pub namespace: String = spec.namespace,
        /// Labels of the units that own it.
        pub selector: BTreeMap<String, String> = spec.selector.into_iter().collect(),
        /// Running units that it has room for.
        pub slots: u32 = spec.slots,
        /// Slots that are held and that nobody is in.
        pub held: u32 = status.held,
        /// Slots that a running unit is in.
        pub used: u32 = status.used,
        /// Slots for which no node has room.
        pub waiting: u32 = status.waiting,
        /// What each slot has room for.
        pub requests: BTreeMap<String, i64> = amounts(demand.requests.as_ref()),
        /// Devices of each slot, by kind.
        pub devices: BTreeMap<String, u32> =
            demand.devices.into_iter().map(|devices| (devices.kind, devices.count)).collect(),
        /// How each slot lies in the zones of its node, by the keys of a file; empty: anyhow.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub topology: BTreeMap<&'static str, &'static str> =
            demand.zones.map(|zones| topology(&zones)).unwrap_or_default(),
        /// Labels that its nodes must have.
        pub node_selector: BTreeMap<String, String> = spec.node_selector.into_iter().collect(),
        /// From then on it holds nothing, Unix milliseconds; 0: it holds until it is deleted.
        pub expires_ms: i64 = spec.expires_ms.unwrap_or_default(),
        /// It holds nothing any more.
        pub expired: bool = status.expired,
        /// Free text.
        pub description: String = spec.description,
        /// Slots that are held or used; empty in a list.
        pub places: Vec<PlaceView> = status.places.iter().map(PlaceView::from).collect(),
        /// Of its record.
        pub revision: u64 = status.revision,
        /// Of its record, Unix milliseconds.
        pub create_time_ms: i64 = status.create_time_ms,
    }
}

view! {
    /// Where a slot is.
    pub struct PlaceView from (place: &v1::ReservedPlace) {
        /// From 0 on.
        pub slot: u32 = place.slot,
        /// Name.
        pub node: String = place.node.clone(),
        /// Who is in it, as namespace/name; empty: nobody.
        pub unit: String = place.unit.clone(),
        /// Which replica of it.
        pub ordinal: u32 = place.ordinal,
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
    fn room_text(&self) -> String {
        let requests = self.requests.iter();
        let room = requests.map(|(name, amount)| format!("{name}={}", quantity::show(name, *amount)));
        let devices = self.devices.iter().map(|(kind, count)| format!("{kind}={count}"));
        let topology = self.topology.iter().map(|(key, word)| format!("{key}={word}"));
        room.chain(devices).chain(topology).collect::<Vec<_>>().join(",")
    }

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
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("SLOTS", |view| view.slots.to_string()),
        ("HELD", |view| view.held.to_string()),
        ("USED", |view| view.used.to_string()),
        ("WAITING", |view| view.waiting.to_string()),
        ("EXPIRES", |view| match (view.expired, view.expires_ms) {
            (true, _) => "expired".to_owned(),
            (false, 0) => "never".to_owned(),
            (false, at) => output::time(at),
        }),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("NAMESPACE", |view| view.namespace.clone()),
        ("OWNERS", |view| pairs(&view.selector)),
        ("ROOM", Self::room_text),
        ("NODES", |view| pairs(&view.node_selector)),
        ("DESCRIPTION", |view| view.description.clone()),
        ("REVISION", |view| view.revision.to_string()),
    ];
}
