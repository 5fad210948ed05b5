//! Arguments of plugins, as a profile in the configuration gives them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// One argument of a plugin, for the docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgField {
    /// The key.
    pub name: &'static str,
    /// What values it takes.
    pub kind: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// The arguments of a plugin: a struct that refuses unknown keys and has a default for each.
pub trait PluginArgs: Default + Serialize + DeserializeOwned {
    /// Every key.
    const FIELDS: &'static [ArgField];
}

/// Arguments of a plugin that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoArgs {}

impl PluginArgs for NoArgs {
    const FIELDS: &'static [ArgField] = &[];
}
