//! Verbs and flags of reservations.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

/// `godel reservation`.
#[derive(Clone, Debug, Subcommand)]
pub enum Reservation {
    /// Create a reservation.
    Create {
        /// A label, as `web`. Each of several gets the same.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// What it has.
        #[command(flatten)]
        settings: ReservationSettings,
    },
    /// List reservations with how many slots are held and used.
    List,
    /// Show one reservation, and where its slots are.
    Describe {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Change a reservation: what is not named stays as it is.
    Set {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// What changes.
        #[command(flatten)]
        settings: ReservationSettings,
        /// Only if the reservation has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Delete reservations that no running unit is in: their slots are free for all.
    Delete {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Only if the reservation has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
}

/// What a reservation has.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ReservationSettings {
    /// Namespace of the units that own it.
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Units with all of these labels own it.
    #[arg(long, short = 'l', value_delimiter = ',', value_name = "KEY=VALUE", value_parser = super::pair)]
    pub selector: Vec<(String, String)>,
    /// Running units that it has room for, 1 of a new one; 0: who is in it goes on without it.
    #[arg(long)]
    pub slots: Option<u32>,
    /// What each of them may take: `cpu=2,memory=4Gi`.
    #[arg(long, value_delimiter = ',', value_name = "NAME=AMOUNT", value_parser = super::pair)]
    pub requests: Vec<(String, String)>,
    /// GPUs of each of them.
    #[arg(long)]
    pub gpus: Option<u32>,
    /// Labels that its nodes must have.
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE", value_parser = super::pair)]
    pub node_selector: Vec<(String, String)>,
    /// It holds nothing once so long has passed from now on: `90m`, `7d`; 0: it holds until it is deleted.
    #[arg(long, value_parser = godel_domain::duration::parse_whole)]
    pub ttl: Option<Duration>,
    /// Free text.
    #[arg(long)]
    pub description: Option<String>,
}
