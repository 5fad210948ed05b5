//! DNS names and addresses that a service's leaf carries for people's tools.

use std::net::IpAddr;

use godel_identity::names::Role;
use godel_pki::signer::ServerNames;
use godel_wire::BadField;

/// Most names and addresses of state's leaf, with those of the configuration.
const N_OWN_HOSTS_MAX: usize = 32;
/// Most names and addresses of another leaf.
const N_HOSTS_MAX: usize = 16;
/// Longest DNS name, and longest part of one, bytes.
const DNS_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;
/// The name of the loopback, which is every service's.
const LOCALHOST: &str = "localhost";

/// What state's own leaf carries.
///
/// # Errors
/// One is neither a name nor an address, or there are too many.
pub(crate) fn server_names(hosts: &[String]) -> Result<ServerNames, BadField> {
    told_apart(hosts, N_OWN_HOSTS_MAX)
}

/// What the leaf of a process with that role carries, if it asks for these `hosts`; `own` is what state's leaf carries. What is state's is left out
/// of the leaves of others, which may run on its machine, the loopback excepted: a tool that knows state by its name or address would take such a leaf
/// for state's.
///
/// # Errors
/// One is neither a name nor an address, there are too many, or it is an agent, which is no server.
pub(super) fn names_of_leaf(
    role: Role,
    hosts: &[String],
    own: &ServerNames,
) -> Result<ServerNames, BadField> {
    if !hosts.is_empty() && !role.is_server() {
        let why = "an agent is no server: its leaf has no DNS names and addresses; leave them out";
        return Err(BadField::new("hosts", why));
    }
    let mut names = told_apart(hosts, N_HOSTS_MAX)?;
    if role != Role::State {
        names.addresses.retain(|address| {
            let address = address.to_canonical();
            address.is_loopback() || !own.addresses.iter().any(|own| own.to_canonical() == address)
        });
        names.dns.retain(|name| {
            name.eq_ignore_ascii_case(LOCALHOST) || !own.dns.iter().any(|own| own.eq_ignore_ascii_case(name))
        });
    }
    Ok(names)
}

/// Tells addresses from names.
fn told_apart(hosts: &[String], n_max: usize) -> Result<ServerNames, BadField> {
    if hosts.len() > n_max {
        return Err(BadField::new("hosts", format!("{} names and addresses; at most {n_max}", hosts.len())));
    }
    let mut names = ServerNames::default();
    for (idx, host) in hosts.iter().enumerate() {
        if let Ok(address) = host.parse::<IpAddr>() {
            names.addresses.push(address);
        } else if is_dns_name(host) {
            names.dns.push(host.clone());
        } else {
            let why = "must be a DNS name or an address, without scheme and port";
            return Err(BadField::new(format!("hosts[{idx}]"), why));
        }
    }
    Ok(names)
}

fn is_dns_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_LEN_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // One that ends with a number would be taken for an address.
    let ends_with_number =
        host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    host.len() <= DNS_LEN_MAX && host.split('.').all(is_label) && !ends_with_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_told_apart() {
        let hosts =
            ["state.example.com", "state", "10.0.0.1", "::1", "xn--bcher-kva.example"].map(str::to_owned);
        let names = server_names(&hosts).unwrap();
        assert_eq!(names.dns, ["state.example.com", "state", "xn--bcher-kva.example"]);
        assert_eq!(names.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        for bad in [
            "",
            "a..b",
            ".a",
            "a.",
            "*.a",
            "http://a",
            "a:7700",
            "-a",
            "a-",
            "a b",
            "10.0.0.300",
            "1",
            "ä.example",
        ] {
            let refused = server_names(&["state".to_owned(), bad.to_owned()]).unwrap_err();
            assert_eq!(refused.path, "hosts[1]", "{bad}");
        }
        assert!(server_names(&[format!("{}.a", "a".repeat(64))]).is_err());
        assert!(server_names(&vec!["a".to_owned(); 33]).is_err());
    }

    #[test]
    fn no_other_service_passes_for_state() {
        let own = ["localhost", "127.0.0.1", "::1", "state.example.com", "10.0.0.7", "2001:db8::1"];
        let own = server_names(&own.map(str::to_owned)).unwrap();
        let n_of = |names: &ServerNames| names.dns.len() + names.addresses.len();
        let names = |role, host: &str| names_of_leaf(role, &["binder-1".to_owned(), host.to_owned()], &own);
        for host in ["state.example.com", "State.Example.COM", "10.0.0.7", "::ffff:10.0.0.7", "2001:DB8:0::1"]
        {
            let left = names(Role::Binder, host).unwrap();
            assert_eq!(
                (left.dns.as_slice(), left.addresses.len()),
                (&["binder-1".to_owned()][..], 0),
                "{host}"
            );
            assert_eq!(n_of(&names(Role::State, host).unwrap()), 2, "{host}");
        }
        for host in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.0.0.9",
            "::1",
            "::ffff:127.0.0.1",
            "10.0.0.8",
            "example.com",
        ] {
            assert_eq!(n_of(&names(Role::Binder, host).unwrap()), 2, "{host}");
        }
        assert!(names_of_leaf(Role::Agent, &["n1".to_owned()], &own).is_err());
        assert!(names_of_leaf(Role::Agent, &[], &own).is_ok());
        let many = |n| names_of_leaf(Role::Binder, &vec!["a".to_owned(); n], &own);
        assert!(many(16).is_ok() && many(17).unwrap_err().path == "hosts");
    }
}
