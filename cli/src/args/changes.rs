//! `godel changes`: flags.

use std::time::Duration;

use clap::Args as ClapArgs;
use godel_base::duration;

/// `godel changes`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ChangesArgs {
    /// Only changes of this principal; `unknown` for calls without a token that proves one.
    #[arg(long, value_name = "PRINCIPAL", default_value = "", hide_default_value = true)]
    pub who: String,
    /// Only changes of this object, by kind, name, or both: `unit/team-a/web`, `team-a`, `node/n1`, `queue`.
    #[arg(long, value_name = "OBJECT", default_value = "", hide_default_value = true)]
    pub object: String,
    /// Only changes within this time, as `1h` or `7d`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_whole)]
    pub since: Option<Duration>,
    /// Only calls that were refused.
    #[arg(long)]
    pub refused: bool,
    /// Maximum number of changes. Default: 100, and with --follow all.
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<usize>,
    /// Show changes as they come, the oldest first, until interrupted.
    #[arg(long, short)]
    pub follow: bool,
}
