//! `godel bench chart`: the charts of the suite, from the JSON that its runs wrote.

mod draw;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{Args as ClapArgs, ValueEnum};
use serde::Deserialize;

pub(super) use self::draw::{Bar, ChartLine, by_hour, by_schedulers};
use godel_client::exit::{Code, Failure};

/// Pods per second by schedulers, as the paper and the articles about it give them: one shard on 20,000 nodes, three on
/// clusters whose size they do not give, and the peak at five on 10,000 nodes, beyond which it falls.
pub(super) const PUBLISHED: [(f64, f64); 3] = [(1.0, 2_000.0), (3.0, 4_000.0), (5.0, 4_600.0)];

/// `godel bench chart`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ChartArgs {
    /// The horizontal axis.
    #[arg(value_enum)]
    over: ChartAxis,
    /// JSON files of runs, written by the other verbs.
    #[arg(required = true, value_name = "FILE")]
    runs: Vec<PathBuf>,
    /// Output file of the chart.
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
}

/// What varies from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ChartAxis {
    /// The number of nodes.
    Nodes,
    /// The number of schedulers; conflicts too.
    Schedulers,
    /// The share of online work.
    Online,
    /// The parts that are switched off.
    Ablation,
}

/// What a chart needs of a run.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    workload: String,
    nodes: f64,
    schedulers: f64,
    placements: f64,
    placements_per_s: f64,
    conflicts: f64,
    #[serde(default)]
    online_share: f64,
    #[serde(default)]
    ablate: Vec<String>,
}

/// A file: one run (the medians of several may bring those along), or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum ChartDocument {
    One(Run),
    Several { runs: Vec<Run> },
    List(Vec<ChartDocument>),
}

pub(super) fn run(wanted: &ChartArgs) -> Result<(), Failure> {
    let mut runs = Vec::new();
    for path in &wanted.runs {
        let failed = |why: String| Failure::new(Code::Usage, format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let document =
            serde_json::from_str(&text).map_err(|_| failed("no runs of a benchmark".to_owned()))?;
        flatten(document, &mut runs);
    }
    write(&wanted.svg, &draw(wanted.over, runs)?)
}

/// Writes a file that was asked for.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::failed(format!("{} cannot be written: {error}", path.display())))
}

fn flatten(document: ChartDocument, runs: &mut Vec<Run>) {
    match document {
        ChartDocument::One(run) => runs.push(run),
        ChartDocument::Several { runs: several } => runs.extend(several),
        ChartDocument::List(documents) => documents.into_iter().for_each(|document| flatten(document, runs)),
    }
}

fn draw(over: ChartAxis, runs: Vec<Run>) -> Result<String, Failure> {
    let rate = |run: &Run| run.placements_per_s;
    let svg = match over {
        ChartAxis::Nodes => draw::by_cluster_size(&lines(&runs, "", |run| run.nodes, rate)),
        ChartAxis::Schedulers => {
            let percent = |run: &Run| 100.0 * run.conflicts / (run.placements + run.conflicts).max(1.0);
            let conflicts = lines(&runs, ", conflicts", |run| run.schedulers, percent);
            let published = [published()];
            by_schedulers(&lines(&runs, "", |run| run.schedulers, rate), &conflicts, &published)
        }
        ChartAxis::Online => draw::by_online_share(&lines(&runs, "", |run| run.online_share, rate)),
        ChartAxis::Ablation => {
            let name = |ablate: &[String]| match ablate {
                [] => "complete".to_owned(),
                some => format!("without {}", some.join(", ")),
            };
            let bar = |run: &Run| Bar { name: name(&run.ablate), value: run.placements_per_s };
            draw::ablation(&runs.iter().map(bar).collect::<Vec<_>>())
        }
    };
    svg.map_err(|error| Failure::failed(error.to_string()))
}

/// What was published, as a line.
pub(super) fn published() -> ChartLine {
    ChartLine { name: "clusters of several sizes".to_owned(), points: PUBLISHED.to_vec() }
}

/// A line for each workload.
fn lines(runs: &[Run], suffix: &str, x: fn(&Run) -> f64, y: impl Fn(&Run) -> f64) -> Vec<ChartLine> {
    let mut by_workload: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for run in runs {
        by_workload.entry(&run.workload).or_default().push((x(run), y(run)));
    }
    let line = |(workload, mut points): (&str, Vec<(f64, f64)>)| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        ChartLine { name: format!("{workload}{suffix}"), points }
    };
    by_workload.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"{"workload": "service", "nodes": 1000, "schedulers": 1, "placements": 10,
        "placements_per_s": 5.5, "conflicts": 0, "ablate": ["cache"], "runs": [{"irrelevant": 1}]}"#;
    const SEVERAL: &str = r#"{"knee": 2, "runs": [
        {"workload": "gang", "nodes": 1000, "schedulers": 4, "placements": 90, "placements_per_s": 9, "conflicts": 10},
        {"workload": "gang", "nodes": 1000, "schedulers": 2, "placements": 90, "placements_per_s": 7, "conflicts": 0}]}"#;

    #[test]
    fn one_run_several_and_lists_of_both_are_read() {
        let mut runs = Vec::new();
        flatten(serde_json::from_str(&format!("[{ONE}, {SEVERAL}]")).unwrap(), &mut runs);
        let gangs = &lines(&runs, "", |run| run.schedulers, |run| run.placements_per_s)[0];
        assert_eq!(gangs, &ChartLine { name: "gang".to_owned(), points: vec![(2.0, 7.0), (4.0, 9.0)] });
        assert_eq!((runs.len(), runs[0].placements_per_s), (3, 5.5));
        for (over, expected) in [
            (ChartAxis::Nodes, "service"),
            (ChartAxis::Schedulers, "gang, conflicts"),
            (ChartAxis::Online, "online, %"),
            (ChartAxis::Ablation, "without cache"),
        ] {
            assert!(draw(over, runs.clone()).unwrap().contains(expected), "{over:?}");
        }
        assert!(serde_json::from_str::<ChartDocument>("{}").is_err());
    }
}
