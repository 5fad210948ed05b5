//! From what an engine kept back to the state, and history for watchers.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use godel_base::ids::Revision;
use prost::encoding::encode_varint;

use crate::{
    chunk::{Assembler, Group},
    feed::Published,
    history::Extent,
    log::{Chunks, Claim, Claimed, Generation, LogError, LogReader, Manifest},
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

/// The state: the last complete snapshot with the log after it. What `claimed` says must be there is there.
///
/// # Errors
/// Something is missing or rotten that was acknowledged, or that something later rests on: serving would lose it.
pub(crate) fn recover(reader: &dyn LogReader, claimed: &Claimed) -> Result<Recovered, LogError> {
    let recovered = unpanicked(|| strictly(reader, claimed))?;
    let last = recovered.state.revision();
    match claimed {
        Claimed::AtLeast(claim) if claim.last > last => {
            let torn = recovered.torn.as_deref().unwrap_or("nothing follows");
            let what = format!(
                "the log ends at revision {last}, although revision {} was reached ({torn})",
                claim.last
            );
            Err(LogError::Corrupt(what))
        }
        Claimed::Lost(why) if recovered.torn.is_some() => {
            let torn = recovered.torn.as_deref().unwrap_or_default();
            let what = format!("{why}, and the log has an unfinished end as well ({torn})");
            Err(LogError::Corrupt(what))
        }
        Claimed::AtLeast(_) | Claimed::Never | Claimed::Lost(_) => Ok(recovered),
    }
}

/// As much of the state as is consistent: the furthest revision that can be reached, nothing of it being guessed.
///
/// # Errors
/// What keeps the log does not answer: what can be reached is not known.
pub(crate) fn salvage(reader: &dyn LogReader) -> Result<State, LogError> {
    let generations = reader.generations();
    for (start, manifest) in complete(&generations) {
        let reached = unpanicked(|| {
            let mut recovered = begin(reader, &generations, start, &manifest)?;
            let mut at = generations[start].base;
            for generation in &generations[start..] {
                if generation.base != at || generation.previous_crc != recovered.crc {
                    break;
                }
                let replayed = replay(reader, generation, None, &mut recovered)?;
                at = replayed.last;
                if replayed.problem.is_some() {
                    break;
                }
            }
            // A snapshot is of the revisions from its base to its end: before that the state is a mixture.
            let what = || LogError::Corrupt("the log ends before its snapshot".to_owned());
            if at.0 < manifest.end_revision { Err(what()) } else { Ok(recovered.state) }
        });
        match reached {
            Ok(state) => return Ok(state),
            Err(error @ LogError::Unknown(_)) => return Err(error),
            Err(error) => {
                tracing::debug!(%error, base = %generations[start].base, "this generation cannot be used")
            }
        }
    }
    Ok(State::default())
}

/// Runs what reads the engine's files: where they are rotten, the engine may panic.
pub(crate) fn unpanicked<T>(read: impl FnOnce() -> Result<T, LogError>) -> Result<T, LogError> {
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    read.unwrap_or_else(|_| {
        Err(LogError::Corrupt("the log engine panicked while reading its files".to_owned()))
    })
}

/// Generations with a complete snapshot by their place, the newest first.
fn complete(generations: &[Generation]) -> impl Iterator<Item = (usize, Manifest)> {
    let places = generations.iter().enumerate().rev();
    places.filter_map(|(idx, generation)| Some((idx, generation.manifest?)))
}

/// The state at the snapshot of the generation at place `start`.
fn begin(
    reader: &dyn LogReader,
    generations: &[Generation],
    start: usize,
    manifest: &Manifest,
) -> Result<Recovered, LogError> {
    Ok(Recovered {
        state: snapshot::load(reader, generations[start].base, manifest)?,
        crc: generations[start].previous_crc,
        generations: before(generations, start),
        snapshot_bytes: manifest.bytes,
        incomplete: None,
        torn: None,
    })
}

fn strictly(reader: &dyn LogReader, claimed: &Claimed) -> Result<Recovered, LogError> {
    let generations = reader.generations();
    let mut rotten = None;
    for (start, manifest) in complete(&generations) {
        match begin(reader, &generations, start, &manifest) {
            Ok(mut recovered) => {
                let at = follow(reader, &generations[start..], &manifest, claimed, &mut recovered)?;
                let newest = generations.last();
                if let Some(newest) = newest.filter(|newest| newest.manifest.is_none() || rotten.is_some()) {
                    recovered.incomplete =
                        Some((newest.base, snapshot::unused_attempt(reader, newest.base, at)?));
                }
                if let Some(rotten) = &rotten {
                    tracing::warn!(
                        problem = %rotten,
                        "a snapshot cannot be read; the state was rebuilt from the previous one, and a new \
                         one is written"
                    );
                }
                return Ok(recovered);
            }
            // The one before it and the log since then give the same state.
            Err(error @ LogError::Corrupt(_)) => rotten = rotten.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(rotten.unwrap_or_else(|| LogError::Corrupt("no generation has a complete snapshot".to_owned())))
}

/// Replays the logs of these generations onto the snapshot of the first; the last revision.
fn follow(
    reader: &dyn LogReader,
    generations: &[Generation],
    manifest: &Manifest,
    claimed: &Claimed,
    recovered: &mut Recovered,
) -> Result<Revision, LogError> {
    let mut at = generations.first().map_or(Revision(0), |first| first.base);
    for (idx, generation) in generations.iter().enumerate() {
        if generation.base != at || generation.previous_crc != recovered.crc {
            let what = format!("generation {} does not follow revision {at}", generation.base);
            return Err(LogError::Corrupt(what));
        }
        let replayed = replay(reader, generation, claimed.claim(), recovered)?;
        at = replayed.last;
        if let Some(problem) = replayed.problem {
            let is_newest = idx + 1 == generations.len();
            if !is_newest || problem.is_followed {
                let and = if problem.is_followed { "; the following commits exist" } else { "" };
                return Err(LogError::Corrupt(format!("after revision {at}: {}{and}", problem.what)));
            }
            recovered.torn = Some(format!("after revision {at}: {}", problem.what));
        }
        recovered.generations.push(replayed.extent);
    }
    if let Some(end) = generations.last().and_then(|newest| newest.end) {
        let what = format!("the generation after revision {} is missing", end.revision);
        return Err(LogError::Corrupt(what));
    }
    if at.0 < manifest.end_revision {
        let what = format!("the log ends at revision {at}, before its snapshot at {}", manifest.end_revision);
        return Err(LogError::Corrupt(what));
    }
    Ok(at)
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

/// How far the log of a generation goes.
struct Replayed {
    last: Revision,
    extent: Extent,
    problem: Option<RecoveryProblem>,
}

/// Why it ends there.
struct RecoveryProblem {
    what: String,
    /// Something whole stands behind it.
    is_followed: bool,
}

/// Replays the log of one generation, as far as it is whole.
fn replay(
    reader: &dyn LogReader,
    generation: &Generation,
    claim: Option<&Claim>,
    recovered: &mut Recovered,
) -> Result<Replayed, LogError> {
    let mut at = generation.base;
    let mut extent = Extent::empty(generation.base);
    let mut chunks = reader.scan(generation.base, Revision(at.0 + 1))?;
    let mut assembler = Assembler::new(Some(at.0 + 1), Some(recovered.crc));
    while let Some(chunk) = chunks.next() {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(LogError::Corrupt(what)) => {
                // Nobody can say what the engine has behind it.
                let problem = Some(RecoveryProblem { what, is_followed: true });
                return Ok(Replayed { last: at, extent, problem });
            }
            Err(error) => return Err(error),
        };
        let problem = match assembler.push(&chunk) {
            Ok(None) => continue,
            Ok(Some(group)) => match whole(&group, claim) {
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
                Err(what) => RecoveryProblem { what, is_followed: true },
            },
            Err(what) => RecoveryProblem { what, is_followed: has_whole_group(chunk, chunks)? },
        };
        return Ok(Replayed { last: at, extent, problem: Some(problem) });
    }
    let open = || RecoveryProblem { what: "the last group is incomplete".to_owned(), is_followed: false };
    Ok(Replayed { last: at, extent, problem: assembler.is_open().then(open) })
}

/// The commits of a group that is the one that was acknowledged.
fn whole(group: &Group, claim: Option<&Claim>) -> Result<Vec<Published>, String> {
    match claim {
        Some(claim) if claim.last == group.last && claim.crc != group.crc => {
            Err(format!("revision {} is not the one that was acknowledged", group.last))
        }
        _ => commits(group),
    }
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
pub(crate) fn commits(group: &Group) -> Result<Vec<Published>, String> {
    let mut payload = group.payload.clone();
    let mut commits = Vec::new();
    let mut next = group.first.0;
    while let Some(encoded) = split_delimited(&mut payload) {
        // A copy of its own: a record that lives on must not keep the whole group.
        let published = Published::decode(Bytes::copy_from_slice(&encoded))
            .map_err(|error| format!("revision {next} does not decode: {error}"))?;
        if published.revision().0 != next {
            return Err(format!("found revision {}, expected {next}", published.revision()));
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

/// Why history could not be read.
#[derive(Debug)]
pub(crate) enum HistoryError {
    /// The generation with this base is not what was written.
    Damaged { base: Revision, what: String },
    /// It may work later.
    Log(LogError),
}

impl HistoryError {
    fn of(base: Revision) -> impl Fn(LogError) -> Self {
        move |error| match error {
            LogError::Corrupt(what) => Self::Damaged { base, what },
            error => Self::Log(error),
        }
    }
}

/// Commits from `from` to `to` in order without a gap, about `bytes_max` of them; empty when `from` is not kept.
///
/// # Errors
/// They cannot be read, or something is missing: what is behind a gap is never given for what should come.
pub(crate) fn history(
    reader: &dyn LogReader,
    from: Revision,
    to: Revision,
    bytes_max: u64,
) -> Result<Vec<Arc<Published>>, HistoryError> {
    let mut history = Vec::new();
    match read_history(reader, from, to, bytes_max, &mut history) {
        // What is whole comes first: whoever goes on from there meets the damage.
        Err(_) if !history.is_empty() => Ok(history),
        read => read.map(|()| history),
    }
}

fn read_history(
    reader: &dyn LogReader,
    from: Revision,
    to: Revision,
    bytes_max: u64,
    history: &mut Vec<Arc<Published>>,
) -> Result<(), HistoryError> {
    let generations = reader.generations();
    let (mut bytes, mut next) = (0, from);
    let start = generations.iter().rposition(|generation| generation.base < from);
    // Of all of them: the chunks of one generation go on where those of the one before ended.
    let mut assembler = Assembler::default();
    for generation in generations.iter().skip(start.unwrap_or(generations.len())) {
        let base = generation.base;
        let damaged = |what| HistoryError::Damaged { base, what };
        if next.0 <= base.0 {
            // The generation before this one ended too early.
            let base =
                generations.iter().rfind(|before| before.base < next).map_or(base, |before| before.base);
            return Err(HistoryError::Damaged { base, what: format!("revision {next} is missing") });
        }
        let mut chunks = unpanicked(|| reader.scan(base, next)).map_err(HistoryError::of(base))?;
        while let Some(chunk) = unpanicked(|| chunks.next().transpose()).map_err(HistoryError::of(base))? {
            let Some(group) = assembler.push(&chunk).map_err(damaged)? else { continue };
            if group.first > to {
                break;
            }
            bytes += group.bytes;
            for commit in commits(&group).map_err(damaged)? {
                if commit.revision() < next || commit.revision() > to {
                    continue;
                }
                if commit.revision() != next {
                    return Err(damaged(format!("revision {next} is missing")));
                }
                next = Revision(next.0 + 1);
                history.push(Arc::new(commit));
            }
            if bytes >= bytes_max {
                return Ok(());
            }
        }
        if next > to {
            return Ok(());
        }
    }
    Ok(())
}
