//! Tests that this machine does not allow.

use std::fmt::Display;

/// Says that a test cannot run here for want of rights or of a tool. Where `CI` is `true` that is a failure: there everything is
/// allowed and installed, and a test that nobody runs proves nothing.
///
/// What a kind of machine does not have at all, as a version of control groups, is no reason to call this.
///
/// # Panics
/// `CI` is `true`.
#[allow(clippy::print_stdout, reason = "a test says that it is skipped")]
pub fn skip(why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!is_ci, "{test} could not run, and CI=true allows no skip: {why}");
    println!("SKIPPED {test}: {why}");
}
