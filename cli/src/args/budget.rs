//! Verbs and flags of disruption budgets.

use clap::{Args as ClapArgs, Subcommand};

use super::records::{ChangedRecords, DeletedRecords, NewRecords, RecordNames};

/// `godel budget`.
#[derive(Clone, Debug, Subcommand)]
pub enum Budget {
    /// Create a disruption budget.
    Create(NewRecords<BudgetSettings>),
    /// List disruption budgets with the evictions that they allow now.
    List,
    /// Show disruption budgets.
    Describe(RecordNames),
    /// Change disruption budgets; other settings stay.
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the budget has this revision; 0: any")))]
    Set(ChangedRecords<BudgetSettings>),
    /// Delete disruption budgets.
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the budget has this revision; 0: any")))]
    Delete(DeletedRecords),
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
