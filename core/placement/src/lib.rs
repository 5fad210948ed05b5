//! Where running units go: snapshot in, plan out.
//!
//! # Modules
//!
//! - `explain`: why a unit finds no place, counted over the nodes.
//! - `gang`: nodes on which a gang that waits for long gathers room.
//! - `place`: the search for nodes: candidates, filters, scores.
//! - `preempt`: the search for victims.
//! - `profiles`: the profiles of a scheduler: by name, and by what chooses them.

pub mod explain;
pub mod gang;
pub mod place;
pub mod preempt;
pub mod profiles;
