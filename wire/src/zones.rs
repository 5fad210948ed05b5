//! Zones of nodes, what is asked of them and what is given of them, and what is known of devices besides.

use godel_domain::{
    allocation::{CoreSet, GivenZones, N_ZONES_MAX, ZoneSet},
    demand::DeviceTerms,
    node::{DeviceDetails, DeviceProfile},
    zone::{CpuMode, N_CORES_MAX, Zone, ZonePolicy, ZoneRequest},
};
use godel_proto::v1;

use crate::{BadField, from_proto::resources};

/// Most profiles of one node.
const N_PROFILES_MAX: usize = 64;

/// Joins the columns of zones and of cores, the latter of which may be empty.
pub(crate) fn given(zones: Vec<u64>, cores: &[u64]) -> Vec<GivenZones> {
    let cores = |at| CoreSet(cores.get(at).copied().unwrap_or_default());
    let given = |(at, zones)| GivenZones { zones: ZoneSet(zones), cores: cores(at) };
    zones.into_iter().enumerate().map(given).collect()
}

/// Returns the column of zones.
pub(crate) fn zone_masks(given: &[GivenZones]) -> Vec<u64> {
    given.iter().map(|given| given.zones.0).collect()
}

/// Returns the column of cores; empty if nobody has any.
pub(crate) fn core_masks(given: &[GivenZones]) -> Vec<u64> {
    let has_any = given.iter().any(|given| !given.cores.is_empty());
    given.iter().filter(|_| has_any).map(|given| given.cores.0).collect()
}

/// What is asked of zones; nothing for a policy that is absent, or says that it does not matter.
///
/// # Errors
/// A word stands for nothing, or is for requests only.
pub(crate) fn request(pb: v1::ZoneRequest) -> Result<Option<ZoneRequest>, String> {
    let policy = policy(pb.policy)?;
    let cpu_mode = match v1::CpuMode::try_from(pb.cpu_mode) {
        Ok(v1::CpuMode::Unspecified | v1::CpuMode::Shared) => CpuMode::Shared,
        Ok(v1::CpuMode::Dedicated) => CpuMode::Dedicated,
        Ok(v1::CpuMode::Reclaimed) | Err(_) => {
            return Err(format!("cpu_mode {} stands for nothing here", pb.cpu_mode));
        }
    };
    Ok(policy.map(|policy| ZoneRequest { policy, cpu_mode }))
}

/// The policy of a number; `None`: it does not matter.
///
/// # Errors
/// The number stands for nothing.
pub(crate) fn policy(pb: i32) -> Result<Option<ZonePolicy>, String> {
    match v1::ZonePolicy::try_from(pb) {
        Ok(v1::ZonePolicy::Unspecified | v1::ZonePolicy::None) => Ok(None),
        Ok(v1::ZonePolicy::BestEffort) => Ok(Some(ZonePolicy::BestEffort)),
        Ok(v1::ZonePolicy::Restricted) => Ok(Some(ZonePolicy::Restricted)),
        Ok(v1::ZonePolicy::SingleZone) => Ok(Some(ZonePolicy::SingleZone)),
        Ok(v1::ZonePolicy::Exclusive) => Ok(Some(ZonePolicy::Exclusive)),
        Err(_) => Err(format!("policy {pb} stands for nothing")),
    }
}

/// The inverse of [`policy`].
pub(crate) fn policy_to_proto(policy: ZonePolicy) -> v1::ZonePolicy {
    match policy {
        ZonePolicy::BestEffort => v1::ZonePolicy::BestEffort,
        ZonePolicy::Restricted => v1::ZonePolicy::Restricted,
        ZonePolicy::SingleZone => v1::ZonePolicy::SingleZone,
        ZonePolicy::Exclusive => v1::ZonePolicy::Exclusive,
    }
}

/// Whose the CPUs of a replica are.
pub(crate) fn cpu_mode_to_proto(mode: CpuMode) -> v1::CpuMode {
    match mode {
        CpuMode::Shared => v1::CpuMode::Shared,
        CpuMode::Dedicated => v1::CpuMode::Dedicated,
    }
}

/// What else devices have to be; nothing if it says nothing.
pub(crate) fn device_terms(pb: Option<v1::DeviceTerms>) -> Option<Box<DeviceTerms>> {
    let v1::DeviceTerms { link, gbps, memory, same_zone_as, profile } = pb?;
    let terms = DeviceTerms { link, gbps, memory, same_zone_as, profile };
    (terms != DeviceTerms::default()).then(|| Box::new(terms))
}

/// What else is known of a device; nothing if it says nothing.
pub(crate) fn device_details(pb: Option<v1::DeviceDetails>) -> Option<Box<DeviceDetails>> {
    let v1::DeviceDetails { memory, gbps, link, link_group } = pb?;
    let details = DeviceDetails { memory, gbps, link, link_group };
    (details != DeviceDetails::default()).then(|| Box::new(details))
}

/// The inverse of [`device_details`].
pub(crate) fn device_details_to_proto(details: Option<&DeviceDetails>) -> Option<v1::DeviceDetails> {
    let DeviceDetails { memory, gbps, link, link_group } = details?.clone();
    Some(v1::DeviceDetails { memory, gbps, link, link_group })
}

/// The zones of a node.
///
/// # Errors
/// There are too many, a zone does not come after the one that it lies in, one that is assigned lies in another such one, a CPU
/// stands twice in zones that are assigned, or a zone has too many cores.
pub(crate) fn zones(pbs: Vec<v1::Zone>) -> Result<Vec<Zone>, BadField> {
    if pbs.len() > N_ZONES_MAX {
        return Err(BadField::new("zones", format!("{} zones, at most {N_ZONES_MAX}", pbs.len())));
    }
    let mut zones: Vec<Zone> = Vec::with_capacity(pbs.len());
    let mut cpus: Vec<u32> = Vec::new();
    for (at, pb) in pbs.into_iter().enumerate() {
        let zone = zone(pb, &zones).map_err(|bad| bad.under(&format!("zones[{at}]")))?;
        if zone.is_assigned() {
            cpus.extend(&zone.cpus);
        }
        zones.push(zone);
    }
    cpus.sort_unstable();
    if let Some(twice) = cpus.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BadField::new("zones", format!("CPU {} is in two zones that are assigned", twice[0])));
    }
    Ok(zones)
}

fn zone(pb: v1::Zone, before: &[Zone]) -> Result<Zone, BadField> {
    let v1::Zone { kind, parent, capacity, cpus, threads_per_core } = pb;
    if kind.is_empty() {
        return Err(BadField::new("kind", "missing"));
    }
    let parent = match parent {
        None => None,
        Some(parent) => {
            let known = u8::try_from(parent).ok().filter(|parent| usize::from(*parent) < before.len());
            Some(known.ok_or_else(|| BadField::new("parent", format!("{parent} is no earlier zone")))?)
        }
    };
    let capacity = resources(capacity.unwrap_or_default()).map_err(|bad| bad.under("capacity"))?;
    let mut around = parent;
    while let Some(zone) = around.and_then(|at| before.get(usize::from(at))) {
        if !capacity.is_empty() && zone.is_assigned() {
            return Err(BadField::new("capacity", "a zone around it has a capacity as well"));
        }
        around = zone.parent;
    }
    let threads_per_core = u8::try_from(threads_per_core.max(1))
        .map_err(|_| BadField::new("threads_per_core", format!("{threads_per_core} is above 255")))?;
    let zone = Zone { kind, parent, capacity, cpus, threads_per_core };
    let n_cores = zone.cores().len();
    if zone.is_assigned() && n_cores > N_CORES_MAX {
        return Err(BadField::new(
            "cpus",
            format!("{n_cores} cores, at most {N_CORES_MAX}: divide the zone"),
        ));
    }
    Ok(zone)
}

/// A zone of a node.
pub fn zone_to_proto(zone: &Zone) -> v1::Zone {
    let Zone { kind, parent, capacity, cpus, threads_per_core } = zone;
    v1::Zone {
        kind: kind.clone(),
        parent: parent.map(u32::from),
        capacity: zone.is_assigned().then(|| crate::to_proto::resources(capacity)),
        cpus: cpus.clone(),
        threads_per_core: u32::from(*threads_per_core),
    }
}

/// The ways in which devices of a node can be divided.
///
/// # Errors
/// There are too many, one has no name or kind, or no slices.
pub(crate) fn profiles(pbs: Vec<v1::DeviceProfile>) -> Result<Vec<DeviceProfile>, BadField> {
    if pbs.len() > N_PROFILES_MAX {
        return Err(BadField::new("profiles", format!("{} profiles, at most {N_PROFILES_MAX}", pbs.len())));
    }
    let profile = |(at, pb): (usize, v1::DeviceProfile)| {
        let v1::DeviceProfile { kind, model, name, shapes } = pb;
        let field = |leaf: &str| format!("profiles[{at}].{leaf}");
        for (leaf, text) in [("kind", &kind), ("name", &name)] {
            if text.is_empty() {
                return Err(BadField::new(field(leaf), "missing"));
            }
        }
        if shapes.is_empty() || shapes.len() > N_PROFILES_MAX || shapes.contains(&0) {
            return Err(BadField::new(field("shapes"), format!("1 to {N_PROFILES_MAX} sets of slices")));
        }
        Ok(DeviceProfile { kind, model, name, shapes })
    };
    pbs.into_iter().enumerate().map(profile).collect()
}

/// A way in which devices of a node can be divided.
pub fn profile_to_proto(profile: &DeviceProfile) -> v1::DeviceProfile {
    let DeviceProfile { kind, model, name, shapes } = profile.clone();
    v1::DeviceProfile { kind, model, name, shapes }
}
