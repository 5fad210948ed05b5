//! What one running unit takes on a node.

use crate::{host_port::HostPort, node::Device, zone::ZoneRequest};
use godel_base::{quantity::MILLI_WHOLE, resources::Resources};

/// Most devices of one node, over all kinds: a set of them ([`DeviceSet`](crate::allocation::DeviceSet)) has a bit for each.
pub const N_DEVICES_MAX: usize = 64;

/// Most device requests of one demand.
pub const N_DEVICE_REQUESTS_MAX: usize = 4;

/// Requests of one running unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Demand {
    /// Resources by name.
    pub requests: Resources,
    /// Devices, each kind at most once; at most [`N_DEVICE_REQUESTS_MAX`].
    pub devices: Vec<DeviceRequest>,
    /// Ports of the node that no other running unit has; at most [`N_HOST_PORTS_MAX`](crate::host_port::N_HOST_PORTS_MAX).
    pub host_ports: Vec<HostPort>,
    /// How its resources lie in the zones of the node; `None`: anyhow.
    pub zones: Option<ZoneRequest>,
}

impl Demand {
    /// All of it, devices by their kind in thousandths.
    pub fn amounts(&self) -> impl Iterator<Item = (&str, i64)> {
        let devices = self
            .devices
            .iter()
            .map(|asked| (asked.kind.as_str(), i64::from(asked.count) * i64::from(asked.milli)));
        self.requests.iter().chain(devices)
    }

    /// Whether room for this much is enough for `asked`; devices must be of the same kind, models, share and terms, and zones
    /// asked for alike. Ports are no room: they are free on the node or not.
    pub fn covers(&self, asked: &Self) -> bool {
        let covers_devices = |asked: &DeviceRequest| {
            self.devices.iter().any(|own| {
                (&own.kind, &own.models, own.milli, &own.terms)
                    == (&asked.kind, &asked.models, asked.milli, &asked.terms)
                    && own.count >= asked.count
            })
        };
        self.zones == asked.zones
            && asked.devices.iter().all(covers_devices)
            && asked.requests.iter().all(|(name, amount)| amount <= self.requests.get(name))
    }

    /// Returns the thousandths that a running unit takes of one of its devices, by the kind of that device. Of a device that
    /// is not known, or of a kind that is not asked for, the unit takes as much as the greatest of its requests says.
    pub fn device_milli(&self, kind: Option<&str>) -> Option<u32> {
        let of_kind = self.devices.iter().find(|request| Some(request.kind.as_str()) == kind);
        let greatest = || self.devices.iter().max_by_key(|request| request.milli);
        of_kind.or_else(greatest).map(|request| request.milli)
    }
}

/// Returns the first kind that two requests ask for.
pub fn repeated_kind<'a>(mut kinds: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    while let Some(kind) = kinds.next() {
        if kinds.clone().any(|other| other == kind) {
            return Some(kind);
        }
    }
    None
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
    /// What else they have to be; `None`: nothing.
    pub terms: Option<Box<DeviceTerms>>,
}

/// What devices have to be beside their kind and model. At least one of these is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceTerms {
    /// All of them are joined by links of this kind, as `nvlink`; empty: by any or none.
    pub link: String,
    /// Gigabits per second that each gives at least, of a shared one its share; 0: any.
    pub gbps: u32,
    /// Bytes of memory that each has at least; 0: any.
    pub memory: i64,
    /// They lie in a zone in which a device of this other kind of the same demand lies; empty: anywhere.
    pub same_zone_as: String,
    /// The profile of each, as `3g.20gb`: `count` instances, each a set of slices of one device; empty: none.
    pub profile: String,
}

impl DeviceRequest {
    /// Whether a device serves the request.
    pub fn accepts(&self, device: &Device) -> bool {
        device.kind == self.kind
            && (self.models.is_empty() || self.models.contains(&device.model))
            && self.terms.as_ref().is_none_or(|terms| terms.accept(device, self.milli))
    }
}

impl DeviceTerms {
    /// Whether the devices have to be of one group: joined, or slices of one device.
    pub fn is_of_groups(&self) -> bool {
        !self.link.is_empty() || !self.profile.is_empty()
    }

    /// Whether it matters where the devices lie on their node.
    pub fn is_about_places(&self) -> bool {
        self.is_of_groups() || !self.same_zone_as.is_empty()
    }

    /// Whether a device is what is asked for by itself, `milli` thousandths of it being taken.
    pub fn accept(&self, device: &Device, milli: u32) -> bool {
        let details = device.known();
        let gbps = u64::from(details.gbps) * u64::from(milli) / u64::from(MILLI_WHOLE);
        (self.link.is_empty() || self.link == details.link)
            && u64::from(self.gbps) <= gbps
            && self.memory <= details.memory
    }
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
        let gpu = DeviceRequest { kind: "gpu".to_owned(), count: gpus, milli, models, terms: None };
        Demand {
            requests: Resources::new([("cpu", cpu)]).unwrap(),
            devices: (gpus > 0).then_some(gpu).into_iter().collect(),
            host_ports: Vec::new(),
            zones: None,
        }
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
            (
                Demand {
                    requests: Resources::new([("disk", 1)]).unwrap(),
                    devices: Vec::new(),
                    host_ports: Vec::new(),
                    zones: None,
                },
                false,
            ),
        ] {
            assert_eq!(room.covers(&asked), expected, "{asked:?}");
        }
        assert!(!demand(1_000, 0, 0).covers(&demand(1, 1, 1_000)));
    }

    #[test]
    fn every_kind_of_device_is_covered_and_counted_by_itself() {
        let of = |kind: &str, count, milli| DeviceRequest {
            kind: kind.to_owned(),
            count,
            milli,
            models: Vec::new(),
            terms: None,
        };
        let demand = |devices: &[DeviceRequest]| Demand { devices: devices.to_vec(), ..Demand::default() };
        let both = demand(&[of("gpu", 2, 1_000), of("nic", 1, 500)]);
        let nic = demand(&[of("nic", 1, 500)]);
        assert!(both.covers(&nic) && both.covers(&both) && !nic.covers(&both));
        assert!(!both.covers(&demand(&[of("nic", 1, 400)])) && !both.covers(&demand(&[of("npu", 1, 500)])));
        assert_eq!(both.amounts().collect::<Vec<_>>(), [("gpu", 2_000), ("nic", 500)]);
        let milli = |kind| both.device_milli(kind);
        assert_eq!(
            [milli(Some("gpu")), milli(Some("nic")), milli(Some("npu")), milli(None)],
            [Some(1_000), Some(500), Some(1_000), Some(1_000)]
        );
        assert_eq!((nic.device_milli(Some("gpu")), Demand::default().device_milli(None)), (Some(500), None));
        assert_eq!(repeated_kind(["gpu", "nic"].into_iter()), None);
        assert_eq!(repeated_kind(["nic", "gpu", "nic"].into_iter()), Some("nic"));
    }
}
