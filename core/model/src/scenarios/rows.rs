//! Rows as the store applies them: checked, then changed.

use godel_base::ids::{NodeId, Revision};
use godel_domain::running_units::{Bind, Phase, RunChange, RunningUnits, Statuses};

use super::{Checksum, Done, Size, Work};

/// Of one unit.
const N_REPLICAS: u32 = 1_000;

struct Rows {
    units: Vec<RunningUnits>,
    changes: Vec<RunChange>,
    n_changed: u64,
}

/// Bound, starting, running, ended.
pub(super) fn life(size: Size) -> Box<dyn Work> {
    let ordinals: Vec<u32> = (0..N_REPLICAS).collect();
    let nodes = ordinals.iter().map(|ordinal| NodeId(ordinal + 1)).collect();
    let mut changes = vec![RunChange::Bind(Bind { ordinals: ordinals.clone(), nodes, ..Bind::default() })];
    for phase in [Phase::Starting, Phase::Running, Phase::Succeeded] {
        let phases = vec![phase; ordinals.len()];
        let statuses = Statuses { ordinals: ordinals.clone(), phases, ..Statuses::default() };
        changes.push(RunChange::Statuses(statuses));
    }
    let units = vec![RunningUnits::default(); size.pick(500, 20) as usize];
    Box::new(Rows { units, changes, n_changed: 0 })
}

impl Work for Rows {
    fn run(&mut self) {
        for rows in &mut self.units {
            for (revision, change) in (1..).zip(&self.changes) {
                if rows.check(change).is_ok() {
                    rows.apply(change, Revision(revision), 1, |_, _, _| self.n_changed += 1);
                }
            }
        }
    }

    fn done(&self) -> Done {
        let mut checksum = Checksum::default();
        for row in self.units.iter().flat_map(|rows| rows.rows.values()) {
            for value in [u64::from(row.node.0), u64::from(row.phase.is_ended()), row.revision.0] {
                checksum.add(value);
            }
        }
        Done { n_ops: self.n_changed, checksum: checksum.0 }
    }
}
