//! What every benchmark on real processes has in common: its cluster, its directory, its repetitions, its report.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use godel_client::{
    exit::Failure,
    output::{self, Format},
};
use godel_kit::shutdown;
use godel_proto::v1;

use super::{
    cluster::Layout,
    report::{Report, Run},
};

/// The partition mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
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
    partition: Mode,
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
        let stop = shutdown::on_signals()
            .map_err(|error| Failure::failed(format!("signals cannot be caught: {error}")))?;
        let mut runs = Vec::new();
        for number in 1..=self.repeat {
            if self.repeat > 1 {
                output::say(format!("run {number} of {}", self.repeat));
            }
            // What is dropped kills its processes.
            let one = tokio::select! {
                one = self.one(number, &run) => one?,
                () = stop.cancelled() => return Err(Failure::failed("interrupted")),
            };
            runs.push(self.named(workload, one));
        }
        let report = Report::of(runs)?;
        match format {
            Format::Table | Format::Wide => output::print(&report.text())?,
            Format::Json | Format::Yaml => output::print_value(format, &report)?,
        }
        self.json.as_deref().map_or(Ok(()), |path| output::write_json(path, &report))
    }

    /// One run in a directory of its own.
    async fn one(
        &self,
        number: usize,
        run: &impl AsyncFn(Layout) -> Result<Run, Failure>,
    ) -> Result<Run, Failure> {
        let dir = self.data_dir.join(format!("run-{}-{number}", std::process::id()));
        let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", dir.display()));
        std::fs::create_dir_all(&dir).map_err(failed)?;
        let off = self.ablate.iter().map(|off| off.setting().to_owned());
        let layout = Layout {
            dir: dir.clone(),
            n_nodes: self.nodes,
            n_schedulers: self.schedulers,
            partition: match self.partition {
                Mode::Global => v1::PartitionMode::Global,
                Mode::Preferred => v1::PartitionMode::Preferred,
            },
            set: self.set.iter().cloned().chain(off).collect(),
        };
        let run = run(layout).await;
        let run = run.map_err(|failure| failure.during(format!("the run in {}", dir.display())))?;
        std::fs::remove_dir_all(&dir).map_err(failed)?;
        Ok(run)
    }

    fn named(&self, workload: &str, run: Run) -> Run {
        let half_full = run.half_full.map(|before| Box::new(self.named(workload, *before)));
        let ablate = self.ablate.iter().map(|off| off.name().to_owned()).collect();
        Run { workload: workload.to_owned(), ablate, half_full, ..run }
    }
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("`{text}` is not a number above 0"))
}
