//! Nodes as shown: what they have, what is asked for of either pool, and what is used.

use std::{collections::BTreeMap, fmt};

use godel_base::{
    quantity::{self, GPU},
    resources::{CPU, MEMORY, NETWORK},
};
use godel_domain::node::MAX_RUNNING_UNITS;
use godel_proto::v1;
use serde::Serialize;

use super::bandwidth::{self, CareView};
use crate::{
    output::{View, ViewColumn},
    view,
};

const SAME_INSTALLATION: &str = "same-installation";

view! {
    /// A node.
    pub struct NodeView from (node: &v1::Node) with {
        let spec = node.spec.clone().unwrap_or_default();
        let report = node.report.clone().unwrap_or_default();
        let meta = spec.meta.clone().unwrap_or_default();
        let runtime = match report.runtime() {
            v1::NodeRuntime::Unspecified => "unknown",
            v1::NodeRuntime::Simulated => "simulated",
            v1::NodeRuntime::Processes => "processes",
            v1::NodeRuntime::Containers => "processes and containers",
        };
        let mut labels: BTreeMap<String, String> = report.attributes.into_iter().collect();
        labels.extend(meta.labels);
        let mut status = if report.ready { "Ready" } else { "NotReady" }.to_owned();
        if !report.trouble.is_empty() {
            status.push_str(",StartsNothing");
        }
        if !report.images_trouble.is_empty() {
            status.push_str(",NoImages");
        }
        if spec.cordoned {
            status.push_str(",Cordoned");
        }
        if spec.quarantine.is_some() {
            status.push_str(",Quarantined");
        }
        if spec.identity_expired_since_ms.is_some() {
            status.push_str(",IdentityExpired");
        }
        if node.conflict.is_some() {
            status.push_str(",Conflict");
        }
        if spec.drain.is_some() {
            status.push_str(if node.running_units > 0 { ",Draining" } else { ",Drained" });
        }
        let drain = spec.drain.map(|drain| DrainView {
            since_ms: drain.since_ms,
            deadline_ms: drain.deadline_ms,
            running_units: drain.running_units,
            left: node.running_units,
        });
        let devices = report.devices.iter().enumerate().map(|(index, device)| {
            let v1::DeviceDetails { memory, gbps, link, link_group } =
                device.details.clone().unwrap_or_default();
            DeviceView {
                index,
                kind: device.kind.clone(),
                model: device.model.clone(),
                free_milli: node.device_free_milli.get(index).copied().unwrap_or(0),
                memory,
                gbps,
                link,
                link_group,
            }
        });
    } {
        /// Unique name.
        pub name: String = meta.name,
        /// Durable number.
        pub node_id: u32 = node.node_id,
        /// Of this installation.
        pub uid: String = meta.uid,
        /// `Ready`, `NotReady`, with `,StartsNothing`, `,NoImages`, `,Cordoned`, `,Quarantined`, `,IdentityExpired`, `,Conflict`, and `,Draining` or `,Drained`.
        pub status: String = status,
        /// Running units bound here.
        pub running_units: u32 = node.running_units,
        /// Most that it takes.
        pub max_running_units: u32 = report.max_running_units.unwrap_or(MAX_RUNNING_UNITS),
        /// In force, by resource.
        pub allocatable: BTreeMap<String, i64> = amounts(node.allocatable.as_ref()),
        /// Requested by what is bound of the guaranteed pool.
        pub allocated: BTreeMap<String, i64> = amounts(node.allocated.as_ref()),
        /// What the best-effort pool may take in all.
        pub best_effort_allocatable: BTreeMap<String, i64> = amounts(node.best_effort_allocatable.as_ref()),
        /// Requested by what is bound of it.
        pub best_effort_allocated: BTreeMap<String, i64> = amounts(node.best_effort_allocated.as_ref()),
        /// Measured last; empty when not measured.
        pub usage: BTreeMap<String, i64> = amounts(node.usage.as_ref()),
        /// Of that what guaranteed running units use.
        pub guaranteed_usage: BTreeMap<String, i64> = amounts(node.guaranteed_usage.as_ref()),
        /// Kept from best-effort for their smoothed use; empty: none is known.
        pub reserved: BTreeMap<String, i64> = amounts(node.reserved.as_ref()),
        /// Median and 95th percentile of the use over the last minutes, as schedulers know them; absent: none is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub load: Option<LoadView> = node.load.as_ref().map(LoadView::from),
        /// What its agent does about the bandwidths of running units; empty: the agent does not say.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub bandwidth: Vec<CareView> = node.bandwidth.as_ref().map(bandwidth::cares).unwrap_or_default(),
        /// Devices.
        pub devices: Vec<DeviceView> = devices.collect(),
        /// Running units for which room is held here until others have left.
        pub held_running_units: u32 = node.held_running_units,
        /// What they will take, by resource.
        pub held: BTreeMap<String, i64> = amounts(node.held.as_ref()),
        /// Slots of reservations.
        pub slots: Vec<SlotsView> = node.slots.iter().map(SlotsView::from).collect(),
        /// What its agent does with running units: `simulated`, `processes`, or `unknown`.
        pub runtime: &'static str = runtime,
        /// An agent's session is open.
        pub connected: bool = node.connected,
        /// The agent's attributes, overlaid by the administrator's labels.
        pub labels: BTreeMap<String, String> = labels,
        /// `key=value:effect`.
        pub taints: Vec<String> = spec.taints.iter().map(taint).collect(),
        /// The same of those that evict, with the time since when they do, Unix milliseconds.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub evicting_taints: Vec<(String, i64)> = spec
                .taints
                .iter()
                .filter(|one| one.effect() == v1::TaintEffect::NoExecute)
                .map(|one| (taint(one), one.added_time_ms))
                .collect(),
        /// Of a drained node.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub drain: Option<DrainView> = drain,
        /// Of a quarantined node.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub quarantine: Option<QuarantineView> = spec.quarantine.map(QuarantineView::from),
        /// Since when the certificate of its agent is known to have expired, Unix milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub identity_expired_since_ms: Option<i64> = spec.identity_expired_since_ms,
        /// Why its agent can start nothing for now; empty: it can.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub trouble: String = report.trouble,
        /// Why it can run no images for now; empty: it can, or never could.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub images_trouble: String = report.images_trouble,
        /// Of a node whose machine goes away.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub notice: Option<NoticeView> = spec.notice.map(NoticeView::from),
        /// Of a node that another agent claims.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub conflict: Option<ConflictView> = node.conflict.as_ref().map(ConflictView::from),
    }
}

view! {
    /// The machine of a node goes away.
    #[derive(Eq)]
    pub struct NoticeView from (notice: v1::NodeNotice) {
        /// When that was said, Unix milliseconds.
        pub since_ms: i64 = notice.since_ms,
        /// It may be gone from then on, Unix milliseconds.
        pub deadline_ms: i64 = notice.deadline_ms,
        /// In words.
        pub reason: String = notice.reason,
    }
}

view! {
    /// Another agent claims a node, and is refused.
    #[derive(Eq)]
    pub struct ConflictView from (conflict: &v1::NodeConflict) with {
        let kind = match conflict.kind() {
            v1::NodeConflictKind::SameInstallation => SAME_INSTALLATION,
            v1::NodeConflictKind::OtherInstallation | v1::NodeConflictKind::Unspecified => {
                "other-installation"
            }
        };
    } {
        /// `other-installation` or `same-installation`.
        pub kind: &'static str = kind,
        /// Its first attempt, Unix milliseconds.
        pub first_ms: i64 = conflict.first_ms,
        /// Its last attempt, Unix milliseconds.
        pub last_ms: i64 = conflict.last_ms,
        /// How many there were.
        pub attempts: u32 = conflict.attempts,
        /// Where the last one came from; empty: not known.
        pub address: String = conflict.address.clone(),
        /// Uid that it gave.
        pub uid: String = conflict.uid.clone(),
    }
}

impl ConflictView {
    /// What it is, and what to do.
    pub fn advice(&self) -> &'static str {
        if self.kind == SAME_INSTALLATION {
            "an agent with a copy of this node's identity wants the node: stop it, or give it another name (`godel agent --name`)"
        } else {
            "another installation wants the name of this node: stop its agent, or give it another name (`godel agent --name`)"
        }
    }
}

view! {
    /// Measured use of a node over the last minutes, by resource.
    #[derive(Eq)]
    pub struct LoadView from (load: &v1::NodeLoad) with {
        let amounts = |amounts: Option<v1::LoadAmounts>| {
            let v1::LoadAmounts { cpu, memory, network } = amounts.unwrap_or_default();
            let named = [(CPU, cpu), (MEMORY, memory), (NETWORK, network)];
            let is_measured = |(name, amount): &(&str, i64)| *name != NETWORK || *amount > 0;
            named.into_iter().filter(is_measured).map(|(name, amount)| (name.to_owned(), amount)).collect()
        };
    } {
        /// Median.
        pub p50: BTreeMap<String, i64> = amounts(load.p50),
        /// 95th percentile.
        pub p95: BTreeMap<String, i64> = amounts(load.p95),
    }
}

view! {
    /// Why a node gets nothing new.
    #[derive(Eq)]
    pub struct QuarantineView from (quarantine: v1::NodeQuarantine) {
        /// When it began, Unix milliseconds.
        pub since_ms: i64 = quarantine.since_ms,
        /// When it ends by itself, Unix milliseconds.
        pub until_ms: i64 = quarantine.until_ms,
        /// In words.
        pub reason: String = quarantine.reason,
    }
}

/// How far the drain of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DrainView {
    /// When it was asked for first, Unix milliseconds.
    pub since_ms: i64,
    /// From here on nothing is spared, Unix milliseconds; 0 never.
    pub deadline_ms: i64,
    /// Running units that were here when it was asked for.
    pub running_units: u32,
    /// Running units that are here now.
    pub left: u32,
}

impl fmt::Display for DrainView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = self.running_units.saturating_sub(self.left);
        let have = crate::output::one_or(gone, "has", "have");
        write!(f, "{gone} of {} {have} left", crate::output::count(self.running_units, "running unit"))
    }
}

view! {
    /// The slots of one reservation on a node.
    #[derive(Eq)]
    pub struct SlotsView from (slots: &v1::NodeSlots) {
        /// Its name.
        pub reservation: String = slots.reservation.clone(),
        /// How many there are.
        pub slots: u32 = slots.slots,
        /// How many somebody is in.
        pub used: u32 = slots.used,
    }
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceView {
    /// Position.
    pub index: usize,
    /// `gpu`.
    pub kind: String,
    /// For example `A10`.
    pub model: String,
    /// Thousandths that are free.
    pub free_milli: u32,
    /// Bytes of memory; 0: not known.
    pub memory: i64,
    /// Gigabits per second; 0: not known.
    pub gbps: u32,
    /// Kind of the links to its group; empty: none.
    pub link: String,
    /// The devices with which it is joined, or of which it is a slice, have the same number; 0: none.
    pub link_group: u32,
}

/// Amounts by resource, as the API has them.
pub fn amounts(resources: Option<&v1::Resources>) -> BTreeMap<String, i64> {
    resources.map(|resources| resources.amounts.clone().into_iter().collect()).unwrap_or_default()
}

fn taint(taint: &v1::Taint) -> String {
    let effect = match taint.effect() {
        v1::TaintEffect::PreferNoSchedule => "prefer-no-schedule",
        v1::TaintEffect::NoExecute => "no-execute",
        v1::TaintEffect::NoSchedule | v1::TaintEffect::Unspecified => "no-schedule",
    };
    if taint.value.is_empty() {
        format!("{}:{effect}", taint.key)
    } else {
        format!("{}={}:{effect}", taint.key, taint.value)
    }
}

impl NodeView {
    fn share(&self, name: &str) -> String {
        share(name, &self.allocated, &self.allocatable)
    }

    fn best_effort_share(&self, name: &str) -> String {
        share(name, &self.best_effort_allocated, &self.best_effort_allocatable)
    }

    /// Room held for so many running units; empty when there is none.
    fn held_text(&self) -> String {
        if self.held_running_units == 0 { String::new() } else { self.held_running_units.to_string() }
    }

    /// `used/all` slots of reservations; empty when there are none.
    fn slots_text(&self) -> String {
        let sum = |of: fn(&SlotsView) -> u32| self.slots.iter().map(|one| u64::from(of(one))).sum::<u64>();
        if self.slots.is_empty() {
            return String::new();
        }
        format!("{}/{}", sum(|one| one.used), sum(|one| one.slots))
    }

    /// What is held, and for which reservations: for who looks at one node.
    pub fn held_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.held_running_units > 0 {
            let amounts: Vec<String> = self
                .held
                .iter()
                .map(|(name, amount)| format!("{name}={}", quantity::show(name, *amount)))
                .collect();
            let takes = if amounts.is_empty() { String::new() } else { format!(": {}", amounts.join(",")) };
            lines.push(format!(
                "for {}{takes}",
                crate::output::count(self.held_running_units, "running unit")
            ));
        }
        lines.extend(self.slots.iter().map(|SlotsView { reservation, slots, used }| {
            format!("{} of reservation {reservation}, {used} used", crate::output::count(*slots, "slot"))
        }));
        lines
    }

    /// The 95th percentile of the use of a node of which it is known: for who looks at one node.
    pub fn load_line(&self) -> Option<String> {
        let load = self.load.as_ref()?;
        let shares =
            load.p95.keys().map(|name| format!("{name} {}", share(name, &load.p95, &self.allocatable)));
        Some(format!("95th percentile {}", shares.collect::<Vec<_>>().join(", ")))
    }

    /// Measured use; empty when there is none.
    fn used(&self, name: &str) -> String {
        self.usage.get(name).map_or_else(String::new, |used| quantity::show_about(name, *used))
    }

    /// `used/all` GPUs, in whole ones with up to two decimals; other devices are in the description of a node.
    fn gpus(&self) -> String {
        let gpus = || self.devices.iter().filter(|device| device.kind == GPU);
        let Some(first) = gpus().next() else { return String::new() };
        let used: u64 = gpus().map(|device| u64::from(1000u32.saturating_sub(device.free_milli))).sum();
        let mut models: Vec<&str> = vec![first.model.as_str()];
        gpus().for_each(|gpu| {
            if !models.contains(&gpu.model.as_str()) {
                models.push(&gpu.model);
            }
        });
        format!("{}/{} {}", milli(used), gpus().count(), models.join(","))
    }
}

fn share(name: &str, used: &BTreeMap<String, i64>, all: &BTreeMap<String, i64>) -> String {
    let of = |amounts: &BTreeMap<String, i64>| amounts.get(name).copied().unwrap_or(0);
    format!("{}/{}", quantity::show_about(name, of(used)), quantity::show_about(name, of(all)))
}

fn milli(milli: u64) -> String {
    quantity::show_devices(i64::try_from(milli).unwrap_or(i64::MAX))
}

impl View for NodeView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("STATUS", |view| view.status.clone()),
        ("UNITS", |view| view.running_units.to_string()),
        ("HELD", |view| view.held_text()),
        ("SLOTS", |view| view.slots_text()),
        ("CPU", |view| view.share(CPU)),
        ("MEMORY", |view| view.share(MEMORY)),
        ("GPU", |view| view.gpus()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("MAX-UNITS", |view| view.max_running_units.to_string()),
        ("BE-CPU", |view| view.best_effort_share(CPU)),
        ("BE-MEMORY", |view| view.best_effort_share(MEMORY)),
        ("USE-CPU", |view| view.used(CPU)),
        ("USE-MEM", |view| view.used(MEMORY)),
        ("RUNTIME", |view| view.runtime.to_owned()),
        ("AGENT", |view| if view.connected { "connected" } else { "gone" }.to_owned()),
        ("ID", |view| view.node_id.to_string()),
        ("UID", |view| view.uid.clone()),
        ("TAINTS", |view| view.taints.join(",")),
        ("LABELS", |view| pairs(&view.labels)),
    ];
}

pub(super) fn pairs(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}
