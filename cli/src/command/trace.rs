//! `godel trace replay`.

use godel_client::{
    access::Access,
    client::Client,
    exit::Failure,
    output::{self, Format, Paint},
    replay::{self, Options},
};

use crate::args::ReplayArgs;

pub(super) async fn replay(access: &Access, wanted: ReplayArgs, format: Format) -> Result<(), Failure> {
    let mut tasks = replay::read_tasks(&wanted.file)?;
    tasks.truncate(wanted.limit.unwrap_or(usize::MAX));
    let options = Options {
        tasks,
        namespace: wanted.namespace,
        speed: wanted.speed,
        ledger: wanted.ledger,
        timeout: wanted.timeout,
        cpu_pids: wanted.cpu_pids,
        audit: wanted.audit,
    };
    // A server that is not there at all is told at once; one that restarts on the way is waited for.
    Client::new(access)?.store_status().await?;
    let (summary, findings) = replay::run(&Client::patient(access)?, options).await?;
    match format {
        Format::Json | Format::Yaml => output::print_value(format, &summary)?,
        Format::Table | Format::Wide => {
            output::print(&summary.text())?;
            if let Some(findings) = &findings {
                output::print(&findings.text(Paint::stdout()))?;
            }
        }
    }
    if let Some(path) = &wanted.json {
        output::write_json(path, &summary)?;
    }
    findings.map_or(Ok(()), |findings| super::audit_ended(&findings, false))
}
