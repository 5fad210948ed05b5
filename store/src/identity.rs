//! Which store this is.
//!
//! A store gets an id when it is made; the first commit carries it, and every snapshot after that. A restore and a
//! truncation take back what was acknowledged, so what comes out is another store, with another id: whoever read the
//! old one must not go on as if it were this one. Names, node ids and what was committed before are the same in both,
//! so numbers that were given since must not be given again for something else:
//!
//! - Revisions and ids of units go on `JUMP` beyond the last that is known. No revision and no unit id ever means two
//!   things, whatever remembers it: also a client that says nothing of stores.
//! - Epochs of leases go on `EPOCH_JUMP` beyond the highest, for leases that the store does not know any more too.
//!   With the binder's epochs go the ids of holds, which are made from them.
//!
//! Node ids index dense arrays and cannot leap. They need not: whatever names one names a store, a lease's epoch or
//! a session's epoch beside it.

use godel_base::ids::{Revision, StoreId, UnitId};

use crate::state::State;

/// By how much revisions and ids of units leap: more transactions and more units than a cluster sees between two
/// exports (ten thousand a second for three years), and below 2^53, where numbers in JSON end to be exact, there is room
/// for 8,000 of them.
const JUMP: u64 = 1 << 40;
/// By how much epochs leap: one grant a second for twelve days. Ids of holds and of sessions are the epoch times 2^32, so
/// that there is room for 4,000 of them.
const EPOCH_JUMP: u64 = 1 << 20;
/// Ids are below this: exact in JSON.
const ID_END: u64 = 1 << 53;

/// A new id, at random.
pub fn new_id() -> StoreId {
    StoreId(rand::random_range(1..ID_END))
}

/// Makes `state` another store, after a restore or a truncation: a new id, and nothing that may have been given in
/// what is lost is given again. The result is to be written as a snapshot; its history begins there.
pub fn renew(state: &mut State) -> StoreId {
    let id = new_id();
    renew_as(state, id);
    id
}

/// [`renew`] with an id that is known.
pub fn renew_as(state: &mut State, id: StoreId) {
    let highest = state.leases.values().map(|lease| lease.epoch).max().unwrap_or(0);
    state.store_id = id;
    state.renewed_ms = state.commit_time_ms;
    state.epoch_floor = highest.max(state.epoch_floor) + EPOCH_JUMP;
    state.revision = Revision(state.revision.0 + JUMP);
    state.last_unit_id = UnitId(state.last_unit_id.0 + JUMP);
}

#[cfg(test)]
mod tests;
