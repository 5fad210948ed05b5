//! The codec of every `godel.v1` method, and one for streams of which a process has thousands.

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    Code, Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Holds a heartbeat with usage, or an assignment.
const BUFFER_BYTES: usize = 512;
/// Encoded messages are handed to the connection once so many bytes are together.
const YIELD_BYTES: usize = 32 * 1024;

/// Protobuf as in tonic's own codec; a request that cannot be decoded is the caller's fault, INVALID_ARGUMENT.
#[derive(Clone, Copy, Debug)]
pub struct GodelCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for GodelCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for GodelCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BlamingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BlamingDecoder(ProstDecoder::new(BufferSettings::default()))
    }
}

/// [`GodelCodec`] with small buffers, which grow when needed: it has two of 8 KiB for each stream at each end.
#[derive(Clone, Copy, Debug)]
pub struct SmallCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BlamingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        BlamingDecoder(ProstDecoder::new(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)))
    }
}

/// Decodes, and says of a request that cannot be decoded which message it was meant to be. An answer that cannot be
/// decoded stays INTERNAL: its reader has done nothing wrong.
#[derive(Debug)]
pub struct BlamingDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BlamingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        self.0.decode(buf).map_err(|status| blame::<U>(&status))
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Every method of `godel.v1` takes a message called `…Request`, and nothing else is called so.
fn blame<U>(status: &Status) -> Status {
    let name = std::any::type_name::<U>().rsplit("::").next().unwrap_or_default();
    let code = if name.ends_with("Request") { Code::InvalidArgument } else { Code::Internal };
    Status::new(code, format!("not a valid godel.v1.{name}: {}", status.message()))
}

#[cfg(test)]
mod tests {
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::{raw, v1};

    #[test]
    fn who_sent_what_cannot_be_decoded_is_told_by_the_name() {
        let why = Status::internal("failed to decode Protobuf message: invalid tag value: 0");
        let refused = blame::<v1::SubmitUnitRequest>(&why);
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("not a valid godel.v1.SubmitUnitRequest: "), "{refused}");
        assert_eq!(blame::<raw::TxnRequest>(&why).code(), Code::InvalidArgument);
        assert_eq!(blame::<v1::SubmitUnitResponse>(&why).code(), Code::Internal);
    }

    #[test]
    fn requests_and_only_requests_are_called_so() {
        let files = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap().file;
        let methods = files.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        let mut n_methods = 0;
        for method in methods {
            assert!(method.input_type().ends_with("Request"), "{}", method.name());
            assert!(method.output_type().ends_with("Response"), "{}", method.name());
            n_methods += 1;
        }
        assert!(n_methods > 50);
    }
}
