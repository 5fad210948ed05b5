//! How one root replaces another: all members trust the new root before it signs, and the old root is dropped soon after the last leaf of it was
//! replaced.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    time::Millis,
    words::{count, one_or},
};

use crate::records::{ClusterTrust, IdentityRecord, PersonTokenKey, RootFingerprint, TrustedRoot};

/// How long a new root is trusted before it signs, milliseconds. Services hear of it within seconds, agents within an hour, people's
/// tools when they renew their token. So it is the life of a token: a context that has not heard of the root by then has to log in again anyway.
pub const ROOT_LEAD_MS: u64 = PERSON_TOKEN_MS;

/// How long a token of a session is good, which the socket of state gives, milliseconds.
pub const PERSON_TOKEN_MS: u64 = 12 * 3_600_000;

/// Keys that check persons' tokens at a time, at most: as many as a record may have.
pub const N_PERSON_KEYS_MAX: usize = 8;

/// How long a root is kept after the last identity was issued a leaf of another root, milliseconds: a holder that did not receive its new leaf asks again
/// within a minute, and shows the old leaf.
pub const ROOT_UNUSED_MS: u64 = 2 * 60_000;

/// A new root, and the key of persons' tokens that comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextSigner {
    /// The root.
    pub root: TrustedRoot,
    /// The key of tokens.
    pub person_key: PersonTokenKey,
}

/// Roots that signed no identity's last leaf, and since when.
#[derive(Clone, Debug, Default)]
pub struct UnusedRoots(BTreeMap<RootFingerprint, Millis>);

impl UnusedRoots {
    /// Notes which roots are not in `used`, and returns the roots to keep: those in `used`, and those that were within the last [`ROOT_UNUSED_MS`].
    pub fn note(
        &mut self,
        trust: &ClusterTrust,
        mut used: BTreeSet<RootFingerprint>,
        monotonic: Millis,
    ) -> BTreeSet<RootFingerprint> {
        let unused = trust.roots.iter().map(|root| root.fingerprint).filter(|root| !used.contains(root));
        self.0 = unused.map(|root| (root, self.0.get(&root).copied().unwrap_or(monotonic))).collect();
        let lately = self.0.iter().filter(|(_, since)| monotonic.since(**since) < ROOT_UNUSED_MS);
        used.extend(lately.map(|(root, _)| *root));
        used
    }
}

/// The new root cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RotationRefusal {
    /// The last rotation has not ended.
    #[error("root {root} is still being replaced: {}", describe_wait(*.n_left))]
    UnderWay {
        /// The root that is leaving.
        root: RootFingerprint,
        /// How many identities keep it.
        n_left: usize,
    },
    /// Too many keys check persons' tokens.
    #[error(
        "{N_PERSON_KEYS_MAX} keys check persons' tokens already; wait until the tokens of the oldest have ended (`godel token list`)"
    )]
    Keys,
    /// It is there already.
    #[error("root {root} is trusted already")]
    Known {
        /// The root.
        root: RootFingerprint,
    },
}

/// The root that signs at `now_ms`: the youngest whose time has come. Where the clock went back and none's has, the oldest.
pub fn signing_root(trust: &ClusterTrust, now_ms: u64) -> Option<&TrustedRoot> {
    let come = trust.roots.iter().rev().find(|root| root.signs_from_ms <= now_ms);
    come.or(trust.roots.first())
}

/// Adds a root that signs after [`ROOT_LEAD_MS`]; all others are leaving from now on. The same with its key of tokens: those that others have
/// signed count as long as they say, the last one until `tokens_end_ms`.
///
/// # Errors
/// Another root is leaving still, or it is there already.
pub fn add_root<'a>(
    trust: &mut ClusterTrust,
    NextSigner { root, person_key }: NextSigner,
    identities: impl Iterator<Item = &'a IdentityRecord>,
    tokens_end_ms: u64,
    now_ms: u64,
) -> Result<(), RotationRefusal> {
    if let Some(known) = trust.roots.iter().find(|known| known.fingerprint == root.fingerprint) {
        return Err(RotationRefusal::Known { root: known.fingerprint });
    }
    if let Some(leaving) = trust.roots.iter().find(|root| root.is_leaving) {
        let n_left = identities.filter(|record| record.is_held(now_ms) && record.root == leaving.fingerprint);
        return Err(RotationRefusal::UnderWay { root: leaving.fingerprint, n_left: n_left.count() });
    }
    if trust.person_keys.len() >= N_PERSON_KEYS_MAX {
        return Err(RotationRefusal::Keys);
    }
    trust.roots.iter_mut().for_each(|root| root.is_leaving = true);
    let ends_ms = root.signs_from_ms.saturating_add(PERSON_TOKEN_MS).max(tokens_end_ms);
    for key in &mut trust.person_keys {
        key.ends_ms.get_or_insert(ends_ms);
    }
    trust.roots.push(root);
    trust.person_keys.push(person_key);
    Ok(())
}

/// Drops roots that are being replaced, once the next root signs, except those in `kept`. Returns the dropped roots.
pub fn drop_unused_roots(
    trust: &mut ClusterTrust,
    kept: &BTreeSet<RootFingerprint>,
    now_ms: u64,
) -> Vec<RootFingerprint> {
    let Some(signing) = signing_root(trust, now_ms).map(|root| root.fingerprint) else { return Vec::new() };
    if trust.roots.iter().all(|root| !root.is_leaving) {
        return Vec::new();
    }
    let mut dropped = Vec::new();
    trust.roots.retain(|root| {
        let stays = !root.is_leaving || root.fingerprint == signing || kept.contains(&root.fingerprint);
        if !stays {
            dropped.push(root.fingerprint);
        }
        stays
    });
    dropped
}

/// Drops keys of tokens that count no more. Returns whether there were any.
pub fn drop_ended_keys(trust: &mut ClusterTrust, now_ms: u64) -> bool {
    let n_before = trust.person_keys.len();
    trust.person_keys.retain(|key| key.ends_ms.is_none_or(|ends_ms| ends_ms > now_ms));
    trust.person_keys.len() < n_before
}

/// Has the key of that id, if it is leaving, count at least until `ends_ms`. Returns whether that is news.
pub fn keep_key(trust: &mut ClusterTrust, id: &str, ends_ms: u64) -> bool {
    let key = trust.person_keys.iter_mut().find(|key| key.id == id);
    match key.and_then(|key| key.ends_ms.as_mut()) {
        Some(end_ms) if *end_ms < ends_ms => {
            *end_ms = ends_ms;
            true
        }
        Some(_) | None => false,
    }
}

/// Whether who has a leaf of `root` should renew it at once: it is leaving, and the next one signs.
pub fn must_renew(trust: &ClusterTrust, root: RootFingerprint, now_ms: u64) -> bool {
    let is_leaving = trust.roots.iter().any(|known| known.fingerprint == root && known.is_leaving);
    is_leaving && signing_root(trust, now_ms).is_some_and(|signing| signing.fingerprint != root)
}

/// Says why a root that is being replaced is still there.
fn describe_wait(n_left: usize) -> String {
    if n_left == 0 {
        return "no identity has a certificate of it any more, and it is dropped within minutes; try again then".to_owned();
    }
    format!(
        "{} {} a certificate of it; wait until they have renewed, or revoke those that are gone for good (`godel identity list` shows them)",
        count(n_left, "identity"),
        one_or(n_left, "has", "have")
    )
}
