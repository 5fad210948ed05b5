//! Small messages in files: a mark that says what the file is, a checksum, and the message.

use prost::Message;

/// Bytes of a mark; the last one is the version of the format.
pub(crate) const MARK_BYTES: usize = 16;

/// Encodes a message behind its mark and a checksum over both.
pub(crate) fn seal(mark: &[u8; MARK_BYTES], message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let crc = crc32c::crc32c_append(crc32c::crc32c(mark), &body);
    [&mark[..], &crc.to_be_bytes(), &body].concat()
}

/// Reads what [`seal`] has made.
///
/// # Errors
/// What is wrong with the bytes, in words.
pub(crate) fn open<M: Message + Default>(mark: &[u8; MARK_BYTES], bytes: &[u8]) -> Result<M, &'static str> {
    let (found, rest) = bytes.split_at_checked(MARK_BYTES).ok_or("it is too short")?;
    if found != mark {
        return Err("it has another format or version");
    }
    let (crc, body) = rest.split_at_checked(4).ok_or("it is too short")?;
    if crc32c::crc32c_append(crc32c::crc32c(mark), body).to_be_bytes() != crc {
        return Err("its checksum differs");
    }
    M::decode(body).map_err(|_| "it does not decode")
}
