//! Token files for clients of YARN.

use std::{collections::BTreeSet, net::IpAddr, path::Path, time::Duration};

use godel_client::{client::Client, exit::Failure};
use godel_pki::{private_files, yarn_tokens::said_by};
use godel_proto::v1;
use godel_yarn::{LEASE, PersonTokenFile};

/// How long names of machines are looked up.
const LOOKUP: Duration = Duration::from_secs(10);
/// What an adapter calls the address for clients.
const FACE: &str = "client";

/// Where clients of YARN call: what is `given`, or the leading adapter and those that stand by, as state knows them.
///
/// # Errors
/// No adapter leads, or a name of a machine has no address.
pub(super) async fn services(client: &Client, given: Vec<String>) -> Result<Vec<String>, Failure> {
    let addresses = if given.is_empty() { known_addresses(client).await? } else { given };
    let mut services = BTreeSet::new();
    for address in addresses {
        let (host, port) = split(&address).ok_or_else(|| {
            Failure::usage(format!("`{address}` is no address of an adapter")).hint("give HOST:PORT")
        })?;
        services.insert(format!("{}:{port}", host.to_ascii_lowercase()));
        let looked_up = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host, port))).await;
        let found = looked_up.ok().and_then(Result::ok).ok_or_else(|| {
            Failure::failed(format!("the address of {host} is not known here"))
                .hint("give the address of the adapter, as clients call it: `--yarn-address ADDRESS:PORT`")
        })?;
        services.extend(found.map(|found| format!("{}:{port}", shown_by_java(found.ip()))));
    }
    Ok(services.into_iter().collect())
}

async fn known_addresses(client: &Client) -> Result<Vec<String>, Failure> {
    let members = client.directory().members(LEASE).await.map_err(|status| client.explain(status))?;
    let leader = members.into_iter().find(|member| member.lease == LEASE && !member.holder.is_empty());
    let known = leader.and_then(addresses_of).filter(|addresses| !addresses.is_empty());
    known.ok_or_else(|| {
        Failure::failed("no YARN adapter leads, so nobody knows where clients call")
            .hint("give the address of the adapter: `--yarn-address ADDRESS:PORT`")
    })
}

/// Where clients call the adapter that leads, and those that stand by, which listen on the same port.
fn addresses_of(leader: v1::Member) -> Option<Vec<String>> {
    let v1::Member { address, status, standbys, .. } = leader;
    let face = status?.plain_text_addresses.remove(FACE)?;
    let (host, port) = split(&face)?;
    let is_any = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let own = if is_any { host_of(&address)?.to_owned() } else { host.to_owned() };
    let others = standbys.iter().filter_map(|standby| host_of(&standby.address)).map(str::to_owned);
    Some([own].into_iter().chain(others).map(|host| with_port(&host, port)).collect())
}

/// `host` of `https://host:port`.
fn host_of(address: &str) -> Option<&str> {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest);
    split(authority.split('/').next()?).map(|(host, _)| host)
}

/// Host without brackets, and port.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some((host, port.parse().ok()?))
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// An address as Java writes it: Hadoop's clients compare texts.
fn shown_by_java(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => address.segments().map(|part| format!("{part:x}")).join(":"),
    }
}

/// Writes the file by which clients of YARN call as a principal.
///
/// # Errors
/// The file exists, cannot be written, or state has answered no token for YARN.
pub(super) fn write(
    file: &Path,
    token: &str,
    password: &[u8],
    info: &v1::PersonToken,
    services: Vec<String>,
) -> Result<(), Failure> {
    let old = || Failure::failed("state makes no tokens for YARN: it is of an older version");
    let file_of_token = PersonTokenFile {
        owner: info.principal.clone(),
        issued_ms: info.created_ms,
        ends_ms: info.ends_ms,
        said: said_by(token).map_err(|_| old())?.to_owned(),
        password: password.try_into().map_err(|_| old())?,
        services,
    };
    private_files::create(file, &file_of_token.write())
        .map_err(|error| Failure::chain(godel_client::exit::Code::Failed, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(face: &str) -> v1::Member {
        let standby = |address: &str| v1::Standby { address: address.to_owned(), ..v1::Standby::default() };
        let status = v1::MemberStatus {
            plain_text_addresses: [(FACE.to_owned(), face.to_owned())].into(),
            ..v1::MemberStatus::default()
        };
        v1::Member {
            address: "https://rm1:7704".to_owned(),
            status: Some(status),
            standbys: vec![standby("https://rm2:7704"), standby("https://[fd00::2]:7704")],
            ..v1::Member::default()
        }
    }

    #[test]
    fn adapters_are_called_where_they_listen_and_else_where_others_reach_them() {
        let of = |face| addresses_of(leader(face)).unwrap();
        assert_eq!(of("0.0.0.0:8032"), ["rm1:8032", "rm2:8032", "[fd00::2]:8032"]);
        assert_eq!(of("10.0.0.1:8032")[0], "10.0.0.1:8032");
        assert_eq!(of("[::]:8032")[0], "rm1:8032");
        assert_eq!(addresses_of(v1::Member::default()), None);
    }

    #[test]
    fn addresses_are_written_as_java_does() {
        let shown = |text: &str| shown_by_java(text.parse().unwrap());
        assert_eq!((shown("10.0.0.1"), shown("::1")), ("10.0.0.1".to_owned(), "0:0:0:0:0:0:0:1".to_owned()));
        assert_eq!(split("[fd00::2]:1"), Some(("fd00::2", 1)));
        for bad in ["", "rm1", ":1", "rm1:x", "rm1:65536"] {
            assert_eq!(split(bad), None, "{bad}");
        }
    }
}
