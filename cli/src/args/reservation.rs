//! Verbs and flags of reservations.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::records::{ChangedRecords, DeletedRecords, NewRecords, RecordNames};

/// `godel reservation`.
#[derive(Clone, Debug, Subcommand)]
pub enum Reservation {
    /// Create a reservation.
    Create(NewRecords<ReservationSettings>),
    /// List reservations with their numbers of held and used slots.
    List,
    /// Show reservations and the nodes of their slots.
    Describe(RecordNames),
    /// Change reservations; other settings stay.
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the reservation has this revision; 0: any")))]
    Set(ChangedRecords<ReservationSettings>),
    /// Delete reservations whose slots no running unit uses; the slots become free room.
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the reservation has this revision; 0: any")))]
    Delete(DeletedRecords),
}

/// Settings of a reservation.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ReservationSettings {
    /// Namespace of the owners.
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Units with all of these labels are owners.
    #[arg(long, short = 'l', value_delimiter = ',', value_name = "KEY=VALUE", value_parser = super::label_pair)]
    pub selector: Vec<(String, String)>,
    /// Number of slots; default 1 for a new reservation. 0: running units in its slots continue without it.
    #[arg(long)]
    pub slots: Option<u32>,
    /// Room of one slot: `cpu=2,memory=4Gi`.
    #[arg(long, value_delimiter = ',', value_name = "NAME=AMOUNT", value_parser = super::pair)]
    pub requests: Vec<(String, String)>,
    /// GPUs of one slot.
    #[arg(long)]
    pub gpus: Option<u32>,
    /// Labels that its nodes must have.
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE", value_parser = super::label_pair)]
    pub node_selector: Vec<(String, String)>,
    /// Time from now until it expires: `90m`, `7d`; 0: it never expires.
    #[arg(long, value_parser = godel_base::duration::parse_whole)]
    pub ttl: Option<Duration>,
    /// Free text.
    #[arg(long)]
    pub description: Option<String>,
}
