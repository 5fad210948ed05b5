//! Keeps what a person shows and believes from growing old: the token and the roots of a context.
//!
//! A token is renewed when half of its life is over, and the roots are asked for then, and whenever those that the context has are an hour old. So a
//! context that is used at least once in the life of a token knows each new root before it signs (`ROOT_LEAD_MS`). A command that runs for long goes on
//! renewing while it runs; what others have written into the file meanwhile is taken from there.

use std::time::Duration;

use godel_kit::{
    clock::{SharedClock, SystemClock},
    security::{BearerToken, ClientSecurity, TlsIdentity, wall_clock},
};
use godel_pki::{
    pem::write_certificates,
    person_tokens::{BadToken, read_token},
};
use godel_proto::v1;
use tokio::sync::watch;
use tonic::Status;

use crate::{
    access::Access,
    client::Client,
    context::{Context, ContextError, ContextFile, ContextToken, ContextTrust},
    exit::Failure,
};

/// A token that ends within this time is renewed, milliseconds: half of its life.
const TOKEN_RENEWED_MS: i64 = 6 * 3_600_000;
/// Roots that were asked for so long ago are asked for again, milliseconds.
const ROOTS_RENEWED_MS: i64 = 3_600_000;
/// Longest time that a renewal takes of a command.
const RENEWAL_TIME: Duration = Duration::from_secs(2);
/// How often a command that runs for long looks whether something is to be renewed.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// A context that a command uses, renewed in its file and for the command itself.
pub struct ContextRenewal {
    file: ContextFile,
    name: String,
    context: Context,
    access: Access,
    shown: Option<ShownIdentity>,
    clock: SharedClock,
}

/// What the command believes and shows; what is put here counts for its next connection and call.
struct ShownIdentity {
    identity: TlsIdentity,
    token: Option<watch::Sender<BearerToken>>,
}

/// What is to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalNeed {
    Nothing,
    Roots,
    /// The roots as well.
    Token,
}

fn need(context: &Context, now_ms: i64) -> RenewalNeed {
    let Some(trust) = &context.trust else { return RenewalNeed::Nothing };
    // One that is over renews nothing, and one that was created for a time is not renewed.
    let is_due = |token: &ContextToken| {
        token.is_of_session() && (now_ms..now_ms + TOKEN_RENEWED_MS).contains(&token.expires_ms)
    };
    if context.token.as_ref().is_some_and(is_due) {
        return RenewalNeed::Token;
    }
    match (trust.asked_ms..trust.asked_ms.saturating_add(ROOTS_RENEWED_MS)).contains(&now_ms) {
        true => RenewalNeed::Nothing,
        false => RenewalNeed::Roots,
    }
}

impl ContextToken {
    /// A token of a person, as text.
    ///
    /// # Errors
    /// It is not of the form of a token.
    pub fn read(token: &str) -> Result<Self, BadToken> {
        let expires_ms = i64::try_from(read_token(token)?.expires_ms).unwrap_or(i64::MAX);
        Ok(Self { token: token.to_owned(), expires_ms })
    }

    /// Whether it may be exchanged for a newer one.
    pub fn is_of_session(&self) -> bool {
        read_token(&self.token).map_or(true, |token| token.is_session)
    }
}

impl ContextRenewal {
    /// For a context of a file.
    ///
    /// # Errors
    /// What it trusts cannot be read, or its token is none.
    pub fn new(file: ContextFile, name: &str, context: &Context) -> Result<Self, ContextError> {
        Self::by_clock(file, name, context, SystemClock::shared())
    }

    fn by_clock(
        file: ContextFile,
        name: &str,
        context: &Context,
        clock: SharedClock,
    ) -> Result<Self, ContextError> {
        let (name, context) = (name.to_owned(), context.clone());
        let Some(trust) = context.read_trust()? else {
            let access = Access::from(&context.address);
            return Ok(Self { file, name, context, access, shown: None, clock });
        };
        let identity = TlsIdentity::new(trust, None, wall_clock(clock.clone()));
        let mut security = ClientSecurity::new(identity.clone());
        let mut sender = None;
        if let Some(token) = context.read_token()? {
            let (token, shown) = watch::channel(token);
            security = security.with_token(shown);
            sender = Some(token);
        }
        let access = Access { address: context.address.clone(), security };
        let shown = Some(ShownIdentity { identity, token: sender });
        Ok(Self { file, name, context, access, shown, clock })
    }

    /// The context as it is by now.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// How the cluster of the context is reached.
    pub fn access(&self) -> Access {
        self.access.clone()
    }

    /// Renews what is due. What does not succeed is tried again at the next occasion: what there is counts for a while.
    pub async fn renew(&mut self) {
        let now_ms = self.clock.wall_ms();
        let is_over = self.context.token.as_ref().is_some_and(|token| token.expires_ms <= now_ms);
        if need(&self.context, now_ms) == RenewalNeed::Nothing && !is_over {
            return;
        }
        self.adopt_file();
        let need = need(&self.context, self.clock.wall_ms());
        if need == RenewalNeed::Nothing {
            return;
        }
        let Ok(Ok(new)) = tokio::time::timeout(RENEWAL_TIME, self.ask(need)).await else { return };
        let _kept = self.file.change(|contexts| {
            contexts.renew(&self.name, &self.context, &new);
            Ok(())
        });
        self.adopt(new);
    }

    /// Renews for as long as the command runs.
    pub async fn keep(mut self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            self.renew().await;
        }
    }

    /// The context with what state answers.
    async fn ask(&self, need: RenewalNeed) -> Result<Context, Failure> {
        let client = Client::new(&self.access)?;
        let trust = take_trust(&client, self.clock.wall_ms()).await;
        let trust = trust.map_err(|status| client.explain(status))?;
        let mut new = self.context.clone();
        // Roots of another cluster, or none, would spoil it.
        if new.trust.as_ref().is_some_and(|known| known.cluster == trust.cluster) {
            new.trust = Some(trust);
        }
        if new.read_trust().is_err() {
            new.trust.clone_from(&self.context.trust);
        }
        if need == RenewalNeed::Token {
            new.token = Some(take_token(&client).await?);
        }
        Ok(new)
    }

    /// Takes what another command has renewed.
    fn adopt_file(&mut self) {
        let Ok(contexts) = self.file.read() else { return };
        let Ok(Some((_, found))) = contexts.find(Some(&self.name)) else { return };
        if found.address == self.context.address {
            self.adopt(found.clone());
        }
    }

    fn adopt(&mut self, new: Context) {
        let Some(shown) = &self.shown else { return };
        let (Ok(Some(trust)), Ok(token)) = (new.read_trust(), new.read_token()) else { return };
        shown.identity.replace_trust(trust);
        if let (Some(sender), Some(token)) = (&shown.token, token) {
            sender.send_replace(token);
        }
        self.context = new;
    }
}

/// Takes a token from state.
///
/// # Errors
/// State does not answer, or gives none.
pub async fn take_token(client: &Client) -> Result<ContextToken, Failure> {
    let answer = client.identities().issue_token(v1::IssueTokenRequest {}).await;
    let v1::IssueTokenResponse { token, expires_ms, .. } =
        answer.map_err(|status| client.explain(status))?.into_inner();
    Ok(ContextToken { token, expires_ms })
}

/// Asks state once for the roots of the cluster; it is `now_ms`.
///
/// # Errors
/// State does not answer.
pub async fn take_trust(client: &Client, now_ms: i64) -> Result<ContextTrust, Status> {
    let answer = client.identities().get_trust(v1::GetTrustRequest {}).await?.into_inner();
    let v1::TrustRoots { cluster, roots, .. } = answer.trust.unwrap_or_default();
    let roots: Vec<_> = roots.into_iter().map(|root| root.certificate.into()).collect();
    Ok(ContextTrust { cluster, roots: write_certificates(&roots), asked_ms: now_ms })
}

#[cfg(test)]
mod tests;
