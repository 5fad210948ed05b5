//! Who calls the faces: principals by their tokens, and names that nobody has proved.
//!
//! Where callers are judged, a user of YARN who shows no token is the principal `yarn-simple:NAME`, which may call the faces for clients of YARN alone; whoever
//! shows one is its principal, as what state has told judges it at each call. What is refused has a line in the change log. Where nobody is judged, users are who they say they are.

use std::{fmt, net::SocketAddr, sync::Arc};

use godel_domain::change_line::CallCause;
use godel_hadoop::{
    Authentication, Caller, Exception, Identity, Passwords, Protocol, exception, person_token,
    token::Password,
};
use godel_kit::{
    security::{CallerRecords, ForeignCall, PersonRole, Principal, ServerSecurity, WallClock},
    status,
};
use tonic::{Code, Status};

/// What stands before a token in the header `authorization`.
const BEARER: &str = "Bearer ";

/// What the change log calls the opening of a connection of a client, which calls no method yet.
const CONNECTION: &str = "hadoop/ApplicationClientProtocol";

/// Who calls the faces of an adapter; by default nobody is judged. Clones share it.
#[derive(Clone, Default)]
pub struct YarnCallers(Option<JudgedCallers>);

#[derive(Clone)]
struct JudgedCallers {
    records: CallerRecords,
    clock: WallClock,
}

impl fmt::Debug for YarnCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_judged() { "judged" } else { "believed" })
    }
}

impl fmt::Debug for JudgedCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgedCallers").field("records", &self.records).finish_non_exhaustive()
    }
}

impl YarnCallers {
    /// As the server of the service knows those who call it.
    pub fn of(security: &ServerSecurity) -> Self {
        security.callers().map_or_else(Self::default, |(records, clock)| Self::new(records, clock))
    }

    /// Callers that are judged by records, at the time of `clock`.
    pub fn new(records: CallerRecords, clock: WallClock) -> Self {
        Self(Some(JudgedCallers { records, clock }))
    }

    /// Whether callers are judged.
    pub fn is_judged(&self) -> bool {
        self.0.is_some()
    }

    /// The principal that owns applications as `owner`; `None`: nobody is judged. One of which nothing is recorded has the rights of a `user`.
    pub(crate) fn principal(&self, owner: &str) -> Option<Arc<Principal>> {
        let JudgedCallers { records, .. } = self.0.as_ref()?;
        let recorded = records.recorded_principal(owner);
        Some(recorded.unwrap_or_else(|| Arc::new(Principal::new(owner, PersonRole::User))))
    }

    /// How clients of YARN show who they are.
    pub(crate) fn authentication(&self) -> Authentication {
        match &self.0 {
            Some(judged) => Authentication::TokenOrSimple(Arc::new(judged.clone())),
            None => Authentication::Simple,
        }
    }

    /// Has each call of a protocol judged by the permissions. What goes on calls as the user whose name is that of its principal.
    pub(crate) fn guard(&self, protocol: Protocol) -> Protocol {
        let Some(judged) = &self.0 else { return protocol };
        let (judged, name) = (judged.clone(), short_name(protocol.name()));
        protocol
            .guarded(move |method, caller| judged.judge_hadoop(&format!("hadoop/{name}/{method}"), caller))
    }

    /// Who calls the REST API: `claimed` is the name that the caller says, and `authorization` its header. `None`: nobody is judged.
    ///
    /// # Errors
    /// The token does not count, or the principal may not call. The change log has a line for it.
    pub(crate) fn judge_rest(
        &self,
        row: &str,
        claimed: &str,
        authorization: Option<&[u8]>,
        address: &str,
    ) -> Result<Option<Arc<Principal>>, RestRefusal> {
        let Some(JudgedCallers { records, clock }) = &self.0 else { return Ok(None) };
        let call = ForeignCall { method: row, address, now_ms: clock() };
        let principal = match authorization {
            None => Arc::new(Principal::yarn_simple(claimed)),
            Some(header) => {
                let token = std::str::from_utf8(header).ok().and_then(|text| text.strip_prefix(BEARER));
                records.principal_of_token(token.map(str::trim), &call).map_err(RestRefusal::of_status)?
            }
        };
        let judged = records.judge_foreign(&principal, &call);
        judged.map_err(|refusal| RestRefusal::Forbidden(refusal.to_string()))?;
        Ok(Some(principal))
    }

    /// Notes for the change log that a call was refused, and why, in a word or two. Where nobody is judged nothing is noted.
    pub(crate) fn note_refused(&self, call: CallCause, why: &str) {
        if let Some(JudgedCallers { records, clock }) = &self.0 {
            records.note_refused(call, why, clock());
        }
    }

    /// Notes for the change log that a call was done of which no record says anything.
    pub(crate) fn note_done(&self, call: CallCause) {
        if let Some(JudgedCallers { records, clock }) = &self.0 {
            records.note_done(call, clock());
        }
    }
}

/// Why a call of the REST API goes no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RestRefusal {
    /// Who calls is not proved.
    Unproven(String),
    /// Who calls may not.
    Forbidden(String),
    /// Who may call is not known now.
    Unavailable(String),
}

impl RestRefusal {
    fn of_status(status: Status) -> Self {
        let why = status.message().to_owned();
        match status.code() {
            Code::Unavailable => Self::Unavailable(why),
            _ => Self::Unproven(why),
        }
    }
}

impl JudgedCallers {
    fn judge_hadoop(&self, path: &str, caller: Caller) -> Result<Caller, Exception> {
        let address = caller.address.to_string();
        let call = ForeignCall { method: path, address: &address, now_ms: (self.clock)() };
        let principal = match &caller.identity {
            Identity::User { effective, .. } => Arc::new(Principal::yarn_simple(effective)),
            Identity::Token(identifier) => {
                self.records.principal_of_said(&said_by(identifier)?, &call).map_err(of_status)?
            }
        };
        self.records
            .judge_foreign(&principal, &call)
            .map_err(|refusal| Exception::new(exception::ACCESS_CONTROL, refusal.to_string()))?;
        let identity = Identity::User { effective: principal.name.clone(), real: None };
        Ok(Caller { identity, ..caller })
    }
}

impl Passwords for JudgedCallers {
    fn password(&self, identifier: &[u8]) -> Result<Password, Exception> {
        self.records.yarn_password(&said_by(identifier)?, (self.clock)()).map_err(of_status)
    }

    fn note_refused(&self, identifier: &[u8], address: SocketAddr) {
        let (said, address) = (person_token::said_by(identifier), address.to_string());
        let call = ForeignCall { method: CONNECTION, address: &address, now_ms: (self.clock)() };
        self.records.note_unproven(said.as_deref(), &call);
    }
}

fn said_by(identifier: &[u8]) -> Result<String, Exception> {
    person_token::said_by(identifier).ok_or_else(|| {
        let message = "the token was not made for this cluster: get a file of one with `godel token create NAME --yarn FILE`";
        Exception::new(exception::INVALID_TOKEN, message)
    })
}

/// What a client of YARN is told whose token does not count.
fn of_status(status: Status) -> Exception {
    if status::is_retryable_idempotent(&status) {
        return Exception::new("org.apache.hadoop.ipc.RetriableException", status.message());
    }
    Exception::new(exception::INVALID_TOKEN, status.message())
}

/// `ApplicationClientProtocol` of `org.apache.hadoop.yarn.api.ApplicationClientProtocolPB`.
pub(crate) fn short_name(class: &str) -> &str {
    let name = class.rsplit('.').next().unwrap_or(class);
    name.strip_suffix("PB").unwrap_or(name)
}
