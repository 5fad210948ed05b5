//! Identities beside the API: what the crates that know neither services nor messages say of both.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, path::Path};

use godel_identity::{
    needs::NEEDS,
    permission::{CallObject, Permission, PersonRole, Principal, allow},
};
use prost::Message as _;
use prost_types::FileDescriptorSet;

const PACKAGE: &str = "godel.v1";

/// The paths of all RPCs of the API, in order.
fn rpcs() -> Vec<String> {
    let set = FileDescriptorSet::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    let services = set.file.iter().filter(|file| file.package() == PACKAGE).flat_map(|file| &file.service);
    let mut paths: Vec<String> = services
        .flat_map(|service| {
            let path = |method: &str| format!("/{PACKAGE}.{}/{method}", service.name());
            service.method.iter().map(move |method| path(method.name()))
        })
        .collect();
    paths.sort();
    paths
}

#[test]
fn the_table_of_needs_names_the_rpcs_of_the_api() {
    let named: Vec<&str> =
        NEEDS.iter().map(|(path, _)| *path).filter(|path| path.starts_with("/godel.")).collect();
    let rpcs = rpcs();
    assert!(rpcs.len() >= 102, "{} RPCs found", rpcs.len());
    assert_eq!(named, rpcs, "say in core/identity/src/needs.rs what each RPC needs of its caller");
}

/// The columns of a method in the document, by which the next test judges: the least role, and what it is bound to.
fn documented() -> BTreeMap<String, (String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/permissions.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (mut service, mut rows) = (String::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            service = title.to_owned();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", method, least, bound, _, ""] = cells[..]
            && let Some(method) = method.strip_prefix('`')
        {
            let path = format!("/{PACKAGE}.{service}/{}", method.trim_end_matches('`'));
            rows.insert(path, (least.to_owned(), bound.to_owned()));
        }
    }
    rows
}

#[test]
fn every_rpc_judges_every_role_in_own_and_foreign_namespaces_as_documented() {
    let documented = documented();
    let principal = |role| Principal {
        groups: vec!["etl".to_owned()],
        namespaces: vec!["own".to_owned()],
        queues: vec!["batch".to_owned()],
        ..Principal::new("ann", role)
    };
    let object = |namespace, queue, owner| CallObject {
        namespace: Some(namespace),
        queue: Some(queue),
        node: Some("n1"),
        owner: Some(owner),
    };
    let objects = [
        (object("own", "batch.a", "ann"), true, true),
        (object("own", "batch", "etl"), true, false),
        (object("foreign", "batch", "ann"), false, true),
        (object("own", "foreign", "ann"), false, true),
        (object("own", "batch", "bob"), false, false),
    ];
    for path in rpcs() {
        let (least, bound) =
            documented.get(&path).unwrap_or_else(|| panic!("{path} is not in docs/permissions.md"));
        let least = match least.as_str() {
            "none" => Some(PersonRole::Viewer),
            "-" => None,
            role => Some(role.parse().unwrap()),
        };
        for role in PersonRole::ALL {
            for (object, is_own_namespace, is_own) in &objects {
                let has_role = least.is_some_and(|least: PersonRole| role >= least);
                let is_within = match bound.as_str() {
                    "namespace" => role > PersonRole::User || *is_own_namespace,
                    "own applications" => {
                        let is_foreign = object.queue == Some("foreign") || object.owner == Some("bob");
                        role > PersonRole::User || !is_foreign
                    }
                    "itself" => role == PersonRole::Admin || *is_own,
                    _ => true,
                };
                let permission = allow(&principal(role), &path, object);
                let granted = permission == Permission::Granted;
                assert_eq!(granted, has_role && is_within, "{role} {path} {object:?}: {permission:?}");
            }
        }
    }
}
