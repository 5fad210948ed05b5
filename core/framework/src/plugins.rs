//! The plugins of the scheduling framework, one file each. [`crate::registry`] lists them.

pub mod balanced_allocation;
pub mod candidates;
pub mod complementary;
pub mod cpu_memory_ratio;
pub mod daemon;
pub mod device;
pub mod device_stranding;
pub mod dominant_fit;
pub mod former_node;
pub mod groups;
pub mod host_ports;
pub mod least_allocated;
pub mod load_aware;
pub mod load_threshold;
pub mod most_allocated;
pub mod movement;
pub mod node_affinity;
pub mod node_class;
pub mod node_ready;
pub mod node_selector;
pub mod numa_topology;
pub mod reservation;
pub mod resources_fit;
pub mod runtime;
pub mod spread;
pub mod spread_preference;
pub mod sub_cluster;
pub mod taints;
#[cfg(test)]
mod tests;
pub mod topology_domain;
pub mod topology_spread;
pub mod unit_affinity;
pub mod unit_preference;
pub mod victims;
pub mod volume;
