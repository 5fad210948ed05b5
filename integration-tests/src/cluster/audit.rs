//! What holds at the end of most tests, and what `godel audit` says.

use super::{Cluster, Submission, shown};
use crate::{api::Records, check};

/// What an audit judges.
const N_INVARIANTS: usize = 10;

impl Cluster {
    /// The end of most tests: everything submitted is there and bound, nothing is over-committed, and the
    /// audit of the live system holds.
    pub async fn wait_complete(&self, ledgers: &[&Submission]) -> Records {
        let mut acknowledged = Vec::new();
        for submission in ledgers {
            acknowledged.extend(submission.read().expect("a ledger that the submitter wrote"));
        }
        let records = self.wait_all_bound(acknowledged.len()).await;
        assert_eq!(check::problems(&records, &acknowledged), Vec::<String>::new());
        self.audit(ledgers);
        records
    }

    /// `godel audit` against the ledgers: every invariant is judged, and holds.
    pub fn audit(&self, ledgers: &[&Submission]) {
        let ledgers = ledgers.iter().map(|submission| format!("--ledger={}", submission.ledger.display()));
        let ledgers: Vec<String> = ledgers.collect();
        if let Err(shown) = self.audited(&ledgers) {
            panic!("the audit does not hold:\n{shown}");
        }
    }

    /// `godel audit` with these arguments, strictly: what it said unless everything was judged and holds. Of I3 alone
    /// something may be open, for a test may have stopped agents.
    pub fn audited(&self, args: &[String]) -> Result<(), String> {
        let mut all = vec!["audit", "-o", "json"];
        all.extend(args.iter().map(String::as_str));
        let output = self.godel(&all);
        let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let invariants = view["invariants"].as_array().cloned().unwrap_or_default();
        let holds = |one: &serde_json::Value| {
            one["verdict"] == "ok" || (one["verdict"] == "not_judged" && one["id"] == "I3")
        };
        let is_right = invariants.len() == N_INVARIANTS && invariants.iter().all(holds);
        if is_right { Ok(()) } else { Err(shown(&output)) }
    }
}
