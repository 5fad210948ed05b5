//! DIGEST-MD5 (RFC 2831), as Hadoop uses it: by a hash over both sides' random words each side proves that it has the password of a token.
//!
//! The algorithm is old, and Hadoop's clients know no other one for tokens. The passwords are HMACs of 160 bits, which no list of words has.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use md5::{Digest as _, Md5};

/// The realm and the server's name that Hadoop uses.
pub(crate) const DEFAULT: &str = "default";
/// Where an authentication is for: protocol, `/`, server.
const URI: &str = "/default";
/// Bytes of a response.
const LEN_MAX: usize = 64 << 10;
/// This is the first use of the server's random word, and each word is used once.
const COUNT: &str = "00000001";
/// Authentication alone: no checksum and no encryption of what follows.
const AUTH: &str = "auth";

/// What both sides hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Exchange<'a> {
    username: &'a str,
    realm: &'a str,
    nonce: &'a str,
    cnonce: &'a str,
    uri: &'a str,
}

impl Exchange<'_> {
    /// The hash that proves the password, of the client or of the server.
    fn proof(&self, password: &str, is_client: bool) -> String {
        let Self { username, realm, nonce, cnonce, uri } = self;
        let secret = Md5::digest(format!("{username}:{realm}:{password}"));
        let session = Md5::new().chain_update(secret).chain_update(format!(":{nonce}:{cnonce}"));
        let session = hex(&session.finalize());
        let whose = if is_client { "AUTHENTICATE" } else { "" };
        let uri = hex(&Md5::digest(format!("{whose}:{uri}")));
        hex(&Md5::digest(format!("{session}:{nonce}:{COUNT}:{cnonce}:{AUTH}:{uri}")))
    }
}

/// Why a response proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DigestError {
    #[error("the response of the client cannot be read")]
    Malformed,
    #[error("the client answers another question than this server has asked")]
    OtherQuestion,
    #[error(
        "the client asks for `{0}` connections, and this server offers authentication only: set hadoop.rpc.protection to authentication"
    )]
    Protection(String),
    #[error(
        "the password of the token is wrong: it was not made by this cluster, or by a key that is not in use any more"
    )]
    WrongPassword,
}

/// The question of a server, with its random word.
pub(crate) fn challenge(nonce: &str) -> String {
    format!("realm=\"{DEFAULT}\",nonce=\"{nonce}\",qop=\"{AUTH}\",charset=utf-8,algorithm=md5-sess")
}

/// What a client answered, before it is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    fields: BTreeMap<String, String>,
    /// The identifier of its token.
    pub(crate) identifier: Vec<u8>,
}

impl Response {
    /// Reads a response.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, DigestError> {
        let fields = fields(bytes).ok_or(DigestError::Malformed)?;
        let username = fields.get("username").ok_or(DigestError::Malformed)?;
        let identifier = STANDARD.decode(username).map_err(|_| DigestError::Malformed)?;
        Ok(Self { fields, identifier })
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Checks that the client has the password, and returns what proves the same of the server.
    pub(crate) fn verify(&self, nonce: &str, password: &[u8]) -> Result<String, DigestError> {
        let protection = self.field("qop");
        if !matches!(protection, "" | AUTH) {
            return Err(DigestError::Protection(protection.to_owned()));
        }
        let exchange = Exchange {
            username: self.field("username"),
            realm: self.field("realm"),
            nonce,
            cnonce: self.field("cnonce"),
            uri: URI,
        };
        let same = [("nonce", nonce), ("nc", COUNT), ("digest-uri", URI), ("realm", DEFAULT)];
        if same.iter().any(|(name, value)| self.field(name) != *value) || !self.field("authzid").is_empty() {
            return Err(DigestError::OtherQuestion);
        }
        let password = STANDARD.encode(password);
        if !is_same(exchange.proof(&password, true).as_bytes(), self.field("response").as_bytes()) {
            return Err(DigestError::WrongPassword);
        }
        Ok(format!("rspauth={}", exchange.proof(&password, false)))
    }
}

/// What a client says that has a token, and what the server has to answer.
pub(crate) fn respond(
    question: &[u8],
    identifier: &[u8],
    password: &[u8],
    cnonce: &str,
) -> Result<(String, String), DigestError> {
    let fields = fields(question).ok_or(DigestError::Malformed)?;
    let field = |name: &str| fields.get(name).map(String::as_str).ok_or(DigestError::Malformed);
    let (nonce, realm) = (field("nonce")?, field("realm")?);
    let (username, password) = (STANDARD.encode(identifier), STANDARD.encode(password));
    let exchange = Exchange { username: &username, realm, nonce, cnonce, uri: URI };
    let said = format!(
        "charset=utf-8,username=\"{username}\",realm=\"{realm}\",nonce=\"{nonce}\",nc={COUNT},cnonce=\"{cnonce}\",digest-uri=\"{URI}\",\
         maxbuf=65536,response={},qop={AUTH}",
        exchange.proof(&password, true)
    );
    Ok((said, format!("rspauth={}", exchange.proof(&password, false))))
}

/// `name=value,name="value"`; `None`: it is no such list, or has a name twice.
fn fields(bytes: &[u8]) -> Option<BTreeMap<String, String>> {
    if bytes.len() > LEN_MAX {
        return None;
    }
    let mut rest = std::str::from_utf8(bytes).ok()?.trim();
    let mut found = BTreeMap::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, _) = after.split_once(',').unwrap_or((after, ""));
                (value.trim().to_owned(), &after[value.len()..])
            }
        };
        if found.insert(name.trim().to_owned(), value).is_some() {
            return None;
        }
        let after = after.trim_start();
        rest = if after.is_empty() { after } else { after.strip_prefix(',')?.trim_start() };
    }
    Some(found)
}

/// The text up to its closing quote, and what follows the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(chars.next()?.1),
            (_, char) => value.push(char),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares in a time that does not tell where the first difference is.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn proofs_are_those_of_the_standard() {
        // RFC 2831, section 4.
        let exchange = Exchange {
            username: "chris",
            realm: "elwood.innosoft.com",
            nonce: "OA6MG9tEQGm2hh",
            cnonce: "OA6MHXh6VqTrRk",
            uri: "imap/elwood.innosoft.com",
        };
        assert_eq!(exchange.proof("secret", true), "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(exchange.proof("secret", false), "ea40f60335c427b5527b84dbabcdfffd");
    }

    fn said(nonce: &str, password: &[u8]) -> (String, String) {
        respond(challenge(nonce).as_bytes(), b"who", password, "mine").unwrap()
    }

    #[test]
    fn a_client_with_the_password_is_believed() {
        let (said, expected) = said("n1", b"pw");
        let response = Response::read(said.as_bytes()).unwrap();
        assert_eq!(response.identifier, b"who");
        assert_eq!(response.verify("n1", b"pw"), Ok(expected));
    }

    #[test]
    fn other_clients_are_refused_with_their_reason() {
        let (said, _) = said("n1", b"pw");
        let verify = |said: &str, nonce: &str, password: &[u8]| {
            Response::read(said.as_bytes()).and_then(|response| response.verify(nonce, password)).unwrap_err()
        };
        assert_eq!(verify(&said, "n1", b"other"), DigestError::WrongPassword);
        assert_eq!(verify(&said, "n2", b"pw"), DigestError::OtherQuestion);
        assert_eq!(verify(&said.replace("/default", "/else"), "n1", b"pw"), DigestError::OtherQuestion);
        let encrypted = said.replace("qop=auth", "qop=auth-conf");
        assert_eq!(verify(&encrypted, "n1", b"pw"), DigestError::Protection("auth-conf".to_owned()));
        for broken in
            ["", "username", "username=\"x", "username=\"?\"", "a=1,a=2,username=\"\"", "username=\"\"x"]
        {
            assert_eq!(Response::read(broken.as_bytes()), Err(DigestError::Malformed), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_response_is_read_or_refused(text in r#"[a-z=",\\ \u{80}-\u{ff}]{0,64}"#, bytes: Vec<u8>) {
            let _any = fields(text.as_bytes());
            let _any = fields(&bytes);
            let whole = [b"username=\"\",".as_slice(), text.as_bytes()].concat();
            if let Ok(response) = Response::read(&whole) {
                prop_assert!(response.verify("n", b"pw").is_err());
            }
        }
    }
}
