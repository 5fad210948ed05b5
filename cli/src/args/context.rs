//! `godel context`: verbs and flags.

use clap::{Args as ClapArgs, Subcommand};

/// `godel context`.
#[derive(Clone, Debug, Subcommand)]
pub enum ContextVerb {
    /// List contexts.
    List,
    /// Create a context, or change it. The first one becomes the current one.
    Set(ContextSettings),
    /// Make a context the current one, to whose cluster commands go.
    Use(NamedContext),
    /// Delete a context from the file. Its cluster stays as it is.
    Delete(NamedContext),
}

/// A context that is named.
#[derive(Clone, Debug, ClapArgs)]
pub struct NamedContext {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `godel context set`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ContextSettings {
    /// The context.
    #[command(flatten)]
    pub context: NamedContext,
    /// Address of state, as `http://10.0.0.7:7700`.
    #[arg(long = "state", value_name = "URL")]
    pub state: String,
}
