//! Pure rules over records: what is admitted, what may be disturbed, what is divided how.
//!
//! A rule is a function of the records, `now` and its configuration; it knows no cluster and does no input or output.
//!
//! # Modules
//!
//! - `admission`: whether a submission is valid, and the unit that it becomes.
//! - `budget`: what disruption budgets allow.
//! - `compaction`: what is compacted of units that grow and go on.
//! - `daemon`: which nodes a daemon is for, and what that makes of its replicas.
//! - `drain`: what drained nodes may evict.
//! - `history`: what is kept of ended units for accounting.
//! - `lost_nodes`: which nodes are lost, and the brake when many are.
//! - `overload`: how many submissions are taken at once, and when refused callers come back.
//! - `partition_mode`: when nodes are split over schedulers without being told to, and when they are shared again.
//! - `partition`: which scheduler owns which node, in every mode but `global`.
//! - `reservation`: whether reservations may be changed as asked.
//! - `surge`: replicas that start before those stop that they replace.

pub mod admission;
pub mod budget;
pub mod compaction;
pub mod daemon;
pub mod drain;
pub mod history;
pub mod lost_nodes;
pub mod overload;
pub mod partition;
pub mod partition_mode;
pub mod reservation;
pub mod surge;
