//! The plugins of the scheduling framework, one file each, and their registry.

use crate::{Filter, Score};

pub mod device;
pub mod device_stranding;
pub mod least_allocated;
pub mod most_allocated;
pub mod node_ready;
pub mod node_selector;
pub mod resources_fit;
pub mod spread;
pub mod taints;
#[cfg(test)]
mod tests;

/// Every filter. A refused node is counted for the first one in this order: what an administrator decides
/// before what is merely full.
pub static FILTERS: [&dyn Filter; 5] = [
    &node_ready::NodeReady,
    &node_selector::NodeSelector,
    &taints::Taints,
    &device::Devices,
    &resources_fit::ResourcesFit,
];

/// Every score.
pub static SCORES: [&dyn Score; 4] = [
    &device_stranding::DeviceStranding,
    &least_allocated::LeastAllocated,
    &most_allocated::MostAllocated,
    &spread::Spread,
];
