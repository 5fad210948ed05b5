//! What logs may show of messages with secrets: who reads a log may not join, sign or call in another's name.

use std::fmt::{Debug, Formatter, Result};

use crate::v1;

impl Debug for v1::SealedSigner {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { name, key_id, sealed: _ } = self;
        f.debug_struct("SealedSigner").field("name", name).field("key_id", key_id).finish_non_exhaustive()
    }
}

impl Debug for v1::JoinToken {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { token_id, secret_sha256: _, role, names, pool, created_ms, expires_ms, uses_left } = self;
        let mut shown = f.debug_struct("JoinToken");
        shown.field("token_id", token_id).field("role", role).field("names", names).field("pool", pool);
        shown.field("created_ms", created_ms).field("expires_ms", expires_ms).field("uses_left", uses_left);
        shown.finish_non_exhaustive()
    }
}

impl Debug for v1::JoinRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { token: _, name, csr: _, hosts, role } = self;
        let mut shown = f.debug_struct("JoinRequest");
        shown.field("role", role).field("name", name).field("hosts", hosts).finish_non_exhaustive()
    }
}

impl Debug for v1::CreateJoinTokenResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { token: _, info } = self;
        f.debug_struct("CreateJoinTokenResponse").field("info", info).finish_non_exhaustive()
    }
}

impl Debug for v1::IssueTokenResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { token: _, person, expires_ms, now_ms: _ } = self;
        let mut shown = f.debug_struct("IssueTokenResponse");
        shown.field("person", person).field("expires_ms", expires_ms).finish_non_exhaustive()
    }
}

impl Debug for v1::CreateTokenResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { token: _, info, principal, yarn_password: _ } = self;
        let mut shown = f.debug_struct("CreateTokenResponse");
        shown.field("info", info).field("principal", principal).finish_non_exhaustive()
    }
}

impl Debug for v1::YarnTokenKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { key_id, secret: _ } = self;
        f.debug_struct("YarnTokenKey").field("key_id", key_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let secret = || "s3cret".to_owned();
        let bytes = || b"s3cret".to_vec();
        let shown = [
            format!("{:?}", v1::SealedSigner { sealed: bytes(), ..v1::SealedSigner::default() }),
            format!("{:?}", v1::JoinToken { secret_sha256: bytes(), ..v1::JoinToken::default() }),
            format!("{:?}", v1::JoinRequest { token: secret(), ..v1::JoinRequest::default() }),
            format!("{:?}", v1::CreateJoinTokenResponse { token: secret(), info: None }),
            format!("{:?}", v1::IssueTokenResponse { token: secret(), ..v1::IssueTokenResponse::default() }),
            format!(
                "{:?}",
                v1::CreateTokenResponse {
                    token: secret(),
                    yarn_password: bytes(),
                    ..v1::CreateTokenResponse::default()
                }
            ),
            format!("{:?}", v1::YarnTokenKey { key_id: "k".to_owned(), secret: bytes() }),
            // And as part of what lists and transactions carry.
            format!("{:#?}", {
                let signer =
                    v1::SealedSigner { name: "default".to_owned(), key_id: "k".to_owned(), sealed: bytes() };
                v1::Record { record: Some(v1::record::Record::SealedSigner(signer)), ..v1::Record::default() }
            }),
        ];
        for text in shown {
            assert!(!text.contains("s3cret") && !text.contains("115, 51"), "{text}");
            assert!(text.contains(".."), "{text}");
        }
    }
}
