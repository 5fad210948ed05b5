//! Transactions that the store refused: who caused it waits for what it collided with, the others go again.

use godel_base::ids::Revision;
use godel_domain::{
    decision::RejectionReason,
    requested_move::MoveRefusal,
    txn::{TxnRefusal, TxnRefusalReason},
};

use super::{
    BinderLeader, BinderNote, BinderOutbox, EvictFailure, EvictPart, N_ATTEMPTS_MAX,
    batch::{Batch, Item},
    everything,
    move_jobs::MovePart,
    recheck,
};
use crate::{Departure, Wait, moves::move_refused};

impl BinderLeader {
    /// The store refused a transaction: its items are taken back. The one that it was refused for is checked
    /// again once what it collided with has been read, the others at once.
    pub fn on_refused(&mut self, batch: Batch, refusal: &TxnRefusal, out: &mut impl BinderOutbox) {
        out.note(BinderNote::Refused(refusal));
        let (reason, idx) = (refusal.reason, refusal.index);
        let offenders = match reason {
            TxnRefusalReason::Precondition | TxnRefusalReason::FutureRevision => {
                batch.items_of_precondition(idx)
            }
            TxnRefusalReason::RowConflict
            | TxnRefusalReason::NodeChanged
            | TxnRefusalReason::Invalid
            | TxnRefusalReason::Forbidden => batch.item_of_op(idx),
            // Nobody's fault.
            TxnRefusalReason::StoreFull | TxnRefusalReason::StaleEpoch | TxnRefusalReason::StoreChanged => {
                Vec::new()
            }
        };
        let hopeless = reason.is_final();
        let by_record = matches!(reason, TxnRefusalReason::Precondition | TxnRefusalReason::NodeChanged);
        let at = match refusal.revision {
            Revision(0) => Revision(batch.read.0 + 1),
            revision => revision,
        };
        for (idx, item) in batch.items.into_iter().enumerate() {
            let offends = offenders.contains(&idx);
            match item {
                Item::Decision { mut queued, accepted } => {
                    self.binder.take_back(accepted.ticket);
                    recheck(self.queue.on_ticket(accepted.ticket), out);
                    queued.attempts += u32::from(offends);
                    let is_worn = queued.attempts > N_ATTEMPTS_MAX;
                    if offends && (hopeless || (is_worn && !by_record)) {
                        let reason = if hopeless { RejectionReason::Invalid } else { RejectionReason::Stale };
                        let rejections = vec![everything(&queued.decision, reason, refusal.message.clone())];
                        self.answer(&queued, Revision(0), false, rejections, out);
                    } else if offends && (is_worn || at > self.binder.revision()) {
                        // Records may change as often as they like, but we have to see them do so.
                        let at = if is_worn { at.max(Revision(self.binder.revision().0 + 1)) } else { at };
                        self.queue.park(queued, Wait::Revision(at));
                    } else {
                        self.queue.push(queued);
                    }
                }
                Item::Convert(accepted) => {
                    self.binder.take_back(accepted.ticket);
                    recheck(self.queue.on_ticket(accepted.ticket), out);
                    if offends {
                        self.holds_from = at;
                    }
                }
                Item::Reserve { holds, .. } => {
                    self.binder.unreserve(&holds);
                    if offends {
                        self.holds_from = at;
                    }
                }
                Item::Drop { holds, .. } => {
                    self.binder.keep_holds(&holds);
                    if offends {
                        self.holds_from = at;
                    }
                }
                Item::Requeue(work) => {
                    self.binder.requeue_refused(&work);
                    if offends {
                        self.requeue_from = at;
                    }
                }
                Item::Evict { job, departure, attempts } => {
                    let Departure { unit, evict, .. } = *departure;
                    self.binder.departure_refused(unit, &evict);
                    let part = EvictPart { job, unit, evict, attempts: attempts + u32::from(offends) };
                    if part.attempts > N_ATTEMPTS_MAX || (offends && hopeless) {
                        self.jobs.fail(job, EvictFailure::Refused(refusal.message.clone()), out);
                    } else if offends && at > self.binder.revision() {
                        self.evictions_waiting.push((at, part));
                    } else {
                        self.evictions.push_back(part);
                    }
                }
                Item::Move { part, accepted } => {
                    move_refused(&mut self.binder, &accepted);
                    self.retry_move(part, refusal, offends, at, out);
                }
            }
        }
    }

    /// A move whose transaction was refused is judged again, if it `offends` once `at` is read, up to a limit.
    fn retry_move(
        &mut self,
        mut part: MovePart,
        refusal: &TxnRefusal,
        offends: bool,
        at: Revision,
        out: &mut impl BinderOutbox,
    ) {
        let (read, hopeless) = (self.binder.revision(), refusal.reason.is_final());
        part.attempts += u32::from(offends);
        if part.attempts > N_ATTEMPTS_MAX || (offends && hopeless) {
            let (reason, detail) = (RejectionReason::Stale, refusal.message.clone());
            out.note(BinderNote::MoveRefused(reason));
            self.moves.settle(&part, Err(MoveRefusal { reason, later: !hopeless, detail }), read, out);
        } else {
            self.moves.put_back(part, (offends && at > read).then_some(at));
        }
    }
}
