//! `godel bench suite`: every target of the design in one table. Runs the other verbs one after the other, as
//! processes of their own, and lays what they report beside what is demanded and what the machine bears.
//!
//! [`targets`] says what is run and demanded, [`judge`] decides, [`report`] writes. A verb that fails leaves no figure
//! and the others go on; the suite then fails at its end.

mod judge;
mod report;
mod targets;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use godel_client::{
    exit::Failure,
    output::{self, Format},
    usage,
};
use serde_json::Value;
use tokio::process::Command;

use self::{
    judge::{Check, Figure, SuiteFigures},
    report::SuiteReport,
    targets::{CHARTS, Chart, RUNS, Run, TARGETS, Target},
};
use super::chart;

/// `godel bench suite`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Suite {
    /// Run a subset in two minutes, each row once and short.
    #[arg(long)]
    quick: bool,
    /// Only these rows of the table, as `P1,P10`.
    #[arg(long, value_delimiter = ',', value_name = "ROW,…", value_parser = row)]
    only: Vec<String>,
    /// Output directory for reports, charts and logs of the runs.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    out: PathBuf,
}

fn row(id: &str) -> Result<String, String> {
    let known = TARGETS.iter().any(|target| target.id == id && !target.checks.is_empty());
    if known { Ok(id.to_owned()) } else { Err(format!("`{id}` is not a measurable row")) }
}

pub(super) async fn run(wanted: Suite, format: Format) -> Result<(), Failure> {
    let suite = SuiteBench::new(&wanted)?;
    let (load_average, started) = (usage::load_average(), Instant::now());
    let runs = chosen(&wanted);
    let mut figures = SuiteFigures::default();
    for (number, (run, args)) in (1..).zip(&runs) {
        output::say(format!("[{number}/{}] godel bench {args}", runs.len()));
        let (report, took) = suite.run(run, args).await;
        output::say(format!("        {} ({:.0} s)", headline(&report), took.as_secs_f64()));
        figures.add(run.key, report);
    }
    let charts = suite.charts(&figures).await?;
    let report = SuiteReport::new(&wanted, load_average, started.elapsed(), &runs, &figures, charts);
    output::write_json(&wanted.out.join("report.json"), &report)?;
    chart::write(&wanted.out.join("report.md"), &report.markdown())?;
    output::show(format, &report, || report.markdown())?;
    let failed: Vec<&str> = figures.failed().map(|(run, _)| run).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let hint = format!("their logs are in {}", suite.dir.display());
    Err(Failure::failed(format!("no figures of: {}", failed.join(", "))).hint(hint))
}

/// The runs with their arguments, in order.
fn chosen(wanted: &Suite) -> Vec<(&'static Run, &'static str)> {
    let needed = |run: &Run| wanted.only.is_empty() || wanted.targets().any(|target| target.needs(run.key));
    let args = |run: &'static Run| if wanted.quick { run.quick } else { Some(run.args) };
    RUNS.iter().filter(|run| needed(run)).filter_map(|run| Some((run, args(run)?))).collect()
}

impl Suite {
    /// The rows of the table.
    fn targets(&self) -> impl Iterator<Item = &'static Target> {
        let wanted = |target: &&Target| self.only.is_empty() || self.only.iter().any(|id| id == target.id);
        TARGETS.iter().filter(wanted)
    }
}

impl Target {
    fn needs(&self, run: &str) -> bool {
        self.checks
            .iter()
            .flat_map(Check::runs)
            .chain(self.limits.iter().map(|limit| limit.of.run))
            .any(|key| key == run)
    }
}

struct SuiteBench {
    program: PathBuf,
    out: PathBuf,
    /// Of the reports and logs of the runs.
    dir: PathBuf,
}

impl SuiteBench {
    fn new(wanted: &Suite) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("this program cannot be found: {error}")))?;
        let dir = wanted.out.join("runs");
        fs::create_dir_all(&dir)
            .map_err(|error| Failure::failed(format!("{} cannot be made: {error}", dir.display())))?;
        Ok(Self { program, out: wanted.out.clone(), dir })
    }

    /// Runs a verb. What it reports, or why it failed; and how long it took.
    async fn run(&self, run: &Run, args: &str) -> (Result<Value, String>, Duration) {
        let started = Instant::now();
        let json = self.json(run.key);
        // An earlier suite's report is not this one's.
        let _none = fs::remove_file(&json);
        let json_arg = json.display().to_string();
        let words = args.split(' ').chain(["--json", &json_arg]);
        let ended = self.verb(run.key, words).await;
        (ended.and_then(|()| read(&json)), started.elapsed())
    }

    /// Draws what has figures; the names of the files.
    async fn charts(&self, figures: &SuiteFigures) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for Chart { name, over, runs } in CHARTS {
            let drawn: Vec<String> = runs
                .iter()
                .filter(|run| figures.has(run))
                .map(|run| self.json(run).display().to_string())
                .collect();
            if drawn.is_empty() {
                continue;
            }
            let file = format!("{name}.svg");
            let svg = self.out.join(&file).display().to_string();
            let words = ["chart", over].into_iter().chain(drawn.iter().map(String::as_str));
            let drawn = self.verb(&format!("chart-{name}"), words.chain(["--svg", &svg])).await;
            drawn.map_err(|why| Failure::failed(format!("no chart {name}: {why}")))?;
            names.push(file);
        }
        Ok(names)
    }

    /// Runs this program to its end, with a log of its own. An interrupt of the terminal reaches it as well as this.
    async fn verb<'a>(&self, name: &str, words: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let log = self.dir.join(format!("{name}.log"));
        let failed = |error: std::io::Error| format!("it cannot be started: {error}");
        let stderr = File::create(&log).map_err(failed)?;
        let stdout = stderr.try_clone().map_err(failed)?;
        let ended = Command::new(&self.program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .status()
            .await
            .map_err(failed)?;
        if ended.success() { Ok(()) } else { Err(reason(&fs::read_to_string(&log).unwrap_or_default())) }
    }

    fn json(&self, run: &str) -> PathBuf {
        self.dir.join(format!("{run}.json"))
    }
}

fn read(json: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(json).map_err(|error| format!("it wrote no report: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("its report cannot be read: {error}"))
}

/// Why a verb failed, in one line: what it said last.
fn reason(log: &str) -> String {
    let said = log.rfind("error: ").map_or(log, |at| &log[at + "error: ".len()..]);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { "it ended without an error message".to_owned() } else { lines.join("; ") }
}

/// The first figure of a report, for who waits.
fn headline(report: &Result<Value, String>) -> String {
    let report = match report {
        Ok(report) => report,
        Err(why) => return format!("no figure: {why}"),
    };
    let mut figures = SuiteFigures::default();
    figures.add("", Ok(report.clone()));
    let shown =
        [("/placements_per_s", "/s"), ("/cpu_us_per_placement", "CPU-µs"), ("/latency_ms/p99", "ms at p99")];
    let shown = shown.into_iter().filter_map(|(at, unit)| {
        figures.number(Figure { run: "", at }).ok().map(|figure| judge::with_unit(figure, unit))
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "done".to_owned() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn suite(quick: bool, only: &[&str]) -> Suite {
        Suite { quick, only: only.iter().map(|id| (*id).to_owned()).collect(), out: "".into() }
    }

    fn keys(wanted: &Suite) -> Vec<&'static str> {
        chosen(wanted).into_iter().map(|(run, _)| run.key).collect()
    }

    #[test]
    fn rows_choose_their_runs_and_limits() {
        assert_eq!(keys(&suite(false, &["P2"])), ["store", "single"]);
        assert_eq!(keys(&suite(true, &["P10", "P7"])), ["store", "latency"]);
        assert_eq!(keys(&suite(false, &[])).len(), RUNS.len());
        let of_p10 = chosen(&suite(true, &["P10"]));
        assert_eq!(of_p10.last().map(|(_, args)| *args), Some("latency --rate 1000 --units 5000"));
        assert!(row("P1b").is_ok() && row("P99").is_err());
    }

    #[test]
    fn a_failed_verb_says_why_in_one_line() {
        let log = "run 1 of 3\nerror: an earlier one\nrun 2\nerror: the audit failed\n  I3 does not hold\n\n";
        assert_eq!(reason(log), "the audit failed; I3 does not hold");
        assert_eq!(reason("killed\n"), "killed");
        assert_eq!(reason(""), "it ended without an error message");
    }

    #[test]
    fn whoever_waits_sees_the_first_figures() {
        let report = json!({"placements_per_s": 1234.0, "cpu_us_per_placement": 1.5});
        assert_eq!(headline(&Ok(report)), "1,234/s, 1.50 CPU-µs");
        assert_eq!(headline(&Ok(json!({"cases": []}))), "done");
        assert_eq!(headline(&Err("gone".to_owned())), "no figure: gone");
    }
}
