//! What an agent checks of an assignment before it starts it: that its node has the room, the devices and the zones.
//!
//! The binder has checked all of it against the records, so in a healthy cluster nobody is ever refused. An agent that
//! refuses knows something that the records do not: it has less than it said, or runs what nobody knows of. What was bound
//! there before it came back is its business in any case, and is not checked: a node may have shrunk.

use godel_base::quantity::MILLI_WHOLE;
use godel_domain::{
    allocation::{DeviceSet, GivenZones, ZoneSet},
    demand::Pool,
};
use smallvec::SmallVec;

/// What one running unit takes of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Pool that pays.
    pub pool: Pool,
    /// Its devices.
    pub devices: DeviceShares,
    /// Its zones, and the cores that are its own.
    pub zones: GivenZones,
}

/// Devices of one running unit, with the thousandths that it takes of each.
pub type DeviceShares = SmallVec<[(DeviceSet, u32); 1]>;

/// What a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// By index, from 0.
    pub n_devices: usize,
    /// Those that running units are given.
    pub zones: ZoneSet,
    /// Most that it takes.
    pub n_running_units: u32,
}

/// Why an agent does not start what it is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AssignmentRefusal {
    /// Too little of a resource is left.
    Room,
    /// A device does not exist, or too little of it is left.
    Devices,
    /// A zone does not exist, or a core is another's.
    Zones,
    /// The agent was told to refuse, for a test.
    Told,
    /// Its state directory cannot be written, or is not its own any more.
    Disk,
    /// Its engine, or the registry of the image, did not answer for too long.
    Engine,
    /// No keeper can be started.
    Keeper,
    /// The node lacks what the command needs, which another one may have.
    Lacks,
}

impl AssignmentRefusal {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Room,
        Self::Devices,
        Self::Zones,
        Self::Told,
        Self::Disk,
        Self::Engine,
        Self::Keeper,
        Self::Lacks,
    ];

    /// Whether it speaks against the node: not if the node says by itself what it cannot do, and takes it back by itself, nor if
    /// it is the unit that asks for what few nodes have.
    pub fn counts_against_node(self) -> bool {
        match self {
            Self::Room | Self::Devices | Self::Zones | Self::Told | Self::Keeper => true,
            Self::Disk | Self::Engine | Self::Lacks => false,
        }
    }

    /// As metrics and reasons name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Devices => "devices",
            Self::Zones => "zones",
            Self::Told => "told",
            Self::Disk => "disk",
            Self::Engine => "engine",
            Self::Keeper => "keeper",
            Self::Lacks => "lacks",
        }
    }
}

/// Whether a node has what one more running unit takes, beside those that stay. Best-effort ones take what guaranteed ones
/// do not use, so only their devices count. `O(staying)`.
///
/// # Errors
/// What is short.
pub fn check(
    has: &Has,
    staying: impl IntoIterator<Item = Takes>,
    takes: &Takes,
) -> Result<(), AssignmentRefusal> {
    let (mut cpu_milli, mut memory, mut n) = (takes.cpu_milli, takes.memory, 1u32);
    let mut devices = [0u32; 64];
    let mut has_zones = takes.zones.zones.minus(has.zones).is_empty();
    let mut add = |one: &Takes| {
        for (of, milli) in &one.devices {
            of.iter().for_each(|idx| devices[idx] = devices[idx].saturating_add(*milli));
        }
    };
    add(takes);
    for one in staying {
        add(&one);
        has_zones &= one.zones.zones != takes.zones.zones || one.zones.cores.0 & takes.zones.cores.0 == 0;
        if one.pool == Pool::Guaranteed && takes.pool == Pool::Guaranteed {
            cpu_milli = cpu_milli.saturating_add(one.cpu_milli);
            memory = memory.saturating_add(one.memory);
            n = n.saturating_add(1);
        }
    }
    if cpu_milli > has.cpu_milli || memory > has.memory || n > has.n_running_units {
        return Err(AssignmentRefusal::Room);
    }
    let is_wrong = |idx: usize| idx >= has.n_devices || devices[idx] > MILLI_WHOLE;
    if takes.devices.iter().flat_map(|(of, _)| of.iter()).any(is_wrong) {
        return Err(AssignmentRefusal::Devices);
    }
    if has_zones { Ok(()) } else { Err(AssignmentRefusal::Zones) }
}

#[cfg(test)]
mod tests {
    use godel_domain::allocation::CoreSet;

    use super::*;

    fn takes(cpu_milli: i64, pool: Pool, devices: u64, milli: u32) -> Takes {
        let devices = Some((DeviceSet(devices), milli)).filter(|(devices, _)| !devices.is_empty());
        Takes { cpu_milli, memory: 1, pool, devices: devices.into_iter().collect(), zones: GivenZones::NONE }
    }

    #[test]
    fn room_and_devices_are_counted_with_those_that_stay() {
        let has =
            Has { cpu_milli: 1_000, memory: 10, n_devices: 2, zones: ZoneSet(0b110), n_running_units: 3 };
        let zoned = |zones, cores| {
            let zones = GivenZones { zones: ZoneSet(zones), cores: CoreSet(cores) };
            Takes { zones, ..takes(1, Pool::Guaranteed, 0, 0) }
        };
        let of = |cpu_milli| takes(cpu_milli, Pool::Guaranteed, 0, 0);
        let gpu = |mask, milli| takes(0, Pool::Guaranteed, mask, milli);
        let best_effort = || takes(900, Pool::BestEffort, 0, 0);
        let both = |first, second| Takes {
            devices: [(DeviceSet(0b01), first), (DeviceSet(0b10), second)].into_iter().collect(),
            ..of(0)
        };
        let cases: [(&[Takes], Takes, Result<(), AssignmentRefusal>); 23] = [
            (&[of(0), of(0), best_effort()], of(0), Ok(())),
            (&[of(0), of(0), of(0)], of(0), Err(AssignmentRefusal::Room)),
            (&[], of(1_000), Ok(())),
            (&[], of(1_001), Err(AssignmentRefusal::Room)),
            (&[of(500)], of(500), Ok(())),
            (&[of(500)], of(501), Err(AssignmentRefusal::Room)),
            (&[], Takes { memory: 10, ..of(1) }, Ok(())),
            (&[], Takes { memory: 11, ..of(1) }, Err(AssignmentRefusal::Room)),
            (&[best_effort()], of(1_000), Ok(())),
            (&[of(1_000)], best_effort(), Ok(())),
            (&[], takes(1_001, Pool::BestEffort, 0, 0), Err(AssignmentRefusal::Room)),
            (&[gpu(0b01, 1_000)], gpu(0b10, 1_000), Ok(())),
            (&[gpu(0b01, 1_000)], gpu(0b01, 1), Err(AssignmentRefusal::Devices)),
            (&[gpu(0b10, 1_000)], gpu(0b11, 1), Err(AssignmentRefusal::Devices)),
            (&[gpu(0b01, 400), gpu(0b01, 400)], gpu(0b01, 200), Ok(())),
            (&[], gpu(0b100, 1), Err(AssignmentRefusal::Devices)),
            (&[both(1_000, 250)], gpu(0b10, 750), Ok(())),
            (&[gpu(0b10, 800)], both(1_000, 250), Err(AssignmentRefusal::Devices)),
            (&[], zoned(0b110, 0), Ok(())),
            (&[], zoned(0b001, 0), Err(AssignmentRefusal::Zones)),
            (&[zoned(0b010, 0b11)], zoned(0b010, 0b100), Ok(())),
            (&[zoned(0b010, 0b11)], zoned(0b010, 0b110), Err(AssignmentRefusal::Zones)),
            (&[zoned(0b100, 0b11)], zoned(0b010, 0b11), Ok(())),
        ];
        for (staying, takes, expected) in cases {
            assert_eq!(check(&has, staying.iter().cloned(), &takes), expected, "{staying:?} {takes:?}");
        }
    }
}
