//! Packing of chunks into values of etcd.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::{chunk, log::LogError};

/// Maximum size of a value. etcd accepts requests of 1.5 MiB, and a transaction has two values.
pub(super) const VALUE_BYTES_MAX: usize = 512 << 10;
/// Maximum size of the values of one transaction.
pub(super) const TXN_BYTES_MAX: usize = 1 << 20;
/// Size of the length before each chunk.
const LEN_BYTES: usize = 2;
/// Maximum size of a value of a snapshot, whatever the setting: pieces of 1 MiB raised the 99th percentile of commits from 27
/// to 113 ms.
pub(super) const PIECE_VALUE_BYTES_MAX: usize = 64 << 10;
/// Number of chunks with their lengths for which such a value has room.
const PIECE_CHUNKS: usize = PIECE_VALUE_BYTES_MAX / (chunk::CHUNK_BYTES_MAX + LEN_BYTES);
/// Size of a piece without the lengths and headers of its chunks.
pub(super) const PIECE_BYTES_MAX: usize = PIECE_CHUNKS * chunk::PAYLOAD_BYTES_MAX;

/// Packs chunks into values of at most `value_bytes_max` bytes.
pub(super) fn pack(chunks: &[Bytes], value_bytes_max: usize) -> Vec<Bytes> {
    let mut values = Vec::new();
    let mut value = BytesMut::new();
    for chunk in chunks {
        if !value.is_empty() && value.len() + LEN_BYTES + chunk.len() > value_bytes_max {
            values.push(value.split().freeze());
        }
        value.put_u16(u16::try_from(chunk.len()).expect("a chunk is a few KiB at most"));
        value.put_slice(chunk);
    }
    values.push(value.freeze());
    values
}

/// Unpacks the chunks of a value. etcd stores a value whole or not at all, so a value that cannot be unpacked is damage, even
/// at the end of the log.
pub(super) fn unpack(key: &Bytes, value: &Bytes) -> Result<Vec<Bytes>, LogError> {
    let damaged = |what: &str| {
        LogError::Corrupt(format!("the key {} of etcd is damaged: {what}", String::from_utf8_lossy(key)))
    };
    let mut rest = value.clone();
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        if rest.len() < LEN_BYTES {
            return Err(damaged("its end is missing"));
        }
        let len = usize::from(rest.get_u16());
        if rest.len() < len {
            return Err(damaged("its end is missing"));
        }
        let chunk = rest.split_to(len);
        chunk::read(&chunk).map_err(|error| damaged(&error.to_string()))?;
        chunks.push(chunk);
    }
    if chunks.is_empty() {
        return Err(damaged("it is empty"));
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_back_from_values_that_are_not_too_large() {
        for (bytes, n_values) in [(0, 1), (100, 1), (500_000, 1), (600_000, 2), (1_200_000, 3)] {
            let (chunks, _) = chunk::cut(1, 1, &vec![7; bytes], 0);
            let values = pack(&chunks, VALUE_BYTES_MAX);
            assert_eq!(values.len(), n_values, "{bytes}");
            assert!(values.iter().all(|value| value.len() <= VALUE_BYTES_MAX));
            let key = Bytes::from_static(b"k");
            let back: Vec<Bytes> = values.iter().flat_map(|value| unpack(&key, value).unwrap()).collect();
            assert_eq!(back, chunks);
        }
    }

    #[test]
    fn a_piece_takes_64_kib_at_most() {
        let (chunks, _) = chunk::cut(1, 1, &vec![7; PIECE_BYTES_MAX], 0);
        let values = pack(&chunks, PIECE_VALUE_BYTES_MAX);
        assert_eq!(values.len(), 1);
        assert!(values[0].len() <= 64 << 10 && values[0].len() > 60 << 10, "{}", values[0].len());
    }

    #[test]
    fn a_damaged_value_is_not_taken_for_an_unfinished_one() {
        let (chunks, _) = chunk::cut(1, 1, &[7; 9_000], 0);
        let value = pack(&chunks, VALUE_BYTES_MAX).remove(0);
        let key = Bytes::from_static(b"k");
        for cut in [0, 1, 2, 5_000, value.len() - 1] {
            assert!(matches!(unpack(&key, &value.slice(..cut)), Err(LogError::Corrupt(_))), "{cut}");
        }
        for at in [0, 1, 5, 40, 8_000] {
            let mut rotten = value.to_vec();
            rotten[at] ^= 1;
            assert!(matches!(unpack(&key, &rotten.into()), Err(LogError::Corrupt(_))), "{at}");
        }
    }
}
