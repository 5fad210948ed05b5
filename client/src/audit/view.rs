//! What an audit found, for people and for machines.

use godel_audit::{InvariantReport, InvariantVerdict, UnreadableRecord, World};
use serde::Serialize;

use crate::output::Paint;

/// Most unreadable records that the text names; the rest is counted.
const N_NAMED_MAX: usize = 20;

/// What an audit found.
#[derive(Clone, Debug)]
pub struct AuditFindings {
    /// Revision that it is about.
    pub revision: u64,
    /// One per invariant.
    pub reports: Vec<InvariantReport>,
    /// What could not be read, and was left out.
    pub unreadable: Vec<UnreadableRecord>,
    /// The state that was judged.
    pub world: World,
}

impl AuditFindings {
    /// Everything was judged, and holds.
    pub fn hold(&self) -> bool {
        self.verdict() == InvariantVerdict::Ok
    }

    /// Of all together: one that failed counts most.
    pub fn verdict(&self) -> InvariantVerdict {
        if self.reports.iter().any(InvariantReport::has_failed) {
            return InvariantVerdict::Failed;
        }
        let open = self.reports.iter().filter(|report| !report.holds());
        let open: Vec<String> = open.map(|report| report.invariant.to_string()).collect();
        if open.is_empty() { InvariantVerdict::Ok } else { InvariantVerdict::NotJudged(open.join(", ")) }
    }

    /// One line per invariant, and more where there is more to say.
    pub fn text(&self, paint: Paint) -> String {
        let mut lines: Vec<String> = self
            .reports
            .iter()
            .map(|report| {
                let (word, painted) = match report.verdict() {
                    InvariantVerdict::Ok => ("ok", paint.good("ok")),
                    InvariantVerdict::Failed => ("FAILED", paint.bad("FAILED")),
                    InvariantVerdict::NotJudged(_) => ("not judged", paint.bold("not judged")),
                };
                report.to_string().replacen(&format!(" {word}"), &format!(" {painted}"), 1)
            })
            .collect();
        lines.extend(self.unreadable.iter().take(N_NAMED_MAX).map(|one| format!("cannot be read: {one}")));
        if self.unreadable.len() > N_NAMED_MAX {
            lines.push(format!("cannot be read: {} more", self.unreadable.len() - N_NAMED_MAX));
        }
        lines.join("\n") + "\n"
    }

    /// For machines.
    pub fn view(&self) -> AuditView {
        let invariants = self.reports.iter().map(|report| InvariantView {
            id: report.invariant.to_string(),
            says: report.invariant.sentence(),
            verdict: word(&report.verdict()),
            ok: report.holds(),
            checked: report.checked.clone(),
            not_judged: report.not_judged.clone(),
            violations: report.violations.clone(),
            n_violations: report.n_violations,
        });
        AuditView {
            verdict: word(&self.verdict()),
            ok: self.hold(),
            revision: self.revision,
            invariants: invariants.collect(),
            unreadable: self.unreadable.iter().map(ToString::to_string).collect(),
        }
    }
}

fn word(verdict: &InvariantVerdict) -> &'static str {
    match verdict {
        InvariantVerdict::Ok => "ok",
        InvariantVerdict::Failed => "failed",
        InvariantVerdict::NotJudged(_) => "not_judged",
    }
}

/// An audit as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct AuditView {
    /// `ok`, `failed` or `not_judged`.
    pub verdict: &'static str,
    /// Everything was judged, and holds.
    pub ok: bool,
    /// Revision that it is about.
    pub revision: u64,
    /// One per invariant.
    pub invariants: Vec<InvariantView>,
    /// Records and operations that could not be read: what, which field, why.
    pub unreadable: Vec<String>,
}

/// One invariant as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct InvariantView {
    /// `I1` to `I10`.
    pub id: String,
    /// In one sentence.
    pub says: &'static str,
    /// `ok`, `failed` or `not_judged`.
    pub verdict: &'static str,
    /// It was judged whole, and holds.
    pub ok: bool,
    /// What was looked at.
    pub checked: String,
    /// What was not judged, and why.
    pub not_judged: Vec<String>,
    /// The first violations, by name.
    pub violations: Vec<String>,
    /// All of them.
    pub n_violations: usize,
}

#[cfg(test)]
mod tests {
    use godel_audit::Invariant;

    use super::*;

    fn report(invariant: Invariant, n_violations: usize, not_judged: &[&str]) -> InvariantReport {
        InvariantReport {
            invariant,
            checked: "3 nodes".to_owned(),
            violations: (0..n_violations).map(|n| format!("violation {n}")).collect(),
            n_violations,
            not_judged: not_judged.iter().map(|why| (*why).to_owned()).collect(),
        }
    }

    fn findings(reports: Vec<InvariantReport>) -> AuditFindings {
        AuditFindings { revision: 7, reports, unreadable: Vec::new(), world: World::default() }
    }

    #[test]
    fn a_failure_outranks_not_judged_and_not_judged_outranks_ok() {
        let ok = || report(Invariant::I1, 0, &[]);
        let open = || report(Invariant::I8, 0, &["no dispatcher answers"]);
        let bad = || report(Invariant::I6, 1, &["some"]);
        let words = |reports| {
            let findings = findings(reports);
            let view = findings.view();
            assert_eq!(view.ok, findings.hold());
            (view.verdict, findings.hold())
        };
        assert_eq!(words(vec![ok()]), ("ok", true));
        assert_eq!(words(vec![ok(), open()]), ("not_judged", false));
        assert_eq!(words(vec![ok(), open(), bad()]), ("failed", false));
    }

    #[test]
    fn text_and_json_say_what_was_not_judged_and_why() {
        let findings = findings(vec![
            report(Invariant::I1, 0, &[]),
            report(Invariant::I6, 2, &["ranks"]),
            report(Invariant::I8, 0, &["no dispatcher answers"]),
        ]);
        assert_eq!(
            findings.text(Paint::plain()),
            "I1 ok  3 nodes\n\
             I6 FAILED  2 violations (every eviction has a legal reason)\n   violation 0\n   violation 1\n   \
             not judged: ranks\n\
             I8 not judged: no dispatcher answers\n   ok as far as it was: 3 nodes\n"
        );
        let json = serde_json::to_value(findings.view()).unwrap();
        assert_eq!(json["invariants"][2]["verdict"], "not_judged");
        assert_eq!(json["invariants"][2]["not_judged"][0], "no dispatcher answers");
        assert_eq!(json["invariants"][1]["n_violations"], 2);
    }
}
