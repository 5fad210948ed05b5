//! The scheduler's filters, as the binder asks them, over the cluster of a snapshot and the moves of a plan.
//!
//! What depends on the node alone is asked once. Terms about running units are asked as if the one that moves were gone from where it is, both
//! as things are and with all other moves of the plan made: the binder judges moves one after the other, each with those before it.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use godel_base::ids::{NodeId, RunningUnitId, UnitId};
use godel_cluster::{Cluster, ShapeId};
use godel_core_rescheduler::{Filters, Layout, NodeFilters, NodeIdx, RefusedMoves, RunIdx};
use godel_domain::allocation::Allocation;
use godel_framework::{NodeAsk, NodeRequirements, UnitAsk};
use rustc_hash::FxHashMap;

/// No node is admitted.
pub(super) const NOWHERE: u32 = u32::MAX;

/// What filters ask about replicas that are alike.
struct AskClass {
    unit: UnitId,
    group: u16,
    shape: ShapeId,
    requirements: NodeRequirements,
    about_units: Option<UnitAsk>,
    /// Its replacement starts before it leaves.
    surges: bool,
}

/// A class, the node from which the running unit is thought away, and the node that is asked about.
type Question = (u32, Option<NodeId>, NodeId);

/// The scheduler's filters over the cluster as it was when the snapshot was taken. Room is the layout's business.
pub(crate) struct ClusterFilters {
    /// As terms count running units, the moves that `moved` says are made.
    cluster: RefCell<Cluster>,
    classes: Vec<AskClass>,
    /// Classes that no unit has for itself.
    shared: FxHashMap<(ShapeId, u64), Vec<u32>>,
    /// Of each running unit of the snapshot.
    class_of: Vec<u32>,
    /// What the filters said as things are.
    answers: RefCell<FxHashMap<Question, bool>>,
    /// What they said with the moves of the layout with this stamp.
    after_moves: RefCell<FxHashMap<Question, bool>>,
    stamp: Cell<u64>,
    /// Moves that the cluster counts as made: of which unit, from where, and where to.
    moved: RefCell<Vec<(UnitId, NodeId, NodeId)>>,
    refused: Arc<RefusedMoves>,
}

impl ClusterFilters {
    pub(super) fn new(cluster: Cluster, refused: Arc<RefusedMoves>) -> Self {
        Self {
            cluster: RefCell::new(cluster),
            classes: Vec::new(),
            shared: FxHashMap::default(),
            class_of: Vec::new(),
            answers: RefCell::default(),
            after_moves: RefCell::default(),
            stamp: Cell::new(0),
            moved: RefCell::default(),
            refused,
        }
    }

    /// Returns the cluster as things are.
    pub(super) fn cluster_mut(&mut self) -> &mut Cluster {
        self.count_moves(0, &[]);
        self.cluster.get_mut()
    }

    /// The next running unit of the snapshot is of a class.
    pub(super) fn push(&mut self, class: u32) {
        self.class_of.push(class);
    }

    pub(super) fn class(
        &mut self,
        unit: UnitId,
        group: u16,
        shape: ShapeId,
        requirements: NodeRequirements,
        surges: bool,
    ) -> u32 {
        if requirements.has_volumes {
            return NOWHERE;
        }
        let cluster = self.cluster.get_mut();
        let about_units = UnitAsk::of(cluster, unit, shape, &requirements);
        let is_shared = about_units.is_none() && cluster.taken().daemons.find(unit).is_none();
        let key = (shape, hash_of(&requirements));
        if is_shared {
            let alike = self.shared.get(&key).into_iter().flatten();
            let found = alike.copied().find(|class| {
                self.classes.get(*class as usize).is_some_and(|known| known.requirements == requirements)
            });
            if let Some(class) = found {
                return class;
            }
        }
        let class = u32::try_from(self.classes.len()).unwrap_or(NOWHERE);
        self.classes.push(AskClass { unit, group, shape, requirements, about_units, surges });
        if is_shared {
            self.shared.entry(key).or_default().push(class);
        }
        class
    }

    /// Asks all filters about a node, with one replica thought away from the node `without`: from where it moves away it is gone when its
    /// next incarnation comes.
    pub(super) fn ask(&self, class: u32, without: Option<NodeId>, node: NodeId) -> bool {
        let Some(known) = self.classes.get(class as usize) else { return false };
        let mut cluster = self.cluster.borrow_mut();
        let ask = NodeAsk {
            shape: known.shape,
            requirements: &known.requirements,
            unit: known.about_units.as_ref(),
            daemon: cluster.taken().daemons.find(known.unit),
            volume_node: None,
        };
        let mut trial = cluster.trial();
        if let Some(home) = without {
            trial.lift_member(known.unit, home);
        }
        let concerned = godel_framework::concerned(&trial, &ask);
        godel_framework::admit(&trial, ask, concerned, node, true).is_ok()
    }

    /// Returns what a replica of a class would be given on a node, by all filters and by its room, as things are.
    ///
    /// # Errors
    /// What refuses it, in words.
    pub(super) fn place(
        &mut self,
        class: u32,
        id: RunningUnitId,
        node: NodeId,
    ) -> Result<(ShapeId, Allocation), String> {
        let Some(known) = self.classes.get(class as usize) else {
            return Err("its volumes are kept on a node".to_owned());
        };
        let cluster = self.cluster.get_mut();
        let about_units = known.about_units.as_ref();
        if let Some(ask) = about_units.filter(|ask| ask.rules.has_parts()) {
            for rule in ask.rules.segments_of(known.group) {
                cluster
                    .taken()
                    .fits_segment(known.unit, rule, id.replica.ordinal, node)
                    .map_err(|unfit| unfit.to_string())?;
            }
        }
        let ask = NodeAsk {
            shape: known.shape,
            requirements: &known.requirements,
            unit: about_units,
            daemon: cluster.taken().daemons.find(known.unit),
            volume_node: None,
        };
        let concerned = godel_framework::concerned(cluster, &ask);
        let given = godel_framework::admit(cluster, ask, concerned, node, true)
            .and_then(|()| cluster.free().fits(known.shape, node))
            .and_then(|()| {
                let given = cluster.free().pick(known.shape, node).unwrap_or_default();
                cluster.free().grant(known.shape, node, given)
            });
        given.map(|given| (known.shape, given)).map_err(|unfit| unfit.to_string())
    }

    /// Whether a replica of a class stays with the others of its segment, and of its task group if that has to be in one domain.
    pub(super) fn stays_with_its_parts(&self, class: u32, ordinal: u32, node: NodeId) -> bool {
        let Some(known) = self.classes.get(class as usize) else { return false };
        let Some(ask) = known.about_units.as_ref().filter(|ask| ask.rules.has_parts()) else { return true };
        let cluster = self.cluster.borrow();
        let mut parts = ask.rules.segments_of(known.group);
        parts.all(|rule| cluster.taken().fits_segment(known.unit, rule, ordinal, node).is_ok())
    }

    /// Has terms count running units where these moves put them, and nothing else elsewhere than it is. `O(moves)`, and nothing for moves with
    /// the stamp that counts already.
    fn count_moves(&self, stamp: u64, moves: &[(UnitId, NodeId, NodeId)]) {
        if self.stamp.replace(stamp) == stamp {
            return;
        }
        self.after_moves.borrow_mut().clear();
        let (mut moved, mut cluster) = (self.moved.borrow_mut(), self.cluster.borrow_mut());
        for (unit, from, to) in moved.drain(..) {
            cluster.taken_mut().domains.move_member(unit, to, from);
        }
        for (unit, from, to) in moves {
            cluster.taken_mut().domains.move_member(*unit, *from, *to);
        }
        moved.extend_from_slice(moves);
    }

    /// Whether terms admit a running unit with all other moves of a layout made.
    fn admits_after_moves(&self, layout: &Layout<'_>, unit: RunIdx, question: Question) -> bool {
        let stamp = layout.moves_stamp();
        if self.stamp.get() != stamp {
            let id = |node: NodeIdx| layout.node(node).id;
            let moves = layout.moved().iter().map(|other| {
                (layout.facts(*other).id.unit, id(layout.home(*other)), id(layout.node_of(*other)))
            });
            self.count_moves(stamp, &moves.collect::<Vec<_>>());
        }
        let (class, without, to) = question;
        let without = without.map(|_| layout.node(layout.node_of(unit)).id);
        let question = (class, without, to);
        if let Some(answer) = self.after_moves.borrow().get(&question) {
            return *answer;
        }
        let answer = self.ask(class, without, to);
        self.after_moves.borrow_mut().insert(question, answer);
        answer
    }
}

fn hash_of(requirements: &NodeRequirements) -> u64 {
    use std::hash::{Hash as _, Hasher as _};
    let mut hasher = rustc_hash::FxHasher::default();
    let NodeRequirements { node_selector, tolerations, node_affinity, max_load, runtime, has_volumes } =
        requirements;
    (node_selector, tolerations, node_affinity, max_load, runtime, has_volumes).hash(&mut hasher);
    hasher.finish()
}

impl Filters for ClusterFilters {
    fn admits(&self, layout: &Layout<'_>, unit: RunIdx, node: NodeIdx) -> bool {
        let class = self.class_of.get(unit.idx()).copied().unwrap_or(NOWHERE);
        if class == NOWHERE || !NodeFilters.admits(layout, unit, node) {
            return false;
        }
        let (id, to) = (layout.facts(unit).id, layout.node(node).id);
        if self.refused.has_target(id.unit, to) {
            return false;
        }
        let Some(known) = self.classes.get(class as usize) else { return false };
        let has_terms = known.about_units.is_some();
        if has_terms {
            // What moves in one batch stands on both of its nodes for a while.
            let owner = layout.owner(unit);
            let comes_too =
                |other: &RunIdx| *other != unit && layout.owner(*other) == owner && layout.is_moved(*other);
            if layout.on(node).iter().any(comes_too) {
                return false;
            }
            // Wherever the others of its parts go, they stay in the domain in which they are.
            if !self.stays_with_its_parts(class, id.replica.ordinal, to) {
                return false;
            }
        }
        // A replica stays until the one that replaces it runs: that one has to be apart from it as well.
        let without = (has_terms && !known.surges).then(|| layout.node(layout.home(unit)).id);
        let question = (class, without, to);
        let known = self.answers.borrow().get(&question).copied();
        let admits = known.unwrap_or_else(|| {
            if has_terms {
                self.count_moves(0, &[]);
            }
            let answer = self.ask(class, without, to);
            self.answers.borrow_mut().insert(question, answer);
            answer
        });
        let has_moves = layout.moves_stamp() != 0;
        admits && (!has_terms || !has_moves || self.admits_after_moves(layout, unit, question))
    }
}
