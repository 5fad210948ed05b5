//! The rules by which victims are looked for, one file each.

pub mod disruption_budget;
pub mod lower_rank;
pub mod master_last;
pub mod min_run;
pub mod no_loop;
pub mod not_leaving;
pub mod preemptible;
pub mod same_pool;
#[cfg(test)]
mod tests;
pub mod unreserved;
pub mod whole_gang;
