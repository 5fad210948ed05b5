//! Submits tasks of the trace until each is acknowledged, and records the acknowledgements.

use anyhow::Result;
use clap::Parser as _;
use godel_integration_tests::submit;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    submit::run(submit::Plan::parse()).await?;
    Ok(())
}
