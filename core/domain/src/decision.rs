//! What schedulers decide and what the binder answers: the messages of the hot path in domain types.

use crate::{
    allocation::{self, Allocation, DeviceSet, GivenZones},
    demand::Pool,
};
use godel_base::{
    ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId},
    resources::Resources,
};

/// Most running units that one decision may place: what fits into one transaction of 1 MiB with room to
/// spare (about 40 bytes each: columns and one precondition per node), and more than the largest
/// `min_member` (10,000).
pub const N_PLACEMENTS_MAX: usize = 16_384;

/// Places for running units of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Rises with each decision of the scheduler.
    pub id: u64,
    /// The unit.
    pub unit: UnitId,
    /// Revision of the unit's record that it rests on.
    pub spec_revision: Revision,
    /// Everything that nodes and what is taken on them depend on was known up to this revision, a change of it as a rule.
    /// Labels and taints of nodes that have not changed since need no second look, and nothing is refused for want of
    /// room before the binder has read as much.
    pub nodes_as_of: Revision,
    /// By task group; no group stands twice.
    pub groups: Vec<GroupPlacement>,
    /// The room that it claims.
    pub claim: Claim,
}

/// The room that a decision claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// The room is free: the decision is bound at once.
    #[default]
    FreeRoom,
    /// Victims are evicted first: their room is held for the decision until then.
    Preemption(Box<Preemption>),
    /// The turn of a gang: the room of its first binding is held on its nodes as it becomes free.
    Gathering,
}

impl Claim {
    /// Returns the victims, if the decision evicts some.
    pub fn preemption(&self) -> Option<&Preemption> {
        match self {
            Self::Preemption(preemption) => Some(preemption),
            Self::FreeRoom | Self::Gathering => None,
        }
    }

    /// Returns every running unit that the decision evicts.
    pub fn victims(&self) -> impl Iterator<Item = &RunningUnitId> {
        self.preemption().into_iter().flat_map(Preemption::victims)
    }
}

impl From<Preemption> for Claim {
    fn from(preemption: Preemption) -> Self {
        Self::Preemption(Box::new(preemption))
    }
}

/// Running units that are evicted before a decision can be bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemption {
    /// Victims whose room is held for the decision, by task group and node of it; ascending, none twice and none empty.
    pub nodes: Vec<NodeVictims>,
    /// Victims that are evicted with them, as their units would be too small: nobody is given their room.
    pub others: Vec<RunningUnitId>,
}

/// Victims on one node, for the running units of one task group there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeVictims {
    /// Index of the task group.
    pub group: u16,
    /// The node.
    pub node: NodeId,
    /// Ascending. Empty only if holds are taken over.
    pub victims: Vec<RunningUnitId>,
    /// Holds of units of lower rank on the node that are taken over, together with the room of their victims.
    pub holds: Vec<HoldId>,
}

impl Preemption {
    /// Returns every victim.
    pub fn victims(&self) -> impl Iterator<Item = &RunningUnitId> {
        self.nodes.iter().flat_map(|node| &node.victims).chain(&self.others)
    }

    /// Returns the holds that are taken over.
    pub fn taken(&self) -> impl Iterator<Item = HoldId> {
        self.nodes.iter().flat_map(|node| node.holds.iter().copied())
    }

    /// Whether nothing is evicted and no hold is taken over.
    pub fn is_empty(&self) -> bool {
        self.n_victims() == 0 && self.taken().next().is_none()
    }

    /// Returns the number of victims.
    pub fn n_victims(&self) -> usize {
        self.nodes.iter().map(|node| node.victims.len()).sum::<usize>() + self.others.len()
    }
}

impl Decision {
    /// Running units placed, over all groups.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|group| group.ordinals.len()).sum()
    }

    /// Places nothing.
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|group| group.ordinals.is_empty())
    }
}

/// Places for running units of one task group. Columns of equal length; ordinals ascend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlacement {
    /// Index of the task group.
    pub group: u16,
    /// Which.
    pub ordinals: Vec<u32>,
    /// Empty: all 0.
    pub incarnations: Vec<u32>,
    /// Where.
    pub nodes: Vec<NodeId>,
    /// Devices of each. Empty: no devices.
    pub devices: Vec<DeviceSet>,
    /// Zones of each. Empty: no zones.
    pub zones: Vec<GivenZones>,
}

impl GroupPlacement {
    /// Adds a replica; its ordinal is above all others.
    #[inline]
    pub fn push(&mut self, replica: ReplicaId, node: NodeId, allocation: Allocation) {
        let n_before = self.ordinals.len();
        self.ordinals.push(replica.ordinal);
        self.nodes.push(node);
        let is_plain = replica.incarnation == 0 && allocation.is_empty();
        if is_plain && self.incarnations.is_empty() && self.devices.is_empty() && self.zones.is_empty() {
            return;
        }
        self.push_given(n_before, replica, allocation);
    }

    /// The columns that most placements leave empty.
    fn push_given(&mut self, n_before: usize, replica: ReplicaId, allocation: Allocation) {
        push_to(&mut self.incarnations, n_before, replica.incarnation);
        push_to(&mut self.devices, n_before, allocation.devices);
        push_to(&mut self.zones, n_before, allocation.zones);
    }

    /// Returns the placed replicas, in order of the columns.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        ReplicaId::of_columns(&self.ordinals, &self.incarnations)
    }

    /// Returns the replica at `idx` of the columns.
    pub fn replica(&self, idx: usize) -> ReplicaId {
        ReplicaId::new(self.ordinals[idx], self.incarnation(idx))
    }

    /// Incarnation of the running unit at `idx` of the columns.
    pub fn incarnation(&self, idx: usize) -> u32 {
        self.incarnations.get(idx).copied().unwrap_or(0)
    }

    /// Returns what the running unit at `idx` of the columns is given.
    #[inline]
    pub fn allocation(&self, idx: usize) -> Allocation {
        allocation::at(&self.devices, &self.zones, idx)
    }
}

/// Adds a value to a column that is empty as long as it has nothing but defaults.
fn push_to<T: Copy + Default + PartialEq>(column: &mut Vec<T>, n_before: usize, value: T) {
    if value != T::default() || !column.is_empty() {
        column.resize(n_before, T::default());
        column.push(value);
    }
}

/// What became of a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The decision.
    pub decision_id: u64,
    /// Its unit.
    pub unit: UnitId,
    /// Transaction that bound everything not rejected; 0 when nothing was bound.
    pub revision: Revision,
    /// Not bound but held: it is bound once its victims have left.
    pub held: bool,
    /// What was refused.
    pub rejections: Vec<Rejection>,
    /// Fresh state of the nodes named in the rejections.
    pub nodes: Vec<FreshNode>,
}

/// Running units that the binder refused, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: RejectionReason,
    /// Which.
    pub ordinals: Vec<u32>,
    /// 0 when it is not about a node.
    pub node: NodeId,
    /// Resource, label or taint concerned; of a full queue a sentence.
    pub detail: String,
}

/// Why the binder refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectionReason {
    /// A resource of the node is short.
    InsufficientResources,
    /// A device of the node has too little left, or is of another model.
    DeviceTaken,
    /// The node's session is lost.
    NodeNotReady,
    /// The node takes no new placements.
    NodeCordoned,
    /// The node lacks a label that is asked for.
    NodeSelector,
    /// The node has a taint that is not tolerated.
    Taint,
    /// There is no such node (any more).
    NodeGone,
    /// The unit changed, was cancelled, or is gone.
    UnitChanged,
    /// Bound before; the placement is in the state.
    AlreadyBound,
    /// Too few would remain for the unit's first binding.
    MinMember,
    /// The decision makes no sense.
    Invalid,
    /// A queue is at a maximum, its own or one above it.
    QueueFull,
    /// A victim is gone, leaves already, or may not be preempted for this unit.
    VictimGone,
    /// A victim's unit preempted this one before, by itself or by way of others.
    PreemptionLoop,
    /// Another unit of the pool gathers room: a gang, or one on the same node.
    GangTurn,
    /// Nothing is known to be wrong with it, but the store refused it again and again, or a record that it rests on was
    /// not read in time.
    Stale,
    /// Room is held for it.
    AlreadyHeld,
    /// A filter refuses the node for a reason that is none of the above.
    Filter,
    /// Another running unit of the node listens on a port.
    HostPort,
    /// Running units of other units keep it away, or those that it goes to are not there.
    UnitAffinity,
    /// It would make a domain fuller than its spread allows.
    TopologySpread,
    /// No zones of the node have what is asked for any more.
    ZoneTaken,
    /// More of the node is used than it accepts.
    LoadThreshold,
    /// Of a move: a disruption budget does not allow it now.
    DisruptionBudget,
    /// Of a move: it has ended, leaves already, or has another incarnation.
    NotThere,
    /// Of a move: it may not be moved at all.
    NotMovable,
}

impl RejectionReason {
    /// Every reason, in order.
    pub const ALL: [Self; 26] = [
        Self::InsufficientResources,
        Self::DeviceTaken,
        Self::NodeNotReady,
        Self::NodeCordoned,
        Self::NodeSelector,
        Self::Taint,
        Self::NodeGone,
        Self::UnitChanged,
        Self::AlreadyBound,
        Self::MinMember,
        Self::Invalid,
        Self::QueueFull,
        Self::VictimGone,
        Self::PreemptionLoop,
        Self::GangTurn,
        Self::Stale,
        Self::AlreadyHeld,
        Self::Filter,
        Self::HostPort,
        Self::UnitAffinity,
        Self::TopologySpread,
        Self::ZoneTaken,
        Self::LoadThreshold,
        Self::DisruptionBudget,
        Self::NotThere,
        Self::NotMovable,
    ];

    /// As metrics and status name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InsufficientResources => "insufficient-resources",
            Self::DeviceTaken => "device-taken",
            Self::NodeNotReady => "node-not-ready",
            Self::NodeCordoned => "node-cordoned",
            Self::NodeSelector => "node-selector",
            Self::Taint => "taint",
            Self::NodeGone => "node-gone",
            Self::UnitChanged => "unit-changed",
            Self::AlreadyBound => "already-bound",
            Self::MinMember => "min-member",
            Self::Invalid => "invalid",
            Self::QueueFull => "queue-full",
            Self::VictimGone => "victim-gone",
            Self::PreemptionLoop => "preemption-loop",
            Self::GangTurn => "gang-turn",
            Self::Stale => "stale",
            Self::AlreadyHeld => "already-held",
            Self::Filter => "filter",
            Self::HostPort => "host-port",
            Self::UnitAffinity => "unit-affinity",
            Self::TopologySpread => "topology-spread",
            Self::ZoneTaken => "zone-taken",
            Self::LoadThreshold => "load-threshold",
            Self::DisruptionBudget => "disruption-budget",
            Self::NotThere => "not-there",
            Self::NotMovable => "not-movable",
        }
    }

    /// What had been read before may be why: with more read the answer may be another one.
    pub fn may_end_by_reading(self) -> bool {
        match self {
            Self::InsufficientResources
            | Self::DeviceTaken
            | Self::NodeNotReady
            | Self::NodeCordoned
            | Self::NodeSelector
            | Self::Taint
            | Self::NodeGone
            | Self::MinMember
            | Self::QueueFull
            | Self::VictimGone
            | Self::GangTurn
            | Self::AlreadyHeld
            | Self::Filter
            | Self::HostPort
            | Self::UnitAffinity
            | Self::TopologySpread
            | Self::ZoneTaken
            | Self::LoadThreshold => true,
            Self::UnitChanged
            | Self::AlreadyBound
            | Self::Invalid
            | Self::PreemptionLoop
            | Self::Stale
            | Self::DisruptionBudget
            | Self::NotThere
            | Self::NotMovable => false,
        }
    }

    /// Another party was faster: what an optimistic scheduler counts as a conflict.
    pub fn is_conflict(self) -> bool {
        match self {
            Self::InsufficientResources
            | Self::DeviceTaken
            | Self::MinMember
            | Self::VictimGone
            | Self::HostPort
            | Self::UnitAffinity
            | Self::TopologySpread
            | Self::ZoneTaken => true,
            Self::NodeNotReady
            | Self::NodeCordoned
            | Self::NodeSelector
            | Self::Taint
            | Self::NodeGone
            | Self::UnitChanged
            | Self::AlreadyBound
            | Self::Invalid
            | Self::QueueFull
            | Self::PreemptionLoop
            | Self::GangTurn
            | Self::Stale
            | Self::AlreadyHeld
            | Self::Filter
            | Self::LoadThreshold
            | Self::DisruptionBudget
            | Self::NotThere
            | Self::NotMovable => false,
        }
    }
}

/// A node as the binder sees it, bindings under way included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreshNode {
    /// The node.
    pub node: NodeId,
    /// The pool whose room this is.
    pub pool: Pool,
    /// Taken of it, by name.
    pub allocated: Resources,
    /// Thousandths free per device, by index.
    pub device_free_milli: Vec<u32>,
    /// Revision up to which the binder has read.
    pub revision: Revision,
}
