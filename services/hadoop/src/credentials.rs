//! The credentials file (`HDTS`): the tokens and secrets that a process finds by `HADOOP_TOKEN_FILE_LOCATION`.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    common::TokenProto,
    writable::{Malformed, put_bytes, put_number, take, take_bytes, take_number, take_text},
};

const MAGIC: &[u8] = b"HDTS";
/// The version whose parts are writables; clients write no other one into launch contexts.
const WRITABLES: u8 = 0;

/// Tokens and secrets by their aliases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Credentials {
    /// Tokens; the alias is mostly the service that a token is for.
    pub tokens: BTreeMap<String, TokenProto>,
    /// Other secrets.
    pub secrets: BTreeMap<String, Bytes>,
}

/// Why a credentials file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// It is of another kind.
    #[error("these are no Hadoop credentials: they do not begin with HDTS")]
    OtherFile,
    /// It is of a version that clients do not put into launch contexts.
    #[error("credentials of version {0} cannot be read: write them as version 0, which is Hadoop's default")]
    Version(u8),
    /// It is damaged.
    #[error("the credentials are damaged")]
    Damaged,
}

impl From<Malformed> for CredentialsError {
    fn from(_: Malformed) -> Self {
        Self::Damaged
    }
}

/// Reads one token as it stands in addresses and in the REST API of YARN, once its base64 is decoded.
///
/// # Errors
/// It is damaged.
pub fn read_url_token(bytes: impl Into<Bytes>) -> Result<TokenProto, CredentialsError> {
    Ok(take_token(&mut bytes.into())?)
}

fn take_token(bytes: &mut Bytes) -> Result<TokenProto, Malformed> {
    let (identifier, password) = (take_bytes(bytes)?, take_bytes(bytes)?);
    let (kind, service) = (take_text(bytes)?, take_text(bytes)?);
    Ok(TokenProto { identifier, password, kind, service })
}

impl Credentials {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no credentials file, of another version, or damaged.
    pub fn read(bytes: impl Into<Bytes>) -> Result<Self, CredentialsError> {
        let mut bytes = bytes.into();
        if take(&mut bytes, MAGIC.len()).ok().as_deref() != Some(MAGIC) {
            return Err(CredentialsError::OtherFile);
        }
        match take(&mut bytes, 1)?[0] {
            WRITABLES => {}
            version => return Err(CredentialsError::Version(version)),
        }
        let mut credentials = Self::default();
        // Each of them takes a byte at least: a large number ends with the bytes.
        for _ in 0..take_number(&mut bytes)? {
            let alias = take_text(&mut bytes)?;
            credentials.tokens.insert(alias, take_token(&mut bytes)?);
        }
        for _ in 0..take_number(&mut bytes)? {
            let alias = take_text(&mut bytes)?;
            credentials.secrets.insert(alias, take_bytes(&mut bytes)?);
        }
        Ok(credentials)
    }

    /// The bytes of the file.
    pub fn write(&self) -> Vec<u8> {
        let Self { tokens, secrets } = self;
        let mut out = MAGIC.to_vec();
        out.push(WRITABLES);
        put_number(&mut out, i64::try_from(tokens.len()).unwrap_or(i64::MAX));
        for (alias, TokenProto { identifier, password, kind, service }) in tokens {
            for part in [alias.as_bytes(), identifier, password, kind.as_bytes(), service.as_bytes()] {
                put_bytes(&mut out, part);
            }
        }
        put_number(&mut out, i64::try_from(secrets.len()).unwrap_or(i64::MAX));
        for (alias, secret) in secrets {
            put_bytes(&mut out, alias.as_bytes());
            put_bytes(&mut out, secret);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one() -> Credentials {
        let token = TokenProto {
            identifier: Bytes::from_static(b"id"),
            password: Bytes::from_static(b"pw"),
            kind: "K".to_owned(),
            service: String::new(),
        };
        Credentials {
            tokens: BTreeMap::from([("a".to_owned(), token)]),
            secrets: BTreeMap::from([("s".to_owned(), Bytes::from_static(b"x"))]),
        }
    }

    #[test]
    fn a_file_is_written_as_hadoop_does() {
        let expected = b"HDTS\0\x01\x01a\x02id\x02pw\x01K\0\x01\x01s\x01x";
        assert_eq!(one().write(), expected);
        assert_eq!(Credentials::read(expected.as_slice()), Ok(one()));
    }

    #[test]
    fn other_files_are_refused_with_their_reason() {
        let read = |bytes: &'static [u8]| Credentials::read(bytes).unwrap_err();
        assert_eq!(read(b"HDT"), CredentialsError::OtherFile);
        assert_eq!(read(b"HDTS\x01"), CredentialsError::Version(1));
        assert_eq!(read(b"HDTS\0\x7f\x01a"), CredentialsError::Damaged);
        assert_eq!(read(b"HDTS\0\0"), CredentialsError::Damaged);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _any = Credentials::read([b"HDTS\0".as_slice(), &bytes].concat());
        }

        #[test]
        fn a_cut_file_is_refused(len in 0..25_usize) {
            let whole = one().write();
            prop_assert!(Credentials::read(whole[..len.min(whole.len() - 1)].to_vec()).is_err());
        }
    }
}
