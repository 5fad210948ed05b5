//! Disruption budgets: checked in turn, with every eviction under way counted, so that no two decisions together take more
//! than one allows. What is written rests on the records of the budgets.
//!
//! Budgets hold back preemptions, and drains until their deadline. They do not hold back what a unit wants of itself, the
//! loss of a node, or the squeezing of best-effort running units.

use std::sync::Arc;

use godel_domain::{
    budget_spec::BudgetSpec,
    decision::RejectionReason,
    hold,
    ids::{Revision, UnitId},
    running_units::{Evict, EvictionReason},
};
use godel_rules::budget::Spent;

use super::{Binder, claims::Wrong};

/// An eviction to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Whose.
    pub unit: UnitId,
    /// Who of it.
    pub evict: Evict,
    /// Disruption budgets that it rests on, with the revisions of their records: preconditions.
    pub budgets: Vec<(String, Revision)>,
}

impl Binder {
    pub(super) fn put_budget(&mut self, spec: Arc<BudgetSpec>, revision: Revision) {
        if self.cluster.put_budget(spec, revision) {
            for (unit, known) in &self.units {
                self.cluster.offer(*unit, &known.identity, || known.wanted());
            }
        }
    }

    /// A unit's record is another one.
    pub(super) fn offer(&mut self, unit: UnitId) {
        if self.cluster.budgets().is_empty() {
            return;
        }
        if let Some(known) = self.units.get(&unit) {
            self.cluster.offer(unit, &known.identity, || known.wanted());
        }
    }

    /// The budgets that victims rest on, if these allow them all to leave.
    ///
    /// # Errors
    /// One does not.
    pub(super) fn afford<'a>(
        &self,
        victims: impl Iterator<Item = &'a hold::Member>,
    ) -> Result<Vec<(String, Revision)>, Wrong> {
        let budgets = self.cluster.budgets();
        if budgets.is_empty() {
            return Ok(Vec::new());
        }
        let mut spent = Spent::default();
        let mut node = None;
        for victim in victims {
            if let Some(rows) = self.cluster.rows(victim.unit) {
                let row = rows.row(victim.ordinal);
                node = node.or(Some(row.node));
                budgets.spend(victim.unit, victim.ordinal, &row, &mut spent);
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
        let known = spent.budgets().filter_map(|budget| self.cluster.budgets().at(budget));
        known.map(|budget| (budget.spec.name.clone(), budget.revision)).collect()
    }

    /// One eviction of those asked for, as far as it makes sense now and budgets allow it; it counts as under way until the
    /// rows show it, or [`Self::departure_refused`]. `None`: nothing of it is to be written.
    pub fn depart(&mut self, unit: UnitId, evict: Evict) -> Option<Departure> {
        let (unit, mut evict) = self.evictions(&[(unit, evict)]).pop()?;
        let budgets = match evict.reason {
            EvictionReason::Drained => self.keep_some(unit, &mut evict),
            _ => Vec::new(),
        };
        // Under way they count for budgets too that are not known yet, and nobody else has them leave.
        let Self { departing, cluster, .. } = self;
        let members = evict.members().map(|(ordinal, incarnation)| ((unit, ordinal), incarnation));
        let departs =
            |(member, incarnation)| departing.insert(member, incarnation).is_none().then_some(member);
        cluster.depart(members.filter_map(departs));
        (!evict.ordinals.is_empty()).then_some(Departure { unit, evict, budgets })
    }

    /// Takes out of a drain's eviction what budgets keep: of a gang everything that they count, or nothing.
    fn keep_some(&mut self, unit: UnitId, evict: &mut Evict) -> Vec<(String, Revision)> {
        let (Some(rows), budgets) = (self.cluster.rows(unit), self.cluster.budgets()) else {
            return Vec::new();
        };
        let is_forced = |node| {
            let drain = self.cluster.spec(node).and_then(|spec| spec.drain.as_ref());
            drain.is_some_and(|drain| drain.is_overdue(self.now_ms))
        };
        let mut spent = Spent::default();
        // Position, and whether a budget counts it.
        let mut leaving: Vec<(usize, bool)> = Vec::with_capacity(evict.ordinals.len());
        let mut is_kept = false;
        for (idx, &ordinal) in evict.ordinals.iter().enumerate() {
            let row = rows.row(ordinal);
            if !is_forced(row.node) && self.cluster.frozen().keeps_budgets() {
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

    /// The transaction of an eviction was refused.
    pub fn departure_refused(&mut self, unit: UnitId, evict: &Evict) {
        self.departures_shown(unit, evict.members());
    }

    /// Whether an eviction of this incarnation is under way.
    pub(super) fn departs(&self, unit: UnitId, ordinal: u32, incarnation: u32) -> bool {
        self.departing.get(&(unit, ordinal)) == Some(&incarnation)
    }

    /// The rows show evictions of these incarnations or of later ones, or they are not made.
    pub(super) fn departures_shown(&mut self, unit: UnitId, members: impl Iterator<Item = (u32, u32)>) {
        if self.departing.is_empty() {
            return;
        }
        let is_known = |(ordinal, incarnation): &(u32, u32)| {
            self.departing.get(&(unit, *ordinal)).is_some_and(|departing| *departing <= *incarnation)
        };
        let shown: Vec<(UnitId, u32)> =
            members.filter(is_known).map(|(ordinal, _)| (unit, ordinal)).collect();
        for member in &shown {
            self.departing.remove(member);
        }
        self.stay(shown);
    }

    /// The same after a list: who leaves by now, has left, or is there again.
    pub(super) fn settle_departures(&mut self, unit: UnitId) {
        if self.departing.is_empty() {
            return;
        }
        let Some(rows) = self.cluster.rows(unit) else { return };
        let shown = (0u32..).zip(&rows.rows).filter_map(|(ordinal, row)| {
            let is_past = row.eviction.is_some() || !row.phase.is_live();
            let past = if is_past { Some(row.incarnation) } else { row.incarnation.checked_sub(1) };
            Some((ordinal, past?))
        });
        let shown: Vec<(u32, u32)> = shown.collect();
        self.departures_shown(unit, shown.into_iter());
    }

    /// The fate of what is under way is unknown: what was committed is read as records.
    pub(super) fn give_up_departures(&mut self) {
        let gone: Vec<(UnitId, u32)> = self.departing.drain().map(|(member, _)| member).collect();
        self.stay(gone);
    }

    /// One eviction of these is under way no longer; of some there may be another.
    pub(super) fn stay(&mut self, members: impl IntoIterator<Item = (UnitId, u32)>) {
        let Self { departing, holds, cluster, .. } = self;
        let stays = |(unit, ordinal): &(UnitId, u32)| {
            !departing.contains_key(&(*unit, *ordinal)) && !holds.is_leaving(*unit, *ordinal)
        };
        cluster.arrive(members.into_iter().filter(stays));
    }
}
