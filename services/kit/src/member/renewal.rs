//! The leaves after the first, and the roots: a leaf is renewed at a third of its life, and when the root that has issued it is leaving.

use std::time::{Duration, SystemTime};

use godel_pki::{requests::LeafKey, tls::TlsIdentity};
use godel_proto::v1::{self, identity_service_client::IdentityServiceClient};
use tonic::Status;

use super::{Damage, HeldIdentity, NewMember, clock::StateClock, files::IdentityFiles, read_trust};
use crate::{
    client::{self, Backoff, BadAddress, Channel},
    config::ClientConfig,
};

/// Longest time between looks at the roots. A leaf of a short life looks more often.
const LOOK_MAX: Duration = Duration::from_secs(3_600);
/// How often it looks whether the leaf is due, or its file was changed by somebody else.
const TICK: Duration = Duration::from_secs(1);
/// Bound of the first pause after a failure.
const RETRY_BASE: Duration = Duration::from_secs(1);
/// Longest pause after a failure, unless a leaf lives for minutes.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Keeps the identity of a process.
pub(super) struct IdentityRenewal {
    member: NewMember,
    held: HeldIdentity,
    files: Option<IdentityFiles>,
    /// When its files were last written by this process, or read.
    written_at: Option<SystemTime>,
    tls: TlsIdentity,
    state: IdentityServiceClient<Channel>,
    clock: StateClock,
    /// When the leaf is renewed, by state's clock.
    due_ms: u64,
}

/// Why a leaf was not renewed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRenewed {
    /// State refuses, or does not answer.
    #[error("{}", .0.message())]
    State(Box<Status>),
    /// What it answers cannot be used.
    #[error(transparent)]
    Answer(#[from] Damage),
    /// It cannot be kept.
    #[error(transparent)]
    File(#[from] godel_pki::private_files::PrivateFileError),
}

impl From<Status> for NotRenewed {
    fn from(status: Status) -> Self {
        Self::State(Box::new(status))
    }
}

impl IdentityRenewal {
    /// # Errors
    /// The address of state.
    pub(super) fn new(
        member: NewMember,
        held: HeldIdentity,
        files: Option<IdentityFiles>,
        tls: TlsIdentity,
        client: &ClientConfig,
        clock: StateClock,
    ) -> Result<Self, BadAddress> {
        let state = IdentityServiceClient::new(client::channel(&client.state, client)?);
        let written_at = files.as_ref().and_then(IdentityFiles::changed_at);
        let due_ms = held.own.leaf().times.renewal_ms(rand::random());
        Ok(Self { member, held, files, written_at, tls, state, clock, due_ms })
    }

    fn lifetime(&self) -> Duration {
        let times = self.held.own.leaf().times;
        Duration::from_millis(times.not_after_ms.saturating_sub(times.issued_ms()))
    }

    /// Renews for ever.
    pub(super) async fn run(mut self) {
        let retry_max = RETRY_MAX.min(self.lifetime() / 12);
        let mut backoff = Backoff::new(RETRY_BASE.min(retry_max), retry_max);
        // Everybody may have started at once.
        let mut next_look = client::jittered(TICK);
        loop {
            let pause = client::jittered(TICK);
            tokio::time::sleep(pause).await;
            self.take_changed_files();
            next_look = next_look.saturating_sub(pause);
            let is_due = self.clock.now_ms() >= self.due_ms;
            if !is_due && !next_look.is_zero() {
                continue;
            }
            let kept = if is_due { self.renew().await } else { self.look().await };
            match kept {
                Ok(()) => {
                    backoff.reset();
                    next_look = client::jittered(LOOK_MAX.min(self.lifetime() / 6));
                }
                Err(error) => {
                    self.warn(&error, is_due);
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    fn warn(&self, error: &NotRenewed, is_due: bool) {
        let what = if is_due { "certificate" } else { "roots" };
        let (error, identity) = (error as &dyn std::error::Error, self.held.identity().key());
        tracing::warn!(error, identity, "the {what} of this process cannot be renewed; tried again");
    }

    async fn renew(&mut self) -> Result<(), NotRenewed> {
        let renewed = renew(&mut self.state, &self.member, &self.clock).await?;
        self.hold(renewed);
        tracing::info!(identity = self.held.identity().key(), "renewed the certificate of this process");
        if let Some(files) = &self.files {
            files.write(&self.held)?;
            self.written_at = files.changed_at();
        }
        Ok(())
    }

    fn hold(&mut self, held: HeldIdentity) {
        self.due_ms = held.own.leaf().times.renewal_ms(rand::random());
        self.tls.replace_trust(held.trust.clone());
        self.tls.replace_own(held.own.clone());
        self.held = held;
    }

    /// Learns the roots and the time at state. A leaf of a root that is leaving is due.
    async fn look(&mut self) -> Result<(), NotRenewed> {
        let asked = self.clock.ask();
        let v1::GetTrustResponse { trust, now_ms, .. } =
            self.state.get_trust(v1::GetTrustRequest {}).await?.into_inner();
        self.clock.learn(asked, now_ms);
        let roots = trust.ok_or(Damage::Missing("the roots"))?;
        let trust = read_trust(&roots).map_err(Damage::Trust)?;
        if is_leaving(&roots, &self.held, self.clock.now_ms()) {
            self.due_ms = 0;
        }
        if trust != self.held.trust {
            if let Some(files) = &self.files {
                files.write_trust(&trust)?;
            }
            self.tls.replace_trust(trust.clone());
            self.held.trust = trust;
        }
        Ok(())
    }

    /// Takes what somebody else has put in place of the files of this process.
    fn take_changed_files(&mut self) {
        let Some(files) = &self.files else { return };
        let changed_at = files.changed_at();
        if changed_at.is_none() || changed_at == self.written_at {
            return;
        }
        self.written_at = changed_at;
        match files.read() {
            Ok(Some(held)) => {
                tracing::info!(
                    identity = held.identity().key(),
                    "took the certificate that was put in place of the one before"
                );
                self.hold(held);
            }
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the files of this identity were changed and cannot be used");
            }
        }
    }
}

/// Asks for another leaf, with another key.
///
/// # Errors
/// State refuses, or does not answer, or what it answers makes no identity.
pub(super) async fn renew(
    state: &mut IdentityServiceClient<Channel>,
    member: &NewMember,
    clock: &StateClock,
) -> Result<HeldIdentity, NotRenewed> {
    let key = LeafKey::generate().map_err(Damage::Key)?;
    let csr = key.request().map_err(Damage::Key)?;
    let asked = clock.ask();
    let request = v1::RenewIdentityRequest { csr, hosts: member.hosts.clone() };
    let v1::RenewIdentityResponse { leaf, trust, now_ms } = state.renew_identity(request).await?.into_inner();
    clock.learn(asked, now_ms);
    Ok(HeldIdentity::of_answer(key, leaf, trust)?)
}

/// Whether the root of a leaf is leaving, and another one signs already.
fn is_leaving(roots: &v1::TrustRoots, held: &HeldIdentity, now_ms: u64) -> bool {
    let own = held.own.root();
    let of = |root: &v1::TrustRoot| godel_pki::fingerprints::Fingerprint::of(&root.certificate);
    let signs = |root: &v1::TrustRoot| u64::try_from(root.signs_from_ms).is_ok_and(|from| from <= now_ms);
    roots.roots.iter().any(|root| root.is_leaving && of(root) == own)
        && roots.roots.iter().any(|root| !root.is_leaving && signs(root))
}
