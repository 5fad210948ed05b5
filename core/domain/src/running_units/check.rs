//! Whether the rows of a unit allow a change.

use super::{Bind, Compaction, EvictionReason, Phase, RunChange, RunningUnit, RunningUnits, at};
use godel_base::ids::Revision;

/// A change that the rows do not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowConflict {
    /// Columns differ in length.
    #[error("columns differ in length")]
    Columns,
    /// An ordinal stands twice in one change.
    #[error("ordinal {0} stands twice")]
    Repeated(u32),
    /// Another incarnation is current.
    #[error("ordinal {ordinal}: incarnation {current} is current, not {asked}")]
    Incarnation {
        /// The running unit.
        ordinal: u32,
        /// Of the row.
        current: u32,
        /// Of the change.
        asked: u32,
    },
    /// It has a node already.
    #[error("ordinal {0} is bound already")]
    Bound(u32),
    /// It has no node.
    #[error("ordinal {0} is not bound")]
    NotBound(u32),
    /// It has not ended: it is kept.
    #[error("ordinal {0} has not ended")]
    NotEnded(u32),
    /// A task group of which running units are kept is kept too.
    #[error("ordinal {ordinal} of task group {group} is kept")]
    GroupInUse {
        /// Index of the group.
        group: u16,
        /// A running unit of it.
        ordinal: u32,
    },
    /// It leaves already: nobody else can have it preempted.
    #[error("ordinal {0} leaves already")]
    Leaving(u32),
}

impl RunningUnits {
    /// Whether `change` is allowed; changes nothing. Statuses always are: stale ones are ignored by `apply`.
    /// So are terms: they are those of the groups that were bound.
    ///
    /// # Errors
    /// The first conflict.
    #[inline]
    pub fn check(&self, change: &RunChange) -> Result<(), RowConflict> {
        match change {
            RunChange::Bind(bind) => self.check_bind(bind),
            RunChange::Evict(evict) => {
                columns(evict.ordinals.len(), &[evict.incarnations.len()])?;
                let is_preempted = evict.reason == EvictionReason::Preempted;
                self.check_each(&evict.ordinals, &evict.incarnations, |ordinal, row| {
                    if !row.phase.is_live() {
                        Err(RowConflict::NotBound(ordinal))
                    } else if is_preempted && row.eviction.is_some() {
                        Err(RowConflict::Leaving(ordinal))
                    } else {
                        Ok(())
                    }
                })
            }
            RunChange::Statuses(statuses) => columns(
                statuses.ordinals.len(),
                &[
                    statuses.incarnations.len(),
                    statuses.exit_codes.len(),
                    statuses.restarts.len(),
                    statuses.ends.len(),
                ],
            )
            .and_then(|()| exact(statuses.ordinals.len(), statuses.phases.len())),
            RunChange::Terms(_) => Ok(()),
            RunChange::Compact(compaction) => self.check_compaction(compaction),
            RunChange::Requeue(requeue) => {
                exact(requeue.ordinals.len(), requeue.incarnations.len())?;
                for (idx, &ordinal) in requeue.ordinals.iter().enumerate() {
                    let (row, asked) = (self.row(ordinal), requeue.incarnations[idx]);
                    if !row.phase.is_ended() {
                        return Err(RowConflict::Bound(ordinal));
                    }
                    if asked != row.incarnation + 1 {
                        return Err(RowConflict::Incarnation { ordinal, current: row.incarnation, asked });
                    }
                }
                Ok(())
            }
        }
    }

    fn check_compaction(&self, compaction: &Compaction) -> Result<(), RowConflict> {
        let Compaction { ordinals, incarnations, groups } = compaction;
        columns(ordinals.len(), &[incarnations.len()])?;
        repeated(ordinals)?;
        self.check_each(ordinals, incarnations, |ordinal, row| {
            if row.phase.is_ended() { Ok(()) } else { Err(RowConflict::NotEnded(ordinal)) }
        })?;
        let goes = |ordinal: u32| ordinals.binary_search(&ordinal).is_ok();
        let is_left = |row: &RunningUnit| row.revision > Revision(0) && groups.contains(&row.group);
        match self.rows.iter().find(|(ordinal, row)| !groups.is_empty() && is_left(row) && !goes(*ordinal)) {
            None => Ok(()),
            Some((ordinal, row)) => Err(RowConflict::GroupInUse { group: row.group, ordinal }),
        }
    }

    fn check_bind(&self, bind: &Bind) -> Result<(), RowConflict> {
        let len = bind.ordinals.len();
        exact(len, bind.nodes.len())?;
        columns(len, &[bind.incarnations.len(), bind.devices.len(), bind.zones.len()])?;
        self.check_each(&bind.ordinals, &bind.incarnations, |ordinal, row| match row.phase {
            Phase::Pending => Ok(()),
            _ => Err(RowConflict::Bound(ordinal)),
        })?;
        repeated(&bind.ordinals)
    }

    fn check_each(
        &self,
        ordinals: &[u32],
        incarnations: &[u32],
        check: impl Fn(u32, &RunningUnit) -> Result<(), RowConflict>,
    ) -> Result<(), RowConflict> {
        for (idx, &ordinal) in ordinals.iter().enumerate() {
            let (row, asked) = (self.row(ordinal), at(incarnations, idx));
            if row.incarnation != asked {
                return Err(RowConflict::Incarnation { ordinal, current: row.incarnation, asked });
            }
            check(ordinal, &row)?;
        }
        Ok(())
    }
}

fn fits(len: usize, column: usize) -> bool {
    column == 0 || column == len
}

fn columns(len: usize, others: &[usize]) -> Result<(), RowConflict> {
    if others.iter().all(|other| fits(len, *other)) { Ok(()) } else { Err(RowConflict::Columns) }
}

fn exact(len: usize, other: usize) -> Result<(), RowConflict> {
    if len == other { Ok(()) } else { Err(RowConflict::Columns) }
}

fn repeated(ordinals: &[u32]) -> Result<(), RowConflict> {
    if ordinals.is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    let mut sorted = ordinals.to_vec();
    sorted.sort_unstable();
    sorted
        .windows(2)
        .find(|pair| pair[0] == pair[1])
        .map_or(Ok(()), |pair| Err(RowConflict::Repeated(pair[0])))
}
