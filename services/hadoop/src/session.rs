//! One connection from its first byte to its calls, without I/O: what each message means, and what is answered at once.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;

use crate::{
    Authentication, Caller, Exception, Identity,
    common::{
        IpcConnectionContextProto, RequestHeaderProto, RpcKindProto, RpcRequestHeaderProto, RpcSaslProto,
        rpc_request_header_proto::OperationProto,
        rpc_response_header_proto::{RpcErrorCodeProto, RpcStatusProto},
        rpc_sasl_proto::{SaslAuth, SaslState},
    },
    digest, exception,
    frame::{self, AUTH_NONE, AUTH_SASL, CONTEXT_ID, Head, MAGIC, PING_ID, PREAMBLE_LEN, SASL_ID, VERSION},
};

const TOKEN: &str = "TOKEN";
const SIMPLE: &str = "SIMPLE";
const DIGEST_MD5: &str = "DIGEST-MD5";

/// A connection that is being opened, or is open.
#[derive(Debug)]
pub(crate) struct HadoopSession {
    authentication: Authentication,
    address: SocketAddr,
    /// The random word of this connection.
    nonce: String,
    stage: SessionStage,
}

#[derive(Debug)]
enum SessionStage {
    /// Nothing was received.
    Preamble,
    /// Who is it?
    Sasl,
    /// It is known who has the token, if one is needed; the context comes.
    Context(Option<Bytes>),
    Open(Caller),
}

/// What follows from a message.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// An answer is sent at once.
    Reply(Bytes),
    /// A method is called.
    Call(Call),
    /// The client says goodbye.
    Close,
}

/// A call of a method.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) head: Head,
    pub(crate) caller: Caller,
    pub(crate) method: String,
    pub(crate) protocol: String,
    pub(crate) version: u64,
    pub(crate) body: Bytes,
}

/// What ends a connection: the answer that says why.
#[derive(Debug)]
pub(crate) struct FatalCall(pub(crate) Bytes);

fn fatal(head: &Head, code: RpcErrorCodeProto, class: &'static str, message: impl Into<String>) -> FatalCall {
    FatalCall(frame::failure(head, RpcStatusProto::Fatal, code, &Exception::new(class, message)))
}

fn unauthorized(head: &Head, message: impl Into<String>) -> FatalCall {
    fatal(head, RpcErrorCodeProto::FatalUnauthorized, exception::ACCESS_CONTROL, message)
}

fn invalid_header(head: &Head, message: &str) -> FatalCall {
    fatal(head, RpcErrorCodeProto::FatalInvalidRpcHeader, exception::BAD_REQUEST, message)
}

impl HadoopSession {
    pub(crate) fn new(authentication: Authentication, address: SocketAddr, nonce: String) -> Self {
        Self { authentication, address, nonce, stage: SessionStage::Preamble }
    }

    /// Whether methods may be called.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, SessionStage::Open(_))
    }

    /// The bytes that a connection begins with. `Err` without an answer: it is no Hadoop client.
    pub(crate) fn on_preamble(&mut self, bytes: [u8; PREAMBLE_LEN]) -> Result<(), Option<FatalCall>> {
        let [magic @ .., version, _class, authentication] = &bytes;
        if magic != MAGIC {
            return Err(None);
        }
        let head = Head::none();
        if *version != VERSION {
            let message = format!(
                "the client speaks version {version} of Hadoop RPC, and this server version {VERSION}"
            );
            let class = "org.apache.hadoop.ipc.RPC$VersionMismatch";
            return Err(Some(fatal(&head, RpcErrorCodeProto::FatalVersionMismatch, class, message)));
        }
        self.stage = match *authentication {
            AUTH_NONE if self.authentication.takes_simple() => SessionStage::Context(None),
            AUTH_NONE => {
                let message = "SIMPLE authentication is not enabled.  Available:[TOKEN]";
                return Err(Some(unauthorized(&head, message)));
            }
            AUTH_SASL => SessionStage::Sasl,
            other => {
                let message = format!("there is no authentication {other:#04x} of Hadoop RPC");
                return Err(Some(unauthorized(&head, message)));
            }
        };
        Ok(())
    }

    /// A message, without the length before it.
    pub(crate) fn on_frame(&mut self, mut frame: Bytes) -> Result<Step, FatalCall> {
        let Some(header) = frame::take_message::<RpcRequestHeaderProto>(&mut frame) else {
            return Err(invalid_header(&Head::none(), "the header of a message cannot be read"));
        };
        let head = Head {
            call_id: header.call_id,
            retry_count: header.retry_count(),
            client_id: header.client_id.clone(),
        };
        match header.rpc_op() {
            OperationProto::RpcFinalPacket => {}
            OperationProto::RpcCloseConnection => return Ok(Step::Close),
            OperationProto::RpcContinuationPacket => {
                return Err(invalid_header(
                    &head,
                    "messages in several packets are not part of Hadoop RPC 9",
                ));
            }
        }
        match (header.call_id, &self.stage) {
            (SASL_ID, SessionStage::Sasl) => self.on_sasl(&head, frame),
            (CONTEXT_ID, SessionStage::Context(_)) => self.on_context(&head, frame),
            (PING_ID, SessionStage::Open(_)) => Ok(Step::Wait),
            (0.., SessionStage::Open(caller)) => {
                if header.rpc_kind != Some(RpcKindProto::RpcProtocolBuffer.into()) {
                    let (code, class) =
                        (RpcErrorCodeProto::FatalUnsupportedSerialization, exception::BAD_REQUEST);
                    return Err(fatal(&head, code, class, "calls are served in protocol buffers only"));
                }
                let method = frame::take_message::<RequestHeaderProto>(&mut frame);
                let (Some(method), Some(body)) = (method, frame::take_delimited(&mut frame)) else {
                    let (code, class) =
                        (RpcErrorCodeProto::FatalDeserializingRequest, exception::BAD_REQUEST);
                    return Err(fatal(&head, code, class, "a call cannot be read"));
                };
                Ok(Step::Call(Call {
                    head,
                    caller: caller.clone(),
                    method: method.method_name,
                    protocol: method.declaring_class_protocol_name,
                    version: method.client_protocol_version,
                    body,
                }))
            }
            (SASL_ID, _) => Err(unauthorized(&head, "an authentication was not expected here")),
            (_, SessionStage::Sasl) => Err(unauthorized(&head, "the connection must be authenticated first")),
            (_, SessionStage::Preamble | SessionStage::Context(_) | SessionStage::Open(_)) => {
                Err(invalid_header(
                    &head,
                    &format!("a message with number {} was not expected here", header.call_id),
                ))
            }
        }
    }

    fn on_sasl(&mut self, head: &Head, mut frame: Bytes) -> Result<Step, FatalCall> {
        let Some(message) = frame::take_message::<RpcSaslProto>(&mut frame) else {
            return Err(unauthorized(head, "a message of the authentication cannot be read"));
        };
        match message.state() {
            SaslState::Negotiate => Ok(Step::Reply(self.offer())),
            SaslState::Initiate => self.on_initiate(head, &message),
            SaslState::Wrap => Err(unauthorized(
                head,
                "encrypted RPC is not served: set hadoop.rpc.protection to authentication",
            )),
            SaslState::Success | SaslState::Challenge | SaslState::Response => {
                Err(unauthorized(head, "this message of an authentication was not expected here"))
            }
        }
    }

    /// What a client may choose from.
    fn offer(&self) -> Bytes {
        let token = SaslAuth {
            method: TOKEN.to_owned(),
            mechanism: DIGEST_MD5.to_owned(),
            protocol: Some(String::new()),
            server_id: Some(digest::DEFAULT.to_owned()),
            challenge: Some(digest::challenge(&self.nonce).into()),
        };
        let simple = SaslAuth { method: SIMPLE.to_owned(), ..SaslAuth::default() };
        let auths = match &self.authentication {
            Authentication::Simple => vec![simple],
            Authentication::Token(_) => vec![token],
            Authentication::TokenOrSimple(_) => vec![token, simple],
        };
        frame::sasl(&RpcSaslProto { state: SaslState::Negotiate.into(), auths, ..RpcSaslProto::default() })
    }

    fn on_initiate(&mut self, head: &Head, message: &RpcSaslProto) -> Result<Step, FatalCall> {
        let [chosen] = &message.auths[..] else {
            return Err(unauthorized(head, "the client must choose one authentication"));
        };
        match (chosen.method.as_str(), self.authentication.passwords()) {
            (SIMPLE, _) if self.authentication.takes_simple() => {
                self.stage = SessionStage::Context(None);
                Ok(Step::Wait)
            }
            (TOKEN, Some(passwords)) => {
                let (identifier, proof) = prove(&**passwords, message.token(), &self.nonce, self.address)
                    .map_err(|error| {
                        let status = RpcStatusProto::Fatal;
                        let head = Head { call_id: SASL_ID, ..head.clone() };
                        FatalCall(frame::failure(&head, status, RpcErrorCodeProto::FatalUnauthorized, &error))
                    })?;
                self.stage = SessionStage::Context(Some(identifier));
                Ok(Step::Reply(frame::sasl(&RpcSaslProto {
                    state: SaslState::Success.into(),
                    token: Some(proof.into()),
                    ..RpcSaslProto::default()
                })))
            }
            ("KERBEROS", _) => Err(unauthorized(
                head,
                "godel does not speak Kerberos: set hadoop.security.authentication to simple on the client",
            )),
            (other, _) => Err(unauthorized(head, format!("{other} authentication is not served here"))),
        }
    }

    fn on_context(&mut self, head: &Head, mut frame: Bytes) -> Result<Step, FatalCall> {
        let Some(context) = frame::take_message::<IpcConnectionContextProto>(&mut frame) else {
            return Err(invalid_header(head, "the context of the connection cannot be read"));
        };
        let SessionStage::Context(token) = &self.stage else { return Ok(Step::Wait) };
        let identity = match token {
            Some(identifier) => Identity::Token(identifier.clone()),
            None => {
                let user = context.user_info.unwrap_or_default();
                let effective = user.effective_user.or_else(|| user.real_user.clone());
                let Some(effective) = effective.filter(|name| !name.is_empty()) else {
                    return Err(unauthorized(head, "the client does not say which user calls"));
                };
                let real = user.real_user.filter(|real| *real != effective);
                Identity::User { effective, real }
            }
        };
        self.stage = SessionStage::Open(Caller { identity, address: self.address, method: "" });
        Ok(Step::Wait)
    }
}

/// The identifier of a client's token, and what proves to the client that the server knows the password.
fn prove(
    passwords: &dyn crate::Passwords,
    response: &[u8],
    nonce: &str,
    address: SocketAddr,
) -> Result<(Bytes, String), Exception> {
    let refused = |error: digest::DigestError| Exception::new(exception::ACCESS_CONTROL, error.to_string());
    let response = digest::Response::read(response).map_err(refused)?;
    let proof = passwords
        .password(&response.identifier)
        .and_then(|password| response.verify(nonce, &password).map_err(refused))
        .inspect_err(|_| passwords.note_refused(&response.identifier, address))?;
    Ok((response.identifier.into(), proof))
}

impl Authentication {
    fn takes_simple(&self) -> bool {
        matches!(self, Self::Simple | Self::TokenOrSimple(_))
    }

    fn passwords(&self) -> Option<&Arc<dyn crate::Passwords>> {
        match self {
            Self::Simple => None,
            Self::Token(passwords) | Self::TokenOrSimple(passwords) => Some(passwords),
        }
    }
}

#[cfg(test)]
mod tests;
