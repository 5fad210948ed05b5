//! Queues: who may use how much, and who goes first.
//!
//! [`godel_domain::queue_spec`] is what people write, [`check`] whether they may, [`QueueTree`] what follows from the records alone.
//! [`Usage`] counts against them, for the binder, which enforces maxima ([`Quota`]), and for the dispatcher, which
//! serves what waits in their order ([`Queues`]). Nothing here is stored: records and rows are, and everything is
//! counted anew from them.
//!
//! # Modules
//!
//! - `check`: whether queues and priority classes may be changed as asked.
//! - `fifo`: units of one priority band that are served one after the other.
//! - `full`: units that wait for room under a maximum of their queue.
//! - `heap`: a priority queue whose members can be moved and taken out.
//! - `interned`: small integers for values that come and go with the units that have them.
//! - `leaf`: the units of one queue, in the order of its policy.
//! - `limit_gate`: what waits for room under the maximum of one queue.
//! - `order`: which unit is served next.
//! - `policies`: the orders by which units are served, by name.
//! - `quota`: the tree of queues together with what each of them uses.
//! - `relief`: what victims give up in a queue for the holds that they back.
//! - `rooms`: units that wait for room on nodes, by what they need.
//! - `select`: the choice of the next unit, and why another one is not served.
//! - `tree`: the tree of queues, with guarantees and maxima.
//! - `usage`: what each queue uses, against what it may and what it is guaranteed.

pub mod check;
mod fifo;
mod full;
mod heap;
mod interned;
mod leaf;
mod limit_gate;
pub mod order;
pub mod policies;
mod quota;
mod relief;
mod rooms;
mod select;
mod tree;
mod usage;

pub use self::{
    full::{VictimClass, VictimCount},
    order::{Account, Config, OwnerIdx, Queues, Waiting},
    quota::Quota,
    rooms::{RoomIdx, RoomWaits},
    select::{FloorChange, PendingReason},
    tree::{QueueIdx, QueueTree},
    usage::{AskId, Headroom, Need, OwnerLimitIdx, PayerIdx, QueueMaximum, ResourceIdx, ShareKey, Usage},
};
pub use self::{
    relief::{Reliefs, lent},
    usage::{Amounts, Guarantees, Lack, MoveLack, OwnerTable, QueueSums, at, sum_of},
};
