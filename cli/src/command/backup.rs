//! `godel backup`.

use std::{path::Path, time::Duration};

use godel_base::ids::Revision;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn},
    view,
};
use godel_kit::{
    client::Backoff,
    status::{self, reason},
};
use godel_proto::v1::{self, read_store_response::Part};
use godel_store::{
    SnapshotStart, StorePart, StoreStart,
    admin::UnreadablePolicy,
    backup::{
        self, BackupDir, BackupEntry, BackupError, BackupManifest, Continuation, NewBackup, VerifiedState,
        VerifyReport,
    },
    log::Manifest,
};
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Code as RpcCode, Status, Streaming};

use super::offline::{engine_in, explain_admin, readable, start_in, tell};
use crate::args::backup::{Backup, BackupCreate, BackupRestore};

/// A stream that delivers nothing for so long is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often a backup is begun whose stream breaks off.
const N_TRIES_MAX: u32 = 5;

view! {
    /// A backup.
    pub(crate) struct BackupView from (manifest: &BackupManifest) {
        number: u64 = manifest.number,
        kind: &'static str = if manifest.is_full() { "full" } else { "increment" },
        #[serde(skip_serializing_if = "Option::is_none")]
        continues: Option<u64> = (!manifest.is_full()).then_some(manifest.continues),
        time: String = output::time(manifest.time_ms),
        store_id: u64 = manifest.store_id,
        first_revision: u64 = manifest.first_revision,
        revision: u64 = manifest.last_revision,
        bytes: u64 = manifest.bytes(),
        files: usize = manifest.files.len(),
        version: String = manifest.version.clone(),
        engine: String = manifest.engine.clone(),
    }
}

impl View for BackupView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("BACKUP", |view| view.number.to_string()),
        ("KIND", |view| view.kind.to_owned()),
        ("TIME", |view| view.time.clone()),
        ("REVISION", |view| view.revision.to_string()),
        ("BYTES", |view| view.bytes.to_string()),
        ("STORE", |view| view.store_id.to_string()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("CONTINUES", |view| view.continues.map_or_else(String::new, |number| number.to_string())),
        ("FROM", |view| view.first_revision.to_string()),
        ("VERSION", |view| view.version.clone()),
        ("ENGINE", |view| view.engine.clone()),
    ];
}

/// What `create` did, as JSON.
#[derive(Serialize)]
struct CreatedView {
    /// Nothing was committed since the last backup: it stays the newest one.
    created: bool,
    #[serde(flatten)]
    backup: BackupView,
    /// Numbers of the backups that were deleted.
    deleted: Vec<u64>,
}

/// What `verify` found, as JSON.
#[derive(Serialize)]
struct VerifiedView {
    ok: bool,
    backups: usize,
    bytes: u64,
    restorable: Vec<RestorableView>,
    problems: Vec<String>,
}

/// Revisions of one chain of backups, as JSON.
#[derive(Serialize)]
struct RestorableView {
    backup: u64,
    store_id: u64,
    from: u64,
    to: u64,
}

/// What `restore` did, as JSON.
#[derive(Serialize)]
struct RestoredView {
    backup: u64,
    restored_revision: u64,
    revision: u64,
    store_id: u64,
    to: String,
    /// The command that starts the store.
    start: String,
}

/// Runs a verb that needs no server.
pub(super) async fn run_offline(verb: Backup, format: Format) -> Result<(), Failure> {
    // Files only, and for long.
    let worked = tokio::task::spawn_blocking(move || match verb {
        Backup::List { dir } => list(&dir, format),
        Backup::Verify { dir } => verify(&dir, format),
        Backup::Restore(wanted) => restore(&wanted, format),
        Backup::Create(_) => Ok(()),
    });
    worked.await.unwrap_or_else(|_| Err(Failure::failed("reading the backups panicked")))
}

/// `godel backup create`.
pub(super) async fn create(client: &Client, wanted: BackupCreate, format: Format) -> Result<(), Failure> {
    let BackupCreate { dir, full, keep } = wanted;
    // Where state does not answer nothing is made.
    let status = client.store_status().await?;
    let backups = BackupDir::take(&dir).map_err(|error| explain(&error))?;
    let continues = if full { None } else { continuation(&backups, status.store_id)? };
    let last = backups.entries().map_err(|error| explain(&error))?.pop();
    let current = match (&continues, last.map(|last| last.manifest)) {
        (Some(continues), Some(Ok(last))) if continues.first.0 == status.revision + 1 => Some(last),
        _ => None,
    };
    let created = current.is_none();
    let manifest = match current {
        Some(last) => last,
        None => fetch(client, &backups, continues).await?,
    };
    let pruned = keep.map_or(Ok(Vec::new()), |keep| backups.prune(keep));
    let deleted = pruned.as_ref().map(Clone::clone).unwrap_or_default();
    let view = CreatedView { created, backup: BackupView::from(&manifest), deleted };
    let is_sealed = status.security.is_some_and(|security| security.tls() != v1::TlsMode::Off);
    tell(format, &view, &said_of(&view, &dir, is_sealed))?;
    // The backup is there all the same.
    pruned.map(drop).map_err(|error| explain(&error))
}

fn said_of(view: &CreatedView, dir: &Path, is_sealed: bool) -> Vec<String> {
    let CreatedView { created, backup, deleted } = view;
    let BackupView { number, kind, store_id, revision, bytes, .. } = backup;
    let mut said = if *created {
        let (of, dir) = (format!("store {store_id} up to revision {revision}"), dir.display());
        vec![format!("backup {number} ({kind}) of {of}: {bytes} bytes in {dir}")]
    } else {
        vec![format!("backup {number} has everything up to revision {revision}; nothing was committed since")]
    };
    if !deleted.is_empty() {
        let numbers: Vec<String> = deleted.iter().map(u64::to_string).collect();
        said.push(format!("deleted: backup {}", numbers.join(", ")));
    }
    if *created && is_sealed {
        said.push(
            "the keys of the CA are sealed in it; keep a copy of `pki/seal.key`, beside the data directory of state, apart from \
             the backups"
                .to_owned(),
        );
    }
    said
}

/// What the next backup continues; says why it will be a full one although there are others.
fn continuation(backups: &BackupDir, store_id: u64) -> Result<Option<Continuation>, Failure> {
    let why = match backups.continuation().map_err(|error| explain(&error))? {
        Ok(continues) if continues.store_id == store_id => return Ok(Some(continues)),
        Ok(continues) => {
            format!(
                "backup {} is of store {}, and this is store {store_id}",
                continues.number, continues.store_id
            )
        }
        Err(None) => return Ok(None),
        Err(Some(why)) => why,
    };
    say_full(&why);
    Ok(None)
}

fn say_full(why: &str) {
    output::say(format!("{why}: a full backup is made"));
}

/// What became of one try.
enum Fetched {
    Done(BackupManifest),
    /// The log alone is not enough, and why.
    NeedsFull(String),
    /// State went away or dropped what it was sending.
    Again(Status),
}

/// Makes the next backup from what state sends, again where that breaks off.
async fn fetch(
    client: &Client,
    backups: &BackupDir,
    mut continues: Option<Continuation>,
) -> Result<BackupManifest, Failure> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut n_tries = 1;
    loop {
        match fetch_once(client, backups, continues.clone()).await? {
            Fetched::Done(manifest) => return Ok(manifest),
            Fetched::NeedsFull(why) if continues.is_some() => {
                say_full(&why);
                continues = None;
            }
            Fetched::NeedsFull(why) => return Err(Failure::failed(why)),
            Fetched::Again(status) if n_tries >= N_TRIES_MAX => return Err(client.explain(status)),
            Fetched::Again(status) => {
                let pause = backoff.pause() + status::retry_after(&status).unwrap_or_default();
                output::say(format!("{}; trying again", status.message()));
                tokio::time::sleep(pause).await;
                n_tries += 1;
            }
        }
    }
}

async fn fetch_once(
    client: &Client,
    backups: &BackupDir,
    continues: Option<Continuation>,
) -> Result<Fetched, Failure> {
    let request = v1::ReadStoreRequest {
        from_revision: continues.as_ref().map_or(0, |continues| continues.first.0),
        store_id: continues.as_ref().map_or(0, |continues| continues.store_id),
    };
    let received = match client.state().read_store(request).await {
        Ok(answer) => receive(answer.into_inner(), backups, continues).await,
        Err(status) => Err(Broken::Stream(status)),
    };
    Ok(match received {
        Ok(manifest) => Fetched::Done(manifest),
        Err(Broken::Stream(status)) => judge(client, status)?,
        Err(Broken::Backup(BackupError::Diverged { number })) => Fetched::NeedsFull(format!(
            "the store has another history than backup {number}, as one that was put back from a copy of files"
        )),
        Err(Broken::Backup(error)) => return Err(explain(&error)),
    })
}

/// What to do about an answer that is none.
fn judge(client: &Client, status: Status) -> Result<Fetched, Failure> {
    let is_out_of_reach = status.code() == RpcCode::OutOfRange
        && [reason::COMPACTED, reason::STORE_CHANGED, reason::FUTURE_REVISION]
            .into_iter()
            .any(|reason| status::has_reason(&status, reason));
    let is_dropped = status.code() == RpcCode::Aborted && status::has_reason(&status, reason::COMPACTED);
    if is_out_of_reach {
        return Ok(Fetched::NeedsFull(status.message().to_owned()));
    }
    if is_dropped || status::is_retryable_idempotent(&status) {
        return Ok(Fetched::Again(status));
    }
    Err(client.explain(status))
}

/// Why a stream did not become a backup.
enum Broken {
    Stream(Status),
    Backup(BackupError),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self::Stream(status)
    }
}

impl From<BackupError> for Broken {
    fn from(error: BackupError) -> Self {
        Self::Backup(error)
    }
}

async fn receive(
    mut stream: Streaming<v1::ReadStoreResponse>,
    backups: &BackupDir,
    continues: Option<Continuation>,
) -> Result<BackupManifest, Broken> {
    let Some(Part::Start(start)) = next(&mut stream).await? else {
        return Err(Status::unavailable("the stream ended before it began").into());
    };
    let v1::StoreStart { store_id, first_revision, last_revision, snapshot, now_ms, version, engine } = start;
    let snapshot = snapshot.map(|snapshot| SnapshotStart {
        base: Revision(snapshot.base_revision),
        previous_crc: snapshot.previous_crc,
        manifest: Manifest {
            attempt: snapshot.attempt,
            n_pieces: snapshot.pieces,
            crc: snapshot.crc,
            end_revision: snapshot.end_revision,
            bytes: snapshot.bytes,
        },
    });
    let start = StoreStart { snapshot, first: Revision(first_revision), last: Revision(last_revision) };
    let new = NewBackup { store_id, start, continues, time_ms: now_ms, version, engine };
    let mut writer = backups.begin(new)?;
    while let Some(part) = next(&mut stream).await? {
        let chunks = |chunks: v1::StoreChunks| chunks.chunks.into_iter().map(Into::into).collect();
        writer.take(&match part {
            Part::Start(_) => return Err(Status::data_loss("the stream began twice").into()),
            Part::Snapshot(of) => StorePart::Snapshot(chunks(of)),
            Part::Log(of) => StorePart::Log(chunks(of)),
        })?;
    }
    Ok(writer.finish()?)
}

/// The next part; `None` at the end of the stream.
async fn next(stream: &mut Streaming<v1::ReadStoreResponse>) -> Result<Option<Part>, Status> {
    let next = tokio::time::timeout(SILENCE_MAX, stream.next()).await;
    let next = next.map_err(|_| Status::deadline_exceeded("state does not answer"))?;
    let Some(answer) = next.transpose()? else { return Ok(None) };
    answer
        .part
        .map(Some)
        .ok_or_else(|| Status::data_loss("state sent a part that this version does not know"))
}

fn list(dir: &Path, format: Format) -> Result<(), Failure> {
    let entries = backup::list(dir).map_err(|error| explain(&error))?;
    let mut views = Vec::new();
    for BackupEntry { number, manifest } in &entries {
        match manifest {
            Ok(manifest) => views.push(BackupView::from(manifest)),
            Err(what) => output::say(format!("backup {number} cannot be read: {what}")),
        }
    }
    output::print_list(format, &views, "backups")?;
    if views.len() == entries.len() {
        return Ok(());
    }
    Err(Failure::failed("a backup cannot be read").hint("`godel backup verify` says what else is wrong"))
}

fn verify(dir: &Path, format: Format) -> Result<(), Failure> {
    let report = backup::verify(dir, &readable).map_err(|error| explain(&error))?;
    let VerifyReport { backups, states, bytes, problems } = &report;
    let restorable = states.iter().map(|state| {
        let VerifiedState { number, store_id, from, revision } = *state;
        RestorableView { backup: number, store_id, from, to: revision }
    });
    let view = VerifiedView {
        ok: report.is_ok(),
        backups: backups.len(),
        bytes: *bytes,
        restorable: restorable.collect(),
        problems: problems.clone(),
    };
    output::show(format, &view, || format!("{report}\n"))?;
    if report.is_ok() {
        return Ok(());
    }
    let hint = "make a full one with `godel backup create DIR --full`; what `verify` lists as whole can be restored with `--at`";
    Err(Failure::failed("some backups are damaged").hint(hint))
}

fn restore(wanted: &BackupRestore, format: Format) -> Result<(), Failure> {
    let BackupRestore { dir, at, data_dir, etcd, keep_unreadable } = wanted;
    let unreadable = if *keep_unreadable { UnreadablePolicy::Keep } else { UnreadablePolicy::Refuse };
    let engine = engine_in(data_dir, etcd)?;
    let report = backup::restore(dir, at.map(Revision), &engine, &readable, unreadable);
    let report = report.map_err(|error| explain(&error))?;
    let (start, to) = (start_in(&engine), engine.shown());
    let view = RestoredView {
        backup: report.number,
        restored_revision: report.restored,
        revision: report.revision,
        store_id: report.store_id,
        to,
        start,
    };
    let said = [
        format!(
            "restored revision {} of backup {} to {}, as store {}; its revisions continue from {}",
            view.restored_revision, view.backup, view.to, view.store_id, view.revision
        ),
        "copy `pki/seal.key` of the store that was backed up to `pki` beside it, if that speaks TLS"
            .to_owned(),
        format!("start it with: {}", view.start),
    ];
    tell(format, &view, &said)
}

fn explain(error: &BackupError) -> Failure {
    let code = match error {
        BackupError::Store(error) => return explain_admin(error),
        BackupError::NoBackup { .. } | BackupError::NotThere { .. } => Code::NotFound,
        BackupError::Locked { .. } => Code::Conflict,
        BackupError::Diverged { .. }
        | BackupError::BadStream { .. }
        | BackupError::Damaged { .. }
        | BackupError::Unreadable { .. }
        | BackupError::File(_) => Code::Failed,
    };
    let failure = Failure::chain(code, error);
    match error {
        BackupError::NoBackup { .. } => failure.hint("`godel backup create DIR` makes one"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(continues: u64) -> BackupManifest {
        BackupManifest {
            number: 3,
            store_id: 7,
            continues,
            first_revision: 11,
            last_revision: 20,
            time_ms: 1_764_500_000_000,
            files: vec![backup::BackupFile { name: "log.chunks".to_owned(), bytes: 99, crc: 1 }],
            ..BackupManifest::default()
        }
    }

    #[test]
    fn what_was_done_is_said_with_where_the_key_is() {
        let view = |created, deleted: &[u64]| CreatedView {
            created,
            backup: BackupView::from(&manifest(2)),
            deleted: deleted.to_vec(),
        };
        let said = said_of(&view(true, &[2, 1]), Path::new("/b"), true);
        assert_eq!(said[0], "backup 3 (increment) of store 7 up to revision 20: 99 bytes in /b");
        assert_eq!(said[1], "deleted: backup 2, 1");
        assert!(said[2].contains("pki/seal.key"));
        assert_eq!(said_of(&view(true, &[]), Path::new("/b"), false).len(), 1);
        assert!(said_of(&view(false, &[]), Path::new("/b"), true)[0].contains("nothing was committed since"));
        assert_eq!(BackupView::from(&manifest(0)).kind, "full");
    }

    #[test]
    fn a_directory_without_backups_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        for dir in [dir.path().to_owned(), dir.path().join("no")] {
            for failed in [list(&dir, Format::Table), verify(&dir, Format::Table)] {
                assert_eq!(failed.unwrap_err().code, Code::NotFound);
            }
        }
    }
}
