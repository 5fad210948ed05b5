//! Room that queues have for replacements that start first: they run beside what they replace, so a maximum, of the queue or of one above it,
//! or what one owner may take there, can be in the way of a move that no node is in the way of.
//!
//! Summed for each plan, and only where units have such replacements and queues such limits.

use godel_base::ids::UnitId;
use godel_cluster::GroupDeltas;
use godel_domain::{demand::Demand, unit::UnitRecord};
use godel_queueing::{AskId, Need, PayerIdx, Quota};
use rustc_hash::FxHashMap;

use crate::picture::ClusterPicture;

/// How many replicas more queues take.
pub(super) struct QueueRooms {
    quota: Quota,
    /// Of units whose replacements start first.
    payers: FxHashMap<UnitId, PayerIdx>,
}

impl QueueRooms {
    /// Sums what runs and what is held. `None`: no maximum can keep a replacement out. `O(units + holds)`.
    pub(super) fn of(picture: &ClusterPicture) -> Option<Self> {
        let has_limits = picture.queues.values().any(|spec| spec.has_limits());
        let has_surges = || picture.units.values().any(|record| record.spec.max_surge > 0);
        if !has_limits || !has_surges() {
            return None;
        }
        let mut rooms = Self { quota: Quota::default(), payers: FxHashMap::default() };
        for spec in picture.queues.values() {
            rooms.quota.put(spec.clone());
        }
        for record in picture.units.values() {
            rooms.add_unit(picture, record);
        }
        Some(rooms)
    }

    /// How many more replicas of a task group of a unit its queue takes now; `u32::MAX`: as many as there are.
    pub(super) fn n_fit(&mut self, record: &UnitRecord, group: usize) -> u32 {
        let Some(payer) = self.payers.get(&record.id).copied() else { return u32::MAX };
        let Some(of_group) = record.spec.task_groups.get(group) else { return u32::MAX };
        let ask = self.quota.usage_mut().intern(&of_group.template.demand);
        let ask = self.as_master(record, group, ask);
        self.quota.usage().headroom(payer, ask).n
    }

    fn add_unit(&mut self, picture: &ClusterPicture, record: &UnitRecord) {
        let cluster = &picture.cluster;
        let queue = self.quota.queue(&record.spec.queue);
        let payer = self.quota.enter(queue, &record.spec.owner);
        if record.spec.max_surge > 0 {
            self.payers.insert(record.id, payer);
        }
        let mut add = |group: u16, demand: &Demand, n: u32| {
            let ask = self.quota.usage_mut().intern(demand);
            let ask = self.as_master(record, usize::from(group), ask);
            self.quota.usage_mut().add(payer, Need { ask, n });
        };
        if let Some(rows) = cluster.rows().of(record.id) {
            for (group, n) in GroupDeltas::of(rows).iter() {
                if let Some(shape) = cluster.rows().group_shape(record.id, group) {
                    add(group, cluster.catalogue().demand(shape), u32::try_from(n).unwrap_or(0));
                }
            }
        }
        for hold in cluster.holds().of(record.id).into_iter().filter_map(|id| cluster.holds().get(id)) {
            let n = match hold.movement {
                Some(_) => cluster.taken().mover_share(hold).n_counted,
                None if hold.counts_in_queue() => u32::try_from(hold.ordinals.len()).unwrap_or(u32::MAX),
                None => 0,
            };
            add(hold.group, &hold.demand, n);
        }
    }

    fn as_master(&mut self, record: &UnitRecord, group: usize, ask: AskId) -> AskId {
        if record.spec.is_of_masters(group) { self.quota.usage_mut().intern_master(ask) } else { ask }
    }
}
