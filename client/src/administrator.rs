//! Whoever runs state on this machine administers the cluster: at its unix socket, without a token.

use std::path::Path;

use godel_kit::{clock::SystemClock, security::Role};
use godel_proto::v1;

use crate::{
    client::Client,
    context::{Context, ContextToken},
    exit::{Code, Failure},
    renewal::{take_token, take_trust},
};

/// The administrator, at the unix socket of state.
pub struct LocalAdministrator {
    client: Client,
}

impl LocalAdministrator {
    /// At a socket that need not be there yet: calls wait for it.
    ///
    /// # Errors
    /// The path of the socket cannot be used.
    pub fn at(socket: &Path) -> Result<Self, Failure> {
        let socket = std::path::absolute(socket)
            .map_err(|error| Failure::failed(format!("{}: {error}", socket.display())))?;
        Ok(Self { client: Client::patient(&format!("unix:{}", socket.display()))? })
    }

    /// Takes the roots of the cluster and a token, for a state that is reached at `address`.
    ///
    /// # Errors
    /// State refuses, or does not answer in time.
    pub async fn context(&self, address: &str) -> Result<Context, Failure> {
        take_context(&self.client, address).await
    }

    /// The same for a principal of these terms, whose record is made unless it is there: with a token of its own, which is recorded.
    ///
    /// # Errors
    /// State refuses, or does not answer in time.
    pub async fn context_of(
        &self,
        address: &str,
        principal: &str,
        terms: v1::PrincipalTerms,
    ) -> Result<Context, Failure> {
        let request = v1::CreateTokenRequest {
            principal: principal.to_owned(),
            terms: Some(terms),
            ..v1::CreateTokenRequest::default()
        };
        let made = self.client.identities().create_token(request).await;
        let v1::CreateTokenResponse { token, info, .. } =
            made.map_err(|status| self.client.explain(status))?.into_inner();
        let token = ContextToken { token, expires_ms: info.unwrap_or_default().ends_ms };
        Ok(Context { token: Some(token), ..self.context(address).await? })
    }

    /// A join token for one process of this role on this machine, as text. `name` is that of a service, which may be in use by an earlier run of the
    /// process that has ended, or what the names of an agent's nodes are.
    ///
    /// # Errors
    /// State refuses.
    pub async fn join_token(&self, role: Role, name: &str) -> Result<String, Failure> {
        let known = v1::AllowNameRequest { identity: format!("{role}/{name}") };
        // State may be about to open its socket.
        let allowed =
            self.client.read(async || self.client.identities().allow_name(known.clone()).await).await;
        match allowed {
            Err(failure) if failure.code != Code::NotFound => return Err(failure),
            Ok(_) | Err(_) => {}
        }
        let request = v1::CreateJoinTokenRequest {
            role: role.to_string(),
            names: if role == Role::Agent { name.to_owned() } else { "*".to_owned() },
            uses: 1,
            ..v1::CreateJoinTokenRequest::default()
        };
        let made = self.client.identities().create_join_token(request).await;
        made.map(|made| made.into_inner().token).map_err(|status| self.client.explain(status))
    }
}

/// Takes the roots of a cluster and a token from a state that knows who calls.
///
/// # Errors
/// State refuses, or does not answer.
pub async fn take_context(client: &Client, address: &str) -> Result<Context, Failure> {
    // State may be about to open its socket.
    let trust = client.read(async || take_trust(client, SystemClock::shared().wall_ms()).await).await?;
    Ok(Context { address: address.to_owned(), trust: Some(trust), token: Some(take_token(client).await?) })
}
