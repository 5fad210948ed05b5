//! Tokens of YARN: an identifier that everybody can read, and a password that only the owner of a key can make.

use std::marker::PhantomData;

use bytes::Bytes;
use godel_domain::yarn_keys::{YarnKey, YarnKeys};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use tokio::sync::watch;

use crate::{
    Exception, Passwords,
    common::TokenProto,
    exception,
    yarn::{AmrmTokenIdentifierProto, ContainerTokenIdentifierProto, NmTokenIdentifierProto},
};

/// Proof of who made a token: HMAC-SHA1 of its identifier.
pub type Password = [u8; 20];

/// What a token says.
pub trait Identifier: prost::Message + Default {
    /// By which clients find a token among others.
    const KIND: &'static str;
    /// Id of the key that signs it.
    fn key_id(&self) -> i32;
    /// Says which key signs it.
    fn set_key_id(&mut self, id: i32);
}

impl Identifier for AmrmTokenIdentifierProto {
    const KIND: &'static str = "YARN_AM_RM_TOKEN";
    fn key_id(&self) -> i32 {
        self.key_id()
    }
    fn set_key_id(&mut self, id: i32) {
        self.key_id = Some(id);
    }
}

impl Identifier for NmTokenIdentifierProto {
    const KIND: &'static str = "NMToken";
    fn key_id(&self) -> i32 {
        self.key_id()
    }
    fn set_key_id(&mut self, id: i32) {
        self.key_id = Some(id);
    }
}

impl Identifier for ContainerTokenIdentifierProto {
    const KIND: &'static str = "ContainerToken";
    fn key_id(&self) -> i32 {
        self.master_key_id()
    }
    fn set_key_id(&mut self, id: i32) {
        self.master_key_id = Some(id);
    }
}

/// The password of an identifier.
pub fn password(key: &YarnKey, identifier: &[u8]) -> Password {
    keyed(key).chain_update(identifier).finalize().into_bytes().into()
}

fn keyed(key: &YarnKey) -> Hmac<Sha1> {
    // A key of any length is taken: the error cannot happen.
    Hmac::new_from_slice(&key.secret).unwrap_or_else(|_| Hmac::new(&Default::default()))
}

/// Makes a token with a key, for a service as `host:port`, or none where the client fills it in.
pub fn issue<I: Identifier>(mut identifier: I, key: &YarnKey, service: impl Into<String>) -> TokenProto {
    identifier.set_key_id(key.id);
    let identifier = identifier.encode_to_vec();
    TokenProto {
        password: Bytes::copy_from_slice(&password(key, &identifier)),
        identifier: identifier.into(),
        kind: I::KIND.to_owned(),
        service: service.into(),
    }
}

/// Reads a token that was made with one of these keys.
///
/// # Errors
/// The token is of another kind, cannot be read, or was made with another key.
pub fn check<I: Identifier>(token: &TokenProto, keys: &YarnKeys) -> Result<I, Exception> {
    let TokenProto { identifier, password, kind, service: _ } = token;
    if kind != I::KIND {
        return Err(invalid(format!(
            "this is a token of kind {kind}, and one of kind {} is needed",
            I::KIND
        )));
    }
    let (read, key) = key_of::<I>(identifier, keys)?;
    match keyed(key).chain_update(identifier).verify_slice(password) {
        Ok(()) => Ok(read),
        Err(_) => {
            Err(invalid(format!("the password of this {} token is not that of its identifier", I::KIND)))
        }
    }
}

fn key_of<'a, I: Identifier>(identifier: &[u8], keys: &'a YarnKeys) -> Result<(I, &'a YarnKey), Exception> {
    let read = I::decode(identifier).map_err(|_| invalid(format!("the {} token cannot be read", I::KIND)))?;
    let id = read.key_id();
    let key = keys.key(id).ok_or_else(|| {
        invalid(format!("key {id} of this {} token is not in use any more, or not known here yet", I::KIND))
    })?;
    Ok((read, key))
}

fn invalid(message: String) -> Exception {
    Exception::new(exception::INVALID_TOKEN, message)
}

/// Passwords of tokens of one kind, by keys that change.
pub struct KeyedPasswords<I> {
    keys: watch::Receiver<YarnKeys>,
    of: PhantomData<fn() -> I>,
}

impl<I: Identifier> std::fmt::Debug for KeyedPasswords<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedPasswords").field("kind", &I::KIND).field("keys", &*self.keys.borrow()).finish()
    }
}

impl<I> KeyedPasswords<I> {
    /// By whatever keys there are when a caller comes.
    pub fn new(keys: watch::Receiver<YarnKeys>) -> Self {
        Self { keys, of: PhantomData }
    }
}

impl<I: Identifier> Passwords for KeyedPasswords<I> {
    fn password(&self, identifier: &[u8]) -> Result<Password, Exception> {
        let keys = self.keys.borrow();
        let (_, key) = key_of::<I>(identifier, &keys)?;
        Ok(password(key, identifier))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::yarn::{ApplicationAttemptIdProto, ContainerIdProto, RunningUnitProto};

    fn keys() -> YarnKeys {
        let key = |id: i32| YarnKey { id, secret: [u8::try_from(id).unwrap(); 32], from_ms: 0 };
        YarnKeys { name: "nm".to_owned(), keys: vec![key(1), key(2)] }
    }

    #[test]
    fn a_token_is_that_of_its_key_and_kind() {
        let keys = keys();
        let attempt = ApplicationAttemptIdProto { attempt_id: Some(3), application_id: None };
        let said = NmTokenIdentifierProto { app_attempt_id: Some(attempt), ..Default::default() };
        let token = issue(said, &keys.keys[1], "node:1");
        let read: NmTokenIdentifierProto = check(&token, &keys).unwrap();
        assert_eq!((read.key_id(), read.app_attempt_id.unwrap().attempt_id()), (2, 3));
        let message =
            |token: &TokenProto, keys| check::<NmTokenIdentifierProto>(token, keys).unwrap_err().message;
        let mut forged = token.clone();
        forged.identifier = [&token.identifier[..], &[0x1a, 0x01, b'x']].concat().into();
        assert!(message(&forged, &keys).contains("not that of its identifier"));
        let other = TokenProto { kind: "ContainerToken".to_owned(), ..token.clone() };
        assert!(message(&other, &keys).contains("of kind ContainerToken"));
        let fewer = YarnKeys { keys: keys.keys[..1].to_vec(), ..keys.clone() };
        assert!(message(&token, &fewer).contains("key 2 of this NMToken token is not in use"));
        assert_eq!(
            check::<ContainerTokenIdentifierProto>(&token, &keys).unwrap_err().class,
            exception::INVALID_TOKEN
        );
    }

    #[test]
    fn a_container_token_names_a_running_unit_far_from_yarns_fields() {
        let running = RunningUnitProto { unit_id: Some(7), ordinal: Some(1), incarnation: Some(2) };
        let id = ContainerIdProto { id: Some(9), ..Default::default() };
        let said = ContainerTokenIdentifierProto {
            container_id: Some(id),
            running_unit: Some(running),
            ..Default::default()
        };
        // Field 1 with `id = 9`, then field 7001.
        assert_eq!(said.encode_to_vec(), [0x0a, 2, 0x18, 9, 0xca, 0xb5, 0x03, 6, 8, 7, 16, 1, 24, 2]);
    }

    #[test]
    fn a_password_is_hmac_sha1() {
        let key = YarnKey { id: 1, secret: [0x0b; 32], from_ms: 0 };
        let hex: String = password(&key, b"Hi There").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, HI_THERE);
    }

    /// Of OpenSSL: `openssl dgst -sha1 -mac HMAC -macopt hexkey:0b…0b`.
    const HI_THERE: &str = "68f9d1c65ae2dde43a134515c83813a96985cbe3";
}
