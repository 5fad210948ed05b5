//! What people and machines read: tables, JSON and YAML on standard output, talk on standard error.
//!
//! Names, labels, reasons and whatever else came from somebody is shown by [`shown`], so that it stays on its line and
//! does nothing to the terminal. All that people read goes through [`print()`] and [`say`], which let no control character
//! pass but line breaks and the colours of [`Paint`], should a text have been forgotten.

use std::{
    borrow::Cow,
    io::{self, IsTerminal as _, Write as _},
    os::fd::AsFd,
    path::Path,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::exit::{Code, Failure};

pub use godel_base::words::{are, count, one_or, plural};

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// One JSON document; field names are stable.
    Json,
    /// The same document as YAML.
    Yaml,
}

/// A column: its title, and what its cell says of a view.
pub type ViewColumn<V> = (&'static str, fn(&V) -> String);

/// Something that has columns.
pub trait View: Serialize + Sized + 'static {
    /// The columns of the table.
    const COLUMNS: &'static [ViewColumn<Self>];
    /// Further ones of the wide table.
    const WIDE: &'static [ViewColumn<Self>] = &[];

    /// Returns the cells of the table.
    fn row(&self) -> Vec<String> {
        Self::COLUMNS.iter().map(|(_, cell)| cell(self)).collect()
    }

    /// Returns the further cells of the wide table.
    fn wide(&self) -> Vec<String> {
        Self::WIDE.iter().map(|(_, cell)| cell(self)).collect()
    }
}

/// Declares what is shown of a message: a struct with stable field names, each beside the value that it gets. `with`
/// holds what several of them need.
#[macro_export]
macro_rules! view {
    (
        $(#[$attribute:meta])*
        $vis:vis struct $name:ident from ($message:ident: $kind:ty) $(with { $($given:tt)* })? {
            $(
                $(#[$field_attribute:meta])*
                $field_vis:vis $field:ident: $field_kind:ty = $value:expr,
            )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        $vis struct $name {
            $(
                $(#[$field_attribute])*
                $field_vis $field: $field_kind,
            )*
        }

        impl From<$kind> for $name {
            fn from($message: $kind) -> Self {
                $($($given)*)?
                Self { $($field: $value,)* }
            }
        }
    };
}

/// Text from elsewhere as people see it, on one line: control characters, line breaks, and characters that nobody sees or
/// that turn the direction of what follows are written as escapes, as `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::with_capacity(text.len() + 8), |mut safe, c| {
        if is_hidden(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
        safe
    }))
}

/// Controls (C0, DEL, C1), line and paragraph separators, marks of direction, and what has no width.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Text of several lines as it may reach a terminal: as [`shown`], but for line breaks and the colours of [`Paint`].
fn settled(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| is_hidden(c) && c != '\n') {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let paint = Paint::CODES.into_iter().find(|code| rest.starts_with(code));
        let len = paint.map_or(c.len_utf8(), str::len);
        match paint {
            Some(code) => safe.push_str(code),
            None if is_hidden(c) && c != '\n' => safe.extend(c.escape_unicode()),
            None => safe.push(c),
        }
        rest = &rest[len..];
    }
    Cow::Owned(safe)
}

/// Writes what people read to standard output. A reader that went away (`| head`) is no failure.
///
/// # Errors
/// The output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    print_raw(&settled(text))
}

/// Writes what machines read to standard output, as it is.
///
/// # Errors
/// The output cannot be written.
pub fn print_raw(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("the output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes what others have written to standard output, as it is. Returns whether anybody reads it still.
///
/// # Errors
/// The output cannot be written.
pub fn print_bytes(bytes: &[u8]) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("the output cannot be written: {error}"))),
    }
}

/// Waits until nobody reads standard output any more: the other end of its pipe is closed, as by `head`, or its terminal is gone. What
/// follows something ends then, and not only with the next line, which may never come.
pub async fn until_unread() {
    until_closed(io::stdout()).await;
}

async fn until_closed(output: impl AsFd + Send + 'static) {
    let (tx, rx) = oneshot::channel();
    // No task of the runtime: it would keep the program from ending.
    std::thread::spawn(move || {
        let mut polled = [PollFd::new(&output, PollFlags::empty())];
        let is_closed = loop {
            match poll(&mut polled, None) {
                Ok(_) => break true,
                Err(Errno::INTR) => {}
                Err(_) => break false,
            }
        };
        if is_closed {
            // Whoever waited may have ended.
            let _is_over = tx.send(());
        } else {
            drop(tx);
        }
    });
    if rx.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// JSON that a terminal may show: what it leaves raw within strings and nobody would see is escaped there.
fn json_shown(json: String) -> String {
    if !json.contains(|c| is_hidden(c) && c != '\n') {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 8);
    let mut units = [0u16; 2];
    for c in json.chars() {
        if is_hidden(c) && c != '\n' {
            c.encode_utf16(&mut units).iter().for_each(|unit| safe.push_str(&format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// A value as JSON on one line.
///
/// # Errors
/// It cannot be written as JSON.
pub fn json_line<T: Serialize>(value: &T) -> Result<String, Failure> {
    let json = serde_json::to_string(value).map_err(|error| Failure::failed(error.to_string()))?;
    Ok(json_shown(json) + "\n")
}

/// A time of day in UTC, from Unix milliseconds.
pub fn time(unix_ms: i64) -> String {
    let since = std::time::Duration::from_millis(u64::try_from(unix_ms).unwrap_or(0));
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
}

/// A span of time for a column, in its largest unit: `45s`, `12m`, `7h`, `3d`.
pub fn span(ms: u64) -> String {
    match ms / 1_000 {
        s @ ..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

/// Writes a line to standard error.
pub fn say(text: impl AsRef<str>) {
    // There is nowhere left to say that this failed.
    let _unheard = writeln!(io::stderr(), "{}", settled(text.as_ref()));
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

/// Prints messages as a list of views.
///
/// # Errors
/// The output cannot be written.
pub fn print_views<'a, V: View + From<&'a M>, M>(
    format: Format,
    messages: &'a [M],
    what: &str,
) -> Result<(), Failure> {
    print_list(format, &messages.iter().map(V::from).collect::<Vec<_>>(), what)
}

/// Prints a value: for people as text, for machines as it is.
///
/// # Errors
/// The output cannot be written.
pub fn show<T: Serialize>(format: Format, value: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Wide => print(&text()),
        Format::Json | Format::Yaml => print_value(format, value),
    }
}

/// Prints a value as JSON or, for every other format, as YAML.
///
/// # Errors
/// The output cannot be written.
pub fn print_value<T: Serialize>(format: Format, value: &T) -> Result<(), Failure> {
    let text = match format {
        Format::Json => {
            let json = serde_json::to_string_pretty(value).map_err(|error| error.to_string());
            json.map(|json| json_shown(json) + "\n")
        }
        Format::Table | Format::Wide | Format::Yaml => {
            serde_yaml_ng::to_string(value).map_err(|error| error.to_string())
        }
    };
    print_raw(&text.map_err(|error| Failure::new(Code::Failed, error))?)
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
    let shown = || V::COLUMNS.iter().chain(if wide { V::WIDE } else { &[] });
    let headers: Vec<&str> = shown().map(|(title, _)| *title).collect();
    let rows: Vec<Vec<String>> =
        views.iter().map(|view| shown().map(|(_, cell)| cell(view)).collect()).collect();
    columns(&headers, &rows)
}

/// Columns as wide as their widest cell, two spaces between; an empty cell is shown as `-`. Cells are shown on one line,
/// whatever is in them.
pub fn columns(headers: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    let mut widths: Vec<usize> = headers.iter().map(|header| header.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(headers.iter().copied(), &widths);
    for row in &rows {
        text.push_str(&line(row.iter().map(Cow::as_ref), &widths));
    }
    text
}

/// What a cell shows: `-` when it is empty.
fn cell(text: &str) -> Cow<'_, str> {
    if text.is_empty() { Cow::Borrowed("-") } else { shown(text) }
}

/// A line for one thing that is told of something: its title, and what [`columns`] would show.
pub fn field(width: usize, title: &str, text: &str) -> String {
    format!("{title:<width$} {}\n", cell(text))
}

/// The same of a text of several lines: the first one stands beside the title, the others below it.
pub fn field_of_lines(width: usize, title: &str, text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut shown = field(width, title, lines.next().unwrap_or_default());
    for line in lines {
        shown.push_str(&field(width, "", line));
    }
    shown
}

/// A line for each column of a view.
pub fn fields<V: View>(width: usize, view: &V) -> String {
    let columns = V::COLUMNS.iter().chain(V::WIDE);
    columns.map(|(title, cell)| field(width, &title.to_lowercase(), &cell(view))).collect()
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let cells: Vec<String> = cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    cells.join("  ").trim_end().to_owned() + "\n"
}

/// Emphasis on a terminal, plain text elsewhere. `NO_COLOR` switches it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint(bool);

impl Paint {
    /// All that it writes beside the text.
    const CODES: [&'static str; 4] = ["\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"];

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

/// Whatever somebody may put into a name: an escape, line breaks, a C1 control, marks that turn or hide text. For tests.
pub const NASTY: &str = "a\u{1b}[31mb\r\n\u{9b}c\u{202e}d\u{200b}\u{7f}";

/// For tests: nothing that nobody sees is in a text but line breaks, and of [`NASTY`] all is seen, on one line.
///
/// # Panics
/// Otherwise.
pub fn assert_shown(text: &str) {
    let hidden = text.chars().find(|c| is_hidden(*c) && *c != '\n');
    assert_eq!(hidden, None, "{text:?}");
    assert!(text.contains(&*shown(NASTY)), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_reads_any_more_is_noticed_without_a_write() {
        let (reader, writer) = io::pipe().unwrap();
        let mut closed = std::pin::pin!(until_closed(writer.try_clone().unwrap()));
        let is_waiting = std::future::poll_fn(|context| {
            std::task::Poll::Ready(closed.as_mut().poll(context).is_pending())
        });
        assert!(is_waiting.await, "it is read");
        drop(reader);
        closed.await;
    }

    #[derive(Serialize)]
    struct Tea {
        name: &'static str,
        cups: u32,
    }

    impl View for Tea {
        const COLUMNS: &'static [ViewColumn<Self>] = &[("NAME", |tea| tea.name.to_owned())];
        const WIDE: &'static [ViewColumn<Self>] = &[("CUPS", |tea| tea.cups.to_string())];
    }

    #[test]
    fn a_text_of_several_lines_is_shown_as_lines_and_nothing_else_of_it_reaches_the_terminal() {
        let shown = field_of_lines(5, "why", "first\n\nsec\u{1b}ond\n");
        assert_eq!(shown, "why   first\n      sec\\u{1b}ond\n");
        assert_eq!(field_of_lines(5, "why", ""), "why   -\n");
    }

    #[test]
    fn columns_are_aligned_and_empty_cells_shown() {
        let teas = [Tea { name: "assam", cups: 2 }, Tea { name: "", cups: 30 }];
        assert_eq!(table(Format::Table, &teas), "NAME\nassam\n-\n");
        assert_eq!(table(Format::Wide, &teas), "NAME   CUPS\nassam  2\n-      30\n");
    }

    #[test]
    fn what_came_from_elsewhere_stays_on_its_line_and_is_seen() {
        let safe = "a\\u{1b}[31mb\\u{d}\\u{a}\\u{9b}c\\u{202e}d\\u{200b}\\u{7f}";
        assert_eq!(shown(NASTY), safe);
        assert_eq!(shown("Grüße, 世界 🦀"), "Grüße, 世界 🦀");
        let row = vec![NASTY.to_owned(), "x".to_owned()];
        assert_eq!(columns(&["A", "B"], &[row]).lines().nth(1).unwrap(), format!("{safe}  x"));
        assert_eq!(field(4, "name", NASTY), format!("name {safe}\n"));
        // The last door lets line breaks and colours through, and nothing else.
        let text = format!("{}\n{}", Paint(true).bad("lost"), NASTY.replace('\n', ""));
        let expect =
            format!("\x1b[31mlost\x1b[0m\n{}", safe.replace("\\u{a}", "").replace("\\u{1b}[31m", "\x1b[31m"));
        assert_eq!(settled(&text), expect);
    }

    #[test]
    fn json_stays_json_and_shows_what_it_holds() {
        let json = json_line(&NASTY).unwrap();
        assert!(!json.trim_end_matches('\n').contains(is_hidden), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), NASTY);
        let far = json_line(&"\u{e0041}").unwrap();
        assert_eq!(
            (far.as_str(), serde_json::from_str::<String>(&far).unwrap().as_str()),
            ("\"\\udb40\\udc41\"\n", "\u{e0041}")
        );
    }

    #[test]
    fn colour_is_for_terminals_only() {
        assert_eq!(Paint(false).bad("x"), "x");
        assert_eq!(Paint(true).bad("x"), "\x1b[31mx\x1b[0m");
    }
}
