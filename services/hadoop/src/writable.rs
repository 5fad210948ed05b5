//! Numbers and texts as Hadoop's `WritableUtils` writes them: the format of credentials files.

use bytes::{Buf as _, BufMut as _, Bytes};

/// A file that ends too early, or holds what cannot be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not what Hadoop writes")]
pub(crate) struct Malformed;

/// Appends a number with as few bytes as it needs: one of -112 to 127, else a byte that says sign and length before the bytes.
pub(crate) fn put_number(out: &mut Vec<u8>, value: i64) {
    if let Ok(byte @ -112..=127) = i8::try_from(value) {
        out.put_i8(byte);
        return;
    }
    let (magnitude, first) = if value < 0 { (!value, -120) } else { (value, -112) };
    let n_bytes = 8 - magnitude.leading_zeros() / 8;
    // At most 8: the first byte is -128 or above.
    out.put_i8(first - i8::try_from(n_bytes).unwrap_or(8));
    out.extend_from_slice(&magnitude.to_be_bytes()[8 - usize::try_from(n_bytes).unwrap_or(8)..]);
}

/// Takes a number from the front.
pub(crate) fn take_number(bytes: &mut Bytes) -> Result<i64, Malformed> {
    let first = bytes.try_get_i8().map_err(|_| Malformed)?;
    if first >= -112 {
        return Ok(first.into());
    }
    let (n_bytes, is_negative) = if first < -120 { (-120 - first, true) } else { (-112 - first, false) };
    let n_bytes = usize::try_from(n_bytes).map_err(|_| Malformed)?;
    let digits = take(bytes, n_bytes)?;
    let mut whole = [0; 8];
    whole[8 - n_bytes..].copy_from_slice(&digits);
    let magnitude = i64::from_be_bytes(whole);
    Ok(if is_negative { !magnitude } else { magnitude })
}

/// Appends bytes behind their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    out.extend_from_slice(bytes);
}

/// Takes bytes behind their length.
pub(crate) fn take_bytes(bytes: &mut Bytes) -> Result<Bytes, Malformed> {
    let len = usize::try_from(take_number(bytes)?).map_err(|_| Malformed)?;
    take(bytes, len)
}

/// Takes a text behind its length.
pub(crate) fn take_text(bytes: &mut Bytes) -> Result<String, Malformed> {
    String::from_utf8(take_bytes(bytes)?.into()).map_err(|_| Malformed)
}

/// Takes so many bytes.
pub(crate) fn take(bytes: &mut Bytes, len: usize) -> Result<Bytes, Malformed> {
    if bytes.len() < len {
        return Err(Malformed);
    }
    Ok(bytes.split_to(len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_written_as_hadoop_does() {
        let written = |value| {
            let mut out = Vec::new();
            put_number(&mut out, value);
            out
        };
        assert_eq!(written(0), [0]);
        assert_eq!(written(127), [127]);
        assert_eq!(written(-112), [0x90]);
        assert_eq!(written(128), [0x8f, 0x80]);
        assert_eq!(written(255), [0x8f, 0xff]);
        assert_eq!(written(256), [0x8e, 0x01, 0x00]);
        assert_eq!(written(-113), [0x87, 0x70]);
        assert_eq!(written(i64::MIN), [0x80, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn numbers_come_back(value: i64) {
            let mut out = Vec::new();
            put_number(&mut out, value);
            let mut bytes = Bytes::from(out);
            prop_assert_eq!(take_number(&mut bytes), Ok(value));
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut bytes = Bytes::from(bytes);
            let before = bytes.len();
            let _any = take_text(&mut bytes);
            prop_assert!(bytes.len() <= before);
        }
    }
}
