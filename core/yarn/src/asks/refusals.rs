//! Why asks are refused, and the classes of exceptions that these refusals have in YARN.

use super::{
    ANY, N_CONTAINERS_MAX, N_ROWS_MAX,
    wishes::{N_PLACES_MAX, N_REFUSED_MAX, NAMES_BYTES_MAX},
};

/// Bytes of the name of a host or a rack.
const NAME_LEN_MAX: usize = 253;

/// Why an ask is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAsk {
    /// More rows than are kept.
    #[error("the application asks in more than {N_ROWS_MAX} rows; at most that many are kept")]
    Rows,
    /// More containers than one row may ask for.
    #[error("{n} containers of `{name}`; one row asks for at most {N_CONTAINERS_MAX}")]
    Containers {
        /// Of the row.
        name: String,
        /// As asked.
        n: u32,
    },
    /// Nothing is asked for.
    #[error("a container needs memory and CPUs above 0")]
    Capability,
    /// A name that no host and no rack has.
    #[error("`{0}` is no host and no rack: a name has 1 to {NAME_LEN_MAX} bytes without control characters")]
    PlaceName(String),
    /// A strict request names more than one request may.
    #[error(
        "a request that does not relax locality names {n} hosts and racks with {n_bytes} bytes; it may name {N_PLACES_MAX} with \
         {NAMES_BYTES_MAX} bytes: relax its locality, or ask for fewer places at a time"
    )]
    Places {
        /// So many names.
        n: usize,
        /// So many bytes.
        n_bytes: usize,
    },
    /// The blacklist is longer than it may be.
    #[error(
        "the blacklist would have {n} hosts and racks with {n_bytes} bytes; it may have {N_REFUSED_MAX} with {NAMES_BYTES_MAX} bytes: \
         nothing of the call was done; take names from the blacklist"
    )]
    Blacklist {
        /// So many names.
        n: usize,
        /// So many bytes.
        n_bytes: usize,
    },
    /// Everything would be on the blacklist.
    #[error("Cannot add {ANY} to the blacklist!")]
    BlacklistAny,
    /// No node has the label.
    #[error("Invalid label resource request, cluster do not contain , label= {0}")]
    Label(String),
    /// A row of a place has another label than `*`.
    #[error(
        "Invalid resource request, specified node label expression in a resource request has resource name = {name}: the label `{label}` is \
         not that of the row {ANY}"
    )]
    LabelOfPlace {
        /// Of the row.
        name: String,
        /// As given.
        label: String,
    },
    /// No node has the resource.
    #[error(
        "The resource manager encountered a problem processing resource type {0}: no node of the cluster has it"
    )]
    Resource(String),
}

impl BadAsk {
    /// The class of the exception by which clients of YARN tell refusals apart.
    pub fn exception(&self) -> &'static str {
        match self {
            Self::Rows
            | Self::Containers { .. }
            | Self::Capability
            | Self::PlaceName(_)
            | Self::Places { .. } => "org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException",
            Self::Label(_) | Self::LabelOfPlace { .. } => {
                "org.apache.hadoop.yarn.exceptions.InvalidLabelResourceRequestException"
            }
            Self::Blacklist { .. } | Self::BlacklistAny => {
                "org.apache.hadoop.yarn.exceptions.InvalidResourceBlacklistRequestException"
            }
            Self::Resource(_) => "org.apache.hadoop.yarn.exceptions.ResourceNotFoundException",
        }
    }
}

/// Judges the name of a host or a rack.
pub(super) fn check_name(name: &str) -> Result<(), BadAsk> {
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.chars().any(char::is_control) {
        let shown = name.chars().filter(|letter| !letter.is_control());
        return Err(BadAsk::PlaceName(shown.take(100).collect()));
    }
    Ok(())
}
