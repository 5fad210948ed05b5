//! What a node is and how it may be used.

use std::collections::BTreeMap;

use crate::{
    node_load::{NodeLoad, ZoneLoad},
    unit::RunSpec,
    zone::Zone,
};
use godel_base::{ids::NodeId, resources::Resources};

/// Label of nodes that are only for units that name it: virtual or external nodes.
pub const NODE_CLASS: &str = "godel.dev/node-class";

/// Written by administrators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSpec {
    /// Given at registration.
    pub id: NodeId,
    /// Unique name.
    pub name: String,
    /// Of this installation.
    pub uid: String,
    /// Win over the report's attributes.
    pub labels: BTreeMap<String, String>,
    /// No new placements.
    pub cordoned: bool,
    /// Refuse units that do not tolerate them.
    pub taints: Vec<Taint>,
    /// Its running units are to leave, and none comes.
    pub drain: Option<Drain>,
    /// Its agent refused what it was assigned.
    pub quarantine: Option<Quarantine>,
    /// Its machine goes away; it is drained for that.
    pub notice: Option<Notice>,
    /// When the certificate of its agent was found to have expired, Unix milliseconds; `None`: it has not, or nobody judges it.
    pub identity_expired_since_ms: Option<i64>,
}

impl NodeSpec {
    /// Takes no new placements.
    pub fn is_closed(&self) -> bool {
        self.cordoned
            || self.drain.is_some()
            || self.quarantine.is_some()
            || self.identity_expired_since_ms.is_some()
    }
}

/// A node that gets nothing new for a while. What runs there goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// Unix milliseconds.
    pub since_ms: i64,
    /// It ends by itself then, Unix milliseconds.
    pub until_ms: i64,
    /// In words.
    pub reason: String,
}

/// The machine of a node goes away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// When it was given first, Unix milliseconds.
    pub since_ms: i64,
    /// The machine may be gone from here on, Unix milliseconds.
    pub deadline_ms: i64,
    /// In words.
    pub reason: String,
}

/// A node that its running units are to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// When it was asked for first, Unix milliseconds.
    pub since_ms: i64,
    /// From here on they go whatever their units lose by it, Unix milliseconds.
    pub deadline_ms: Option<i64>,
    /// Bound there when it was asked for first.
    pub running_units: u32,
}

impl Drain {
    /// Nothing is spared any more.
    pub fn is_overdue(&self, wall_ms: i64) -> bool {
        self.deadline_ms.is_some_and(|deadline| deadline <= wall_ms)
    }
}

/// Running units that a node takes unless its agent says otherwise: Kubernetes' 110 pods and some more would bind a large
/// node, and a thousand processes are what one agent starts, watches and reports on with ease.
pub const MAX_RUNNING_UNITS: u32 = 1_000;

/// Written by the agent's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub id: NodeId,
    /// What it has for running units.
    pub capacity: Resources,
    /// By index.
    pub devices: Vec<Device>,
    /// By index, at most [`N_ZONES_MAX`](crate::allocation::N_ZONES_MAX); a zone comes after the one that it lies in.
    pub zones: Vec<Zone>,
    /// The ways in which its devices can be divided.
    pub profiles: Vec<DeviceProfile>,
    /// False while the session's lease is lost.
    pub ready: bool,
    /// Found by the agent.
    pub attributes: BTreeMap<String, String>,
    /// Most running units that it takes, whatever they ask for.
    pub max_running_units: u32,
    /// What becomes of running units there.
    pub runtime: NodeRuntime,
    /// Why its agent can start nothing for now, in words; empty: it can.
    pub trouble: String,
}

impl NodeReport {
    /// Its agent is there and starts what it is given.
    pub fn can_start(&self) -> bool {
        self.ready && self.trouble.is_empty()
    }
}

/// What an agent does with the running units of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeRuntime {
    /// It does not say, as agents did not always: the node takes whatever comes.
    #[default]
    Unknown,
    /// Nothing: they last as long as their units say.
    Simulated,
    /// It runs their commands.
    Processes,
    /// It runs their commands, and their images as containers.
    Containers,
}

/// What a run asks of the runtime of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuntimeNeed {
    /// Nothing: it is run, or simulated, anywhere.
    #[default]
    Nothing,
    /// Nothing says what it runs: a node that runs processes would give it room for nothing.
    Simulation,
    /// It has an image.
    Images,
}

impl NodeRuntime {
    /// Whether replicas of a run may be on such a node.
    pub fn takes(self, run: &RunSpec) -> bool {
        self.meets(run.runtime_need())
    }

    /// Whether such a node has what a run asks for. An agent that does not say what it does knows nothing of images.
    pub fn meets(self, need: RuntimeNeed) -> bool {
        match need {
            RuntimeNeed::Nothing => true,
            RuntimeNeed::Simulation => !self.runs_processes(),
            RuntimeNeed::Images => matches!(self, Self::Simulated | Self::Containers),
        }
    }

    /// Whether commands really run there.
    pub fn runs_processes(self) -> bool {
        match self {
            Self::Unknown | Self::Simulated => false,
            Self::Processes | Self::Containers => true,
        }
    }
}

impl Default for NodeReport {
    fn default() -> Self {
        Self {
            id: NodeId::default(),
            capacity: Resources::default(),
            devices: Vec::new(),
            zones: Vec::new(),
            profiles: Vec::new(),
            ready: false,
            attributes: BTreeMap::new(),
            max_running_units: MAX_RUNNING_UNITS,
            runtime: NodeRuntime::Unknown,
            trouble: String::new(),
        }
    }
}

/// The allocatable in force on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAllocatable {
    /// The node.
    pub id: NodeId,
    /// Maximum of what bindings of guaranteed running units may take together.
    pub amounts: Resources,
}

/// What is used of a node, and what best-effort running units may not have for the use of guaranteed ones. Written by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// The node.
    pub id: NodeId,
    /// Smoothed use of guaranteed running units, and headroom: cpu and memory.
    pub reserved: Resources,
    /// Guaranteed running units bound after this count with their requests on top, commit time in Unix milliseconds;
    /// `i64::MIN`: their use is not known, and all of them count so.
    pub as_of_ms: i64,
    /// What all running units use, as measured of late; `None`: it is not known.
    pub load: Option<NodeLoad>,
    /// The same of its zones, in order of index; of others it is not known.
    pub zone_loads: Vec<ZoneLoad>,
}

/// One device of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// `gpu`.
    pub kind: String,
    /// For example `A10`.
    pub model: String,
    /// The zone that it is nearest to, by index.
    pub numa_zone: u32,
    /// What else is known of it.
    pub details: Option<Box<DeviceDetails>>,
}

/// What is known of a device beside its kind and model; 0 and empty stand for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceDetails {
    /// Bytes.
    pub memory: i64,
    /// Gigabits per second, of a network card.
    pub gbps: u32,
    /// The kind of links that join it to the others of its group, as `nvlink`.
    pub link: String,
    /// Devices of a node with the same number are joined by links, each with each. Of a slice: the device that it is of.
    pub link_group: u32,
}

impl Device {
    /// Returns what is known of it beside its kind and model.
    pub fn known(&self) -> &DeviceDetails {
        static NOTHING: DeviceDetails =
            DeviceDetails { memory: 0, gbps: 0, link: String::new(), link_group: 0 };
        self.details.as_deref().unwrap_or(&NOTHING)
    }
}

/// A part into which devices of a kind and model can be divided: slices of one device that are given together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceProfile {
    /// Kind of the slices, as they stand among the devices.
    pub kind: String,
    /// Model of the slices.
    pub model: String,
    /// `3g.20gb`.
    pub name: String,
    /// Sets of slices that may be given: bit i is slice i of the device, in order of index.
    pub shapes: Vec<u64>,
}

/// Refuses units that do not tolerate it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Not empty.
    pub key: String,
    /// May be empty.
    pub value: String,
    /// How hard it refuses.
    pub effect: TaintEffect,
    /// When it was set with this value, Unix milliseconds. What runs there counts its tolerated time from then on.
    pub added_ms: i64,
}

/// How hard a taint refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaintEffect {
    /// No new placement.
    NoSchedule,
    /// Only if nothing better fits.
    PreferNoSchedule,
    /// No new placement, and what runs there leaves.
    NoExecute,
}

impl TaintEffect {
    /// Every effect.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// What does not tolerate it is not placed there.
    pub fn is_hard(self) -> bool {
        match self {
            Self::NoSchedule | Self::NoExecute => true,
            Self::PreferNoSchedule => false,
        }
    }
}

/// Accepts taints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Empty: every key.
    pub key: String,
    /// `None`: every value.
    pub value: Option<String>,
    /// `None`: every effect.
    pub effect: Option<TaintEffect>,
    /// Of a taint that evicts: for so long, seconds; `None`: for ever.
    pub tolerated_s: Option<u32>,
}

/// Whether replicas with these tolerations may come to a node with a taint. A taint that evicts what tolerates it only for a time takes
/// nothing new: what it evicts would come back to be evicted once more, for as long as the taint is there. A taint that only discourages
/// refuses nothing.
pub fn may_come(taint: &Taint, tolerations: &[Toleration]) -> bool {
    let mut accepting = tolerations.iter().filter(|toleration| toleration.tolerates(taint)).peekable();
    match taint.effect {
        TaintEffect::PreferNoSchedule => true,
        TaintEffect::NoSchedule => accepting.peek().is_some(),
        TaintEffect::NoExecute => {
            accepting.peek().is_some() && accepting.all(|toleration| toleration.tolerated_s.is_none())
        }
    }
}

/// When what runs on a node with these taints has to leave it, `since_ms` being when it came: Unix milliseconds, `None`:
/// never. As in Kubernetes: of several tolerations that accept a taint the shortest time counts, one without a time is for
/// ever; the time runs from the taint or from the binding, whichever came later.
pub fn leaves_at(taints: &[Taint], tolerations: &[Toleration], since_ms: i64) -> Option<i64> {
    let evicting = taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute);
    let due = evicting.filter_map(|taint| {
        let begins_ms = taint.added_ms.max(since_ms);
        let mut accepting = tolerations.iter().filter(|toleration| toleration.tolerates(taint)).peekable();
        if accepting.peek().is_none() {
            return Some(begins_ms);
        }
        let least_s = accepting.filter_map(|toleration| toleration.tolerated_s).min()?;
        Some(begins_ms.saturating_add(i64::from(least_s) * 1_000))
    });
    due.min()
}

impl Toleration {
    /// Whether it accepts `taint`.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        (self.key.is_empty() || self.key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_node_takes_no_run_that_lacks_its_command() {
        let empty = RunSpec::default;
        let command = RunSpec { command: vec!["sleep".to_owned()], ..empty() };
        let later = RunSpec { await_command_ms: Some(1), ..empty() };
        let lasts = RunSpec { simulated_duration_ms: Some(0), ..empty() };
        let fails = RunSpec { simulated_exit_code: 1, ..empty() };
        let graceful = RunSpec { stop_grace_ms: 7, ..empty() };
        for (run, is_taken) in [
            (empty(), false),
            (graceful, false),
            (command, true),
            (later, true),
            (lasts, true),
            (fails, true),
        ] {
            assert_eq!(NodeRuntime::Processes.takes(&run), is_taken, "{run:?}");
            assert_eq!(NodeRuntime::Containers.takes(&run), is_taken, "{run:?}");
            assert!(NodeRuntime::Simulated.takes(&run) && NodeRuntime::Unknown.takes(&run));
        }
    }

    #[test]
    fn an_image_runs_where_images_run_or_all_is_simulated() {
        let image = RunSpec { image: Some("web:1".to_owned()), ..RunSpec::default() };
        let with_command = RunSpec { command: vec!["serve".to_owned()], ..image.clone() };
        let simulated = RunSpec { simulated_duration_ms: Some(1), ..image.clone() };
        for run in [image, with_command, simulated] {
            assert!(NodeRuntime::Simulated.takes(&run) && NodeRuntime::Containers.takes(&run));
            assert!(!NodeRuntime::Unknown.takes(&run) && !NodeRuntime::Processes.takes(&run), "{run:?}");
        }
    }

    #[test]
    fn what_runs_leaves_once_its_tolerated_time_is_over() {
        let taint = |key: &str, effect, added_ms| Taint {
            key: key.to_owned(),
            value: String::new(),
            effect,
            added_ms,
        };
        let of = |key: &str, tolerated_s| Toleration {
            key: key.to_owned(),
            value: None,
            effect: Some(TaintEffect::NoExecute),
            tolerated_s,
        };
        let dead = || taint("dead", TaintEffect::NoExecute, 10_000);
        type Case = (Vec<Taint>, Vec<Toleration>, i64, Option<i64>);
        let cases: [Case; 10] = [
            (vec![], vec![], 1, None),
            (vec![taint("a", TaintEffect::NoSchedule, 1)], vec![], 1, None),
            (vec![dead()], vec![], 1, Some(10_000)),
            (vec![dead()], vec![of("dead", None)], 1, None),
            (vec![dead()], vec![of("other", None)], 1, Some(10_000)),
            (vec![dead()], vec![of("dead", Some(60))], 1, Some(70_000)),
            // Bound after the taint: from then on.
            (vec![dead()], vec![of("dead", Some(60))], 20_000, Some(80_000)),
            (vec![dead()], vec![of("dead", Some(0))], 1, Some(10_000)),
            // The shortest time of those that accept it, and the first taint that is not tolerated any more.
            (vec![dead()], vec![of("", Some(90)), of("dead", Some(30)), of("dead", None)], 1, Some(40_000)),
            (vec![dead(), taint("b", TaintEffect::NoExecute, 5)], vec![of("", Some(60))], 1, Some(60_005)),
        ];
        for (taints, tolerations, since_ms, expected) in cases {
            assert_eq!(leaves_at(&taints, &tolerations, since_ms), expected, "{taints:?} {tolerations:?}");
            // Whatever has to leave a node some time never comes to it.
            let comes = taints.iter().all(|taint| may_come(taint, &tolerations));
            let is_refused = taints.iter().any(|taint| taint.effect == TaintEffect::NoSchedule);
            assert_eq!(comes, expected.is_none() && !is_refused, "{taints:?} {tolerations:?}");
        }
    }
}
