//! Reservations: room that is kept for running units of some units, whether these are there yet or not.
//!
//! A reservation has so many *slots*, each with room for one running unit. The binder holds a slot wherever there is room
//! (`usable_slots`), and says so with a [`Hold`](godel_domain::hold::Hold); nobody but an owner gets that room. A running unit of an
//! owner that a slot has everything for takes the slot when it is bound on its node. As long as it is there the slot keeps
//! no more than what the running unit leaves of it; then all of it again, on the same node.

pub mod check;
#[cfg(test)]
mod tests;
