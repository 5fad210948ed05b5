//! What a server speaks and whom it believes.

use std::{fmt, sync::Arc};

use godel_identity::{
    caller::{self, CALLER_HEADER, Caller},
    leaves::LeafStanding,
    names::Role,
    needs::{CallerRefusal, Needs, judge_call, needs_of},
};
use godel_pki::{
    person_tokens::{BadToken, PersonToken},
    tls::{TlsIdentity, WallClock},
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tonic::Status;

use super::{BEARER, CallerRecords, ClientSecurity, PeerLeaf, Transport};
use crate::{address::Speech, server::FORWARDED, status, tls::HttpVersion};

/// What a server speaks and whom it believes; by default plain text, and everybody. Clones share it.
#[derive(Clone, Default)]
pub struct ServerSecurity(Option<Arc<SecuredServer>>);

#[derive(Clone)]
struct SecuredServer {
    identity: TlsIdentity,
    records: CallerRecords,
    clock: WallClock,
    serves_plain_text: bool,
    http1: Arc<rustls::ServerConfig>,
    http2: Arc<rustls::ServerConfig>,
}

/// A call that may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JudgedCall {
    /// By whom it is judged.
    pub(crate) caller: Caller,
    /// The token that says so; `None`: something else does.
    pub(crate) token: Option<Arc<PersonToken>>,
    /// Whether it counts for which client it was forwarded: state says so by its leaf, or the server has no security.
    pub(crate) may_be_forwarded: bool,
}

/// Who sends a call.
struct CallSender {
    caller: Caller,
    /// How its leaf counts; [`LeafStanding::Valid`] without one.
    standing: LeafStanding,
    token: Option<Arc<PersonToken>>,
}

impl ServerSecurity {
    /// TLS alone, with the leaf of `identity` and for its cluster. Who calls is judged by `records` and the time of `clock`, which is to be that of
    /// state. Both may change while it serves.
    pub fn new(identity: TlsIdentity, records: CallerRecords, clock: WallClock) -> Self {
        let [http1, http2] =
            [HttpVersion::One, HttpVersion::Two].map(|version| identity.server_config(&[version.alpn()]));
        let serves_plain_text = false;
        Self(Some(Arc::new(SecuredServer { identity, records, clock, serves_plain_text, http1, http2 })))
    }

    /// Serves plain text beside TLS, for a time in which not everybody speaks TLS yet: it may do everything.
    #[must_use]
    pub fn with_plain_text(self) -> Self {
        Self(self.0.map(|secured| {
            let secured = Arc::unwrap_or_clone(secured);
            Arc::new(SecuredServer { serves_plain_text: true, ..secured })
        }))
    }

    /// Whether it speaks TLS.
    pub fn speaks_tls(&self) -> bool {
        self.0.is_some()
    }

    /// What it speaks.
    pub fn speech(&self) -> Speech {
        match (self.speaks_tls(), self.serves_plain_text()) {
            (false, _) => Speech::PlainText,
            (true, true) => Speech::Both,
            (true, false) => Speech::Tls,
        }
    }

    /// Whether it answers plain text over TCP.
    pub fn serves_plain_text(&self) -> bool {
        self.0.as_ref().is_none_or(|secured| secured.serves_plain_text)
    }

    /// With what it passes on the calls of others.
    pub(crate) fn forwards(&self) -> ClientSecurity {
        match &self.0 {
            None => ClientSecurity::default(),
            Some(secured) if secured.serves_plain_text => {
                ClientSecurity::new(secured.identity.clone()).with_plain_text()
            }
            Some(secured) => ClientSecurity::new(secured.identity.clone()),
        }
    }

    /// The configuration of connections above which `version` is spoken; `None`: there is no TLS.
    pub(crate) fn tls(&self, version: HttpVersion) -> Option<Arc<rustls::ServerConfig>> {
        let secured = self.0.as_ref()?;
        Some(match version {
            HttpVersion::One => Arc::clone(&secured.http1),
            HttpVersion::Two => Arc::clone(&secured.http2),
        })
    }

    /// How the leaf of a connection counts now.
    pub(crate) fn standing(&self, leaf: &PeerLeaf) -> LeafStanding {
        self.0.as_ref().map_or(LeafStanding::Valid, |secured| secured.standing(leaf))
    }

    /// Judges again a token by which a stream was opened.
    pub(crate) fn judge_again(&self, token: &PersonToken) -> Result<(), BadToken> {
        let judge = |secured: &Arc<SecuredServer>| secured.records.judge_again(token, (secured.clock)());
        self.0.as_ref().map_or(Ok(()), judge)
    }

    /// Who asks for a page, which is for everybody who is known.
    ///
    /// # Errors
    /// Nobody known, or a leaf or token that does not count.
    pub fn identify(&self, transport: &Transport, headers: &HeaderMap) -> Result<Caller, Status> {
        let Some(secured) = &self.0 else { return Ok(Caller::Unjudged) };
        let CallSender { caller, standing, .. } = secured.sender(transport, headers)?;
        check_standing(&caller, standing)?;
        if caller == Caller::Anonymous {
            return Err(status::no_identity("this page needs a certificate of the cluster or a token"));
        }
        Ok(caller)
    }

    /// By whom a call is judged.
    ///
    /// # Errors
    /// That one may not make it.
    pub(crate) fn judge(
        &self,
        transport: &Transport,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<JudgedCall, Status> {
        match &self.0 {
            Some(secured) => secured.judge(transport, path, headers),
            None => Ok(JudgedCall { caller: Caller::Unjudged, token: None, may_be_forwarded: true }),
        }
    }
}

impl CallSender {
    fn of(caller: Caller) -> Self {
        Self { caller, standing: LeafStanding::Valid, token: None }
    }
}

impl SecuredServer {
    fn standing(&self, leaf: &PeerLeaf) -> LeafStanding {
        self.records.standing(leaf, (self.clock)())
    }

    fn judge(&self, transport: &Transport, path: &str, headers: &HeaderMap) -> Result<JudgedCall, Status> {
        let sender = match self.sender(transport, headers) {
            // What needs nothing is answered whatever comes with it.
            Err(_) if needs_of(path) == Needs::Anyone => CallSender::of(Caller::Anonymous),
            sender => sender?,
        };
        let CallSender { caller, standing, token } = sender;
        let may_be_forwarded = caller.role() == Some(Role::State);
        if !may_be_forwarded && caller != Caller::Unjudged && headers.contains_key(FORWARDED) {
            return Err(status::forged_forwarding(&caller));
        }
        // What is no text names nobody.
        let named = headers.get(CALLER_HEADER).map(|value| value.to_str().unwrap_or_default());
        if named.is_none() {
            judge_call(path, &caller, standing).map_err(|refusal| status::refused_call(&refusal))?;
            return Ok(JudgedCall { caller, token, may_be_forwarded });
        }
        check_standing(&caller, standing)?;
        let caller = caller::behind(caller, named).map_err(|bad| status::forged_caller(&bad))?;
        judge_call(path, &caller, LeafStanding::Valid).map_err(|refusal| status::refused_call(&refusal))?;
        Ok(JudgedCall { caller, token, may_be_forwarded })
    }

    /// Who sends a call. A leaf says more than a token beside it.
    fn sender(&self, transport: &Transport, headers: &HeaderMap) -> Result<CallSender, Status> {
        Ok(CallSender::of(match transport {
            Transport::PlainText if self.serves_plain_text => Caller::Unjudged,
            // Nothing came this way: the connection was refused.
            Transport::PlainText => Caller::Anonymous,
            Transport::Unix => Caller::admin(),
            Transport::Tls { leaf: Some(leaf) } => {
                let (caller, standing) = (leaf.caller.clone(), self.standing(leaf));
                return Ok(CallSender { caller, standing, token: None });
            }
            Transport::Tls { leaf: None } => match headers.get(AUTHORIZATION) {
                None => Caller::Anonymous,
                Some(value) => return self.person(value),
            },
        }))
    }

    fn person(&self, authorization: &HeaderValue) -> Result<CallSender, Status> {
        let token = authorization.to_str().ok().and_then(|value| value.strip_prefix(BEARER));
        let form = "the header `authorization` is not of the form `Bearer TOKEN`";
        let token = token.ok_or_else(|| status::bad_token(form))?.trim();
        let token = self.records.token(token, (self.clock)());
        let token = token.map_err(|bad| status::bad_token(bad.to_string()))?;
        let caller = Caller::Person { name: token.person.clone() };
        Ok(CallSender { caller, standing: LeafStanding::Valid, token: Some(token) })
    }
}

/// Refuses a leaf that does not count in full.
fn check_standing(sender: &Caller, standing: LeafStanding) -> Result<(), Status> {
    let caller = sender.clone();
    match standing {
        LeafStanding::Valid => Ok(()),
        LeafStanding::Expired => Err(status::refused_call(&CallerRefusal::Expired { caller })),
        LeafStanding::Refused(why) => Err(status::refused_call(&CallerRefusal::Refused { caller, why })),
    }
}

impl fmt::Debug for ServerSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.speaks_tls(), self.serves_plain_text()) {
            (false, _) => "plain text",
            (true, false) => "TLS",
            (true, true) => "TLS and plain text",
        })
    }
}

/// The same one.
impl PartialEq for ServerSecurity {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}
