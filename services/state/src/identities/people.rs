//! What `IdentityService` answers about principals and their tokens.

use std::{sync::Arc, time::Duration};

use godel_domain::names::YARN_SIMPLE;
use godel_identity::{
    caller::{ADMIN, Caller},
    needs::{NEEDS, YARN_NEEDS},
    people::{PERSON_TOKEN_TTL_MS_MAX, PeopleRefusal, PrincipalAsk, PrincipalRecord},
    permission::{CallObject, PermissionRefusal, PersonRole, Principal, UnknownPersonRole},
    rotation::PERSON_TOKEN_MS,
};
use godel_kit::{
    security::person_call,
    status::{self, reason, with_info},
};
use godel_pki::{
    person_tokens::{self, PersonToken, TokenOrder},
    yarn_tokens,
};
use godel_proto::v1;
use godel_wire::{BadField, to_proto};
use tonic::{Code, Request, Response, Status};

use super::{
    records::{person_token_to_proto, signed},
    rpc::{IdentityAnswer, Issuer, NO_METADATA, broken, refuse_unjudged},
};

/// How long a token is good unless its maker says otherwise.
const TTL_MS_DEFAULT: u64 = 30 * 24 * 3_600_000;

impl Issuer {
    pub(super) async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> IdentityAnswer<v1::CreateTokenResponse> {
        refuse_unjudged(&request)?;
        let call = person_call(&request);
        let v1::CreateTokenRequest { principal, ttl_ms, terms, for_yarn } = request.into_inner();
        let ttl_ms = if ttl_ms == 0 { TTL_MS_DEFAULT } else { ttl_ms };
        let ask = ask_of(terms.unwrap_or_default())?;
        let id = person_tokens::make_id().map_err(|error| broken(&error))?;
        let now_ms = self.ledger.now_ms();
        let keys = self.ledger.keys();
        let signer = self.ledger.read(|book| keys.signing(book.trust(), now_ms).cloned());
        let signer = signer.map_err(|error| broken(&error))?;
        let key_id = signer.token_key().id().to_owned();
        let cause = call.cause("", [format!("principal/{principal}"), format!("token/{id}")]);
        let yarn_secret = for_yarn.then(|| keys.yarn_secret(&key_id));
        let made = self.ledger.decide_for(cause, move |draft| {
            let people = draft.book.people_mut();
            let token = people
                .create_token(&id, &principal, ask, ttl_ms, now_ms)
                .map_err(|refusal| refused(&refusal))?;
            let record = people.principals().find(|record| record.principal.name == principal).cloned();
            draft.book.keep_person_key(&key_id, token.ends_ms);
            Ok((token, record))
        });
        let (token, record) = made.await?;
        let order = TokenOrder {
            person: &token.principal,
            id: &token.id,
            issued_ms: token.created_ms,
            expires_ms: token.ends_ms,
            is_session: false,
        };
        let text = person_tokens::make_token(&signer, &order).map_err(|error| broken(&error))?;
        let said = yarn_tokens::said_by(&text).map_err(|error| broken(&error))?;
        let yarn_password = yarn_secret.map(|secret| secret.password(said).to_vec()).unwrap_or_default();
        tracing::info!(principal = token.principal, token = token.id, for_yarn, "a token was made");
        Ok(Response::new(v1::CreateTokenResponse {
            token: text,
            yarn_password,
            info: Some(person_token_to_proto(&token)),
            principal: record.as_ref().map(to_proto::principal),
        }))
    }

    pub(super) fn list_tokens(
        &self,
        request: &Request<v1::ListTokensRequest>,
    ) -> IdentityAnswer<v1::ListTokensResponse> {
        let call = person_call(request);
        let asked = &request.get_ref().principal;
        let own = call.principal().filter(|principal| principal.role < PersonRole::Admin);
        let whose =
            own.map(|principal| principal.name.as_str()).filter(|_| asked.is_empty()).unwrap_or(asked);
        if !whose.is_empty() {
            call.check(&CallObject { owner: Some(whose), ..CallObject::default() })?;
        }
        let tokens = self.ledger.read(|book| {
            let tokens = book.people().tokens();
            let of_principal = tokens.filter(|token| whose.is_empty() || token.principal == whose);
            of_principal.map(person_token_to_proto).collect()
        });
        Ok(Response::new(v1::ListTokensResponse { tokens, now_ms: signed(self.ledger.now_ms()) }))
    }

    pub(super) async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> IdentityAnswer<v1::RevokeTokenResponse> {
        refuse_unjudged(&request)?;
        let call = person_call(&request);
        let v1::RevokeTokenRequest { token_id, principal } = request.into_inner();
        if token_id.is_empty() == principal.is_empty() {
            return Err(BadField::new("token_id", "give either this or `principal`").into());
        }
        let is_all = token_id.is_empty();
        let may_revoke_of =
            |owner: &str| call.check(&CallObject { owner: Some(owner), ..CallObject::default() });
        if is_all {
            may_revoke_of(&principal)?;
        } else {
            // Nobody is told whether there is a token of another one.
            let owner =
                self.ledger.read(|book| book.people().token(&token_id).map(|token| token.principal.clone()));
            if owner.is_none_or(|owner| may_revoke_of(&owner).is_err()) {
                return Err(refused(&PeopleRefusal::NoToken { id: token_id }));
            }
        }
        let now_ms = self.ledger.now_ms();
        let (id, name) = (token_id.clone(), principal.clone());
        let object = if is_all { format!("principal/{name}") } else { format!("token/{id}") };
        let revoked = self.ledger.decide_for(call.cause("", [object]), move |draft| {
            let people = draft.book.people_mut();
            let n_revoked = if is_all {
                people.revoke_all(&name, now_ms)
            } else {
                let was_good = people.token(&id).is_some_and(|token| !token.is_revoked);
                people.revoke_token(&id).map(|_| usize::from(was_good))
            };
            n_revoked.map_err(|refusal| refused(&refusal))
        });
        let n_revoked = u32::try_from(revoked.await?).unwrap_or(u32::MAX);
        tracing::info!(token = token_id, principal, n_revoked, "tokens were revoked");
        Ok(Response::new(v1::RevokeTokenResponse { n_revoked }))
    }

    pub(super) async fn set_principal(
        &self,
        request: Request<v1::SetPrincipalRequest>,
    ) -> IdentityAnswer<v1::SetPrincipalResponse> {
        refuse_unjudged(&request)?;
        let call = person_call(&request);
        let v1::SetPrincipalRequest { principal, terms } = request.into_inner();
        let (ask, now_ms) = (ask_of(terms.unwrap_or_default())?, self.ledger.now_ms());
        let cause = call.cause("", [format!("principal/{principal}")]);
        let set = self.ledger.decide_for(cause, move |draft| {
            let set = draft.book.people_mut().set_principal(&principal, ask, now_ms);
            set.cloned().map_err(|refusal| refused(&refusal))
        });
        let record = set.await?;
        let Principal { name, role, .. } = &record.principal;
        tracing::info!(principal = name, %role, "a principal was set");
        Ok(Response::new(v1::SetPrincipalResponse { principal: Some(to_proto::principal(&record)) }))
    }

    pub(super) fn list_principals(&self) -> IdentityAnswer<v1::ListPrincipalsResponse> {
        let mut principals: Vec<v1::Principal> =
            self.ledger.read(|book| book.people().principals().map(to_proto::principal).collect());
        if let Err(at) = principals.binary_search_by(|principal| principal.name.as_str().cmp(ADMIN)) {
            principals.insert(at, unrecorded(Principal::admin()));
        }
        Ok(Response::new(v1::ListPrincipalsResponse { principals }))
    }

    pub(super) async fn delete_principal(
        &self,
        request: Request<v1::DeletePrincipalRequest>,
    ) -> IdentityAnswer<v1::DeletePrincipalResponse> {
        refuse_unjudged(&request)?;
        let call = person_call(&request);
        let name = request.into_inner().principal;
        let gone = name.clone();
        let cause = call.cause("", [format!("principal/{name}")]);
        let deleted = self.ledger.decide_for(cause, move |draft| {
            draft.book.people_mut().delete_principal(&gone).map_err(|refusal| refused(&refusal))
        });
        deleted.await?;
        tracing::info!(principal = name, "a principal was deleted, and its tokens were revoked");
        Ok(Response::new(v1::DeletePrincipalResponse {}))
    }

    pub(super) fn can_i(&self, request: &Request<v1::CanIRequest>) -> IdentityAnswer<v1::CanIResponse> {
        let caller =
            person_call(request).principal().map_or_else(Principal::admin, |own| Principal::clone(own));
        let v1::CanIRequest { method, namespace, queue, owner, as_principal } = request.get_ref();
        let principal = if as_principal.is_empty() || *as_principal == caller.name {
            caller
        } else if caller.role == PersonRole::Admin {
            let simple = as_principal.strip_prefix(YARN_SIMPLE).map(Principal::yarn_simple);
            let known = simple.or_else(|| self.ledger.read(|book| book.people().principal(as_principal)));
            known.ok_or_else(|| refused(&PeopleRefusal::NoPrincipal { name: as_principal.clone() }))?
        } else {
            let message =
                format!("only role admin may ask for others; {} has role {}", caller.name, caller.role);
            return Err(with_info(Code::PermissionDenied, reason::NOT_ALLOWED, message, NO_METADATA));
        };
        let method = method_of(method)?;
        let given = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
        let (namespace, queue, owner) = (given(namespace), given(queue), given(owner));
        let object = CallObject {
            namespace: namespace.as_deref(),
            queue: queue.as_deref(),
            node: None,
            owner: owner.as_deref(),
        };
        let refusal = PermissionRefusal::judge(&principal, method, &object).err();
        Ok(Response::new(v1::CanIResponse {
            is_allowed: refusal.is_none(),
            why: refusal.map(|refusal| refusal.to_string()).unwrap_or_default(),
            principal: principal.name,
            method: method.to_owned(),
        }))
    }

    /// A token of a session, for whoever calls over the socket or with another one.
    pub(super) fn issue_session(
        &self,
        request: &Request<v1::IssueTokenRequest>,
    ) -> IdentityAnswer<v1::IssueTokenResponse> {
        // Not to whoever comes in plain text: the token would outlive the time in which that may do everything.
        let Some(Caller::Person { name }) = request.extensions().get::<Caller>() else {
            let message = "a token is given over state's unix socket, or for a token that is still valid";
            return Err(with_info(Code::PermissionDenied, reason::FORBIDDEN, message, NO_METADATA));
        };
        if request.extensions().get::<Arc<PersonToken>>().is_some_and(|token| !token.is_session) {
            let message = "the token was made by `godel token create`, and is not renewed; ask an administrator for another one before it ends";
            return Err(with_info(Code::PermissionDenied, reason::FORBIDDEN, message, NO_METADATA));
        }
        let now_ms = self.ledger.now_ms();
        let issued_ms = self.ledger.read(|book| book.people().issue_ms(name, now_ms));
        let expires_ms = issued_ms + PERSON_TOKEN_MS;
        let keys = self.ledger.keys();
        let signer = self.ledger.read(|book| keys.signing(book.trust(), now_ms).cloned());
        let signer = signer.map_err(|error| broken(&error))?;
        let id = person_tokens::make_id().map_err(|error| broken(&error))?;
        let order = TokenOrder { person: name, id: &id, issued_ms, expires_ms, is_session: true };
        let token = person_tokens::make_token(&signer, &order).map_err(|error| broken(&error))?;
        // A token of a session is no record.
        person_call(request).note_done([format!("principal/{name}"), format!("token/{id}")]);
        Ok(Response::new(v1::IssueTokenResponse {
            token,
            person: name.clone(),
            expires_ms: signed(expires_ms),
            now_ms: signed(now_ms),
        }))
    }
}

/// Who calls. `cluster` is empty where there is no CA.
pub(super) fn who_am_i(request: &Request<v1::WhoAmIRequest>, cluster: String) -> v1::WhoAmIResponse {
    let caller = request.extensions().get::<Caller>().unwrap_or(&Caller::Anonymous);
    let principal = person_call(request).principal().map(|principal| unrecorded(Principal::clone(principal)));
    let token = request.extensions().get::<Arc<PersonToken>>();
    v1::WhoAmIResponse {
        caller: caller.to_string(),
        principal,
        token_id: token.map(|token| token.id.clone()).unwrap_or_default(),
        token_ends_ms: token.map_or(0, |token| signed(token.expires_ms)),
        cluster,
    }
}

/// A principal without the times of its record.
fn unrecorded(principal: Principal) -> v1::Principal {
    to_proto::principal(&PrincipalRecord { principal, created_ms: 0, refused_before_ms: 0 })
}

fn ask_of(terms: v1::PrincipalTerms) -> Result<PrincipalAsk, BadField> {
    let v1::PrincipalTerms { role, groups, namespaces, queues, default_namespace, replace_lists } = terms;
    let bad = |bad: UnknownPersonRole| BadField::new("terms.role", bad.to_string());
    let role = if role.is_empty() { None } else { Some(role.parse().map_err(bad)?) };
    Ok(PrincipalAsk {
        role,
        groups,
        namespaces,
        queues,
        default_namespace: Some(default_namespace).filter(|namespace| !namespace.is_empty()),
        replaces_lists: replace_lists,
    })
}

/// The path of a method that is named whole, by its service and itself, or by itself.
fn method_of(text: &str) -> Result<&'static str, BadField> {
    let is_meant = |path: &str| {
        path.strip_suffix(text).is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', '.']))
    };
    let all = NEEDS.iter().chain(YARN_NEEDS);
    let mut meant = all.map(|(path, _)| *path).filter(|path| !text.is_empty() && is_meant(path));
    match (meant.next(), meant.next()) {
        (Some(path), None) => Ok(path),
        (Some(one), Some(other)) => {
            Err(BadField::new("method", format!("{text} may be {one} or {other}; name it whole")))
        }
        (None, _) => {
            let shown: String = text.chars().take(80).collect();
            let why = format!("there is no method {}; docs/permissions.md lists them", shown.escape_debug());
            Err(BadField::new("method", why))
        }
    }
}

fn refused(refusal: &PeopleRefusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        PeopleRefusal::BadName { field: field @ "principal", .. } => BadField::new(*field, message).into(),
        PeopleRefusal::BadName { field, .. } => BadField::new(format!("terms.{field}"), message).into(),
        PeopleRefusal::Long { .. } => BadField::new("terms", message).into(),
        PeopleRefusal::BadTtl => {
            BadField::new("ttl_ms", format!("{message} ({PERSON_TOKEN_TTL_MS_MAX} ms)")).into()
        }
        PeopleRefusal::Admin => Status::failed_precondition(message),
        PeopleRefusal::OtherTerms { .. } => {
            with_info(Code::AlreadyExists, reason::DUPLICATE_NAME, message, NO_METADATA)
        }
        PeopleRefusal::NoPrincipal { .. } | PeopleRefusal::NoToken { .. } => {
            with_info(Code::NotFound, reason::UNKNOWN_NAME, message, NO_METADATA)
        }
        PeopleRefusal::TooManyPrincipals | PeopleRefusal::TooManyTokens => {
            status::resource_exhausted(reason::OVERLOADED, message, Duration::from_secs(60))
        }
        // Ids are random.
        PeopleRefusal::KnownToken { .. } => Status::aborted(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_whole_or_by_their_end() {
        let submit = "/godel.v1.UnitService/SubmitUnit";
        let kill = "hadoop/ApplicationClientProtocol/forceKillApplication";
        assert_eq!(method_of("forceKillApplication").unwrap(), kill);
        for text in [submit, "godel.v1.UnitService/SubmitUnit", "UnitService/SubmitUnit", "SubmitUnit"] {
            assert_eq!(method_of(text), Ok(submit), "{text}");
        }
        for bad in ["", "Unit", "SubmitUni", "submitunit", "Watch", "Nothing", "/", "."] {
            assert!(method_of(bad).is_err(), "{bad}");
        }
        assert_eq!(method_of("StateService/Watch"), Ok("/godel.v1.StateService/Watch"));
    }
}
