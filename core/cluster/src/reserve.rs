//! The point `Reserve`: what a replica takes when a node is chosen for it, kind by kind, and gives back when nothing comes of the decision
//! or when the replica has ended.
//!
//! Schedulers and the binder assume a place as soon as it is chosen, and committed rows take the place of assumptions. All of these, and
//! their ends, go through [`shift`], which calls each plugin by its name: what does not concern a replica costs a comparison. A new kind
//! of thing that replicas take is a file here and a line in the list.
//!
//! What is kept for somebody who is not there yet is a hold, and a slot of a reservation is one: who enters it takes its place as any
//! replica does, and the hold gives way meanwhile (`holds`).

use godel_base::ids::{NodeId, UnitId};
use godel_domain::allocation::Allocation;

use super::{
    catalogue::Catalogue,
    free::FreeRoom,
    shapes::{Shape, ShapeId},
    taken::TakenRoom,
};

mod daemon_nodes;
mod default_requests;
mod devices;
mod kinds_of_work;
mod ports;
mod replicas_by_domain;
mod replicas_by_node;
mod resources;
#[cfg(test)]
mod tests;
mod zones;

/// A replica on its node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking<'a> {
    pub(crate) unit: UnitId,
    pub(crate) node: NodeId,
    /// What it asks for.
    pub(crate) shape: ShapeId,
    pub(crate) catalogue: &'a Catalogue,
    /// What it is given.
    pub(crate) allocation: Allocation,
}

impl Taking<'_> {
    #[inline]
    fn shape(&self) -> &Shape {
        self.catalogue.shape(self.shape)
    }
}

/// One kind of thing that replicas take on nodes.
pub(crate) trait Reserve {
    /// The name in the docs, unique among all plugins.
    const NAME: &'static str;
    /// What it takes, in a few sentences for the docs.
    const DOC: &'static str;

    /// Whether a replica takes something of it. It is asked in the same words when the replica gives back.
    fn concerns(taken: &TakenRoom, of: &Taking<'_>) -> bool;

    /// Takes what the replica takes (`sign` 1), or gives it back (-1).
    fn shift(taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8);
}

/// A kind of thing that replicas take on nodes, for the docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveEntry {
    /// The name, unique among all plugins.
    pub name: &'static str,
    /// What is taken, in a few sentences.
    pub doc: &'static str,
}

/// Lists all kinds for the docs, and calls each of them by name (hot path).
macro_rules! reserves {
    ($($module:ident::$kind:ident),* $(,)?) => {
        /// Every kind of thing that replicas take on nodes.
        pub static RESERVES: [ReserveEntry; [$(stringify!($kind)),*].len()] = [
            $(ReserveEntry { name: <$module::$kind as Reserve>::NAME, doc: <$module::$kind as Reserve>::DOC }),*
        ];

        /// Takes all that a replica takes on its node (`sign` 1), or gives it back (-1).
        #[inline]
        pub(crate) fn shift(taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
            $(
                if <$module::$kind as Reserve>::concerns(taken, of) {
                    <$module::$kind as Reserve>::shift(taken, free, of, sign);
                }
            )*
        }
    };
}

reserves![
    replicas_by_node::ReplicasByNode,
    replicas_by_domain::ReplicasByDomain,
    kinds_of_work::KindsOfWork,
    daemon_nodes::DaemonReach,
    resources::ReservedResources,
    devices::ReservedDevices,
    zones::ReservedZones,
    default_requests::DefaultRequests,
    ports::ReservedPorts,
];
