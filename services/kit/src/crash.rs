//! Named places where a test may kill the process; the store owns the list of names.

pub use godel_store::{
    CrashPoints,
    crash::{CrashPointsError, POINTS},
};
