//! Nodes to host: read from a trace's node list, or written as `100x cpu=32,memory=64Gi,gpu=8:A10`.

use std::{collections::BTreeMap, fs::File, io, path::Path};

use godel_base::{
    quantity,
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    demand::N_DEVICES_MAX,
    names::{self, BadName, NAME_LEN_MAX},
    node::{Device, DeviceProfile, MAX_RUNNING_UNITS},
    zone::Zone,
};
use godel_membership::agent_admission::Has;
use godel_proto::v1;
use godel_wire::to_proto;

use self::zones::ShapeZones;

mod zones;

/// Nodes that one process hosts at most.
pub const N_NODES_MAX: usize = 200_000;
/// Longest number behind the prefix of a node's name, with its hyphen.
const NUMBER_LEN_MAX: usize = 7;
/// Attribute under which a node's GPU model is found.
pub const GPU_MODEL: &str = "gpu-model";

/// A node as its agent knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDef {
    /// Unique name.
    pub name: String,
    /// Identity of this installation, stable over restarts.
    pub uid: String,
    /// What it has for running units.
    pub capacity: Resources,
    /// By index.
    pub devices: Vec<Device>,
    /// By index.
    pub zones: Vec<Zone>,
    /// The kernel's numbers of the NUMA nodes that the memory of zones is from, by index of the zone; none of a simulated node.
    pub memory_nodes: BTreeMap<usize, u32>,
    /// The variables by which programs are told the GPUs that they may see, with the number of each there, by index of the device;
    /// none of a simulated node.
    pub visible: BTreeMap<usize, (&'static str, u32)>,
    /// The ways in which its devices can be divided.
    pub profiles: Vec<DeviceProfile>,
    /// Facts found.
    pub attributes: BTreeMap<String, String>,
    /// Where running units of other nodes reach those of this one; empty: not known.
    pub address: String,
    /// Most running units that it takes; `None`: as the process is configured.
    pub max_running_units: Option<u32>,
}

impl NodeDef {
    /// A node with a uid that follows from its name.
    pub fn new(name: impl Into<String>, capacity: Resources) -> Self {
        let name = name.into();
        let uid = stable_uid(&name);
        Self { name, uid, capacity, ..Self::default() }
    }

    /// Returns what the node says of itself when it registers.
    pub fn report(&self) -> v1::NodeReport {
        v1::NodeReport {
            capacity: Some(to_proto::resources(&self.capacity)),
            devices: self.devices.iter().map(to_proto::device).collect(),
            zones: self.zones.iter().map(to_proto::zone).collect(),
            profiles: self.profiles.iter().map(to_proto::profile).collect(),
            ready: true,
            attributes: self.attributes.clone().into_iter().collect(),
            max_running_units: self.max_running_units,
            address: self.address.clone(),
            ..v1::NodeReport::default()
        }
    }

    /// What assignments are checked against.
    pub(crate) fn has(&self) -> Has {
        let (cpu_milli, memory) = (self.capacity.get(CPU), self.capacity.get(MEMORY));
        let n_running_units = self.max_running_units.unwrap_or(MAX_RUNNING_UNITS);
        let assigned = self.zones.iter().enumerate().filter(|(_, zone)| zone.is_assigned());
        let zones = assigned.map(|(at, _)| at).collect();
        Has { cpu_milli, memory, n_devices: self.devices.len(), zones, n_running_units }
    }

    /// Adds `n` GPUs of one model.
    #[must_use]
    pub fn with_gpus(mut self, n: usize, model: &str) -> Self {
        let gpu = || Device { kind: "gpu".to_owned(), model: model.to_owned(), numa_zone: 0, details: None };
        self.devices.extend(std::iter::repeat_with(gpu).take(n));
        if n > 0 && !model.is_empty() {
            self.attributes.insert(GPU_MODEL.to_owned(), model.to_owned());
        }
        self
    }
}

/// The first node whose name state would refuse, and why.
pub(crate) fn wrong_name(nodes: &[NodeDef]) -> Option<(String, BadName)> {
    nodes.iter().find_map(|node| Some((node.name.clone(), names::name(&node.name, NAME_LEN_MAX).err()?)))
}

/// Why nodes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list cannot be read.
    #[error("the node list cannot be read")]
    Csv(#[from] csv::Error),
    /// The list cannot be opened.
    #[error("the node list cannot be opened")]
    File(#[from] io::Error),
    /// A line says something impossible.
    #[error("line {line}: {what}")]
    Line {
        /// From 1, the header included.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// A shape says something impossible.
    #[error("`{text}`: {what}")]
    Shape {
        /// As written.
        text: String,
        /// What is wrong.
        what: String,
    },
}

/// A uid that follows from the name: the same node is found again whatever process hosts it.
pub fn stable_uid(name: &str) -> String {
    // FNV-1a, twice with different starts: no secret, only a spread over 122 bits.
    let fnv = |start: u64| {
        name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (high, low) = (fnv(0xcbf2_9ce4_8422_2325), fnv(0x8422_2325_cbf2_9ce4));
    let bytes = ((u128::from(high) << 64) | u128::from(low)).to_be_bytes();
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

#[derive(serde::Deserialize)]
struct Line {
    sn: String,
    cpu_milli: i64,
    memory_mib: i64,
    gpu: usize,
    model: String,
    #[serde(default)]
    max_running_units: Option<u32>,
}

/// Columns of a node list, in any order; `max_running_units` may stand beside them.
const COLUMNS: [&str; 5] = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];

/// Reads the nodes of a list, as [`read_csv`] does.
///
/// # Errors
/// It cannot be opened or read, or a line is wrong.
pub fn read_file(file: &Path) -> Result<Vec<NodeDef>, Error> {
    read_csv(File::open(file)?)
}

/// Reads a node list: CSV with the header `sn,cpu_milli,memory_mib,gpu,model`, and `max_running_units` where that is given. Never without nodes: who asks for simulated
/// ones must not get a real one.
///
/// # Errors
/// The first line that is wrong, by number: also one that is no header.
pub fn read_csv(input: impl io::Read) -> Result<Vec<NodeDef>, Error> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
    let headers = reader.headers()?.clone();
    let missing = COLUMNS.into_iter().find(|column| !headers.iter().any(|header| header == *column));
    if let Some(missing) = missing {
        let found = headers.iter().collect::<Vec<_>>().join(",");
        let what =
            format!("expected the header `{}`, found `{found}`: {missing} is missing", COLUMNS.join(","));
        return Err(Error::Line { line: 1, what });
    }
    let mut nodes = Vec::new();
    let mut names = BTreeMap::new();
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let bad = |what: String| Error::Line { line, what };
        let row: Line = record.deserialize(Some(&headers)).map_err(|error| bad(describe(&error)))?;
        let memory = row.memory_mib.checked_mul(1 << 20).filter(|bytes| *bytes >= 0);
        let memory = memory.ok_or_else(|| bad(format!("memory_mib: {} is out of range", row.memory_mib)))?;
        let capacity = Resources::new([(CPU, row.cpu_milli), (MEMORY, memory)])
            .map_err(|name| bad(format!("{name} is negative")))?;
        if row.gpu > N_DEVICES_MAX {
            return Err(bad(format!("gpu: {} is more than {N_DEVICES_MAX}", row.gpu)));
        }
        if row.sn.is_empty() {
            return Err(bad("sn is empty".to_owned()));
        }
        names::name(&row.sn, NAME_LEN_MAX)
            .map_err(|wrong| bad(format!("sn: `{}` cannot be a node's name: {wrong}", row.sn)))?;
        if let Some(first) = names.insert(row.sn.clone(), line) {
            return Err(bad(format!("duplicate {}, first on line {first}", row.sn)));
        }
        let node = NodeDef::new(row.sn.as_str(), capacity).with_gpus(row.gpu, &row.model);
        nodes.push(NodeDef { max_running_units: row.max_running_units, ..node });
        if nodes.len() > N_NODES_MAX {
            return Err(bad(format!("more than {N_NODES_MAX} nodes")));
        }
    }
    if nodes.is_empty() {
        return Err(Error::Line { line: 2, what: "no nodes after the header".to_owned() });
    }
    Ok(nodes)
}

/// What a CSV error says, without its own position.
pub fn describe(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => err.to_string(),
        _ => error.to_string(),
    }
}

/// Reads `N x SHAPE`, where a shape is `key=value` pairs: `cpu=32`, `memory=64Gi`, `gpu=8:A10`, `name=rack-a`
/// (prefix of the names), `max_running_units=100`, `label.KEY=VALUE`, `sockets=2,numa=4,l3=8,threads=2` (zones of the whole node),
/// `link=nvlink:4` (how many GPUs are joined), `nic=4:200G`, `mig=2:A100-40GB` (divided GPUs), and any other resource by its name.
///
/// # Errors
/// What is wrong with it.
pub fn parse_shape(text: &str) -> Result<Vec<NodeDef>, Error> {
    let bad = |what: String| Error::Shape { text: text.to_owned(), what };
    let (count, shape) = text
        .split_once('x')
        .ok_or_else(|| bad("expected COUNT x SHAPE, as `100x cpu=32,memory=64Gi,gpu=8:A10`".to_owned()))?;
    let count: usize =
        count.trim().parse().map_err(|_| bad(format!("`{}` is not a number of nodes", count.trim())))?;
    if count == 0 || count > N_NODES_MAX {
        return Err(bad(format!("the number of nodes must be 1 to {N_NODES_MAX}")));
    }
    let mut prefix = "node".to_owned();
    let (mut gpus, mut model) = (0, String::new());
    let mut amounts = Vec::new();
    let mut attributes = BTreeMap::new();
    let mut max_running_units = None;
    let mut of_zones = ShapeZones::default();
    for pair in shape.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| bad(format!("`{pair}` is not of the form key=value")))?;
        if let Some(taken) = of_zones.take(key, value) {
            taken.map_err(&bad)?;
            continue;
        }
        match key {
            "name" => prefix = value.to_owned(),
            "gpu" => {
                let (number, of) = value.split_once(':').unwrap_or((value, ""));
                gpus = number.parse().map_err(|_| bad(format!("gpu: `{number}` is not a number")))?;
                model = of.to_owned();
                if gpus > N_DEVICES_MAX {
                    return Err(bad(format!("gpu: {gpus} is more than {N_DEVICES_MAX}")));
                }
            }
            "max_running_units" => {
                let most = value.parse().map_err(|_| bad(format!("{key}: `{value}` is not a number")))?;
                max_running_units = Some(most);
            }
            _ => match key.strip_prefix("label.") {
                Some(label) => {
                    attributes.insert(label.to_owned(), value.to_owned());
                }
                None => {
                    names::asked(key).map_err(|wrong| bad(format!("{key}: {wrong}")))?;
                    let amount =
                        quantity::parse(key, value).map_err(|error| bad(format!("{key}: {error}")))?;
                    amounts.push((key.to_owned(), amount));
                }
            },
        }
    }
    let capacity = Resources::new(amounts).map_err(|name| bad(format!("{name} is negative")))?;
    if capacity.get(CPU) == 0 {
        return Err(bad("cpu is missing".to_owned()));
    }
    names::name(&prefix, NAME_LEN_MAX - NUMBER_LEN_MAX).map_err(|wrong| bad(format!("name: {wrong}")))?;
    let zones = of_zones.zones(&capacity).map_err(bad)?;
    let profiles = of_zones.profiles().map_err(bad)?;
    let gpus = NodeDef::default().with_gpus(gpus, &model);
    let devices = of_zones.devices(gpus.devices).map_err(bad)?;
    attributes = gpus.attributes.into_iter().chain(attributes).collect();
    let width = (count - 1).to_string().len().max(4);
    Ok((0..count)
        .map(|idx| {
            let node = NodeDef::new(format!("{prefix}-{idx:0width$}"), capacity.clone());
            NodeDef {
                attributes: attributes.clone(),
                devices: devices.clone(),
                zones: zones.clone(),
                profiles: profiles.clone(),
                max_running_units,
                ..node
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "sn,cpu_milli,memory_mib,gpu,model\n";

    #[test]
    fn a_list_gives_nodes_with_devices() {
        let text = format!("{HEADER}n-0,32000,262144,0,\nn-1,96000,1024,2,V100M16\n");
        let nodes = read_csv(text.as_bytes()).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes[0].capacity.get(CPU), nodes[0].capacity.get(MEMORY)), (32_000, 256 << 30));
        assert!(nodes[0].devices.is_empty() && nodes[0].attributes.is_empty());
        assert_eq!(nodes[1].devices.len(), 2);
        assert_eq!(nodes[1].devices[1].model, "V100M16");
        assert_eq!(nodes[1].attributes[GPU_MODEL], "V100M16");
        let text = "max_running_units,sn,cpu_milli,memory_mib,gpu,model\n20,n-0,1,1,0,\n,n-1,1,1,0,\n";
        let nodes = read_csv(text.as_bytes()).unwrap();
        assert_eq!((nodes[0].max_running_units, nodes[1].max_running_units), (Some(20), None));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (rows, expected) in [
            ("n-0,32000,262144,0,\nn-1,many,1,0,\n", "line 3: field 1: invalid digit found in string"),
            ("n-0,-5,1,0,\n", "line 2: cpu is negative"),
            ("n-0,5,-1,0,\n", "line 2: memory_mib: -1 is out of range"),
            ("n-0,5,1,65,A10\n", "line 2: gpu: 65 is more than 64"),
            (",5,1,0,\n", "line 2: sn is empty"),
            (
                "Rack_1,5,1,0,\n",
                "line 2: sn: `Rack_1` cannot be a node's name: `R` is not allowed: lower-case letters, digits, `-` and `.` are",
            ),
            ("", "line 2: no nodes after the header"),
            ("n,5,1,0,\nn,5,1,0,\n", "line 3: duplicate n, first on line 2"),
        ] {
            let error = read_csv(format!("{HEADER}{rows}").as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        assert!(matches!(read_csv(format!("{HEADER}n,5\n").as_bytes()), Err(Error::Csv(_))));
        // What is no header is never taken for one, whatever follows.
        for (text, found, missing) in [
            ("name,cpu\nn,5\n", "name,cpu", "sn"),
            ("n-0,32000,262144,0,\n", "n-0,32000,262144,0,", "sn"),
            ("n-0,32000,262144,0,\nn-1,32000,262144,0,\n", "n-0,32000,262144,0,", "sn"),
            ("sn,cpu_milli,memory_mib,gpu\nn,1,1,0\n", "sn,cpu_milli,memory_mib,gpu", "model"),
            ("", "", "sn"),
            ("\n\n", "", "sn"),
        ] {
            let error = read_csv(text.as_bytes()).unwrap_err().to_string();
            let header = "expected the header `sn,cpu_milli,memory_mib,gpu,model`";
            assert_eq!(error, format!("line 1: {header}, found `{found}`: {missing} is missing"));
        }
    }

    #[test]
    fn shapes_give_any_number_of_nodes() {
        let nodes = parse_shape("3x cpu=32,memory=64Gi,gpu=8:A10,fpga=2,label.rack=r1").unwrap();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["node-0000", "node-0001", "node-0002"]);
        assert_eq!((nodes[0].capacity.get(CPU), nodes[0].capacity.get("fpga")), (32_000, 2));
        assert_eq!((nodes[2].devices.len(), nodes[2].attributes["rack"].as_str()), (8, "r1"));
        assert_eq!(parse_shape("2 x name=gpu,cpu=500m").unwrap()[1].name, "gpu-0001");
        let most = |text: &str| parse_shape(text).unwrap()[0].max_running_units;
        assert_eq!((most("1x cpu=1"), most("1x cpu=1,max_running_units=0")), (None, Some(0)));
        for (text, expected) in [
            ("many", "`many`: expected COUNT x SHAPE"),
            ("0x cpu=1", "the number of nodes must be 1 to"),
            ("yx cpu=1", "`y` is not a number of nodes"),
            ("1x memory=1Gi", "cpu is missing"),
            ("1x cpu=1,mem=1Gi", "mem: did you mean `memory`?"),
            ("1x cpu=1,memory=1GB", "memory: `1GB` is no memory quantity"),
            ("1x cpu", "`cpu` is not of the form key=value"),
            ("1x cpu=1,max_running_units=-1", "max_running_units: `-1` is not a number"),
            ("1x cpu=1,gpu=99:A10", "gpu: 99 is more than 64"),
            ("1x cpu=1,name=Rack_1", "name: `R` is not allowed: lower-case letters, digits"),
            ("1x cpu=1,name=", "name: empty"),
            ("", "expected COUNT x SHAPE"),
        ] {
            let error = parse_shape(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn uids_follow_from_names() {
        assert_eq!(stable_uid("node-0000"), stable_uid("node-0000"));
        assert_ne!(stable_uid("node-0000"), stable_uid("node-0001"));
        let uid = uuid::Uuid::parse_str(&stable_uid("node-0000")).unwrap();
        assert_eq!(uid.get_version_num(), 8);
    }
}
