//! `godel identity`, `godel join-token` and `godel ca`: verbs and flags.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::Layers;

/// How to add a machine.
pub const JOIN_NODE: &str = "\
Only the token goes to standard output, so that you can write it into a file:
  (umask 077; godel node join-token > join.token)
Copy the file to the other machine and start its agent:
  godel agent --address https://HOST:7700 --join-file join.token
An agent of several nodes, for example of simulated ones, needs a token for their common prefix:
  godel node join-token --names 'sim-*'";

/// Role of a process in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JoinRole {
    /// The agent of nodes.
    Agent,
    /// A dispatcher.
    Dispatcher,
    /// A scheduler.
    Scheduler,
    /// A binder.
    Binder,
    /// A rescheduler.
    Rescheduler,
    /// A YARN adapter.
    Yarn,
}

/// `godel join-token`.
#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct JoinTokenArgs {
    /// What to do with existing tokens.
    #[command(subcommand)]
    pub verb: Option<JoinTokenVerb>,
    /// Role that the token grants.
    #[arg(long, value_enum, required = true)]
    pub role: Option<JoinRole>,
    /// The token.
    #[command(flatten)]
    pub token: NewJoinToken,
}

/// `godel node join-token`.
#[derive(Clone, Debug, ClapArgs)]
pub struct NodeJoinToken {
    /// Pool of the nodes that join with the token.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pub pool: String,
    /// The token.
    #[command(flatten)]
    pub token: NewJoinToken,
}

/// A join token to create.
#[derive(Clone, Debug, ClapArgs)]
pub struct NewJoinToken {
    /// Names for which the token is good: a name, or a prefix followed by `*`. Default: any single name.
    #[arg(long, value_name = "NAMES", default_value = "", hide_default_value = true)]
    pub names: String,
    /// How long the token can be used, at most 30 days.
    #[arg(long, default_value = "1h", value_parser = godel_base::duration::parse_whole)]
    pub ttl: Duration,
    /// How often the token can be used.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub uses: u32,
}

/// What to do with existing join tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum JoinTokenVerb {
    /// List join tokens, without their secrets.
    List,
    /// Delete join tokens. Processes that joined with them are not affected.
    Delete {
        /// Ids of tokens.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// `godel identity`.
#[derive(Clone, Debug, Subcommand)]
pub enum IdentityVerb {
    /// List identities with the standing and the end of their certificates.
    List {
        /// Only identities with this prefix, such as `agent/`.
        #[arg(default_value = "", hide_default_value = true, value_name = "PREFIX")]
        prefix: String,
    },
    /// Revoke identities: their certificates are refused from now on, also on open connections.
    Revoke(NamedIdentities),
    /// Allow one more join under names that are in use or revoked. That join ends the older certificates of the name.
    Allow(NamedIdentities),
}

/// Identities that are named.
#[derive(Clone, Debug, ClapArgs)]
pub struct NamedIdentities {
    /// Role and name, such as `agent/n1`.
    #[arg(required = true, value_name = "IDENTITY")]
    pub identities: Vec<String>,
}

/// `godel ca`.
#[derive(Clone, Debug, Subcommand)]
pub enum Ca {
    /// Show the roots that the cluster trusts, with their fingerprints.
    Show,
    /// Make a new root. It signs 12 h later; then certificates are renewed automatically, and the old root is dropped when nothing needs it.
    Rotate,
    /// Make a new CA in a store that no process has open, for example because the key that seals the old CA is lost. Nodes and running work
    /// stay; services and agents join again.
    New {
        /// Directory of the store.
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// Configuration layers below the flags.
        #[command(flatten)]
        layers: Layers,
    },
}
