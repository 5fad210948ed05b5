//! Identities beside the API: what the crates that know neither services nor messages say of both.
#![allow(clippy::unwrap_used, reason = "tests")]

use godel_identity::needs::NEEDS;
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
