//! What clients of YARN show instead of a person's token: what the token says, and a password that proves it.
//!
//! Hadoop's clients prove by DIGEST-MD5 that they have the password of an identifier, over connections in plain text, and write identifiers into their logs.
//! So the identifier has what a token says and not its signature, which is worth as much as the token, and the password is a hash of that with a secret
//! that state and the adapters of YARN share. The secret follows from `pki/seal.key` and the key that signed the token: while tokens of that key count,
//! it is the same.

use std::fmt;

use ring::hmac;

use crate::{
    person_tokens::{BadToken, PersonToken, read_token},
    seal::SealKey,
};

/// Bytes of a secret.
pub const YARN_SECRET_BYTES: usize = 32;
/// Bytes of a password: as those of YARN's own tokens.
pub const YARN_PASSWORD_BYTES: usize = 20;

/// The secret of which passwords are made, for one key of persons' tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct YarnSecret([u8; YARN_SECRET_BYTES]);

impl YarnSecret {
    /// That of the tokens which the key called `key_id` has signed.
    pub fn of(seal: &SealKey, key_id: &str) -> Self {
        Self(*seal.derive(&format!("tokens of YARN 1 {key_id}")))
    }

    /// One that state has told.
    pub fn new(bytes: [u8; YARN_SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// For whoever is told.
    pub fn bytes(&self) -> &[u8; YARN_SECRET_BYTES] {
        &self.0
    }

    /// The password of what a token says ([`said_by`]).
    pub fn password(&self, said: &str) -> [u8; YARN_PASSWORD_BYTES] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut password = [0; YARN_PASSWORD_BYTES];
        password.copy_from_slice(&hmac::sign(&key, said.as_bytes()).as_ref()[..YARN_PASSWORD_BYTES]);
        password
    }
}

impl fmt::Debug for YarnSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YarnSecret(..)")
    }
}

/// What a token says, without its signature: whoever reads it cannot call with it.
///
/// # Errors
/// [`BadToken::Form`].
pub fn said_by(token: &str) -> Result<&str, BadToken> {
    token.rsplit_once('.').map(|(said, _)| said).ok_or(BadToken::Form)
}

/// Reads what a token says. Who has shown the password of it has proved it.
///
/// # Errors
/// It is not of the form of what a token says.
pub fn read_said(said: &str) -> Result<PersonToken, BadToken> {
    read_token(&format!("{said}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        person_tokens::{TokenOrder, make_token},
        signer::Signer,
    };

    #[test]
    fn a_password_is_of_one_token_one_key_and_one_cluster() {
        let signer = Signer::make("c".parse().unwrap()).unwrap();
        let token = |id: &str| {
            let order =
                TokenOrder { person: "ann", id, issued_ms: 1_000, expires_ms: 9_000, is_session: false };
            make_token(&signer, &order).unwrap()
        };
        let (token, other) = (token("t1"), token("t2"));
        let said = said_by(&token).unwrap();
        assert!(!said.contains(token.rsplit('.').next().unwrap()));
        let read = read_said(said).unwrap();
        assert_eq!((read.person.as_str(), read.id.as_str(), read.expires_ms), ("ann", "t1", 9_000));
        assert_eq!(read.key_id, signer.token_key().id());
        let seal = SealKey::new(&[7; 32]);
        let secret = YarnSecret::of(&seal, &read.key_id);
        let password = secret.password(said);
        assert_eq!(YarnSecret::new(*secret.bytes()).password(said), password);
        assert_eq!(YarnSecret::of(&SealKey::new(&[7; 32]), &read.key_id).password(said), password);
        for (secret, said) in [
            (&secret, said_by(&other).unwrap()),
            (&YarnSecret::of(&seal, "another"), said),
            (&YarnSecret::of(&SealKey::new(&[8; 32]), &read.key_id), said),
        ] {
            assert_ne!(secret.password(said), password);
        }
        assert_eq!(format!("{secret:?}"), "YarnSecret(..)");
        for bad in ["", "a", "a.b.c", "a.b"] {
            assert!(read_said(bad).is_err(), "{bad}");
        }
        assert_eq!(said_by("a"), Err(BadToken::Form));
    }
}
