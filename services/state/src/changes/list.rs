//! Changes and submissions, the newest first, page by page: two lists that are merged by time as they are read.

use std::collections::VecDeque;

use godel_identity::change_log::ChangeFilter;
use godel_kit::message::field_len;
use godel_proto::v1;
use godel_store::{Key, Store};
use prost::Message as _;

use super::{ScannedLine, logged, number, stored_line, submissions};

/// Records read under one lock of the store.
const N_SLICE: usize = 256;
/// Records that one page looks at: it may be short, and has a token then.
const N_SCANNED_MAX: usize = 20_000;
/// A page takes no further line beyond this.
const PAGE_BYTES: usize = 512 << 10;

/// Where a list goes on: before this change and before this unit. 0: that list is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeCursor {
    pub(super) change: Option<u64>,
    pub(super) unit: Option<u64>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedChanges<'a> {
    pub(super) filter: ChangeFilter<'a>,
    pub(super) since_ms: i64,
    pub(super) n_max: usize,
}

/// One of the two lists, read slice by slice.
struct Reading {
    ahead: VecDeque<ScannedLine>,
    before: Option<u64>,
    is_over: bool,
}

impl ChangeCursor {
    /// As in a page token, which `fmt` has written.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (change, unit) = text.split_once('/')?;
        let read = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
        Some(Self { change: read(change)?, unit: read(unit)? })
    }
}

impl std::fmt::Display for ChangeCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |before: Option<u64>| before.map(|before| before.to_string()).unwrap_or_default();
        write!(f, "{}/{}", text(self.change), text(self.unit))
    }
}

impl Reading {
    fn new(before: Option<u64>) -> Self {
        Self { ahead: VecDeque::new(), before, is_over: before == Some(0) }
    }

    /// The next line, if it is not before `since_ms`.
    fn peek(
        &mut self,
        since_ms: i64,
        read: impl Fn(Option<u64>) -> Vec<ScannedLine>,
    ) -> Option<&ScannedLine> {
        if self.ahead.is_empty() && !self.is_over {
            self.ahead = read(self.before).into();
        }
        self.is_over = self.ahead.front().is_none_or(|line| line.time_ms < since_ms);
        self.ahead.front().filter(|_| !self.is_over)
    }

    fn take(&mut self) -> Option<v1::LoggedChange> {
        let line = self.ahead.pop_front()?;
        self.before = Some(line.key);
        line.shown
    }

    fn cursor(&self) -> Option<u64> {
        if self.is_over { Some(0) } else { self.before }
    }
}

/// A page, and where the next one begins if there may be one.
pub(super) fn page(
    store: &Store,
    wanted: &WantedChanges<'_>,
    from: ChangeCursor,
) -> (Vec<v1::LoggedChange>, Option<ChangeCursor>) {
    let WantedChanges { filter, since_ms, n_max } = *wanted;
    let (mut changes, mut units) = (Reading::new(from.change), Reading::new(from.unit));
    // Nobody's submission was refused.
    units.is_over |= filter.is_refused_only;
    let (mut page, mut bytes) = (Vec::new(), 0);
    for _ in 0..N_SCANNED_MAX {
        let change_ms =
            changes.peek(since_ms, |before| changes_back(store, &filter, before)).map(|line| line.time_ms);
        let unit_ms =
            units.peek(since_ms, |before| submissions_back(store, &filter, before)).map(|line| line.time_ms);
        let shown = match (change_ms, unit_ms) {
            (None, None) => return (page, None),
            (change_ms, unit_ms) if change_ms >= unit_ms => changes.take(),
            _ => units.take(),
        };
        if let Some(shown) = shown {
            bytes += field_len(shown.encoded_len());
            page.push(shown);
        }
        if page.len() >= n_max || bytes >= PAGE_BYTES {
            break;
        }
    }
    let next = ChangeCursor { change: changes.cursor(), unit: units.cursor() };
    (page, Some(next))
}

fn changes_back(store: &Store, filter: &ChangeFilter<'_>, before: Option<u64>) -> Vec<ScannedLine> {
    let before = before.map(Key::Id);
    store.read(|state| {
        let records = state.records_back(v1::Kind::Change, before.as_ref()).take(N_SLICE);
        let scanned = records.map(|(key, record)| {
            let (key, time_ms) = (number(key), record.create_time_ms);
            let shown = stored_line(record).and_then(|line| filter.shown(line));
            ScannedLine { key, time_ms, shown: shown.map(|line| logged(key, time_ms, &line)) }
        });
        scanned.collect()
    })
}

fn submissions_back(store: &Store, filter: &ChangeFilter<'_>, before: Option<u64>) -> Vec<ScannedLine> {
    let submissions = store.read(|state| submissions::back(state, before, N_SLICE));
    let scanned = submissions.into_iter().map(|submission| {
        let shown = submission.line.and_then(|line| filter.shown(line));
        let shown = shown.map(|line| logged(0, submission.time_ms, &line));
        ScannedLine { key: submission.unit, time_ms: submission.time_ms, shown }
    });
    scanned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_were() {
        for cursor in [
            ChangeCursor::default(),
            ChangeCursor { change: Some(7), unit: None },
            ChangeCursor { change: None, unit: Some(0) },
            ChangeCursor { change: Some(u64::MAX), unit: Some(1) },
        ] {
            assert_eq!(ChangeCursor::parse(&cursor.to_string()), Some(cursor));
        }
        for bad in ["", "7", "x/", "/x", "7/8/9", "-1/"] {
            assert_eq!(ChangeCursor::parse(bad), None, "{bad}");
        }
    }
}
