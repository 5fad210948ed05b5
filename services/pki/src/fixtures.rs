//! Clusters and leaves for tests.

use std::sync::Arc;

use godel_identity::{leaves::LeafTimes, names::Identity};

use crate::{
    leaves::OwnLeaf,
    requests::LeafKey,
    roots::Trust,
    signer::{LeafOrder, ServerNames, Signer},
    tls::{TlsIdentity, WallClock},
};

/// In 2026; whole seconds.
pub(crate) const NOW: u64 = 1_790_000_000_000;
/// A day, milliseconds.
pub(crate) const DAY: u64 = 24 * 3_600_000;

/// A signer of a new root.
pub(crate) fn signer(cluster: &str) -> Signer {
    Signer::make(cluster.parse().unwrap()).unwrap()
}

/// What trusts the roots of these signers, of the cluster of the first.
pub(crate) fn trust(signers: &[&Signer]) -> Trust {
    let roots = signers.iter().map(|signer| signer.root().clone()).collect();
    Trust::new(signers[0].cluster().clone(), roots).unwrap()
}

/// An order for `<role>/<name>` of the signer's cluster, issued [`NOW`] for a day.
pub(crate) fn order(signer: &Signer, key: &str) -> LeafOrder {
    let identity: Identity = format!("spiffe://{}/{key}", signer.cluster()).parse().unwrap();
    LeafOrder { identity, times: LeafTimes::of_issue(NOW, DAY), server_names: ServerNames::default() }
}

/// A leaf with its key, for `<role>/<name>`.
pub(crate) fn own(signer: &Signer, key: &str) -> OwnLeaf {
    let leaf_key = LeafKey::generate().unwrap();
    let issued = signer.issue(&order(signer, key), &leaf_key.public()).unwrap();
    OwnLeaf::new(issued.der, signer.root(), &leaf_key).unwrap()
}

/// A clock that stands at a moment.
pub(crate) fn clock(now_ms: u64) -> WallClock {
    Arc::new(move || now_ms)
}

/// A process of a cluster.
pub(crate) fn process(signer: &Signer, key: &str) -> TlsIdentity {
    TlsIdentity::new(trust(&[signer]), Some(own(signer, key)), clock(NOW))
}
