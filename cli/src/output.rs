//! What people and machines read: tables, JSON and YAML on standard output, talk on standard error.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::{Code, Failure};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// One JSON document; field names are stable.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Something that has columns.
pub trait View: Serialize {
    /// Column titles.
    const HEADERS: &'static [&'static str];
    /// Further ones of the wide table.
    const WIDE: &'static [&'static str];
    /// A cell per title.
    fn row(&self) -> Vec<String>;
    /// A cell per further title.
    fn wide(&self) -> Vec<String>;
}

/// Writes to standard output. A reader that went away (`| head`) is no failure.
///
/// # Errors
/// The output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("the output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// A time of day in UTC, from Unix milliseconds.
pub fn time(unix_ms: i64) -> String {
    let since = std::time::Duration::from_millis(u64::try_from(unix_ms).unwrap_or(0));
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
}

/// Writes a line to standard error.
pub fn say(text: impl AsRef<str>) {
    // There is nowhere left to say that this failed.
    let _unheard = writeln!(io::stderr(), "{}", text.as_ref());
}

/// Prints a list in a format. An empty table says so on standard error.
///
/// # Errors
/// The output cannot be written.
pub fn print_list<V: View>(format: Format, views: &[V], what: &str) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Wide if views.is_empty() => {
            say(format!("no {what}"));
            Ok(())
        }
        Format::Table | Format::Wide => print(&table(format, views)),
        Format::Json | Format::Yaml => print_value(format, &views),
    }
}

/// Prints a value as JSON or, for every other format, as YAML.
///
/// # Errors
/// The output cannot be written.
pub fn print_value<T: Serialize>(format: Format, value: &T) -> Result<(), Failure> {
    let text = match format {
        Format::Json => {
            serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| error.to_string())
        }
        Format::Table | Format::Wide | Format::Yaml => {
            serde_yaml_ng::to_string(value).map_err(|error| error.to_string())
        }
    };
    print(&text.map_err(|error| Failure::new(Code::Failed, error))?)
}

/// Writes a value to a file as JSON, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::failed(error.to_string()))?;
    let fresh = path.with_extension("json.new");
    std::fs::write(&fresh, text + "\n")
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|error| Failure::failed(format!("{} cannot be written: {error}", path.display())))
}

/// Views as columns.
pub fn table<V: View>(format: Format, views: &[V]) -> String {
    let wide = format == Format::Wide;
    let mut headers: Vec<&str> = V::HEADERS.to_vec();
    if wide {
        headers.extend(V::WIDE);
    }
    let rows: Vec<Vec<String>> = views
        .iter()
        .map(|view| {
            let mut row = view.row();
            if wide {
                row.extend(view.wide());
            }
            row
        })
        .collect();
    columns(&headers, &rows)
}

/// Columns as wide as their widest cell, two spaces between; an empty cell is shown as `-`.
pub fn columns(headers: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headers.iter().map(|header| header.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(headers.iter().copied(), &widths);
    for row in rows {
        text.push_str(&line(
            row.iter().map(|cell| if cell.is_empty() { "-" } else { cell.as_str() }),
            &widths,
        ));
    }
    text
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let cells: Vec<String> = cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    cells.join("  ").trim_end().to_owned() + "\n"
}

/// Emphasis on a terminal, plain text elsewhere. `NO_COLOR` switches it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(bool);

impl Paint {
    /// For standard output.
    pub fn stdout() -> Self {
        Self(io::stdout().is_terminal() && godel_kit::config::env("NO_COLOR").is_none())
    }

    /// Always plain.
    pub fn plain() -> Self {
        Self(false)
    }

    /// Good news.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// Bad news.
    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    /// A heading.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A progress bar on standard error; nothing where that is not a terminal.
pub fn progress(len: usize, what: &'static str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(u64::try_from(len).unwrap_or(u64::MAX)), target);
    let style = ProgressStyle::with_template("{prefix:>10} {bar:40} {pos}/{len} {msg} [{elapsed}]");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_prefix(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Tea {
        name: &'static str,
        cups: u32,
    }

    impl View for Tea {
        const HEADERS: &'static [&'static str] = &["NAME"];
        const WIDE: &'static [&'static str] = &["CUPS"];
        fn row(&self) -> Vec<String> {
            vec![self.name.to_owned()]
        }
        fn wide(&self) -> Vec<String> {
            vec![self.cups.to_string()]
        }
    }

    #[test]
    fn columns_are_aligned_and_empty_cells_shown() {
        let teas = [Tea { name: "assam", cups: 2 }, Tea { name: "", cups: 30 }];
        assert_eq!(table(Format::Table, &teas), "NAME\nassam\n-\n");
        assert_eq!(table(Format::Wide, &teas), "NAME   CUPS\nassam  2\n-      30\n");
    }

    #[test]
    fn colour_is_for_terminals_only() {
        assert_eq!(Paint(false).bad("x"), "x");
        assert_eq!(Paint(true).bad("x"), "\x1b[31mx\x1b[0m");
    }
}
