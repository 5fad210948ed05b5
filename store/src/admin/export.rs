//! A whole store as one portable file, and back.
//!
//! The file begins with `MAGIC`, then come frames: length of the payload (u32, big endian), checksum (crc32c
//! over the payload, continued from the checksum of the frame before, u32, big endian), payload. The first
//! byte of a payload says what follows: `R` a piece of a stream of length-delimited `godel.v1.Record`s, `C` the
//! counters and sequence windows (see `state::load`), `E` the end. A record may begin in one frame and end in
//! the next. History is not part of it.

use std::{
    fs::{self, File},
    io::{BufReader, BufWriter, ErrorKind, Read as _, Write as _},
    path::Path,
};

use bytes::Bytes;
use godel_crash::CrashPoints;
use prost::Message as _;

use super::{AdminError, ContentCheck, Copy};
use crate::{
    identity,
    log::{Log, LogError, files::private_file, sled::Which},
    loss::Loss,
    nearby, recovery,
    snapshot::{self, PIECE_BYTES, Pieces, SnapshotLoader},
    state::State,
    store::{Engine, OpenError, SledConfig},
};

/// First bytes of an export; the last one is the version of the format.
const MAGIC: &[u8; 16] = b"godel-export\0\0\0\x01";
/// Longest payload: frames are about 256 KiB, the counters a few MiB at most.
const FRAME_BYTES_MAX: u32 = 256 << 20;

/// What was exported or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReport {
    /// Which store it is of.
    pub store_id: u64,
    /// Revision of the state.
    pub revision: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What [`restore`] does with records that nobody can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadablePolicy {
    /// Nothing is restored.
    Refuse,
    /// They are restored as they are, to be removed from the store.
    Keep,
}

/// Writes the state of the store in `dir` to the new file `file`, durably. Nobody else may read it.
///
/// # Errors
/// There is no store, it is damaged, another process has it, or the file is there already or cannot be written.
pub fn export(dir: &Path, file: &Path) -> Result<ExportReport, AdminError> {
    write_new(file, || match read_state(dir, Which::Written) {
        // The snapshot before it may still be good: that takes what is sealed, too.
        Err(AdminError::Open(OpenError::Damaged { .. })) => read_state(dir, Which::All),
        state => state,
    })
}

/// Writes a state to a file that must not exist, durably.
pub(super) fn write_new(
    file: &Path,
    read_state: impl FnOnce() -> Result<State, AdminError>,
) -> Result<ExportReport, AdminError> {
    if file.symlink_metadata().is_ok() {
        return Err(AdminError::Exists { file: file.to_owned() });
    }
    let state = read_state()?;
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".part-{}", std::process::id()));
    let temporary = file.with_file_name(name);
    let written = write(&state, &temporary).and_then(|bytes| {
        publish(&temporary, file)?;
        Ok(bytes)
    });
    if !matches!(&written, Err(AdminError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists) {
        // Not of another process.
        let _gone = fs::remove_file(&temporary);
    }
    let bytes = written?;
    if let Some(parent) = file.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed("syncing", parent))?;
    }
    Ok(ExportReport { store_id: state.store_id().0, revision: state.revision().0, bytes })
}

fn read_state(dir: &Path, which: Which) -> Result<State, AdminError> {
    let copy = Copy::of(dir, which)?;
    if let Some(what) = copy.copied.problem.clone() {
        return Err(AdminError::Open(OpenError::Damaged { what, loss: Loss::default() }));
    }
    recover_state(&copy.open()?, |what| copy.of_store(what, dir))
}

/// The state of a log; `in_words` says what is wrong with it, if something is.
pub(super) fn recover_state(log: &dyn Log, in_words: impl Fn(&str) -> String) -> Result<State, AdminError> {
    let (reader, claimed, unopened) = (log.reader(), log.claimed(), log.unopened());
    let recovered = if unopened.is_empty() {
        recovery::recover(&*reader, &claimed)
    } else {
        Err(LogError::Corrupt(unopened.join("; ")))
    };
    match recovered {
        Ok(recovered) => Ok(recovered.state),
        Err(LogError::Corrupt(what)) => {
            let loss = Loss::after(recovery::salvage(&*reader)?.revision(), &claimed);
            Err(AdminError::Open(OpenError::Damaged { what: in_words(&what), loss }))
        }
        Err(error) => Err(error.into()),
    }
}

/// Gives a file that is whole its name, unless another one has it.
fn publish(temporary: &Path, file: &Path) -> Result<(), AdminError> {
    use rustix::{
        fs::{CWD, RenameFlags, renameat_with},
        io::Errno,
    };
    match renameat_with(CWD, temporary, CWD, file, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(AdminError::Exists { file: file.to_owned() }),
        // Not every file system can do that.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(temporary, file) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(AdminError::Exists { file: file.to_owned() })
            }
            linked => linked.map_err(failed("writing", file)),
        },
        Err(error) => Err(failed("writing", file)(error.into())),
    }
}

/// Makes a store in `dir`, absent or empty, from the export `file`: another one than that which was exported, see
/// [`identity`]. Its history begins with its first commit. Its records must be such that `content` can read them.
///
/// # Errors
/// The target holds something, the file is not a whole export, holds what nobody can read, or the store cannot be
/// written.
pub fn restore(
    file: &Path,
    dir: &Path,
    content: ContentCheck<'_>,
    unreadable: UnreadablePolicy,
) -> Result<ExportReport, AdminError> {
    let engine = Engine::Sled(SledConfig::new(dir));
    refuse_used(&engine)?;
    let mut state = read(file)?;
    let records = super::unreadable(&state, content);
    if !records.is_empty() && unreadable == UnreadablePolicy::Refuse {
        return Err(AdminError::Unreadable { file: file.to_owned(), records });
    }
    let bytes = fs::metadata(file).map_err(failed("reading", file))?.len();
    identity::renew(&mut state);
    make_store(&state, &engine)?;
    Ok(ExportReport { store_id: state.store_id().0, revision: state.revision().0, bytes })
}

/// Refuses to make a store where there is something, or where nobody would look for it.
pub(crate) fn refuse_used(engine: &Engine) -> Result<(), AdminError> {
    if engine.holds_anything()? || engine.read_mark()?.is_some() {
        return Err(AdminError::NotEmpty { place: engine.shown() });
    }
    Ok(nearby::refuse(engine)?)
}

/// Makes a store of this state in an engine that is empty, and closes it.
pub(crate) fn make_store(state: &State, engine: &Engine) -> Result<(), AdminError> {
    let mut log = engine.open_log(CrashPoints::default())?;
    snapshot::write_whole(state, &mut *log)?;
    let recovered = recovery::recover(&*log.reader(), &log.claimed())?;
    if recovered.state != *state {
        let what = "the written state reads back differently".to_owned();
        return Err(AdminError::Open(OpenError::Damaged { what, loss: Loss::default() }));
    }
    // A store without a watermark would be taken for one that another machine has written.
    log.opened(&recovered.generations, recovered.state.revision(), recovered.crc)?;
    log.close()?;
    Ok(())
}

pub(super) fn failed(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> AdminError + use<> {
    let what = format!("{what} {}", path.display());
    move |source| AdminError::Io { what, source }
}

fn write(state: &State, path: &Path) -> Result<u64, AdminError> {
    // A link that somebody has put there is not followed, and nothing is overwritten.
    let file = private_file().write(true).create_new(true).open(path).map_err(failed("creating", path))?;
    let mut frames = ExportFrames { out: BufWriter::new(file), crc: 0, bytes: MAGIC.len() as u64 };
    let written = (|| {
        frames.out.write_all(MAGIC)?;
        let mut pieces = Pieces::new(PIECE_BYTES);
        while let Some(piece) = pieces.next(state) {
            frames.put(b'R', &piece)?;
        }
        frames.put(b'C', &state.counters().encode_to_vec())?;
        frames.put(b'E', &[])?;
        frames.out.flush()?;
        frames.out.get_ref().sync_all()
    })();
    written.map_err(failed("writing", path))?;
    Ok(frames.bytes)
}

struct ExportFrames {
    out: BufWriter<File>,
    crc: u32,
    bytes: u64,
}

impl ExportFrames {
    fn put(&mut self, tag: u8, payload: &[u8]) -> std::io::Result<()> {
        let too_long = |_| std::io::Error::other("a frame is too long");
        let len = u32::try_from(payload.len() + 1).map_err(too_long)?;
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, &[tag]), payload);
        self.out.write_all(&len.to_be_bytes())?;
        self.out.write_all(&self.crc.to_be_bytes())?;
        self.out.write_all(&[tag])?;
        self.out.write_all(payload)?;
        self.bytes += 8 + u64::from(len);
        Ok(())
    }
}

fn read(path: &Path) -> Result<State, AdminError> {
    let bad = |what: &str| AdminError::BadExport { file: path.to_owned(), what: what.to_owned() };
    let mut file = BufReader::new(File::open(path).map_err(failed("opening", path))?);
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(|_| bad("the file is too short"))?;
    if magic != *MAGIC {
        return Err(bad("the file has another format or version"));
    }
    let mut loader = SnapshotLoader::default();
    let (mut crc, mut n_pieces, mut has_counters) = (0, 0, false);
    loop {
        let mut header = [0; 8];
        file.read_exact(&mut header).map_err(|_| bad("the end of the file is missing"))?;
        let (len, expected) = header.split_at(4);
        let len = u32::from_be_bytes(len.try_into().map_err(|_| bad("a frame has no length"))?);
        if len == 0 || len > FRAME_BYTES_MAX {
            return Err(bad("a frame has an impossible length"));
        }
        let mut payload = Vec::new();
        let n_read = (&mut file).take(u64::from(len)).read_to_end(&mut payload);
        if n_read.map_err(failed("reading", path))? != len as usize {
            return Err(bad("the end of the file is missing"));
        }
        crc = crc32c::crc32c_append(crc, &payload);
        if crc.to_be_bytes() != expected {
            return Err(bad("a checksum differs"));
        }
        let payload = Bytes::from(payload);
        match payload[0] {
            b'R' | b'C' => {
                has_counters = payload[0] == b'C';
                n_pieces += 1;
                loader.piece(payload.slice(1..), has_counters).map_err(|what| bad(&what))?;
            }
            b'E' if has_counters && loader.is_complete(n_pieces) => return Ok(loader.state),
            _ => return Err(bad("the frames of the file are out of order")),
        }
    }
}
