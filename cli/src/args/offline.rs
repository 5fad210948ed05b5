//! Verbs and flags of the audit, of the doctor, of traces, of stores that no process has open, and of the configuration reference.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand};
use godel_base::duration;
use godel_store::StorePlace;

use super::{Layers, positive};

/// `godel audit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Audit {
    /// File of a submitter's acknowledgements (`uid,name,revision`); may be repeated.
    #[arg(long, value_name = "FILE")]
    pub ledger: Vec<PathBuf>,
    /// Exit with 1 instead of 9 if something could not be judged.
    #[arg(long)]
    pub strict: bool,
    /// Time to wait for what cannot be judged yet: units in progress and agents that reconnect.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_whole)]
    pub patience: Duration,
}

/// `godel doctor`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DoctorArgs {
    /// Also check the key and the socket beside this directory, that of the store of a state on this machine (`state.data_dir`).
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Also check the files in this directory, that of the identities of services and agents on this machine (`identity.dir`).
    #[arg(long, value_name = "DIR")]
    pub identity_dir: Option<PathBuf>,
}

/// `godel trace`.
#[derive(Clone, Debug, Subcommand)]
pub enum Trace {
    /// Submit all tasks of a trace at once in file order, and watch until nothing changes any more.
    Replay(ReplayArgs),
}

/// `godel trace replay`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReplayArgs {
    /// CSV `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,…`.
    pub file: PathBuf,
    /// Namespace of the units.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
    /// Let tasks end after their lifetime in the trace divided by this factor. Without it no task ends.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Maximum number of tasks.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Write every acknowledged task to this file: `uid,name,revision`.
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Write the summary to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also count the CPU time of these processes on this machine.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub cpu_pids: Vec<u32>,
    /// Run the audit at the end.
    #[arg(long)]
    pub audit: bool,
    /// Timeout.
    #[arg(long, default_value = "10m", value_parser = duration::parse_whole)]
    pub timeout: Duration,
}

/// `godel state`.
#[derive(Clone, Debug, Subcommand)]
pub enum State {
    /// Verify every checksum of a store, rebuild its state and read its records; changes nothing. Exit code 1 if
    /// anything is damaged, missing or unreadable.
    Check {
        /// Directory of the store.
        dir: PathBuf,
        /// The etcd that it is in.
        #[command(flatten)]
        etcd: EtcdArgs,
    },
    /// Write the state of a store to a new file that only its owner may read. One in an etcd may be served meanwhile.
    Export {
        /// Directory of the store.
        dir: PathBuf,
        /// The file to create; it must not exist.
        file: PathBuf,
        /// The etcd that it is in.
        #[command(flatten)]
        etcd: EtcdArgs,
    },
    /// Create a store from an export.
    Restore {
        /// The export.
        file: PathBuf,
        /// Directory of the new store; absent or empty.
        dir: PathBuf,
        /// Also restore unreadable records, to remove them with `state repair --remove`.
        #[arg(long)]
        keep_unreadable: bool,
    },
    /// Repair a store: remove an unreadable record, or drop what cannot be recovered.
    #[command(group(clap::ArgGroup::new("repair").required(true).args(["remove", "truncate"])))]
    Repair {
        /// Directory of the store.
        dir: PathBuf,
        /// Remove one record, as `--remove queue prod` or `--remove unit 17`. The running units of a removed unit
        /// or node end as lost.
        #[arg(long, num_args = 2, value_names = ["KIND", "KEY"])]
        remove: Vec<String>,
        /// Drop the commits that `state check` reports as missing. The damaged store is kept in `damaged-1`,
        /// `damaged-2` and so on.
        #[arg(long)]
        truncate: bool,
        /// The etcd that it is in.
        #[command(flatten)]
        etcd: EtcdArgs,
    },
    /// Move a store to another place with its id, revisions and history. Its source can be read afterwards, and is never served
    /// again. If this was interrupted, run it again.
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate {
        /// Where the store is: `sled:DIR`, or `etcd:DIR` for one in an etcd, whose state has the directory DIR on this machine.
        #[arg(long, value_name = "PLACE")]
        from: StorePlace,
        /// Where it goes, in the same form; absent or empty.
        #[arg(long, value_name = "PLACE")]
        to: StorePlace,
        /// The etcd of the one that is in one.
        #[command(flatten)]
        etcd: EtcdArgs,
    },
}

const MIGRATE_EXAMPLES: &str = "Try:
  godel state migrate --from sled:/var/lib/godel/state --to sled:/mnt/fast/godel/state
  godel state migrate --from sled:/var/lib/godel/state --to etcd:/var/lib/godel/etcd-state --etcd-endpoints http://10.0.0.7:2379";

/// The etcd that a store is in, if it is in one.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct EtcdArgs {
    /// Endpoints of the etcd that the store is in, as `http://10.0.0.7:2379`, separated by commas; other settings of it are `state.etcd.*`.
    #[arg(long, value_name = "URL,…")]
    pub etcd_endpoints: Option<String>,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel config`.
#[derive(Clone, Debug, Subcommand)]
pub enum Config {
    /// Print every key with its default, environment variable and meaning, as Markdown.
    Reference,
}
