//! When a policy runs: by period, by cron, or because somebody asked.

use godel_base::seed::mix;

use crate::cron::CronTable;

/// What makes a policy run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Again and again.
    Period {
        /// Time between two runs, milliseconds.
        every_ms: u64,
        /// Up to this is added to each, by chance, so that policies and clusters do not run in step; milliseconds.
        jitter_ms: u64,
    },
    /// At times of a table, in UTC.
    Cron(CronTable),
    /// When the process gets the signal SIGUSR1.
    Signal,
    /// When somebody calls for it, by RPC or HTTP.
    Request,
}

impl Trigger {
    /// Returns when the trigger is due by itself after a run, both as Unix milliseconds; `None`: it never is. `seed` and the
    /// number of the run decide the jitter, so it is the same for whoever computes it again.
    pub fn next_due_ms(&self, last_run_ms: u64, n_runs: u64, seed: u64) -> Option<u64> {
        match self {
            Self::Period { every_ms, jitter_ms } => {
                let span = jitter_ms.saturating_add(1);
                let jitter = mix(seed ^ mix(n_runs)) % span;
                Some(last_run_ms.saturating_add(*every_ms).saturating_add(jitter))
            }
            Self::Cron(table) => {
                let last_s = i64::try_from(last_run_ms / 1_000).ok()?;
                let next = u64::try_from(table.next_after(last_s)?).ok()?;
                Some(next.saturating_mul(1_000))
            }
            Self::Signal | Self::Request => None,
        }
    }
}

/// Returns the earliest time at which one of several triggers is due after a run.
pub fn next_due_ms(triggers: &[Trigger], last_run_ms: u64, n_runs: u64, seed: u64) -> Option<u64> {
    triggers.iter().filter_map(|trigger| trigger.next_due_ms(last_run_ms, n_runs, seed)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_its_jitter_and_no_more() {
        let trigger = Trigger::Period { every_ms: 1_000, jitter_ms: 100 };
        let due: Vec<u64> = (0..200).filter_map(|run| trigger.next_due_ms(5_000, run, 7)).collect();
        assert!(due.len() == 200 && due.iter().all(|due| (6_000..=6_100).contains(due)));
        assert!(due.iter().any(|due| *due < 6_030) && due.iter().any(|due| *due > 6_070));
        assert_eq!(trigger.next_due_ms(5_000, 3, 7), Some(due[3]));
    }

    #[test]
    fn the_earliest_of_several_triggers_counts() {
        let hourly = Trigger::Cron("0 * * * *".parse().unwrap());
        let period = Trigger::Period { every_ms: 60_000, jitter_ms: 0 };
        let asked = [Trigger::Signal, Trigger::Request];
        assert_eq!(next_due_ms(&asked, 0, 0, 0), None);
        assert_eq!(next_due_ms(std::slice::from_ref(&hourly), 1_000, 0, 0), Some(3_600_000));
        assert_eq!(next_due_ms(&[hourly, Trigger::Signal, period], 1_000, 0, 0), Some(61_000));
    }
}
