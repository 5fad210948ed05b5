//! Tokens of persons as clients of YARN show them, and as what is recorded of persons judges them.

use std::{collections::HashMap, sync::Arc};

use godel_domain::change_line::{CallCause, ChangeLine};
use godel_identity::{
    change_log::{UNKNOWN, refused_call},
    permission::{CallObject, PermissionRefusal, Principal},
};
use godel_pki::{
    person_tokens::BadToken,
    yarn_tokens::{YARN_PASSWORD_BYTES, YarnSecret, read_said},
};
use tonic::Status;

use super::{
    CallerRecords,
    server::{proved_by, refused_token},
};
use crate::status;

/// Secrets by which clients of YARN prove their tokens, by the key that signed these; empty in all services but adapters of YARN.
pub(super) type YarnSecrets = HashMap<String, YarnSecret>;

/// A call that came by another protocol than gRPC. What of it is refused has a line in the change log.
#[derive(Clone, Copy, Debug)]
pub struct ForeignCall<'a> {
    /// Its row in the table of permissions.
    pub method: &'a str,
    /// Where it came from.
    pub address: &'a str,
    /// When it is judged, milliseconds since 1970.
    pub now_ms: u64,
}

impl ForeignCall<'_> {
    /// The call for the change log.
    pub fn cause(&self, principal: &str) -> CallCause {
        CallCause::new(principal, self.method, self.address)
    }
}

impl CallerRecords {
    /// Sets what clients of YARN prove their tokens by.
    pub fn set_yarn_secrets(&self, secrets: HashMap<String, YarnSecret>) {
        *self.yarn_secrets().write() = secrets;
    }

    /// The principal of a token, which came as `authorization: Bearer TOKEN`; `None`: as something else.
    ///
    /// # Errors
    /// UNAUTHENTICATED: the token does not count. UNAVAILABLE: state has said nothing for too long.
    pub fn principal_of_token(
        &self,
        token: Option<&str>,
        call: &ForeignCall<'_>,
    ) -> Result<Arc<Principal>, Status> {
        let Some(token) = token else {
            self.note_refused(call.cause(UNKNOWN), refused_token(&BadToken::Form), call.now_ms);
            return Err(status::bad_token("the header `authorization` is not of the form `Bearer TOKEN`"));
        };
        let bearer = self.bearer(token, call.now_ms).map_err(|bad| {
            let proved = proved_by(token, &bad);
            self.refuse_token(proved.person().unwrap_or(UNKNOWN), &bad, call)
        })?;
        self.heard(bearer.principal)
    }

    /// The password of what a token says, which a client of YARN has shown.
    ///
    /// # Errors
    /// As [`Self::principal_of_said`], but for what state has said last.
    pub fn yarn_password(&self, said: &str, now_ms: u64) -> Result<[u8; YARN_PASSWORD_BYTES], Status> {
        self.password(said, now_ms).map_err(|bad| status::bad_token(bad.to_string()))
    }

    /// Notes for the change log that a client of YARN has shown what a token says, and that it does not count, or that its password is wrong. `None`: it is
    /// nothing that a token says. Whose it is, nobody has proved.
    pub fn note_unproven(&self, said: Option<&str>, call: &ForeignCall<'_>) {
        let bad = match said {
            None => BadToken::Form,
            Some(said) => self.password(said, call.now_ms).err().unwrap_or(BadToken::Signature),
        };
        self.note_refused(call.cause(UNKNOWN), refused_token(&bad), call.now_ms);
    }

    /// The principal of what a token says, which a client of YARN has proved by its password.
    ///
    /// # Errors
    /// UNAUTHENTICATED: the token does not count, or not any more. UNAVAILABLE: state has said nothing for too long.
    pub fn principal_of_said(&self, said: &str, call: &ForeignCall<'_>) -> Result<Arc<Principal>, Status> {
        let bearer = self.bearer_of_said(said, call.now_ms).map_err(|bad| {
            let person = read_said(said).map(|token| token.person);
            self.refuse_token(person.as_deref().unwrap_or(UNKNOWN), &bad, call)
        })?;
        self.heard(bearer.principal)
    }

    /// That a principal may make a call, whatever it is about.
    ///
    /// # Errors
    /// It may not.
    pub fn judge_foreign(
        &self,
        principal: &Principal,
        call: &ForeignCall<'_>,
    ) -> Result<(), PermissionRefusal> {
        PermissionRefusal::judge(principal, call.method, &CallObject::default()).inspect_err(|refusal| {
            let why = refusal.permission.refused_for();
            self.note_refused(call.cause(&principal.name), why, call.now_ms);
        })
    }

    /// Notes for the change log that a call was refused which came by another protocol than gRPC, and why, in a word or two.
    pub fn note_refused(&self, call: CallCause, why: &str, now_ms: u64) {
        self.call_log().note(refused_call(call, why, now_ms), now_ms);
    }

    /// Notes for the change log that such a call was done without a transaction.
    pub fn note_done(&self, call: CallCause, now_ms: u64) {
        self.call_log().note(ChangeLine::done(call), now_ms);
    }

    /// What is recorded of the principal of that name.
    pub fn recorded_principal(&self, name: &str) -> Option<Arc<Principal>> {
        self.principal(name)
    }

    fn password(&self, said: &str, now_ms: u64) -> Result<[u8; YARN_PASSWORD_BYTES], BadToken> {
        let token = self.judge_unproven(said, now_ms)?;
        let secrets = self.yarn_secrets().read();
        let secret = secrets.get(&token.key_id);
        let secret = secret.ok_or_else(|| BadToken::OtherKey(token.key_id.chars().take(80).collect()))?;
        Ok(secret.password(said))
    }

    fn refuse_token(&self, principal: &str, bad: &BadToken, call: &ForeignCall<'_>) -> Status {
        self.note_refused(call.cause(principal), refused_token(bad), call.now_ms);
        status::bad_token(bad.to_string())
    }

    fn heard(&self, principal: Arc<Principal>) -> Result<Arc<Principal>, Status> {
        match self.silence() {
            Some(silence) => Err(status::state_silent(silence)),
            None => Ok(principal),
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

    fn at(now_ms: u64) -> ForeignCall<'static> {
        ForeignCall { method: "rest/GET /jmx", address: "10.0.0.1:7", now_ms }
    }

    /// Who was refused, and why, in the lines of the change log.
    fn noted(records: &CallerRecords) -> Vec<(String, String)> {
        let lines = records.call_log().take(9, 10_000);
        assert!(
            lines.iter().all(|line| line.call.method == "rest/GET /jmx" && line.call.address == "10.0.0.1:7")
        );
        lines.into_iter().map(|line| (line.call.principal, line.refused)).collect()
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
        assert_eq!(name(records.principal_of_said(said, &at(1_000))).as_deref(), Ok("ann"));
        assert_eq!(name(records.principal_of_token(Some(&token), &at(1_000))).as_deref(), Ok("ann"));
        let refused = |said: &str, now_ms, words: &str| {
            assert_eq!(records.yarn_password(said, now_ms).unwrap_err().code(), Code::Unauthenticated);
            let (code, message) = name(records.principal_of_said(said, &at(now_ms))).unwrap_err();
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
        assert_eq!(
            name(records.principal_of_token(Some(&token), &at(1_000))).unwrap_err().0,
            Code::Unauthenticated
        );
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

    #[test]
    fn tokens_that_do_not_count_have_lines_of_whoever_is_proved() {
        let adapter = Adapter::new();
        let (records, token) = (&adapter.records, adapter.token("ann", "t1"));
        let said = said_by(&token).unwrap();
        let line = |who: &str, why: &str| vec![(who.to_owned(), why.to_owned())];
        assert!(records.principal_of_token(Some(&token), &at(1_000)).is_ok());
        assert!(noted(records).is_empty());
        assert!(records.principal_of_token(None, &at(1_000)).is_err());
        assert_eq!(noted(records), line(UNKNOWN, "not a token"));
        assert!(records.principal_of_token(Some(&token), &at(9_000)).is_err());
        assert_eq!(noted(records), line("ann", "expired token"));
        let forged = format!("{token}A");
        assert!(records.principal_of_token(Some(&forged), &at(1_000)).is_err());
        assert_eq!(noted(records), line(UNKNOWN, "token with a wrong signature"));
        assert!(records.principal_of_said(said, &at(9_000)).is_err());
        assert_eq!(noted(records), line("ann", "expired token"));
        // Whoever opens a connection has proved nothing yet.
        records.note_unproven(Some(said), &at(1_000));
        assert_eq!(noted(records), line(UNKNOWN, "token with a wrong signature"));
        records.note_unproven(Some(said), &at(9_000));
        assert_eq!(noted(records), line(UNKNOWN, "expired token"));
        records.note_unproven(None, &at(1_000));
        assert_eq!(noted(records), line(UNKNOWN, "not a token"));
        let vic = Principal::new("vic", PersonRole::Viewer);
        let kill = ForeignCall { method: "rest/PUT /ws/v1/cluster/apps/ID/state", ..at(1_000) };
        assert!(records.judge_foreign(&vic, &at(1_000)).is_ok());
        assert!(records.judge_foreign(&vic, &kill).is_err());
        let lines = records.call_log().take(9, 10_000);
        assert_eq!(
            (lines[0].call.principal.as_str(), lines[0].refused.as_str(), lines.len()),
            ("vic", "role", 1)
        );
    }
}
