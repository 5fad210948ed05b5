//! The plugins of the scheduling framework, one file each. [`crate::registry`] lists them.

pub mod device;
pub mod device_stranding;
pub mod least_allocated;
pub mod most_allocated;
pub mod node_ready;
pub mod node_selector;
pub mod resources_fit;
pub mod spread;
pub mod sub_cluster;
pub mod taints;
#[cfg(test)]
mod tests;
