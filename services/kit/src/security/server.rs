//! What a server speaks and whom it believes.

use std::{fmt, sync::Arc};

use godel_domain::change_line::CallCause;
use godel_identity::{
    caller::{self, ADDRESS_HEADER, CALLER_HEADER, Caller, PRINCIPAL_HEADER},
    change_log::UNKNOWN,
    leaves::LeafStanding,
    names::Role,
    needs::{CallerRefusal, Needs, judge_call, known_path, needs_of},
    permission::{Permission, Principal, PrincipalTerms},
};
use godel_pki::{
    person_tokens::{BadToken, read_token},
    tls::{TlsIdentity, WallClock},
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tonic::Status;

use super::{
    BEARER, CallerRecords, ClientSecurity, PeerLeaf, TokenBearer, Transport,
    call_log::{CallLog, CallOrigin},
};
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

/// A call that may not be made.
#[derive(Clone, Debug)]
pub(crate) struct RefusedCall {
    /// What its caller hears.
    pub(crate) status: Status,
    /// What the change log says of it; `None`: a process called.
    noted: Option<NotedRefusal>,
}

/// A person who was refused.
#[derive(Clone, Debug)]
struct NotedRefusal {
    /// The principal, if something proved it.
    principal: String,
    why: &'static str,
    /// State has passed the call on, and says where it came from.
    is_passed_on: bool,
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

    /// What is known of callers, and the time by which they are judged; `None`: nobody is judged.
    pub fn callers(&self) -> Option<(CallerRecords, WallClock)> {
        self.0.as_ref().map(|secured| (secured.records.clone(), secured.clock.clone()))
    }

    /// With what it passes on the calls of others.
    pub fn forwards(&self) -> ClientSecurity {
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

    /// Who asks for a page of [`HTTP_NEEDS`](godel_identity::needs::HTTP_NEEDS). Without security everybody may.
    ///
    /// # Errors
    /// That one may not. The change log has a line for it.
    pub fn judge_page(
        &self,
        transport: &Transport,
        headers: &HeaderMap,
        page: &str,
    ) -> Result<Caller, Status> {
        let Some(secured) = &self.0 else { return Ok(Caller::Unjudged) };
        let judged = secured.judge_page(transport, headers, page);
        judged.map_err(|refused| self.note_refused(refused, page, ""))
    }

    /// Notes for the change log who was refused, and returns what its caller hears. `address` is where the call came from.
    pub(crate) fn note_refused(&self, refused: RefusedCall, method: &str, address: &str) -> Status {
        let RefusedCall { status, noted } = refused;
        if let Some((NotedRefusal { principal, why, .. }, origin)) = noted.zip(self.origin(address)) {
            origin.note_refused(CallCause::new(&principal, method, address), why);
        }
        status
    }

    /// The calls that this server has refused; `None`: without security nobody is.
    pub fn call_log(&self) -> Option<&CallLog> {
        self.0.as_ref().map(|secured| secured.records.call_log())
    }

    /// Notes for the change log that a page was asked for which changes something.
    pub(crate) fn note_page(&self, caller: &Caller, page: &str) {
        let Caller::Person { name } = caller else { return };
        if let Some(origin) = self.origin("") {
            origin.note_done(CallCause::new(name, page, ""));
        }
    }

    /// Where a call came from, and where it is noted; `None`: without security nobody is known.
    pub(crate) fn origin(&self, address: &str) -> Option<CallOrigin> {
        let SecuredServer { records, clock, .. } = self.0.as_deref()?;
        Some(CallOrigin {
            address: address.into(),
            log: records.call_log().clone(),
            clock: Arc::clone(clock),
        })
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
    ) -> Result<JudgedCall, RefusedCall> {
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

    fn judge_page(
        &self,
        transport: &Transport,
        headers: &HeaderMap,
        page: &str,
    ) -> Result<Caller, RefusedCall> {
        let CallSender { caller, standing, principal, .. } = self.sender(transport, headers)?;
        let judged = judge_call(page, &caller, principal.as_deref(), standing);
        judged.map_err(|refusal| RefusedCall::judged(&caller, &refusal))?;
        Ok(caller)
    }

    fn judge(
        &self,
        transport: &Transport,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<JudgedCall, RefusedCall> {
        let sender = match self.sender(transport, headers) {
            // What needs nothing is answered whatever comes with it.
            Err(_) if needs_of(path) == Needs::Anyone => CallSender::of(Caller::Anonymous),
            sender => sender?,
        };
        let CallSender { caller, standing, principal, bearer } = sender;
        let may_be_forwarded = caller.role() == Some(Role::State);
        if !may_be_forwarded && caller != Caller::Unjudged && headers.contains_key(FORWARDED) {
            let status = status::forged_forwarding(&caller);
            return Err(RefusedCall::of(&caller, "forged header", status));
        }
        // What is no text names nobody.
        let named = headers.get(CALLER_HEADER).map(|value| value.to_str().unwrap_or_default());
        if named.is_none() {
            let judged = judge_call(path, &caller, principal.as_deref(), standing);
            judged.map_err(|refusal| RefusedCall::judged(&caller, &refusal))?;
            return Ok(JudgedCall { caller, principal, bearer, may_be_forwarded });
        }
        check_standing(&caller, standing)?;
        let sender = caller.clone();
        let forged = |bad| RefusedCall::of(&sender, "forged header", status::forged_caller(&bad));
        let caller = caller::behind(caller, named).map_err(forged)?;
        let principal = match &caller {
            Caller::Person { name } => self.named_principal(name, headers),
            Caller::Member { .. } | Caller::Agent { .. } | Caller::Unjudged | Caller::Anonymous => None,
        };
        let judged = judge_call(path, &caller, principal.as_deref(), LeafStanding::Valid);
        judged.map_err(|refusal| RefusedCall::judged(&caller, &refusal).passed_on())?;
        Ok(JudgedCall { caller, principal, bearer, may_be_forwarded })
    }

    /// What a person may do whose call state passes on: as state says, which knows of changes first, and else as was heard.
    fn named_principal(&self, name: &str, headers: &HeaderMap) -> Option<Arc<Principal>> {
        let terms = headers.get(PRINCIPAL_HEADER).and_then(|terms| terms.to_str().ok());
        let told = terms.and_then(|terms| PrincipalTerms::read(name, terms));
        told.map(Arc::new).or_else(|| self.records.principal(name))
    }

    /// Who sends a call. A leaf says more than a token beside it.
    fn sender(&self, transport: &Transport, headers: &HeaderMap) -> Result<CallSender, RefusedCall> {
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

    fn person(&self, authorization: &HeaderValue) -> Result<CallSender, RefusedCall> {
        let token = authorization.to_str().ok().and_then(|value| value.strip_prefix(BEARER));
        let form = || {
            let status = status::bad_token("the header `authorization` is not of the form `Bearer TOKEN`");
            RefusedCall::of(&Caller::Anonymous, refused_token(&BadToken::Form), status)
        };
        let token = token.ok_or_else(form)?.trim();
        let bearer = self.records.bearer(token, (self.clock)());
        let bearer = bearer.map_err(|bad| {
            let status = status::bad_token(bad.to_string());
            RefusedCall::of(&proved_by(token, &bad), refused_token(&bad), status)
        })?;
        if let Some(silence) = self.records.silence() {
            return Err(status::state_silent(silence).into());
        }
        let caller = Caller::Person { name: bearer.token.person.clone() };
        let principal = Some(Arc::clone(&bearer.principal));
        Ok(CallSender { principal, bearer: Some(bearer), ..CallSender::of(caller) })
    }
}

impl RefusedCall {
    /// Of a caller; what a process may not do is no line of the change log.
    fn of(caller: &Caller, why: &'static str, status: Status) -> Self {
        let principal = match caller {
            Caller::Person { name } => Some(name.as_str()),
            Caller::Anonymous => Some(UNKNOWN),
            Caller::Member { .. } | Caller::Agent { .. } | Caller::Unjudged => None,
        };
        let noted =
            |principal: &str| NotedRefusal { principal: principal.to_owned(), why, is_passed_on: false };
        Self { status, noted: principal.map(noted) }
    }

    fn judged(caller: &Caller, refusal: &CallerRefusal) -> Self {
        let why = match refusal {
            CallerRefusal::Unknown { .. } => "no token",
            CallerRefusal::NotAllowed { .. } => Permission::NotForPersons.refused_for(),
            CallerRefusal::Permission(refusal) => refusal.permission.refused_for(),
            CallerRefusal::NoPrincipal { .. } => "no such principal",
            CallerRefusal::Expired { .. } | CallerRefusal::Refused { .. } => "certificate",
        };
        Self::of(caller, why, status::refused_call(refusal))
    }

    fn passed_on(self) -> Self {
        Self { noted: self.noted.map(|noted| NotedRefusal { is_passed_on: true, ..noted }), ..self }
    }

    /// Whether state says in [`ADDRESS_HEADER`] where the call came from.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.noted.as_ref().is_some_and(|noted| noted.is_passed_on)
    }
}

/// Of what the change log says nothing.
impl From<Status> for RefusedCall {
    fn from(status: Status) -> Self {
        Self { status, noted: None }
    }
}

/// Who a refused token is of: known only if its signature was right.
pub(super) fn proved_by(token: &str, bad: &BadToken) -> Caller {
    let is_signed = match bad {
        BadToken::Expired | BadToken::Revoked | BadToken::NoPrincipal(_) | BadToken::ChangedPrincipal(_) => {
            true
        }
        BadToken::Long(_)
        | BadToken::Form
        | BadToken::OtherCluster { .. }
        | BadToken::OtherKey(_)
        | BadToken::Signature => false,
    };
    let said = if is_signed { read_token(token).ok() } else { None };
    said.map_or(Caller::Anonymous, |said| Caller::Person { name: said.person })
}

/// Why a token was refused, for the change log.
pub(super) fn refused_token(bad: &BadToken) -> &'static str {
    match bad {
        BadToken::Long(_) | BadToken::Form => "not a token",
        BadToken::OtherCluster { .. } => "token of another cluster",
        BadToken::OtherKey(_) => "token of another key",
        BadToken::Signature => "token with a wrong signature",
        BadToken::Expired => "expired token",
        BadToken::Revoked => "revoked token",
        BadToken::NoPrincipal(_) => "no such principal",
        BadToken::ChangedPrincipal(_) => "changed permissions",
    }
}

/// Where state says that a call came from which it passes on.
pub(crate) fn passed_on_address(headers: &HeaderMap) -> Option<&str> {
    headers.get(ADDRESS_HEADER)?.to_str().ok()
}

/// The path of a method for the change log; callers make up others.
pub(crate) fn logged_method(path: &str) -> &str {
    known_path(path).unwrap_or(UNKNOWN)
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
