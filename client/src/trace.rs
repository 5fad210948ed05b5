//! Traces of tasks: CSV with the header
//! `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`.

use std::{collections::BTreeMap, io};

use godel_base::resources::{CPU, MEMORY};
use godel_proto::v1;

/// One task of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceTask {
    /// Unique in the trace.
    pub name: String,
    /// Milli-cores.
    pub cpu_milli: i64,
    /// MiB.
    pub memory_mib: i64,
    /// Devices.
    pub num_gpu: u32,
    /// Thousandths of each.
    pub gpu_milli: u32,
    /// Models accepted; empty accepts all.
    pub gpu_models: Vec<String>,
    /// Best effort in the trace's own terms: offline work.
    pub offline: bool,
    /// How long it ran, seconds; 0 when the trace does not say.
    pub lifetime_s: f64,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is no CSV.
    #[error("the trace cannot be read")]
    Csv(#[from] csv::Error),
    /// A line says something impossible.
    #[error("line {line}: {what}")]
    Line {
        /// From 1, the header included.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

/// Columns that every trace has.
const COLUMNS: [&str; 5] = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];

#[derive(serde::Deserialize)]
struct TraceLine {
    name: String,
    cpu_milli: i64,
    memory_mib: i64,
    num_gpu: u32,
    gpu_milli: u32,
    #[serde(default)]
    gpu_spec: String,
    #[serde(default)]
    qos: String,
    #[serde(default)]
    creation_time: Option<f64>,
    #[serde(default)]
    deletion_time: Option<f64>,
}

/// What a CSV error says, without its own position.
fn said(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => err.to_string(),
        _ => error.to_string(),
    }
}

/// Reads every task, in file order.
///
/// # Errors
/// The first line that is wrong, by number.
pub fn read(input: impl io::Read) -> Result<Vec<TraceTask>, Error> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
    let headers = reader.headers()?.clone();
    let has = |column: &&&str| headers.iter().any(|header| header == **column);
    if let Some(missing) = COLUMNS.iter().find(|column| !has(column)) {
        let what = format!("the header has no `{missing}`; expected are {}", COLUMNS.join(","));
        return Err(Error::Line { line: 1, what });
    }
    let mut tasks = Vec::new();
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let bad = |what: String| Error::Line { line, what };
        let row: TraceLine = record.deserialize(Some(&headers)).map_err(|error| bad(said(&error)))?;
        if let Some(first) = names.insert(row.name.clone(), line) {
            return Err(bad(format!("duplicate {}, first on line {first}", row.name)));
        }
        tasks.push(task(row).map_err(bad)?);
    }
    if tasks.is_empty() {
        return Err(Error::Line { line: 2, what: "no tasks after the header".to_owned() });
    }
    Ok(tasks)
}

fn task(row: TraceLine) -> Result<TraceTask, String> {
    if row.name.is_empty() {
        return Err("name is empty".to_owned());
    }
    if row.cpu_milli < 0 || row.memory_mib < 0 || row.memory_mib > i64::MAX >> 20 {
        return Err(format!("cpu_milli {} or memory_mib {} is out of range", row.cpu_milli, row.memory_mib));
    }
    if row.gpu_milli > 1000 {
        return Err(format!("gpu_milli: {} is more than 1000", row.gpu_milli));
    }
    if row.num_gpu > 1 && row.gpu_milli != 1000 {
        return Err(format!("gpu_milli: {} of {} GPUs; shares are of one GPU", row.gpu_milli, row.num_gpu));
    }
    let offline = match row.qos.as_str() {
        "LS" | "Guaranteed" | "Burstable" | "" => false,
        "BE" => true,
        other => {
            return Err(format!("qos: unknown value `{other}`; known are LS, Guaranteed, Burstable, BE"));
        }
    };
    let lifetime_s = match (row.creation_time, row.deletion_time) {
        (Some(created), Some(deleted)) => (deleted - created).max(0.0),
        _ => 0.0,
    };
    Ok(TraceTask {
        name: row.name,
        cpu_milli: row.cpu_milli,
        memory_mib: row.memory_mib,
        num_gpu: row.num_gpu,
        gpu_milli: row.gpu_milli,
        gpu_models: row.gpu_spec.split('|').filter(|model| !model.is_empty()).map(str::to_owned).collect(),
        offline,
        lifetime_s,
    })
}

impl TraceTask {
    /// As a unit of one replica in the guaranteed pool. `speed` divides the trace's lifetimes; none: it runs
    /// until stopped.
    pub fn unit(&self, uid: String, namespace: &str, speed: Option<f64>) -> v1::UnitSpec {
        let amounts = [(CPU.to_owned(), self.cpu_milli), (MEMORY.to_owned(), self.memory_mib << 20)]
            .into_iter()
            .collect();
        let gpus = (self.num_gpu > 0 && self.gpu_milli > 0).then(|| v1::DeviceRequest {
            kind: "gpu".to_owned(),
            count: self.num_gpu,
            milli_per_device: Some(self.gpu_milli),
            models: self.gpu_models.clone(),
            terms: None,
        });
        let simulated_duration_ms = speed.map(|speed| {
            let duration =
                std::time::Duration::try_from_secs_f64(self.lifetime_s / speed).unwrap_or_default();
            u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
        });
        let template = v1::Template {
            demand: Some(v1::Demand {
                requests: Some(v1::Resources { amounts }),
                devices: gpus.into_iter().collect(),
                host_ports: Vec::new(),
                zones: None,
            }),
            run: Some(v1::RunSpec { simulated_duration_ms, ..v1::RunSpec::default() }),
            ..v1::Template::default()
        };
        let class = if self.offline { v1::WorkloadClass::Batch } else { v1::WorkloadClass::Service };
        v1::UnitSpec {
            meta: Some(v1::ObjectMeta {
                namespace: namespace.to_owned(),
                name: self.name.clone(),
                uid,
                ..v1::ObjectMeta::default()
            }),
            workload_class: class.into(),
            // All alike, whatever the class's default: the order of the list is the order of the queue.
            priority: Some(1),
            task_groups: vec![v1::TaskGroup {
                replicas: 1,
                template: Some(template),
                ..v1::TaskGroup::default()
            }],
            min_member: Some(1),
            pool: v1::Pool::Guaranteed.into(),
            // The trace asks for nearly every GPU there is: spread out, the large tasks would find no room.
            profile: "most-allocated".to_owned(),
            ..v1::UnitSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";

    fn read_rows(rows: &str) -> Result<Vec<TraceTask>, Error> {
        read(format!("{HEADER}{rows}").as_bytes())
    }

    #[test]
    fn tasks_become_units() {
        let tasks = read_rows(
            "p-0,6000,12288,1,460,A10|T4,LS,Running,100,160.5,100\np-1,500,1,0,0,,BE,Pending,5,,\n",
        )
        .unwrap();
        let unit = tasks[0].unit("u".to_owned(), "trace", Some(10.0));
        assert_eq!(unit.workload_class(), v1::WorkloadClass::Service);
        assert_eq!(unit.pool(), v1::Pool::Guaranteed);
        let template = unit.task_groups[0].template.as_ref().unwrap();
        let demand = template.demand.as_ref().unwrap();
        assert_eq!(demand.requests.as_ref().unwrap().amounts["memory"], 12288 << 20);
        assert_eq!(demand.devices[0].models, ["A10", "T4"]);
        assert_eq!(template.run.as_ref().unwrap().simulated_duration_ms, Some(6050));
        let unit = tasks[1].unit("u".to_owned(), "trace", None);
        assert_eq!(unit.workload_class(), v1::WorkloadClass::Batch);
        let template = unit.task_groups[0].template.as_ref().unwrap();
        assert!(template.demand.as_ref().unwrap().devices.is_empty());
        assert_eq!(template.run.as_ref().unwrap().simulated_duration_ms, None);
    }

    #[test]
    fn wrong_lines_are_named() {
        for (rows, expected) in [
            ("p,6000,1,1,460,,LS,,0,1,0\np,1,1,0,0,,LS,,0,1,0\n", "line 3: duplicate p, first on line 2"),
            ("p,x,1,1,460,,LS,,0,1,0\n", "line 2: field 1: invalid digit found in string"),
            ("p,1,1,1,1001,,LS,,0,1,0\n", "line 2: gpu_milli: 1001 is more than 1000"),
            ("p,1,1,2,500,,LS,,0,1,0\n", "line 2: gpu_milli: 500 of 2 GPUs; shares are of one GPU"),
            ("p,-1,1,0,0,,LS,,0,1,0\n", "line 2: cpu_milli -1 or memory_mib 1 is out of range"),
            (
                "p,1,1,0,0,,ZZ,,0,1,0\n",
                "line 2: qos: unknown value `ZZ`; known are LS, Guaranteed, Burstable, BE",
            ),
            (",1,1,0,0,,LS,,0,1,0\n", "line 2: name is empty"),
        ] {
            assert_eq!(read_rows(rows).unwrap_err().to_string(), expected);
        }
        assert!(matches!(read_rows("p,1\n"), Err(Error::Csv(_))));
        assert_eq!(read_rows("").unwrap_err().to_string(), "line 2: no tasks after the header");
        let other = read("a,b\n1,2\n".as_bytes()).unwrap_err().to_string();
        assert!(
            other.starts_with("line 1: the header has no `name`; expected are name,cpu_milli"),
            "{other}"
        );
    }
}
