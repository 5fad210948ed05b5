//! `godel token`, `godel principal` and `godel auth`: verbs and flags.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// What a person may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleOfPerson {
    /// Read.
    Viewer,
    /// Submit and change units in its own namespaces and queues.
    User,
    /// Also drain, move and pause, in the whole cluster.
    Operator,
    /// Everything.
    Admin,
}

/// What a principal is.
#[derive(Clone, Debug, ClapArgs)]
pub struct PrincipalFlags {
    /// Role. Default for a new principal: user.
    #[arg(long, value_enum)]
    pub role: Option<RoleOfPerson>,
    /// A group that the principal is a member of. Its units may have the group as owner.
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<String>,
    /// A namespace whose units a viewer or user sees, and a user changes, besides the default one. `*` stands for all.
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    pub namespaces: Vec<String>,
    /// A queue to which a user may submit, with the queues below it. Without any, all queues.
    #[arg(long = "queue", value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// Namespace of units and calls that name none. Default for a new principal: default.
    #[arg(long, value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    pub default_namespace: String,
}

/// `godel token`.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenVerb {
    /// Create a token for a person or a program, and the principal if it does not exist. The token is shown once.
    Create(NewToken),
    /// List tokens that were created: for administrators all, for others their own.
    List {
        /// Only tokens of this principal.
        #[arg(value_name = "PRINCIPAL", default_value = "", hide_default_value = true)]
        principal: String,
    },
    /// Revoke tokens: they are refused from now on, also on open streams.
    Revoke {
        /// Ids of tokens.
        #[arg(value_name = "ID", required_unless_present = "all_of", conflicts_with = "all_of")]
        ids: Vec<String>,
        /// Revoke all tokens of this principal, also those of sessions.
        #[arg(long, value_name = "PRINCIPAL")]
        all_of: Option<String>,
    },
}

/// `godel token create`.
#[derive(Clone, Debug, ClapArgs)]
pub struct NewToken {
    /// Name of the principal.
    #[arg(value_name = "PRINCIPAL")]
    pub principal: String,
    /// What the principal is, if it does not exist.
    #[command(flatten)]
    pub flags: PrincipalFlags,
    /// How long the token is valid, at most 90 days.
    #[arg(long, default_value = "30d", value_parser = godel_base::duration::parse_whole)]
    pub ttl: Duration,
    /// Write the token and the roots of the cluster into this new file, which only its owner can read, instead of showing the token.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Write a Hadoop token file for HADOOP_TOKEN_FILE_LOCATION, with which clients of YARN call as the principal, and do not show the token.
    #[arg(long, value_name = "FILE")]
    pub yarn: Option<PathBuf>,
    /// Addresses at which clients of YARN call adapters. Default: those of the adapter that leads and of its standbys.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT", requires = "yarn")]
    pub yarn_address: Vec<String>,
}

/// `godel principal`.
#[derive(Clone, Debug, Subcommand)]
pub enum PrincipalVerb {
    /// List principals with their roles, groups, namespaces and queues.
    List,
    /// Create a principal, or change it: groups, namespaces and queues are added.
    Set {
        /// Name of the principal.
        #[arg(value_name = "PRINCIPAL")]
        principal: String,
        /// What it is.
        #[command(flatten)]
        flags: PrincipalFlags,
        /// Replace its groups, namespaces and queues instead of adding to them.
        #[arg(long)]
        replace: bool,
    },
    /// Delete principals and revoke their tokens. Their units stay.
    Delete {
        /// Names of principals.
        #[arg(required = true, value_name = "PRINCIPAL")]
        principals: Vec<String>,
    },
}

/// `godel auth`.
#[derive(Clone, Debug, Subcommand)]
pub enum AuthVerb {
    /// Ask whether a call would be allowed. Exit code 0 if so, 1 if not.
    CanI(CanI),
}

/// `godel auth can-i`.
#[derive(Clone, Debug, ClapArgs)]
pub struct CanI {
    /// Method of the API, such as `SubmitUnit` or `UnitService/SubmitUnit`; docs/permissions.md lists them.
    #[arg(value_name = "METHOD")]
    pub method: String,
    /// What the call is about: `namespace/NAME`, `queue/NAME` or `owner/NAME`.
    #[arg(value_name = "OBJECT", value_parser = call_object)]
    pub objects: Vec<(ObjectKind, String)>,
    /// Ask for this principal; for administrators only.
    #[arg(long = "as", value_name = "PRINCIPAL", default_value = "", hide_default_value = true)]
    pub as_principal: String,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// The namespace of a unit.
    Namespace,
    /// The queue of a unit.
    Queue,
    /// The owner of a unit, or the principal whose tokens it is about.
    Owner,
}

fn call_object(text: &str) -> Result<(ObjectKind, String), String> {
    let kind = |kind: &str| match kind {
        "namespace" => Some(ObjectKind::Namespace),
        "queue" => Some(ObjectKind::Queue),
        "owner" => Some(ObjectKind::Owner),
        _ => None,
    };
    let object = text.split_once('/').filter(|(_, name)| !name.is_empty());
    let object = object.and_then(|(of, name)| Some((kind(of)?, name.to_owned())));
    object.ok_or_else(|| "must be `namespace/NAME`, `queue/NAME` or `owner/NAME`".to_owned())
}
