//! The YARN adapter of a run: a process of its own, whose faces listen on free ports.

use std::{net::SocketAddr, time::Instant};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
};
use tokio::time::sleep;

use super::master;
use crate::{
    cluster::{self, Layout, POLL, READY_TIMEOUT},
    processes::BenchProcesses,
};

/// Name of its process, and of the lease under which it writes.
pub(super) const NAME: &str = "yarn";
/// What it has to log, so that its ports are known.
const FILTER: &str = "warn,godel_yarn::service=info";
const FREE: &str = "127.0.0.1:0";

/// Where it listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Faces {
    /// For clients.
    pub(super) client: SocketAddr,
    /// For masters.
    pub(super) master: SocketAddr,
}

impl Faces {
    /// Starts the adapter, and waits until it leads.
    pub(super) async fn start(
        processes: &mut BenchProcesses,
        layout: &Layout,
        client: &Client,
    ) -> Result<Self, Failure> {
        let mut args: Vec<String> =
            ["serve", "yarn", "--address", client.address()].map(str::to_owned).into();
        for face in ["client", "master", "admin", "rest"] {
            args.extend(["--set".to_owned(), format!("yarn.{face}_address={FREE}")]);
        }
        let log = cluster::serve_logging(processes, NAME, args, &layout.set, FILTER).await?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            processes.check()?;
            let faces = std::fs::read_to_string(&log).ok().as_deref().and_then(Self::read);
            let why = match faces {
                Some(faces) => match leads(faces).await {
                    Ok(()) => return Ok(faces),
                    Err(failure) => failure.to_string(),
                },
                None => "it has not said where it listens".to_owned(),
            };
            if Instant::now() > deadline {
                let text = format!("the adapter does not lead after {} s: {why}", READY_TIMEOUT.as_secs());
                return Err(Failure::new(Code::Timeout, text));
            }
            sleep(POLL).await;
        }
    }

    /// Finds the addresses in a log.
    fn read(log: &str) -> Option<Self> {
        let of = |name: &str| {
            let said = log.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            said?.parse().ok()
        };
        Some(Self { client: of("client")?, master: of("master")? })
    }
}

/// A standby gives no ids.
async fn leads(faces: Faces) -> Result<(), Failure> {
    let mut client = master::client_of(faces.client).await?;
    master::new_application(&mut client).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_in_the_log() {
        let log = "2026-01-01T00:00:00Z INFO godel_yarn::service: the faces for clients of YARN listen \
                   client=127.0.0.1:4001 master=127.0.0.1:4002 admin=127.0.0.1:4003 rest=127.0.0.1:4004\n";
        let expected = Faces {
            client: SocketAddr::from(([127, 0, 0, 1], 4001)),
            master: SocketAddr::from(([127, 0, 0, 1], 4002)),
        };
        assert_eq!(Faces::read(log), Some(expected));
        assert_eq!(Faces::read("WARN something else"), None);
    }
}
