//! `godel history`: flags.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use godel_base::duration;

/// `godel history`.
#[derive(Clone, Debug, ClapArgs)]
pub struct HistoryArgs {
    /// Only this namespace.
    #[arg(long, short = 'n')]
    pub namespace: Option<String>,
    /// Only units of this owner.
    #[arg(long, default_value = "")]
    pub owner: String,
    /// Only units of this queue and the queues below it.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub queue: String,
    /// Only units that ended so: completed, failed or cancelled.
    #[arg(long, value_name = "PHASE")]
    pub phase: Option<String>,
    /// Only units that ended within this time, as `24h` or `7d`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_whole)]
    pub since: Option<Duration>,
    /// Maximum number of units.
    #[arg(long, default_value_t = 1_000)]
    pub limit: usize,
    /// Add up all units of one owner, or of one queue.
    #[arg(long, value_enum)]
    pub sum: Option<HistoryKey>,
}

/// What ended units are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HistoryKey {
    /// One row for each owner.
    Owner,
    /// One row for each queue.
    Queue,
}
