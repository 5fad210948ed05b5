//! Moves a store from one place to another: the same id, revisions, uids and history, in whole generations as they are.
//!
//! Of the two places never both can be served, and never none. A mark in the target says from where a store comes to it:
//! such a place is not served. A mark in the source says where its store has gone: such a place can be read, and is not
//! served. The second mark is left once the target is whole and was compared with its source, and is the moment at
//! which the store moves: from then on the target counts, whether its own mark has gone already or not. A migration that was
//! cut off before that begins again, with an empty target.

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

/// What a migration leaves in a place.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Mark {
    /// Of the migration, at random: both marks have it.
    #[prost(uint64, tag = "1")]
    migration: u64,
    /// Where the store has gone; empty in a target.
    #[prost(string, tag = "2")]
    to: String,
    /// Where the store comes from; empty in a source.
    #[prost(string, tag = "3")]
    from: String,
}

/// What [`migrate`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    /// Which store it is, before and after.
    pub store_id: u64,
    /// Its revision.
    pub revision: u64,
    /// First revision of its history.
    pub floor: u64,
    /// Generations that were copied.
    pub generations: u64,
    /// Bytes of their chunks.
    pub bytes: u64,
}

fn read_mark(engine: &Engine) -> Result<Option<Mark>, LogError> {
    let Some(bytes) = engine.read_mark()? else { return Ok(None) };
    let bad = |what| LogError::Corrupt(format!("the mark of a migration in {engine}: {what}"));
    envelope::open(MARK, &bytes).map(Some).map_err(bad)
}

/// What a migration has left in a place, in words.
pub(crate) fn describe(engine: &Engine) -> Result<Option<String>, LogError> {
    let mark = read_mark(engine)?;
    Ok(mark.map(|mark| match mark.to.as_str() {
        "" => format!("it is being moved here from {}, and is not served before that has ended", mark.from),
        to => format!("it was moved to {to}, and is not served here"),
    }))
}

/// Whether a store may be served from here, and changed. Ends a migration to here of which the mark alone was left.
pub(crate) fn judge_serving(engine: &Engine) -> Result<(), OpenError> {
    let Some(mark) = read_mark(engine)? else { return Ok(()) };
    if mark.from.is_empty() {
        return Err(OpenError::Moved { place: engine.to_string(), to: mark.to });
    }
    // Which etcd a source is in is not known here: the migration is ended by running it again.
    let of_source = match mark.from.parse() {
        Ok(StorePlace::Sled(dir)) => read_mark(&Engine::Sled(SledConfig::new(dir)))?,
        Ok(StorePlace::Etcd(_)) | Err(_) => None,
    };
    if of_source.is_some_and(|of_source| has_gone(&of_source, &mark)) {
        return Ok(engine.write_mark(None)?);
    }
    Err(OpenError::Unfinished { place: engine.to_string(), from: mark.from })
}

/// Whether the source's mark says that its store has gone to the target.
fn has_gone(source: &Mark, target: &Mark) -> bool {
    source.migration == target.migration && !source.to.is_empty()
}

/// Opens the log of a place that may be served.
pub(crate) fn open_unmarked(engine: &Engine, crash: CrashPoints) -> Result<Box<dyn Log>, OpenError> {
    judge_serving(engine)?;
    let log = engine.open_log(crash)?;
    // A migration may have come between: from now on it waits for the log.
    if let Err(error) = judge_serving(engine) {
        log.abandon()?;
        return Err(error);
    }
    Ok(log)
}

/// Moves the store in `from` to `to`, which must be empty, or hold what an earlier attempt to move it there has left. No
/// process may have either of them open. The source stays as it is, and is never served again.
///
/// # Errors
/// There is no store, it is damaged, it has gone elsewhere, the target holds something, or a place cannot be read or
/// written. The source can be served as before, unless it has gone already.
pub fn migrate(from: &Engine, to: &Engine, crash: &CrashPoints) -> Result<MigrationReport, AdminError> {
    let (from, to) = (from.absolute()?, to.absolute()?);
    if from.is_same(&to)? {
        return Err(AdminError::NotEmpty { place: to.to_string() });
    }
    if !from.holds_store()? {
        return Err(AdminError::NoStoreAt { place: from.to_string() });
    }
    let left = read_mark(&to)?;
    // An earlier attempt has ended but for the mark of the target.
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

/// Copies all generations to a log of which nothing was committed.
fn copy(source: &dyn LogReader, target: &mut dyn Log) -> Result<(), LogError> {
    let fence = target.fence();
    let mut end: Option<End> = None;
    for (idx, generation) in source.generations().into_iter().enumerate() {
        let Generation { base, previous_crc, manifest, .. } = generation;
        // A new log begins with a generation of its own, which is the first one of a store whose history is whole.
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

/// The chunks of the pieces of a complete snapshot.
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

/// Chunks whose reading may find the engine's files damaged.
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

/// Compares a target that was closed with its source, chunk by chunk, and the states that both make.
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

/// Bytes of chunks that are equal; `None` if they are not.
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
