//! Units that have ended: how long their records stay, and their deletion before that.

use godel_domain::{
    ids::UnitId,
    lifecycle::{self, Phase},
    time::Millis,
};

use super::Dispatcher;

/// Why the record of a unit may not be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteRefusal {
    /// It is not known.
    Unknown,
    /// It has not ended.
    Phase(Phase),
    /// It has ended, and so many of its running units have yet to leave their nodes.
    Leaving(u32),
}

/// A unit that has ended, whose name is taken until its record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedView {
    /// How it ended.
    pub phase: Phase,
    /// How long ago, milliseconds; `None`: before this dispatcher led.
    pub ago_ms: Option<u64>,
    /// Its record goes in so long by itself, milliseconds; 0: it is on its way out.
    pub left_ms: u64,
}

impl Dispatcher {
    /// Begins to delete the record of a unit that has ended, as retention does in the end. Whoever asked writes the
    /// deletion, or calls [`Self::on_delete_failed`]. False: it is being deleted already.
    ///
    /// # Errors
    /// The unit has not ended, or something of it is still on a node.
    pub fn delete(&mut self, unit: UnitId) -> Result<bool, DeleteRefusal> {
        let entry = self.units.get_mut(&unit).ok_or(DeleteRefusal::Unknown)?;
        if !lifecycle::is_over(entry.phase, &entry.counts) {
            return Err(match entry.phase.is_terminal() {
                true => DeleteRefusal::Leaving(entry.counts.live),
                false => DeleteRefusal::Phase(entry.phase),
            });
        }
        if entry.deleting {
            return Ok(false);
        }
        entry.deleting = true;
        if let Some(at) = entry.delete_at.take() {
            self.ended.remove(&(at, unit));
        }
        Ok(true)
    }

    /// When a unit ended and when its record goes; `None` while it has not, or while something of it is on a node.
    pub fn ended(&self, unit: UnitId, now: Millis) -> Option<EndedView> {
        let entry = self.units.get(&unit)?;
        if !lifecycle::is_over(entry.phase, &entry.counts) {
            return None;
        }
        Some(EndedView {
            phase: entry.phase,
            ago_ms: entry.ended_at.map(|at| now.since(at)),
            left_ms: entry.delete_at.map_or(0, |at| at.since(now)),
        })
    }
}
