//! What one replica is: what it takes, where it may go, and what runs.

use std::collections::BTreeMap;

use crate::{
    demand::Demand,
    fields::FieldVisitor,
    node::{RuntimeNeed, Toleration},
    node_affinity::NodeAffinity,
    node_load::MaxLoad,
};

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Template {
    /// What it takes.
    pub demand: Demand,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that it accepts.
    pub tolerations: Vec<Toleration>,
    /// Which nodes it may have and which it prefers, beyond the labels.
    pub node_affinity: NodeAffinity,
    /// How much of a node may be used already.
    pub max_load: MaxLoad,
    /// What the agent runs.
    pub run: RunSpec,
}

/// What an agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunSpec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Of a simulated run; `None` runs until stopped, 0 ends at once.
    pub simulated_duration_ms: Option<u64>,
    /// Of a simulated run.
    pub simulated_exit_code: i32,
    /// Between the polite and the forced end.
    pub stop_grace_ms: u32,
    /// Between an eviction for the sake of others (preempted or moved) and the polite end; 0: none.
    pub eviction_notice_ms: u32,
    /// Between two checkpoints, from its start on; `None`: it does not save its work by itself.
    pub checkpoint_every_ms: Option<u64>,
    /// The command comes later, and the run fails without one after this time, milliseconds; `None`: it starts at once.
    pub await_command_ms: Option<u64>,
    /// Working directory on its node; `None`: the root of the file system.
    pub working_directory: Option<String>,
    /// User on its node, by name or number; `None`: that of the agent.
    pub user: Option<String>,
    /// Bits that its new files do not get; `None`: 022.
    pub umask: Option<u32>,
    /// The image in whose container it runs; `None`: it is a process of its node.
    pub image: Option<String>,
    /// Directories of its node that are kept for the replica as long as its unit.
    pub volumes: Vec<Volume>,
}

/// A directory that a node keeps for a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Volume {
    /// Unique in the template.
    pub name: String,
    /// Room that it needs on the disk of its node.
    pub bytes: u64,
    /// Where the program finds it; `None`: in a directory of the node that its environment names.
    pub path: Option<String>,
}

impl RunSpec {
    /// Returns what it asks of the runtime of its node.
    pub fn runtime_need(&self) -> RuntimeNeed {
        if self.image.is_some() {
            RuntimeNeed::Images
        } else if self.is_without_command() {
            RuntimeNeed::Simulation
        } else {
            RuntimeNeed::Nothing
        }
    }

    /// Whether nothing says what runs: no image, no command, none that comes later, and no simulated run. On a node that runs processes it
    /// would take room and do nothing.
    fn is_without_command(&self) -> bool {
        let Self { image, command, simulated_duration_ms, simulated_exit_code, await_command_ms, .. } = self;
        image.is_none()
            && command.is_empty()
            && await_command_ms.is_none()
            && simulated_duration_ms.is_none()
            && *simulated_exit_code == 0
    }
}

impl Template {
    /// Shows a visitor the fields of two templates, one field after the other, by their keys in unit files.
    pub fn visit(&self, other: &Self, visitor: &mut impl FieldVisitor) {
        // A new field breaks the build here.
        let Self { demand, node_selector, tolerations, node_affinity, max_load, run } = self;
        let Demand { requests, devices, host_ports, zones } = demand;
        visitor.field("requests", requests, &other.demand.requests);
        visitor.field("devices", devices, &other.demand.devices);
        visitor.field("host_ports", host_ports, &other.demand.host_ports);
        visitor.field("topology", zones, &other.demand.zones);
        visitor.field("node_selector", node_selector, &other.node_selector);
        visitor.field("tolerations", tolerations, &other.tolerations);
        visitor.field("node_affinity", node_affinity, &other.node_affinity);
        visitor.field("max_load", max_load, &other.max_load);
        run.visit(&other.run, visitor);
    }
}

impl RunSpec {
    fn visit(&self, other: &Self, visitor: &mut impl FieldVisitor) {
        // A new field breaks the build here.
        let Self {
            command,
            env,
            simulated_duration_ms,
            simulated_exit_code,
            stop_grace_ms,
            eviction_notice_ms,
            checkpoint_every_ms,
            await_command_ms,
            working_directory,
            user,
            umask,
            image,
            volumes,
        } = self;
        visitor.field("command", command, &other.command);
        visitor.field("env", env, &other.env);
        visitor.field("simulated.duration", simulated_duration_ms, &other.simulated_duration_ms);
        visitor.field("simulated.exit_code", simulated_exit_code, &other.simulated_exit_code);
        visitor.field("stop_grace", stop_grace_ms, &other.stop_grace_ms);
        visitor.field("eviction_notice", eviction_notice_ms, &other.eviction_notice_ms);
        visitor.field("checkpoint_every", checkpoint_every_ms, &other.checkpoint_every_ms);
        visitor.field("await_command", await_command_ms, &other.await_command_ms);
        visitor.field("working_directory", working_directory, &other.working_directory);
        visitor.field("user", user, &other.user);
        visitor.field("umask", umask, &other.umask);
        visitor.field("image", image, &other.image);
        visitor.field("volumes", volumes, &other.volumes);
    }
}
