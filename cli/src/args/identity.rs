//! `godel identity`, `godel join-token` and `godel ca`: verbs and flags.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::Layers;

/// How a machine is added.
pub const JOIN_NODE: &str = "\
The token is printed alone, so that it can go into a file:
  (umask 077; godel node join-token > join.token)
With that file on the other machine:
  godel agent --address https://HOST:7700 --join-file join.token
An agent of several nodes, as simulated ones, needs a token for what all their names begin with:
  godel node join-token --names 'sim-*'";

/// What a process is for the cluster.
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
    /// What to do with tokens that there are.
    #[command(subcommand)]
    pub verb: Option<JoinTokenVerb>,
    /// The role that the token gives.
    #[arg(long, value_enum, required = true)]
    pub role: Option<JoinRole>,
    /// The token.
    #[command(flatten)]
    pub token: NewJoinToken,
}

/// `godel node join-token`.
#[derive(Clone, Debug, ClapArgs)]
pub struct NodeJoinToken {
    /// Pool of the nodes that join with it.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pub pool: String,
    /// The token.
    #[command(flatten)]
    pub token: NewJoinToken,
}

/// A join token to create.
#[derive(Clone, Debug, ClapArgs)]
pub struct NewJoinToken {
    /// Names that it gives: a name, or the beginning of names followed by `*`. Default: any single name.
    #[arg(long, value_name = "NAMES", default_value = "", hide_default_value = true)]
    pub names: String,
    /// How long it may be used, at most 30 days.
    #[arg(long, default_value = "1h", value_parser = godel_base::duration::parse_whole)]
    pub ttl: Duration,
    /// How often it may be used.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub uses: u32,
}

/// What to do with join tokens that there are.
#[derive(Clone, Debug, Subcommand)]
pub enum JoinTokenVerb {
    /// List join tokens, without their secrets.
    List,
    /// Delete join tokens. Who joined with them stays.
    Delete {
        /// Ids of tokens.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// `godel identity`.
#[derive(Clone, Debug, Subcommand)]
pub enum IdentityVerb {
    /// List identities: who may call, by which certificate, and until when.
    List {
        /// Only identities that begin so, as `agent/`.
        #[arg(default_value = "", hide_default_value = true, value_name = "PREFIX")]
        prefix: String,
    },
    /// Revoke identities: their certificates are refused from now on, on open connections too.
    Revoke(NamedIdentities),
    /// Let names that are in use or revoked be joined once more; their older certificates end when that happens.
    Allow(NamedIdentities),
}

/// Identities that are named.
#[derive(Clone, Debug, ClapArgs)]
pub struct NamedIdentities {
    /// Role and name, as `agent/n1`.
    #[arg(required = true, value_name = "IDENTITY")]
    pub identities: Vec<String>,
}

/// `godel ca`.
#[derive(Clone, Debug, Subcommand)]
pub enum Ca {
    /// Show the roots that everybody trusts, with their fingerprints.
    Show,
    /// Make a new root. Identities get new certificates by themselves, and the old root goes when none needs it any more.
    Rotate,
    /// Make a new CA for the store of a state that does not run, because the key that seals the old one is lost. Nodes and running
    /// work stay; members and agents join again.
    New {
        /// Directory of the store.
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// Configuration layers below the flags.
        #[command(flatten)]
        layers: Layers,
    },
}
