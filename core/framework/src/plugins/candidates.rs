//! What a place costs for which running units leave, one file for each cost.

pub mod fewest_gangs;
pub mod fewest_masters;
pub mod fewest_victims;
pub mod latest_start;
pub mod least_lost_work;
pub mod lowest_highest_rank;
pub mod lowest_rank_sum;
pub mod no_victims;
#[cfg(test)]
mod tests;
