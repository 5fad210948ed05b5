//! Moves a store from one place to another, with its id, revisions, uids and history: whole generations are copied unchanged.
//!
//! At any moment exactly one of the two places can be served. A mark in the target names the source: a place with such a mark
//! is not served. A mark in the source names the place to which its store has moved: such a place can be read, but is not
//! served. The mark in the source is written once the target is complete and was compared with it, and this is the moment at
//! which the store moves: from then on the target can be served, whether its own mark was removed already or not. A migration that was
//! interrupted before that starts again with an empty target.

use godel_base::ids::{Revision, StoreId};
use godel_crash::CrashPoints;

use crate::{
    admin::{self, AdminError},
    chunk::{self, Assembler},
    envelope::{self, MARK_BYTES},
    history::Extent,
    identity,
    log::{Chunks, End, Generation, Log, LogError, LogReader, SnapshotPart},
    place::StorePlace,
    recovery::{Recovered, unpanicked},
    snapshot::until_known,
    store::{self, Engine, OpenError, SledConfig},
};

/// First bytes of a mark; the last one is the version of the format.
const MARK: &[u8; MARK_BYTES] = b"godel-migrate\0\0\x01";

/// The mark that a migration writes to a place.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Mark {
    /// Random number of the migration, which both marks have.
    #[prost(uint64, tag = "1")]
    migration: u64,
    /// The place to which the store has moved; empty in a target.
    #[prost(string, tag = "2")]
    to: String,
    /// The place from which the store comes; empty in a source.
    #[prost(string, tag = "3")]
    from: String,
}

/// The result of [`migrate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    /// Id of the store, before and after.
    pub store_id: u64,
    /// Revision of the store.
    pub revision: u64,
    /// First revision of the history.
    pub floor: u64,
    /// Number of generations that were copied.
    pub generations: u64,
    /// Size of their chunks.
    pub bytes: u64,
}

fn read_mark(engine: &Engine) -> Result<Option<Mark>, LogError> {
    let Some(bytes) = engine.read_mark()? else { return Ok(None) };
    let bad = |what| LogError::Corrupt(format!("the mark of a migration in {engine}: {what}"));
    envelope::open(MARK, &bytes).map(Some).map_err(bad)
}

/// Describes the mark of a place.
pub(crate) fn describe(engine: &Engine) -> Result<Option<String>, LogError> {
    let mark = read_mark(engine)?;
    Ok(mark.map(|mark| match mark.to.as_str() {
        "" => {
            format!("it is being moved here from {}, and is not served before the move has ended", mark.from)
        }
        to => format!("it was moved to {to}, and is not served here"),
    }))
}

/// Checks that the store of a place may be served and changed. Completes a migration to this place of which only the mark was left.
pub(crate) fn judge_serving(engine: &Engine) -> Result<(), OpenError> {
    let Some(mark) = read_mark(engine)? else { return Ok(()) };
    if mark.from.is_empty() {
        return Err(OpenError::Moved { place: engine.to_string(), to: mark.to });
    }
    // The etcd of a source is unknown here: running the migration again completes it.
    let of_source = match mark.from.parse() {
        Ok(StorePlace::Sled(dir)) => read_mark(&Engine::Sled(SledConfig::new(dir)))?,
        Ok(StorePlace::Etcd(_)) | Err(_) => None,
    };
    if of_source.is_some_and(|of_source| has_gone(&of_source, &mark)) {
        return Ok(engine.write_mark(None)?);
    }
    Err(OpenError::Unfinished { place: engine.to_string(), from: mark.from })
}

/// Whether the mark of the source says that its store has moved to the target.
fn has_gone(source: &Mark, target: &Mark) -> bool {
    source.migration == target.migration && !source.to.is_empty()
}

/// Opens the log of a place that may be served.
pub(crate) fn open_unmarked(engine: &Engine, crash: CrashPoints) -> Result<Box<dyn Log>, OpenError> {
    judge_serving(engine)?;
    let log = engine.open_log(crash)?;
    // A migration may have started since the first check; from now on the lock of the log keeps it out.
    if let Err(error) = judge_serving(engine) {
        log.abandon()?;
        return Err(error);
    }
    Ok(log)
}

/// Moves the store in `from` to `to`, which must be empty or contain an incomplete earlier attempt at the same move. No
/// process may have either place open. The source is not changed, and is never served again.
///
/// # Errors
/// There is no store, it is damaged or has moved elsewhere, the target is not empty, or a place cannot be read or
/// written. The source can be served as before, unless the store has moved already.
pub fn migrate(from: &Engine, to: &Engine, crash: &CrashPoints) -> Result<MigrationReport, AdminError> {
    let (from, to) = (from.absolute()?, to.absolute()?);
    if from.is_same(&to)? {
        return Err(AdminError::NotEmpty { place: to.to_string() });
    }
    if !from.holds_store()? {
        return Err(AdminError::NoStoreAt { place: from.to_string() });
    }
    let left = read_mark(&to)?;
    // An earlier attempt has completed except for the removal of the mark of the target.
    let is_moved =
        read_mark(&from)?.is_some_and(|source| left.as_ref().is_some_and(|to| has_gone(&source, to)));
    let log = if is_moved {
        from.open_log(CrashPoints::default())
    } else {
        open_unmarked(&from, CrashPoints::default())
    };
    let (log, recovered, _) = store::recover(log?)?;
    let source = log.reader();
    let report = if is_moved {
        compare(&*source, &recovered, &to)?
    } else {
        match left {
            Some(mark) if mark.from == from.to_string() => to.clear()?,
            Some(_) => return Err(AdminError::NotEmpty { place: to.to_string() }),
            None => admin::refuse_used(&to)?,
        }
        let StoreId(migration) = identity::new_id();
        let mark = Mark { migration, to: String::new(), from: from.to_string() };
        to.write_mark(Some(&envelope::seal(MARK, &mark)))?;
        crash.hit("store.migration-begun");
        let mut target = to.open_log(CrashPoints::default())?;
        copy(&*source, &mut *target)?;
        target.close()?;
        crash.hit("store.migration-copied");
        let report = compare(&*source, &recovered, &to)?;
        let mark = Mark { migration, to: to.to_string(), from: String::new() };
        // Whoever has taken the source over meanwhile may have committed what the target lacks.
        from.write_mark_as(&envelope::seal(MARK, &mark), log.fence())?;
        crash.hit("store.migration-moved");
        report
    };
    to.write_mark(None)?;
    drop(source);
    log.close()?;
    Ok(report)
}

/// Copies all generations to a log without commits.
fn copy(source: &dyn LogReader, target: &mut dyn Log) -> Result<(), LogError> {
    let fence = target.fence();
    let mut end: Option<End> = None;
    for (idx, generation) in source.generations().into_iter().enumerate() {
        let Generation { base, previous_crc, manifest, .. } = generation;
        // A new log already has its first generation, which is also that of a store with its whole history.
        if idx > 0 || base.0 > 0 {
            let begin = end.unwrap_or_else(|| End::new(base, previous_crc, Extent::empty(Revision(0))));
            until_known(|| target.put_snapshot(base, SnapshotPart::Begin(begin)))?;
        }
        if let Some(manifest) = manifest.filter(|manifest| manifest.n_pieces > 0) {
            for piece in pieces(source, &generation)? {
                let (piece, chunks) = piece?;
                let attempt = manifest.attempt;
                let part = SnapshotPart::Piece { attempt, piece, chunks: &chunks };
                until_known(|| target.put_snapshot(base, part))?;
            }
            until_known(|| target.put_snapshot(base, SnapshotPart::Complete(manifest)))?;
        }
        if idx == 0 && base.0 > 0 {
            until_known(|| target.drop_before(base))?;
        }
        let mut assembler = Assembler::new(Some(base.0 + 1), Some(previous_crc));
        let (mut group, mut last) = (Vec::new(), None);
        for chunk in read(source, base, |source| source.scan(base, Revision(base.0 + 1)))? {
            let chunk = chunk?;
            let pushed = assembler.push(&chunk).map_err(|what| damaged(base, &what))?;
            group.push(chunk);
            if let Some(whole) = pushed {
                until_known(|| target.append(whole.first, &group, fence))?;
                last = Some((whole.last, whole.crc));
                group.clear();
            }
        }
        if let Some((last, crc)) = last {
            target.synced(last, crc)?;
        }
        end = generation.end;
    }
    Ok(())
}

/// Iterates over the chunks of a complete snapshot.
fn pieces(
    source: &dyn LogReader,
    generation: &Generation,
) -> Result<impl Iterator<Item = Result<(u64, Vec<bytes::Bytes>), LogError>>, LogError> {
    let (base, manifest) = (generation.base, generation.manifest.unwrap_or_default());
    let mut chunks = read(source, base, |source| source.snapshot(base, manifest.attempt))?;
    let mut next_piece = 0;
    Ok(std::iter::from_fn(move || {
        let mut piece = Vec::new();
        while next_piece < manifest.n_pieces {
            let chunk = match chunks.next() {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => return Some(Err(error)),
                None => return Some(Err(damaged(base, "its snapshot is incomplete"))),
            };
            let (header, _) = match chunk::read(&chunk) {
                Ok(read) => read,
                Err(error) => return Some(Err(damaged(base, &error.to_string()))),
            };
            piece.push(chunk);
            if header.index + 1 == header.count {
                next_piece += 1;
                return Some(Ok((header.first, piece)));
            }
        }
        None
    }))
}

/// Chunks of an engine, whose reading may find damage.
fn read(
    source: &dyn LogReader,
    base: Revision,
    open: impl FnOnce(&dyn LogReader) -> Result<Chunks, LogError>,
) -> Result<Chunks, LogError> {
    let mut chunks = unpanicked(|| open(source))?;
    let mut has_failed = false;
    Ok(Box::new(std::iter::from_fn(move || {
        if has_failed {
            return None;
        }
        let next = unpanicked(|| chunks.next().transpose()).transpose()?;
        has_failed = next.is_err();
        Some(next.map_err(|error| match error {
            LogError::Corrupt(what) => damaged(base, &what),
            error => error,
        }))
    })))
}

fn damaged(base: Revision, what: &str) -> LogError {
    LogError::Corrupt(format!("generation {base}: {what}"))
}

/// Compares a target that was closed with its source: chunk by chunk, and as states.
fn compare(source: &dyn LogReader, expected: &Recovered, to: &Engine) -> Result<MigrationReport, AdminError> {
    let (log, found, _) = store::recover(to.open_log(CrashPoints::default())?)?;
    let reader = log.reader();
    let differs = |what: String| AdminError::Differs { place: to.to_string(), what };
    if found.state != expected.state || found.crc != expected.crc {
        return Err(differs("its state".to_owned()));
    }
    let generations = source.generations();
    if generations != reader.generations() {
        return Err(differs("its generations".to_owned()));
    }
    let mut bytes = 0;
    for generation in &generations {
        let base = generation.base;
        let read_log = |of: &dyn LogReader| read(of, base, |of| of.scan(base, Revision(base.0 + 1)));
        bytes += compare_chunks(read_log(source)?, read_log(&*reader)?)?
            .ok_or_else(|| differs(format!("the log of generation {base}")))?;
        if generation.manifest.is_none_or(|manifest| manifest.n_pieces == 0) {
            continue;
        }
        let mut of_target = pieces(&*reader, generation)?;
        for piece in pieces(source, generation)? {
            let piece = piece?;
            if of_target.next().transpose()?.as_ref() != Some(&piece) {
                return Err(differs(format!("the snapshot of generation {base}")));
            }
            bytes += piece.1.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        }
    }
    let report = MigrationReport {
        store_id: found.state.store_id().0,
        revision: found.state.revision().0,
        floor: reader.floor().0,
        generations: generations.len() as u64,
        bytes,
    };
    drop(reader);
    log.close()?;
    Ok(report)
}

/// Compares two sequences of chunks. Returns their size, or `None` if they differ.
fn compare_chunks(mut one: Chunks, mut other: Chunks) -> Result<Option<u64>, LogError> {
    let mut bytes = 0;
    loop {
        match (one.next().transpose()?, other.next().transpose()?) {
            (Some(chunk), Some(same)) if chunk == same => bytes += chunk.len() as u64,
            (None, None) => return Ok(Some(bytes)),
            _ => return Ok(None),
        }
    }
}
