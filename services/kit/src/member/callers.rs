//! Whom a service refuses: it asks state every two seconds, and state answers in full only when that has changed. After each answer the service reports
//! which calls of persons it has refused meanwhile, for the change log.

use std::{collections::HashMap, sync::Arc, time::Duration};

use godel_identity::{leaves::NameRecord, people::PrincipalRecord};
use godel_pki::{person_tokens::TokenKey, tls::TlsIdentity, yarn_tokens::YarnSecret};
use godel_proto::v1::{
    self, change_service_client::ChangeServiceClient, identity_service_client::IdentityServiceClient,
};
use godel_wire::{from_proto, to_proto};
use tonic::Status;

use super::{clock::StateClock, read_trust};
use crate::{
    client::{self, BadAddress, Channel},
    config::ClientConfig,
    security::{CallLog, CallerRecords, KnownPrincipal},
};

/// How often state is asked: whoever is revoked is refused 5 s later at the latest.
const INTERVAL: Duration = Duration::from_secs(2);
/// Lines in one report. What is beyond waits for the next one, merged.
const N_REPORTED_MAX: usize = 256;

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
    let channel = client::channel(&config.state, &config)?;
    let (mut state, mut changes) =
        (IdentityServiceClient::new(channel.clone()), ChangeServiceClient::new(channel));
    records.note_heard();
    Ok(async move {
        let mut version = 0;
        let mut was_heard = true;
        loop {
            match ask(&mut state, version, &records, &tls, &clock).await {
                Ok(heard) => {
                    (version, was_heard) = (heard, true);
                    report(&mut changes, records.call_log(), &clock).await;
                }
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

/// Reports what was noted. What does not arrive is counted in the next report.
async fn report(changes: &mut ChangeServiceClient<Channel>, log: &CallLog, clock: &StateClock) {
    let calls = log.take(N_REPORTED_MAX, clock.now_ms());
    let more_calls = log.take_lost();
    if calls.is_empty() && more_calls == 0 {
        return;
    }
    let n_calls = calls.iter().map(|line| line.n_calls.saturating_add(line.n_more_calls));
    let n_calls = n_calls.fold(more_calls, u64::saturating_add);
    let calls = calls.iter().map(to_proto::change_line).collect();
    if let Err(status) = changes.report_calls(v1::ReportCallsRequest { calls, more_calls }).await {
        tracing::warn!(n_calls, code = ?status.code(), error = status.message(), "state does not take the report of refused calls; they are counted in the next one");
        log.note_lost(n_calls);
    }
}

/// What is known of a principal; `None`: it is one of a newer version.
fn known_principal(pb: v1::Principal) -> Option<KnownPrincipal> {
    let PrincipalRecord { principal, created_ms: _, refused_before_ms } = from_proto::principal(pb).ok()?;
    Some(KnownPrincipal { principal: Arc::new(principal), refused_before_ms })
}

fn name_record(refused: v1::RefusedName) -> (String, NameRecord) {
    let v1::RefusedName { identity, refused_before_ms, is_revoked } = refused;
    let refused_before_ms = u64::try_from(refused_before_ms).unwrap_or(u64::MAX);
    (identity, NameRecord { refused_before_ms, is_revoked })
}
