//! `godel trace replay`.

use std::{fs::File, path::Path};

use crate::{
    args::Replay,
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, Paint},
    replay::{self, Options, Summary},
    trace::{self, Task},
};

pub(super) async fn replay(address: &str, wanted: Replay, format: Format) -> Result<(), Failure> {
    let mut tasks = read(&wanted.file)?;
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
    Client::new(address)?.store_status().await?;
    let (summary, findings) = replay::run(&Client::patient(address)?, options).await?;
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
        write_json(path, &summary)?;
    }
    match findings {
        Some(findings) if !findings.hold() => Err(Failure::failed("the audit failed")),
        _ => Ok(()),
    }
}

/// The tasks of a trace.
pub(super) fn read(path: &Path) -> Result<Vec<Task>, Failure> {
    let shown = path.display();
    let input = File::open(path)
        .map_err(|error| Failure::usage(format!("the trace {shown} cannot be read: {error}")))?;
    trace::read(std::io::BufReader::new(input))
        .map_err(|error| Failure::chain(Code::Usage, &error).during(shown))
}

/// Writes a summary, whole or not at all.
pub(super) fn write_json(path: &Path, summary: &Summary) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(summary).map_err(|error| Failure::failed(error.to_string()))?;
    let fresh = path.with_extension("json.new");
    std::fs::write(&fresh, text + "\n")
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|error| Failure::failed(format!("{} cannot be written: {error}", path.display())))
}
