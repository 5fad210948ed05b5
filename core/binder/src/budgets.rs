//! Disruption budgets: checked in turn, with every eviction under way counted, so that no two decisions together take more
//! than one allows. What is written rests on the records of the budgets.
//!
//! Budgets hold back preemptions, and drains until their deadline. They do not hold back what a unit wants of itself, the
//! loss of a node, or the squeezing of best-effort running units.

use godel_base::ids::{Revision, RunningUnitId, UnitId};
use godel_domain::{decision::RejectionReason, running_units::Evict};
use godel_rules::budget::Spent;

use super::{claims::Wrong, picture::BinderPicture};

impl BinderPicture {
    /// The budgets that victims rest on, if these allow them all to leave.
    ///
    /// # Errors
    /// One does not.
    pub(super) fn afford<'a>(
        &self,
        victims: impl Iterator<Item = &'a RunningUnitId>,
    ) -> Result<Vec<(String, Revision)>, Wrong> {
        let budgets = self.cluster.taken().budgets();
        if budgets.is_empty() {
            return Ok(Vec::new());
        }
        let mut spent = Spent::default();
        let mut node = None;
        for victim in victims {
            if let Some(rows) = self.cluster.rows().of(victim.unit) {
                let row = rows.row(victim.replica.ordinal);
                node = node.or(Some(row.node));
                budgets.spend(victim.unit, victim.replica.ordinal, &row, &mut spent);
            }
        }
        match budgets.exceeded(&spent).and_then(|budget| budgets.at(budget)) {
            None => Ok(self.records(&spent)),
            Some(budget) => {
                let (name, allowed) = (&budget.spec.name, budget.allowed());
                let detail = format!("disruption budget {name} allows {allowed} to leave now");
                Err((RejectionReason::VictimGone, node.unwrap_or_default(), detail))
            }
        }
    }

    fn records(&self, spent: &Spent) -> Vec<(String, Revision)> {
        let known = spent.budgets().filter_map(|budget| self.cluster.taken().budgets().at(budget));
        known.map(|budget| (budget.spec.name.clone(), budget.revision)).collect()
    }

    /// Takes out of a drain's eviction what budgets keep: of a gang everything that they count, or nothing.
    pub(super) fn keep_some(&mut self, unit: UnitId, evict: &mut Evict) -> Vec<(String, Revision)> {
        let (Some(rows), budgets) = (self.cluster.rows().of(unit), self.cluster.taken().budgets()) else {
            return Vec::new();
        };
        let is_forced = |node| {
            let drain = self.cluster.nodes().spec(node).and_then(|spec| spec.drain.as_ref());
            drain.is_some_and(|drain| drain.is_overdue(self.now_ms))
        };
        let mut spent = Spent::default();
        // Position, and whether a budget counts it.
        let mut leaving: Vec<(usize, bool)> = Vec::with_capacity(evict.ordinals.len());
        let mut is_kept = false;
        for (idx, &ordinal) in evict.ordinals.iter().enumerate() {
            let row = rows.row(ordinal);
            if !is_forced(row.node) && self.cluster.nodes().frozen().keeps_budgets() {
                is_kept = true;
            } else if is_forced(row.node) || budgets.counting(unit, ordinal, &row).is_empty() {
                leaving.push((idx, false));
            } else if budgets.forbids(unit, ordinal, &row, &spent).is_none() {
                budgets.spend(unit, ordinal, &row, &mut spent);
                leaving.push((idx, true));
            } else {
                is_kept = true;
            }
        }
        if is_kept && self.units.get(&unit).is_some_and(|unit| unit.is_gang()) {
            leaving.retain(|(_, counts)| !counts);
            spent = Spent::default();
        }
        let incarnations =
            leaving.iter().filter_map(|(idx, _)| evict.incarnations.get(*idx).copied()).collect();
        let ordinals: Vec<u32> = leaving.iter().map(|(idx, _)| evict.ordinals[*idx]).collect();
        let records = self.records(&spent);
        (evict.ordinals, evict.incarnations) = (ordinals, incarnations);
        records
    }
}
