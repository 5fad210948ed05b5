//! Flags that the verbs of every kind of record share.

use clap::Args;

/// Records that are named.
#[derive(Clone, Debug, Args)]
pub struct RecordNames {
    /// Full names. All are processed, also after an error.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Records to create.
#[derive(Clone, Debug, Args)]
pub struct NewRecords<S: Args> {
    /// Names (labels, as `web`). All get the same settings.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// The settings.
    #[command(flatten)]
    pub settings: S,
}

/// Records to change.
#[derive(Clone, Debug, Args)]
pub struct ChangedRecords<S: Args> {
    /// The records.
    #[command(flatten)]
    pub records: RecordNames,
    /// The new settings.
    #[command(flatten)]
    pub settings: S,
    /// Fail unless the record has this revision; 0: any.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// Records to delete.
#[derive(Clone, Debug, Args)]
pub struct DeletedRecords {
    /// The records.
    #[command(flatten)]
    pub records: RecordNames,
    /// Fail unless the record has this revision; 0: any.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}
