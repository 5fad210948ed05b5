//! What a person shows instead of a leaf: `authorization: Bearer <token>`.
//!
//! A token is a JSON web token that is signed with Ed25519 (`EdDSA`): it says who (`sub`), of and for which cluster (`iss`, `aud`), from when until when
//! (`iat`, `exp`), what it is called (`jti`), whether it may be exchanged for another one (`ses`, of a session), and which key signed it (`kid`). A key that
//! leaves the cluster's [`TokenKey`]s ends all tokens that it signed; whether a token was revoked, its judge knows.

use std::{collections::HashMap, fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use godel_domain::names::{self, NAME_LEN_MAX};
use godel_identity::names::ClusterName;
use parking_lot::RwLock;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::{
    fingerprints::{hex, sha256},
    random::{NoRandomBytes, random_bytes},
    signer::Signer,
    yarn_tokens::read_said,
};

/// Longest token that is read, bytes: ours have about 350.
pub const TOKEN_BYTES_MAX: usize = 4 << 10;

/// Most tokens that [`TokenJudge`] remembers: more persons than that call at once in few clusters, and a token takes 300 bytes.
pub const N_REMEMBERED_MAX: usize = 4_096;

const ALGORITHM: &str = "EdDSA";
const KIND: &str = "JWT";

/// A key that checks tokens. Public.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey {
    id: String,
    public: [u8; 32],
}

impl TokenKey {
    /// Of a public key of Ed25519.
    pub fn new(public: [u8; 32]) -> Self {
        Self { id: hex(&sha256(&public)[..8]), public }
    }

    /// What tokens call it, `kid`: 16 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The public key.
    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKey({})", self.id)
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonToken {
    /// What the person is called.
    pub person: String,
    /// The cluster that it is good for.
    pub cluster: String,
    /// Names the token.
    pub id: String,
    /// When it was made, milliseconds since 1970; whole seconds.
    pub issued_ms: u64,
    /// Until when, milliseconds since 1970; whole seconds.
    pub expires_ms: u64,
    /// It is of a session: it may be exchanged for another one.
    pub is_session: bool,
    /// The key that signed it.
    pub key_id: String,
}

/// Why a token does not count. What it says is in no message: whoever reads a log could use it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Too long.
    #[error("the token has {0} bytes; at most {TOKEN_BYTES_MAX} are read")]
    Long(usize),
    /// Not a token.
    #[error("not a token of godel; use the context that state has written, or copy the whole token")]
    Form,
    /// Of another cluster.
    #[error("the token is of cluster {}, and this is cluster {own}; use the context of this cluster", .token.escape_debug())]
    OtherCluster {
        /// What it says.
        token: String,
        /// Where it came to.
        own: ClusterName,
    },
    /// Signed with a key that is not one of the cluster.
    #[error("the key {} that signed the token is not one of the cluster any more; get a new token from state's socket", .0.escape_debug())]
    OtherKey(String),
    /// The signature does not fit.
    #[error("the signature of the token is wrong; get a new token from state's socket")]
    Signature,
    /// Its time is over.
    #[error(
        "the token has expired; log in again: over state's socket, or with a new token of an administrator (`godel token create`)"
    )]
    Expired,
    /// It was revoked.
    #[error(
        "the token was revoked; ask an administrator for a new one (`godel token create`), and log in with it"
    )]
    Revoked,
    /// Its principal is not known.
    #[error(
        "the principal {} of the token is not known: it was deleted, or made a moment ago; call again in a few seconds, or ask an administrator",
        .0.escape_debug()
    )]
    NoPrincipal(String),
    /// What its principal may do has changed since a stream was opened with it.
    #[error("the permissions of {} have changed", .0.escape_debug())]
    ChangedPrincipal(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<'a> {
    alg: &'a str,
    kid: &'a str,
    typ: &'a str,
}

#[derive(Serialize, Deserialize)]
struct Claims<'a> {
    sub: &'a str,
    iss: &'a str,
    aud: &'a str,
    iat: u64,
    exp: u64,
    jti: &'a str,
    #[serde(default)]
    ses: bool,
}

/// What a token is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOrder<'a> {
    /// What the person is called.
    pub person: &'a str,
    /// Names the token.
    pub id: &'a str,
    /// When it counts as made, milliseconds since 1970; rounded down to whole seconds.
    pub issued_ms: u64,
    /// Until when it is good, milliseconds since 1970; rounded down to whole seconds.
    pub expires_ms: u64,
    /// It may be exchanged for another one.
    pub is_session: bool,
}

/// An id for a token: 16 hexadecimal digits.
///
/// # Errors
/// [`NoRandomBytes`].
pub fn make_id() -> Result<String, NoRandomBytes> {
    Ok(hex(&random_bytes::<8>()?))
}

/// Makes the token of a person.
///
/// # Errors
/// [`NoRandomBytes`].
pub fn make_token(signer: &Signer, order: &TokenOrder<'_>) -> Result<String, NoRandomBytes> {
    let TokenOrder { person, id, issued_ms, expires_ms, is_session } = *order;
    let (key, cluster) = (signer.token_key(), signer.cluster().as_str());
    let header = Header { alg: ALGORITHM, kid: key.id(), typ: KIND };
    let (iat, exp) = (issued_ms / 1_000, expires_ms / 1_000);
    let claims = Claims { sub: person, iss: cluster, aud: cluster, iat, exp, jti: id, ses: is_session };
    // Text and numbers are always JSON.
    let json = |json: Result<Vec<u8>, serde_json::Error>| URL_SAFE_NO_PAD.encode(json.unwrap_or_default());
    let signed = format!("{}.{}", json(serde_json::to_vec(&header)), json(serde_json::to_vec(&claims)));
    let signature = URL_SAFE_NO_PAD.encode(signer.sign_token(signed.as_bytes())?);
    Ok(format!("{signed}.{signature}"))
}

/// Reads what a token says and checks that one of the cluster's keys has signed it and that it has not expired at `now_ms`.
///
/// # Errors
/// Why it does not count.
pub fn check_token(
    token: &str,
    cluster: &ClusterName,
    keys: &[TokenKey],
    now_ms: u64,
) -> Result<PersonToken, BadToken> {
    let said = read_token(token)?;
    check_cluster(&said, cluster)?;
    let key = keys.iter().find(|key| key.id == said.key_id);
    let key = key.ok_or_else(|| BadToken::OtherKey(shortened(&said.key_id)))?;
    let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Form)?;
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| BadToken::Form)?;
    let verified = UnparsedPublicKey::new(&ED25519, &key.public).verify(signed.as_bytes(), &signature);
    verified.map_err(|_| BadToken::Signature)?;
    if now_ms >= said.expires_ms { Err(BadToken::Expired) } else { Ok(said) }
}

/// What a token says, for who has it and wants to know when to get another. Nothing of it is checked.
///
/// # Errors
/// It is not of the form of a token.
pub fn read_token(token: &str) -> Result<PersonToken, BadToken> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(BadToken::Long(token.len()));
    }
    let mut parts = token.split('.');
    let (Some(header), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(BadToken::Form);
    };
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| BadToken::Form);
    let (header, claims) = (decode(header)?, decode(claims)?);
    let header: Header<'_> = serde_json::from_slice(&header).map_err(|_| BadToken::Form)?;
    let claims: Claims<'_> = serde_json::from_slice(&claims).map_err(|_| BadToken::Form)?;
    let is_named = names::name(claims.sub, NAME_LEN_MAX).is_ok() && !claims.jti.is_empty();
    if header.alg != ALGORITHM || header.typ != KIND || !is_named {
        return Err(BadToken::Form);
    }
    Ok(PersonToken {
        person: claims.sub.to_owned(),
        cluster: claims.aud.to_owned(),
        id: claims.jti.to_owned(),
        issued_ms: claims.iat.saturating_mul(1_000),
        expires_ms: claims.exp.saturating_mul(1_000),
        is_session: claims.ses,
        key_id: header.kid.to_owned(),
    })
}

/// Checks the tokens that come to a server, and remembers those that were right: checking one takes longer than most calls.
/// When the keys of the cluster change, make another one.
pub struct TokenJudge {
    cluster: ClusterName,
    keys: Vec<TokenKey>,
    /// Whole tokens, whose signature was right.
    signed: CheckedTokens,
    /// What tokens say whose password was proved.
    proved: CheckedTokens,
}

/// Tokens that were right when they were checked, by their text.
#[derive(Default)]
struct CheckedTokens(RwLock<HashMap<Box<str>, Arc<PersonToken>>>);

impl CheckedTokens {
    /// What a token says that was right before, or is by `check`. Whether it has expired is judged each time.
    fn judge(
        &self,
        text: &str,
        now_ms: u64,
        check: impl FnOnce() -> Result<PersonToken, BadToken>,
    ) -> Result<Arc<PersonToken>, BadToken> {
        let known = self.0.read().get(text).cloned();
        if let Some(known) = known {
            return if now_ms >= known.expires_ms { Err(BadToken::Expired) } else { Ok(known) };
        }
        let checked = Arc::new(check()?);
        let mut known = self.0.write();
        if known.len() >= N_REMEMBERED_MAX {
            known.clear();
        }
        known.insert(text.into(), Arc::clone(&checked));
        Ok(checked)
    }
}

impl TokenJudge {
    /// For tokens of a cluster that one of these keys has signed.
    pub fn new(cluster: ClusterName, keys: Vec<TokenKey>) -> Self {
        Self { cluster, keys, signed: CheckedTokens::default(), proved: CheckedTokens::default() }
    }

    /// As [`check_token`]. Whether it has expired is judged each time.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn judge(&self, token: &str, now_ms: u64) -> Result<Arc<PersonToken>, BadToken> {
        self.signed.judge(token, now_ms, || check_token(token, &self.cluster, &self.keys, now_ms))
    }

    /// The same for what a token says ([`said_by`](crate::yarn_tokens::said_by)) whose password was proved.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn judge_said(&self, said: &str, now_ms: u64) -> Result<Arc<PersonToken>, BadToken> {
        self.proved.judge(said, now_ms, || self.check_said(said, now_ms))
    }

    /// Reads what a token says which nobody has proved, and checks that it would count.
    ///
    /// # Errors
    /// Why it would not.
    pub fn check_said(&self, said: &str, now_ms: u64) -> Result<PersonToken, BadToken> {
        let token = read_said(said)?;
        check_cluster(&token, &self.cluster)?;
        self.judge_again(&token, now_ms)?;
        Ok(token)
    }

    /// Judges again a token that was judged before, here or by keys that were there earlier.
    ///
    /// # Errors
    /// Why it counts no more.
    pub fn judge_again(&self, token: &PersonToken, now_ms: u64) -> Result<(), BadToken> {
        // A key's id is a hash of the key: under the same id the signature is right still.
        if !self.keys.iter().any(|key| key.id == token.key_id) {
            return Err(BadToken::OtherKey(shortened(&token.key_id)));
        }
        if now_ms >= token.expires_ms { Err(BadToken::Expired) } else { Ok(()) }
    }
}

impl fmt::Debug for TokenJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenJudge").field("keys", &self.keys).finish_non_exhaustive()
    }
}

fn check_cluster(token: &PersonToken, own: &ClusterName) -> Result<(), BadToken> {
    if token.cluster == own.as_str() {
        return Ok(());
    }
    Err(BadToken::OtherCluster { token: shortened(&token.cluster), own: own.clone() })
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000_000;

    fn signer(cluster: &str) -> Signer {
        Signer::make(cluster.parse().unwrap()).unwrap()
    }

    /// A token of a session of a person.
    fn make_token(signer: &Signer, person: &str, expires_ms: u64) -> Result<String, NoRandomBytes> {
        let order = TokenOrder { person, id: "t1", issued_ms: NOW, expires_ms, is_session: true };
        super::make_token(signer, &order)
    }

    fn check(token: &str, signer: &Signer, now_ms: u64) -> Result<PersonToken, BadToken> {
        check_token(token, signer.cluster(), &[signer.token_key()], now_ms)
    }

    /// A token of any header and claims, which the signer has signed.
    fn signed(signer: &Signer, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(signer.sign_token(signed.as_bytes()).unwrap());
        format!("{signed}.{signature}")
    }

    #[test]
    fn a_token_says_who_and_until_when() {
        let signer = signer("c");
        let token = make_token(&signer, "admin", NOW + 1_999).unwrap();
        let said = check(&token, &signer, NOW).unwrap();
        let key_id = signer.token_key().id().to_owned();
        let expected = PersonToken {
            person: "admin".to_owned(),
            cluster: "c".to_owned(),
            id: "t1".to_owned(),
            issued_ms: NOW,
            expires_ms: NOW + 1_000,
            is_session: true,
            key_id,
        };
        assert_eq!(said, expected);
        assert_eq!(read_token(&token), Ok(expected));
        assert!(check(&token, &signer, NOW + 999).is_ok());
        assert_eq!(check(&token, &signer, NOW + 1_000), Err(BadToken::Expired));
        assert!(token.len() < 400, "{}", token.len());
    }

    #[test]
    fn another_cluster_and_another_key_are_refused() {
        let (own, other) = (signer("c"), signer("d"));
        let token = make_token(&other, "admin", NOW + 1_000).unwrap();
        let refusal = check(&token, &own, NOW).unwrap_err();
        assert!(matches!(refusal, BadToken::OtherCluster { .. }), "{refusal}");
        // Another one that calls itself by the same name.
        let imitation = signer("c");
        let token = make_token(&imitation, "admin", NOW + 1_000).unwrap();
        assert_eq!(check(&token, &own, NOW), Err(BadToken::OtherKey(imitation.token_key().id().to_owned())));
        // While keys are changed, tokens of both count.
        let keys = [own.token_key(), imitation.token_key()];
        assert!(check_token(&token, own.cluster(), &keys, NOW).is_ok());
        assert!(check_token(&token, own.cluster(), &[], NOW).is_err());
    }

    #[test]
    fn a_tampered_token_is_refused() {
        let signer = signer("c");
        let token = make_token(&signer, "admin", NOW + 1_000).unwrap();
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let tampered = String::from_utf8(bytes).unwrap();
            assert!(check(&tampered, &signer, NOW).is_err(), "byte {at}");
        }
        let (body, _) = token.rsplit_once('.').unwrap();
        for tampered in
            [format!("{body}."), body.to_owned(), format!("{token}."), format!("{token}="), String::new()]
        {
            assert!(check(&tampered, &signer, NOW).is_err(), "{tampered}");
        }
        let other = make_token(&signer, "anna", NOW + 1_000).unwrap();
        let spliced = format!("{body}.{}", other.rsplit_once('.').unwrap().1);
        assert_eq!(check(&spliced, &signer, NOW), Err(BadToken::Signature));
    }

    #[test]
    fn a_header_or_claims_of_another_form_are_refused() {
        let signer = signer("c");
        let kid = signer.token_key().id().to_owned();
        let header = format!(r#"{{"alg":"EdDSA","kid":"{kid}","typ":"JWT"}}"#);
        let claims =
            format!(r#"{{"sub":"admin","iss":"c","aud":"c","iat":1,"exp":{},"jti":"t1"}}"#, NOW / 1_000 + 1);
        assert!(check(&signed(&signer, &header, &claims), &signer, NOW).is_ok());
        for header in [
            header.replace("EdDSA", "none"),
            header.replace("EdDSA", "HS256"),
            header.replace("JWT", "JWE"),
            header.replace(r#""typ""#, r#""crit":["exp"],"typ""#),
            String::new(),
        ] {
            assert_eq!(
                check(&signed(&signer, &header, &claims), &signer, NOW),
                Err(BadToken::Form),
                "{header}"
            );
        }
        for claims in [
            claims.replace("admin", "a b"),
            claims.replace("admin", ""),
            claims.replace(r#","exp":"#, r#","nbf":"#),
            claims.replace(r#","aud":"c""#, ""),
            claims.replace(r#","iat":1"#, ""),
            claims.replace(r#","jti":"t1""#, ""),
            claims.replace(r#""jti":"t1""#, r#""jti":"""#),
            claims.replace(r#""exp":"#, r#""exp":-"#),
            format!("{claims}{claims}"),
        ] {
            assert_eq!(
                check(&signed(&signer, &header, &claims), &signer, NOW),
                Err(BadToken::Form),
                "{claims}"
            );
        }
        let elsewhere = claims.replace(r#""aud":"c""#, r#""aud":"d""#);
        let refusal = check(&signed(&signer, &header, &elsewhere), &signer, NOW).unwrap_err();
        assert!(matches!(refusal, BadToken::OtherCluster { .. }), "{refusal}");
        let more = claims.replace(r#","exp""#, r#","groups":["a"],"exp""#);
        assert!(
            check(&signed(&signer, &header, &more), &signer, NOW).is_ok(),
            "what a newer state adds is skipped"
        );
    }

    #[test]
    fn a_long_token_is_not_read() {
        let token = format!("{}.a.b", "a".repeat(TOKEN_BYTES_MAX - 4));
        assert_eq!(read_token(&token), Err(BadToken::Form));
        assert_eq!(read_token(&format!("{token}a")), Err(BadToken::Long(TOKEN_BYTES_MAX + 1)));
    }

    #[test]
    fn a_remembered_token_expires_and_is_forgotten_with_its_key() {
        let signer = signer("c");
        let token = make_token(&signer, "admin", NOW + 1_000).unwrap();
        let judge = TokenJudge::new(signer.cluster().clone(), vec![signer.token_key()]);
        let first = judge.judge(&token, NOW).unwrap();
        let second = judge.judge(&token, NOW + 999).unwrap();
        assert!(Arc::ptr_eq(&first, &second), "its signature is not checked again");
        assert_eq!(judge.judge(&token, NOW + 1_000), Err(BadToken::Expired));
        let mut tampered = token.clone().into_bytes();
        *tampered.last_mut().unwrap() ^= 1;
        assert!(judge.judge(&String::from_utf8(tampered).unwrap(), NOW).is_err());
        assert_eq!(judge.judge_again(&first, NOW + 999), Ok(()));
        assert_eq!(judge.judge_again(&first, NOW + 1_000), Err(BadToken::Expired));
        let without = TokenJudge::new(signer.cluster().clone(), Vec::new());
        assert!(matches!(without.judge(&token, NOW), Err(BadToken::OtherKey(_))));
        assert!(matches!(without.judge_again(&first, NOW), Err(BadToken::OtherKey(_))));
        for n in 0..N_REMEMBERED_MAX {
            let token = make_token(&signer, &format!("p{n}"), NOW + 1_000).unwrap();
            judge.judge(&token, NOW).unwrap();
        }
        assert!(judge.signed.0.read().len() <= N_REMEMBERED_MAX);
        assert_eq!(judge.judge(&token, NOW).unwrap().person, "admin");
    }

    #[test]
    fn what_a_token_says_is_read_once_and_counts_until_it_expires_or_its_key_goes() {
        let signer = signer("c");
        let token = make_token(&signer, "admin", NOW + 1_000).unwrap();
        let said = crate::yarn_tokens::said_by(&token).unwrap();
        let judge = TokenJudge::new(signer.cluster().clone(), vec![signer.token_key()]);
        let first = judge.judge_said(said, NOW).unwrap();
        assert!(Arc::ptr_eq(&first, &judge.judge_said(said, NOW + 999).unwrap()), "it is not read again");
        assert_eq!(judge.judge_said(said, NOW + 1_000), Err(BadToken::Expired));
        // It is no token: without its signature nothing is proved elsewhere.
        assert_eq!(judge.judge(said, NOW), Err(BadToken::Form));
        // What nobody has proved is not remembered.
        let other = make_token(&signer, "ann", NOW + 1_000).unwrap();
        let unproven = crate::yarn_tokens::said_by(&other).unwrap();
        assert_eq!(judge.check_said(unproven, NOW).unwrap().person, "ann");
        assert_eq!(judge.proved.0.read().len(), 1);
        let without = TokenJudge::new(signer.cluster().clone(), Vec::new());
        assert!(matches!(without.judge_said(said, NOW), Err(BadToken::OtherKey(_))));
        let elsewhere = TokenJudge::new("d".parse().unwrap(), vec![signer.token_key()]);
        assert!(matches!(elsewhere.judge_said(said, NOW), Err(BadToken::OtherCluster { .. })));
    }
}
