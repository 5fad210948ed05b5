//! Addresses of services: `http://host:port`, or `host:port`. There is no TLS, so `https://` is refused instead of
//! being spoken to in plain text.

use std::net::SocketAddr;

use http::Uri;
use tonic::Status;

use crate::config::ServerConfig;

/// Why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// It is no URL.
    #[error("`{0}` is not an address such as http://127.0.0.1:7700")]
    Malformed(String),
    /// It asks for another protocol.
    #[error("`{address}`: {scheme}:// is not supported, godel has no TLS; use http://{rest}")]
    Scheme {
        /// What was given.
        address: String,
        /// Its scheme.
        scheme: String,
        /// What follows the scheme.
        rest: String,
    },
    /// Others could reach a server at it, and nobody has said that they may.
    #[error(
        "{0} can be reached from other machines, and godel neither encrypts connections nor asks who calls: listen \
         on an address of this machine alone, as 127.0.0.1, or accept the risk with `--insecure`"
    )]
    Exposed(SocketAddr),
    /// Clients of YARN on other machines could reach it, and nobody has said that they are believed.
    #[error(
        "{0} can be reached from other machines, and clients of YARN are believed whoever they say they are: listen on an \
         address of this machine alone, as 127.0.0.1, or accept the risk with `--set yarn.simple_auth=true`"
    )]
    Believing(SocketAddr),
    /// Nobody else can reach a server at it.
    #[error(
        "a server that listens on every interface ({0}) needs `advertise`, the address at which others \
         reach it, for example `--set PART.server.advertise=http://10.0.0.7:7700`"
    )]
    Unspecified(SocketAddr),
    /// The host name was asked for, and there is none.
    #[error("the name of this host cannot be read: {0}; set `advertise` to an address of this machine")]
    HostName(String),
    /// The same, said by the setting itself.
    #[error(
        "`advertise`: other machines cannot reach `{0}`; use an address of this machine, as \
         http://10.0.0.7:7700"
    )]
    Advertised(String),
}

impl From<BadAddress> for Status {
    fn from(bad: BadAddress) -> Self {
        Self::internal(bad.to_string())
    }
}

/// The URL of `address`.
///
/// # Errors
/// It is malformed, or no `http://`.
pub fn url(address: &str) -> Result<Uri, BadAddress> {
    let malformed = || BadAddress::Malformed(address.to_owned());
    let with_scheme = match address.split_once("://") {
        None => format!("http://{address}"),
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => address.to_owned(),
        Some((scheme, rest)) => {
            return Err(BadAddress::Scheme {
                address: address.to_owned(),
                scheme: scheme.to_owned(),
                rest: rest.to_owned(),
            });
        }
    };
    let uri: Uri = with_scheme.parse().map_err(|_| malformed())?;
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    let has_port = uri.authority().is_some_and(|authority| {
        let rest = authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, rest)| rest);
        // A port that is there must be one.
        !rest.contains(':') || authority.port_u16().is_some()
    });
    if has_host && has_port { Ok(uri) } else { Err(malformed()) }
}

/// Returns those of `listens` that other machines can reach.
pub fn reachable(listens: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_reachable = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    listens.iter().filter(is_reachable).copied().collect()
}

/// Those of `listens` that other machines can reach.
///
/// # Errors
/// There are any, and they are not allowed (`insecure` in the configuration).
pub fn exposed(is_allowed: bool, listens: &[SocketAddr]) -> Result<Vec<SocketAddr>, BadAddress> {
    let exposed = reachable(listens);
    match exposed.first() {
        Some(first) if !is_allowed => Err(BadAddress::Exposed(*first)),
        _ => Ok(exposed),
    }
}

/// Value of `advertise` for the name of this host.
pub const HOST_NAME: &str = "host-name";

/// The name of this host, in lower case.
///
/// # Errors
/// The kernel does not tell it.
pub fn host_name() -> Result<String, BadAddress> {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = read.map_err(|error| BadAddress::HostName(error.to_string()))?;
    match name.trim() {
        "" | "(none)" => Err(BadAddress::HostName("it is not set".to_owned())),
        name => Ok(name.to_lowercase()),
    }
}

/// The URL that a server which listens on `local` tells others.
///
/// # Errors
/// `advertise` cannot be used, or there is none and `local` is no address of one machine.
pub fn advertised(config: &ServerConfig, local: SocketAddr) -> Result<String, BadAddress> {
    if config.advertise.is_empty() {
        return if local.ip().is_unspecified() {
            Err(BadAddress::Unspecified(local))
        } else {
            Ok(format!("http://{local}"))
        };
    }
    if config.advertise == HOST_NAME {
        return Ok(format!("http://{}:{}", host_name()?, local.port()));
    }
    let uri = url(&config.advertise)?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_unspecified = host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if is_unspecified {
        Err(BadAddress::Advertised(config.advertise.clone()))
    } else {
        Ok(config.advertise.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_http_or_host_and_port() {
        for good in
            ["http://127.0.0.1:7700", "127.0.0.1:7700", "state:7700", "HTTP://h:1/", "[::1]:7700", "http://h"]
        {
            assert!(url(good).is_ok(), "{good}");
        }
        for bad in ["", "http://", "http://:7700", "a b:1", "h:port", "http://h:99999"] {
            assert_eq!(url(bad), Err(BadAddress::Malformed(bad.to_owned())), "{bad}");
        }
        for foreign in ["https://h:7700", "HTTPS://h:7700", "grpc://h:7700", "tcp://h"] {
            let refused = url(foreign).unwrap_err();
            assert!(matches!(refused, BadAddress::Scheme { .. }), "{foreign}");
            assert!(refused.to_string().contains("use http://h"), "{refused}");
        }
    }

    #[test]
    fn addresses_of_other_machines_need_a_word() {
        let listens =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let own = listens(&["127.0.0.1:7700", "127.200.0.9:0", "[::1]:7700", "[::ffff:127.0.0.1]:1"]);
        assert_eq!(exposed(false, &own), Ok(Vec::new()));
        assert_eq!(exposed(true, &own), Ok(Vec::new()), "nothing to warn of");
        for text in ["0.0.0.0:7700", "10.0.0.7:7700", "[::]:7700", "[::ffff:10.0.0.7]:1", "[fe80::1]:1"] {
            let other = listens(&["127.0.0.1:1", text]);
            assert_eq!(exposed(false, &other), Err(BadAddress::Exposed(other[1])), "{text}");
            assert_eq!(exposed(true, &other), Ok(vec![other[1]]), "{text}");
        }
        let refused = exposed(false, &listens(&["0.0.0.0:7700"])).unwrap_err().to_string();
        assert!(refused.starts_with("0.0.0.0:7700") && refused.contains("--insecure"), "{refused}");
    }

    #[test]
    fn an_address_of_every_machine_is_not_told_to_others() {
        let told = |advertise: &str, local: &str| {
            let config = ServerConfig { advertise: advertise.to_owned(), ..ServerConfig::default() };
            advertised(&config, local.parse().unwrap())
        };
        assert_eq!(told("", "127.0.0.1:7700").unwrap(), "http://127.0.0.1:7700");
        assert_eq!(told("http://state:7700", "0.0.0.0:7700").unwrap(), "http://state:7700");
        let named = format!("http://{}:7700", host_name().unwrap());
        assert_eq!(told(HOST_NAME, "0.0.0.0:7700").unwrap(), named);
        assert!(matches!(told("", "0.0.0.0:7700"), Err(BadAddress::Unspecified(_))));
        assert!(matches!(told("", "[::]:7700"), Err(BadAddress::Unspecified(_))));
        assert!(told("", "0.0.0.0:7700").unwrap_err().to_string().contains("advertise"));
        for bad in ["http://0.0.0.0:7700", "0.0.0.0:1", "http://[::]:7700"] {
            assert!(matches!(told(bad, "127.0.0.1:7700"), Err(BadAddress::Advertised(_))), "{bad}");
        }
        assert!(matches!(told("https://state:7700", "127.0.0.1:7700"), Err(BadAddress::Scheme { .. })));
    }
}
