//! A client of Hadoop RPC: one connection, one call at a time.

use std::{io, net::SocketAddr, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use prost::Message;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    Exception,
    common::{
        IpcConnectionContextProto, RequestHeaderProto, RpcResponseHeaderProto, RpcSaslProto, TokenProto,
        UserInformationProto,
        rpc_response_header_proto::RpcStatusProto,
        rpc_sasl_proto::{SaslAuth, SaslState},
    },
    digest, exception,
    frame::{self, AUTH_NONE, AUTH_SASL, CONTEXT_ID, MAGIC, SASL_ID, VERSION},
};

/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read at once at least: most answers are shorter.
const READ_BYTES: usize = 1024;

/// How the client shows who it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Shows {
    /// It says so.
    User {
        /// On whose behalf it calls.
        effective: String,
        /// Who calls, if that is another user.
        real: Option<String>,
    },
    /// It has a token.
    Token(TokenProto),
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered an exception.
    #[error(transparent)]
    Refused(Exception),
    /// The connection failed; the call may have had its effect.
    #[error("the connection to the Hadoop server failed")]
    Io(#[from] io::Error),
    /// The server did not answer in time; the call may have had its effect.
    #[error("the Hadoop server has not answered in time")]
    Timeout,
    /// The answer cannot be read.
    #[error("the answer of the Hadoop server cannot be read")]
    Malformed,
}

/// A connection to one protocol of a server. A call that failed for another reason than an exception leaves it unusable.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: BytesMut,
    protocol: &'static str,
    version: u64,
    client_id: Bytes,
    last_id: i32,
    within: Duration,
}

impl Client {
    /// Connects to a version of a protocol, and shows who the client is. The connection and each call later must succeed `within` this time.
    ///
    /// # Errors
    /// The server is not there, or does not take the client.
    pub async fn connect(
        address: SocketAddr,
        protocol: &'static str,
        version: u64,
        shows: &Shows,
        within: Duration,
    ) -> Result<Self, CallError> {
        let opened = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let client_id = Bytes::copy_from_slice(uuid::Uuid::new_v4().as_bytes());
            let buffer = BytesMut::new();
            let mut client = Self { stream, buffer, protocol, version, client_id, last_id: -1, within };
            client.open(shows).await?;
            Ok(client)
        };
        timeout(within, opened).await.unwrap_or(Err(CallError::Timeout))
    }

    /// The connection, for what this client does not say.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Calls a method.
    ///
    /// # Errors
    /// The server answered an exception, or nothing that can be read.
    pub async fn call<Q: Message, A: Message + Default>(
        &mut self,
        method: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        let within = self.within;
        let called = async {
            self.last_id = self.last_id.checked_add(1).unwrap_or(0);
            let header = RequestHeaderProto {
                method_name: method.to_owned(),
                declaring_class_protocol_name: self.protocol.to_owned(),
                client_protocol_version: self.version,
            };
            let message = frame::request(self.last_id, &self.client_id, |out| {
                frame::put_delimited(out, &header);
                frame::put_delimited(out, request);
            });
            self.stream.write_all(&message).await?;
            let body = self.answer(self.last_id).await?;
            A::decode(body).map_err(|_| CallError::Malformed)
        };
        timeout(within, called).await.unwrap_or(Err(CallError::Timeout))
    }

    async fn open(&mut self, shows: &Shows) -> Result<(), CallError> {
        let authentication = match shows {
            Shows::User { .. } => AUTH_NONE,
            Shows::Token(_) => AUTH_SASL,
        };
        let preamble = [&MAGIC[..], &[VERSION, 0, authentication]].concat();
        self.stream.write_all(&preamble).await?;
        let user_info = match shows {
            Shows::User { effective, real } => Some(UserInformationProto {
                effective_user: Some(effective.clone()),
                real_user: real.clone(),
            }),
            Shows::Token(token) => {
                self.prove(token).await?;
                None
            }
        };
        let context = IpcConnectionContextProto { user_info, protocol: Some(self.protocol.to_owned()) };
        let message = frame::request(CONTEXT_ID, &self.client_id, |out| frame::put_delimited(out, &context));
        self.stream.write_all(&message).await?;
        Ok(())
    }

    async fn prove(&mut self, token: &TokenProto) -> Result<(), CallError> {
        let negotiate = RpcSaslProto { state: SaslState::Negotiate.into(), ..RpcSaslProto::default() };
        let offer = self.sasl(&negotiate).await?;
        let chosen = offer.auths.into_iter().find(|auth| auth.method == "TOKEN").ok_or_else(|| {
            let message = "the server takes no tokens".to_owned();
            CallError::Refused(Exception::new(exception::ACCESS_CONTROL, message))
        })?;
        let question = chosen.challenge.clone().unwrap_or_default();
        let cnonce = uuid::Uuid::new_v4().simple().to_string();
        let (said, expected) = digest::respond(&question, &token.identifier, &token.password, &cnonce)
            .map_err(|_| CallError::Malformed)?;
        let initiate = RpcSaslProto {
            state: SaslState::Initiate.into(),
            token: Some(said.into()),
            auths: vec![SaslAuth { challenge: None, ..chosen }],
            ..RpcSaslProto::default()
        };
        let answer = self.sasl(&initiate).await?;
        if answer.state() != SaslState::Success || answer.token() != expected.as_bytes() {
            let message = "the server does not know the password of the token".to_owned();
            return Err(CallError::Refused(Exception::new(exception::INVALID_TOKEN, message)));
        }
        Ok(())
    }

    async fn sasl(&mut self, message: &RpcSaslProto) -> Result<RpcSaslProto, CallError> {
        let message = frame::request(SASL_ID, &self.client_id, |out| frame::put_delimited(out, message));
        self.stream.write_all(&message).await?;
        RpcSaslProto::decode(self.answer(SASL_ID).await?).map_err(|_| CallError::Malformed)
    }

    /// The body of the next answer, which is that to this message.
    async fn answer(&mut self, id: i32) -> Result<Bytes, CallError> {
        let len = loop {
            if let Some(length) = self.buffer.first_chunk::<4>() {
                let len = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                if len > ANSWER_BYTES_MAX {
                    return Err(CallError::Malformed);
                }
                if self.buffer.len() >= 4 + len {
                    break len;
                }
            }
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        };
        self.buffer.advance(4);
        let mut answer = self.buffer.split_to(len).freeze();
        let header: RpcResponseHeaderProto = frame::take_message(&mut answer).ok_or(CallError::Malformed)?;
        match header.status() {
            RpcStatusProto::Success if header.call_id == id.cast_unsigned() => {
                frame::take_delimited(&mut answer).ok_or(CallError::Malformed)
            }
            RpcStatusProto::Success => Err(CallError::Malformed),
            RpcStatusProto::Error | RpcStatusProto::Fatal => {
                let class = header.exception_class_name().to_owned();
                Err(CallError::Refused(Exception::new(class, header.error_msg())))
            }
        }
    }
}
