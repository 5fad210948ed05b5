//! Messages on a connection: each is a length of four bytes and parts with lengths of their own.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

use crate::{
    Exception,
    common::{
        RpcKindProto, RpcRequestHeaderProto, RpcResponseHeaderProto, RpcSaslProto,
        rpc_request_header_proto::OperationProto,
        rpc_response_header_proto::{RpcErrorCodeProto, RpcStatusProto},
    },
};

/// The version of the protocol.
pub(crate) const VERSION: u8 = 9;
/// What a connection begins with: letters, version, class of service, authentication.
pub(crate) const PREAMBLE_LEN: usize = 7;
pub(crate) const MAGIC: &[u8; 4] = b"hrpc";
/// No authentication before the first message.
pub(crate) const AUTH_NONE: u8 = 0;
/// The first messages are SASL's.
pub(crate) const AUTH_SASL: u8 = 0xdf;
/// Numbers of messages that are no calls.
pub(crate) const CONTEXT_ID: i32 = -3;
pub(crate) const PING_ID: i32 = -4;
pub(crate) const SASL_ID: i32 = -33;
/// Of an answer to nothing that has a number.
pub(crate) const NO_ID: i32 = -1;
/// Bytes of the length before a message.
pub(crate) const LEN_LEN: usize = 4;

/// Which message an answer is to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) call_id: i32,
    pub(crate) client_id: Bytes,
    pub(crate) retry_count: i32,
}

impl Head {
    /// Of an answer to nothing that has a number.
    pub(crate) fn none() -> Self {
        Self { call_id: NO_ID, client_id: Bytes::new(), retry_count: -1 }
    }

    fn response(&self, status: RpcStatusProto) -> RpcResponseHeaderProto {
        RpcResponseHeaderProto {
            call_id: self.call_id.cast_unsigned(),
            status: status.into(),
            server_ipc_version_num: Some(VERSION.into()),
            client_id: (!self.client_id.is_empty()).then(|| self.client_id.clone()),
            retry_count: Some(self.retry_count),
            ..RpcResponseHeaderProto::default()
        }
    }
}

/// An answer with a body, which is encoded already.
pub(crate) fn success(head: &Head, body: &[u8]) -> Bytes {
    framed(&head.response(RpcStatusProto::Success), |out| {
        prost::encoding::encode_varint(u64::try_from(body.len()).unwrap_or(u64::MAX), out);
        out.extend_from_slice(body);
    })
}

/// An answer that is an exception.
pub(crate) fn failure(
    head: &Head,
    status: RpcStatusProto,
    code: RpcErrorCodeProto,
    Exception { class, message }: &Exception,
) -> Bytes {
    let header = RpcResponseHeaderProto {
        exception_class_name: Some(class.clone().into_owned()),
        error_msg: Some(message.clone()),
        error_detail: Some(code.into()),
        ..head.response(status)
    };
    framed(&header, |_| {})
}

/// An answer of the authentication.
pub(crate) fn sasl(message: &RpcSaslProto) -> Bytes {
    let head = Head { call_id: SASL_ID, ..Head::none() };
    success(&head, &message.encode_to_vec())
}

/// A message of a client.
pub(crate) fn request(call_id: i32, client_id: &Bytes, parts: impl FnOnce(&mut BytesMut)) -> Bytes {
    let header = RpcRequestHeaderProto {
        rpc_kind: Some(RpcKindProto::RpcProtocolBuffer.into()),
        rpc_op: Some(OperationProto::RpcFinalPacket.into()),
        call_id,
        client_id: client_id.clone(),
        retry_count: Some(0),
    };
    framed(&header, parts)
}

/// Appends a message behind its length.
pub(crate) fn put_delimited(out: &mut BytesMut, message: &impl Message) {
    out.reserve(message.encoded_len() + 10);
    // There is room: this cannot fail.
    let _has_room = message.encode_length_delimited(out);
}

fn framed(header: &impl Message, parts: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(256);
    out.put_u32(0);
    put_delimited(&mut out, header);
    parts(&mut out);
    let len = u32::try_from(out.len() - LEN_LEN).unwrap_or(u32::MAX);
    out[..LEN_LEN].copy_from_slice(&len.to_be_bytes());
    out.freeze()
}

/// Takes bytes behind their length from the front; `None`: they are not there.
pub(crate) fn take_delimited(bytes: &mut Bytes) -> Option<Bytes> {
    let len = usize::try_from(prost::encoding::decode_varint(bytes).ok()?).ok()?;
    (len <= bytes.len()).then(|| bytes.split_to(len))
}

/// Takes a message behind its length from the front; `None`: it cannot be read.
pub(crate) fn take_message<M: Message + Default>(bytes: &mut Bytes) -> Option<M> {
    M::decode(take_delimited(bytes)?).ok()
}
