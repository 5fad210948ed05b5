//! Terminal statuses on disk until state has acknowledged them as durable.
//!
//! One append-only file per process, `terminal.journal`, one line per entry, each with its own checksum. A torn
//! last line is what a crash leaves and is dropped; what stands before it counts. The file is written and synced
//! by one thread, for everything that waits together, and written anew once most of it is acknowledged. Behind its lines the file has
//! room, as zeros: what ends while the disk is full can be written down.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use godel_core_agent::{JournalEntry, JournalKept, RunKey, RunStatus};
use godel_domain::{
    run_end::{RunEnd, RunEndReason},
    running_units::Phase,
};
use tokio::sync::{mpsc, oneshot};

use crate::keeper::files::may_pass;

/// The file's name in the state directory.
pub const FILE: &str = "terminal.journal";
/// A file smaller than this is not worth writing anew.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// It is written anew once it is so many times the size of what it keeps.
const COMPACT_RATIO: u64 = 4;
/// Room behind the lines that is taken ahead, and below which more is taken: the ends of some thousand running units.
const ROOM_BYTES: u64 = 512 << 10;
const ROOM_BYTES_MIN: u64 = 256 << 10;
/// Batches that wait for the writer; senders wait beyond.
const N_WAITING_MAX: usize = 256;

/// Terminal statuses by name of the node.
pub type ByNode = BTreeMap<Arc<str>, Vec<RunStatus>>;

/// Stores by name of the node.
pub type Stores = BTreeMap<Arc<str>, u64>;

type Batch = (Vec<JournalEntry>, Option<oneshot::Sender<()>>);

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory or file cannot be read or written.
    #[error("the journal in {dir} cannot be opened")]
    Open {
        /// The state directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A write or sync failed earlier: nothing can be promised any more.
    #[error("the journal can no longer be written")]
    Broken,
}

/// The writing end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    tx: mpsc::Sender<Batch>,
}

impl Journal {
    /// Opens or creates the journal in `dir` and returns what it keeps, by name of the node, and of which store it is.
    ///
    /// # Errors
    /// The directory cannot be created, or the file not be read, written or synced.
    pub fn open(dir: &Path) -> Result<(Self, ByNode, Stores), Error> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let opened = created.and_then(|()| Writer::open(dir));
        let writer = opened.map_err(|source| Error::Open { dir: dir.to_owned(), source })?;
        let mut by_node = ByNode::new();
        for ((node, _), status) in &writer.kept.ended {
            by_node.entry(Arc::clone(node)).or_default().push(*status);
        }
        let stores = writer.kept.stores.clone();
        let (tx, rx) = mpsc::channel(N_WAITING_MAX);
        let thread = std::thread::Builder::new().name("agent-journal".to_owned());
        let spawned = thread.spawn(move || writer.run(rx));
        spawned.map_err(|source| Error::Open { dir: dir.to_owned(), source })?;
        Ok((Self { tx }, by_node, stores))
    }

    /// Writes entries and waits until they are on the disk.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn write(&self, entries: Vec<JournalEntry>) -> Result<(), Error> {
        let (done_tx, done_rx) = oneshot::channel();
        self.tx.send((entries, Some(done_tx))).await.map_err(|_| Error::Broken)?;
        done_rx.await.map_err(|_| Error::Broken)
    }

    /// Writes entries some time: to lose them costs a repeated report only.
    pub async fn write_soon(&self, entries: Vec<JournalEntry>) -> Result<(), Error> {
        self.tx.send((entries, None)).await.map_err(|_| Error::Broken)
    }
}

struct Writer {
    dir: PathBuf,
    file: Lines,
    kept: JournalKept,
}

/// The file: its lines, and the room behind them.
struct Lines {
    file: File,
    /// Of the lines.
    bytes: u64,
    /// Of all of it.
    len: u64,
}

impl Lines {
    fn append(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all_at(text.as_bytes(), self.bytes)?;
        self.bytes += u64::try_from(text.len()).unwrap_or(0);
        self.len = self.len.max(self.bytes);
        if self.len - self.bytes < ROOM_BYTES_MIN {
            // Where there is none just now it is taken later.
            let _later = self.take_room();
        }
        Ok(())
    }

    fn take_room(&mut self) -> io::Result<()> {
        let zeros = vec![0; 64 << 10];
        while self.len < self.bytes + ROOM_BYTES {
            self.file.write_all_at(&zeros, self.len)?;
            self.len += u64::try_from(zeros.len()).unwrap_or(0);
        }
        Ok(())
    }

    /// Goes on with a file that cannot be written anew, behind its lines that are whole.
    fn reopen(path: &Path, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path)?;
        let len = file.metadata()?.len();
        let zeros = vec![0; 64 << 10];
        let mut at = bytes;
        while at < len {
            let n = usize::try_from(len - at).unwrap_or(usize::MAX).min(zeros.len());
            file.write_all_at(&zeros[..n], at)?;
            at += u64::try_from(n).unwrap_or(0);
        }
        file.sync_data()?;
        Ok(Self { file, bytes, len })
    }
}

impl Writer {
    fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (kept, bytes) = read(&text);
        let file = match rewrite(dir, &kept) {
            Err(error) if may_pass(&error) && path.exists() => Lines::reopen(&path, bytes)?,
            written => written?,
        };
        Ok(Self { dir: dir.to_owned(), file, kept })
    }

    fn run(mut self, mut rx: mpsc::Receiver<Batch>) {
        while let Some(first) = rx.blocking_recv() {
            let mut answers = Vec::new();
            let mut text = String::new();
            let mut next = Some(first);
            while let Some((entries, answer)) = next {
                for entry in &entries {
                    self.kept.apply(entry);
                    push_line(&mut text, entry);
                }
                answers.extend(answer);
                next = if text.len() < 1 << 20 { rx.try_recv().ok() } else { None };
            }
            let must_sync = !answers.is_empty();
            if let Err(error) = self.append(&text, must_sync) {
                // Dropping the channel tells every sender, now and later.
                tracing::error!(%error, "agent journal cannot be written");
                return;
            }
            for answer in answers {
                // A sender that is gone does not need to know.
                let _gone = answer.send(());
            }
        }
    }

    fn append(&mut self, text: &str, must_sync: bool) -> io::Result<()> {
        self.file.append(text)?;
        if must_sync {
            self.file.file.sync_data()?;
        }
        // About 100 bytes a line.
        let n_kept = self.kept.ended.len() + self.kept.stores.len();
        let kept_bytes = u64::try_from(n_kept).unwrap_or(0) * 100;
        if self.file.bytes > COMPACT_BYTES_MIN && self.file.bytes > COMPACT_RATIO * kept_bytes {
            match rewrite(&self.dir, &self.kept) {
                Ok(file) => self.file = file,
                // It goes on as it is until there is room.
                Err(error) if may_pass(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Writes what is kept into a new file that then takes the place of the old one.
fn rewrite(dir: &Path, kept: &JournalKept) -> io::Result<Lines> {
    let mut text = String::new();
    for ((node, _), status) in &kept.ended {
        push_line(&mut text, &JournalEntry::Ended(Arc::clone(node), *status));
    }
    for (node, store) in &kept.stores {
        push_line(&mut text, &JournalEntry::Store(Arc::clone(node), *store));
    }
    let (path, fresh) = (dir.join(FILE), dir.join(format!("{FILE}.new")));
    // What an earlier process left is not written through: it may be a link.
    let _absent = fs::remove_file(&fresh);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let mut lines = Lines { file, bytes: 0, len: 0 };
    let written = lines.append(&text).and_then(|()| lines.file.sync_all());
    if let Err(error) = written {
        // It would take room that something else needs.
        let _stays = fs::remove_file(&fresh);
        return Err(error);
    }
    fs::rename(&fresh, &path)?;
    File::open(dir)?.sync_all()?;
    Ok(lines)
}

fn push_line(text: &mut String, entry: &JournalEntry) {
    let (mark, node, status) = match entry {
        JournalEntry::Ended(node, status) => ('E', node, status),
        JournalEntry::Acknowledged(node, status) => ('A', node, status),
        JournalEntry::Store(node, store) => return push_checked(text, &format!("S {node} {store}")),
    };
    // Why it was not started was said, or need not be: it comes back elsewhere in any case.
    let RunStatus { key: RunKey { unit, ordinal }, incarnation, phase, exit_code, restarts, refused: _, end } =
        status;
    let RunEnd { reason, started_ms, ended_ms } = end;
    let reason = reason.map_or("-", RunEndReason::name);
    let phase = match phase {
        Phase::Succeeded => 'S',
        Phase::Failed => 'F',
        Phase::Stopped | Phase::Pending | Phase::Bound | Phase::Starting | Phase::Running => 'T',
    };
    push_checked(
        text,
        &format!(
            "{mark} {node} {unit} {ordinal} {incarnation} {phase} {exit_code} {restarts} {reason} {started_ms} {ended_ms}"
        ),
    );
}

fn push_checked(text: &mut String, line: &str) {
    text.push_str(&format!("{line} {:08x}\n", crc32c::crc32c(line.as_bytes())));
}

/// What a file keeps: every line that is whole, up to the first that is not; and the bytes of these lines.
fn read(bytes: &[u8]) -> (JournalKept, u64) {
    let (mut kept, mut n) = (JournalKept::default(), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(entry) = parse(line) else { break };
        kept.apply(&entry);
        n += line.len();
    }
    (kept, u64::try_from(n).unwrap_or(0))
}

fn parse(line: &[u8]) -> Option<JournalEntry> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (content, crc) = line.rsplit_once(' ')?;
    if u32::from_str_radix(crc, 16).ok()? != crc32c::crc32c(content.as_bytes()) {
        return None;
    }
    let mut words = content.split(' ');
    let (mark, node) = (words.next()?, Arc::from(words.next()?));
    if mark == "S" {
        return Some(JournalEntry::Store(node, words.next()?.parse().ok()?));
    }
    let key = RunKey { unit: words.next()?.parse().ok()?, ordinal: words.next()?.parse().ok()? };
    let incarnation = words.next()?.parse().ok()?;
    let phase = match words.next()? {
        "S" => Phase::Succeeded,
        "F" => Phase::Failed,
        _ => Phase::Stopped,
    };
    let exit_code = words.next()?.parse().ok()?;
    // Lines written before restarts existed end here.
    let restarts = words.next().map_or(Some(0), |word| word.parse().ok())?;
    // And those written before reasons existed here. A reason of a later version is none.
    let reason = words.next().and_then(RunEndReason::of_name);
    let started_ms = words.next().map_or(Some(0), |word| word.parse().ok())?;
    let ended_ms = words.next().map_or(Some(0), |word| word.parse().ok())?;
    let end = RunEnd { reason, started_ms, ended_ms };
    let status = RunStatus { key, incarnation, phase, exit_code, restarts, refused: None, end };
    match mark {
        "E" => Some(JournalEntry::Ended(node, status)),
        "A" => Some(JournalEntry::Acknowledged(node, status)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(unit: u64, exit_code: i32) -> RunStatus {
        let phase = if exit_code == 0 { Phase::Succeeded } else { Phase::Failed };
        let end = RunEnd { reason: Some(RunEndReason::OutOfMemory), started_ms: 5, ended_ms: 9 };
        RunStatus {
            key: RunKey { unit, ordinal: 3 },
            incarnation: 1,
            phase,
            exit_code,
            restarts: 2,
            refused: None,
            end,
        }
    }

    #[test]
    fn lines_of_earlier_versions_are_read() {
        for (line, restarts) in [("E n-1 7 3 1 F 4", 0), ("E n-1 7 3 1 F 4 2", 2)] {
            let mut text = String::new();
            push_checked(&mut text, line);
            let plain = RunStatus { restarts, end: RunEnd::default(), ..status(7, 4) };
            assert_eq!(parse(text.as_bytes()), Some(JournalEntry::Ended(node(), plain)), "{line}");
        }
    }

    fn node() -> Arc<str> {
        Arc::from("n-1")
    }

    #[tokio::test]
    async fn what_is_not_acknowledged_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, kept, stores) = Journal::open(dir.path()).unwrap();
        assert!(kept.is_empty() && stores.is_empty());
        let entries =
            vec![JournalEntry::Ended(node(), status(1, 0)), JournalEntry::Ended(node(), status(2, -7))];
        journal.write(entries).await.unwrap();
        let acknowledged = JournalEntry::Acknowledged(node(), status(1, 0));
        journal.write_soon(vec![JournalEntry::Store(node(), 7), acknowledged]).await.unwrap();
        journal.write(Vec::new()).await.unwrap();
        // Twice: opening writes the file anew.
        for _ in 0..2 {
            let (_, kept, stores) = Journal::open(dir.path()).unwrap();
            assert_eq!(kept.into_iter().collect::<Vec<_>>(), [(node(), vec![status(2, -7)])]);
            assert_eq!(stores.into_iter().collect::<Vec<_>>(), [(node(), 7)]);
        }
    }

    #[test]
    fn a_torn_or_corrupt_tail_is_dropped() {
        let mut text = String::new();
        push_line(&mut text, &JournalEntry::Ended(node(), status(1, 0)));
        let whole = text.len();
        push_line(&mut text, &JournalEntry::Ended(node(), status(2, 0)));
        for len in whole..text.len() {
            assert_eq!(read(&text.as_bytes()[..len]).0.ended.len(), 1, "{len}");
        }
        let mut bytes = text.into_bytes();
        bytes[whole + 8] ^= 1;
        assert_eq!(read(&bytes).0.ended.len(), 1);
    }

    #[test]
    fn the_file_is_written_anew_when_most_of_it_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path()).unwrap();
        writer.append(&"x".repeat(usize::try_from(COMPACT_BYTES_MIN).unwrap() + 1), true).unwrap();
        let bytes = fs::read(dir.path().join(FILE)).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "room alone");
    }

    #[test]
    fn what_ends_on_a_full_disk_has_its_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut writer = Writer::open(dir.path()).unwrap();
        let len = || fs::metadata(&path).unwrap().len();
        let first = len();
        assert!(first >= ROOM_BYTES, "{first}");
        let mut text = String::new();
        (0..1_000).for_each(|unit| push_line(&mut text, &JournalEntry::Ended(node(), status(unit, 0))));
        assert!(u64::try_from(text.len()).unwrap() < ROOM_BYTES_MIN);
        writer.append(&text, true).unwrap();
        assert_eq!(len(), first, "nothing more is taken for the ends of a whole node");
        assert_eq!(read(&fs::read(&path).unwrap()).0.ended.len(), 1_000);
        (0..9).for_each(|_| writer.append(&text, true).unwrap());
        assert!(len() > first, "and room is there again behind what was written");
    }

    #[test]
    fn a_journal_that_cannot_be_written_anew_goes_on_behind_what_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut text = String::new();
        push_line(&mut text, &JournalEntry::Ended(node(), status(1, 0)));
        let whole = u64::try_from(text.len()).unwrap();
        push_line(&mut text, &JournalEntry::Ended(node(), status(2, 0)));
        let torn = &text[..text.len() - 3];
        fs::write(&path, torn).unwrap();
        let mut lines = Lines::reopen(&path, whole).unwrap();
        text.clear();
        push_line(&mut text, &JournalEntry::Ended(node(), status(7, 0)));
        lines.append(&text).unwrap();
        let (kept, bytes) = read(&fs::read(&path).unwrap());
        let units: Vec<u64> = kept.ended.keys().map(|(_, key)| key.unit).collect();
        assert_eq!((units, bytes), (vec![1, 7], whole + u64::try_from(text.len()).unwrap()));
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(Journal::open(&dir.path().join("file")), Err(Error::Open { .. })));
    }
}
