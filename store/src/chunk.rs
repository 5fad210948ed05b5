//! Chunks: the values that engines keep, and how groups are cut into them and put together again.
//!
//! sled moves large messages into files that it never syncs, so no value is over 7 KiB. A chunk says which
//! group it belongs to, its place in it, and the checksum of the chunk before it, so that a hole, a torn
//! group and rotten bytes are all found.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use godel_base::ids::Revision;

/// Largest chunk, header included.
pub const CHUNK_BYTES_MAX: usize = 7 * 1024;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 32;

/// Bytes of the payload of a chunk at most.
pub(crate) const PAYLOAD_BYTES_MAX: usize = CHUNK_BYTES_MAX - HEADER_BYTES;
const MAGIC: u8 = 0xC1;
const CRC_AT: usize = HEADER_BYTES - 4;

/// What a chunk says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// First revision of its group; for snapshots the number of the piece.
    pub first: u64,
    /// Last revision of its group; for snapshots the revision at which the snapshot began.
    pub last: u64,
    /// Its place in the group.
    pub index: u16,
    /// Chunks of the group.
    pub count: u16,
    /// Checksum of the chunk before it, over all groups.
    pub previous_crc: u32,
    /// Its own checksum, over header and payload.
    pub crc: u32,
}

/// Bytes that are no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Shorter than a header, or of another format.
    #[error("not a chunk")]
    Format,
    /// The checksum differs.
    #[error("checksum differs")]
    Crc,
}

/// Cuts a group into chunks; `previous_crc` is the checksum of the chunk before the first.
///
/// Returns the chunks and the checksum of the last one.
pub fn cut(first: u64, last: u64, payload: &[u8], previous_crc: u32) -> (Vec<Bytes>, u32) {
    let parts: Vec<&[u8]> =
        if payload.is_empty() { vec![&[]] } else { payload.chunks(PAYLOAD_BYTES_MAX).collect() };
    let count = u16::try_from(parts.len()).expect("a group is a few MiB at most");
    let mut crc = previous_crc;
    let mut chunks = Vec::with_capacity(parts.len());
    for (index, part) in (0u16..).zip(parts) {
        let mut chunk = BytesMut::with_capacity(HEADER_BYTES + part.len());
        chunk.put_u8(MAGIC);
        chunk.put_slice(&[0; 3]);
        chunk.put_u16(index);
        chunk.put_u16(count);
        chunk.put_u64(first);
        chunk.put_u64(last);
        chunk.put_u32(crc);
        crc = crc32c::crc32c_append(crc32c::crc32c(&chunk), part);
        chunk.put_u32(crc);
        chunk.put_slice(part);
        chunks.push(chunk.freeze());
    }
    (chunks, crc)
}

/// The header and payload of a chunk.
///
/// # Errors
/// It is none, or its checksum differs.
pub fn read(chunk: &Bytes) -> Result<(ChunkHeader, Bytes), ChunkError> {
    if chunk.len() < HEADER_BYTES || chunk.len() > CHUNK_BYTES_MAX || chunk[..4] != [MAGIC, 0, 0, 0] {
        return Err(ChunkError::Format);
    }
    let mut fields = &chunk[4..HEADER_BYTES];
    let (index, count) = (fields.get_u16(), fields.get_u16());
    let (first, last) = (fields.get_u64(), fields.get_u64());
    let (previous_crc, crc) = (fields.get_u32(), fields.get_u32());
    let payload = chunk.slice(HEADER_BYTES..);
    if crc32c::crc32c_append(crc32c::crc32c(&chunk[..CRC_AT]), &payload) != crc {
        return Err(ChunkError::Crc);
    }
    Ok((ChunkHeader { first, last, index, count, previous_crc, crc }, payload))
}

/// A whole group of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// First revision in it.
    pub first: Revision,
    /// Last revision in it.
    pub last: Revision,
    /// Its chunks' payloads.
    pub payload: Bytes,
    /// Checksum of its last chunk.
    pub crc: u32,
    /// Bytes of its chunks.
    pub bytes: u64,
}

/// Puts groups together from chunks in key order. `None` from [`Assembler::push`] asks for more.
#[derive(Debug, Default)]
pub struct Assembler {
    /// Checksum that the next chunk must name; `None`: any.
    previous_crc: Option<u32>,
    /// First revision that the next group must have; `None`: any.
    next: Option<u64>,
    open: Option<(ChunkHeader, u16, BytesMut, u64)>,
}

impl Assembler {
    /// Expects the group of revision `next` behind a chunk with `previous_crc`, where given.
    pub fn new(next: Option<u64>, previous_crc: Option<u32>) -> Self {
        Self { previous_crc, next, open: None }
    }

    /// Takes the next chunk; a group once its last chunk is there.
    ///
    /// # Errors
    /// The chunk is rotten, or not the one that must follow.
    pub fn push(&mut self, chunk: &Bytes) -> Result<Option<Group>, String> {
        let (header, payload) = read(chunk).map_err(|error| error.to_string())?;
        if let Some(expected) = self.previous_crc
            && expected != header.previous_crc
        {
            return Err(format!(
                "the chunk before chunk {} of revision {} is not the one it names",
                header.index, header.first
            ));
        }
        let (start, next_index, mut buffer, bytes) = match self.open.take() {
            Some(open) => open,
            None => {
                if self.next.is_some_and(|next| next != header.first) || header.last < header.first {
                    let next = self.next.unwrap_or(0);
                    return Err(format!("found revision {}, expected {next}", header.first));
                }
                (header, 0, BytesMut::new(), 0)
            }
        };
        let same = (start.first, start.last, start.count) == (header.first, header.last, header.count);
        if !same || header.index != next_index {
            return Err(format!("chunk {} of revision {} is missing", next_index, start.first));
        }
        buffer.put_slice(&payload);
        let bytes = bytes + chunk.len() as u64;
        self.previous_crc = Some(header.crc);
        if header.index + 1 < header.count {
            self.open = Some((start, next_index + 1, buffer, bytes));
            return Ok(None);
        }
        self.next = Some(header.last + 1);
        Ok(Some(Group {
            first: Revision(header.first),
            last: Revision(header.last),
            payload: buffer.freeze(),
            crc: header.crc,
            bytes,
        }))
    }

    /// A group was begun and its last chunk is not there.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assemble(chunks: &[Bytes], next: u64, crc: u32) -> Result<Vec<Group>, String> {
        let mut assembler = Assembler::new(Some(next), Some(crc));
        let mut groups = Vec::new();
        for chunk in chunks {
            groups.extend(assembler.push(chunk)?);
        }
        Ok(groups)
    }

    #[test]
    fn groups_of_any_size_come_back() {
        let mut chunks = Vec::new();
        let mut crc = 9;
        let sizes = [0, 1, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, 100_000];
        for (idx, size) in (0u64..).zip(sizes) {
            let payload = vec![u8::try_from(idx).unwrap(); size];
            let (cut, last_crc) = cut(idx * 10 + 1, idx * 10 + 10, &payload, crc);
            assert!(cut.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX));
            crc = last_crc;
            chunks.extend(cut);
        }
        let groups = assemble(&chunks, 1, 9).unwrap();
        assert_eq!(groups.iter().map(|group| group.payload.len()).collect::<Vec<_>>(), sizes);
        assert_eq!(groups.last().map(|group| (group.last, group.crc)), Some((Revision(60), crc)));
    }

    #[test]
    fn every_flipped_byte_and_every_hole_is_found() {
        let (mut chunks, crc) = cut(1, 3, &[7; 20_000], 0);
        chunks.extend(cut(4, 4, b"tail", crc).0);
        for byte in [0, 3, 4, 9, 20, HEADER_BYTES - 1, HEADER_BYTES, 5000] {
            let mut rotten = chunks.clone();
            let mut bytes = rotten[1].to_vec();
            bytes[byte] ^= 1;
            rotten[1] = bytes.into();
            assert!(assemble(&rotten, 1, 0).is_err(), "byte {byte}");
        }
        for missing in 0..chunks.len() - 1 {
            let mut holed = chunks.clone();
            holed.remove(missing);
            assert!(assemble(&holed, 1, 0).is_err(), "chunk {missing}");
        }
        assert!(assemble(&chunks, 2, 0).is_err());
        assert!(assemble(&chunks, 1, 1).is_err());
    }
}
