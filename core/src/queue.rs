//! Queues: who may use how much, and who goes first.
//!
//! [`spec`] is what people write, [`check`] whether they may, [`QueueTree`] what follows from the records alone.
//! [`Usage`] counts against them, for the binder, which enforces maxima ([`Quota`]), and for the dispatcher, which
//! serves what waits in their order ([`Queues`]). Nothing here is stored: records and rows are, and everything is
//! counted anew from them.

pub mod check;
mod classes;
mod full;
mod gate;
mod heap;
mod interned;
mod lane;
mod leaf;
pub mod order;
mod quota;
mod relief;
mod rooms;
mod select;
pub mod spec;
mod tree;
mod usage;

pub use self::{
    classes::PriorityClasses,
    full::Standing,
    order::{Account, Config, OwnerIdx, Queues, Waiting},
    quota::Quota,
    rooms::RoomIdx,
    select::Hindrance,
    tree::{NotAdmitted, QueueIdx, QueueTree},
    usage::{AskId, Headroom, Limit, Need, ResourceIdx, Turn, Usage},
};
pub(crate) use self::{
    relief::{Reliefs, lent},
    usage::{Amounts, Lack, at, sum_of},
};
