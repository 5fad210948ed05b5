//! Identities: the CA, who joined, who is revoked, and state's own leaf.
//!
//! What is known of identities is in the store, as records that nobody else writes; what signs is there too, sealed by the key of
//! `pki/seal.key`, and no call returns it. `mode` decides whether state speaks TLS at all, `first_start` makes or opens the CA, `writer` is the one
//! task that writes, `rpc` answers calls, `own` keeps state's own leaf, and `places` tells to which store the files belong. The decisions are those of
//! `godel_identity`.

mod callers;
mod counts;
mod first_start;
mod hosts;
mod keys;
mod mode;
mod own;
mod people;
mod places;
mod records;
mod rpc;
mod writer;

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_identity::{
    book::IdentityChange,
    names::{Identity, Role},
    rotation::signing_root,
};
use godel_kit::{
    CancellationToken,
    clock::SharedClock,
    security::{CallerRecords, ServerSecurity},
    task,
};
use godel_pki::{person_tokens::TokenKey, signer::ServerNames, tls::TlsIdentity};
use godel_store::{State, Store};
use tokio::task::JoinHandle;

use crate::{
    config::{Config, TlsMode},
    error::Error,
    serve::open as open_store,
};
use callers::RefusedNames;
use first_start::OpenedCa;
use own::OwnIdentity;
use records::unsigned;
use writer::IdentityWriter;

pub use self::{first_start::CaError, own::OwnLeafError};
pub(crate) use self::{
    first_start::SealPlace, hosts::server_names, mode::judge_plain_text, rpc::IdentityRpc,
    writer::IdentityLedger,
};

/// Identities of a state that runs.
pub(crate) struct Identities {
    pub(crate) ledger: IdentityLedger,
    /// What state shows and trusts.
    pub(crate) tls: TlsIdentity,
    own: Identity,
    refused: RefusedNames,
    /// What its leaf carries.
    own_names: ServerNames,
    lifetime_ms: u64,
}

/// The tasks of a service.
pub(crate) struct ServiceTasks<'a> {
    /// The service is to stop: a task that panics says so.
    pub(crate) service: &'a CancellationToken,
    /// The tasks are to end.
    pub(crate) end: &'a CancellationToken,
    /// Those that run, for whoever waits for their end.
    pub(crate) running: &'a mut Vec<JoinHandle<()>>,
}

impl ServiceTasks<'_> {
    pub(crate) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.running.push(task::spawn_service(name, self.service, task));
    }
}

impl Identities {
    /// Opens the CA, or makes it, and issues state's own leaf with these DNS names and addresses.
    ///
    /// # Errors
    /// There is no CA, or no leaf.
    pub(crate) async fn begin(
        config: &Config,
        store: &Store,
        clock: SharedClock,
        hosts: &[String],
        tasks: &mut ServiceTasks<'_>,
    ) -> Result<Self, Error> {
        places::check(config).map_err(CaError::from)?;
        let now_ms = unsigned(clock.wall_ms());
        let cluster = config.cluster.as_ref().and_then(|cluster| cluster.parse().ok());
        let place = config.seal_place();
        let ca = first_start::open(store, &place, cluster, now_ms).await?;
        let cluster = ca.book.trust().cluster.clone();
        let root = signing_root(ca.book.trust(), now_ms).map(|root| root.fingerprint).unwrap_or_default();
        let is_new = ca.is_new;
        let (ledger, writer) = Self::ledger(config, store, clock, ca);
        tasks.spawn("identities", writer.run(tasks.end.clone()));
        let begun = Self::with_leaf(config, ledger, hosts, tasks).await?;
        if is_new {
            tracing::info!(%cluster, %root, seal = %place, "made the CA of this cluster: keep a copy of the key that seals it");
        }
        Ok(begun)
    }

    /// Opens the CA of a store that another state writes, and follows what that one writes; this state's own leaf is not recorded there. `None`: there is
    /// no CA yet.
    ///
    /// # Errors
    /// The CA cannot be opened, or there is no leaf.
    pub(crate) async fn follow(
        config: &Config,
        store: &Store,
        clock: SharedClock,
        hosts: &[String],
        tasks: &mut ServiceTasks<'_>,
    ) -> Result<Option<Self>, Error> {
        places::check(config).map_err(CaError::from)?;
        // What is read below may be newer: it is heard of twice.
        let next = Revision(store.read(State::revision).0 + 1);
        let Ok(watcher) = store.watch(next) else { return Ok(None) };
        let place = config.seal_place();
        let Some(ca) = first_start::look(store, &place, unsigned(clock.wall_ms()))? else { return Ok(None) };
        let (ledger, writer) = Self::ledger(config, store, clock, ca);
        tasks.spawn("identities", writer.follow(watcher, tasks.end.clone()));
        Self::with_leaf(config, ledger, hosts, tasks).await.map(Some)
    }

    fn ledger(
        config: &Config,
        store: &Store,
        clock: SharedClock,
        ca: OpenedCa,
    ) -> (IdentityLedger, IdentityWriter) {
        let keys = ca.keys.failing_while(config.signing_fails_while.as_deref());
        IdentityLedger::new(store.clone(), clock, ca.book, keys)
    }

    /// Issues state's own leaf.
    async fn with_leaf(
        config: &Config,
        ledger: IdentityLedger,
        hosts: &[String],
        tasks: &mut ServiceTasks<'_>,
    ) -> Result<Self, Error> {
        let cluster = ledger.read(|book| book.trust().cluster.clone());
        let own = Identity::new(cluster, Role::State, &config.name)
            .map_err(|bad| godel_wire::BadField::new("name", bad.to_string()))
            .map_err(Error::Config)?;
        let lifetime_ms = u64::try_from(config.leaf_lifetime.as_millis()).unwrap_or(u64::MAX);
        let own_names = server_names(hosts).map_err(Error::Config)?;
        let leaf = OwnIdentity::new(ledger.clone(), own.clone(), own_names.clone(), lifetime_ms)?;
        let (tls, keep) = leaf.start(tasks.end.clone()).await?;
        tasks.spawn("own-leaf", keep);
        let refused = RefusedNames::follow(&ledger).map_err(own::make)?;
        Ok(Self { ledger, tls, own, own_names, refused, lifetime_ms })
    }

    /// What state's server speaks, and how it judges those who call.
    pub(crate) fn security(&self, mode: TlsMode) -> ServerSecurity {
        let records = CallerRecords::new(self.own.cluster().clone());
        let known = records.clone();
        self.ledger.follow(move |change| match change {
            IdentityChange::Trust(trust) => {
                let keys = trust.person_keys.iter().map(|key| TokenKey::new(key.public_key));
                known.set_token_keys(keys.collect());
            }
            IdentityChange::Identity(record) => {
                known.set_name(&record.identity.key(), Some(record.name_record()));
            }
            IdentityChange::IdentityGone(key) => known.set_name(key, None),
            IdentityChange::Token(_) | IdentityChange::TokenGone(_) => {}
            IdentityChange::Person(change) => callers::note_person(&known, change),
        });
        let ledger = self.ledger.clone();
        let security = ServerSecurity::new(self.tls.clone(), records, Arc::new(move || ledger.now_ms()));
        if mode == TlsMode::Migrate { security.with_plain_text() } else { security }
    }

    /// The service.
    pub(crate) fn rpc(&self) -> IdentityRpc {
        let (ledger, refused) = (self.ledger.clone(), self.refused.clone());
        IdentityRpc::new(ledger, refused, self.own.clone(), self.own_names.clone(), self.lifetime_ms)
    }
}

/// Makes a new CA in the store of a state that does not run: that of one whose key is lost. Nodes and running work stay; members and agents join
/// again. Returns the cluster and the new root's fingerprint.
///
/// # Errors
/// The store does not open, or takes no CA.
pub async fn make_new_ca(config: &Config, clock: SharedClock) -> Result<NewCa, Error> {
    config.validate().map_err(Error::Config)?;
    let stop = CancellationToken::new();
    let engine = config.store_engine()?;
    let Some(store) = open_store(config, engine, Store::open, &clock, CrashPoints::default(), &stop).await?
    else {
        return Err(Error::Panicked);
    };
    let cluster = config.cluster.as_ref().and_then(|cluster| cluster.parse().ok());
    let made = first_start::replace(&store, &config.seal_place(), cluster, unsigned(clock.wall_ms())).await;
    store.close().await;
    let trust = made?.book.trust().clone();
    let root = trust.roots.last().map(|root| root.fingerprint.to_string()).unwrap_or_default();
    Ok(NewCa { cluster: trust.cluster.to_string(), root })
}

/// A CA that was made in place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCa {
    /// The cluster, which keeps its name.
    pub cluster: String,
    /// SHA-256 of the root, in hexadecimal.
    pub root: String,
}

#[cfg(test)]
mod tests;
