//! `godel context`: verbs and flags.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// `godel context`.
#[derive(Clone, Debug, Subcommand)]
pub enum ContextVerb {
    /// List contexts.
    List,
    /// Create a context, or change it. The first one becomes the current one.
    Set(ContextSettings),
    /// Take a token from the socket of state on this machine, and keep it in a context with what proves that the cluster is the
    /// right one.
    Login(LoginArgs),
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

/// `godel context login`.
#[derive(Clone, Debug, ClapArgs)]
pub struct LoginArgs {
    /// Name of the context. Default: that of the cluster.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The socket of state, which its owner alone may open.
    #[arg(long, default_value = "godel-data/godel.sock", value_name = "FILE")]
    pub socket: PathBuf,
    /// Address of state, to which commands go with the token.
    #[arg(long = "state", default_value = "https://127.0.0.1:7700", value_name = "URL")]
    pub state: String,
}
