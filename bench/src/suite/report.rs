//! The table as Markdown and as JSON.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

use super::{
    Suite,
    judge::{self, SuiteFigures, TargetVerdict},
    targets::{MachineLimit, Run, Target},
};

/// A suite. Field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct SuiteReport {
    version: &'static str,
    /// Of the machine.
    cores: usize,
    /// Of the machine, before the first run.
    load_average: f64,
    quick: bool,
    seconds: f64,
    targets: Vec<Row>,
    /// Files beside this one.
    charts: Vec<String>,
}

/// A target and what became of it.
#[derive(Debug, Serialize)]
struct Row {
    id: &'static str,
    what: &'static str,
    target: &'static str,
    reached: String,
    verdict: TargetVerdict,
    /// Of the machine, in the same suite.
    limits: Vec<String>,
    commands: Vec<String>,
    /// Why there is no figure.
    reasons: Vec<String>,
}

impl SuiteReport {
    pub(super) fn new(
        wanted: &Suite,
        load_average: f64,
        took: Duration,
        runs: &[(&'static Run, &'static str)],
        figures: &SuiteFigures,
        charts: Vec<String>,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load_average,
            quick: wanted.quick,
            seconds: took.as_secs_f64(),
            targets: wanted.targets().map(|target| row(target, runs, figures)).collect(),
            charts,
        }
    }

    /// The form of `docs/benchmarks.md`, charts beside it.
    pub(super) fn markdown(&self) -> String {
        let Self { version, cores, load_average, quick, seconds, targets, charts } = self;
        let what = if *quick { "the subset (each run once)" } else { "the table" };
        let mut text = format!(
            "godel {version}, {what}, {cores} cores, load average {load_average:.2} before the first run, {:.0} minutes.\n\n\
             | # | what | target | reached | ok | the machine's own limit |\n| --- | --- | --- | --- | --- | --- |\n",
            (seconds / 60.0).ceil()
        );
        for row in targets {
            text.push_str(&row.markdown());
        }
        text.push_str("\nThe commands, each after `godel bench`:\n\n");
        for Row { id, commands, .. } in targets.iter().filter(|row| !row.commands.is_empty()) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "- {id}: `{}`", commands.join("`, `"));
        }
        let missing = targets.iter().flat_map(|row| row.reasons.iter().map(move |why| (row, why)));
        for (number, (row, why)) in
            missing.filter(|(row, _)| row.verdict == TargetVerdict::NoFigure).enumerate()
        {
            let title = if number == 0 { "\nNo figures:\n\n" } else { "" };
            let _ = writeln!(text, "{title}- {}: {why}", row.id);
        }
        for chart in charts {
            let _ = write!(text, "\n![{}]({chart})\n", chart.trim_end_matches(".svg"));
        }
        text
    }
}

impl Row {
    fn markdown(&self) -> String {
        let Self { id, what, target, reached, verdict, limits, .. } = self;
        let verdict = match verdict {
            TargetVerdict::Reached => "yes",
            TargetVerdict::NotReached => "**no**",
            TargetVerdict::NoFigure => "**no figure**",
            TargetVerdict::NotRun => "not measured yet",
        };
        format!("| {id} | {what} | {target} | {reached} | {verdict} | {} |\n", limits.join("; "))
    }
}

fn row(target: &Target, runs: &[(&'static Run, &'static str)], figures: &SuiteFigures) -> Row {
    let (reached, verdict, reasons) = judge::judge(target.checks, figures);
    let keys: Vec<&str> = target.checks.iter().flat_map(|check| check.runs()).collect();
    let commands = runs.iter().filter(|(run, _)| keys.contains(&run.key));
    let limit = |MachineLimit { name, of, unit }: &MachineLimit| {
        let figure = figures.number(*of).ok()?;
        Some(format!("{} ({name})", judge::with_unit(figure, unit)))
    };
    let limits = if reached.is_empty() { &[] } else { target.limits };
    Row {
        id: target.id,
        what: target.what,
        target: target.goal,
        reached,
        verdict,
        limits: limits.iter().filter_map(limit).collect(),
        commands: commands.map(|(_, args)| (*args).to_owned()).collect(),
        reasons,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{chosen, targets::TARGETS},
        *,
    };

    fn report(figures: &SuiteFigures) -> SuiteReport {
        let wanted = Suite { quick: true, only: Vec::new(), out: "".into() };
        let charts = vec!["nodes.svg".to_owned()];
        SuiteReport::new(&wanted, 0.25, Duration::from_secs(61), &chosen(&wanted), figures, charts)
    }

    #[test]
    fn the_table_has_every_row() {
        let mut figures = SuiteFigures::default();
        let reached = json!({"placements_per_s": 1_277_055.0, "cpu_us_per_placement": 1.3});
        figures.add("service", Ok(reached));
        figures.add("store", Ok(json!({"cases": [{"case": "bind-1000", "ops_per_s": 2e6}]})));
        figures.add("single", Ok(json!({"placements_per_s": 27_466.0, "cpu_us_per_placement": 68.0})));
        figures.add("unary", Err("the audit failed".to_owned()));
        let text = report(&figures).markdown();
        for line in [
            "| P1 | services of 1,000 replicas | ≥ 300,000/s, ≤ 5 CPU-µs | 1,277,055/s; 1.30 CPU-µs | yes | 2,000,000/s (store, 1,000 placements a commit) |",
            "| P2 | single replicas, one stream | ≥ 40,000/s, ≤ 45 CPU-µs | 27,466/s; 68.0 CPU-µs | **no** |  |",
            "| P3 | single replicas, a call each, 64 clients | ≥ 12,000/s |  | **no figure** |  |",
            "| P9 | preemption of one victim a placement | ≥ 20,000/s |  | not measured yet |  |",
            "| P12 | affinity, anti-affinity and spread between units; gangs of 10 that require a rack | ≥ 50,000/s; ≥ 10,000 gangs/s |  | not measured yet |  |",
            "| P13 | explain on a full cluster of 20,000 nodes | < 10 ms |  | not measured yet |  |",
            "- P1: `e2e --workload service`",
            "- P3: unary: the audit failed",
            "![nodes](nodes.svg)",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\nis not in\n{text}");
        }
        assert!(text.starts_with("godel ") && text.contains("0.25 before the first run, 2 minutes"));
        assert_eq!(text.lines().filter(|line| line.starts_with("| P")).count(), TARGETS.len());
    }

    #[test]
    fn machines_read_the_same() {
        let json = serde_json::to_value(report(&SuiteFigures::default())).unwrap();
        assert_eq!(
            (&json["targets"][0]["id"], &json["targets"][0]["verdict"]),
            (&json!("P1"), &json!("not-run"))
        );
        assert_eq!(json["charts"], json!(["nodes.svg"]));
    }
}
