//! Ports of the node that a running unit listens on: one running unit has each of them.

use std::{fmt, str::FromStr};

/// Most ports of one demand.
pub const N_HOST_PORTS_MAX: usize = 64;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// 1 to 65,535.
    pub port: u16,
    /// A port of one protocol has nothing to do with that of the other.
    pub protocol: Protocol,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{}/{protocol}", self.port)
    }
}

/// The text is no port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a port; expected 1 to 65535, as `8080`, `8080/tcp` or `53/udp`")]
pub struct BadPort(String);

impl FromStr for HostPort {
    type Err = BadPort;

    fn from_str(text: &str) -> Result<Self, BadPort> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(BadPort(text.to_owned())),
        };
        let port = port.parse().ok().filter(|port| *port > 0);
        port.map(|port| Self { port, protocol }).ok_or_else(|| BadPort(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_written() {
        for (text, shown) in [("8080", "8080/tcp"), ("8080/tcp", "8080/tcp"), ("53/udp", "53/udp")] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), shown);
        }
        for wrong in ["", "0", "65536", "http", "80/sctp", "80/", "-1"] {
            assert!(wrong.parse::<HostPort>().is_err(), "{wrong}");
        }
    }
}
