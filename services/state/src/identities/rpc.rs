//! `IdentityService`: who joins, renews and is revoked.
//!
//! Who calls was judged before ([`godel_identity::needs`]); here it is asked whose leaf is renewed and whose token is issued.

use godel_identity::{
    book::{BookRefusal, IdentityBook, IssueClock, IssueRefusal, JoinAsk, LeafGrant},
    caller::Caller,
    joins::{JoinRefusal, TOKEN_TTL_MS_MAX, TOKEN_USES_MAX},
    leaves::{LeafRefusal, LeafStanding, LeafTimes},
    names::{BadIdentity, Identity, Role},
    records::{IdentityRecord, JoinTokenAsk},
    rotation::{NextSigner, ROOT_LEAD_MS, RotationRefusal},
};
use godel_kit::{
    quiet::Quiet,
    security::{self, person_call},
    status::{self, reason, with_info},
};
use godel_pki::{
    join_tokens::{JoinToken, SecretHash},
    requests::{LeafPublicKey, check_request},
    signer::{LeafOrder, ServerNames, Signer},
};
use godel_proto::v1;
use godel_wire::BadField;
use tonic::{Code, Request, Response, Status};

use super::{
    callers::RefusedNames,
    hosts,
    keys::{person_key, trusted_root},
    people,
    records::{identity_of_key, identity_to_proto, signed, token_info, trust_to_proto},
    writer::IdentityLedger,
};

/// How long a join token is good unless its maker says otherwise.
const TOKEN_TTL_MS_DEFAULT: u64 = 3_600_000;

/// The service; `None`: the cluster has no identities.
pub(crate) struct IdentityRpc(Option<Issuer>);

/// Issues leaves and tokens.
pub(super) struct Issuer {
    pub(super) ledger: IdentityLedger,
    refused: RefusedNames,
    own: Identity,
    /// What state's own leaf carries.
    own_names: ServerNames,
    lifetime_ms: u64,
    /// Limits the log while nothing can be signed and all members retry their renewals.
    unsigned: Quiet,
}

pub(super) type IdentityAnswer<T> = Result<Response<T>, Status>;

impl IdentityRpc {
    /// `own` is state's own identity, with the names and addresses of its leaf; `lifetime_ms` is that of leaves.
    pub(crate) fn new(
        ledger: IdentityLedger,
        refused: RefusedNames,
        own: Identity,
        own_names: ServerNames,
        lifetime_ms: u64,
    ) -> Self {
        Self(Some(Issuer { ledger, refused, own, own_names, lifetime_ms, unsigned: Quiet::default() }))
    }

    /// Of a cluster whose members speak plain text, and have no identities.
    pub(crate) fn without_ca() -> Self {
        Self(None)
    }

    fn issuer(&self) -> Result<&Issuer, Status> {
        let message =
            "this cluster has no identities: state runs without TLS; start it with TLS to make its CA";
        self.0.as_ref().ok_or_else(|| Status::failed_precondition(message))
    }
}

impl Issuer {
    fn clock(&self) -> IssueClock {
        IssueClock { now_ms: self.ledger.now_ms(), lifetime_ms: self.lifetime_ms }
    }

    /// Checks that there is a key that signs, before a leaf is recorded: a record without its leaf would name a root that the holder has no leaf of.
    fn check_signing(&self) -> Result<(), Status> {
        let (keys, now_ms) = (self.ledger.keys(), self.ledger.now_ms());
        let signs = self.ledger.read(|book| keys.signing(book.trust(), now_ms).map(drop));
        signs.map_err(|error| self.broken(&error))
    }

    /// Signs a leaf that is recorded already.
    fn sign(
        &self,
        leaf: &LeafGrant,
        server_names: ServerNames,
        key: &LeafPublicKey,
    ) -> Result<v1::Leaf, Status> {
        let order = LeafOrder { identity: leaf.identity.clone(), times: leaf.times, server_names };
        let keys = self.ledger.keys();
        let signer = keys.of_root(leaf.root).map_err(|error| self.broken(&error))?;
        let issued = signer.issue(&order, key).map_err(|error| self.broken(&error))?;
        tracing::info!(identity = leaf.identity.key(), serial = issued.serial, "a leaf was issued");
        Ok(v1::Leaf {
            identity: leaf.identity.key(),
            certificate: issued.der.to_vec(),
            issued_ms: signed(leaf.times.issued_ms()),
            ends_ms: signed(leaf.times.not_after_ms),
        })
    }

    /// A failure that no caller can fix, logged once in a while.
    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> Status {
        if self.unsigned.may_speak() {
            return broken(error);
        }
        cannot_sign()
    }

    fn trust(&self) -> v1::TrustRoots {
        self.ledger.read(|book| trust_to_proto(book.trust()))
    }

    fn identity(&self, key: &str) -> Result<Identity, Status> {
        let cluster = self.own.cluster();
        identity_of_key("identity", key, cluster).map_err(Status::from)
    }
}

#[tonic::async_trait]
impl v1::identity_service_server::IdentityService for IdentityRpc {
    async fn join(&self, request: Request<v1::JoinRequest>) -> IdentityAnswer<v1::JoinResponse> {
        let issuer = self.issuer()?;
        let v1::JoinRequest { token, name, csr, hosts, role } = request.into_inner();
        let token: JoinToken = token
            .parse()
            .map_err(|bad: godel_pki::join_tokens::BadJoinToken| BadField::new("token", bad.to_string()))?;
        let cluster = issuer.own.cluster().clone();
        if *token.cluster() != cluster {
            let message =
                format!("the join token is of cluster {}, and this is cluster {cluster}", token.cluster());
            return Err(with_info(Code::Unauthenticated, reason::JOIN_REFUSED, message, NO_METADATA));
        }
        let (id, hash, clock) = (token.id().to_owned(), token.secret().hash(), issuer.clock());
        // First of all: who has no token takes no time of the writer, and has no signature checked.
        let of_token = issuer.ledger.read(|book| role_of_token(book, &id, &hash))?;
        let bad_role = |bad: BadIdentity| BadField::new("role", bad.to_string());
        let role = if role.is_empty() { of_token } else { role.parse().map_err(bad_role)? };
        let server_names = hosts::names_of_leaf(role, &hosts, &issuer.own_names)?;
        let identity =
            Identity::new(cluster, role, &name).map_err(|bad| BadField::new("name", bad.to_string()))?;
        let key = check_request(&csr).map_err(|bad| BadField::new("csr", bad.to_string()))?;
        let key_hash = key.sha256();
        issuer.check_signing()?;
        let joined = issuer.ledger.decide(move |draft| {
            role_of_token(&draft.book, &id, &hash)?;
            let ask = JoinAsk { token: id, identity, key_hash };
            draft.book.join(&ask, clock).map_err(|refusal| refused_issue(&refusal))
        });
        let leaf = joined.await?;
        tracing::info!(identity = leaf.identity.key(), token = token.id(), "an identity has joined");
        Ok(Response::new(v1::JoinResponse {
            leaf: Some(issuer.sign(&leaf, server_names, &key)?),
            trust: Some(issuer.trust()),
            pool: leaf.pool,
            now_ms: signed(issuer.ledger.now_ms()),
        }))
    }

    async fn renew_identity(
        &self,
        request: Request<v1::RenewIdentityRequest>,
    ) -> IdentityAnswer<v1::RenewIdentityResponse> {
        let issuer = self.issuer()?;
        let (identity, times) = leaf_of(&request, &issuer.own)?;
        let v1::RenewIdentityRequest { csr, hosts } = request.into_inner();
        let key = check_request(&csr).map_err(|bad| BadField::new("csr", bad.to_string()))?;
        let server_names = hosts::names_of_leaf(identity.role(), &hosts, &issuer.own_names)?;
        issuer.check_signing()?;
        let clock = issuer.clock();
        let renewed = issuer.ledger.decide(move |draft| {
            draft.book.renew(&identity, times, clock).map_err(|refusal| refused_issue(&refusal))
        });
        let leaf = renewed.await?;
        Ok(Response::new(v1::RenewIdentityResponse {
            leaf: Some(issuer.sign(&leaf, server_names, &key)?),
            trust: Some(issuer.trust()),
            now_ms: signed(issuer.ledger.now_ms()),
        }))
    }

    async fn create_join_token(
        &self,
        request: Request<v1::CreateJoinTokenRequest>,
    ) -> IdentityAnswer<v1::CreateJoinTokenResponse> {
        refuse_unjudged(&request)?;
        let issuer = self.issuer()?;
        let call = person_call(&request);
        let v1::CreateJoinTokenRequest { role, names, pool, ttl_ms, uses } = request.into_inner();
        let bad = |path: &'static str| move |bad: BadIdentity| BadField::new(path, bad.to_string());
        let ask = JoinTokenAsk {
            role: role.parse().map_err(bad("role"))?,
            names: names.parse().map_err(bad("names"))?,
            pool,
            ttl_ms: if ttl_ms == 0 { TOKEN_TTL_MS_DEFAULT } else { ttl_ms },
            n_uses: uses.max(1),
        };
        if ask.ttl_ms > TOKEN_TTL_MS_MAX {
            return Err(
                BadField::new("ttl_ms", format!("{ttl_ms}; at most {TOKEN_TTL_MS_MAX}, 30 days")).into()
            );
        }
        if ask.n_uses > TOKEN_USES_MAX {
            return Err(BadField::new("uses", format!("{uses}; at most {TOKEN_USES_MAX}")).into());
        }
        godel_domain::names::text(&ask.pool, godel_domain::names::NAME_LEN_MAX)
            .map_err(|bad| BadField::new("pool", bad.to_string()))?;
        let now_ms = issuer.ledger.now_ms();
        let keys = issuer.ledger.keys();
        // Who joins sees the root of the leaf that state shows.
        let root = issuer
            .ledger
            .read(|book| keys.signing(book.trust(), now_ms).map(|signer| signer.root().fingerprint()));
        let root = root.map_err(|error| broken(&error))?;
        let token = JoinToken::make(issuer.own.cluster().clone(), root).map_err(|error| broken(&error))?;
        let (id, hash) = (token.id().to_owned(), *token.secret().hash().as_bytes());
        let cause = call.cause("", [format!("join-token/{id}")]);
        let info = issuer.ledger.decide_for(cause, move |draft| {
            let made = draft.book.create_token(id, hash, ask, now_ms);
            made.map(token_info).map_err(|refusal| refused_change(&refusal))
        });
        let info = info.await?;
        tracing::info!(token = info.token_id, role = info.role, names = info.names, "a join token was made");
        let token = token.to_text().to_string();
        Ok(Response::new(v1::CreateJoinTokenResponse { token, info: Some(info) }))
    }

    async fn list_join_tokens(
        &self,
        _: Request<v1::ListJoinTokensRequest>,
    ) -> IdentityAnswer<v1::ListJoinTokensResponse> {
        let issuer = self.issuer()?;
        let tokens = issuer.ledger.read(|book| book.tokens().map(token_info).collect());
        Ok(Response::new(v1::ListJoinTokensResponse { tokens }))
    }

    async fn delete_join_token(
        &self,
        request: Request<v1::DeleteJoinTokenRequest>,
    ) -> IdentityAnswer<v1::DeleteJoinTokenResponse> {
        refuse_unjudged(&request)?;
        let issuer = self.issuer()?;
        let cause = person_call(&request).cause("", [format!("join-token/{}", request.get_ref().token_id)]);
        let id = request.into_inner().token_id;
        let deleted = issuer.ledger.decide_for(cause, move |draft| {
            draft.book.delete_token(&id).map_err(|refusal| refused_change(&refusal))
        });
        deleted.await?;
        Ok(Response::new(v1::DeleteJoinTokenResponse {}))
    }

    async fn list_identities(
        &self,
        request: Request<v1::ListIdentitiesRequest>,
    ) -> IdentityAnswer<v1::ListIdentitiesResponse> {
        let issuer = self.issuer()?;
        let prefix = request.into_inner().prefix;
        let now_ms = issuer.ledger.now_ms();
        let identities = issuer.ledger.read(|book| {
            let leaving = |record: &IdentityRecord| {
                book.trust().roots.iter().any(|root| root.is_leaving && root.fingerprint == record.root)
            };
            let of_prefix = book.identities().filter(|record| record.identity.key().starts_with(&prefix));
            let info = |record: &IdentityRecord| v1::IdentityInfo {
                record: Some(identity_to_proto(record)),
                standing: standing(record, now_ms).into(),
                has_leaving_root: leaving(record),
            };
            of_prefix.map(info).collect()
        });
        Ok(Response::new(v1::ListIdentitiesResponse { identities, now_ms: signed(now_ms) }))
    }

    async fn revoke_identity(
        &self,
        request: Request<v1::RevokeIdentityRequest>,
    ) -> IdentityAnswer<v1::RevokeIdentityResponse> {
        refuse_unjudged(&request)?;
        let issuer = self.issuer()?;
        let (identity, own) = (issuer.identity(&request.get_ref().identity)?, issuer.own.clone());
        let cause = person_call(&request).cause("", [format!("identity/{}", identity.key())]);
        let revoked = issuer.ledger.decide_for(cause, move |draft| {
            let revoked = draft.book.revoke(&identity, &own);
            revoked.map(identity_to_proto).map_err(|refusal| refused_change(&refusal))
        });
        let record = revoked.await?;
        tracing::info!(identity = record.identity, "an identity was revoked");
        Ok(Response::new(v1::RevokeIdentityResponse { record: Some(record) }))
    }

    async fn allow_name(
        &self,
        request: Request<v1::AllowNameRequest>,
    ) -> IdentityAnswer<v1::AllowNameResponse> {
        refuse_unjudged(&request)?;
        let issuer = self.issuer()?;
        let (identity, own) = (issuer.identity(&request.get_ref().identity)?, issuer.own.clone());
        let cause = person_call(&request).cause("", [format!("identity/{}", identity.key())]);
        let allowed = issuer.ledger.decide_for(cause, move |draft| {
            let allowed = draft.book.allow(&identity, &own);
            allowed.map(identity_to_proto).map_err(|refusal| refused_change(&refusal))
        });
        let record = allowed.await?;
        tracing::info!(identity = record.identity, "a name may be joined again");
        Ok(Response::new(v1::AllowNameResponse { record: Some(record) }))
    }

    async fn rotate_ca(&self, request: Request<v1::RotateCaRequest>) -> IdentityAnswer<v1::RotateCaResponse> {
        refuse_unjudged(&request)?;
        let issuer = self.issuer()?;
        let signer = Signer::make(issuer.own.cluster().clone()).map_err(|error| broken(&error))?;
        let fingerprint = signer.root().fingerprint().as_bytes().to_vec();
        let now_ms = issuer.ledger.now_ms();
        let signs_from_ms = now_ms.saturating_add(ROOT_LEAD_MS);
        let cause = person_call(&request).cause("", ["ca".to_owned()]);
        let rotated = issuer.ledger.decide_for(cause, move |draft| {
            let root = trusted_root(&signer, now_ms, signs_from_ms);
            let next = NextSigner { root, person_key: person_key(&signer) };
            let mut keys = draft.keys().as_ref().clone();
            keys.add(signer);
            let keys = draft.seal(keys).map_err(|error| broken(&error))?;
            draft.book.rotate(next, now_ms).map_err(|refusal| refused_rotation(&refusal))?;
            draft.install(keys);
            Ok(draft.book.n_with_leaving_root(now_ms))
        });
        let n_left = u32::try_from(rotated.await?).unwrap_or(u32::MAX);
        tracing::info!(
            n_left,
            "a new root was made; the old one is dropped soon after its last leaf was replaced"
        );
        let signs_from_ms = signed(signs_from_ms);
        Ok(Response::new(v1::RotateCaResponse { fingerprint, signs_from_ms, n_left }))
    }

    async fn get_trust(&self, _: Request<v1::GetTrustRequest>) -> IdentityAnswer<v1::GetTrustResponse> {
        let issuer = self.issuer()?;
        let (trust, fingerprints) = issuer.ledger.read(|book| {
            let fingerprints = book.trust().roots.iter().map(|root| root.fingerprint.0.to_vec());
            (trust_to_proto(book.trust()), fingerprints.collect())
        });
        let now_ms = signed(issuer.ledger.now_ms());
        Ok(Response::new(v1::GetTrustResponse { trust: Some(trust), fingerprints, now_ms }))
    }

    async fn get_callers(
        &self,
        request: Request<v1::GetCallersRequest>,
    ) -> IdentityAnswer<v1::GetCallersResponse> {
        let issuer = self.issuer()?;
        let role = security::caller(&request).role();
        Ok(Response::new(issuer.refused.since(request.into_inner().version, role, &issuer.ledger)))
    }

    async fn issue_token(
        &self,
        request: Request<v1::IssueTokenRequest>,
    ) -> IdentityAnswer<v1::IssueTokenResponse> {
        let issuer = self.issuer()?;
        issuer.issue_session(&request)
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> IdentityAnswer<v1::CreateTokenResponse> {
        self.issuer()?.create_token(request).await
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> IdentityAnswer<v1::ListTokensResponse> {
        self.issuer()?.list_tokens(&request)
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> IdentityAnswer<v1::RevokeTokenResponse> {
        self.issuer()?.revoke_token(request).await
    }

    async fn set_principal(
        &self,
        request: Request<v1::SetPrincipalRequest>,
    ) -> IdentityAnswer<v1::SetPrincipalResponse> {
        self.issuer()?.set_principal(request).await
    }

    async fn list_principals(
        &self,
        _: Request<v1::ListPrincipalsRequest>,
    ) -> IdentityAnswer<v1::ListPrincipalsResponse> {
        self.issuer()?.list_principals()
    }

    async fn delete_principal(
        &self,
        request: Request<v1::DeletePrincipalRequest>,
    ) -> IdentityAnswer<v1::DeletePrincipalResponse> {
        self.issuer()?.delete_principal(request).await
    }

    async fn who_am_i(&self, request: Request<v1::WhoAmIRequest>) -> IdentityAnswer<v1::WhoAmIResponse> {
        let cluster = self.0.as_ref().map(|issuer| issuer.own.cluster().to_string());
        Ok(Response::new(people::who_am_i(&request, cluster.unwrap_or_default())))
    }

    async fn can_i(&self, request: Request<v1::CanIRequest>) -> IdentityAnswer<v1::CanIResponse> {
        self.issuer()?.can_i(&request)
    }
}

pub(super) const NO_METADATA: [(&str, &str); 0] = [];

/// Refuses whoever comes in plain text: what is made here would outlive the time in which that may do everything.
pub(super) fn refuse_unjudged<T>(request: &Request<T>) -> Result<(), Status> {
    if request.extensions().get::<Caller>() != Some(&Caller::Unjudged) {
        return Ok(());
    }
    let message =
        "plain text may not manage identities: call over state's unix socket, or with a token over TLS";
    Err(with_info(Code::PermissionDenied, reason::FORBIDDEN, message, NO_METADATA))
}

/// The identity of the leaf that a call came with, and the times of the leaf.
fn leaf_of<T>(request: &Request<T>, own: &Identity) -> Result<(Identity, LeafTimes), Status> {
    let none = || {
        let message = "the call came without the certificate of an identity; a process without one joins";
        with_info(Code::Unauthenticated, reason::JOIN_REFUSED, message, NO_METADATA)
    };
    let (role, name) = match request.extensions().get::<Caller>() {
        Some(Caller::Member { role, name }) => (*role, name.clone()),
        Some(Caller::Agent { names }) => (Role::Agent, names.to_string()),
        _ => return Err(none()),
    };
    let times = request.extensions().get::<LeafTimes>().copied().ok_or_else(none)?;
    let identity = Identity::new(own.cluster().clone(), role, &name).map_err(|_| none())?;
    Ok((identity, times))
}

/// The role that a token gives to who has its secret.
fn role_of_token(book: &IdentityBook, id: &str, hash: &SecretHash) -> Result<Role, Status> {
    let known = book.token(id).filter(|known| SecretHash::read(&known.secret_hash).as_ref() == Some(hash));
    known.map(|known| known.terms.role).ok_or_else(|| refused_issue(&IssueRefusal::NoSuchToken))
}

fn standing(record: &IdentityRecord, now_ms: u64) -> v1::IdentityStanding {
    match record.standing(now_ms) {
        LeafStanding::Valid => v1::IdentityStanding::Valid,
        LeafStanding::Expired => v1::IdentityStanding::Expired,
        LeafStanding::Refused(LeafRefusal::Revoked) => v1::IdentityStanding::Revoked,
        LeafStanding::Refused(_) => v1::IdentityStanding::Gone,
    }
}

fn refused_issue(refusal: &IssueRefusal) -> Status {
    let message = refusal.to_string();
    let (code, reason) = match refusal {
        IssueRefusal::Join(JoinRefusal::NameTaken { taken, .. }) => {
            return with_info(Code::AlreadyExists, reason::NAME_IN_USE, message, [("taken", taken.clone())]);
        }
        IssueRefusal::Revoked { taken } => {
            let metadata = [("taken", taken.clone())];
            return with_info(Code::FailedPrecondition, reason::IDENTITY_REVOKED, message, metadata);
        }
        IssueRefusal::Long { .. } | IssueRefusal::TooManyNames { .. } => {
            return BadField::new("name", message).into();
        }
        IssueRefusal::NoSuchToken | IssueRefusal::Join(_) => (Code::Unauthenticated, reason::JOIN_REFUSED),
        IssueRefusal::Leaf { .. } => (Code::PermissionDenied, reason::IDENTITY_REVOKED),
    };
    with_info(code, reason, message, NO_METADATA)
}

fn refused_change(refusal: &BookRefusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        BookRefusal::NoIdentity { .. } | BookRefusal::NoToken { .. } => {
            with_info(Code::NotFound, reason::UNKNOWN_NAME, message, NO_METADATA)
        }
        BookRefusal::Own { .. } => Status::failed_precondition(message),
        BookRefusal::TooManyTokens => {
            status::resource_exhausted(reason::OVERLOADED, message, std::time::Duration::from_secs(60))
        }
        BookRefusal::TooMuch => BadField::new("ttl_ms", message).into(),
        BookRefusal::PoolOfService { .. } => BadField::new("pool", message).into(),
        // Ids are random.
        BookRefusal::KnownToken { .. } => Status::aborted(message),
    }
}

fn refused_rotation(refusal: &RotationRefusal) -> Status {
    match refusal {
        RotationRefusal::UnderWay { .. } => {
            with_info(Code::FailedPrecondition, reason::ROTATION_UNDER_WAY, refusal.to_string(), NO_METADATA)
        }
        RotationRefusal::Keys => Status::failed_precondition(refusal.to_string()),
        RotationRefusal::Known { .. } => Status::aborted(refusal.to_string()),
    }
}

/// What no caller can mend.
pub(super) fn broken(error: &(dyn std::error::Error + 'static)) -> Status {
    tracing::error!(error, "nothing can be signed");
    cannot_sign()
}

fn cannot_sign() -> Status {
    Status::internal("state cannot sign: its log says why")
}
