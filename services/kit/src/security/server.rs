//! What a server speaks and whom it believes.

use std::{fmt, sync::Arc};

use godel_identity::{
    caller::{self, CALLER_HEADER, Caller, PRINCIPAL_HEADER},
    leaves::LeafStanding,
    names::Role,
    needs::{CallerRefusal, Needs, judge_call, needs_of},
    permission::{PersonRole, Principal, PrincipalTerms},
};
use godel_pki::{
    person_tokens::BadToken,
    tls::{TlsIdentity, WallClock},
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tonic::Status;

use super::{BEARER, CallerRecords, ClientSecurity, PeerLeaf, TokenBearer, Transport};
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
    /// What the caller may do if it is a person.
    pub(crate) principal: Option<Arc<Principal>>,
    /// The token that says who calls; `None`: something else does.
    pub(crate) bearer: Option<TokenBearer>,
    /// Whether it counts for which client it was forwarded: state says so by its leaf, or the server has no security.
    pub(crate) may_be_forwarded: bool,
}

/// Who sends a call.
struct CallSender {
    caller: Caller,
    /// How its leaf counts; [`LeafStanding::Valid`] without one.
    standing: LeafStanding,
    principal: Option<Arc<Principal>>,
    bearer: Option<TokenBearer>,
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

    /// Judges again a token by which a stream was opened, and whether its principal may do the same still.
    pub(crate) fn judge_again(&self, bearer: &TokenBearer) -> Result<(), BadToken> {
        let judge = |secured: &Arc<SecuredServer>| secured.records.judge_again(bearer, (secured.clock)());
        self.0.as_ref().map_or(Ok(()), judge)
    }

    /// Who asks for a page, which is for everybody who is known; persons have at least the role `least`.
    ///
    /// # Errors
    /// Nobody known, a leaf or token that does not count, or a person of a lesser role.
    pub fn identify(
        &self,
        transport: &Transport,
        headers: &HeaderMap,
        least: PersonRole,
    ) -> Result<Caller, Status> {
        let Some(secured) = &self.0 else { return Ok(Caller::Unjudged) };
        let CallSender { caller, standing, principal, .. } = secured.sender(transport, headers)?;
        check_standing(&caller, standing)?;
        if caller == Caller::Anonymous {
            return Err(status::no_identity("this page needs a certificate of the cluster or a token"));
        }
        match principal {
            Some(principal) if principal.role < least => Err(status::lesser_role(&principal, least)),
            Some(_) | None => Ok(caller),
        }
    }

    /// Who asks for a page of [`HTTP_NEEDS`](godel_identity::needs::HTTP_NEEDS).
    ///
    /// # Errors
    /// That one may not.
    pub fn judge_page(
        &self,
        transport: &Transport,
        headers: &HeaderMap,
        page: &str,
    ) -> Result<Caller, Status> {
        let Some(secured) = &self.0 else { return Ok(Caller::Unjudged) };
        let CallSender { caller, standing, principal, .. } = secured.sender(transport, headers)?;
        judge_call(page, &caller, principal.as_deref(), standing)
            .map_err(|refusal| status::refused_call(&refusal))?;
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
            None => Ok(JudgedCall {
                caller: Caller::Unjudged,
                principal: None,
                bearer: None,
                may_be_forwarded: true,
            }),
        }
    }
}

impl CallSender {
    fn of(caller: Caller) -> Self {
        Self { caller, standing: LeafStanding::Valid, principal: None, bearer: None }
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
        let CallSender { caller, standing, principal, bearer } = sender;
        let may_be_forwarded = caller.role() == Some(Role::State);
        if !may_be_forwarded && caller != Caller::Unjudged && headers.contains_key(FORWARDED) {
            return Err(status::forged_forwarding(&caller));
        }
        // What is no text names nobody.
        let named = headers.get(CALLER_HEADER).map(|value| value.to_str().unwrap_or_default());
        if named.is_none() {
            let judged = judge_call(path, &caller, principal.as_deref(), standing);
            judged.map_err(|refusal| status::refused_call(&refusal))?;
            return Ok(JudgedCall { caller, principal, bearer, may_be_forwarded });
        }
        check_standing(&caller, standing)?;
        let caller = caller::behind(caller, named).map_err(|bad| status::forged_caller(&bad))?;
        let principal = match &caller {
            Caller::Person { name } => self.named_principal(name, headers),
            Caller::Member { .. } | Caller::Agent { .. } | Caller::Unjudged | Caller::Anonymous => None,
        };
        let judged = judge_call(path, &caller, principal.as_deref(), LeafStanding::Valid);
        judged.map_err(|refusal| status::refused_call(&refusal))?;
        Ok(JudgedCall { caller, principal, bearer, may_be_forwarded })
    }

    /// What a person may do whose call state passes on: as state says, which knows of changes first, and else as was heard.
    fn named_principal(&self, name: &str, headers: &HeaderMap) -> Option<Arc<Principal>> {
        let terms = headers.get(PRINCIPAL_HEADER).and_then(|terms| terms.to_str().ok());
        let told = terms.and_then(|terms| PrincipalTerms::read(name, terms));
        told.map(Arc::new).or_else(|| self.records.principal(name))
    }

    /// Who sends a call. A leaf says more than a token beside it.
    fn sender(&self, transport: &Transport, headers: &HeaderMap) -> Result<CallSender, Status> {
        Ok(CallSender::of(match transport {
            Transport::PlainText if self.serves_plain_text => Caller::Unjudged,
            // Nothing came this way: the connection was refused.
            Transport::PlainText => Caller::Anonymous,
            Transport::Unix => {
                let principal = self.records.principal(caller::ADMIN);
                return Ok(CallSender { principal, ..CallSender::of(Caller::admin()) });
            }
            Transport::Tls { leaf: Some(leaf) } => {
                let (caller, standing) = (leaf.caller.clone(), self.standing(leaf));
                return Ok(CallSender { standing, ..CallSender::of(caller) });
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
        let bearer = self.records.bearer(token, (self.clock)());
        let bearer = bearer.map_err(|bad| status::bad_token(bad.to_string()))?;
        if let Some(silence) = self.records.silence() {
            return Err(status::state_silent(silence));
        }
        let caller = Caller::Person { name: bearer.token.person.clone() };
        let principal = Some(Arc::clone(&bearer.principal));
        Ok(CallSender { principal, bearer: Some(bearer), ..CallSender::of(caller) })
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
