//! Why a unit waits: what the nodes lacked in its last try, as reports and queues carry it.

use std::borrow::Cow;

/// Why nodes refused a unit in its last try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Most frequent first, then by plugin and reason; at most 16.
    pub reasons: Vec<RefusalCount>,
    /// The node that came nearest to fitting, in words; empty when none came near.
    pub nearest_miss: String,
    /// Nodes looked at.
    pub nodes: u32,
    /// Times the unit was tried.
    pub attempts: u32,
}

/// Nodes that one plugin refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalCount {
    /// The filter, for example `resources-fit`, or a [`WaitReason`].
    pub plugin: Cow<'static, str>,
    /// For example `insufficient cpu`.
    pub reason: String,
    /// Number of these nodes.
    pub nodes: u32,
}

/// What keeps a unit waiting beside the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// No node known could ever hold it.
    Admission,
    /// No room is gathered for a gang.
    GangTurn,
    /// An administrator has paused it.
    Pause,
    /// It may not preempt those that preempted it.
    Preemption,
    /// Its scheduler does not have its profile.
    Profile,
    /// A queue is at a maximum, or keeps its room for others.
    Queue,
    /// It has waited for as long as it may without being shown as unschedulable.
    SchedulingTimeout,
    /// A record that decides about it cannot be read.
    Unreadable,
}

impl RefusalCount {
    /// Returns why a unit waits, in words, of what concerns no node in particular.
    pub fn waits(why: WaitReason, reason: String) -> Self {
        Self { plugin: Cow::Borrowed(why.name()), reason, nodes: 0 }
    }

    /// Whether it is a reason of this kind.
    pub fn is(&self, why: WaitReason) -> bool {
        self.plugin == why.name()
    }
}

impl WaitReason {
    /// Every reason, in order.
    pub const ALL: [Self; 8] = [
        Self::Admission,
        Self::GangTurn,
        Self::Pause,
        Self::Preemption,
        Self::Profile,
        Self::Queue,
        Self::SchedulingTimeout,
        Self::Unreadable,
    ];

    /// As [`RefusalCount::plugin`] names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::GangTurn => "gang-turn",
            Self::Pause => "pause",
            Self::Preemption => "preemption",
            Self::Profile => "profile",
            Self::Queue => "queue",
            Self::SchedulingTimeout => "scheduling-timeout",
            Self::Unreadable => "unreadable",
        }
    }

    /// Returns what it means, as a sentence for people.
    pub fn doc(self) -> &'static str {
        match self {
            Self::Admission => "No known node could ever hold it, and no scheduler has tried it.",
            Self::GangTurn => {
                "No room is gathered for the gang: it does not fit beside what neither ends nor may be preempted."
            }
            Self::Pause => "An administrator has paused everything, its queue or its sub-cluster.",
            Self::Preemption => "Units that preempted it before are spared.",
            Self::Profile => "Its scheduler does not have the profile that it names.",
            Self::Queue => {
                "Its queue, or a queue above it, is at a maximum or keeps its room for another unit."
            }
            Self::SchedulingTimeout => "It has waited for scheduling_timeout.",
            Self::Unreadable => "A record that decides about it cannot be read.",
        }
    }
}
