//! Principals, as state records them and tells members of them.

use godel_domain::{names::NAME_LEN_MAX, records::StoredKey};
use godel_identity::{
    people::PrincipalRecord,
    permission::{Principal, UnknownPersonRole},
};
use godel_proto::v1;

use crate::{
    BadField,
    from_proto::check::sense::{distinct, required, words},
};

pub(super) fn key(pb: &v1::Principal) -> Result<StoredKey, BadField> {
    if pb.name.is_empty() {
        return Err(BadField::new("name", "missing"));
    }
    Ok(StoredKey::Name(pb.name.clone()))
}

pub(super) fn check(pb: &v1::Principal) -> Result<(), BadField> {
    read(pb.clone()).map(drop)
}

/// Reads a principal.
///
/// # Errors
/// Its name is missing, its role is unknown, or a word of it is missing, too long or there twice.
pub fn read(pb: v1::Principal) -> Result<PrincipalRecord, BadField> {
    let v1::Principal {
        name,
        role,
        groups,
        namespaces,
        queues,
        default_namespace,
        created_ms,
        tokens_refused_before_ms,
    } = pb;
    required("name", &name)?;
    let role = role.parse().map_err(|bad: UnknownPersonRole| BadField::new("role", bad.to_string()))?;
    for (path, list) in [("groups", &groups), ("namespaces", &namespaces), ("queues", &queues)] {
        for (idx, word) in list.iter().enumerate() {
            required(&format!("{path}[{idx}]"), word)?;
        }
        distinct(path, list.iter())?;
    }
    words("default_namespace", &default_namespace, NAME_LEN_MAX)?;
    Ok(PrincipalRecord {
        principal: Principal { name, role, groups, namespaces, queues, default_namespace },
        created_ms: time("created_ms", created_ms)?,
        refused_before_ms: time("tokens_refused_before_ms", tokens_refused_before_ms)?,
    })
}

/// Writes a principal.
pub fn write(record: &PrincipalRecord) -> v1::Principal {
    let PrincipalRecord { principal, created_ms, refused_before_ms } = record;
    let Principal { name, role, groups, namespaces, queues, default_namespace } = principal;
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    v1::Principal {
        name: name.clone(),
        role: role.to_string(),
        groups: groups.clone(),
        namespaces: namespaces.clone(),
        queues: queues.clone(),
        default_namespace: default_namespace.clone(),
        created_ms: signed(*created_ms),
        tokens_refused_before_ms: signed(*refused_before_ms),
    }
}

fn time(path: &str, ms: i64) -> Result<u64, BadField> {
    u64::try_from(ms).map_err(|_| BadField::new(path, format!("{ms} is before 1970")))
}

#[cfg(test)]
mod tests {
    use godel_identity::permission::PersonRole;

    use super::*;

    fn ann() -> PrincipalRecord {
        PrincipalRecord {
            principal: Principal {
                name: "ann".to_owned(),
                role: PersonRole::Operator,
                groups: vec!["g".to_owned()],
                namespaces: vec!["n".to_owned()],
                queues: vec!["q".to_owned()],
                default_namespace: "d".to_owned(),
            },
            created_ms: 1,
            refused_before_ms: 2,
        }
    }

    #[test]
    fn a_principal_comes_back() {
        assert_eq!(read(write(&ann())), Ok(ann()));
        let mut limits = ann();
        (limits.created_ms, limits.refused_before_ms) = (0, i64::MAX.unsigned_abs());
        assert_eq!(read(write(&limits)), Ok(limits));
    }

    #[test]
    fn what_no_principal_has_is_refused() {
        type Change = fn(&mut v1::Principal);
        let changes: [(Change, &str); 7] = [
            (|pb| pb.name.clear(), "name"),
            (|pb| "root".clone_into(&mut pb.role), "role"),
            (|pb| pb.groups.push(String::new()), "groups[1]"),
            (|pb| pb.queues.push("q".to_owned()), "queues[1]"),
            (|pb| pb.default_namespace = "n".repeat(NAME_LEN_MAX + 1), "default_namespace"),
            (|pb| pb.created_ms = -1, "created_ms"),
            (|pb| pb.tokens_refused_before_ms = -1, "tokens_refused_before_ms"),
        ];
        for (change, path) in changes {
            let mut pb = write(&ann());
            change(&mut pb);
            assert_eq!(read(pb.clone()).unwrap_err().path, path);
            assert_eq!(check(&pb).unwrap_err().path, path);
        }
    }
}
