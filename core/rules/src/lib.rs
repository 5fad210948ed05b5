//! Pure rules over records: what is admitted, what may be disturbed, who leads, who is lost.
//!
//! A rule is a function of the records, `now` and its configuration; it knows no cluster and does no input or output.
//!
//! # Modules
//!
//! - `admission`: whether a submission is valid, and the unit that it becomes.
//! - `agent_admission`: what an agent checks of an assignment before it starts it.
//! - `budget`: what disruption budgets allow.
//! - `compaction`: what is compacted of units that grow and go on.
//! - `daemon`: which nodes a daemon is for, and what that makes of its replicas.
//! - `drain`: what drained nodes may evict.
//! - `front_door`: which member answers a call that comes to state.
//! - `frozen`: what is frozen because of records that this version cannot read.
//! - `history`: what is kept of ended units for accounting.
//! - `leases`: leases in force, judged on one monotonic clock.
//! - `load_window`: percentiles of a node's use, as its agent measures them.
//! - `lost_nodes`: which nodes are lost, and the brake when many are.
//! - `node_absence`: when the record of a node goes by itself.
//! - `node_failures`: when it is a node's fault that what is placed there fails.
//! - `node_identity`: who speaks for a node when several agents claim it.
//! - `node_usage`: smoothed use of a node's guaranteed running units.
//! - `overload`: how many submissions are taken at once, and when refused callers come back.
//! - `partition_mode`: when nodes are split over schedulers without being told to, and when they are shared again.
//! - `partition`: which scheduler owns which node, in every mode but `global`.
//! - `quarantine`: when a node whose agent refuses assignments gets nothing more for a while.
//! - `reservation`: whether reservations may be changed as asked.
//! - `surge`: replicas that start before those stop that they replace.

pub mod admission;
pub mod agent_admission;
pub mod budget;
pub mod compaction;
pub mod daemon;
pub mod drain;
pub mod front_door;
pub mod frozen;
pub mod history;
pub mod leases;
pub mod load_window;
pub mod lost_nodes;
pub mod node_absence;
pub mod node_failures;
pub mod node_identity;
pub mod node_usage;
pub mod overload;
pub mod partition;
pub mod partition_mode;
pub mod quarantine;
pub mod reservation;
pub mod surge;
