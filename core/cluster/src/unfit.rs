//! Why a node does not take a running unit.

/// Why a node does not take a running unit. `Display` is the reason in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Unfit {
    /// There is no such node.
    #[error("node is gone")]
    Gone,
    /// Its session is lost, or it never reported.
    #[error("node is not ready")]
    NotReady,
    /// An administrator wants nothing new on it.
    #[error("node is cordoned")]
    Cordoned,
    /// A record of it cannot be read, or who is on it.
    #[error("a record of the node cannot be read")]
    Unreadable,
    /// It is of a class, and the replica names none.
    #[error("node is of class {class}, which the unit does not name")]
    NodeClass {
        /// The class.
        class: String,
    },
    /// It runs processes, and nothing says what the replica runs.
    #[error("node runs processes, and the replica has no command")]
    Runtime,
    /// The replica has an image, and it runs none.
    #[error("node runs no images")]
    Images,
    /// It lacks a label that is asked for.
    #[error("no label {key}={value}")]
    Selector {
        /// Asked for.
        key: String,
        /// Asked for.
        value: String,
    },
    /// Its labels meet none of the terms that are required.
    #[error("labels do not meet {terms}")]
    Affinity {
        /// The terms, as people write them.
        terms: String,
    },
    /// It has a taint that is not tolerated.
    #[error("taint {taint} not tolerated")]
    Taint {
        /// `key=value`, or the key alone.
        taint: String,
    },
    /// It has a taint that is tolerated for a time, after which it evicts.
    #[error("taint {taint} tolerated for a time only: nothing new comes")]
    BriefTaint {
        /// `key=value`, or the key alone.
        taint: String,
    },
    /// A resource is short.
    #[error("insufficient {name}")]
    Resource {
        /// Of the resource.
        name: String,
    },
    /// Devices are short, in words.
    #[error("{reason}")]
    Device {
        /// For example `gpu: 1 free of 2 asked`.
        reason: String,
    },
    /// No zones of it have what is asked for.
    #[error("{reason}")]
    Zone {
        /// For example `no zone has enough free`.
        reason: String,
    },
    /// Another running unit listens on a port.
    #[error("port {port} is taken")]
    Port {
        /// For example `8080/tcp`.
        port: String,
    },
    /// Running units of other units keep it away, or those that it goes to are not there.
    #[error("{reason}")]
    UnitAffinity {
        /// For example `not apart from units of app = web in the rack`.
        reason: String,
    },
    /// It would make a domain fuller than its spread allows.
    #[error("{reason}")]
    TopologySpread {
        /// For example `as many of the unit itself in its rack as the spread allows`.
        reason: String,
    },
    /// More of it is used than the replica accepts.
    #[error("{reason}")]
    Load {
        /// For example `more than 80 % of cpu is used`.
        reason: String,
    },
    /// Another node keeps the volumes of the replica.
    #[error("the volumes of the replica are on node {node}")]
    Volume {
        /// Name of the node that keeps them.
        node: String,
    },
    /// A filter refuses the node for a reason that has no variant of its own.
    #[error("{reason}")]
    Other {
        /// The reason in words, without the name of the filter.
        reason: String,
    },
}
