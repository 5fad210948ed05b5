//! Verbs and flags of disruption budgets.

use clap::{Args as ClapArgs, Subcommand};

/// `godel budget`.
#[derive(Clone, Debug, Subcommand)]
pub enum Budget {
    /// Create a disruption budget.
    Create {
        /// Names (labels, as `web`). All get the same settings.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// The settings.
        #[command(flatten)]
        settings: BudgetSettings,
    },
    /// List disruption budgets with the evictions that they allow now.
    List,
    /// Show disruption budgets.
    Describe {
        /// Full names. All are processed, also after an error.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Change disruption budgets; other settings stay.
    Set {
        /// Full names. All are processed, also after an error.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// The new settings.
        #[command(flatten)]
        settings: BudgetSettings,
        /// Fail unless the budget has this revision; 0: any.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Delete disruption budgets.
    Delete {
        /// Full names. All are processed, also after an error.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Fail unless the budget has this revision; 0: any.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
}

/// Settings of a disruption budget.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BudgetSettings {
    /// Namespace of the selected units.
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Selects this unit.
    #[arg(long, conflicts_with = "selector")]
    pub unit: Option<String>,
    /// Selects all units with all of these labels.
    #[arg(long, short = 'l', value_delimiter = ',', value_name = "KEY=VALUE", value_parser = super::label_pair)]
    pub selector: Vec<(String, String)>,
    /// Maximum number or share of running units that may be missing: `1`, `20%`. Default without a limit: 1.
    #[arg(long, value_name = "N|N%", conflicts_with = "min_available")]
    pub max_unavailable: Option<String>,
    /// Minimum number or share of running units that must remain: `3`, `80%`.
    #[arg(long, value_name = "N|N%")]
    pub min_available: Option<String>,
    /// Free text that describes the budget.
    #[arg(long)]
    pub description: Option<String>,
}
