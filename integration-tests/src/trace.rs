//! The production trace in `data/openb`: parts of it as files for the binary and as units for raw clients.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use godel_proto::v1;

const MIB: i64 = 1 << 20;

/// Header of the node list.
const NODE_HEADER: &str = "sn,cpu_milli,memory_mib,gpu,model";

/// One task of the trace.
#[derive(Clone, Debug)]
pub struct Task {
    /// Name in the trace.
    pub name: String,
    /// Demand.
    pub cpu_milli: i64,
    /// Demand.
    pub memory_mib: i64,
    /// Devices.
    pub gpus: u32,
    /// Thousandths of each device.
    pub gpu_milli: u32,
    /// The line as it is in the file.
    line: String,
}

/// The task list and its header line.
#[derive(Clone, Debug)]
pub struct Tasks {
    header: String,
    /// In file order.
    pub tasks: Vec<Task>,
}

impl Tasks {
    /// The first `n_tasks` tasks that ask for at most one device. (A task that needs all devices of a node
    /// may or may not fit, by the order in which others were placed; these all fit on a cluster of
    /// [`write_nodes`] in any order.)
    pub fn first(n_tasks: usize) -> Result<Self> {
        let path = data_dir().join("openb_pod_list_default.csv");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let (header, rows) = text.split_once('\n').context("the task list has no header")?;
        let columns: HashMap<&str, usize> =
            header.trim().split(',').enumerate().map(|(idx, name)| (name, idx)).collect();
        let mut tasks = Vec::new();
        for line in rows.lines() {
            let task = parse_task(line, &columns).with_context(|| format!("task line {line:?}"))?;
            if task.gpus <= 1 && tasks.len() < n_tasks {
                tasks.push(task);
            }
        }
        Ok(Self { header: header.trim().to_owned(), tasks })
    }

    /// Writes them as a trace file of their own.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = format!("{}\n", self.header);
        for task in &self.tasks {
            text.push_str(&task.line);
            text.push('\n');
        }
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

impl Task {
    /// The unit that this task is submitted as, named `name`; runs `duration_ms`, or until stopped for 0.
    pub fn unit(&self, name: &str, uid: &str, duration_ms: u64) -> v1::UnitSpec {
        let devices = (self.gpus > 0).then(|| v1::DeviceRequest {
            kind: "gpu".into(),
            count: self.gpus,
            milli_per_device: Some(self.gpu_milli),
            models: Vec::new(),
            terms: None,
        });
        unit(name, uid, 1, resources(self.cpu_milli, self.memory_mib), devices, duration_ms)
    }
}

/// A batch unit of one task group.
pub fn unit(
    name: &str,
    uid: &str,
    replicas: u32,
    requests: v1::Resources,
    devices: Option<v1::DeviceRequest>,
    duration_ms: u64,
) -> v1::UnitSpec {
    v1::UnitSpec {
        meta: Some(v1::ObjectMeta { name: name.into(), uid: uid.into(), ..Default::default() }),
        workload_class: v1::WorkloadClass::Batch.into(),
        task_groups: vec![v1::TaskGroup {
            min_member: None,
            topology: None,
            name: "main".into(),
            replicas,
            template: Some(v1::Template {
                demand: Some(v1::Demand {
                    requests: Some(requests),
                    devices: devices.into_iter().collect(),
                    host_ports: Vec::new(),
                    zones: None,
                }),
                run: Some(v1::RunSpec {
                    simulated_duration_ms: (duration_ms > 0).then_some(duration_ms),
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }],
        ..Default::default()
    }
}

/// CPU and memory as `Resources`.
pub fn resources(cpu_milli: i64, memory_mib: i64) -> v1::Resources {
    v1::Resources {
        amounts: BTreeMap::from([("cpu".to_owned(), cpu_milli), ("memory".to_owned(), memory_mib * MIB)]),
    }
}

/// Writes a node list of `n_nodes` nodes of the trace, spread over the whole list so that every device model
/// is among them.
pub fn write_nodes(n_nodes: usize, path: &Path) -> Result<()> {
    let from = data_dir().join("openb_node_list_all_node.csv");
    let text = fs::read_to_string(&from).with_context(|| format!("reading {}", from.display()))?;
    let rows: Vec<&str> = text.lines().skip(1).filter(|line| !line.trim().is_empty()).collect();
    let stride = (rows.len() / n_nodes.max(1)).max(1);
    let mut list = format!("{NODE_HEADER}\n");
    for row in rows.iter().step_by(stride).take(n_nodes) {
        list.push_str(row);
        list.push('\n');
    }
    fs::write(path, list).with_context(|| format!("writing {}", path.display()))
}

fn parse_task(line: &str, columns: &HashMap<&str, usize>) -> Result<Task> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    let field = |name: &str| -> Result<&str> {
        let idx = columns.get(name).with_context(|| format!("no column {name}"))?;
        fields.get(*idx).copied().with_context(|| format!("no field {name}"))
    };
    Ok(Task {
        name: field("name")?.to_owned(),
        cpu_milli: field("cpu_milli")?.parse()?,
        memory_mib: field("memory_mib")?.parse()?,
        gpus: field("num_gpu")?.parse()?,
        gpu_milli: field("gpu_milli")?.parse()?,
        line: line.trim().to_owned(),
    })
}

fn data_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/openb")
}
