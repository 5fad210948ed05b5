//! `godel backup`: verbs and flags.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args as ClapArgs, Subcommand};

use super::EtcdArgs;

const EXAMPLES: &str = "Try:
  godel backup create /backup/godel --keep 30       every hour: an increment, or a full backup where none is to be continued
  godel backup create /backup/godel --full          every night
  godel backup list /backup/godel
  godel backup verify /backup/godel
  godel backup restore /backup/godel --data-dir /var/lib/godel/restored/state";

/// `godel backup`.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Backup {
    /// Back up the running state into a directory: what was committed since its last backup, or everything. State goes on
    /// meanwhile.
    Create(BackupCreate),
    /// List the backups of a directory.
    List {
        /// Directory of the backups.
        dir: PathBuf,
    },
    /// Read every byte of the backups of a directory, rebuild the state from them and read its records; changes nothing. Exit
    /// code 1 if anything is damaged, missing or unreadable.
    Verify {
        /// Directory of the backups.
        dir: PathBuf,
    },
    /// Create a store from the backups of a directory. No process needs to run.
    Restore(BackupRestore),
}

/// `godel backup create`.
#[derive(Clone, Debug, ClapArgs)]
pub struct BackupCreate {
    /// Directory of the backups; created if absent.
    pub dir: PathBuf,
    /// Back up everything, not only what was committed since the last backup.
    #[arg(long)]
    pub full: bool,
    /// Afterwards delete all but the N newest backups and what these rest on.
    #[arg(long, value_name = "N")]
    pub keep: Option<NonZeroUsize>,
}

/// `godel backup restore`.
#[derive(Clone, Debug, ClapArgs)]
pub struct BackupRestore {
    /// Directory of the backups.
    pub dir: PathBuf,
    /// Restore this revision instead of the newest one. `godel backup list` and `godel backup verify` show which there are.
    #[arg(long, value_name = "REVISION")]
    pub at: Option<u64>,
    /// Directory of the new store; absent or empty.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The etcd that the new store is made in; without endpoints it is made in the directory.
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// Also restore unreadable records, to remove them with `state repair --remove`.
    #[arg(long)]
    pub keep_unreadable: bool,
}
