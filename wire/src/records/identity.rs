//! What the records of identities must be: roots, what signs, who was issued leaves, join tokens, and tokens of persons. State alone reads what they say, so that
//! only their keys are read here.

use godel_domain::{names::NAME_LEN_MAX, records::StoredKey};
use godel_proto::v1;

use crate::{
    BadField,
    from_proto::check::sense::{distinct, required, some, until, words},
};

/// The only name of records of which there is one.
const NAME: &str = "default";
/// Bytes of a SHA-256, and of an Ed25519 public key.
const HASH_LEN: usize = 32;
/// Longest name of a cluster, bytes.
const CLUSTER_LEN_MAX: usize = 63;
/// Longest certificate of a root, bytes: a few hundred are enough.
const CERTIFICATE_LEN_MAX: usize = 16 << 10;
/// Longest sealed keys, bytes: those of two roots take less than one KiB.
const SEALED_LEN_MAX: usize = 64 << 10;
/// Most roots, and most keys that check persons' tokens: the last one and those that it replaces.
const N_ROOTS_MAX: usize = 8;

pub(super) fn trust_roots_key(pb: &v1::TrustRoots) -> Result<StoredKey, BadField> {
    key("name", &pb.name)
}

pub(super) fn check_trust_roots(pb: &v1::TrustRoots) -> Result<(), BadField> {
    let v1::TrustRoots { name, cluster, roots, person_keys, store_id: _, clears_identities: _ } = pb;
    only(name)?;
    required("cluster", cluster)?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if cluster.len() > CLUSTER_LEN_MAX || !cluster.chars().all(allowed) {
        let why = format!("must be lower-case letters, digits and -, at most {CLUSTER_LEN_MAX} of them");
        return Err(BadField::new("cluster", why));
    }
    some("roots", roots)?;
    some("person_keys", person_keys)?;
    for (path, n) in [("roots", roots.len()), ("person_keys", person_keys.len())] {
        if n > N_ROOTS_MAX {
            return Err(BadField::new(path, format!("{n}; at most {N_ROOTS_MAX}")));
        }
    }
    for (idx, root) in roots.iter().enumerate() {
        let v1::TrustRoot { certificate, created_ms, signs_from_ms, is_leaving: _ } = root;
        bytes(&format!("roots[{idx}].certificate"), certificate, 1, CERTIFICATE_LEN_MAX)?;
        until(&format!("roots[{idx}].signs_from_ms"), *created_ms, *signs_from_ms)?;
    }
    for (idx, person_key) in person_keys.iter().enumerate() {
        let v1::PersonKey { key_id, public_key, ends_ms } = person_key;
        required(&format!("person_keys[{idx}].key_id"), key_id)?;
        bytes(&format!("person_keys[{idx}].public_key"), public_key, HASH_LEN, HASH_LEN)?;
        until(&format!("person_keys[{idx}].ends_ms"), 0, *ends_ms)?;
    }
    distinct("roots", roots.iter().map(|root| &root.certificate))?;
    distinct("person_keys", person_keys.iter().map(|person_key| &person_key.key_id))?;
    if roots.iter().all(|root| root.is_leaving) {
        return Err(BadField::new("roots", "all are leaving: none would sign"));
    }
    if person_keys.iter().all(|key| key.ends_ms != 0) {
        return Err(BadField::new("person_keys", "all end: none would sign"));
    }
    Ok(())
}

pub(super) fn sealed_signer_key(pb: &v1::SealedSigner) -> Result<StoredKey, BadField> {
    key("name", &pb.name)
}

pub(super) fn check_sealed_signer(pb: &v1::SealedSigner) -> Result<(), BadField> {
    let v1::SealedSigner { name, key_id, sealed } = pb;
    let is_hash =
        name.len() == 2 * HASH_LEN && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_hash {
        return Err(BadField::new("name", "must be SHA-256 of the root, in hexadecimal"));
    }
    required("key_id", key_id)?;
    bytes("sealed", sealed, 1, SEALED_LEN_MAX)
}

pub(super) fn identity_key(pb: &v1::IdentityRecord) -> Result<StoredKey, BadField> {
    key("identity", &pb.identity)
}

pub(super) fn check_identity(pb: &v1::IdentityRecord) -> Result<(), BadField> {
    let v1::IdentityRecord {
        identity,
        joined_ms,
        issued_ms,
        ends_ms,
        refused_before_ms,
        is_revoked: _,
        may_join_again: _,
        pool,
        root_fingerprint,
        join_token,
        join_key_sha256,
    } = pb;
    required("identity", identity)?;
    if identity.split('/').filter(|part| !part.is_empty()).count() != 2 {
        return Err(BadField::new("identity", "must be <role>/<name>"));
    }
    // The times of a leaf are whole seconds.
    until("issued_ms", joined_ms - joined_ms % 1_000, *issued_ms)?;
    until("ends_ms", *issued_ms, *ends_ms)?;
    if *refused_before_ms < 0 {
        return Err(BadField::new("refused_before_ms", format!("{refused_before_ms} is before 1970")));
    }
    words("pool", pool, NAME_LEN_MAX)?;
    bytes("root_fingerprint", root_fingerprint, HASH_LEN, HASH_LEN)?;
    words("join_token", join_token, NAME_LEN_MAX)?;
    let key_len = if join_token.is_empty() { 0 } else { HASH_LEN };
    bytes("join_key_sha256", join_key_sha256, key_len, key_len)
}

pub(super) fn join_token_key(pb: &v1::JoinToken) -> Result<StoredKey, BadField> {
    key("token_id", &pb.token_id)
}

pub(super) fn check_join_token(pb: &v1::JoinToken) -> Result<(), BadField> {
    let v1::JoinToken { token_id, secret_sha256, role, names, pool, created_ms, expires_ms, uses_left: _ } =
        pb;
    required("token_id", token_id)?;
    bytes("secret_sha256", secret_sha256, HASH_LEN, HASH_LEN)?;
    required("role", role)?;
    words("names", names, NAME_LEN_MAX)?;
    words("pool", pool, NAME_LEN_MAX)?;
    if *expires_ms <= 0 {
        return Err(BadField::new("expires_ms", "missing"));
    }
    until("expires_ms", *created_ms, *expires_ms)
}

pub(super) fn person_token_key(pb: &v1::PersonToken) -> Result<StoredKey, BadField> {
    key("token_id", &pb.token_id)
}

pub(super) fn check_person_token(pb: &v1::PersonToken) -> Result<(), BadField> {
    let v1::PersonToken { token_id, principal, created_ms, ends_ms, is_revoked: _ } = pb;
    required("token_id", token_id)?;
    required("principal", principal)?;
    if *ends_ms <= 0 {
        return Err(BadField::new("ends_ms", "missing"));
    }
    until("ends_ms", *created_ms, *ends_ms)
}

fn key(path: &str, name: &str) -> Result<StoredKey, BadField> {
    if name.is_empty() {
        return Err(BadField::new(path, "missing"));
    }
    Ok(StoredKey::Name(name.to_owned()))
}

fn only(name: &str) -> Result<(), BadField> {
    if name == NAME {
        return Ok(());
    }
    Err(BadField::new("name", format!("must be `{NAME}`: there is one such record")))
}

fn bytes(path: &str, value: &[u8], least: usize, most: usize) -> Result<(), BadField> {
    if (least..=most).contains(&value.len()) {
        return Ok(());
    }
    let why = if least == most {
        format!("must have {least} bytes")
    } else {
        format!("must have {least} to {most} bytes")
    };
    Err(BadField::new(path, why))
}
