//! What figures say of a target. Pure: reports in, words and a verdict out.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

const RATE: &str = "/placements_per_s";

/// One number of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    /// Key of the run.
    pub(super) run: &'static str,
    /// JSON pointer into its report.
    pub(super) at: &'static str,
}

/// Something that a target demands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Check {
    AtLeast {
        of: Figure,
        floor: f64,
        unit: &'static str,
    },
    AtMost {
        of: Figure,
        ceiling: f64,
        unit: &'static str,
    },
    /// At most the ceiling, or at most so many times another figure of the same suite.
    AtMostOr {
        of: Figure,
        ceiling: f64,
        unit: &'static str,
        times: f64,
        other: Figure,
        name: &'static str,
    },
    /// The slowest is at most this share slower than the fastest.
    Within {
        name: &'static str,
        runs: &'static [&'static str],
        share: f64,
    },
    /// A rate is at most this share below another.
    AtMostSlower {
        of: Figure,
        than: Figure,
        share: f64,
    },
    /// Without something a run is at least this share slower, in the pair (with, without) where that shows most.
    AtLeastSlower {
        name: &'static str,
        pairs: &'static [(&'static str, &'static str)],
        share: f64,
    },
    /// Less than this share of each run's decisions are conflicts.
    Conflicts {
        runs: &'static [&'static str],
        share: f64,
    },
    /// The share of conflicts by what was offered a second; nothing is demanded of it.
    ConflictsTold {
        name: &'static str,
        runs: &'static [&'static str],
    },
    /// Throughput and conflicts by the number of schedulers; nothing is demanded of it.
    SweepTold {
        run: &'static str,
        name: &'static str,
    },
    /// No run is slower than the first.
    NeverBelowFirst {
        runs: &'static [&'static str],
    },
    /// One rate is so many times another.
    Times {
        of: &'static str,
        than: &'static str,
        factor: f64,
    },
    /// The report says so.
    Holds {
        of: Figure,
        name: &'static str,
    },
    /// Nothing is demanded of it, but it belongs here.
    Told {
        of: Figure,
        name: &'static str,
    },
    /// The same of a measured number.
    Shown {
        of: Figure,
        unit: &'static str,
    },
}

/// What became of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TargetVerdict {
    Reached,
    NotReached,
    /// A run of it failed.
    NoFigure,
    /// None of its runs belonged to this suite.
    NotRun,
}

/// Reports of the runs by key; of a run that failed, why.
#[derive(Debug, Default)]
pub(super) struct SuiteFigures(BTreeMap<String, Result<Value, String>>);

impl SuiteFigures {
    /// One more. Cases of a benchmark are found by their names.
    pub(super) fn add(&mut self, run: &str, report: Result<Value, String>) {
        let report = report.map(|report| match report.get("cases").and_then(Value::as_array) {
            Some(cases) => {
                let named =
                    cases.iter().filter_map(|case| Some((case["case"].as_str()?.to_owned(), case.clone())));
                Value::Object(named.collect())
            }
            None => report,
        });
        self.0.insert(run.to_owned(), report);
    }

    /// Whether it ran, however it ended.
    pub(super) fn ran(&self, run: &str) -> bool {
        self.0.contains_key(run)
    }

    /// Whether it ran and reported.
    pub(super) fn has(&self, run: &str) -> bool {
        self.0.get(run).is_some_and(Result::is_ok)
    }

    /// The runs that failed, and why.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(run, report)| Some((run.as_str(), report.as_ref().err()?.as_str())))
    }

    /// The number, or why there is none. Of numbers by process: the highest of the control plane's and the agents'.
    pub(super) fn number(&self, figure: Figure) -> Result<f64, String> {
        let Figure { run, at } = figure;
        let value = self.value(figure)?;
        let number = match value {
            Value::Object(by_process) => {
                let served = by_process.iter().filter(|(name, _)| *name != "load");
                served.filter_map(|(_, value)| value.as_f64()).max_by(f64::total_cmp)
            }
            value => value.as_f64(),
        };
        number.ok_or_else(|| format!("{run} says {value} for {at}"))
    }

    fn value(&self, Figure { run, at }: Figure) -> Result<&Value, String> {
        match self.0.get(run) {
            Some(Ok(report)) => report.pointer(at).ok_or_else(|| format!("{run} does not report {at}")),
            Some(Err(why)) => Err(format!("{run}: {why}")),
            None => Err(format!("{run} was not run")),
        }
    }

    fn rate(&self, run: &'static str) -> Result<f64, String> {
        self.number(Figure { run, at: RATE })
    }

    fn rates(&self, runs: &[&'static str]) -> Result<Vec<f64>, String> {
        runs.iter().map(|run| self.rate(run)).collect()
    }
}

impl Check {
    /// The runs that it needs.
    pub(super) fn runs(&self) -> Vec<&'static str> {
        match *self {
            Self::AtLeast { of, .. }
            | Self::AtMost { of, .. }
            | Self::Holds { of, .. }
            | Self::Told { of, .. }
            | Self::Shown { of, .. } => {
                vec![of.run]
            }
            Self::AtMostOr { of, other, .. } => vec![of.run, other.run],
            Self::AtMostSlower { of, than, .. } => vec![of.run, than.run],
            Self::Within { runs, .. }
            | Self::Conflicts { runs, .. }
            | Self::ConflictsTold { runs, .. }
            | Self::NeverBelowFirst { runs } => runs.to_vec(),
            Self::SweepTold { run, .. } => vec![run],
            Self::AtLeastSlower { pairs, .. } => {
                pairs.iter().flat_map(|(with, without)| [*with, *without]).collect()
            }
            Self::Times { of, than, .. } => vec![of, than],
        }
    }

    /// What was reached, in words, and whether that is enough; or why nobody knows.
    pub(super) fn judge(&self, figures: &SuiteFigures) -> Result<(String, bool), String> {
        Ok(match *self {
            Self::AtLeast { of, floor, unit } => {
                let reached = figures.number(of)?;
                (with_unit(reached, unit), reached >= floor)
            }
            Self::AtMost { of, ceiling, unit } => {
                let reached = figures.number(of)?;
                (with_unit(reached, unit), reached <= ceiling)
            }
            Self::AtMostOr { of, ceiling, unit, times, other, name } => {
                let (reached, other) = (figures.number(of)?, figures.number(other)?);
                let text =
                    format!("{} ({name} {})", with_unit(reached, unit), with_unit(times * other, unit));
                (text, reached <= ceiling.max(times * other))
            }
            Self::Within { name, runs, share } => {
                let rates = figures.rates(runs)?;
                let slower = slower(lowest(&rates), highest(&rates));
                let list = rates.iter().map(|rate| number(*rate)).collect::<Vec<_>>().join(", ");
                (format!("{name} {list}/s: within {}", percent(slower)), slower <= share)
            }
            Self::AtMostSlower { of, than, share } => {
                let (rate, other) = (figures.number(of)?, figures.number(than)?);
                let slower = slower(rate, other);
                (format!("{}/s after {}/s: {}", number(rate), number(other), signed(slower)), slower <= share)
            }
            Self::AtLeastSlower { name, pairs, share } => at_least_slower(figures, name, pairs, share)?,
            Self::Conflicts { runs, share } => {
                let shares = runs.iter().map(|run| conflicts(figures, run)).collect::<Result<Vec<_>, _>>()?;
                let most = highest(&shares);
                (format!("at most {} conflicts", percent(most)), most < share)
            }
            Self::ConflictsTold { name, runs } => {
                let of_run = |run: &'static str| {
                    let offered = figures.number(Figure { run, at: "/offered_per_s" })?;
                    let p99 = figures.number(Figure { run, at: "/latency_ms/p99" })?;
                    let conflicts = percent(conflicts(figures, run)?);
                    Ok(format!("{conflicts} of {}/s ({} ms at p99)", number(offered), number(p99)))
                };
                let shares = runs.iter().copied().map(of_run).collect::<Result<Vec<_>, String>>()?;
                (format!("{name} {}", shares.join(", ")), true)
            }
            Self::SweepTold { run, name } => (format!("{name} {}", sweep(figures, run)?), true),
            Self::NeverBelowFirst { runs } => {
                let rates = figures.rates(runs)?;
                let ratio = lowest(&rates) / rates.first().copied().unwrap_or(f64::NAN);
                (format!("lowest {ratio:.2} × one scheduler's"), ratio >= 1.0)
            }
            Self::Times { of, than, factor } => {
                let ratio = figures.rate(of)? / figures.rate(than)?;
                (format!("{of} {ratio:.2} × {than}"), ratio >= factor)
            }
            Self::Holds { of, name } => {
                let holds = figures.value(of)?.as_bool().unwrap_or(false);
                (format!("{name}{}", if holds { "" } else { " not" }), holds)
            }
            Self::Told { of, name } => (format!("{name} {}", figures.value(of)?), true),
            Self::Shown { of, unit } => (with_unit(figures.number(of)?, unit), true),
        })
    }
}

/// All that a target demands: the words of each, the worst verdict, and the reasons for missing figures.
pub(super) fn judge(checks: &[Check], figures: &SuiteFigures) -> (String, TargetVerdict, Vec<String>) {
    let (mut words, mut verdict, mut reasons) = (Vec::new(), TargetVerdict::Reached, Vec::new());
    let mut missing = |check: &Check, why: String| {
        if !reasons.contains(&why) {
            reasons.push(why);
        }
        if check.runs().iter().any(|run| figures.ran(run)) {
            TargetVerdict::NoFigure
        } else {
            TargetVerdict::NotRun
        }
    };
    for check in checks {
        let one = match check.judge(figures) {
            Ok((text, reached)) => {
                words.push(text);
                if reached { TargetVerdict::Reached } else { TargetVerdict::NotReached }
            }
            Err(why) => missing(check, why),
        };
        verdict = verdict.max(one);
    }
    (words.join("; "), verdict, reasons)
}

fn at_least_slower(
    figures: &SuiteFigures,
    name: &str,
    pairs: &'static [(&'static str, &'static str)],
    share: f64,
) -> Result<(String, bool), String> {
    // Where one workload has no figure, the other one may decide.
    let by_pair: Vec<Result<(&str, f64), String>> = pairs
        .iter()
        .map(|(with, without)| Ok((*with, slower(figures.rate(without)?, figures.rate(with)?))))
        .collect();
    let known: Vec<(&str, f64)> = by_pair.iter().filter_map(|pair| pair.clone().ok()).collect();
    if known.is_empty() {
        return Err(by_pair.into_iter().find_map(Result::err).unwrap_or_default());
    }
    let list: Vec<String> =
        known.iter().map(|(with, slower)| format!("{with} {}", signed(*slower))).collect();
    let most = known.iter().map(|(_, slower)| *slower).fold(f64::NEG_INFINITY, f64::max);
    Ok((format!("without {name}: {}", list.join(", ")), most >= share))
}

fn conflicts(figures: &SuiteFigures, run: &'static str) -> Result<f64, String> {
    let conflicts = figures.number(Figure { run, at: "/conflicts" })?;
    let placements = figures.number(Figure { run, at: "/placements" })?;
    Ok(conflicts / (conflicts + placements).max(1.0))
}

/// Placements a second and conflicts for each number of schedulers.
fn sweep(figures: &SuiteFigures, run: &'static str) -> Result<String, String> {
    let at = "/runs";
    let runs = figures.value(Figure { run, at })?.as_array().ok_or_else(|| format!("{run} has no {at}"))?;
    let of = |one: &Value, key: &str| one[key].as_f64().ok_or_else(|| format!("{run} does not report {key}"));
    let point = |one: &Value| {
        let (rate, conflicts) = (of(one, "placements_per_s")?, of(one, "conflict_share")?);
        Ok(format!("{}: {}/s, {} conflicts", one["schedulers"], number(rate), percent(conflicts)))
    };
    Ok(runs.iter().map(point).collect::<Result<Vec<_>, String>>()?.join("; "))
}

/// Share by which one rate is below another.
fn slower(rate: f64, than: f64) -> f64 {
    1.0 - rate / than
}

fn lowest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::INFINITY, f64::min)
}

fn highest(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn signed(slower: f64) -> String {
    let word = if slower < 0.0 { "faster" } else { "slower" };
    format!("{} {word}", percent(slower.abs()))
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A rate without a blank before its unit, everything else with one.
pub(super) fn with_unit(figure: f64, unit: &str) -> String {
    let blank = if unit.starts_with('/') { "" } else { " " };
    format!("{}{blank}{unit}", number(figure))
}

/// Three digits or so; thousands apart.
fn number(figure: f64) -> String {
    if figure.abs() < 10.0 {
        return format!("{figure:.2}");
    }
    if figure.abs() < 100.0 {
        return format!("{figure:.1}");
    }
    let digits = format!("{figure:.0}");
    let mut grouped = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests;
