//! The objectives of all policies over the week: each is measured on what the cluster is like, whether its policy runs or not.

use godel_core_rescheduler::{ClusterSnapshot, Layout};

use super::movements::policies;

/// Sums of what was measured.
#[derive(Default)]
pub(super) struct Objectives {
    sums: Vec<(&'static str, f64)>,
    n_samples: u32,
}

impl Objectives {
    /// Measures once.
    pub(super) fn add(&mut self, snapshot: &ClusterSnapshot) -> Result<(), String> {
        let mut layout = Layout::new(snapshot).map_err(|wrong| wrong.to_string())?;
        self.n_samples += 1;
        for (at, (name, kind)) in policies().into_iter().enumerate() {
            let value = kind.policy().goal(&mut layout).value();
            match self.sums.get_mut(at) {
                Some((_, sum)) => *sum += value,
                None => self.sums.push((name, value)),
            }
        }
        Ok(())
    }

    /// Returns the mean of each objective.
    pub(super) fn means(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let n = f64::from(self.n_samples.max(1));
        self.sums.iter().map(move |(name, sum)| (*name, sum / n))
    }
}
