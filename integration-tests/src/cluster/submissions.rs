//! Submitter processes, and the ledgers of what was acknowledged to them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Cluster, TAIL_LINES, test_bin};
use crate::{
    process::CommandLine,
    settings,
    submit::{self, Acknowledged, Plan},
    wait::{LIMIT, wait_for},
};

/// A submitter process and its ledger.
#[derive(Clone, Debug)]
pub struct Submission {
    process: String,
    pub(super) ledger: PathBuf,
    n_tasks: usize,
}

impl Submission {
    /// What has been acknowledged so far.
    pub fn read(&self) -> Result<Vec<Acknowledged>> {
        submit::read_ledger(&self.ledger)
    }

    /// A ledger that another program wrote in the same format.
    pub fn of_file(ledger: &Path, n_tasks: usize) -> Self {
        Self { process: String::new(), ledger: ledger.to_owned(), n_tasks }
    }
}

impl Cluster {
    /// Starts a submitter process; answers the path of its ledger.
    pub fn submit_tasks(&mut self, n_tasks: usize, interval_ms: u64, duration_ms: u64) -> Submission {
        self.submit_ranked(n_tasks, (interval_ms, duration_ms), 0, "")
    }

    /// The same with a priority, in a queue.
    pub fn submit_ranked(
        &mut self,
        n_tasks: usize,
        (interval_ms, duration_ms): (u64, u64),
        priority: i32,
        queue: &str,
    ) -> Submission {
        self.n_submitters += 1;
        let name = format!("submitter-{}", self.n_submitters);
        let plan = Plan {
            state: self.client_address(),
            ledger: self.path(&format!("{name}.ledger")),
            tasks: n_tasks,
            prefix: format!("s{}", self.n_submitters),
            interval_ms,
            duration_ms,
            seed: settings::seed() + u64::try_from(self.n_submitters).expect("few submitters"),
            priority,
            queue: queue.to_owned(),
        };
        let program = test_bin("godel-test-submitter");
        self.add(&name, CommandLine { program, args: plan.args(), env: Vec::new() });
        Submission { process: name, ledger: plan.ledger, n_tasks }
    }

    /// Waits until `n_acknowledged` submissions are in the ledger.
    pub async fn wait_acknowledged(&self, submission: &Submission, n_acknowledged: usize) {
        let what = format!("{n_acknowledged} acknowledgements");
        wait_for(&what, LIMIT, async || {
            let n_entries = submission.read()?.len();
            ensure!(n_entries >= n_acknowledged, "{n_entries} so far");
            Ok(())
        })
        .await;
    }

    /// Waits until a submitter has had everything acknowledged; answers its ledger.
    pub async fn wait_submitted(&mut self, submission: &Submission) -> Vec<Acknowledged> {
        let process = self.process(&submission.process);
        let status =
            wait_for("the submitter's end", 2 * LIMIT, async || process.ended().context("still submits"))
                .await;
        assert!(status.success(), "the submitter failed: {}", process.tail(TAIL_LINES));
        let ledger = submission.read().expect("a ledger that the submitter wrote");
        assert_eq!(ledger.len(), submission.n_tasks, "every submission is acknowledged once");
        ledger
    }
}
