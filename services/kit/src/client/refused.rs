//! What a client does when a server refuses its identity, for example after `godel identity revoke`. The loops of the client keep calling; this module
//! keeps them from flooding the log and the server.
//!
//! After a refusal, calls fail locally with the server's answer, for a pause that grows with each further refusal. Then one call asks the server again.
//! When the process shows another leaf, this starts over.

use std::{sync::Arc, time::Duration};

use godel_identity::names::Identity;
use godel_pki::leaves::OwnLeaf;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::Backoff;
use crate::status::{self, reason};

/// Upper bound of the first pause.
const PAUSE_BASE: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// If the call that asks again has no answer after this time, the next one asks.
const ASK_MAX: Duration = Duration::from_secs(10);
/// Header with the status code of an answer without a body.
const GRPC_STATUS: &str = "grpc-status";
/// `UNAUTHENTICATED` in that header.
const UNAUTHENTICATED: &str = "16";

/// Whether one server refuses the leaf that the client shows it.
#[derive(Default)]
pub(super) struct RefusalGate(Mutex<Option<LeafRefused>>);

struct LeafRefused {
    leaf: Arc<OwnLeaf>,
    /// Message of the server.
    words: String,
    backoff: Backoff,
    /// Calls fail locally until then.
    until: Instant,
    /// A call is asking the server again.
    is_asked: bool,
}

/// How an answer changes the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateChange {
    /// It closes.
    Closes,
    /// It opens.
    Opens,
    /// It stays as it is.
    None,
}

impl RefusalGate {
    /// Lets a call that shows `leaf` through.
    ///
    /// # Errors
    /// The local answer, if the server refused the leaf a short while ago.
    pub(super) fn pass(&self, leaf: &Arc<OwnLeaf>, now: Instant) -> Result<(), Box<Status>> {
        let mut refused = self.0.lock();
        let Some(known) = refused.as_mut().filter(|known| Arc::ptr_eq(&known.leaf, leaf)) else {
            return Ok(());
        };
        if now >= known.until {
            (known.until, known.is_asked) = (now + ASK_MAX, true);
            return Ok(());
        }
        let retry_after = known.until.saturating_duration_since(now);
        Err(Box::new(status::refused_identity(leaf.leaf().identity.key(), known.words.clone(), retry_after)))
    }

    /// Notes that the server refused a call that showed `leaf`.
    pub(super) fn note_refusal(&self, leaf: &Arc<OwnLeaf>, words: &str, now: Instant) -> GateChange {
        let mut refused = self.0.lock();
        match refused.as_mut().filter(|known| Arc::ptr_eq(&known.leaf, leaf)) {
            // This call was in flight when the first one was refused.
            Some(known) if !known.is_asked => GateChange::None,
            Some(known) => {
                (known.until, known.is_asked) = (now + known.backoff.pause(), false);
                GateChange::None
            }
            None => {
                let mut backoff = Backoff::new(PAUSE_BASE, PAUSE_MAX);
                let until = now + backoff.pause();
                let (leaf, words) = (Arc::clone(leaf), words.to_owned());
                *refused = Some(LeafRefused { leaf, words, backoff, until, is_asked: false });
                GateChange::Closes
            }
        }
    }

    /// Notes that the server accepted a call that showed `leaf`. Calls that were in flight before the refusal do not count.
    pub(super) fn note_acceptance(&self, leaf: &Arc<OwnLeaf>) -> GateChange {
        let mut refused = self.0.lock();
        match refused.as_ref() {
            Some(known) if known.is_asked || !Arc::ptr_eq(&known.leaf, leaf) => {
                *refused = None;
                GateChange::Opens
            }
            Some(_) | None => GateChange::None,
        }
    }
}

/// The server's message, if the headers of its answer say that it refuses the leaf of `holder`.
pub(super) fn refusal_in(headers: &HeaderMap, holder: &Identity) -> Option<String> {
    let status = leaf_status_in(headers, holder)?;
    status::has_reason(&status, reason::IDENTITY_REFUSED).then(|| status.message().to_owned())
}

/// The status, if the headers of an answer say that the leaf of `holder` has expired or is refused.
pub(crate) fn leaf_status_in(headers: &HeaderMap, holder: &Identity) -> Option<Status> {
    if headers.get(GRPC_STATUS).is_none_or(|code| code != UNAUTHENTICATED) {
        return None;
    }
    let status = Status::from_header_map(headers).filter(|status| status.code() == Code::Unauthenticated)?;
    // When state forwards a call, the identity may be state's own or its caller's.
    let is_its = status::metadata_of(&status, status::IDENTITY).is_some_and(|whose| whose == holder.key());
    is_its.then_some(status)
}

#[cfg(test)]
mod tests {
    use godel_identity::{leaves::LeafRefusal, needs::CallerRefusal};

    use super::*;
    use crate::security::tests::TestCluster;

    #[test]
    fn refused_client_asks_once_after_each_growing_pause() {
        let cluster = TestCluster::new();
        let leaf = Arc::new(cluster.leaf("agent/n1"));
        let gate = RefusalGate::default();
        let mut now = Instant::now();
        assert!(gate.pass(&leaf, now).is_ok());
        assert_eq!(gate.note_refusal(&leaf, "revoked", now), GateChange::Closes);
        assert_eq!(gate.note_refusal(&leaf, "revoked", now), GateChange::None, "it was in flight");
        assert_eq!(gate.note_acceptance(&leaf), GateChange::None, "so was this one");
        let mut longest = Duration::ZERO;
        for n in 0..200u32 {
            if let Err(answer) = gate.pass(&leaf, now) {
                assert_eq!((answer.code(), answer.message()), (Code::Unauthenticated, "revoked"));
                assert!(status::has_reason(&answer, reason::IDENTITY_REFUSED));
                let pause = status::retry_after(&answer).unwrap();
                longest = longest.max(pause);
                assert!(pause <= PAUSE_BASE * (1 << n.min(6)).max(1) && pause <= PAUSE_MAX, "{n}: {pause:?}");
                now += pause;
                assert!(gate.pass(&leaf, now).is_ok(), "one call asks");
            }
            assert!(gate.pass(&leaf, now).is_err(), "the others wait for its answer");
            assert_eq!(gate.note_refusal(&leaf, "revoked", now), GateChange::None);
        }
        assert!(longest > PAUSE_MAX / 4, "{longest:?}");
        // The call that asks may get no answer.
        now += PAUSE_MAX;
        assert!(gate.pass(&leaf, now).is_ok() && gate.pass(&leaf, now).is_err());
        now += ASK_MAX;
        assert!(gate.pass(&leaf, now).is_ok());
        assert_eq!(
            (gate.note_acceptance(&leaf), gate.note_acceptance(&leaf)),
            (GateChange::Opens, GateChange::None)
        );
        assert!(gate.pass(&leaf, now).is_ok());
    }

    #[test]
    fn new_leaf_is_not_refused_for_the_old_one() {
        let cluster = TestCluster::new();
        let leaves = [(), ()].map(|()| Arc::new(cluster.leaf("agent/n1")));
        let (gate, now) = (RefusalGate::default(), Instant::now());
        gate.note_refusal(&leaves[0], "revoked", now);
        assert!(gate.pass(&leaves[0], now).is_err() && gate.pass(&leaves[1], now).is_ok());
        assert_eq!(gate.note_acceptance(&leaves[1]), GateChange::Opens);
    }

    #[test]
    fn refusal_of_an_identity_is_read_from_headers() {
        let caller: godel_identity::caller::Caller = "agent/n1".parse().unwrap();
        let refused = status::refused_call(&CallerRefusal::Refused { caller, why: LeafRefusal::Revoked });
        let headers = |status: Status| status.into_http::<()>().headers().clone();
        let [own, other] = ["n1", "n2"].map(|name| format!("spiffe://c/agent/{name}").parse().unwrap());
        let words = refusal_in(&headers(refused.clone()), &own).unwrap();
        assert!(words.contains("its name is revoked"), "{words}");
        assert_eq!(refusal_in(&headers(refused), &other), None, "it is another one's");
        let local = status::refused_identity(own.key(), "revoked".to_owned(), Duration::ZERO);
        assert!(refusal_in(&headers(local), &own).is_some(), "a local answer names the holder too");
        assert_eq!(refusal_in(&headers(Status::unauthenticated("no token")), &own), None);
        assert_eq!(refusal_in(&HeaderMap::new(), &own), None);
    }
}
