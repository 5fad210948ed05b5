//! Scenarios: files that say which cluster there is, what happens to it, and what must be seen then. The format is in
//! `docs/scenarios.md`; the files are in `integration-tests/scenarios`, one test each.
//!
//! A scenario runs against real processes and looks at what any user of the API sees. What it waits for it looks at
//! again with each message of a watch; it never sleeps.

mod act;
pub mod covers;
mod expect;
mod file;
mod history;
mod lives;
mod moves;
mod number;
mod scalar;
mod seen;

use std::{fmt, path::Path};

use crate::{cluster::Cluster, wait::LIMIT};
use act::Actor;
use covers::Code;
use expect::Mismatch;
use file::Step;
use history::Informer;

pub use file::{Scenario, parse};

/// Runs the scenario of a file to its end.
///
/// # Panics
/// When it is not as the file says; with the step, what was expected, what was seen, and where the logs are.
pub async fn run(path: &Path) {
    let shown = path.display();
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {shown}: {error}"));
    let scenario = parse(&text).unwrap_or_else(|mistake| panic!("{shown}:{mistake}"));
    let mut cluster = Cluster::start(scenario.layout()).await;
    let follower = Informer::start(&cluster.api);
    let mut stage = Stage { actor: Actor::default(), follower, forbidden: Vec::new() };
    if let Err(failure) = stage.play(&mut cluster, &scenario).await {
        panic!("{shown}: {failure}\nlogs      {}", cluster.dir().display());
    }
}

/// A scenario as it runs.
struct Stage {
    actor: Actor,
    follower: Informer,
    /// What must not be in the history after a revision.
    forbidden: Vec<(u64, file::Never)>,
}

/// Where a scenario went wrong.
struct Failure {
    place: String,
    mismatches: Vec<Mismatch>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        for Mismatch { what, expected, seen } in &self.mismatches {
            write!(f, "\nof        {what}\nexpected  {expected}\nseen      {seen}")?;
        }
        Ok(())
    }
}

impl Stage {
    async fn play(&mut self, cluster: &mut Cluster, scenario: &Scenario) -> Result<(), Failure> {
        self.forbidden.extend(scenario.story.never.iter().map(|never| (0, never.clone())));
        self.actor.open(cluster, scenario).await.map_err(|mismatch| Failure {
            place: "before the first step".into(),
            mismatches: vec![mismatch],
        })?;
        for (number, step) in (1..).zip(&scenario.story.steps) {
            let failed = |mismatches| Failure { place: scenario.place(number), mismatches };
            cluster.note(&format!("step {number}"));
            self.actor.act(cluster, scenario, step).await.map_err(|mismatch| failed(vec![mismatch]))?;
            self.wait(cluster, scenario, step).await.map_err(failed)?;
            let revision = self.follower.history().revision;
            self.forbidden.extend(step.never.iter().map(|never| (revision, never.clone())));
        }
        cluster.note("end");
        self.end(cluster, scenario)
            .await
            .map_err(|mismatches| Failure { place: "at the end".into(), mismatches })
    }

    /// Looks with each message of the watch, until everything is as expected.
    async fn wait(
        &mut self,
        cluster: &mut Cluster,
        scenario: &Scenario,
        step: &Step,
    ) -> Result<(), Vec<Mismatch>> {
        let Some(expected) = &step.expect else { return Ok(()) };
        let limit = step.within.map_or(LIMIT, |within| within.0);
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let look = expect::mismatches(expected, cluster, scenario, &self.follower);
            let mut mismatches = match tokio::time::timeout_at(deadline, look).await {
                Ok(mismatches) if mismatches.is_empty() => return Ok(()),
                Ok(mismatches) => mismatches,
                Err(_) => vec![Mismatch::new("everything", "an answer", "none")],
            };
            let news = tokio::time::timeout_at(deadline, self.follower.news()).await;
            if news.is_err() || tokio::time::Instant::now() >= deadline {
                mismatches.push(Mismatch::new("time", format!("within {limit:?}"), "that is over"));
                return Err(mismatches);
            }
        }
    }

    /// What holds at the end of every scenario.
    async fn end(&mut self, cluster: &mut Cluster, scenario: &Scenario) -> Result<(), Vec<Mismatch>> {
        if let Err(shown) = cluster.audited(&[]) {
            return Err(vec![Mismatch::new("godel audit", "every invariant is judged and holds", shown)]);
        }
        let status = cluster.api.dispatcher_status().await;
        let repairs = status.map_or_else(|error| format!("{error:#}"), |status| status.repairs.to_string());
        if repairs != "0" {
            return Err(vec![Mismatch::new("repairs of the reconciler", "0", repairs)]);
        }
        let revision = cluster.api.store_status().await.map_or(0, |status| status.revision);
        while self.follower.history().revision < revision {
            self.follower.news().await;
        }
        let broken = self.broken();
        if !broken.is_empty() {
            return Err(broken);
        }
        let metrics = seen::metrics(cluster).await;
        self.follower.history().note_rejected(&metrics);
        let untraced = self.untraced(&scenario.story.covers);
        if !untraced.is_empty() {
            return Err(vec![Mismatch::new(
                "what the scenario covers",
                untraced.join(", "),
                "no trace of it",
            )]);
        }
        let complaints = cluster.complaints(&scenario.story.warns);
        if complaints.is_empty() {
            return Ok(());
        }
        Err(vec![Mismatch::new("logs", "no WARN or ERROR beside `warns`", complaints.join("\n"))])
    }

    /// What is in the history and must not be.
    fn broken(&self) -> Vec<Mismatch> {
        let history = self.follower.history();
        let mismatch = |(from, never): &(u64, file::Never)| {
            let seen = history.violation(*from, never)?;
            let what = format!("the history after revision {from}");
            Some(Mismatch::new(what, format!("never {never}"), seen))
        };
        self.forbidden.iter().filter_map(mismatch).collect()
    }

    /// Codes that the scenario claims and has not provoked.
    fn untraced(&self, covers: &[Code]) -> Vec<String> {
        let history = self.follower.history();
        history.traces.missing(covers).into_iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests;
