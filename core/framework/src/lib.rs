//! The scheduling framework: what a plugin is, and the profiles that select and weigh plugins.
//!
//! # Modules
//!
//! - `args`: arguments of plugins, as a profile in the configuration gives them.
//! - `ask`: what one replica asks of a node, resolved against the cluster as it is now.
//! - `docs`: the reference of plugins and profiles, generated for `docs/plugins.md`.
//! - `plugins`: the plugins, one file each.
//! - `point`: the extension points: what a plugin can do, and when it is asked.
//! - `profile`: profiles, which select and weigh plugins.
//! - `registry`: the one list of all plugins.
//! - `typical`: the device work that a scheduler sees most.

pub mod args;
pub mod ask;
pub mod docs;
pub mod plugins;
pub mod point;
pub mod profile;
pub mod registry;
pub mod typical;

pub use self::{
    ask::{Ask, NodeAsk, NodeRequirements, UnitAsk},
    point::{SCORE_MAX, ScoreInput},
    profile::{NodeScore, Profile},
    registry::{ConcernedFilters, admit, concerned},
    typical::Typical,
};
