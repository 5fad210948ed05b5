//! The holds that are known, by id, and what is looked up of them.

use std::{
    collections::{BTreeMap, hash_map::Entry},
    sync::Arc,
};

use godel_base::ids::{HoldId, IdMap, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::{
    demand::Pool,
    hold::{GangTurn, Hold},
    sub_cluster::overlap,
};
use godel_queueing::{Need, PayerIdx, QueueIdx, Reliefs};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::HoldState;
use crate::{picture::BinderPicture, quotas::Quotas};

#[derive(Clone, Debug)]
pub(crate) struct KnownHold {
    pub(super) hold: Arc<Hold>,
    pub(super) queue: QueueIdx,
    pub(super) payer: PayerIdx,
    /// What it takes of the queue; of a movement's hold what those take that have no running unit.
    pub(super) need: Need,
    /// Replicas that move to it of which the old incarnation counts, and leaves.
    pub(super) n_returning: u32,
    /// Of its record; `None` while that is under way.
    pub(super) revision: Option<Revision>,
    pub(super) state: HoldState,
}

impl KnownHold {
    /// Ends what replicas that move count for.
    pub(super) fn count_nothing(&mut self, picture: &mut BinderPicture) {
        picture.quotas.count_movers(self.queue, self.payer, self.need, self.n_returning, -1);
        (self.need.n, self.n_returning) = (0, 0);
    }
}

/// Holds by id.
#[derive(Debug, Default)]
pub(crate) struct KnownHolds {
    pub(super) by_id: BTreeMap<HoldId, KnownHold>,
    /// How many holds are for a running unit, by unit and replica. A hold that takes the place of another
    /// one is here before that one's end is read.
    pub(super) replicas: IdMap<UnitId, FxHashMap<ReplicaId, u32>>,
    /// What victims give up in queues for those that they back.
    pub(crate) reliefs: Reliefs,
}

impl KnownHolds {
    /// Holds, those under way among them.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn get(&self, id: HoldId) -> Option<&Hold> {
        self.by_id.get(&id).map(|kept| &*kept.hold)
    }

    /// Returns the queue of a hold, and what the hold takes of it.
    pub(crate) fn pays(&self, id: HoldId) -> Option<(QueueIdx, Need)> {
        self.by_id.get(&id).map(|kept| (kept.queue, kept.need))
    }

    /// A hold at a maximum of a unit is about to end.
    pub(crate) fn ends_at_maximum(&self, unit: UnitId) -> bool {
        let of_unit = |kept: &&KnownHold| kept.hold.unit == unit && kept.hold.at_maximum;
        self.by_id.values().filter(of_unit).any(|kept| kept.state == HoldState::Ending)
    }

    /// The unit of a pool that gathers room which one of `sub_cluster` may want, with holds under way or that end, if the two may not gather at the
    /// same time: two with one place each may, on two nodes. `nodes`: one for each place that `unit` asks for. `O(holds)`.
    pub(crate) fn whose_turn(
        &self,
        unit: UnitId,
        pool: Pool,
        sub_cluster: Option<&str>,
        nodes: &[NodeId],
    ) -> Option<UnitId> {
        let meets = |turn: &GangTurn| overlap(turn.sub_cluster.as_deref(), sub_cluster);
        let gathering = self.by_id.values().map(|kept| &kept.hold).filter(|hold| hold.pool == pool);
        let mut n_places: BTreeMap<UnitId, usize> = BTreeMap::new();
        for hold in gathering.filter(|hold| hold.turn.as_ref().is_some_and(meets)) {
            let n = n_places.entry(hold.unit).or_default();
            *n += hold.ordinals.len();
            if *n > 1 || nodes.len() != 1 || hold.unit == unit || nodes.contains(&hold.node) {
                return Some(hold.unit);
            }
        }
        None
    }

    /// Room is held for a running unit.
    pub(crate) fn has(&self, id: RunningUnitId) -> bool {
        !self.by_id.is_empty()
            && self.replicas.get(&id.unit).is_some_and(|replicas| replicas.contains_key(&id.replica))
    }

    /// Whether the record of a hold was read.
    pub(crate) fn is_recorded(&self, id: HoldId) -> bool {
        self.by_id.get(&id).is_some_and(|kept| kept.revision.is_some())
    }

    /// Whether all that is held for a running unit are targets of moves.
    pub(crate) fn is_moving(&self, id: RunningUnitId, cluster: &Cluster) -> bool {
        let holds = cluster.holds().of(id.unit).into_iter().filter_map(|hold| self.get(hold));
        let mut own = holds.filter(|hold| hold.replicas().any(|replica| replica == id.replica));
        own.all(|hold| hold.movement.is_some())
    }

    /// Whether the end of a target that is held for a running unit is under way.
    pub(crate) fn ends_target(&self, id: RunningUnitId, cluster: &Cluster) -> bool {
        let kept = cluster.holds().of(id.unit).into_iter().filter_map(|hold| self.by_id.get(&hold));
        let mut ending = kept.filter(|kept| kept.state == HoldState::Ending && kept.hold.movement.is_some());
        ending.any(|kept| kept.hold.replicas().any(|replica| replica == id.replica))
    }

    /// Slots of reservations whose records are read and that nothing is under way of, in order of ids.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Arc<Hold>> {
        let settled = |kept: &&KnownHold| kept.revision.is_some() && kept.state == HoldState::Held;
        self.by_id.values().filter(settled).map(|kept| &kept.hold).filter(|hold| hold.slot.is_some())
    }

    /// What holds take of queues whose records are under way.
    pub(crate) fn uncommitted_needs(&self) -> impl Iterator<Item = (QueueIdx, Need)> {
        let made =
            self.by_id.values().filter(|kept| kept.revision.is_none() && kept.state == HoldState::Held);
        made.map(|kept| (kept.queue, kept.need))
    }

    /// Does not count those replicas of a unit that are being placed and count already, because they move. Returns them with their holds.
    pub(crate) fn lift_movers(
        &self,
        id: UnitId,
        placed: impl Iterator<Item = ReplicaId>,
        cluster: &Cluster,
        quotas: &mut Quotas,
    ) -> SmallVec<[(HoldId, ReplicaId); 2]> {
        let mut movers = SmallVec::new();
        if self.by_id.is_empty() || !self.replicas.contains_key(&id) {
            return movers;
        }
        let holds = cluster.holds().of(id).into_iter().filter_map(|hold| self.by_id.get(&hold));
        let counted = holds.filter(|kept| kept.hold.movement.is_some() && kept.need.n > 0);
        let counted: SmallVec<[&KnownHold; 2]> = counted.collect();
        if counted.is_empty() {
            return movers;
        }
        for replica in placed {
            let of = counted.iter().find(|kept| kept.hold.replicas().any(|other| other == replica));
            movers.extend(of.map(|kept| (kept.hold.id, replica)));
        }
        self.shift_movers(&movers, quotas, -1);
        movers
    }

    /// Does not count replicas that move and are being placed (`sign` -1), or counts them again (1).
    pub(crate) fn shift_movers(&self, movers: &[(HoldId, ReplicaId)], quotas: &mut Quotas, sign: i64) {
        for kept in movers.iter().filter_map(|(id, _)| self.by_id.get(id)) {
            quotas.count_movers(kept.queue, kept.payer, Need { n: 1, ..kept.need }, 0, sign);
        }
    }

    /// The unit and the turn that a hold is of, also while its end is under way.
    pub(crate) fn turn_of(&self, id: HoldId) -> Option<(UnitId, GangTurn)> {
        let hold = self.get(id)?;
        Some((hold.unit, hold.turn.clone()?))
    }

    pub(super) fn insert(&mut self, kept: KnownHold) {
        let hold = &kept.hold;
        let replicas = self.replicas.entry(hold.unit).or_default();
        hold.replicas().for_each(|replica| *replicas.entry(replica).or_default() += 1);
        self.reliefs.put(hold, kept.queue);
        self.by_id.insert(hold.id, kept);
    }

    pub(super) fn remove(&mut self, id: HoldId) -> Option<KnownHold> {
        let kept = self.by_id.remove(&id)?;
        self.reliefs.remove(&kept.hold);
        if let Some(replicas) = self.replicas.get_mut(&kept.hold.unit) {
            for replica in kept.hold.replicas() {
                if let Entry::Occupied(mut n_holds) = replicas.entry(replica) {
                    *n_holds.get_mut() -= 1;
                    if *n_holds.get() == 0 {
                        n_holds.remove();
                    }
                }
            }
            if replicas.is_empty() {
                self.replicas.remove(&kept.hold.unit);
            }
        }
        Some(kept)
    }
}
