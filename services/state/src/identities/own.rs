//! State's own leaf: issued at each start, and renewed while state runs.

use std::time::Duration;

use godel_identity::{
    book::IssueClock,
    leaves::LeafTimes,
    names::Identity,
    records::{ClusterTrust, RootFingerprint},
    rotation::must_renew,
};
use godel_kit::CancellationToken;
use godel_pki::{
    leaves::OwnLeaf,
    random::random_bytes,
    requests::LeafKey,
    roots::{RootCert, Trust},
    signer::{LeafOrder, ServerNames},
    tls::TlsIdentity,
};
use tonic::Status;

use super::writer::IdentityLedger;

/// How often it looks whether its leaf is to be renewed, and whom to trust.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// State's own identity. The key lives as long as the process.
pub(crate) struct OwnIdentity {
    ledger: IdentityLedger,
    identity: Identity,
    server_names: ServerNames,
    lifetime_ms: u64,
    key: LeafKey,
}

/// A leaf that state shows.
struct ShownLeaf {
    root: RootFingerprint,
    /// It is not valid before: then the clock was ahead at its issue.
    valid_ms: u64,
    renew_ms: u64,
}

/// Why state has no leaf, or cannot trust its own roots.
#[derive(Debug, thiserror::Error)]
pub enum OwnLeafError {
    /// It is not recorded.
    #[error("state's own leaf is not recorded")]
    Write(#[source] Box<Status>),
    /// It cannot be made.
    #[error("state's own leaf cannot be made")]
    Make(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl OwnIdentity {
    /// # Errors
    /// No key can be made.
    pub(crate) fn new(
        ledger: IdentityLedger,
        identity: Identity,
        server_names: ServerNames,
        lifetime_ms: u64,
    ) -> Result<Self, OwnLeafError> {
        let key = LeafKey::generate().map_err(make)?;
        Ok(Self { ledger, identity, server_names, lifetime_ms, key })
    }

    /// Issues the first leaf. `clock` says what time it is.
    ///
    /// # Errors
    /// See [`OwnLeafError`].
    pub(crate) async fn start(
        self,
        stop: CancellationToken,
    ) -> Result<(TlsIdentity, impl Future<Output = ()> + Send), OwnLeafError> {
        let (leaf, shown) = self.issue().await?;
        let trusted = self.ledger.read(|book| book.trust().clone());
        let ledger = self.ledger.clone();
        let tls =
            TlsIdentity::new(trust_of(&trusted)?, Some(leaf), std::sync::Arc::new(move || ledger.now_ms()));
        Ok((tls.clone(), self.keep(tls, trusted, shown, stop)))
    }

    async fn issue(&self) -> Result<(OwnLeaf, ShownLeaf), OwnLeafError> {
        let (identity, lifetime_ms) = (self.identity.clone(), self.lifetime_ms);
        let (now_ms, keys) = (self.ledger.now_ms(), self.ledger.keys());
        // Nothing is recorded if nothing can sign it.
        self.ledger.read(|book| keys.signing(book.trust(), now_ms).map(drop)).map_err(make)?;
        let issued = self
            .ledger
            .decide(move |draft| Ok(draft.book.issue_own(&identity, IssueClock { now_ms, lifetime_ms })));
        let issued = issued.await.map_err(|status| OwnLeafError::Write(Box::new(status)))?;
        let keys = self.ledger.keys();
        let signer = keys.of_root(issued.root).map_err(make)?;
        let order = LeafOrder {
            identity: self.identity.clone(),
            times: issued.times,
            server_names: self.server_names.clone(),
        };
        let leaf = signer.issue(&order, &self.key.public()).map_err(make)?;
        let leaf = OwnLeaf::new(leaf.der, signer.root(), &self.key).map_err(make)?;
        let jitter = f64::from(random_bytes::<1>().map_err(make)?[0]) / 255.0;
        let LeafTimes { not_before_ms: valid_ms, .. } = issued.times;
        Ok((leaf, ShownLeaf { root: issued.root, valid_ms, renew_ms: issued.times.renewal_ms(jitter) }))
    }

    /// Renews the leaf and follows the roots until `stop`.
    async fn keep(
        self,
        tls: TlsIdentity,
        mut trusted: ClusterTrust,
        mut shown: ShownLeaf,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
            let now_ms = self.ledger.now_ms();
            let trust = self.ledger.read(|book| (*book.trust() != trusted).then(|| book.trust().clone()));
            if let Some(trust) = trust {
                match trust_of(&trust) {
                    Ok(new) => tls.replace_trust(new),
                    Err(error) => tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the roots cannot be trusted"
                    ),
                }
                trusted = trust;
            }
            let is_in_time = (shown.valid_ms..shown.renew_ms).contains(&now_ms);
            if is_in_time && !must_renew(&trusted, shown.root, now_ms) {
                continue;
            }
            match self.issue().await {
                Ok((leaf, renewed)) => {
                    tls.replace_own(leaf);
                    shown = renewed;
                }
                // The next look tries again; the one that it has counts for long.
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "state's own leaf was not renewed"
                ),
            }
        }
    }
}

fn trust_of(trust: &ClusterTrust) -> Result<Trust, OwnLeafError> {
    let roots: Result<Vec<RootCert>, _> =
        trust.roots.iter().map(|root| RootCert::read(root.certificate.clone())).collect();
    Trust::new(trust.cluster.clone(), roots.map_err(make)?).map_err(make)
}

pub(super) fn make(error: impl std::error::Error + Send + Sync + 'static) -> OwnLeafError {
    OwnLeafError::Make(Box::new(error))
}
