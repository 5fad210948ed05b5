//! The Hadoop RPC faces: what unmodified clients, application masters and administrators of YARN call.
//!
//! Each face is a table of methods over a [`ResourceManager`]: a request in YARN's messages becomes a call, and its answer
//! or refusal a message or an exception with the class by which clients of YARN tell refusals apart. Nothing here is kept over a restart.
//!
//! # Modules
//!
//! - `admin`: ResourceManagerAdministrationProtocol and HAServiceProtocol, which `yarn rmadmin` calls.
//! - `amounts`: amounts of resources as clients of YARN send and read them, and how YARN rounds what is asked for.
//! - `asks`: what masters ask for, read and checked as YARN does.
//! - `client`: ApplicationClientProtocol, which `yarn`, Spark and other clients call.
//! - `excluded`: the file of excluded nodes that `yarn rmadmin -refreshNodes` has read again.
//! - `groups`: groups of users, as this machine knows them.
//! - `ids`: ids and node addresses as YARN's messages have them.
//! - `labels`: labels and attributes of nodes for clients.
//! - `launch`: starts and stops masters on their nodes.
//! - `master`: ApplicationMasterProtocol, which masters call.
//! - `node_calls`: calls to nodes in the name of a master.
//! - `queues`: queues as clients see them.
//! - `refusal`: refusals as YARN's exceptions.
//! - `reports`: applications, attempts, containers and nodes as clients see them.
//! - `submission`: what clients submit, read and checked as YARN does.
//! - `times`: times of day as YARN writes them.
//! - `tokens`: the tokens that masters get.

mod admin;
mod amounts;
mod asks;
mod client;
mod excluded;
pub(crate) mod groups;
mod ids;
mod labels;
pub mod launch;
mod master;
mod node_calls;
mod queues;
mod refusal;
mod reports;
mod submission;
mod times;
mod tokens;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc};

use godel_hadoop::{Authentication, Server, token::KeyedPasswords, yarn::AmrmTokenIdentifierProto};
use godel_kit::{CancellationToken, clock::SharedClock};
use tokio::net::TcpListener;

use crate::{ResourceManager, callers::YarnCallers};

pub use self::{
    node_calls::NodeCalls,
    tokens::{TokenKeys, Tokens},
};

/// What the faces have besides the manager and the tokens.
#[derive(Clone, Debug, Default)]
pub struct FaceSettings {
    /// Who calls.
    pub callers: YarnCallers,
    /// A file with hosts that take no containers, one a line, as `yarn.resourcemanager.nodes.exclude-path` names it.
    /// `yarn rmadmin -refreshNodes` has it read; `None`: that call is refused.
    pub exclude_file: Option<PathBuf>,
    /// How long nodes may take to become empty where `-refreshNodes -g` names no time, milliseconds.
    pub decommission_timeout_ms: u64,
}

/// Where the faces listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HadoopAddresses {
    /// For clients (`yarn.resourcemanager.address`).
    pub client: SocketAddr,
    /// For masters (`yarn.resourcemanager.scheduler.address`).
    pub master: SocketAddr,
    /// For administrators (`yarn.resourcemanager.admin.address`).
    pub admin: SocketAddr,
}

/// Faces that listen, and answer once they are served.
#[derive(Debug)]
pub struct BoundFaces {
    addresses: HadoopAddresses,
    servers: [(Server, TcpListener); 3],
}

impl BoundFaces {
    /// Where the faces listen, with the ports that they were given for port 0.
    pub fn addresses(&self) -> HadoopAddresses {
        self.addresses
    }

    /// Serves until `stop`; then each connection ends once its calls are answered.
    pub async fn serve(self, stop: CancellationToken) {
        let [client, master, admin] =
            self.servers.map(|(server, listener)| server.serve(listener, stop.clone()));
        tokio::join!(client, master, admin);
    }
}

/// The faces for Hadoop RPC, which are served on a port each.
#[derive(Clone)]
pub struct HadoopFaces {
    manager: Arc<dyn ResourceManager>,
    tokens: Tokens,
    nodes: NodeCalls,
    clock: SharedClock,
    settings: FaceSettings,
}

impl std::fmt::Debug for HadoopFaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HadoopFaces")
            .field("manager", &self.manager)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl HadoopFaces {
    /// Faces of one manager.
    pub fn new(
        manager: Arc<dyn ResourceManager>,
        tokens: Tokens,
        nodes: NodeCalls,
        clock: SharedClock,
        settings: FaceSettings,
    ) -> Self {
        Self { manager, tokens, nodes, clock, settings }
    }

    /// Listens at these addresses.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub async fn bind(&self, at: HadoopAddresses) -> io::Result<BoundFaces> {
        let listen = async |address: SocketAddr| {
            let listener = TcpListener::bind(address).await;
            let said =
                |error: io::Error| io::Error::new(error.kind(), format!("{address} cannot be used: {error}"));
            listener.map_err(said)
        };
        let (client, master, admin) =
            (listen(at.client).await?, listen(at.master).await?, listen(at.admin).await?);
        let addresses = HadoopAddresses {
            client: client.local_addr()?,
            master: master.local_addr()?,
            admin: admin.local_addr()?,
        };
        let servers =
            [(self.client_server(), client), (self.master_server(), master), (self.admin_server(), admin)];
        Ok(BoundFaces { addresses, servers })
    }

    /// What clients call. Where they are judged they may show a token; without one they are who they say they are.
    fn client_server(&self) -> Server {
        let Self { manager, tokens, nodes, clock, settings: FaceSettings { callers, .. } } = self.clone();
        let face = client::ClientFace { manager, tokens, nodes, clock };
        Server::new(callers.authentication()).protocol(callers.guard(client::protocol(face)))
    }

    /// What masters call. They are known by their tokens.
    fn master_server(&self) -> Server {
        let Self { manager, tokens, .. } = self.clone();
        let passwords = KeyedPasswords::<AmrmTokenIdentifierProto>::new(tokens.master_keys());
        let face = master::MasterFace::new(manager, tokens);
        Server::new(Authentication::Token(Arc::new(passwords))).protocol(master::protocol(face))
    }

    /// What administrators call. They are who they say they are: Hadoop's administration shows no tokens.
    fn admin_server(&self) -> Server {
        let callers = &self.settings.callers;
        let face = admin::AdminFace::new(Arc::clone(&self.manager), self.settings.clone());
        let [administration, availability] = admin::protocols(face).map(|protocol| callers.guard(protocol));
        Server::new(Authentication::Simple).protocol(administration).protocol(availability)
    }
}

#[cfg(test)]
mod tests;
