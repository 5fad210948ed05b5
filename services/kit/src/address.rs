//! Addresses of services: `https://host:port` with TLS, `http://host:port` in plain text, or `unix:/path` for a unix socket. `host:port` alone is
//! taken for what the process speaks.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use http::Uri;
use tonic::Status;

use crate::config::ServerConfig;

/// Why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// It is no URL.
    #[error("`{0}` is not an address such as https://127.0.0.1:7700")]
    Malformed(String),
    /// It asks for another protocol.
    #[error("`{address}`: {scheme}:// is not supported; use https://{rest}, or http://{rest} for plain text")]
    Scheme {
        /// What was given.
        address: String,
        /// Its scheme.
        scheme: String,
        /// What follows the scheme.
        rest: String,
    },
    /// Several addresses that cannot be those of one cluster.
    #[error("`{list}`: {why}")]
    List {
        /// What was given.
        list: String,
        /// What is wrong.
        why: String,
    },
    /// It asks for TLS, and the process has no roots to judge the server by.
    #[error(
        "`{0}` speaks TLS, and this process knows no roots of the cluster: take them with `godel context login` on the machine of state, or use \
         http:// where plain text is served"
    )]
    NoRoots(String),
    /// It asks for plain text, and the process speaks TLS.
    #[error(
        "`{0}` is plain text, and this process speaks TLS only: use https://, or accept the risk with `--insecure`"
    )]
    PlainText(String),
    /// Others are told plain text, and the server speaks TLS only.
    #[error("`advertise`: `{0}` is plain text, and the server speaks TLS only; use https://")]
    AdvertisedPlainText(String),
    /// Others are told TLS, and the server does not speak it.
    #[error("`advertise`: `{0}` says TLS, which the server does not speak; use http://")]
    AdvertisedTls(String),
    /// Others could reach a server at it, and nobody has said that they may.
    #[error(
        "{0} can be reached from other machines, and the server speaks plain text and does not ask who calls: listen \
         on an address of this machine alone, as 127.0.0.1, turn on TLS, or accept the risk with `--insecure`"
    )]
    Exposed(SocketAddr),
    /// Clients of YARN on other machines could reach it, and nobody has said that they are believed.
    #[error(
        "{0} can be reached from other machines, and clients of YARN are believed whoever they say they are: listen on an \
         address of this machine alone, as 127.0.0.1, or accept the risk with `--set yarn.simple_auth=true`"
    )]
    Believing(SocketAddr),
    /// Masters of YARN on other machines could reach it, and nobody has said that they may.
    #[error(
        "{0} can be reached from other machines, and what masters of YARN say there is not encrypted: listen on an address of this \
         machine alone, as 127.0.0.1, or accept the risk with `--set agent.yarn.simple_auth=true`"
    )]
    Masters(SocketAddr),
    /// Nobody else can reach a server at it.
    #[error(
        "a server that listens on every interface ({0}) needs `advertise`, the address at which others \
         reach it, for example `--set PART.server.advertise=https://10.0.0.7:7700` (`http://` if it speaks plain text)"
    )]
    Unspecified(SocketAddr),
    /// The host name was asked for, and there is none.
    #[error("the name of this host cannot be read: {0}; set `advertise` to an address of this machine")]
    HostName(String),
    /// The same, said by the setting itself.
    #[error(
        "`advertise`: other machines cannot reach `{0}`; use an address of this machine, such as \
         https://10.0.0.7:7700 (`http://` if it speaks plain text)"
    )]
    Advertised(String),
}

impl BadAddress {
    /// Of a list with what nobody lists.
    fn list(text: &str, why: &str) -> Self {
        Self::List { list: text.to_owned(), why: why.to_owned() }
    }
}

impl From<BadAddress> for Status {
    fn from(bad: BadAddress) -> Self {
        Self::internal(bad.to_string())
    }
}

/// Where a server is, and what is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// Plain text over TCP.
    PlainText(Uri),
    /// TLS over TCP.
    Tls(Uri),
    /// Plain text over a unix socket.
    Unix(PathBuf),
}

impl ServerAddress {
    /// Reads an address. One without a scheme is taken for TLS if `speaks_tls`.
    ///
    /// # Errors
    /// It is malformed, or has another scheme.
    pub fn parse(address: &str, speaks_tls: bool) -> Result<Self, BadAddress> {
        let malformed = || BadAddress::Malformed(address.to_owned());
        if let Some(path) = address.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(malformed()) };
        }
        let (scheme, rest) = match address.split_once("://") {
            None => (if speaks_tls { "https" } else { "http" }.to_owned(), address),
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        };
        let is_tls = match scheme.as_str() {
            "http" => false,
            "https" => true,
            _ => {
                let (address, rest) = (address.to_owned(), rest.to_owned());
                return Err(BadAddress::Scheme { address, scheme, rest });
            }
        };
        let uri: Uri = format!("{scheme}://{rest}").parse().map_err(|_| malformed())?;
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let has_port = uri.authority().is_some_and(|authority| {
            let rest = authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, rest)| rest);
            // A port that is there must be one.
            !rest.contains(':') || authority.port_u16().is_some()
        });
        match (has_host && has_port, is_tls) {
            (false, _) => Err(malformed()),
            (true, false) => Ok(Self::PlainText(uri)),
            (true, true) => Ok(Self::Tls(uri)),
        }
    }

    /// Whether only programs on the same machine can reach it: a unix socket, or an address of the loopback. A name other than `localhost` counts as
    /// reachable, whatever it resolves to.
    pub fn is_local(&self) -> bool {
        let host = match self {
            Self::Unix(_) => return true,
            Self::PlainText(uri) | Self::Tls(uri) => uri.host().unwrap_or_default().trim_matches(['[', ']']),
        };
        match host.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        }
    }
}

/// Most addresses in one list: etcds have seven members at most, and states no more.
const N_LISTED_MAX: usize = 16;

/// The addresses in a list with commas, as they are written.
pub fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

/// Reads the addresses of the states of one cluster: one, or several with commas between them. One without a scheme is taken for TLS if `speaks_tls`.
///
/// # Errors
/// One of them is malformed or stands there twice, there are more than sixteen, or some speak TLS and others do not.
pub fn parse_list(text: &str, speaks_tls: bool) -> Result<Vec<ServerAddress>, BadAddress> {
    let parsed = listed(text).map(|address| ServerAddress::parse(address, speaks_tls));
    let addresses = parsed.collect::<Result<Vec<_>, _>>()?;
    let kind = std::mem::discriminant::<ServerAddress>;
    if addresses.len() > N_LISTED_MAX {
        return Err(BadAddress::list(text, "at most 16 addresses can be given"));
    }
    if addresses.windows(2).any(|pair| kind(&pair[0]) != kind(&pair[1])) {
        return Err(BadAddress::list(text, "either all addresses are https://, or all are http://"));
    }
    if addresses.iter().enumerate().any(|(idx, address)| addresses[..idx].contains(address)) {
        return Err(BadAddress::list(text, "an address stands there twice"));
    }
    Ok(addresses)
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

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Plain text alone.
    PlainText,
    /// TLS, and plain text, which not everybody has left yet.
    Both,
    /// TLS alone.
    Tls,
}

/// The URL that a server which listens on `local` tells others: with TLS, unless it serves plain text too.
///
/// # Errors
/// `advertise` cannot be used, or there is none and `local` is no address of one machine.
pub fn advertised(config: &ServerConfig, speech: Speech, local: SocketAddr) -> Result<String, BadAddress> {
    let tls_only = speech == Speech::Tls;
    let scheme = if tls_only { "https" } else { "http" };
    if config.advertise.is_empty() {
        return if local.ip().is_unspecified() {
            Err(BadAddress::Unspecified(local))
        } else {
            Ok(format!("{scheme}://{local}"))
        };
    }
    if config.advertise == HOST_NAME {
        return Ok(format!("{scheme}://{}:{}", host_name()?, local.port()));
    }
    let uri = match ServerAddress::parse(&config.advertise, tls_only)? {
        ServerAddress::PlainText(_) if tls_only => {
            return Err(BadAddress::AdvertisedPlainText(config.advertise.clone()));
        }
        ServerAddress::Tls(_) if speech == Speech::PlainText => {
            return Err(BadAddress::AdvertisedTls(config.advertise.clone()));
        }
        ServerAddress::Unix(_) => return Err(BadAddress::Advertised(config.advertise.clone())),
        ServerAddress::PlainText(uri) | ServerAddress::Tls(uri) => uri,
    };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_unspecified = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if is_unspecified {
        Err(BadAddress::Advertised(config.advertise.clone()))
    } else {
        Ok(config.advertise.clone())
    }
}

/// DNS names and addresses by which people's tools know a server: those that it tells others and listens on, this machine's, and `more`.
pub fn server_hosts(advertised: &str, local: SocketAddr, more: &[String]) -> Vec<String> {
    let advertised = if advertised == HOST_NAME {
        host_name().ok()
    } else {
        let uri = advertised.parse::<Uri>().ok();
        uri.as_ref().and_then(Uri::host).map(|host| host.trim_matches(['[', ']']).to_owned())
    };
    let listening = (!local.ip().is_unspecified()).then(|| local.ip().to_canonical().to_string());
    let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    for host in advertised.into_iter().chain(listening).chain(more.iter().cloned()) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_is_spoken_there() {
        let plain = |uri: &str| ServerAddress::PlainText(uri.parse().unwrap());
        let tls = |uri: &str| ServerAddress::Tls(uri.parse().unwrap());
        let unix = |path: &str| ServerAddress::Unix(path.into());
        for (good, expected) in [
            ("http://127.0.0.1:7700", plain("http://127.0.0.1:7700")),
            ("127.0.0.1:7700", plain("http://127.0.0.1:7700")),
            ("state:7700", plain("http://state:7700")),
            ("HTTP://h:1/", plain("http://h:1/")),
            ("[::1]:7700", plain("http://[::1]:7700")),
            ("http://h", plain("http://h")),
            ("https://h:7700", tls("https://h:7700")),
            ("HTTPS://[::1]:7700", tls("https://[::1]:7700")),
            ("unix:/run/godel.sock", unix("/run/godel.sock")),
            ("unix:///run/godel.sock", unix("/run/godel.sock")),
        ] {
            assert_eq!(ServerAddress::parse(good, false), Ok(expected), "{good}");
        }
        assert_eq!(ServerAddress::parse("state:7700", true), Ok(tls("https://state:7700")));
        assert_eq!(ServerAddress::parse("http://state:7700", true), Ok(plain("http://state:7700")));
        let malformed =
            ["", "http://", "https://:7700", "a b:1", "h:port", "http://h:99999", "unix:", "unix:godel.sock"];
        for bad in malformed {
            let refused = ServerAddress::parse(bad, false);
            assert_eq!(refused, Err(BadAddress::Malformed(bad.to_owned())), "{bad}");
        }
        for foreign in ["grpc://h:7700", "tcp://h"] {
            let refused = ServerAddress::parse(foreign, true).unwrap_err();
            assert!(matches!(refused, BadAddress::Scheme { .. }), "{foreign}");
            assert!(refused.to_string().contains("use https://h"), "{refused}");
        }
    }

    #[test]
    fn several_addresses_are_of_one_cluster() {
        let tls = |uri: &str| ServerAddress::Tls(uri.parse().unwrap());
        assert_eq!(parse_list("a:1", true), Ok(vec![tls("https://a:1")]));
        let both = Ok(vec![tls("https://a:1"), tls("https://b:2")]);
        assert_eq!(parse_list("https://a:1,https://b:2", false), both);
        assert_eq!(parse_list("https://a:1, b:2", true), both);
        let many: Vec<String> = (0..17).map(|port| format!("a:{port}")).collect();
        assert!(parse_list(&many[..16].join(","), true).is_ok());
        for (bad, why) in [
            ("https://a:1,http://b:2", "all"),
            ("https://a:1,unix:/b", "all"),
            ("http://a:1,b:2,a:1", "twice"),
            (many.join(",").as_str(), "at most 16"),
            ("http://a:1,", "is not an address"),
            (",", "is not an address"),
        ] {
            let refused = parse_list(bad, false).unwrap_err().to_string();
            assert!(refused.contains(why), "{bad}: {refused}");
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
            advertised(&config, Speech::PlainText, local.parse().unwrap())
        };
        assert_eq!(told("", "127.0.0.1:7700").unwrap(), "http://127.0.0.1:7700");
        assert_eq!(told("http://state:7700", "0.0.0.0:7700").unwrap(), "http://state:7700");
        let named = format!("http://{}:7700", host_name().unwrap());
        assert_eq!(told(HOST_NAME, "0.0.0.0:7700").unwrap(), named);
        assert!(matches!(told("", "0.0.0.0:7700"), Err(BadAddress::Unspecified(_))));
        assert!(matches!(told("", "[::]:7700"), Err(BadAddress::Unspecified(_))));
        // The example is accepted, whatever the server speaks.
        let refused = told("", "0.0.0.0:7700").unwrap_err().to_string();
        let example = refused.split("advertise=").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
        for (speech, scheme) in [(Speech::Tls, "https"), (Speech::PlainText, "http")] {
            let advertise = example.replace("https", scheme);
            let config = ServerConfig { advertise: advertise.clone(), ..ServerConfig::default() };
            let local = "0.0.0.0:7700".parse().unwrap();
            assert_eq!(advertised(&config, speech, local), Ok(advertise));
        }
        for bad in ["http://0.0.0.0:7700", "0.0.0.0:1", "http://[::]:7700"] {
            assert!(matches!(told(bad, "127.0.0.1:7700"), Err(BadAddress::Advertised(_))), "{bad}");
        }
        assert!(matches!(told("grpc://state:7700", "127.0.0.1:7700"), Err(BadAddress::Scheme { .. })));
        assert!(matches!(told("unix:/run/godel.sock", "127.0.0.1:7700"), Err(BadAddress::Advertised(_))));
    }
}
