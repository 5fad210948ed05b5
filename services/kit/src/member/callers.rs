//! Whom a service refuses: it asks state every two seconds, and state answers in full only when that has changed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use godel_identity::{leaves::NameRecord, permission::Principal};
use godel_pki::{person_tokens::TokenKey, tls::TlsIdentity, yarn_tokens::YarnSecret};
use godel_proto::v1::{self, identity_service_client::IdentityServiceClient};
use tonic::Status;

use super::{clock::StateClock, read_trust};
use crate::{
    client::{self, BadAddress, Channel},
    config::ClientConfig,
    security::{CallerRecords, KnownPrincipal},
};

/// How often state is asked: whoever is revoked is refused 5 s later at the latest.
const INTERVAL: Duration = Duration::from_secs(2);

/// Follows whom to refuse.
///
/// # Errors
/// The address of state.
pub(super) fn follow(
    config: ClientConfig,
    records: CallerRecords,
    tls: TlsIdentity,
    clock: StateClock,
) -> Result<impl Future<Output = ()> + Send, BadAddress> {
    let mut state = IdentityServiceClient::new(client::channel(&config.state, &config)?);
    records.note_heard();
    Ok(async move {
        let mut version = 0;
        let mut was_heard = true;
        loop {
            match ask(&mut state, version, &records, &tls, &clock).await {
                Ok(heard) => (version, was_heard) = (heard, true),
                Err(status) => {
                    // Once for each time that it is away.
                    if was_heard {
                        tracing::warn!(code = ?status.code(), error = status.message(), "state does not say whom to refuse; what it said last counts, of persons for a minute");
                    }
                    was_heard = false;
                }
            }
            tokio::time::sleep(client::jittered(INTERVAL)).await;
        }
    })
}

/// Asks once; the version of what is known now.
async fn ask(
    state: &mut IdentityServiceClient<Channel>,
    version: u64,
    records: &CallerRecords,
    tls: &TlsIdentity,
    clock: &StateClock,
) -> Result<u64, Status> {
    let asked = clock.ask();
    let answer = state.get_callers(v1::GetCallersRequest { version }).await?.into_inner();
    clock.learn(asked, answer.now_ms);
    records.note_heard();
    let Some(trust) = answer.trust else { return Ok(answer.version) };
    let keys = trust.person_keys.iter().filter_map(|key| <[u8; 32]>::try_from(key.public_key.as_ref()).ok());
    records.set_token_keys(keys.map(TokenKey::new).collect());
    let secrets = answer.yarn_token_keys.into_iter().filter_map(|v1::YarnTokenKey { key_id, secret }| {
        Some((key_id, YarnSecret::new(<[u8; 32]>::try_from(secret.as_slice()).ok()?)))
    });
    records.set_yarn_secrets(secrets.collect());
    records.replace_names(answer.refused.into_iter().map(name_record).collect::<HashMap<_, _>>());
    let principals = answer.principals.into_iter().filter_map(known_principal);
    records.replace_people(principals.collect(), answer.revoked_tokens.into_iter().collect());
    match read_trust(&trust) {
        Ok(trust) => tls.replace_trust(trust),
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "the roots cannot be trusted")
        }
    }
    Ok(answer.version)
}

/// What is known of a principal; `None`: its role is one of a newer version.
fn known_principal(pb: v1::Principal) -> Option<KnownPrincipal> {
    let v1::Principal {
        name,
        role,
        groups,
        namespaces,
        queues,
        default_namespace,
        created_ms: _,
        tokens_refused_before_ms,
    } = pb;
    let role = role.parse().ok()?;
    let principal = Principal { name, role, groups, namespaces, queues, default_namespace };
    let refused_before_ms = u64::try_from(tokens_refused_before_ms).unwrap_or(u64::MAX);
    Some(KnownPrincipal { principal: Arc::new(principal), refused_before_ms })
}

fn name_record(refused: v1::RefusedName) -> (String, NameRecord) {
    let v1::RefusedName { identity, refused_before_ms, is_revoked } = refused;
    let refused_before_ms = u64::try_from(refused_before_ms).unwrap_or(u64::MAX);
    (identity, NameRecord { refused_before_ms, is_revoked })
}
