//! What every benchmark on real processes has in common: its cluster, its directory, its repetitions, its report.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use godel_client::{
    exit::Failure,
    output::{self, Format},
};
use godel_proto::v1;

use super::{
    cases::{dir_name, in_dir},
    cluster::Layout,
    engine::EngineFlags,
    once::{Figures as _, unless_interrupted},
    report::{Run, RunReport},
};

/// The partition mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PartitionFlag {
    /// Every scheduler uses all nodes alike.
    Global,
    /// Own nodes first, then the others.
    Preferred,
}

/// Flags of every benchmark on real processes.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct Setup {
    /// Number of nodes, with 100 CPU and 400 GiB each, or like those of the trace.
    #[arg(long, default_value_t = 10_000, value_parser = at_least_one)]
    pub(super) nodes: usize,
    /// Number of schedulers.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    schedulers: usize,
    /// The partition mode.
    #[arg(long, value_enum, default_value = "global")]
    partition: PartitionFlag,
    /// Switch off optimizations of the scheduler.
    #[arg(long, value_enum, value_delimiter = ',')]
    ablate: Vec<Ablation>,
    /// Number of runs, each with its own processes and store; medians are reported.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    repeat: usize,
    /// Write the report to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for data and logs of the runs; each is removed after success.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    data_dir: PathBuf,
    /// Set a configuration key in every process, as `scheduler.surplus=10`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

/// An optimization to switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ablation {
    /// The cache of feasible nodes.
    Cache,
    /// Limited scans.
    Scan,
}

impl Ablation {
    fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Scan => "scan",
        }
    }

    fn setting(self) -> &'static str {
        match self {
            Self::Cache => "scheduler.cache=false",
            Self::Scan => "scheduler.limit_scan=false",
        }
    }
}

impl Setup {
    /// Runs so often and prints the report. A run that fails ends it: then there are no figures.
    pub(super) async fn repeat(
        &self,
        format: Format,
        workload: &str,
        run: impl AsyncFn(Layout) -> Result<Run, Failure>,
    ) -> Result<(), Failure> {
        let runs = unless_interrupted(async {
            let mut runs = Vec::new();
            for number in 1..=self.repeat {
                if self.repeat > 1 {
                    output::say(format!("run {number} of {}", self.repeat));
                }
                let name = format!("{}-{number}", dir_name("run"));
                let one = in_dir(&self.data_dir, &name, async |dir| run(self.layout(dir)).await).await?;
                runs.push(self.named(workload, one));
            }
            Ok(runs)
        });
        RunReport::of(runs.await?)?.report(format, self.json.as_deref())
    }

    fn layout(&self, dir: &Path) -> Layout {
        let off = self.ablate.iter().map(|off| off.setting().to_owned());
        Layout {
            dir: dir.to_owned(),
            n_nodes: self.nodes,
            n_schedulers: self.schedulers,
            partition: match self.partition {
                PartitionFlag::Global => v1::PartitionMode::Global,
                PartitionFlag::Preferred => v1::PartitionMode::Preferred,
            },
            set: self.set.iter().cloned().chain(off).collect(),
            tls: false,
            by_user: false,
            engine: self.engine.engine(),
        }
    }

    fn named(&self, workload: &str, run: Run) -> Run {
        let half_full = run.half_full.map(|before| Box::new(self.named(workload, *before)));
        let ablate = self.ablate.iter().map(|off| off.name().to_owned()).collect();
        let engine = self.engine.engine().name();
        Run { workload: workload.to_owned(), engine, ablate, half_full, ..run }
    }
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("`{text}` is not a number above 0"))
}
