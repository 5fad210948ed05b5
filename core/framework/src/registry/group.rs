//! The groupers, for profiles and the docs.

use std::sync::Arc;

use serde_json::Value;

use super::args::{BadArgs, parse_args};
use crate::{
    args::{ArgField, PluginArgs},
    plugins::groups::{homogeneous, resource_bucket, unit_topology},
    point::{AnyGrouper, Group},
};

/// Every grouper, in the order in which they add their levels, whatever the order in a profile: a grouper narrows the levels of those
/// before it, and nothing is tried behind a binding level.
pub static GROUPERS: [GrouperEntry; 3] = [
    grouper::<unit_topology::ByTopology>(),
    grouper::<homogeneous::Homogeneous>(),
    grouper::<resource_bucket::ResourceBucket>(),
];

/// A grouper that profiles can name.
#[derive(Debug)]
pub struct GrouperEntry {
    /// [`Plugin::NAME`](crate::point::Plugin::NAME).
    pub name: &'static str,
    /// [`Plugin::DOC`](crate::point::Plugin::DOC).
    pub doc: &'static str,
    /// [`Group::BINDS`].
    pub binds: bool,
    /// [`PluginArgs::FIELDS`].
    pub fields: &'static [ArgField],
    /// Returns the arguments as they are if a profile gives none.
    pub defaults: fn() -> Value,
    build: fn(&Value) -> Result<Arc<dyn AnyGrouper>, BadArgs>,
}

impl GrouperEntry {
    /// Returns the grouper with arguments; null stands for the defaults.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn build(&self, args: &Value) -> Result<Arc<dyn AnyGrouper>, BadArgs> {
        (self.build)(args)
    }
}

const fn grouper<G: Group>() -> GrouperEntry {
    GrouperEntry {
        name: G::NAME,
        doc: G::DOC,
        binds: G::BINDS,
        fields: <G::Args as PluginArgs>::FIELDS,
        defaults: || serde_json::to_value(G::Args::default()).unwrap_or_default(),
        build: build::<G>,
    }
}

fn build<G: Group>(args: &Value) -> Result<Arc<dyn AnyGrouper>, BadArgs> {
    let args = parse_args(G::NAME, args)?;
    Ok(Arc::new(G::new(args).map_err(BadArgs::together)?))
}
