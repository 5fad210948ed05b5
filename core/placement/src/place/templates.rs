//! Templates as small integers: equal replicas of different units share their candidates.

use std::sync::Arc;

use godel_base::ids::{NodeId, UnitId};
use godel_cluster::{Cluster, ShapeId};
use godel_domain::{demand::Pool, unit::Template, work_kind::WorkKind};
use godel_framework::{Ask, NodeRequirements, UnitAsk};
use rustc_hash::FxHashMap;

use super::{candidates::Candidates, view::NodeReach};
use crate::profiles::ProfileChoice;

/// Templates not used by any unit are kept up to this many, for units to come.
const N_UNUSED_MAX: usize = 1024;

/// An interned template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateId(u32);

/// Everything that the choice of a node depends on.
#[derive(Clone, Debug)]
pub struct TemplateEntry {
    /// What one replica asks for.
    pub ask: Ask,
    /// The profile that it is placed by.
    pub profile: ProfileChoice,
    /// Nodes found for it before.
    pub candidates: Candidates,
    /// The template that fits the same nodes and stands for all that do; itself, if it is that one.
    alike: TemplateId,
    key: TemplateKey,
    n_uses: u32,
}

/// Hash of what is asked of a node instead of that itself: compared when found. Whether a unit spreads: ranks in its list count
/// its own replicas. Its kind of work, where that is counted. The unit, if it has terms about running units or is a daemon. The node
/// that keeps volumes for its replicas.
type TemplateKey = (ShapeId, ProfileChoice, (bool, WorkKind), (Option<UnitId>, Option<NodeId>), u64);

/// Interner with counted uses.
#[derive(Clone, Debug, Default)]
pub struct Templates {
    entries: Vec<Option<TemplateEntry>>,
    free: Vec<u32>,
    ids: FxHashMap<TemplateKey, Vec<TemplateId>>,
    n_unused: usize,
}

impl Templates {
    /// The integer of a template; counts as one use, to be given back by [`Self::release`].
    pub(super) fn intern(
        &mut self,
        cluster: &mut Cluster,
        template: &Template,
        pool: Pool,
        profile: ProfileChoice,
        spreads: bool,
        work: WorkKind,
        unit: UnitId,
    ) -> TemplateId {
        let has_rules = cluster.domains().is_active() && cluster.domains().rules_of(unit).is_some();
        let owner = (has_rules || cluster.taken().daemons.find(unit).is_some()).then_some(unit);
        let shape = cluster.shape_below(&template.demand, pool, template.max_load);
        let hash = NodeRequirements::hash_of(template);
        self.intern_as(cluster, template, (shape, profile, (spreads, work), (owner, None), hash))
    }

    /// The integer of the template of replicas for which a node keeps volumes, `id` being that of the other replicas of their task group; counts
    /// as one use.
    pub(super) fn intern_on(&mut self, id: TemplateId, node: NodeId) -> TemplateId {
        let TemplateEntry { profile, alike, ask, .. } = self.get(id);
        let (profile, alike) = (profile.clone(), *alike);
        let (shape, _, kind, (owner, _), hash) = self.get(id).key.clone();
        let key = (shape, profile.clone(), kind, (owner, Some(node)), hash);
        let ask = ask.clone().of_volumes_on(node);
        let is_same = |found: &&TemplateId| {
            let known = &self.get(**found).ask;
            known.requirements() == ask.requirements()
                && known.daemon() == ask.daemon()
                && match (known.unit(), ask.unit()) {
                    (Some(known), Some(asked)) => Arc::ptr_eq(known, asked),
                    (known, asked) => known.is_none() && asked.is_none(),
                }
        };
        if let Some(found) = self.ids.get(&key).and_then(|ids| ids.iter().find(is_same)).copied() {
            self.retain(found);
            return found;
        }
        let alike = (alike != id).then(|| self.intern_on(alike, node));
        self.insert(key, profile, ask, alike)
    }

    fn intern_as(&mut self, cluster: &mut Cluster, template: &Template, key: TemplateKey) -> TemplateId {
        // What nobody uses any more may have been resolved before the unit's rules changed.
        let is_same = |id: &&TemplateId| {
            let ask = &self.get(**id).ask;
            ask.requirements().are_of(template)
                && key.3.0.is_none_or(|unit| ask.daemon() == cluster.taken().daemons.find(unit))
                && key.3.0.is_none_or(|unit| ask.has_rules_of_now(cluster, unit))
        };
        if let Some(id) = self.ids.get(&key).and_then(|ids| ids.iter().find(is_same)).copied() {
            self.retain(id);
            return id;
        }
        let (shape, profile, (spreads, work), (owner, _), hash) = key.clone();
        let is_nowhere = matches!(profile, ProfileChoice::Unknown(_));
        // All profiles have the same filters, so that any of them stands for the others.
        let plain = (shape, ProfileChoice::FIRST, (false, WorkKind::Neutral), key.3, hash);
        let alike = (!is_nowhere && key != plain).then(|| self.intern_as(cluster, template, plain));
        let ask = Ask::of_shape(cluster, shape, template)
            .spreading(spreads)
            .of_work(work)
            .nowhere(is_nowhere)
            .of_daemon(owner.and_then(|unit| cluster.taken().daemons.find(unit)))
            .of_unit(
                owner.and_then(|unit| UnitAsk::of(cluster, unit, shape, &NodeRequirements::of(template))),
            );
        self.insert(key, profile, ask, alike)
    }

    fn insert(
        &mut self,
        key: TemplateKey,
        profile: ProfileChoice,
        ask: Ask,
        alike: Option<TemplateId>,
    ) -> TemplateId {
        let idx = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("memory ends before 2^32 templates")
        });
        let id = TemplateId(idx);
        self.entries[idx as usize] = Some(TemplateEntry {
            ask,
            profile,
            candidates: Candidates::default(),
            alike: alike.unwrap_or(id),
            key: key.clone(),
            n_uses: 1,
        });
        self.ids.entry(key).or_default().push(id);
        id
    }

    /// The template that stands for all that fit the same nodes, however they score them.
    pub fn alike(&self, id: TemplateId) -> TemplateId {
        self.get(id).alike
    }

    /// One use more of a template that is in use.
    pub fn retain(&mut self, id: TemplateId) {
        let entry = self.get_mut(id);
        entry.n_uses += 1;
        self.n_unused -= usize::from(self.get(id).n_uses == 1);
    }

    /// One use less. Unused templates are dropped, all at once, when they have become many.
    pub fn release(&mut self, id: TemplateId) {
        let entry = self.get_mut(id);
        entry.n_uses -= 1;
        if entry.n_uses > 0 {
            return;
        }
        self.n_unused += 1;
        if self.n_unused > N_UNUSED_MAX {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        let mut stood_for = Vec::new();
        for (idx, slot) in (0u32..).zip(&mut self.entries) {
            let Some(unused) = slot.take_if(|entry| entry.n_uses == 0) else { continue };
            self.free.push(idx);
            stood_for.extend(Some(unused.alike).filter(|alike| alike.0 != idx));
            if let Some(ids) = self.ids.get_mut(&unused.key) {
                ids.retain(|id| id.0 != idx);
                if ids.is_empty() {
                    self.ids.remove(&unused.key);
                }
            }
        }
        self.n_unused = 0;
        // Fewer than there were unused ones.
        stood_for.into_iter().for_each(|alike| self.release(alike));
    }

    /// Ends all candidate lists.
    pub(super) fn clear_candidates(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            entry.candidates.clear();
        }
    }

    /// Templates with a list of candidates within this reach.
    pub(super) fn listing(&self, reach: NodeReach) -> Vec<TemplateId> {
        let lists =
            |entry: &TemplateEntry| entry.candidates.reach == reach && entry.candidates.best().is_some();
        let entries = (0u32..).zip(&self.entries);
        entries.filter(|(_, entry)| entry.as_ref().is_some_and(lists)).map(|(id, _)| TemplateId(id)).collect()
    }

    /// Returns a template.
    pub fn get(&self, id: TemplateId) -> &TemplateEntry {
        self.entries[id.0 as usize].as_ref().expect("a template id is held by a use")
    }

    /// Returns a template to change it.
    pub fn get_mut(&mut self, id: TemplateId) -> &mut TemplateEntry {
        self.entries[id.0 as usize].as_mut().expect("a template id is held by a use")
    }
}
