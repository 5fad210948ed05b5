//! `godel bench core`: the decisions alone, without input and output: each scenario of [`godel_model::scenarios`], timed.

use std::{path::PathBuf, time::Instant};

use clap::Args as ClapArgs;
use godel_client::{
    exit::Failure,
    output::{self, Format, View, ViewColumn},
};
use godel_model::scenarios::{ALL, Done, Scenario, Size};
use serde::Serialize;

use super::{
    cases::{per, show},
    report::wide,
};

/// `godel bench core`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Core {
    /// Only scenarios whose names contain this.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Runs of each scenario, after a warm-up run.
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
    /// Run once with a tenth of the size, as a check.
    #[arg(long)]
    quick: bool,
    /// Also write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Figures of one scenario; field names are stable.
#[derive(Debug, Serialize)]
struct DecisionCase {
    scenario: &'static str,
    what: &'static str,
    op: &'static str,
    ops: u64,
    samples: usize,
    ns_per_op_median: f64,
    ns_per_op_min: f64,
    /// At the median, on one core.
    ops_per_s: f64,
    /// Of all decisions: the same code gives the same.
    checksum: String,
}

pub(super) async fn run(wanted: Core, format: Format) -> Result<(), Failure> {
    let json = wanted.json.clone();
    show("core", format, json.as_deref(), async move { measure(&wanted) }).await
}

fn measure(wanted: &Core) -> Result<Vec<DecisionCase>, Failure> {
    let only = wanted.only.as_deref().unwrap_or_default();
    let chosen: Vec<&Scenario> = ALL.iter().filter(|scenario| scenario.name.contains(only)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = ALL.iter().map(|scenario| scenario.name).collect();
        return Err(Failure::usage(format!("unknown scenario `{only}`")).hint(names.join("\n")));
    }
    let n_samples = if wanted.quick { 1 } else { wanted.samples.max(1) };
    let size = if wanted.quick { Size::Small } else { Size::Full };
    let mut cases = Vec::with_capacity(chosen.len());
    for scenario in chosen {
        output::say(format!("{}: {}", scenario.name, scenario.what));
        cases.push(time(scenario, size, n_samples)?);
    }
    Ok(cases)
}

fn time(scenario: &Scenario, size: Size, n_samples: usize) -> Result<DecisionCase, Failure> {
    let (done, _) = once(scenario, size);
    let mut samples = Vec::with_capacity(n_samples);
    for _ in 0..n_samples {
        let (again, ns) = once(scenario, size);
        if again != done {
            return Err(Failure::failed(format!("{} is not deterministic", scenario.name)));
        }
        samples.push(per(ns, wide(done.n_ops)));
    }
    samples.sort_by(f64::total_cmp);
    let median = samples[samples.len() / 2];
    Ok(DecisionCase {
        scenario: scenario.name,
        what: scenario.what,
        op: scenario.op,
        ops: done.n_ops,
        samples: n_samples,
        ns_per_op_median: median,
        ns_per_op_min: samples[0],
        ops_per_s: per(1e9, median),
        checksum: format!("{:016x}", done.checksum),
    })
}

/// Prepared anew each time, since work can be done once. Nanoseconds of the work alone.
fn once(scenario: &Scenario, size: Size) -> (Done, f64) {
    let mut work = scenario.prepare(size);
    let start = Instant::now();
    work.run();
    let ns = start.elapsed().as_secs_f64() * 1e9;
    (work.done(), ns)
}

impl View for DecisionCase {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("SCENARIO", |view| view.scenario.to_owned()),
        ("OPS", |view| view.ops.to_string()),
        ("NS EACH", |view| format!("{:.0}", view.ns_per_op_median)),
        ("MIN", |view| format!("{:.0}", view.ns_per_op_min)),
        ("PER S", |view| format!("{:.0}", view.ops_per_s)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("OP", |view| view.op.to_owned()),
        ("WHAT", |view| view.what.to_owned()),
        ("CHECKSUM", |view| view.checksum.clone()),
    ];
}
