//! What benchmarks on real processes have in common that run once and report figures of their own.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use godel_client::{
    exit::Failure,
    output::{self, Format},
};
use godel_kit::shutdown;
use godel_proto::v1;
use serde::Serialize;

use super::{
    cases::{dir_name, in_dir},
    cluster::Layout,
    engine::StoreEngine,
    setup::at_least_one,
};

/// Flags of each of them.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct Once {
    /// Number of nodes, with 100 CPU and 400 GiB each.
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one)]
    pub(super) nodes: usize,
    /// Write the report to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for data and logs of the run; removed after success.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    data_dir: PathBuf,
    /// Set a configuration key in every process, as `scheduler.surplus=10`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// What a run comes to: field names are stable, the text is for people.
pub(super) trait Figures: Serialize + Sized {
    /// As lines.
    fn text(&self) -> String;

    /// Prints them, and writes them to a file if one is wanted.
    fn report(&self, format: Format, json: Option<&Path>) -> Result<(), Failure> {
        output::show(format, self, || self.text())?;
        json.map_or(Ok(()), |path| output::write_json(path, self))
    }

    /// Whether they are what they should be. They are reported first: who misses a target wants to see by how much.
    ///
    /// # Errors
    /// What is wrong with them.
    fn judge(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Once {
    /// Nodes as `godel agent --simulate` takes them.
    pub(super) fn shapes(&self) -> [String; 1] {
        [format!("{}x cpu=100,memory=400Gi", self.nodes)]
    }

    /// Runs, reports and judges. A run that fails has no figures.
    pub(super) async fn run<F: Figures>(
        &self,
        format: Format,
        bench: &'static str,
        measure: impl AsyncFnOnce(Layout) -> Result<F, Failure>,
    ) -> Result<(), Failure> {
        unless_interrupted(in_dir(&self.data_dir, &dir_name(bench), async |dir| {
            let layout = Layout {
                dir: dir.to_owned(),
                n_nodes: self.nodes,
                n_schedulers: 1,
                partition: v1::PartitionMode::Global,
                set: self.set.clone(),
                tls: false,
                by_user: false,
                engine: StoreEngine::Sled,
            };
            let figures = measure(layout).await?;
            figures.report(format, self.json.as_deref())?;
            figures.judge()
        }))
        .await
    }
}

/// Works until an interrupt: what is dropped then kills its processes.
pub(super) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let stop = shutdown::on_signals()
        .map_err(|error| Failure::failed(format!("signals cannot be caught: {error}")))?;
    tokio::select! {
        done = work => done,
        () = stop.cancelled() => Err(Failure::failed("interrupted")),
    }
}
