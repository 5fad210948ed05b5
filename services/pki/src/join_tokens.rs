//! The secret with which a process gets its first leaf: `godel-join-v1.<cluster>.<id>.<secret>.<fingerprint of the root>`.
//!
//! Who joins compares the fingerprint with the root that the server shows before it sends anything of the token. The store keeps a hash of
//! the secret only. All parts are of letters, digits, `-` and `_`, so that the token is one word everywhere.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use godel_identity::names::ClusterName;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::{
    fingerprints::{Fingerprint, hex, sha256},
    random::{NoRandomBytes, random_bytes},
};

/// What every join token begins with.
pub const PREFIX: &str = "godel-join-v1";
/// Longest join token, bytes.
pub const JOIN_TOKEN_BYTES_MAX: usize = 256;

const SECRET_BYTES: usize = 32;
const ID_BYTES: usize = 8;

/// Not a join token. Nothing of it is in the message: it may be half a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJoinToken {
    /// Not of that form.
    #[error(
        "not a join token: one has the form {PREFIX}.CLUSTER.ID.SECRET.FINGERPRINT; copy the whole line that `join-token` printed"
    )]
    Form,
    /// The secret is not one.
    #[error("not the secret of a join token; copy the whole line that `join-token` printed")]
    Secret,
}

/// A join token.
pub struct JoinToken {
    cluster: ClusterName,
    id: String,
    secret: JoinSecret,
    root: Fingerprint,
}

impl JoinToken {
    /// A new token for a cluster whose servers show that root.
    ///
    /// # Errors
    /// [`NoRandomBytes`].
    pub fn make(cluster: ClusterName, root: Fingerprint) -> Result<Self, NoRandomBytes> {
        let id: [u8; ID_BYTES] = random_bytes()?;
        let secret = JoinSecret(Zeroizing::new(random_bytes()?));
        Ok(Self { cluster, id: hex(&id), secret, root })
    }

    /// The cluster to join.
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// The key of its record: 16 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What proves that somebody has it.
    pub fn secret(&self) -> &JoinSecret {
        &self.secret
    }

    /// The root that the server must show.
    pub fn root(&self) -> Fingerprint {
        self.root
    }

    /// The token, to be handed to who joins.
    pub fn to_text(&self) -> Zeroizing<String> {
        let (cluster, id, secret, root) = (&self.cluster, &self.id, self.secret.to_text(), self.root);
        Zeroizing::new(format!("{PREFIX}.{cluster}.{id}.{}.{root}", secret.as_str()))
    }
}

impl FromStr for JoinToken {
    type Err = BadJoinToken;

    /// Reads a token, with white space around it, as files end with a line.
    ///
    /// # Errors
    /// [`BadJoinToken::Form`].
    fn from_str(text: &str) -> Result<Self, BadJoinToken> {
        let text = text.trim_ascii();
        let parts: Vec<&str> = text.split('.').collect();
        let [PREFIX, cluster, id, secret, root] = parts[..] else { return Err(BadJoinToken::Form) };
        let is_id =
            id.len() == 2 * ID_BYTES && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() > JOIN_TOKEN_BYTES_MAX || !is_id {
            return Err(BadJoinToken::Form);
        }
        Ok(Self {
            cluster: cluster.parse().map_err(|_| BadJoinToken::Form)?,
            id: id.to_owned(),
            secret: secret.parse().map_err(|_| BadJoinToken::Form)?,
            root: root.parse().map_err(|_| BadJoinToken::Form)?,
        })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({} of {})", self.id, self.cluster)
    }
}

/// The secret of a join token.
pub struct JoinSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl JoinSecret {
    /// As it is in the token, and sent to state.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(URL_SAFE_NO_PAD.encode(*self.0))
    }

    /// What the store keeps.
    pub fn hash(&self) -> SecretHash {
        SecretHash(sha256(&*self.0))
    }
}

impl FromStr for JoinSecret {
    type Err = BadJoinToken;

    /// # Errors
    /// [`BadJoinToken::Secret`].
    fn from_str(text: &str) -> Result<Self, BadJoinToken> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        let decoded = URL_SAFE_NO_PAD.decode_slice(text, &mut *secret);
        if decoded == Ok(SECRET_BYTES) { Ok(Self(secret)) } else { Err(BadJoinToken::Secret) }
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret(..)")
    }
}

/// SHA-256 of the secret of a join token. Comparing it takes the same time whatever it is.
#[derive(Clone, Copy)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// From a record; `None` unless it has 32 bytes.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretHash {}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken::make("godel-0badcafe".parse().unwrap(), Fingerprint::of(b"root")).unwrap()
    }

    #[test]
    fn a_join_token_is_read_as_it_is_written() {
        let made = token();
        let text = made.to_text();
        let read: JoinToken = format!(" {}\n", text.as_str()).parse().unwrap();
        assert_eq!((read.cluster(), read.id(), read.root()), (made.cluster(), made.id(), made.root()));
        assert_eq!(read.secret().hash(), made.secret().hash());
        assert!(text.starts_with("godel-join-v1.godel-0badcafe.") && text.len() < JOIN_TOKEN_BYTES_MAX);
        let longest = JoinToken::make("c".repeat(63).parse().unwrap(), made.root()).unwrap();
        assert!(longest.to_text().parse::<JoinToken>().is_ok());
        assert_ne!(token().secret().hash(), made.secret().hash());
        assert_ne!(token().id(), made.id());
    }

    #[test]
    fn the_store_knows_the_secret_by_its_hash() {
        let made = token();
        let sent = made.secret().to_text();
        let kept = SecretHash::read(made.secret().hash().as_bytes()).unwrap();
        assert_eq!(sent.parse::<JoinSecret>().unwrap().hash(), kept);
        assert!(token().secret().hash() != kept);
        assert!(SecretHash::read(&[0; 31]).is_none());
        for bad in ["", "abc", &format!("{}A", sent.as_str()), &format!("{}=", sent.as_str()), &sent[1..]] {
            assert_eq!(bad.parse::<JoinSecret>().unwrap_err(), BadJoinToken::Secret);
        }
    }

    #[test]
    fn what_is_no_join_token_is_refused_without_repeating_it() {
        let text = token().to_text();
        let parts: Vec<&str> = text.split('.').collect();
        let with = |at: usize, part: &str| {
            let mut parts = parts.clone();
            parts[at] = part;
            parts.join(".")
        };
        for bad in [
            String::new(),
            "eyJ.eyJ.sig".to_owned(),
            with(0, "godel-join-v2"),
            with(1, "Cluster"),
            with(2, "../../etc"),
            with(2, "0123456789ABCDEF"),
            with(3, "short"),
            with(4, &parts[4][1..]),
            format!("{}.more", text.as_str()),
            text[..text.len() - 3].to_owned(),
        ] {
            assert_eq!(bad.parse::<JoinToken>().unwrap_err(), BadJoinToken::Form, "{bad}");
        }
    }

    #[test]
    fn no_log_shows_the_secret() {
        let made = token();
        let secret = made.secret().to_text();
        let shown = format!("{made:?} {:?} {:?}", made.secret(), made.secret().hash());
        assert!(
            !shown.contains(secret.as_str()) && !shown.contains(&hex(made.secret().hash().as_bytes())),
            "{shown}"
        );
    }
}
