//! The cases of one benchmark: a table for people, one object for machines.

use std::path::Path;

use serde::Serialize;

use godel_client::{
    exit::Failure,
    output::{self, Format, View},
    usage,
};

/// The object; field names are stable.
#[derive(Serialize)]
struct Cases<'a, C> {
    bench: &'static str,
    /// Of the machine, before the first case.
    load_average: f64,
    cases: &'a [C],
}

/// Takes the load of the machine, measures, prints, and writes a file if one is wanted.
pub(super) async fn show<C: View>(
    bench: &'static str,
    format: Format,
    json: Option<&Path>,
    measure: impl Future<Output = Result<Vec<C>, Failure>>,
) -> Result<(), Failure> {
    let load_average = usage::load_average();
    let cases = measure.await?;
    let all = Cases { bench, load_average, cases: &cases };
    if let Some(path) = json {
        output::write_json(path, &all)?;
    }
    match format {
        Format::Table | Format::Wide => output::print_list(format, &cases, "cases"),
        Format::Json | Format::Yaml => output::print_value(format, &all),
    }
}

/// Works in a directory of its own, which is removed when it went well.
pub(super) async fn in_dir<T>(
    data_dir: &Path,
    name: &str,
    work: impl AsyncFnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let dir = data_dir.join(name);
    let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", dir.display()));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let done = work(&dir).await;
    let done = done.map_err(|failure| failure.during(format!("the run in {}", dir.display())))?;
    std::fs::remove_dir_all(&dir).map_err(failed)?;
    Ok(done)
}

/// The name of a directory of this process.
pub(super) fn dir_name(bench: &str) -> String {
    format!("{bench}-{}", std::process::id())
}

/// `part` of `all`; 0 of nothing.
pub(super) fn per(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}
