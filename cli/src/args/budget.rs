//! Verbs and flags of disruption budgets.

use clap::{Args as ClapArgs, Subcommand};

/// `godel budget`.
#[derive(Clone, Debug, Subcommand)]
pub enum Budget {
    /// Create a disruption budget.
    Create {
        /// A label, as `web`. Each of several gets the same.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// What it has.
        #[command(flatten)]
        settings: BudgetSettings,
    },
    /// List disruption budgets with what they allow now.
    List,
    /// Show one disruption budget.
    Describe {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Change a disruption budget: what is not named stays as it is.
    Set {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// What changes.
        #[command(flatten)]
        settings: BudgetSettings,
        /// Only if the budget has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Delete disruption budgets: nothing is held back by them any more.
    Delete {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Only if the budget has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
}

/// What a disruption budget has.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BudgetSettings {
    /// Namespace of its units.
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// The one unit that it is about.
    #[arg(long, conflicts_with = "selector")]
    pub unit: Option<String>,
    /// It is about units with all of these labels.
    #[arg(long, short = 'l', value_delimiter = ',', value_name = "KEY=VALUE", value_parser = super::pair)]
    pub selector: Vec<(String, String)>,
    /// So many of what is wanted may be missing: `1`, `20%`. Without a limit one may be.
    #[arg(long, value_name = "N|N%", conflicts_with = "min_available")]
    pub max_unavailable: Option<String>,
    /// So many must be left: `3`, `80%`.
    #[arg(long, value_name = "N|N%")]
    pub min_available: Option<String>,
    /// Free text.
    #[arg(long)]
    pub description: Option<String>,
}
