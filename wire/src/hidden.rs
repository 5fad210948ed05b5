//! Answers without the names of units that their reader may not see.
//!
//! What leaves units out as a whole, as lists do, leaves them out where it is made. This is for answers about something else, in which units are named: nodes,
//! budgets, reservations, movements, and units that others preempted. Each answer that can name a unit of another namespace has its place here; the test
//! `answers_name_no_unit_that_is_not_seen` of `godel-state` fills every text of every answer and fails when one is neither hidden nor known to name no unit.

use godel_domain::sight::{HIDDEN, Sight};
use godel_proto::v1;

/// An answer that may name units.
pub trait HideNames {
    /// Hides the names of units that are not in sight.
    fn hide_names(&mut self, sight: &Sight);

    /// The same, for an answer that is passed on.
    #[must_use]
    fn within_sight(mut self, sight: &Sight) -> Self
    where
        Self: Sized,
    {
        if !sight.is_all() {
            self.hide_names(sight);
        }
        self
    }
}

impl<T: HideNames> HideNames for Vec<T> {
    fn hide_names(&mut self, sight: &Sight) {
        self.iter_mut().for_each(|one| one.hide_names(sight));
    }
}

impl<T: HideNames> HideNames for Option<T> {
    fn hide_names(&mut self, sight: &Sight) {
        self.iter_mut().for_each(|one| one.hide_names(sight));
    }
}

/// The unit itself is in sight.
impl HideNames for v1::Unit {
    fn hide_names(&mut self, sight: &Sight) {
        sight.hide_within(&mut self.waits_for);
        self.preempted_by.iter_mut().for_each(|unit| sight.hide_name(unit));
    }
}

impl HideNames for v1::RunningUnit {
    fn hide_names(&mut self, sight: &Sight) {
        let by = self.last_eviction.as_mut().map(|eviction| &mut eviction.by);
        // All else that has replicas leave is named by its node or by the unit itself, perhaps with the key of a taint.
        if let Some(by) = by.filter(|by| by.starts_with("unit ")) {
            sight.hide_within(by);
        }
    }
}

impl HideNames for v1::GetUnitResponse {
    fn hide_names(&mut self, sight: &Sight) {
        self.unit.hide_names(sight);
        self.running_units.hide_names(sight);
    }
}

impl HideNames for v1::ListUnitsResponse {
    fn hide_names(&mut self, sight: &Sight) {
        self.units.hide_names(sight);
    }
}

impl HideNames for v1::GetNodeResponse {
    fn hide_names(&mut self, sight: &Sight) {
        self.running_units.iter_mut().for_each(|one| sight.hide_name(&mut one.unit_name));
        self.volumes.iter_mut().for_each(|one| sight.hide_name(&mut one.unit_name));
    }
}

impl HideNames for v1::ListRunUsageResponse {
    fn hide_names(&mut self, sight: &Sight) {
        self.unit_names.values_mut().for_each(|name| sight.hide_name(name));
    }
}

/// A budget of another namespace does not say of which unit it is.
impl HideNames for v1::DisruptionBudgetStatus {
    fn hide_names(&mut self, sight: &Sight) {
        if let Some(budget) = &mut self.budget
            && !budget.unit.is_empty()
            && !sight.sees(&budget.namespace)
        {
            HIDDEN.clone_into(&mut budget.unit);
        }
    }
}

impl HideNames for v1::ReservationStatus {
    fn hide_names(&mut self, sight: &Sight) {
        self.places.iter_mut().for_each(|place| sight.hide_name(&mut place.unit));
    }
}

impl HideNames for v1::GetDrainResponse {
    fn hide_names(&mut self, sight: &Sight) {
        self.blocked.iter_mut().for_each(|block| sight.hide_name(&mut block.unit_name));
    }
}

/// Keeps the moves of units in sight alone.
impl HideNames for v1::Movement {
    fn hide_names(&mut self, sight: &Sight) {
        sight.hide_within(&mut self.finding);
        sight.hide_within(&mut self.message);
        self.moves.retain(|one| sight.sees_unit(&one.unit));
        for reason in self.moves.iter_mut().filter_map(|one| one.reason.as_mut()) {
            [&mut reason.why_unit, &mut reason.why_node, &mut reason.why_now]
                .into_iter()
                .for_each(|why| sight.hide_within(why));
        }
    }
}

impl HideNames for v1::MovementSummary {
    fn hide_names(&mut self, sight: &Sight) {
        self.movement.hide_names(sight);
    }
}

impl HideNames for v1::ReschedulePolicy {
    fn hide_names(&mut self, sight: &Sight) {
        sight.hide_within(&mut self.last_result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight() -> Sight {
        Sight::of(["team-a".to_owned()])
    }

    #[test]
    fn a_unit_does_not_say_which_foreign_unit_preempted_it() {
        let eviction = |by: &str| v1::LastEviction { by: by.to_owned(), ..v1::LastEviction::default() };
        let row =
            |by: &str| v1::RunningUnit { last_eviction: Some(eviction(by)), ..v1::RunningUnit::default() };
        let answer = v1::GetUnitResponse {
            unit: Some(v1::Unit {
                waits_for: "waits again, as prod/db took over the room".to_owned(),
                preempted_by: vec![
                    "prod/db".to_owned(),
                    "team-a/x".to_owned(),
                    "unit 7, which is gone".to_owned(),
                ],
                ..v1::Unit::default()
            }),
            running_units: vec![row("unit prod/db"), row("taint a/b:no-execute of node n1")],
            next_page_token: String::new(),
        };
        assert_eq!(answer.clone().within_sight(&Sight::All), answer);
        let shown = answer.within_sight(&sight());
        let unit = shown.unit.unwrap();
        assert_eq!(unit.waits_for, "waits again, as (hidden) took over the room");
        assert_eq!(unit.preempted_by, [HIDDEN, "team-a/x", "unit 7, which is gone"]);
        let by: Vec<_> = shown.running_units.into_iter().map(|row| row.last_eviction.unwrap().by).collect();
        assert_eq!(by, ["unit (hidden)", "taint a/b:no-execute of node n1"]);
    }

    #[test]
    fn a_movement_shows_the_moves_of_units_in_sight() {
        let one = |unit: &str| v1::MovementMove {
            unit: unit.to_owned(),
            reason: Some(v1::MovementReason {
                why_unit: format!("`{unit}` and `prod/db`"),
                ..Default::default()
            }),
            ..v1::MovementMove::default()
        };
        let movement = v1::Movement {
            finding: "`prod/db` is hot".to_owned(),
            moves: vec![one("team-a/web"), one("prod/db"), one("unit 9")],
            ..v1::Movement::default()
        };
        let shown = movement.within_sight(&sight());
        assert_eq!(shown.finding, "`(hidden)` is hot");
        let units: Vec<&str> = shown.moves.iter().map(|one| one.unit.as_str()).collect();
        assert_eq!(units, ["team-a/web"]);
        assert_eq!(shown.moves[0].reason.as_ref().unwrap().why_unit, "`team-a/web` and `(hidden)`");
    }

    #[test]
    fn a_foreign_budget_hides_its_unit() {
        let budget = |namespace: &str, unit: &str| v1::DisruptionBudgetStatus {
            budget: Some(v1::DisruptionBudget {
                namespace: namespace.to_owned(),
                unit: unit.to_owned(),
                ..v1::DisruptionBudget::default()
            }),
            ..v1::DisruptionBudgetStatus::default()
        };
        for (namespace, unit, expected) in
            [("team-a", "web", "web"), ("prod", "db", HIDDEN), ("", "db", HIDDEN), ("prod", "", "")]
        {
            let shown = budget(namespace, unit).within_sight(&sight());
            assert_eq!(shown.budget.unwrap().unit, expected, "{namespace}");
        }
    }
}
