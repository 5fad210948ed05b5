//! Decisions under way: accepted, and not yet read as records.
//!
//! Until its transaction's fate is known a decision takes what was taken for it; once it is committed, until the records
//! show it. Both are told apart here, and nowhere else. Nothing here survives a restart: what was committed is read.

use std::collections::BTreeSet;

use godel_base::ids::{HoldId, IdMap, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::running_units::{Bind, Phase, RunningUnits};
use godel_queueing::{Need, PayerIdx};
use smallvec::SmallVec;

use super::{
    Ticket, Wait,
    quotas::{GroupNeeds, Quotas},
};

/// Decisions under way, by ticket.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    open: IdMap<Ticket, Open>,
    open_of: IdMap<UnitId, SmallVec<[Ticket; 2]>>,
    /// Index of those that have landed: committed, but our reading is not there yet.
    landed: BTreeSet<(Revision, Ticket)>,
    last_ticket: u64,
}

/// A decision under way.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) unit: UnitId,
    /// The replicas that the decision places, ascending.
    pub(super) replicas: SmallVec<[ReplicaId; 1]>,
    landed: Option<Revision>,
    payer: PayerIdx,
    /// What it takes of the queue, but for groups whose rows show it already.
    needs: GroupNeeds,
    /// Most have to do with none.
    holds: Option<Box<OpenHolds>>,
    /// Records were listed anew since: they need not show what became of it.
    pub(super) is_listed: bool,
}

/// Holds that a decision under way has to do with.
#[derive(Debug, Default)]
pub(super) struct OpenHolds {
    /// It makes them.
    pub(super) made: Vec<HoldId>,
    /// It takes their place.
    pub(super) converted: Vec<HoldId>,
    /// It ends them.
    pub(super) ended: Vec<HoldId>,
    /// Running units that have to leave for those made.
    pub(super) victims: Vec<(UnitId, u32)>,
}

impl Open {
    pub(super) fn holds(&self) -> &OpenHolds {
        const NONE: &OpenHolds =
            &OpenHolds { made: Vec::new(), converted: Vec::new(), ended: Vec::new(), victims: Vec::new() };
        self.holds.as_deref().unwrap_or(NONE)
    }

    pub(super) fn contains(&self, replica: ReplicaId) -> bool {
        self.replicas.first().is_some_and(|first| *first <= replica)
            && self.replicas.last().is_some_and(|last| replica <= *last)
            && self.replicas.binary_search(&replica).is_ok()
    }

    /// Gives back what the decision takes of its queue.
    pub(super) fn give_back(&mut self, quotas: &mut Quotas) {
        for (_, need) in std::mem::take(&mut self.needs) {
            quotas.give_back(self.payer, need);
        }
    }
}

impl UnderWay {
    /// Decisions whose transactions are under way, or committed and not read yet.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// A decision was accepted for these replicas of a unit, in any order.
    pub(super) fn open(
        &mut self,
        unit: UnitId,
        mut replicas: SmallVec<[ReplicaId; 1]>,
        payer: PayerIdx,
        needs: GroupNeeds,
        holds: Option<Box<OpenHolds>>,
    ) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        replicas.sort_unstable();
        let open = Open { unit, replicas, landed: None, payer, needs, holds, is_listed: false };
        self.open.insert(ticket, open);
        self.open_of.entry(unit).or_default().push(ticket);
        ticket
    }

    /// The decision of a ticket ends these holds.
    pub(super) fn end_holds(&mut self, ticket: Ticket, ids: impl Iterator<Item = HoldId>) {
        if let Some(open) = self.open.get_mut(&ticket) {
            open.holds.get_or_insert_default().ended.extend(ids);
        }
    }

    /// The transaction of a ticket committed at a revision that is not read yet.
    pub(super) fn land(&mut self, ticket: Ticket, revision: Revision) {
        if let Some(open) = self.open.get_mut(&ticket) {
            open.landed = Some(revision);
            self.landed.insert((revision, ticket));
        }
    }

    /// Takes the next ticket, by revision, that landed at `read` or before.
    pub(super) fn take_landed(&mut self, read: Revision) -> Option<Ticket> {
        let (_, ticket) = self.landed.first().copied().filter(|(landed, _)| *landed <= read)?;
        self.landed.pop_first();
        Some(ticket)
    }

    /// Tickets whose transactions' fates are unknown, ascending.
    pub(super) fn unknown(&self) -> Vec<Ticket> {
        let unknown = self.open.iter().filter(|(_, open)| open.landed.is_none());
        let mut unknown: Vec<Ticket> = unknown.map(|(ticket, _)| *ticket).collect();
        unknown.sort_unstable();
        unknown
    }

    /// A decision is under way no longer.
    pub(super) fn close(&mut self, ticket: Ticket) -> Option<Open> {
        let open = self.open.remove(&ticket)?;
        if let Some(tickets) = self.open_of.get_mut(&open.unit) {
            tickets.retain(|other| *other != ticket);
            if tickets.is_empty() {
                self.open_of.remove(&open.unit);
            }
        }
        if let Some(revision) = open.landed {
            self.landed.remove(&(revision, ticket));
        }
        Some(open)
    }

    /// What shows what became of a decision under way.
    pub(super) fn outcome_of(&self, ticket: Ticket) -> Wait {
        let landed = self.open.get(&ticket).and_then(|open| open.landed);
        landed.map_or(Wait::Ticket(ticket), Wait::Revision)
    }

    /// Tickets of a unit, in the order in which they were opened.
    pub(super) fn of_unit(&self, unit: UnitId) -> impl Iterator<Item = (Ticket, &Open)> {
        let tickets = self.open_of.get(&unit).into_iter().flatten();
        tickets.filter_map(|ticket| Some((*ticket, self.open.get(ticket)?)))
    }

    /// Whether something of a unit is under way.
    pub(super) fn has_unit(&self, unit: UnitId) -> bool {
        self.open_of.contains_key(&unit)
    }

    /// What shows what became of a unit's last decision under way; `None`: there is none.
    pub(super) fn outcome_of_last(&self, unit: UnitId) -> Option<Wait> {
        self.open_of.get(&unit).and_then(|tickets| tickets.last()).map(|ticket| self.outcome_of(*ticket))
    }

    /// What shows what became of the decision that places this running unit; `None`: there is none under way.
    pub(super) fn outcome_for(&self, id: &RunningUnitId) -> Option<Wait> {
        let tickets = self.open_of.get(&id.unit)?;
        let places = |ticket: &&Ticket| self.open.get(*ticket).is_some_and(|open| open.contains(id.replica));
        tickets.iter().find(places).map(|ticket| self.outcome_of(*ticket))
    }

    /// Decisions that have running units of a unit leave.
    pub(super) fn evicting(&self, unit: UnitId) -> impl Iterator<Item = (Ticket, &Open)> {
        let evicts = move |open: &Open| open.holds().victims.iter().any(|(victim, _)| *victim == unit);
        self.open.iter().filter(move |(_, open)| evicts(open)).map(|(ticket, open)| (*ticket, open))
    }

    /// What decisions take of queues, but for what rows show already.
    pub(super) fn needs(&self) -> impl Iterator<Item = (PayerIdx, Need)> {
        self.open.values().flat_map(|open| open.needs.iter().map(|(_, need)| (open.payer, *need)))
    }

    /// A list follows: everything under way counts again, and need not be shown by what follows.
    pub(super) fn reset(&mut self, quotas: &mut Quotas) {
        for open in self.open.values_mut() {
            quotas.add(open.payer, &open.needs);
            open.is_listed = true;
        }
    }

    /// The rows show a binding: what was under way of it does not count a second time.
    pub(super) fn on_bind(&mut self, unit: UnitId, bind: &Bind, quotas: &mut Quotas) {
        let Some(&first) = bind.ordinals.first() else { return };
        let replica = ReplicaId::new(first, bind.incarnations.first().copied().unwrap_or(0));
        for ticket in self.open_of.get(&unit).into_iter().flatten() {
            if let Some(open) = self.open.get_mut(ticket).filter(|open| open.contains(replica)) {
                let payer = open.payer;
                open.needs.retain(|(group, need)| {
                    let is_other = *group != bind.group;
                    if !is_other {
                        quotas.give_back(payer, *need);
                    }
                    is_other
                });
            }
        }
    }

    /// The same after a list. A binding of which only some rows are there yet counts twice until the others come.
    pub(super) fn on_rows_loaded(&mut self, unit: UnitId, rows: &RunningUnits, quotas: &mut Quotas) {
        for ticket in self.open_of.get(&unit).into_iter().flatten() {
            let Some(open) = self.open.get_mut(ticket) else { continue };
            let is_there = |replica: &ReplicaId| {
                let row = rows.row(replica.ordinal);
                row.incarnation > replica.incarnation
                    || (row.incarnation == replica.incarnation && row.phase != Phase::Pending)
            };
            if open.replicas.iter().all(is_there) {
                open.give_back(quotas);
            }
        }
    }
}
