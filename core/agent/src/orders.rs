//! What state asks of a node: which running units are to be there, what they take of it and what they do.

use godel_domain::{allocation::Allocation, demand::Pool, running_units::Phase, unit::RestartPolicy};
use godel_membership::agent_admission::{DeviceShares, Takes};

/// A running unit, whatever its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKey {
    /// The unit.
    pub unit: u64,
    /// Which replica.
    pub ordinal: u32,
}

/// What a running unit asks of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunWeight {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Of the resource `network`, bits per second.
    pub network: i64,
}

impl RunWeight {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory: self.memory.saturating_add(other.memory),
            network: self.network.saturating_add(other.network),
        }
    }

    /// One of so many equal parts.
    pub(crate) fn part(self, n: i64) -> Self {
        let n = n.max(1);
        Self { cpu_milli: self.cpu_milli / n, memory: self.memory / n, network: self.network / n }
    }
}

/// What an earlier agent has left running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftRunning {
    /// Times that it was started again in place.
    pub restarts: u32,
    /// Of these since it last ran for long.
    pub in_row: u32,
    /// When its command was started, Unix milliseconds.
    pub started_ms: i64,
}

impl LeftRunning {
    /// Its image may still be on its way.
    pub(crate) fn phase(self) -> Phase {
        if self.started_ms > 0 { Phase::Running } else { Phase::Starting }
    }
}

/// What a running unit does; `P` is a program, into which nobody looks here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunWork<P> {
    /// Nothing but to last.
    Simulated {
        /// How long; `None` until stopped.
        duration_ms: Option<u64>,
        /// How it ends.
        exit_code: i32,
    },
    /// A command of a real node.
    Program(Box<P>),
    /// A command that comes later: nothing starts before, and the run fails without one.
    Awaited {
        /// How long the command may take to come, milliseconds.
        within_ms: u64,
        /// What is known of its program; `None`: no command can come, because the node is simulated.
        program: Option<Box<P>>,
    },
}

/// What state says of a running unit that it assigns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOrders<P> {
    /// What it asks of the node.
    pub weight: RunWeight,
    /// Whose use its use is.
    pub pool: Pool,
    /// What it was given on the node.
    pub allocation: Allocation,
    /// Its devices, with the thousandths that it takes of each.
    pub devices: DeviceShares,
    /// What it does, each time that it is started.
    pub work: RunWork<P>,
    /// After which ends it is started again.
    pub restart_policy: RestartPolicy,
    /// At most so many times in a row.
    pub max_restarts: u32,
    /// Times that it was started again already, by an agent that has forgotten it.
    pub restarts: u32,
    /// It stops after so long without contact; 0 never.
    pub stop_after_ms: u32,
    /// Between its polite and its forced end, where who stops it does not know its unit.
    pub stop_grace_ms: u32,
}

impl<P> RunOrders<P> {
    pub(crate) fn takes(&self) -> Takes {
        let RunWeight { cpu_milli, memory, network: _ } = self.weight;
        let (devices, zones) = (self.devices.clone(), self.allocation.zones);
        Takes { cpu_milli, memory, pool: self.pool, devices, zones }
    }
}

impl<P> Default for RunOrders<P> {
    fn default() -> Self {
        Self {
            weight: RunWeight::default(),
            pool: Pool::Guaranteed,
            allocation: Allocation::default(),
            devices: DeviceShares::new(),
            work: RunWork::Simulated { duration_ms: None, exit_code: 0 },
            restart_policy: RestartPolicy::Never,
            max_restarts: 0,
            restarts: 0,
            stop_after_ms: 0,
            stop_grace_ms: 0,
        }
    }
}
