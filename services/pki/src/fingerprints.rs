//! What a root is recognised by.

use std::{fmt, fmt::Write as _, str::FromStr};

use ring::digest::{SHA256, digest};

/// SHA-256 of a certificate, as 64 hexadecimal digits in text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

/// Not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint has 64 hexadecimal digits in lower case")]
pub struct BadFingerprint;

impl Fingerprint {
    /// Of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(sha256(certificate))
    }

    /// The hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for Fingerprint {
    type Err = BadFingerprint;

    /// # Errors
    /// [`BadFingerprint`].
    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(BadFingerprint) };
        let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        let bytes: Vec<u8> = bytes.collect::<Option<_>>().ok_or(BadFingerprint)?;
        bytes.try_into().map(Self).map_err(|_| BadFingerprint)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Hexadecimal digits in lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_the_sha256_in_hexadecimal() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let fingerprint = Fingerprint::of(b"abc");
        assert_eq!(fingerprint.to_string(), text);
        assert_eq!(text.parse(), Ok(fingerprint));
        for bad in
            ["", &text[2..], &text[1..], &text.to_uppercase(), &format!("{text}00"), &text.replace('b', "g")]
        {
            assert_eq!(bad.parse::<Fingerprint>(), Err(BadFingerprint), "{bad}");
        }
    }
}
