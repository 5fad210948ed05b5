//! Tokens of persons as clients of YARN show them, and as what is recorded of persons judges them.

use std::{collections::HashMap, sync::Arc};

use godel_identity::permission::Principal;
use godel_pki::{
    person_tokens::{BadToken, PersonToken},
    yarn_tokens::{YARN_PASSWORD_BYTES, YarnSecret, read_said},
};
use tonic::Status;

use super::{CallerRecords, TokenBearer};
use crate::status;

/// Secrets by which clients of YARN prove their tokens, by the key that signed these; empty in all services but adapters of YARN.
pub(super) type YarnSecrets = HashMap<String, YarnSecret>;

impl CallerRecords {
    /// Sets what clients of YARN prove their tokens by.
    pub fn set_yarn_secrets(&self, secrets: HashMap<String, YarnSecret>) {
        *self.yarn_secrets().write() = secrets;
    }

    /// The principal of a token, which came as `authorization: Bearer TOKEN`.
    ///
    /// # Errors
    /// UNAUTHENTICATED: the token does not count. UNAVAILABLE: state has said nothing for too long.
    pub fn principal_of_token(&self, token: &str, now_ms: u64) -> Result<Arc<Principal>, Status> {
        let bearer = self.bearer(token, now_ms).map_err(|bad| status::bad_token(bad.to_string()))?;
        self.heard(bearer)
    }

    /// The password of what a token says, which a client of YARN has shown.
    ///
    /// # Errors
    /// As [`Self::principal_of_said`].
    pub fn yarn_password(&self, said: &str, now_ms: u64) -> Result<[u8; YARN_PASSWORD_BYTES], Status> {
        let token = self.judge_said(said, now_ms)?;
        let secrets = self.yarn_secrets().read();
        let secret = secrets.get(&token.key_id).ok_or_else(|| {
            status::bad_token(BadToken::OtherKey(token.key_id.chars().take(80).collect()).to_string())
        })?;
        Ok(secret.password(said))
    }

    /// The principal of what a token says, which a client of YARN has proved by its password.
    ///
    /// # Errors
    /// UNAUTHENTICATED: the token does not count, or not any more. UNAVAILABLE: state has said nothing for too long.
    pub fn principal_of_said(&self, said: &str, now_ms: u64) -> Result<Arc<Principal>, Status> {
        let token = Arc::new(self.judge_said(said, now_ms)?);
        let principal = self.principal_of(&token).map_err(|bad| status::bad_token(bad.to_string()))?;
        self.heard(TokenBearer { token, principal })
    }

    /// What is recorded of the principal of that name.
    pub fn recorded_principal(&self, name: &str) -> Option<Arc<Principal>> {
        self.principal(name)
    }

    fn judge_said(&self, said: &str, now_ms: u64) -> Result<PersonToken, Status> {
        let judge = || {
            let token = read_said(said)?;
            self.judge_claims(&token, now_ms)?;
            self.principal_of(&token)?;
            Ok::<_, BadToken>(token)
        };
        judge().map_err(|bad| status::bad_token(bad.to_string()))
    }

    fn heard(&self, bearer: TokenBearer) -> Result<Arc<Principal>, Status> {
        match self.silence() {
            Some(silence) => Err(status::state_silent(silence)),
            None => Ok(bearer.principal),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use godel_identity::permission::PersonRole;
    use godel_pki::{
        person_tokens::{TokenOrder, make_token},
        seal::SealKey,
        signer::Signer,
        yarn_tokens::said_by,
    };
    use tonic::Code;

    use super::*;
    use crate::security::KnownPrincipal;

    struct Adapter {
        signer: Signer,
        secret: YarnSecret,
        records: CallerRecords,
    }

    impl Adapter {
        fn new() -> Self {
            let signer = Signer::make("c".parse().unwrap()).unwrap();
            let records = CallerRecords::new("c".parse().unwrap());
            let key = signer.token_key();
            let secret = YarnSecret::of(&SealKey::new(&[7; 32]), key.id());
            records.set_yarn_secrets([(key.id().to_owned(), secret.clone())].into());
            records.set_token_keys(vec![key]);
            let principal = Arc::new(Principal::new("ann", PersonRole::User));
            records.replace_people(vec![KnownPrincipal { principal, refused_before_ms: 0 }], HashSet::new());
            Self { signer, secret, records }
        }

        fn token(&self, person: &str, id: &str) -> String {
            let order = TokenOrder { person, id, issued_ms: 1_000, expires_ms: 9_000, is_session: false };
            make_token(&self.signer, &order).unwrap()
        }
    }

    fn name(principal: Result<Arc<Principal>, Status>) -> Result<String, (Code, String)> {
        principal
            .map(|principal| principal.name.clone())
            .map_err(|status| (status.code(), status.message().to_owned()))
    }

    #[test]
    fn a_token_counts_over_hadoop_rpc_as_long_as_it_does_elsewhere() {
        let adapter = Adapter::new();
        let (records, token) = (&adapter.records, adapter.token("ann", "t1"));
        let said = said_by(&token).unwrap();
        assert_eq!(records.yarn_password(said, 1_000).unwrap(), adapter.secret.password(said));
        assert_eq!(name(records.principal_of_said(said, 1_000)).as_deref(), Ok("ann"));
        assert_eq!(name(records.principal_of_token(&token, 1_000)).as_deref(), Ok("ann"));
        let refused = |said: &str, now_ms, words: &str| {
            assert_eq!(records.yarn_password(said, now_ms).unwrap_err().code(), Code::Unauthenticated);
            let (code, message) = name(records.principal_of_said(said, now_ms)).unwrap_err();
            assert!(code == Code::Unauthenticated && message.contains(words), "{message}");
        };
        refused(said, 9_000, "has expired");
        refused("x", 1_000, "not a token of godel");
        let of_nobody = adapter.token("eve", "t2");
        refused(said_by(&of_nobody).unwrap(), 1_000, "eve of the token is not known");
        let elsewhere = Signer::make("d".parse().unwrap()).unwrap();
        let order =
            TokenOrder { person: "ann", id: "t1", issued_ms: 1_000, expires_ms: 9_000, is_session: false };
        let foreign = make_token(&elsewhere, &order).unwrap();
        refused(said_by(&foreign).unwrap(), 1_000, "is of cluster d");
        // Other claims have another password.
        let other = adapter.token("admin", "t1");
        assert_ne!(
            records.yarn_password(said_by(&other).unwrap(), 1_000).unwrap(),
            adapter.secret.password(said)
        );
        records.set_revoked("t1", true);
        refused(said, 1_000, "was revoked");
        assert_eq!(name(records.principal_of_token(&token, 1_000)).unwrap_err().0, Code::Unauthenticated);
        records.set_revoked("t1", false);
        records.set_token_keys(Vec::new());
        refused(said, 1_000, "is not one of the cluster any more");
    }

    #[test]
    fn no_other_service_knows_a_password() {
        let adapter = Adapter::new();
        adapter.records.set_yarn_secrets(HashMap::new());
        let token = adapter.token("ann", "t1");
        let refused = adapter.records.yarn_password(said_by(&token).unwrap(), 1_000).unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
}
