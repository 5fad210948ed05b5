//! Records of identities, from the store and into it. Nobody else reads what they say.

use godel_base::ids::StoreId;
use godel_identity::{
    book::{IdentityBook, IdentityChange},
    joins::JoinTerms,
    names::{BadIdentity, ClusterName, Identity},
    people::{People, PeopleChange, PersonTokenRecord, PrincipalRecord},
    records::{
        ClusterTrust, HASH_LEN, IdentityRecord, JoinTokenRecord, LastJoin, PersonTokenKey, RootFingerprint,
        TrustedRoot,
    },
};
use godel_proto::{
    raw,
    v1::{self, op::Op},
};
use godel_store::State;
use godel_wire::{BadField, from_proto, ops::ParsedOp, to_proto};

/// The name of the records of which there is one.
pub(super) const NAME: &str = "default";

/// All that the store holds of identities; `None`: it has no CA yet. `fingerprint` is SHA-256 of a certificate.
///
/// # Errors
/// A record cannot be read.
pub(super) fn book(
    state: &State,
    fingerprint: impl Fn(&[u8]) -> RootFingerprint,
) -> Result<Option<IdentityBook>, BadField> {
    let Some(trust) = one::<v1::TrustRoots>(state, v1::Kind::TrustRoots)? else { return Ok(None) };
    let trust = trust_from_proto(trust, fingerprint)?;
    let identities = all::<v1::IdentityRecord>(state, v1::Kind::Identity)?;
    let identities: Result<Vec<IdentityRecord>, BadField> =
        identities.into_iter().map(|pb| identity_from_proto(pb, &trust.cluster)).collect();
    let tokens = all::<v1::JoinToken>(state, v1::Kind::JoinToken)?;
    let tokens: Result<Vec<JoinTokenRecord>, BadField> = tokens.into_iter().map(token_from_proto).collect();
    let principals = all::<v1::Principal>(state, v1::Kind::Principal)?;
    let principals: Result<Vec<PrincipalRecord>, BadField> =
        principals.into_iter().map(from_proto::principal).collect();
    let of_persons = all::<v1::PersonToken>(state, v1::Kind::PersonToken)?;
    let people = People::new(principals?, of_persons.into_iter().map(person_token_from_proto));
    Ok(Some(IdentityBook::new(trust, identities?, tokens?).with_people(people)))
}

/// What an operation changes of what is known of identities; `None`: nothing. `cluster` is the one that they are of.
///
/// # Errors
/// The record cannot be read.
pub(super) fn change_of(
    op: &ParsedOp,
    cluster: &ClusterName,
    fingerprint: impl Fn(&[u8]) -> RootFingerprint,
) -> Result<Option<IdentityChange>, BadField> {
    let change = match op {
        ParsedOp::Put { kind: v1::Kind::TrustRoots, value, .. } => {
            IdentityChange::Trust(trust_from_proto(decoded(value)?, fingerprint)?)
        }
        ParsedOp::Put { kind: v1::Kind::Identity, value, .. } => {
            IdentityChange::Identity(identity_from_proto(decoded(value)?, cluster)?)
        }
        ParsedOp::Put { kind: v1::Kind::JoinToken, value, .. } => {
            IdentityChange::Token(token_from_proto(decoded(value)?)?)
        }
        ParsedOp::Put { kind: v1::Kind::Principal, value, .. } => {
            IdentityChange::Person(PeopleChange::Principal(from_proto::principal(decoded(value)?)?))
        }
        ParsedOp::Put { kind: v1::Kind::PersonToken, value, .. } => {
            IdentityChange::Person(PeopleChange::Token(person_token_from_proto(decoded(value)?)))
        }
        ParsedOp::Delete { kind: v1::Kind::Identity, key } => IdentityChange::IdentityGone(key.to_string()),
        ParsedOp::Delete { kind: v1::Kind::JoinToken, key } => IdentityChange::TokenGone(key.to_string()),
        ParsedOp::Delete { kind: v1::Kind::Principal, key } => {
            IdentityChange::Person(PeopleChange::PrincipalGone(key.to_string()))
        }
        ParsedOp::Delete { kind: v1::Kind::PersonToken, key } => {
            IdentityChange::Person(PeopleChange::TokenGone(key.to_string()))
        }
        ParsedOp::Put { .. } | ParsedOp::Delete { .. } | ParsedOp::Rows { .. } => return Ok(None),
    };
    Ok(Some(change))
}

fn decoded<M: prost::Message + Default>(value: &bytes::Bytes) -> Result<M, BadField> {
    M::decode(value.clone()).map_err(|error| BadField::new("record", error.to_string()))
}

/// The sealed keys of all roots.
///
/// # Errors
/// A record cannot be read.
pub(super) fn sealed(state: &State) -> Result<Vec<v1::SealedSigner>, BadField> {
    all(state, v1::Kind::SealedSigner)
}

/// The name of the cluster, if the store has one.
///
/// # Errors
/// The record cannot be read.
pub(super) fn cluster(state: &State) -> Result<Option<ClusterName>, BadField> {
    let trust = one::<v1::TrustRoots>(state, v1::Kind::TrustRoots)?;
    let read = |trust: v1::TrustRoots| trust.cluster.parse();
    trust.map(read).transpose().map_err(|bad: BadIdentity| BadField::new("cluster", bad.to_string()))
}

/// The roots as stored, if the store has any.
///
/// # Errors
/// The record cannot be read.
pub(super) fn trust(state: &State) -> Result<Option<v1::TrustRoots>, BadField> {
    one(state, v1::Kind::TrustRoots)
}

/// Keys of the records of those who hold something by the CA: what signs, tokens, and identities last.
pub(super) fn keys_of_holders(state: &State) -> Vec<(v1::Kind, String)> {
    let kinds = [v1::Kind::SealedSigner, v1::Kind::JoinToken, v1::Kind::PersonToken, v1::Kind::Identity];
    let keys = kinds
        .into_iter()
        .flat_map(|kind| state.records(kind, None).map(move |(key, _)| (kind, key.to_string())));
    keys.collect()
}

/// What writes a change.
pub(super) fn op(change: IdentityChange) -> bytes::Bytes {
    match change {
        IdentityChange::Trust(trust) => raw::encode_op(Op::PutTrustRoots(trust_to_proto(&trust))),
        IdentityChange::Identity(record) => raw::encode_op(Op::PutIdentity(identity_to_proto(&record))),
        IdentityChange::IdentityGone(key) => to_proto::delete_named(v1::Kind::Identity, &key),
        IdentityChange::Token(token) => raw::encode_op(Op::PutJoinToken(token_to_proto(&token))),
        IdentityChange::TokenGone(id) => to_proto::delete_named(v1::Kind::JoinToken, &id),
        IdentityChange::Person(change) => person_op(change),
    }
}

fn person_op(change: PeopleChange) -> bytes::Bytes {
    match change {
        PeopleChange::Principal(record) => raw::encode_op(Op::PutPrincipal(to_proto::principal(&record))),
        PeopleChange::PrincipalGone(name) => to_proto::delete_named(v1::Kind::Principal, &name),
        PeopleChange::Token(token) => raw::encode_op(Op::PutPersonToken(person_token_to_proto(&token))),
        PeopleChange::TokenGone(id) => to_proto::delete_named(v1::Kind::PersonToken, &id),
    }
}

pub(super) fn person_token_to_proto(token: &PersonTokenRecord) -> v1::PersonToken {
    let PersonTokenRecord { id, principal, created_ms, ends_ms, is_revoked } = token;
    v1::PersonToken {
        token_id: id.clone(),
        principal: principal.clone(),
        created_ms: signed(*created_ms),
        ends_ms: signed(*ends_ms),
        is_revoked: *is_revoked,
    }
}

fn person_token_from_proto(pb: v1::PersonToken) -> PersonTokenRecord {
    let v1::PersonToken { token_id, principal, created_ms, ends_ms, is_revoked } = pb;
    let (created_ms, ends_ms) = (unsigned(created_ms), unsigned(ends_ms));
    PersonTokenRecord { id: token_id, principal, created_ms, ends_ms, is_revoked }
}

pub(super) fn trust_to_proto(trust: &ClusterTrust) -> v1::TrustRoots {
    let ClusterTrust { cluster, store, roots, person_keys } = trust;
    let root =
        |TrustedRoot { certificate, fingerprint: _, created_ms, signs_from_ms, is_leaving }: &TrustedRoot| {
            v1::TrustRoot {
                certificate: certificate.clone(),
                created_ms: signed(*created_ms),
                signs_from_ms: signed(*signs_from_ms),
                is_leaving: *is_leaving,
            }
        };
    let key = |PersonTokenKey { id, public_key, ends_ms }: &PersonTokenKey| v1::PersonKey {
        key_id: id.clone(),
        public_key: public_key.to_vec(),
        ends_ms: ends_ms.map_or(0, signed),
    };
    v1::TrustRoots {
        name: NAME.to_owned(),
        cluster: cluster.to_string(),
        roots: roots.iter().map(root).collect(),
        person_keys: person_keys.iter().map(key).collect(),
        store_id: store.0,
        clears_identities: false,
    }
}

pub(super) fn identity_to_proto(record: &IdentityRecord) -> v1::IdentityRecord {
    let IdentityRecord {
        identity,
        joined_ms,
        issued_ms,
        ends_ms,
        refused_before_ms,
        is_revoked,
        may_join_again,
        pool,
        root,
        last_join,
    } = record;
    let (join_token, join_key_sha256) = match last_join {
        Some(LastJoin { token, key_hash }) => (token.clone(), key_hash.to_vec()),
        None => (String::new(), Vec::new()),
    };
    v1::IdentityRecord {
        identity: identity.key(),
        joined_ms: signed(*joined_ms),
        issued_ms: signed(*issued_ms),
        ends_ms: signed(*ends_ms),
        refused_before_ms: signed(*refused_before_ms),
        is_revoked: *is_revoked,
        may_join_again: *may_join_again,
        pool: pool.clone(),
        root_fingerprint: root.0.to_vec(),
        join_token,
        join_key_sha256,
    }
}

/// What people are shown of a token.
pub(super) fn token_info(token: &JoinTokenRecord) -> v1::JoinTokenInfo {
    let JoinTokenRecord { id, secret_hash: _, terms, pool, created_ms } = token;
    let JoinTerms { role, names, expires_ms, uses_left } = terms;
    v1::JoinTokenInfo {
        token_id: id.clone(),
        role: role.to_string(),
        names: names.to_string(),
        pool: pool.clone(),
        created_ms: signed(*created_ms),
        expires_ms: signed(*expires_ms),
        uses_left: *uses_left,
    }
}

/// The identity that a key names, as `agent/n1`.
///
/// # Errors
/// It names none.
pub(super) fn identity_of_key(path: &str, key: &str, cluster: &ClusterName) -> Result<Identity, BadField> {
    let (role, name) =
        key.split_once('/').ok_or_else(|| BadField::new(path, "must be a role and a name, as `agent/n1`"))?;
    let identity = role.parse().and_then(|role| Identity::new(cluster.clone(), role, name));
    identity.map_err(|bad| BadField::new(path, bad.to_string()))
}

/// Milliseconds as the API has them.
pub(super) fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// Milliseconds as rules have them: nothing is before 1970.
pub(super) fn unsigned(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}

fn one<M: prost::Message + Default>(state: &State, kind: v1::Kind) -> Result<Option<M>, BadField> {
    Ok(all(state, kind)?.into_iter().next())
}

fn all<M: prost::Message + Default>(state: &State, kind: v1::Kind) -> Result<Vec<M>, BadField> {
    let bad = |error: prost::DecodeError| BadField::new(kind.as_str_name(), error.to_string());
    state.records(kind, None).map(|(_, record)| M::decode(record.value.clone()).map_err(bad)).collect()
}

fn trust_from_proto(
    pb: v1::TrustRoots,
    fingerprint: impl Fn(&[u8]) -> RootFingerprint,
) -> Result<ClusterTrust, BadField> {
    let v1::TrustRoots { name: _, cluster, roots, person_keys, store_id, clears_identities: _ } = pb;
    let cluster = cluster.parse().map_err(|bad: BadIdentity| BadField::new("cluster", bad.to_string()))?;
    let root = |pb: v1::TrustRoot| TrustedRoot {
        fingerprint: fingerprint(&pb.certificate),
        certificate: pb.certificate,
        created_ms: unsigned(pb.created_ms),
        signs_from_ms: unsigned(pb.signs_from_ms),
        is_leaving: pb.is_leaving,
    };
    let key = |pb: v1::PersonKey| {
        let public_key = hash("person_keys.public_key", pb.public_key)?;
        let ends_ms = Some(unsigned(pb.ends_ms)).filter(|ends_ms| *ends_ms != 0);
        Ok(PersonTokenKey { id: pb.key_id, public_key, ends_ms })
    };
    let person_keys: Result<Vec<PersonTokenKey>, BadField> = person_keys.into_iter().map(key).collect();
    Ok(ClusterTrust {
        cluster,
        store: StoreId(store_id),
        roots: roots.into_iter().map(root).collect(),
        person_keys: person_keys?,
    })
}

fn identity_from_proto(pb: v1::IdentityRecord, cluster: &ClusterName) -> Result<IdentityRecord, BadField> {
    let last_join = match pb.join_token {
        token if token.is_empty() => None,
        token => Some(LastJoin { token, key_hash: hash("join_key_sha256", pb.join_key_sha256)? }),
    };
    Ok(IdentityRecord {
        identity: identity_of_key("identity", &pb.identity, cluster)?,
        joined_ms: unsigned(pb.joined_ms),
        issued_ms: unsigned(pb.issued_ms),
        ends_ms: unsigned(pb.ends_ms),
        refused_before_ms: unsigned(pb.refused_before_ms),
        is_revoked: pb.is_revoked,
        may_join_again: pb.may_join_again,
        pool: pb.pool,
        root: RootFingerprint(hash("root_fingerprint", pb.root_fingerprint)?),
        last_join,
    })
}

fn token_to_proto(token: &JoinTokenRecord) -> v1::JoinToken {
    let v1::JoinTokenInfo { token_id, role, names, pool, created_ms, expires_ms, uses_left } =
        token_info(token);
    let secret_sha256 = token.secret_hash.to_vec();
    v1::JoinToken { token_id, secret_sha256, role, names, pool, created_ms, expires_ms, uses_left }
}

fn token_from_proto(pb: v1::JoinToken) -> Result<JoinTokenRecord, BadField> {
    let v1::JoinToken { token_id, secret_sha256, role, names, pool, created_ms, expires_ms, uses_left } = pb;
    let bad = |path: &'static str| move |bad: BadIdentity| BadField::new(path, bad.to_string());
    let terms = JoinTerms {
        role: role.parse().map_err(bad("role"))?,
        names: names.parse().map_err(bad("names"))?,
        expires_ms: unsigned(expires_ms),
        uses_left,
    };
    let secret_hash = hash("secret_sha256", secret_sha256)?;
    Ok(JoinTokenRecord { id: token_id, secret_hash, terms, pool, created_ms: unsigned(created_ms) })
}

fn hash(path: &str, bytes: Vec<u8>) -> Result<[u8; HASH_LEN], BadField> {
    bytes.try_into().map_err(|_| BadField::new(path, format!("must have {HASH_LEN} bytes")))
}

#[cfg(test)]
mod tests {
    use godel_identity::names::Role;

    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let cluster: ClusterName = "c".parse().unwrap();
        let record = IdentityRecord {
            identity: Identity::new(cluster.clone(), Role::Agent, "sim-*").unwrap(),
            joined_ms: 1,
            issued_ms: 2,
            ends_ms: 3,
            refused_before_ms: 4,
            is_revoked: true,
            may_join_again: true,
            pool: "gpu".to_owned(),
            root: RootFingerprint([7; 32]),
            last_join: Some(LastJoin { token: "t1".to_owned(), key_hash: [8; 32] }),
        };
        assert_eq!(identity_from_proto(identity_to_proto(&record), &cluster), Ok(record));
        let token = JoinTokenRecord {
            id: "t1".to_owned(),
            secret_hash: [9; 32],
            terms: JoinTerms { role: Role::Agent, names: "n*".parse().unwrap(), expires_ms: 5, uses_left: 6 },
            pool: "gpu".to_owned(),
            created_ms: 7,
        };
        assert_eq!(token_from_proto(token_to_proto(&token)), Ok(token));
        let token = PersonTokenRecord {
            id: "t2".to_owned(),
            principal: "ann".to_owned(),
            created_ms: 3,
            ends_ms: 4,
            is_revoked: true,
        };
        assert_eq!(person_token_from_proto(person_token_to_proto(&token)), token);
        let trust = ClusterTrust {
            cluster,
            store: StoreId(9),
            roots: vec![TrustedRoot {
                certificate: vec![1, 2],
                fingerprint: RootFingerprint([3; 32]),
                created_ms: 4,
                signs_from_ms: 5,
                is_leaving: true,
            }],
            person_keys: vec![
                PersonTokenKey { id: "p1".to_owned(), public_key: [6; 32], ends_ms: Some(7) },
                PersonTokenKey { id: "p2".to_owned(), public_key: [7; 32], ends_ms: None },
            ],
        };
        assert_eq!(trust_from_proto(trust_to_proto(&trust), |_| RootFingerprint([3; 32])), Ok(trust));
    }

    #[test]
    fn keys_name_identities() {
        let cluster: ClusterName = "c".parse().unwrap();
        for (key, is_one) in [
            ("agent/n1", true),
            ("agent/n*", true),
            ("state/main", true),
            ("agent", false),
            ("king/a", false),
            ("state/a*", false),
        ] {
            let read = identity_of_key("identity", key, &cluster);
            assert_eq!(read.is_ok_and(|identity| identity.key() == key), is_one, "{key}");
        }
    }
}
