//! Floods a server with what no client should send, and says how much it was.

use std::io::Write as _;

use anyhow::Result;
use clap::Parser as _;
use godel_integration_tests::flood;

fn main() -> Result<()> {
    let n = flood::run(&flood::Flood::parse())?;
    writeln!(std::io::stdout(), "{n}")?;
    Ok(())
}
