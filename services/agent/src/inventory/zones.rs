//! Zones, links and divided devices of simulated nodes: `sockets=2,numa=4,l3=8,threads=2`, `link=nvlink`, `mig=2:A100-40GB`.

use godel_base::resources::{CPU, MEMORY, Resources};
use godel_domain::{
    allocation::N_ZONES_MAX,
    demand::N_DEVICES_MAX,
    node::{Device, DeviceDetails, DeviceProfile},
    zone::{N_CORES_MAX, Zone},
};

/// Thousandths of one CPU.
const MILLI_CPU: i64 = 1_000;
/// Slices of one divided device.
const N_SLICES: usize = 7;
/// Kind of a slice of a divided device.
const SLICE: &str = "gpu-slice";

/// What a shape says of zones and devices beside their number and model.
#[derive(Clone, Debug, Default)]
pub(super) struct ShapeZones {
    /// Sockets; 0: not said.
    pub(super) sockets: usize,
    /// NUMA zones of the whole node; 0: none.
    pub(super) numa: usize,
    /// Groups of cores with a cache of their own, of the whole node; 0: not said.
    pub(super) l3: usize,
    /// CPUs of each core; 0: 2 where the CPUs of a zone are even.
    pub(super) threads: usize,
    /// Kind of the links between GPUs, and how many are joined; 0: all.
    pub(super) link: Option<(String, usize)>,
    /// Network cards, and the gigabits per second of each.
    pub(super) nics: Option<(usize, u32)>,
    /// Divided devices, and their model.
    pub(super) mig: Option<(usize, String)>,
}

impl ShapeZones {
    /// Takes one of the keys of zones; `None`: it is another one.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let number =
            |text: &str| text.parse::<usize>().map_err(|_| format!("{key}: `{text}` is not a number"));
        let set = |slot: &mut usize| number(value).map(|n| *slot = n);
        Some(match key {
            "sockets" => set(&mut self.sockets),
            "numa" => set(&mut self.numa),
            "l3" => set(&mut self.l3),
            "threads" => set(&mut self.threads),
            "link" => {
                let (kind, joined) = value.split_once(':').unwrap_or((value, "0"));
                number(joined).map(|joined| self.link = Some((kind.to_owned(), joined)))
            }
            "nic" => {
                let (n, speed) = value.split_once(':').unwrap_or((value, "0G"));
                let gbps = speed.strip_suffix('G').unwrap_or(speed).parse();
                let gbps = gbps.map_err(|_| format!("nic: `{speed}` is no speed, as `200G`"));
                number(n).and_then(|n| gbps.map(|gbps| self.nics = Some((n, gbps))))
            }
            "mig" => {
                let (n, model) = value.split_once(':').unwrap_or((value, "A100-40GB"));
                number(n).map(|n| self.mig = Some((n, model.to_owned())))
            }
            _ => return None,
        })
    }

    /// Adds what is said to the devices of a node: links between those that are there, network cards, slices. Devices of each
    /// kind are near the zones in turn.
    pub(super) fn devices(&self, mut devices: Vec<Device>) -> Result<Vec<Device>, String> {
        if let Some((link, joined)) = &self.link {
            let joined = if *joined == 0 { devices.len() } else { *joined };
            for (at, device) in devices.iter_mut().enumerate() {
                let group = u32::try_from(at / joined.max(1)).unwrap_or(u32::MAX).saturating_add(1);
                let details =
                    DeviceDetails { link: link.clone(), link_group: group, ..DeviceDetails::default() };
                device.details = Some(Box::new(details));
            }
        }
        self.put_near(&mut devices);
        if let Some((n, gbps)) = self.nics {
            let details = DeviceDetails { gbps, ..DeviceDetails::default() };
            let nic = device("nic", "", details);
            if n > N_DEVICES_MAX {
                return Err(format!("nic: {n} is more than {N_DEVICES_MAX}"));
            }
            let mut nics = vec![nic; n];
            self.put_near(&mut nics);
            devices.append(&mut nics);
        }
        if let Some((n, model)) = &self.mig {
            for card in 0..(*n).min(N_DEVICES_MAX) {
                let link_group = u32::try_from(card).unwrap_or(u32::MAX).saturating_add(1_001);
                let mut slice =
                    device(SLICE, model, DeviceDetails { link_group, ..DeviceDetails::default() });
                slice.numa_zone = self.zone_of(card, *n);
                devices.extend(std::iter::repeat_n(slice, N_SLICES));
            }
        }
        if devices.len() > N_DEVICES_MAX {
            return Err(format!("{} devices, at most {N_DEVICES_MAX}", devices.len()));
        }
        Ok(devices)
    }

    fn put_near(&self, devices: &mut [Device]) {
        let n = devices.len();
        devices.iter_mut().enumerate().for_each(|(at, device)| device.numa_zone = self.zone_of(at, n));
    }

    /// The index of the NUMA zone near the device at a position among `n`.
    fn zone_of(&self, at: usize, n: usize) -> u32 {
        let of_numa = at * self.numa.max(1) / n.max(1);
        u32::try_from(if self.numa == 0 { 0 } else { self.n_sockets() + of_numa }).unwrap_or(0)
    }

    fn n_sockets(&self) -> usize {
        if self.sockets == 0 { 1 } else { self.sockets }
    }

    /// Returns the zones: sockets, NUMA zones, and groups of cores.
    pub(super) fn zones(&self, capacity: &Resources) -> Result<Vec<Zone>, String> {
        let (sockets, numa) = (self.n_sockets(), self.numa);
        if numa == 0 {
            let lone = [("sockets", self.sockets), ("l3", self.l3), ("threads", self.threads)];
            return match lone.into_iter().find(|(_, n)| *n > 0) {
                Some((key, _)) => Err(format!("{key}: say the number of NUMA zones as well, as `numa=2`")),
                None => Ok(Vec::new()),
            };
        }
        if !numa.is_multiple_of(sockets) {
            return Err(format!("numa: {numa} zones do not lie evenly in {sockets} sockets"));
        }
        let n_cpus = usize::try_from(capacity.get(CPU) / MILLI_CPU).unwrap_or(0);
        if n_cpus == 0 || !n_cpus.is_multiple_of(numa) || capacity.get(CPU) % MILLI_CPU != 0 {
            return Err(format!("cpu: no whole number of CPUs for each of {numa} NUMA zones"));
        }
        let per_zone = n_cpus / numa;
        let threads = match self.threads {
            0 => {
                if per_zone.is_multiple_of(2) {
                    2
                } else {
                    1
                }
            }
            threads if per_zone.is_multiple_of(threads) => threads,
            threads => {
                return Err(format!("threads: {per_zone} CPUs of a zone are no whole cores of {threads}"));
            }
        };
        let (n_cores, cores) = (n_cpus / threads, per_zone / threads);
        if cores > N_CORES_MAX {
            return Err(format!(
                "numa: {cores} cores in one zone, at most {N_CORES_MAX}: divide into more zones"
            ));
        }
        let l3_per_zone = self.l3 / numa;
        if !self.l3.is_multiple_of(numa) || (l3_per_zone > 0 && !cores.is_multiple_of(l3_per_zone)) {
            return Err(format!("l3: {} groups do not lie evenly in {numa} NUMA zones", self.l3));
        }
        if sockets + numa + self.l3 > N_ZONES_MAX {
            return Err(format!("{} zones, at most {N_ZONES_MAX}", sockets + numa + self.l3));
        }
        // As Linux numbers them: the first thread of every core, then the second ones.
        let cpus = |cores: std::ops::Range<usize>| -> Vec<u32> {
            let of_core = |core: usize| (0..threads).map(move |thread| core + thread * n_cores);
            cores.flat_map(of_core).filter_map(|cpu| u32::try_from(cpu).ok()).collect()
        };
        let zone = |kind: &str, parent: Option<usize>, capacity: Resources, cpus: Vec<u32>| Zone {
            kind: kind.to_owned(),
            parent: parent.and_then(|parent| u8::try_from(parent).ok()),
            capacity,
            cpus,
            threads_per_core: u8::try_from(threads).unwrap_or(1),
        };
        let parts = i64::try_from(numa).unwrap_or(1);
        let is_of_zones = |name: &str| {
            name == CPU || name == MEMORY || name == "memory-bandwidth" || name.starts_with("hugepages-")
        };
        let part = capacity
            .iter()
            .filter(|(name, _)| is_of_zones(name))
            .map(|(name, amount)| (name, amount / parts));
        let part = Resources::new(part)?;
        let mut zones: Vec<Zone> =
            (0..sockets).map(|_| zone("socket", None, Resources::default(), Vec::new())).collect();
        for at in 0..numa {
            let cpus = cpus(at * cores..(at + 1) * cores);
            zones.push(zone("numa", Some(at * sockets / numa), part.clone(), cpus));
        }
        for at in 0..self.l3 {
            let size = cores / l3_per_zone;
            let cpus = cpus(at * size..(at + 1) * size);
            zones.push(zone("l3", Some(sockets + at / l3_per_zone), Resources::default(), cpus));
        }
        Ok(zones)
    }

    /// Returns the ways in which the divided devices can be divided.
    pub(super) fn profiles(&self) -> Result<Vec<DeviceProfile>, String> {
        match &self.mig {
            Some((_, model)) => mig_profiles(model),
            None => Ok(Vec::new()),
        }
    }
}

fn device(kind: &str, model: &str, details: DeviceDetails) -> Device {
    let details = (details != DeviceDetails::default()).then(|| Box::new(details));
    Device { kind: kind.to_owned(), model: model.to_owned(), numa_zone: 0, details }
}

/// The profiles of a GPU with seven slices and eight parts of its memory, as NVIDIA's MIG user guide lists them for A100 and
/// H100. The last part of the memory goes with the last slice.
fn mig_profiles(model: &str) -> Result<Vec<DeviceProfile>, String> {
    let gib = model.rsplit_once('-').and_then(|(_, size)| size.strip_suffix("GB")?.parse::<u32>().ok());
    let Some(part) = gib.filter(|gib| *gib >= 8).map(|gib| gib / 8) else {
        return Err(format!("mig: `{model}` does not end with the size of its memory, as `A100-40GB`"));
    };
    let singles: Vec<u64> = (0..N_SLICES).map(|slice| 1 << slice).collect();
    let table: [(u32, u32, Vec<u64>); 6] = [
        (1, 1, singles),
        (1, 2, vec![0b11, 0b1100, 0b11_0000, 0b100_0000]),
        (2, 2, vec![0b11, 0b1100, 0b11_0000]),
        (3, 4, vec![0b1111, 0b111_0000]),
        (4, 4, vec![0b1111]),
        (7, 8, vec![0b111_1111]),
    ];
    let profile = |(slices, parts, shapes): (u32, u32, Vec<u64>)| DeviceProfile {
        kind: SLICE.to_owned(),
        model: model.to_owned(),
        name: format!("{slices}g.{}gb", parts * part),
        shapes,
    };
    Ok(table.into_iter().map(profile).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::parse_shape;

    #[test]
    fn zones_of_simulated_nodes_nest() {
        let shape = "1x sockets=2,numa=4,l3=8,cpu=96,memory=64Gi,gpu=8:H100,nic=4:200G,link=nvlink:4,fpga=3";
        let node = parse_shape(shape).unwrap().remove(0);
        let kinds = |kind: &str| node.zones.iter().filter(|zone| zone.kind == kind).count();
        assert_eq!((kinds("socket"), kinds("numa"), kinds("l3")), (2, 4, 8));
        let numa = &node.zones[3];
        assert_eq!((numa.parent, numa.cores().len(), numa.threads_per_core), (Some(0), 12, 2));
        assert_eq!(numa.cpus[..4], [12, 60, 13, 61]);
        let part = Resources::new([("cpu", 24_000), ("memory", 16 << 30)]).unwrap();
        assert_eq!((&numa.capacity, node.zones[4].parent, node.zones[6].parent), (&part, Some(1), Some(2)));
        assert_eq!(node.zones[6].cpus.len(), 12);
        let near: Vec<u32> = node.devices.iter().map(|device| device.numa_zone).collect();
        assert_eq!(near, [2, 2, 3, 3, 4, 4, 5, 5, 2, 3, 4, 5]);
        let groups: Vec<u32> = node.devices.iter().map(|device| device.known().link_group).collect();
        assert_eq!(groups, [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0]);
        assert_eq!(node.devices[9].known().gbps, 200);
        assert!(parse_shape("1x cpu=4,gpu=2:A10").unwrap()[0].zones.is_empty());
    }

    #[test]
    fn divided_devices_have_slices_and_profiles() {
        let node = parse_shape("1x cpu=8,mig=2:A100-40GB").unwrap().remove(0);
        assert_eq!((node.devices.len(), node.devices[7].known().link_group), (14, 1_002));
        let names: Vec<&str> = node.profiles.iter().map(|profile| profile.name.as_str()).collect();
        assert_eq!(names, ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]);
    }

    #[test]
    fn what_does_not_nest_is_refused() {
        for (text, expected) in [
            ("1x cpu=8,sockets=2", "sockets: say the number of NUMA zones as well"),
            ("1x cpu=8,sockets=2,numa=3", "numa: 3 zones do not lie evenly in 2 sockets"),
            ("1x cpu=9,numa=2", "cpu: no whole number of CPUs for each of 2 NUMA zones"),
            ("1x cpu=1500m,numa=1", "cpu: no whole number of CPUs"),
            ("1x cpu=6,numa=2,threads=2", "threads: 3 CPUs of a zone are no whole cores of 2"),
            ("1x cpu=256,numa=1", "128 cores in one zone, at most 64"),
            ("1x cpu=8,numa=2,l3=3", "l3: 3 groups do not lie evenly in 2 NUMA zones"),
            ("1x cpu=8,nic=1:fast", "nic: `fast` is no speed"),
            ("1x cpu=8,nic=80:1G", "nic: 80 is more than 64"),
            ("1x cpu=8,gpu=60:A,nic=8:1G", "68 devices, at most 64"),
            ("1x cpu=8,mig=1:A100", "`A100` does not end with the size of its memory"),
            ("1x cpu=8,numa=two", "numa: `two` is not a number"),
        ] {
            let error = parse_shape(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
