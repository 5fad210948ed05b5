//! The first leaf of a process: the one that it kept, or one for a join token.

use std::time::Duration;

use godel_identity::{
    joins::join_token_command,
    names::{Identity, Role},
};
use godel_pki::{
    join_tokens::JoinToken,
    requests::LeafKey,
    tls::{ExpectedServer, HTTP2, TlsIdentity, joining_config},
};
use godel_proto::v1::{self, identity_service_client::IdentityServiceClient};
use tonic::Status;

use super::{
    Damage, HeldIdentity, JoinError, Joining, NewMember,
    files::IdentityFiles,
    kept_in, read_token,
    renewal::{self, NotRenewed},
};
use crate::{
    address::listed,
    client::{self, Backoff},
    config::{ClientConfig, IdentityConfig},
    security::ClientSecurity,
    status,
    tls::HttpVersion,
};

/// Bound of the first pause before state is asked again.
const RETRY_BASE: Duration = Duration::from_millis(200);
/// Longest pause before state is asked again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The identity that a process begins with. What was kept counts, and a token is used where nothing was kept, or where state refuses what was: a
/// process is started again with the flags of its first start.
///
/// # Errors
/// See [`JoinError`].
pub(super) async fn first_identity(
    joining: &Joining<'_>,
    config: &IdentityConfig,
    files: Option<&IdentityFiles>,
) -> Result<HeldIdentity, JoinError> {
    let kept = files.map(IdentityFiles::read).transpose()?.flatten();
    let (kept, token) = match kept {
        // Standard input may be empty at the second start, and the file gone: nobody needs it then.
        Some(kept) => match read_token(config).ok().flatten() {
            None => return Ok(kept),
            Some(token) => (Some(kept), token),
        },
        None => (None, read_token(config)?.ok_or_else(|| no_token(joining, config))?),
    };
    let identity = Identity::new(token.cluster().clone(), joining.member.role, &joining.member.name)?;
    if let Some(kept) = kept.filter(|kept| *kept.identity() == identity)
        && let Some(held) = joining.renew(kept).await?
    {
        if let Some(files) = files {
            files.write(&held)?;
        }
        return Ok(held);
    }
    let held = joining.join(&token).await?;
    if let Some(files) = files {
        files.write(&held)?;
    }
    tracing::info!(identity = %identity, "joined the cluster");
    Ok(held)
}

fn no_token(joining: &Joining<'_>, config: &IdentityConfig) -> JoinError {
    let NewMember { role, name, .. } = joining.member;
    // Other tokens are good for any single name.
    let names = if name.ends_with('*') { name.as_str() } else { "" };
    let command = join_token_command(*role, names);
    JoinError::NoToken { key: joining.key(), dir: kept_in(config), command }
}

impl Joining<'_> {
    fn key(&self) -> String {
        format!("{}/{}", self.member.role, self.member.name)
    }

    /// Renews what was kept, so that it is known whether it still counts; as it is, if nobody answers. `None`: state refuses it for good.
    async fn renew(&self, kept: HeldIdentity) -> Result<Option<HeldIdentity>, JoinError> {
        let tls = TlsIdentity::new(kept.trust.clone(), Some(kept.own.clone()), self.clock.wall_clock());
        let security = ClientSecurity::new(tls);
        let config = ClientConfig { security: security.clone(), ..self.client.clone() };
        let mut state = IdentityServiceClient::new(client::channel(&config.state, &config)?);
        let renewed = match self.open(security).await {
            Ok(()) => renewal::renew(&mut state, self.member, &self.clock).await,
            Err(foreign) => {
                tracing::warn!(
                    error = &foreign as &dyn std::error::Error,
                    "the certificate that was kept is of no use"
                );
                return Ok(None);
            }
        };
        match renewed {
            Ok(held) => Ok(Some(held)),
            Err(NotRenewed::State(status)) if !status::is_retryable_idempotent(&status) => {
                tracing::warn!(
                    error = status.message(),
                    "state refuses the certificate that was kept; joining again"
                );
                Ok(None)
            }
            Err(_) => Ok(Some(kept)),
        }
    }

    /// Opens a connection and closes it, at the first of several addresses where that goes well; an error says who is wrong at the other end, or that
    /// this side is.
    async fn open(&self, security: ClientSecurity) -> Result<(), JoinError> {
        let config = ClientConfig { security, ..self.client.clone() };
        let state = ExpectedServer::any_of(Role::State);
        let mut opened = Ok(());
        for address in listed(&config.state) {
            match client::open(address, &state, &config, HttpVersion::Two).await {
                Ok(_) => return Ok(()),
                // What TLS refuses, which no further try mends.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    opened = Err(JoinError::NotState { state: address.to_owned(), why: error.to_string() });
                }
                Err(_) => {}
            }
        }
        opened
    }

    /// Joins by a token, and waits while state does not answer.
    async fn join(&self, token: &JoinToken) -> Result<HeldIdentity, JoinError> {
        let security =
            ClientSecurity::joining(joining_config(token.cluster().clone(), token.root(), &[HTTP2]));
        let config = ClientConfig { security: security.clone(), ..self.client.clone() };
        let mut identities = IdentityServiceClient::new(client::channel(&config.state, &config)?);
        // One key for all tries: state answers a join again whose answer was lost.
        let key = LeafKey::generate().map_err(Damage::Key)?;
        let request = v1::JoinRequest {
            token: token.to_text().to_string(),
            name: self.member.name.clone(),
            csr: key.request().map_err(Damage::Key)?,
            hosts: self.member.hosts.clone(),
            role: self.member.role.to_string(),
        };
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_MAX);
        loop {
            self.open(security.clone()).await?;
            let asked = self.clock.ask();
            let refusal = match identities.join(request.clone()).await {
                Ok(answer) => {
                    let v1::JoinResponse { leaf, trust, now_ms, .. } = answer.into_inner();
                    self.clock.learn(asked, now_ms);
                    return self.own(HeldIdentity::of_answer(key, leaf, trust)?);
                }
                Err(refusal) => refusal,
            };
            if !status::is_retryable_idempotent(&refusal) {
                return Err(JoinError::Refused { key: self.key(), status: Box::new(refusal) });
            }
            self.wait(&refusal, &mut backoff).await?;
        }
    }

    /// What state gives to somebody else is not kept: it could not be used.
    fn own(&self, held: HeldIdentity) -> Result<HeldIdentity, JoinError> {
        let (found, own) = (held.identity().key(), self.key());
        if found == own { Ok(held) } else { Err(Damage::Other { found, own }.into()) }
    }

    async fn wait(&self, refusal: &Status, backoff: &mut Backoff) -> Result<(), JoinError> {
        tracing::warn!(code = ?refusal.code(), error = refusal.message(), state = self.client.state, "not joined yet; tried again");
        let pause = backoff.pause() + status::retry_after(refusal).unwrap_or_default();
        self.stop.run_until_cancelled(tokio::time::sleep(pause)).await.ok_or(JoinError::Stopped)
    }
}
