//! A codec for streams of which a process has thousands.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Holds a heartbeat with usage, or an assignment.
const BUFFER_BYTES: usize = 512;
/// Encoded messages are handed to the connection once so many bytes are together.
const YIELD_BYTES: usize = 32 * 1024;

/// [`ProstCodec`] with small buffers, which grow when needed: it has two of 8 KiB for each stream at each end.
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
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}
