//! The engine of the store of a run: sled, or an etcd on this machine that lives as long as the run.

use std::{path::Path, time::Duration};

use clap::{Args as ClapArgs, ValueEnum};
use godel_client::exit::{Code, Failure};
use godel_etcd::{
    Client, ClientConfig,
    process::{EtcdProcesses, NotStarted, ProcessConfig},
};

/// The quota of each member's database: what etcd recommends at most, so that no run ends for want of room.
pub(super) const QUOTA_BYTES: u64 = 8 << 30;
/// As long as state waits for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The engine of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EngineFlag {
    /// In files of state.
    Sled,
    /// In an etcd that is started for each run.
    Etcd,
}

/// Flags of benchmarks whose store may be in an etcd.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(super) struct EngineFlags {
    /// The engine of the store.
    #[arg(long, value_enum, default_value = "sled")]
    engine: EngineFlag,
    /// Members of the etcd, with `--engine etcd`.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7), requires = "engine")]
    members: u8,
}

impl EngineFlags {
    pub(super) fn engine(self) -> StoreEngine {
        match self.engine {
            EngineFlag::Sled => StoreEngine::Sled,
            EngineFlag::Etcd => StoreEngine::Etcd { n_members: self.members.into() },
        }
    }
}

/// Where a run keeps its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoreEngine {
    #[default]
    Sled,
    Etcd {
        n_members: usize,
    },
}

impl StoreEngine {
    /// How reports name it.
    pub(super) fn name(self) -> String {
        match self {
            Self::Sled => "sled".to_owned(),
            Self::Etcd { n_members: 1 } => "etcd".to_owned(),
            Self::Etcd { n_members } => format!("etcd, {n_members} members"),
        }
    }
}

/// The etcd of a run. Its members die with this value.
pub(super) struct BenchEtcd(EtcdProcesses);

impl BenchEtcd {
    /// Starts so many members with their data in `dir`.
    pub(super) async fn start(dir: &Path, n_members: usize) -> Result<Self, Failure> {
        let dir = dir.to_owned();
        let config = ProcessConfig { n_members, quota_bytes: Some(QUOTA_BYTES), ..ProcessConfig::new(dir) };
        Ok(Self(blocking(move || EtcdProcesses::start(config)).await?))
    }

    /// Starts members that were killed, with the data that they had.
    pub(super) async fn restart(self) -> Result<Self, Failure> {
        let Self(mut members) = self;
        blocking(move || {
            for member in 0..members.endpoints().len() {
                if members.pid(member).is_none() {
                    members.restart(member)?;
                }
            }
            members.wait_until_ready()?;
            Ok(Self(members))
        })
        .await
    }

    /// SIGKILL for all members, and their ends.
    pub(super) fn kill(&mut self) {
        for member in 0..self.0.endpoints().len() {
            self.0.kill(member);
        }
    }

    pub(super) fn endpoints(&self) -> Vec<String> {
        self.0.endpoints()
    }

    /// A client as that of state.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        let config =
            ClientConfig { endpoints: self.endpoints(), timeout: CALL_TIMEOUT, tls: None, user: None };
        Client::start(&config).map_err(|error| Failure::chain(Code::Failed, &error))
    }

    /// Names and process ids of the members that run.
    pub(super) fn pids(&self) -> Vec<(String, u32)> {
        let n_members = self.0.endpoints().len();
        let pids =
            (0..n_members).filter_map(|member| Some((member_name(member, n_members), self.0.pid(member)?)));
        pids.collect()
    }
}

fn member_name(member: usize, n_members: usize) -> String {
    if n_members == 1 { "etcd".to_owned() } else { format!("etcd{}", member + 1) }
}

/// Starts take seconds, for which no thread of the runtime may be held.
async fn blocking<T: Send + 'static>(
    start: impl FnOnce() -> Result<T, NotStarted> + Send + 'static,
) -> Result<T, Failure> {
    let started = tokio::task::spawn_blocking(start).await;
    let started = started.map_err(|error| Failure::failed(format!("etcd could not be started: {error}")))?;
    started.map_err(|error| Failure::chain(Code::Failed, &error))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: EngineFlags,
    }

    fn engine(line: &str) -> Option<StoreEngine> {
        let line = Line::try_parse_from(std::iter::once("").chain(line.split_whitespace()));
        line.ok().map(|line| line.flags.engine())
    }

    #[test]
    fn the_store_is_in_files_unless_an_etcd_is_asked_for() {
        assert_eq!(engine(""), Some(StoreEngine::Sled));
        assert_eq!(engine("--engine etcd"), Some(StoreEngine::Etcd { n_members: 1 }));
        let three = engine("--engine etcd --members 3");
        assert_eq!(three, Some(StoreEngine::Etcd { n_members: 3 }));
        assert_eq!(three.map(StoreEngine::name).as_deref(), Some("etcd, 3 members"));
        assert_eq!((engine("--members 3"), engine("--engine etcd --members 0")), (None, None));
    }

    #[test]
    fn members_have_names_of_their_own() {
        assert_eq!((member_name(0, 1).as_str(), member_name(2, 3).as_str()), ("etcd", "etcd3"));
    }
}
