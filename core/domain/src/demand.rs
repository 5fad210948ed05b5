//! What one running unit takes on a node.

use crate::resources::Resources;

/// Thousandths in one whole device.
pub const MILLI_WHOLE: u32 = 1000;
/// Most devices of one node, over all kinds: a set of them ([`DeviceSet`](crate::allocation::DeviceSet)) has a bit for each.
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

    /// Whether room for this much is enough for `asked`; devices must be of the same kind, models and share.
    pub fn covers(&self, asked: &Self) -> bool {
        let devices = match (&self.devices, &asked.devices) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(slot), Some(asked)) => {
                (&slot.kind, &slot.models, slot.milli) == (&asked.kind, &asked.models, asked.milli)
                    && slot.count >= asked.count
            }
        };
        devices && asked.requests.iter().all(|(name, amount)| amount <= self.requests.get(name))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(cpu: i64, gpus: u32, milli: u32) -> Demand {
        let models = Vec::new();
        let gpu = DeviceRequest { kind: "gpu".to_owned(), count: gpus, milli, models };
        Demand { requests: Resources::new([("cpu", cpu)]).unwrap(), devices: (gpus > 0).then_some(gpu) }
    }

    #[test]
    fn room_covers_what_is_no_more_in_anything() {
        let room = demand(1_000, 2, 1_000);
        for (asked, expected) in [
            (demand(1_000, 2, 1_000), true),
            (demand(0, 1, 1_000), true),
            (demand(1_000, 0, 0), true),
            (demand(1_001, 0, 0), false),
            (demand(1, 3, 1_000), false),
            (demand(1, 1, 500), false),
            (Demand { requests: Resources::new([("disk", 1)]).unwrap(), devices: None }, false),
        ] {
            assert_eq!(room.covers(&asked), expected, "{asked:?}");
        }
        assert!(!demand(1_000, 0, 0).covers(&demand(1, 1, 1_000)));
    }
}
