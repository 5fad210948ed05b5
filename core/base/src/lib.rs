//! Identifiers, time, quantities and resources: what every other crate of godel counts with.
//!
//! No tokio, no clock, no input or output, no globals, no generated type.
//!
//! # Modules
//!
//! - `duration`: durations as people write them, `90s` or `1h30m`.
//! - `ids`: identifiers and counters as types of their own, and maps by them.
//! - `quantity`: quantities of resources, parsed and printed in Kubernetes' notation.
//! - `resources`: amounts of named resources.
//! - `seed`: numbers that look random and follow from a seed.
//! - `time`: time as decisions see it, in milliseconds.
//! - `words`: counts with their noun, `1 node`, `2 nodes`.

pub mod duration;
pub mod ids;
pub mod quantity;
pub mod resources;
pub mod seed;
pub mod time;
pub mod words;
