//! Every decision of godel, as plain functions and owned state.
//!
//! No tokio, no clock, no input or output, no globals, no generated type: a decision is a function of owned
//! state, its input, `now` and a seed. Services convert at their edge and move bytes.

pub mod change;
pub mod demand;
pub mod ids;
pub mod node;
pub mod resources;
pub mod rows;
pub mod time;
pub mod unit;
