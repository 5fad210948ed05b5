//! What a parked unit lacks: units that lack the same wait as one group.

use godel_base::ids::UnitId;
use godel_placement::place::templates::{TemplateId, Templates};
use godel_queueing::QueueIdx;
use smallvec::SmallVec;

use crate::assigned_unit::{AssignedUnit, GroupWork};

/// What parked units lack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaitKey {
    /// Running units that must be placed together; 0 when any one would do.
    pub together: u32,
    /// Templates, those that stand for all that fit the same nodes, ascending, with the running units pending of each; 0
    /// where any one would do.
    pub templates: SmallVec<[(TemplateId, u32); 1]>,
    /// Of those that are placed together, what task groups lack of minima of their own: by template, ascending.
    pub minima: Vec<(TemplateId, u32)>,
    /// The queue, where those of one may be preempted for those of another.
    pub queue: Option<QueueIdx>,
    /// Of a unit for whose first binding room is held: to itself that is free.
    pub own: Option<UnitId>,
}

impl WaitKey {
    /// Any one replica of a template.
    pub(crate) fn one(known: &Templates, template: TemplateId, queue: Option<QueueIdx>) -> Self {
        let templates = smallvec::smallvec![(known.alike(template), 0)];
        Self { together: 0, templates, minima: Vec::new(), queue, own: None }
    }

    /// Any one replica of any of the templates.
    pub(crate) fn any(known: &Templates, templates: &[TemplateId], queue: Option<QueueIdx>) -> Self {
        let mut templates: Vec<TemplateId> =
            templates.iter().map(|template| known.alike(*template)).collect();
        templates.sort_unstable();
        templates.dedup();
        let templates = templates.into_iter().map(|template| (template, 0)).collect();
        Self { together: 0, templates, minima: Vec::new(), queue, own: None }
    }

    /// `together` running units at once, of everything that is pending of a unit.
    pub(crate) fn together(
        known: &Templates,
        assigned: &AssignedUnit,
        together: usize,
        queue: Option<QueueIdx>,
    ) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let of_group = |group: &GroupWork| (known.alike(group.template), count(group.pending().len()));
        let mut templates: Vec<_> = assigned.pending_groups().map(of_group).collect();
        templates.sort_unstable();
        let minima = assigned.minima();
        let mut minima: Vec<_> =
            minima.iter().map(|(group, n)| (known.alike(group.template), count(*n))).collect();
        minima.sort_unstable();
        Self { together: count(together), templates: templates.into(), minima, queue, own: None }
    }
}
