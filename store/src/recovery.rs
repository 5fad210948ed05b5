//! From what an engine kept back to the state, and history for watchers.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use godel_core::ids::Revision;
use prost::encoding::encode_varint;

use crate::{
    chunk::{Assembler, Group},
    feed::Published,
    history::Extent,
    log::{Chunks, Generation, LogError, LogReader},
    record::split_delimited,
    snapshot,
    state::State,
};

/// What recovery found.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) state: State,
    /// Checksum of the last chunk of the log.
    pub(crate) crc: u32,
    /// Generations without a gap, oldest first, the newest last.
    pub(crate) generations: Vec<Extent>,
    /// Bytes of the last complete snapshot.
    pub(crate) snapshot_bytes: u64,
    /// The newest generation's base, if its snapshot is not complete, and an attempt at it not made before.
    pub(crate) incomplete: Option<(Revision, u64)>,
    /// What was torn off at the end, if anything: never acknowledged.
    pub(crate) torn: Option<String>,
}

/// Appends an encoded commit to the payload of a group.
pub(crate) fn put_commit(encoded: &[u8], payload: &mut BytesMut) {
    encode_varint(encoded.len() as u64, payload);
    payload.put_slice(encoded);
}

/// The state: the last complete snapshot with the log after it.
///
/// # Errors
/// Something is missing or rotten before something later that is whole: serving would lose what was
/// acknowledged.
pub(crate) fn recover(reader: &dyn LogReader) -> Result<Recovered, LogError> {
    let generations = reader.generations();
    let start = generations.iter().rposition(|generation| generation.manifest.is_some());
    let Some((start, manifest)) = start.and_then(|idx| Some((idx, generations[idx].manifest?))) else {
        return Err(LogError::Corrupt("no generation has a complete snapshot".to_owned()));
    };
    let base = generations[start].base;
    let mut recovered = Recovered {
        state: snapshot::load(reader, base, &manifest)?,
        crc: generations[start].previous_crc,
        generations: before(&generations, start),
        snapshot_bytes: manifest.bytes,
        incomplete: None,
        torn: None,
    };
    let mut at = base;
    for (idx, generation) in generations.iter().enumerate().skip(start) {
        if generation.base != at || generation.previous_crc != recovered.crc {
            let what = format!("generation {} does not follow revision {at}", generation.base);
            return Err(LogError::Corrupt(what));
        }
        let mut extent = Extent::empty(generation.base);
        at = replay(reader, generation, idx + 1 == generations.len(), &mut recovered, &mut extent)?;
        recovered.generations.push(extent);
    }
    if let Some(end) = generations.last().and_then(|newest| newest.end) {
        let what = format!("the generation behind revision {} is missing", end.revision);
        return Err(LogError::Corrupt(what));
    }
    if at.0 < manifest.end_revision {
        let what = format!("the log ends at revision {at}, before its snapshot at {}", manifest.end_revision);
        return Err(LogError::Corrupt(what));
    }
    if let Some(newest) = generations.last().filter(|newest| newest.manifest.is_none()) {
        recovered.incomplete = Some((newest.base, snapshot::unused_attempt(reader, newest.base, at)?));
    }
    Ok(recovered)
}

/// The generations before `start`, back to the first gap. They are not read: the state does not need them.
fn before(generations: &[Generation], start: usize) -> Vec<Extent> {
    let gap = generations[..=start].windows(2).rposition(|pair| !pair[0].is_followed_by(&pair[1]));
    let first = gap.map_or(0, |gap| gap + 1);
    let extents = generations[first..start].iter().filter_map(|&Generation { base, end, .. }| {
        let end = end?;
        Some(Extent { base, bytes: end.bytes, first_commit_ms: end.first_commit_ms })
    });
    extents.collect()
}

/// Replays the log of one generation; its last revision.
fn replay(
    reader: &dyn LogReader,
    generation: &Generation,
    is_newest: bool,
    recovered: &mut Recovered,
    extent: &mut Extent,
) -> Result<Revision, LogError> {
    let mut at = generation.base;
    let mut chunks = reader.scan(generation.base, Revision(at.0 + 1))?;
    let mut assembler = Assembler::new(Some(at.0 + 1), Some(recovered.crc));
    while let Some(chunk) = chunks.next() {
        let chunk = chunk?;
        let problem = match assembler.push(&chunk) {
            Ok(None) => continue,
            Ok(Some(group)) => match commits(&group) {
                Ok(commits) => {
                    for commit in &commits {
                        recovered.state.replay(commit);
                        extent.first_commit_ms.get_or_insert(commit.commit.commit_time_ms);
                    }
                    at = group.last;
                    recovered.crc = group.crc;
                    extent.bytes += group.bytes;
                    continue;
                }
                // Its checksums are right: this version must not go on without what it cannot read.
                Err(problem) => return Err(LogError::Corrupt(format!("after revision {at}: {problem}"))),
            },
            Err(problem) => problem,
        };
        if !is_newest || has_whole_group(chunk, chunks)? {
            return Err(LogError::Corrupt(format!("after revision {at}: {problem}; what follows is there")));
        }
        recovered.torn = Some(format!("after revision {at}: {problem}"));
        return Ok(at);
    }
    if assembler.is_open() {
        let problem = format!("after revision {at}: the last group is not whole");
        if !is_newest {
            return Err(LogError::Corrupt(problem));
        }
        recovered.torn = Some(problem);
    }
    Ok(at)
}

/// Whether a whole group stands in these chunks.
fn has_whole_group(first: Bytes, rest: Chunks) -> Result<bool, LogError> {
    let mut assembler = Assembler::default();
    for chunk in std::iter::once(Ok(first)).chain(rest) {
        let chunk = chunk?;
        let mut pushed = assembler.push(&chunk);
        if pushed.is_err() {
            assembler = Assembler::default();
            pushed = assembler.push(&chunk);
        }
        match pushed {
            Ok(Some(_)) => return Ok(true),
            Ok(None) => {}
            Err(_) => assembler = Assembler::default(),
        }
    }
    Ok(false)
}

/// The commits of a group, in order of revision without a gap.
fn commits(group: &Group) -> Result<Vec<Published>, String> {
    let mut payload = group.payload.clone();
    let mut commits = Vec::new();
    let mut next = group.first.0;
    while let Some(encoded) = split_delimited(&mut payload) {
        // A copy of its own: a record that lives on must not keep the whole group.
        let published = Published::decode(Bytes::copy_from_slice(&encoded))
            .map_err(|error| format!("revision {next} does not decode: {error}"))?;
        if published.revision().0 != next {
            return Err(format!("revision {} stands where {next} must", published.revision()));
        }
        next += 1;
        commits.push(published);
    }
    if !payload.is_empty() || next != group.last.0 + 1 {
        return Err(format!(
            "the group of revision {} does not end with revision {}",
            group.first, group.last
        ));
    }
    Ok(commits)
}

/// Commits from `from` to `to`, about `bytes_max` of them; empty when `from` is not kept.
pub(crate) fn history(
    reader: &dyn LogReader,
    from: Revision,
    to: Revision,
    bytes_max: u64,
) -> Result<Vec<Arc<Published>>, LogError> {
    let generations = reader.generations();
    let mut history: Vec<Arc<Published>> = Vec::new();
    let mut bytes = 0;
    let start = generations.iter().rposition(|generation| generation.base < from);
    // Of all of them: the chunks of one generation go on where those of the one before ended.
    let mut assembler = Assembler::default();
    for generation in generations.iter().skip(start.unwrap_or(generations.len())) {
        for chunk in reader.scan(generation.base, from)? {
            let Some(group) = assembler.push(&chunk?).map_err(LogError::Corrupt)? else { continue };
            if group.first > to {
                return Ok(history);
            }
            bytes += group.bytes;
            let commits = commits(&group).map_err(LogError::Corrupt)?;
            let wanted = commits.into_iter().filter(|commit| (from..=to).contains(&commit.revision()));
            history.extend(wanted.map(Arc::new));
            if bytes >= bytes_max {
                return Ok(history);
            }
        }
    }
    Ok(history)
}
