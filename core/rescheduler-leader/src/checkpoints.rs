//! When running units saved their work last, as was reported since the leader began. In memory alone, and forgotten when a running unit ends:
//! there is at most one time for each running unit.

use std::collections::BTreeMap;

use godel_base::{
    ids::{IdMap, RunningUnitId, UnitId},
    time::Millis,
};

/// The last checkpoints, by unit and ordinal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checkpoints {
    by_unit: IdMap<UnitId, BTreeMap<u32, Checkpoint>>,
}

#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    incarnation: u32,
    at: Millis,
}

/// What became of a report about one running unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It is the last checkpoint that is known.
    Taken,
    /// The running unit has begun since: the checkpoint is one of somebody before it.
    BeganLater,
    /// A later one is known already, as when reports overtake one another.
    KnownLater,
}

impl Checkpoints {
    /// Takes the time at which a running unit, which has begun at `began_at`, saved its work.
    pub(crate) fn report(&mut self, id: RunningUnitId, began_at: Millis, at: Millis) -> Reported {
        if at < began_at {
            return Reported::BeganLater;
        }
        if self.of(id).is_some_and(|known| known > at) {
            return Reported::KnownLater;
        }
        let incarnation = id.replica.incarnation;
        self.by_unit.entry(id.unit).or_default().insert(id.replica.ordinal, Checkpoint { incarnation, at });
        Reported::Taken
    }

    /// Returns when a running unit saved its work last; `None`: it has reported nothing.
    pub(crate) fn of(&self, id: RunningUnitId) -> Option<Millis> {
        let known = self.by_unit.get(&id.unit)?.get(&id.replica.ordinal)?;
        (known.incarnation == id.replica.incarnation).then_some(known.at)
    }

    /// Whether something is known of a unit.
    pub(crate) fn has(&self, unit: UnitId) -> bool {
        self.by_unit.contains_key(&unit)
    }

    /// Forgets what is known of a unit, but for the running units that `goes_on` names.
    pub(crate) fn retain(&mut self, unit: UnitId, goes_on: impl Fn(RunningUnitId) -> bool) {
        let Some(of_unit) = self.by_unit.get_mut(&unit) else { return };
        of_unit.retain(|ordinal, known| goes_on(RunningUnitId::new(unit, *ordinal, known.incarnation)));
        if of_unit.is_empty() {
            self.by_unit.remove(&unit);
        }
    }

    /// Returns of how many running units something is known.
    pub(crate) fn len(&self) -> usize {
        self.by_unit.values().map(BTreeMap::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: UnitId = UnitId(1);

    #[test]
    fn the_last_checkpoint_of_an_incarnation_counts() {
        let mut known = Checkpoints::default();
        let id = |incarnation| RunningUnitId::new(UNIT, 3, incarnation);
        let mut report = |incarnation, began, at| {
            let said = known.report(id(incarnation), Millis(began), Millis(at));
            (said, known.of(id(incarnation)).map(|at| at.0))
        };
        assert_eq!(report(0, 100, 99), (Reported::BeganLater, None));
        assert_eq!(report(0, 100, 100), (Reported::Taken, Some(100)));
        assert_eq!(report(0, 100, 300), (Reported::Taken, Some(300)));
        assert_eq!(report(0, 100, 200), (Reported::KnownLater, Some(300)), "it came late");
        assert_eq!(report(0, 100, 300), (Reported::Taken, Some(300)), "it came twice");
        // The next incarnation has saved nothing, whatever the one before reported.
        assert_eq!(report(1, 400, 350), (Reported::BeganLater, None));
        assert_eq!(report(1, 400, 450), (Reported::Taken, Some(450)));
        assert_eq!((known.of(id(0)), known.len()), (None, 1), "one for each replica");
    }

    #[test]
    fn what_does_not_go_on_is_forgotten() {
        let mut known = Checkpoints::default();
        for ordinal in 0..3 {
            known.report(RunningUnitId::new(UNIT, ordinal, 0), Millis(1), Millis(2));
        }
        known.report(RunningUnitId::new(UnitId(2), 0, 0), Millis(1), Millis(2));
        known.retain(UNIT, |id| id.replica.ordinal == 1);
        assert_eq!((known.len(), known.has(UNIT)), (2, true));
        known.retain(UNIT, |_| false);
        assert_eq!((known.len(), known.has(UNIT), known.has(UnitId(2))), (1, false, true));
    }
}
