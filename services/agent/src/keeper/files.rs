//! The files in the directory of a run, as JSON: small, private, and whole or not there.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use godel_core_agent::RunKey;
use godel_domain::run_end::{RunEnd, RunEndReason};
use godel_membership::agent_admission::AssignmentRefusal;
use rustix::{fs::OFlags, io::Errno};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    bandwidth::BandwidthAsk, cgroup::GroupRecord, config::LocalUserConfig, docker::body::Container,
    procfs::Process, volumes::Volumes, yarn::launch::Launch,
};

pub(crate) const RUN: &str = "run.json";
pub(crate) const KEEPER: &str = "keeper.json";
pub(crate) const END: &str = "end.json";
pub(crate) const LOCK: &str = "lock";
pub(crate) const CONTROL: &str = "control";

/// No file of a run is larger: a unit has at most 64 KiB, a launch context of YARN 512 KiB, and bytes are written as numbers.
const N_BYTES_MAX: u64 = 4 << 20;

/// Bytes that are kept ready for a file: an end has some hundreds.
const ROOM_BYTES: usize = 4096;
/// Bytes of what an end says for people: it has to fit into its room.
pub(crate) const WHY_BYTES_MAX: usize = 2_000;

/// What to run, and how to keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    /// Name of its node.
    pub(crate) node: String,
    pub(crate) unit: u64,
    pub(crate) ordinal: u32,
    pub(crate) incarnation: u32,
    /// Times that it was started again in place before.
    pub(crate) restarts: u32,
    /// Of these since it last ran for long.
    pub(crate) in_row: u32,
    /// In the environment of all that it starts, as `GODEL_RUN`: no other run has it.
    pub(crate) mark: String,
    pub(crate) command: Vec<String>,
    /// The whole environment but for `PATH`, `HOME`, `USER`, `LOGNAME` and `SHELL`, which follow from the user where they are not here.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) directory: Option<String>,
    pub(crate) user: Option<String>,
    /// As whom it runs if it names no user and no row is for its owner; `None`: the default.
    pub(crate) otherwise_user: Option<String>,
    /// Owner of its unit.
    pub(crate) owner: String,
    /// Groups of the owner.
    pub(crate) owner_groups: Vec<String>,
    /// As whom it may run; empty: as anybody.
    pub(crate) users: Vec<LocalUserConfig>,
    /// Files and directories whose owners administer the cluster.
    pub(crate) cluster_paths: Vec<PathBuf>,
    /// Who has submitted its unit; empty: that was not judged.
    pub(crate) principal: String,
    /// It may run if this principal has submitted its unit; empty: whoever has.
    pub(crate) only_principal: String,
    pub(crate) umask: Option<u32>,
    pub(crate) group: Option<GroupRecord>,
    /// It runs in this container; `None`: as a process.
    pub(crate) container: Option<Container>,
    pub(crate) log_dir: PathBuf,
    pub(crate) log_max_bytes: u64,
    pub(crate) log_files: usize,
    /// Ends without contact for so long; 0: never.
    pub(crate) stop_after_ms: u32,
    /// The file that the agent renews as long as it has contact.
    pub(crate) contact: PathBuf,
    /// Between the polite and the forced end, where nobody says another one.
    pub(crate) grace_ms: u32,
    /// It ends when its standard input does.
    pub(crate) ends_with_agent: bool,
    /// The `Assignment` of state from which all of this follows, for the agent that comes later.
    pub(crate) assignment: Vec<u8>,
    /// Directories that its node keeps for it.
    pub(crate) volumes: Volumes,
    /// What it asks for of bandwidths.
    pub(crate) bandwidth: BandwidthAsk,
    /// Files besides those of its control group to which its first process writes itself.
    pub(crate) lists: Vec<PathBuf>,
    /// What it needs before as a YARN container.
    pub(crate) launch: Option<Box<Launch>>,
}

impl Run {
    pub(crate) fn key(&self) -> RunKey {
        RunKey { unit: self.unit, ordinal: self.ordinal }
    }
}

/// Who keeps a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keeper {
    pub(crate) pid: u32,
    pub(crate) began: u64,
    pub(crate) boot_id: String,
    pub(crate) started: Option<Started>,
}

impl Keeper {
    pub(crate) fn process(&self) -> Process {
        Process { pid: self.pid, began: self.began }
    }
}

/// Its command runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    /// Unix milliseconds.
    pub(crate) at_ms: i64,
    /// It is in its control group, or has none.
    pub(crate) in_group: bool,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ended {
    pub(crate) exit_code: i32,
    /// [`RunEndReason::name`]; a reason of another version counts as none.
    pub(crate) reason: String,
    /// For people: why it could not be started.
    pub(crate) why: String,
    /// Nothing of it has run, for the sake of the node: [`AssignmentRefusal::name`]. Empty: something has, or it is its own fault.
    pub(crate) refused: String,
    /// Unix milliseconds; 0: its command never ran.
    pub(crate) started_ms: i64,
    pub(crate) ended_ms: i64,
}

impl Ended {
    /// Why it was not started, if that is the node's fault.
    pub(crate) fn refusal(&self) -> Option<AssignmentRefusal> {
        AssignmentRefusal::ALL.into_iter().find(|why| why.name() == self.refused)
    }

    pub(crate) fn end(&self) -> RunEnd {
        let reason = RunEndReason::of_name(&self.reason);
        RunEnd { reason, started_ms: self.started_ms, ended_ms: self.ended_ms }
    }
}

/// Reads a file of a run.
///
/// # Errors
/// It is not there, or is not what it should be.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let mut bytes = Vec::new();
    File::open(path)?.take(N_BYTES_MAX).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::from)
}

/// Takes the room for a file of a run, so that it can be written whatever becomes of the disk. That of an end is on the disk when this
/// returns.
///
/// # Errors
/// There is no room, or the directory cannot be written.
pub(crate) fn reserve(dir: &Path, name: &str) -> io::Result<()> {
    let mut file = private().create_new(true).open(room(dir, name))?;
    // What is written over it is shorter: JSON may have blanks behind it.
    file.write_all(&[b' '; ROOM_BYTES])?;
    if name == END { file.sync_all() } else { Ok(()) }
}

fn room(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.room"))
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    options
}

/// Writes a file of a run, into its room if that was taken: who reads it finds the old one or the new one. An end is on the disk when
/// this returns; the others mean nothing once the machine has been started again.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write<T: Serialize>(dir: &Path, name: &str, value: &T) -> io::Result<()> {
    let path = dir.join(name);
    let bytes = serde_json::to_vec(value).map_err(io::Error::from)?;
    let in_room = room(dir, name);
    let (mut file, fresh) = match private().open(&in_room) {
        Ok(file) => (file, in_room),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fresh = dir.join(format!("{name}.new"));
            // What was left is not written through: it may be a link.
            let _absent = fs::remove_file(&fresh);
            (private().create_new(true).open(&fresh)?, fresh)
        }
        Err(error) => return Err(error),
    };
    file.write_all(&bytes)?;
    if name == END {
        file.sync_all()?;
    }
    fs::rename(&fresh, &path)?;
    if name == END {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Whether what a disk says may be over some time: it is full, or does not work just now.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    let passing = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];
    error.raw_os_error().is_some_and(|code| passing.iter().any(|one| one.raw_os_error() == code))
}
