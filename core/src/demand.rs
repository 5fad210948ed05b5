//! What one running unit takes on a node.

use crate::resources::Resources;

/// Thousandths in one whole device.
pub const MILLI_WHOLE: u32 = 1000;
/// Most devices on one node: a placement names them in a 64-bit mask.
pub const N_DEVICES_MAX: usize = 64;

/// Requests of one running unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Demand {
    /// Resources by name.
    pub requests: Resources,
    /// Devices, if any.
    pub devices: Option<DeviceRequest>,
}

impl Demand {
    /// All of it, devices by their kind in thousandths.
    pub fn amounts(&self) -> impl Iterator<Item = (&str, i64)> {
        let devices = self.devices.iter();
        let devices =
            devices.map(|asked| (asked.kind.as_str(), i64::from(asked.count) * i64::from(asked.milli)));
        self.requests.iter().chain(devices)
    }
}

/// Devices of one kind on one node: `count` whole ones, or a share of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceRequest {
    /// `gpu`.
    pub kind: String,
    /// 1 to 64.
    pub count: u32,
    /// Thousandths of each, 1 to 1000; below 1000 only when `count` is 1.
    pub milli: u32,
    /// Models accepted; empty accepts every model.
    pub models: Vec<String>,
}

/// Share of the cluster that pays for a running unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Backed by allocatable resources.
    #[default]
    Guaranteed,
    /// Backed by what guaranteed units do not use.
    BestEffort,
}
