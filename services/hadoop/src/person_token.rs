//! A person's token as a delegation token of YARN, which clients find by `HADOOP_TOKEN_FILE_LOCATION`.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use crate::{
    common::TokenProto, credentials::Credentials, token::Password, yarn::YarnDelegationTokenIdentifierProto,
};

/// Among the tokens of a client, its own to the ResourceManager.
const KIND: &str = "RM_DELEGATION_TOKEN";

/// A person's token for clients of YARN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonTokenFile {
    /// The principal.
    pub owner: String,
    /// Time of its creation, Unix milliseconds.
    pub issued_ms: i64,
    /// Its end, Unix milliseconds.
    pub ends_ms: i64,
    /// What the token says, without its signature.
    pub said: String,
    /// Proves what it says.
    pub password: Password,
    /// Where clients call adapters: `ADDRESS:PORT` as they look for it, once for each name of an adapter.
    pub services: Vec<String>,
}

impl PersonTokenFile {
    /// The bytes of the file. Nothing in it calls anything but adapters of YARN.
    pub fn write(&self) -> Vec<u8> {
        let Self { owner, issued_ms, ends_ms, said, password, services } = self;
        let identifier = YarnDelegationTokenIdentifierProto {
            owner: Some(owner.clone()),
            renewer: Some(String::new()),
            real_user: Some(String::new()),
            issue_date: Some(*issued_ms),
            max_date: Some(*ends_ms),
            sequence_number: Some(0),
            master_key_id: Some(0),
            person_token: Some(said.clone()),
        };
        // Clients take the first token whose service contains the address that they call.
        let service = services.join(",");
        let token = TokenProto {
            identifier: identifier.encode_to_vec().into(),
            password: Bytes::copy_from_slice(password),
            kind: KIND.to_owned(),
            service: service.clone(),
        };
        Credentials { tokens: BTreeMap::from([(service, token)]), secrets: BTreeMap::new() }.write()
    }
}

/// What the token says whose identifier a client shows; `None`: it is no person's token.
pub fn said_by(identifier: &[u8]) -> Option<String> {
    YarnDelegationTokenIdentifierProto::decode(identifier).ok()?.person_token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_token_for_all_adapters() {
        let file = PersonTokenFile {
            owner: "ann".to_owned(),
            issued_ms: 1_000,
            ends_ms: 9_000,
            said: "head.claims".to_owned(),
            password: [7; 20],
            services: vec!["10.0.0.1:8032".to_owned(), "rm1:8032".to_owned()],
        };
        let read = Credentials::read(file.write()).unwrap();
        assert!(read.secrets.is_empty() && read.tokens.len() == 1);
        let token = read.tokens.into_values().next().unwrap();
        assert_eq!((token.kind.as_str(), token.service.as_str()), (KIND, "10.0.0.1:8032,rm1:8032"));
        assert_eq!(&token.password[..], [7; 20]);
        assert_eq!(said_by(&token.identifier).as_deref(), Some("head.claims"));
        // What Hadoop's clients read of it.
        let said = YarnDelegationTokenIdentifierProto::decode(token.identifier).unwrap();
        assert_eq!((said.owner(), said.issue_date(), said.max_date()), ("ann", 1_000, 9_000));
        for bytes in [&b""[..], b"\xff", b"id"] {
            assert_eq!(said_by(bytes), None);
        }
    }
}
