//! DNS names and addresses that a service's leaf carries for people's tools.

use std::net::IpAddr;

use godel_pki::signer::ServerNames;
use godel_wire::BadField;

/// Most names and addresses of one leaf.
const N_HOSTS_MAX: usize = 32;
/// Longest DNS name, and longest part of one, bytes.
const DNS_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;

/// Tells addresses from names.
///
/// # Errors
/// One is neither, or there are too many.
pub(crate) fn server_names(hosts: &[String]) -> Result<ServerNames, BadField> {
    if hosts.len() > N_HOSTS_MAX {
        return Err(BadField::new(
            "hosts",
            format!("{} names and addresses; at most {N_HOSTS_MAX}", hosts.len()),
        ));
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
}
