//! `godel unit logs`: what running units have written, read through state from the agents that keep it.

use std::{collections::VecDeque, io::IsTerminal as _, time::Duration};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    views::UnitView,
};
use godel_kit::{client::Backoff, status};
use godel_proto::v1;
use tokio::{sync::mpsc, time::Instant};
use tonic::{Status, Streaming};

use crate::{
    args::{LogsArgs, split},
    command::each::LIST_UNITS,
};

/// A log that cannot be read on for so long is given up.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// The same while it is followed: an agent may be restarted, or a machine.
const AWAY_FOLLOWED_MAX: Duration = Duration::from_secs(60);
/// Pauses between tries, at random up to these.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Reason of state where a replica has no node.
const NOT_PLACED: &str = "NOT_PLACED";
/// Replicas whose logs are followed at a time.
const N_FOLLOWED_MAX: usize = 50;
/// Lines of several replicas that wait to be printed.
const N_AHEAD: usize = 256;
/// A longer line is printed in parts.
const LINE_BYTES_MAX: usize = 64 << 10;

pub(super) async fn run(client: &Client, logs: &LogsArgs, format: Format) -> Result<(), Failure> {
    if matches!(format, Format::Json | Format::Yaml) {
        return Err(Failure::usage("logs are printed as they were written: leave out --output"));
    }
    let (name, ordinal) = ordinal_of(&logs.name);
    let (namespace, name) = split(&logs.namespace, name);
    let unit = client.get_unit(namespace, name).await.map_err(|failure| match failure.code {
        Code::NotFound => failure.hint(LIST_UNITS),
        _ => failure,
    })?;
    let unit_id = unit.unit.as_ref().map_or(0, |unit| unit.unit_id);
    let of = |ordinal| {
        let request = v1::ReadLogRequest {
            unit_id,
            ordinal,
            tail_lines: logs.tail,
            follow: logs.follow,
            previous: logs.previous,
            ..v1::ReadLogRequest::default()
        };
        LogReading::new(client.clone(), namespace.to_owned(), name.to_owned(), request)
    };
    let ordinals: Vec<u32> = match ordinal {
        Some(ordinal) => vec![ordinal],
        None => unit.running_units.iter().map(|run| run.ordinal).collect(),
    };
    let printed = print(&unit, name, &ordinals, logs.follow, of);
    tokio::select! {
        printed = printed => printed,
        () = output::until_unread(), if logs.follow => Ok(()),
    }
}

/// Prints the logs of these replicas.
async fn print(
    unit: &v1::GetUnitResponse,
    name: &str,
    ordinals: &[u32],
    follow: bool,
    of: impl Fn(u32) -> LogReading,
) -> Result<(), Failure> {
    match *ordinals {
        [] => Err(Failure::new(Code::NotFound, format!("unit {} has no replicas", shown(name)))),
        [ordinal] => one(of(ordinal)).await,
        _ if !unit.next_page_token.is_empty() => {
            let said = format!("unit {} has more than {} replicas", shown(name), ordinals.len());
            Err(Failure::usage(said).hint(format!("name one of them, as `{}/0`", shown(name))))
        }
        _ if follow && ordinals.len() > N_FOLLOWED_MAX => {
            let n = count(ordinals.len(), "replica");
            let said =
                format!("unit {} has {n}; at most {N_FOLLOWED_MAX} are followed at a time", shown(name));
            Err(Failure::usage(said).hint(format!("name one of them, as `{}/0`", shown(name))))
        }
        _ => several(ordinals.iter().copied().map(of).collect(), follow).await,
    }
}

/// Name and ordinal.
pub(super) fn ordinal_of(name: &str) -> (&str, Option<u32>) {
    let parts = name.rsplit_once('/');
    match parts.and_then(|(name, ordinal)| Some((name, ordinal.parse().ok()?))) {
        Some((name, ordinal)) => (name, Some(ordinal)),
        None => (name, None),
    }
}

/// Prints the log of a replica as it is.
async fn one(mut reader: LogReading) -> Result<(), Failure> {
    while let Some(bytes) = reader.part().await? {
        if !output::print_bytes(&bytes)? {
            break;
        }
    }
    Ok(())
}

/// Prints the logs of several replicas, line by line: one after the other, or all at once where they are followed.
async fn several(readers: Vec<LogReading>, follow: bool) -> Result<(), Failure> {
    let width = readers.iter().map(|reader| digits(reader.request.ordinal)).max().unwrap_or(1);
    let n_all = readers.len();
    let mut failures = Vec::new();
    let (tx, mut texts) = mpsc::channel(N_AHEAD);
    if follow {
        for reader in readers {
            godel_kit::task::spawn("unit.logs", lines_of(reader, width, tx.clone()));
        }
    } else {
        let tx = tx.clone();
        godel_kit::task::spawn("unit.logs", async move {
            for reader in readers {
                lines_of(reader, width, tx.clone()).await;
            }
        });
    }
    drop(tx);
    while let Some(said) = texts.recv().await {
        match said {
            Ok(text) if output::print_bytes(&text)? => {}
            Ok(_) => return Ok(()),
            Err(failure) => failures.push(failure),
        }
    }
    let Some(last) = failures.pop() else { return Ok(()) };
    let n_failed = failures.len() + 1;
    for failure in failures {
        output::say(failure.to_string());
    }
    output::say(format!("{n_failed} of {} cannot be read", count(n_all, "log")));
    Err(last)
}

/// Sends the lines of one log, and why there are no more.
async fn lines_of(mut reader: LogReading, width: usize, tx: mpsc::Sender<Result<Vec<u8>, Failure>>) {
    let mut lines = LogLines::new(reader.request.ordinal, width);
    let failed = loop {
        match reader.part().await {
            Ok(Some(bytes)) => {
                if tx.send(Ok(lines.take(&bytes))).await.is_err() {
                    return;
                }
            }
            Ok(None) => break None,
            Err(failure) => break Some(failure),
        }
    };
    // Whoever listened may have had enough.
    let _is_over = tx.send(Ok(lines.rest())).await;
    if let Some(failure) = failed {
        let _is_over = tx.send(Err(failure)).await;
    }
}

/// What a replica without a node waits for, in words; `None`: it gets none any more.
fn awaited(unit: &v1::Unit) -> Option<String> {
    match unit.phase() {
        v1::UnitPhase::Completed | v1::UnitPhase::Failed | v1::UnitPhase::Cancelled => None,
        v1::UnitPhase::Suspended => Some("waits to be started: the unit is suspended".to_owned()),
        v1::UnitPhase::Unspecified
        | v1::UnitPhase::Queued
        | v1::UnitPhase::Scheduling
        | v1::UnitPhase::Unschedulable
        | v1::UnitPhase::Scheduled
        | v1::UnitPhase::Running => Some(match UnitView::from(unit).reason.as_str() {
            "" => "waits for a node".to_owned(),
            reason => format!("waits for a node: {reason}"),
        }),
    }
}

/// Whether state refuses to read a log because the replica has no node.
fn is_unplaced(status: &Status) -> bool {
    status::precondition_kinds(status).iter().any(|kind| kind == NOT_PLACED)
}

fn digits(n: u32) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Cuts what a replica has written into lines, each behind the replica's ordinal.
struct LogLines {
    prefix: String,
    /// Of a line without its end.
    begun: VecDeque<u8>,
}

impl LogLines {
    fn new(ordinal: u32, width: usize) -> Self {
        Self { prefix: format!("{ordinal:>width$} | "), begun: VecDeque::new() }
    }

    /// The lines that are whole now.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.begun.extend(bytes);
        let mut text = Vec::new();
        loop {
            let end = self.begun.iter().position(|byte| *byte == b'\n');
            let n = match end {
                Some(at) => at.min(LINE_BYTES_MAX),
                None if self.begun.len() > LINE_BYTES_MAX => LINE_BYTES_MAX,
                None => return text,
            };
            text.extend_from_slice(self.prefix.as_bytes());
            text.extend(self.begun.drain(..n));
            if end == Some(n) {
                self.begun.pop_front();
            }
            text.push(b'\n');
        }
    }

    /// The last line, if it has no end.
    fn rest(&mut self) -> Vec<u8> {
        if self.begun.is_empty() { Vec::new() } else { self.take(b"\n") }
    }
}

/// Writes control characters of a log as escapes, as `\u{1b}`: on a terminal they could change what stands there, its title, or
/// what is typed next. Line ends and tabs stay.
#[derive(Debug, Default)]
struct Escape {
    /// The first byte of a character of two bytes that may be a control; the other one is in the next part.
    has_lead: bool,
}

impl Escape {
    fn of(&mut self, bytes: &[u8]) -> Vec<u8> {
        const LEAD: u8 = 0xc2;
        let mut text = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            let has_lead = std::mem::take(&mut self.has_lead);
            match byte {
                0x80..=0x9f if has_lead => text.extend(char::from(byte).escape_unicode().map(ascii)),
                _ => {
                    text.extend(has_lead.then_some(LEAD));
                    match byte {
                        LEAD => self.has_lead = true,
                        b'\n' | b'\t' => text.push(byte),
                        0..0x20 | 0x7f => text.extend(char::from(byte).escape_unicode().map(ascii)),
                        _ => text.push(byte),
                    }
                }
            }
        }
        text
    }
}

/// A character of an escape.
fn ascii(c: char) -> u8 {
    u8::try_from(c).unwrap_or(b'?')
}

/// Reads one log, also when the connection or the agent is lost on the way.
struct LogReading {
    client: Client,
    namespace: String,
    name: String,
    /// `web/0`.
    what: String,
    /// Why it has not started, as it was told last.
    awaited: String,
    request: v1::ReadLogRequest,
    stream: Option<Streaming<v1::ReadLogResponse>>,
    /// The byte to read on from, once something was read.
    next: Option<u64>,
    heard: Instant,
    backoff: Backoff,
    /// There where people see the log.
    escape: Option<Escape>,
}

impl LogReading {
    fn new(client: Client, namespace: String, name: String, request: v1::ReadLogRequest) -> Self {
        Self {
            what: format!("{}/{}", shown(&name), request.ordinal),
            client,
            namespace,
            name,
            awaited: String::new(),
            request,
            stream: None,
            next: None,
            heard: Instant::now(),
            backoff: Backoff::new(PAUSE, PAUSE_MAX),
            escape: std::io::stdout().is_terminal().then(Escape::default),
        }
    }

    /// The next part; `None` at the end of the log.
    async fn part(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let came = match &mut self.stream {
                Some(stream) => stream.message().await,
                None => match self.client.logs().read_log(self.request).await {
                    Ok(answer) => {
                        self.stream = Some(answer.into_inner());
                        continue;
                    }
                    Err(status) => Err(status),
                },
            };
            match came {
                Ok(Some(part)) => {
                    self.heard = Instant::now();
                    self.backoff.reset();
                    self.note(&part);
                    let data = match &mut self.escape {
                        Some(escape) => escape.of(&part.data),
                        None => part.data,
                    };
                    return Ok(Some(data));
                }
                Ok(None) => return Ok(None),
                Err(status) => {
                    self.stream = None;
                    self.pause(status).await?;
                }
            }
        }
    }

    /// A part has come: what follows it is asked for if the rest does not come.
    fn note(&mut self, part: &v1::ReadLogResponse) {
        let v1::ReadLogResponse { incarnation, offset, ref data, .. } = *part;
        // The last lines of a log begin anywhere.
        let expected = self.next.or((self.request.tail_lines.is_none()).then_some(0));
        let n_lost = expected.map_or(0, |expected| offset.saturating_sub(expected));
        if n_lost > 0 {
            output::say(format!("{}: {n_lost} bytes before this are no longer kept", self.what));
        }
        let next = offset + data.len() as u64;
        self.next = Some(next);
        self.request.from_offset = Some(next);
        // Whatever becomes of the replica meanwhile.
        (self.request.incarnation, self.request.previous) = (Some(incarnation), false);
    }

    /// Whether a replica without a node may get one yet. Says what it waits for, once and whenever that changes.
    async fn will_start(&mut self) -> Result<bool, Failure> {
        let unit = self.client.get_unit(&self.namespace, &self.name).await?.unit.unwrap_or_default();
        let awaited = awaited(&unit);
        if let Some(awaited) = awaited.as_ref().filter(|awaited| **awaited != self.awaited) {
            output::say(format!("{}: {awaited}", self.what));
            self.awaited.clone_from(awaited);
        }
        Ok(awaited.is_some())
    }

    async fn pause(&mut self, status: Status) -> Result<(), Failure> {
        let away_max = if self.request.follow { AWAY_FOLLOWED_MAX } else { AWAY_MAX };
        if status::is_retryable_idempotent(&status) && self.heard.elapsed() < away_max {
            tokio::time::sleep(self.backoff.pause()).await;
            return Ok(());
        }
        if self.request.follow && is_unplaced(&status) {
            if !self.will_start().await? {
                let said = format!("{}: the unit is over, and the replica never had a node", self.what);
                return Err(Failure::new(Code::NotFound, said));
            }
            tokio::time::sleep(self.backoff.pause()).await;
            self.heard = Instant::now();
            return Ok(());
        }
        let failure = self.client.explain(status);
        Err(Failure { message: format!("{}: {}", self.what, failure.message), ..failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_also_where_parts_cut_them() {
        let mut escape = Escape::default();
        let said = escape.of("a\tb\n\u{1b}]0;title\u{7}\r\u{7f} é…".as_bytes());
        assert_eq!(String::from_utf8(said).unwrap(), "a\tb\n\\u{1b}]0;title\\u{7}\\u{d}\\u{7f} é…");
        // U+009B in two parts, and a letter that begins with the same byte.
        let said = [escape.of(&[b'x', 0xc2]), escape.of(&[0x9b, 0xc2]), escape.of(&[0xa3])].concat();
        assert_eq!(String::from_utf8(said).unwrap(), "x\\u{9b}£");
        assert_eq!(escape.of(&[0xff, 0x9b, 0xc2, 0xc2, 0xa3]), [0xff, 0x9b, 0xc2, 0xc2, 0xa3]);
    }

    #[test]
    fn an_ordinal_is_a_last_number() {
        for (name, expected) in [
            ("web", ("web", None)),
            ("web/3", ("web", Some(3))),
            ("team/web", ("team/web", None)),
            ("team/web/12", ("team/web", Some(12))),
            ("web/", ("web/", None)),
            ("web/-1", ("web/-1", None)),
        ] {
            assert_eq!(ordinal_of(name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_followed_says_what_it_waits_for_until_it_can_start_no_more() {
        let of = |phase: v1::UnitPhase, waits_for: &str| v1::Unit {
            phase: phase.into(),
            waits_for: waits_for.to_owned(),
            ..v1::Unit::default()
        };
        let said = |phase, waits_for| awaited(&of(phase, waits_for));
        assert!(is_unplaced(&status::failed_precondition(NOT_PLACED, "ordinal", "waits for a node")));
        assert!(!is_unplaced(&Status::not_found("no unit")));
        assert_eq!(said(v1::UnitPhase::Queued, ""), Some("waits for a node".to_owned()));
        let reason = said(v1::UnitPhase::Unschedulable, "room on n1");
        assert_eq!(reason, Some("waits for a node: room on n1".to_owned()));
        assert!(said(v1::UnitPhase::Suspended, "").is_some());
        for over in [v1::UnitPhase::Completed, v1::UnitPhase::Failed, v1::UnitPhase::Cancelled] {
            assert_eq!(said(over, ""), None, "{over:?}");
        }
    }

    #[test]
    fn each_line_says_whose_it_is() {
        let mut lines = LogLines::new(7, 2);
        assert_eq!(lines.take(b"one\ntw"), b" 7 | one\n");
        assert_eq!(lines.take(b"o\n\nthree"), b" 7 | two\n 7 | \n");
        assert_eq!(lines.rest(), b" 7 | three\n");
        assert_eq!(lines.rest(), b"");
        let long = vec![b'x'; LINE_BYTES_MAX + 2];
        assert_eq!(lines.take(&long).len(), LINE_BYTES_MAX + 6);
        assert_eq!(lines.take(b"\n"), b" 7 | xx\n");
        assert_eq!((digits(0), digits(9), digits(10), digits(1234)), (1, 1, 2, 4));
    }
}
