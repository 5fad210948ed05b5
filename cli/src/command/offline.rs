//! Verbs that need no server.

use std::path::Path;

use clap::CommandFactory as _;
use godel_client::{
    exit::{Code, Failure},
    output::{self, Format},
    view,
};
use godel_crash::CrashPoints;
use godel_kit::clock::SystemClock;
use godel_proto::v1;
use godel_store::{
    Engine, Key, SledConfig, StorePlace,
    admin::{self, UnreadablePolicy},
    log::etcd::{EtcdConfig, PREFIX_DEFAULT, is_in_etcd},
    migration::{self, MigrationReport},
};
use godel_wire::from_proto;
use godel_wire::ops;
use serde::Serialize;

use crate::{
    args::{Args, Config, EtcdArgs, State},
    config::{self, Root},
};

view! {
    /// A check as JSON.
    struct CheckView from (report: &admin::CheckReport) {
        ok: bool = report.is_ok(),
        store_id: u64 = report.store_id,
        revision: u64 = report.revision,
        acknowledged: Option<u64> = report.acknowledged,
        floor: u64 = report.floor,
        rows: u64 = report.rows,
        torn: Option<String> = report.torn.clone(),
        notes: Vec<String> = report.notes.clone(),
        lost: Option<LossView> =
            report.loss.map(|loss| LossView { from: loss.from, n_commits: loss.n_commits() }),
        history_missing: Vec<RangeView> =
            report.history_missing.iter().map(|&(from, to)| RangeView { from, to }).collect(),
        unreadable: Vec<String> = report.unreadable.clone(),
        problems: Vec<String> = report.problems.clone(),
    }
}

/// Commits that cannot be recovered.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LossView {
    from: u64,
    n_commits: Option<u64>,
}

/// Revisions, first and last.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct RangeView {
    from: u64,
    to: u64,
}

/// An export, or a store that was created from one, as JSON.
#[derive(Serialize)]
struct CopiedView {
    revision: u64,
    store_id: u64,
    to: String,
    /// The command that starts the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
}

/// A store that was moved, as JSON.
#[derive(Serialize)]
struct MigratedView {
    store_id: u64,
    revision: u64,
    floor: u64,
    generations: u64,
    bytes: u64,
    from: String,
    to: String,
    /// The command that starts the store.
    start: String,
}

/// Records that were removed, as JSON.
#[derive(Serialize)]
struct RemovedView {
    removed: Vec<String>,
    revision: u64,
}

/// A store without what was lost, as JSON.
#[derive(Serialize)]
struct TruncatedView {
    /// The last one that is there.
    revision: u64,
    lost: String,
    kept_in: String,
}

pub(super) async fn state(state: State, format: Format) -> Result<(), Failure> {
    // Files only, and for long.
    let worked = tokio::task::spawn_blocking(move || state_blocking(state, format)).await;
    worked.unwrap_or_else(|_| Err(Failure::failed("reading the store panicked")))
}

fn state_blocking(state: State, format: Format) -> Result<(), Failure> {
    match state {
        State::Check { dir, etcd } => {
            let report = match etcd_of(&dir, &etcd)? {
                Some(etcd) => admin::check_etcd(&etcd, &readable),
                None => admin::check(&dir, &readable),
            };
            let report = report.map_err(|error| explain_admin(&error))?;
            output::show(format, &CheckView::from(&report), || format!("{report}\n"))?;
            if report.is_ok() { Ok(()) } else { Err(damaged(&report, &dir)) }
        }
        State::Export { dir, file, etcd } => {
            let report = match etcd_of(&dir, &etcd)? {
                Some(etcd) => admin::export_etcd(&etcd, &file),
                None => admin::export(&dir, &file),
            };
            let report = report.map_err(|error| explain_admin(&error))?;
            let (revision, store_id) = (report.revision, report.store_id);
            let said = format!("exported revision {revision} of store {store_id} to {}", file.display());
            let to = file.display().to_string();
            tell(format, &CopiedView { revision, store_id, to, start: None }, &[said])
        }
        State::Restore { file, dir, keep_unreadable } => {
            let unreadable = if keep_unreadable { UnreadablePolicy::Keep } else { UnreadablePolicy::Refuse };
            let report =
                admin::restore(&file, &dir, &readable, unreadable).map_err(|error| explain_admin(&error))?;
            let (revision, store_id) = (report.revision, report.store_id);
            let to = dir.display().to_string();
            let start = start_of(&dir);
            let said = [
                format!("restored to {to}, as store {store_id}; its revisions continue from {revision}"),
                format!("start it with: {start}"),
            ];
            tell(format, &CopiedView { revision, store_id, to, start: Some(start) }, &said)
        }
        State::Migrate { from, to, etcd } => {
            let engines = (engine_of(&from, &etcd)?, engine_of(&to, &etcd)?);
            migrate(&engines.0, &engines.1, format)
        }
        State::Repair { dir, remove, truncate, etcd } => match &remove[..] {
            [kind, key] if !truncate => {
                let (kind, key) = record_named(kind, key)?;
                let now_ms = SystemClock::shared().wall_ms();
                let report = match etcd_of(&dir, &etcd)? {
                    Some(etcd) => admin::remove_etcd(&etcd, kind, &key, now_ms),
                    None => admin::remove(&dir, kind, &key, now_ms),
                };
                let report = report.map_err(|error| explain_admin(&error))?;
                let mut said: Vec<String> =
                    report.removed.iter().map(|removed| format!("removed: {removed}")).collect();
                said.push(format!("committed as revision {}", report.revision));
                let removed = report.removed.iter().map(ToString::to_string).collect();
                tell(format, &RemovedView { removed, revision: report.revision }, &said)
            }
            _ => {
                let etcd = etcd_of(&dir, &etcd)?;
                let report = etcd.as_ref().map_or_else(|| admin::truncate(&dir), admin::truncate_etcd);
                let report = report.map_err(|error| explain_admin(&error))?;
                let kept_in = match etcd {
                    Some(_) => format!("the keys of etcd that begin with {}", report.kept_in.display()),
                    None => report.kept_in.display().to_string(),
                };
                let said = [
                    format!("recovered everything up to revision {}", report.recovered),
                    format!("lost: {}", report.loss),
                    format!("the damaged store is kept in {kept_in}"),
                ];
                let lost = report.loss.to_string();
                tell(format, &TruncatedView { revision: report.recovered, lost, kept_in }, &said)
            }
        },
    }
}

/// `godel state migrate`.
fn migrate(from: &Engine, to: &Engine, format: Format) -> Result<(), Failure> {
    let report = migration::migrate(from, to, &CrashPoints::default());
    let MigrationReport { store_id, revision, floor, generations, bytes } =
        report.map_err(|error| explain_admin(&error))?;
    let start = start_in(to);
    let (from, to) = (from.to_string(), to.to_string());
    let said = [
        format!(
            "moved store {store_id} from {from} to {to}: revision {revision}, history from {floor}, {bytes} bytes"
        ),
        format!("{from} can be read, and is not served any more"),
        "move `pki` and the socket of state with it, if they are beside the data directory".to_owned(),
        format!("start it with: {start}"),
    ];
    let view = MigratedView { store_id, revision, floor, generations, bytes, from, to, start };
    tell(format, &view, &said)
}

/// The etcd that holds the store of the state in `dir`, if it is in one.
fn etcd_of(dir: &Path, args: &EtcdArgs) -> Result<Option<EtcdConfig>, Failure> {
    if args.etcd_endpoints.is_none() && !is_in_etcd(dir) {
        return Ok(None);
    }
    etcd_named(dir, args).map(Some)
}

/// The etcd that the flags name, for the state in `dir`.
fn etcd_named(dir: &Path, args: &EtcdArgs) -> Result<EtcdConfig, Failure> {
    let root = config::load(&args.layers, &[("state.etcd.endpoints", args.etcd_endpoints.clone())])?;
    let section = &root.state.etcd;
    section.validate().map_err(|bad| Failure::usage(format!("state.{}: {}", bad.path, bad.description)))?;
    section.store(dir).map_err(|error| Failure::chain(Code::Usage, &error))
}

/// The engine of a place.
fn engine_of(place: &StorePlace, args: &EtcdArgs) -> Result<Engine, Failure> {
    Ok(match place {
        StorePlace::Sled(dir) => Engine::Sled(SledConfig::new(dir)),
        StorePlace::Etcd(dir) => Engine::Etcd(etcd_named(dir, args)?),
    })
}

/// The engine of a new store of the state in `dir`: an etcd, if endpoints are given.
pub(super) fn engine_in(dir: &Path, args: &EtcdArgs) -> Result<Engine, Failure> {
    Ok(match args.etcd_endpoints {
        Some(_) => Engine::Etcd(etcd_named(dir, args)?),
        None => Engine::Sled(SledConfig::new(dir)),
    })
}

/// The command that starts the store in an engine.
pub(super) fn start_in(engine: &Engine) -> String {
    match engine {
        Engine::Sled(config) => start_of(&config.dir),
        Engine::Etcd(config) => {
            let dir = config.dir.display();
            let command = format!("godel serve state --engine etcd --etcd-endpoints URL,… --data-dir {dir}");
            if config.prefix == PREFIX_DEFAULT {
                return command;
            }
            format!("{command} --set state.etcd.prefix={}", config.prefix)
        }
        // It has no place that anybody could name.
        Engine::Memory(_) => String::new(),
    }
}

/// The command that starts the store in `dir`: `godel up` reads the folder `state` of its data directory.
pub(super) fn start_of(dir: &Path) -> String {
    match dir.parent() {
        Some(parent) if dir.file_name().is_some_and(|name| name == "state") => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            format!("godel up --data-dir {}", parent.display())
        }
        _ => format!("godel serve state --data-dir {}", dir.display()),
    }
}

/// Lines for people, or a document.
pub(super) fn tell<V: Serialize>(format: Format, view: &V, said: &[String]) -> Result<(), Failure> {
    match format {
        Format::Json | Format::Yaml => output::print_value(format, view),
        Format::Table | Format::Wide => {
            said.iter().for_each(output::say);
            Ok(())
        }
    }
}

/// Whether the services can read a record.
pub(super) fn readable(record: &v1::Record) -> Result<(), String> {
    from_proto::record(record.clone()).map(|_| ()).map_err(|error| error.to_string())
}

/// What to do next depends on what is wrong.
fn damaged(report: &admin::CheckReport, dir: &Path) -> Failure {
    let dir = dir.display();
    let hint = if report.loss.is_some() {
        format!(
            "drop what is missing with `godel state repair --truncate {dir}`, or create a new store from an \
             export with `godel state restore FILE DIR`"
        )
    } else if report.unreadable.is_empty() {
        "the state is whole and the store opens; watchers that ask for missing history list again".to_owned()
    } else {
        format!("remove unreadable records with `godel state repair {dir} --remove KIND KEY`")
    };
    Failure::failed("the store is damaged").hint(hint)
}

/// A record by its kind and key as people write them: `queue prod`, `KIND_UNIT 17`.
fn record_named(kind: &str, key: &str) -> Result<(v1::Kind, Key), Failure> {
    let name = kind.to_uppercase().replace('-', "_");
    let name = name.strip_prefix("KIND_").unwrap_or(&name);
    let known =
        v1::Kind::from_str_name(&format!("KIND_{name}")).filter(|kind| *kind != v1::Kind::Unspecified);
    let kind = known.ok_or_else(|| {
        let all: Vec<_> = godel_proto::kinds::WHOLE
            .iter()
            .map(|kind| kind.as_str_name().trim_start_matches("KIND_").to_lowercase().replace('_', "-"))
            .collect();
        Failure::usage(format!("unknown kind of record `{kind}`; known kinds are {}", all.join(", ")))
    })?;
    let by_id = v1::Key { id: key.parse().unwrap_or(0), name: key.to_owned() };
    let key = ops::key_from_proto(kind, Some(&by_id)).map_err(|error| {
        Failure::usage(format!("`{key}` is not a key of a {}: {error}", kind.as_str_name()))
    })?;
    Ok((kind, key))
}

pub(super) fn explain_admin(error: &admin::AdminError) -> Failure {
    let code = match error {
        admin::AdminError::NoStore { .. } | admin::AdminError::NoStoreAt { .. } => Code::NotFound,
        admin::AdminError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Code::NotFound
        }
        admin::AdminError::NotEmpty { .. }
        | admin::AdminError::BadExport { .. }
        | admin::AdminError::NotDamaged { .. }
        | admin::AdminError::NotRemoved { .. } => Code::Usage,
        admin::AdminError::Exists { .. } => Code::Conflict,
        admin::AdminError::Unreadable { .. }
        | admin::AdminError::Differs { .. }
        | admin::AdminError::Io { .. }
        | admin::AdminError::Open(_) => Code::Failed,
    };
    let failure = Failure::chain(code, error);
    match error {
        admin::AdminError::NoStore { .. } => failure
            .hint("name the directory of the store: that of `--data-dir`, for `godel up` its folder `state`"),
        _ => failure,
    }
}

pub(super) fn config(config: &Config) -> Result<(), Failure> {
    match config {
        Config::Reference => output::print(&reference()),
    }
}

/// The configuration reference, whole.
fn reference() -> String {
    format!("{INTRODUCTION}\n{}", godel_kit::config::reference_markdown::<Root>())
}

const INTRODUCTION: &str = "# Configuration reference

Generated by `godel config reference`; do not edit.

Configuration comes in layers; a later layer overrides an earlier one: the defaults below, files (`--config FILE`,
TOML or YAML), environment variables, `--set KEY=VALUE`, and flags. Unknown keys are refused, and so are environment variables that join
the parts of a key by one underscore, as `GODEL_STATE_NODE_GRACE`: two are needed. `godel up` reads every
section, `godel serve PART` and `godel agent` read their own section.
";

pub(super) fn completion(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "godel", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_names_every_part() {
        let text = reference();
        for part in ["state", "dispatcher", "scheduler", "binder", "agent", "yarn", "rescheduler"] {
            assert!(text.contains(&format!("`{part}")), "{part}");
        }
        assert!(text.contains("GODEL_SCHEDULER__SURPLUS"));
    }

    #[test]
    fn records_are_named_as_people_write_them() {
        for kind in ["queue", "QUEUE", "KIND_QUEUE", "kind_queue"] {
            assert_eq!(record_named(kind, "prod").unwrap(), (v1::Kind::Queue, Key::Name("prod".to_owned())));
        }
        assert_eq!(record_named("unit", "17").unwrap(), (v1::Kind::Unit, Key::Id(17)));
        for (kind, key) in [("que", "prod"), ("unspecified", "1"), ("unit", "web"), ("node-spec", "0")] {
            let failure = record_named(kind, key).unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{kind} {key}");
        }
        let failure = record_named("que", "prod").unwrap_err();
        assert!(failure.message.contains("priority-class"), "{failure}");
    }

    #[test]
    fn a_record_that_services_cannot_read_is_found() {
        let queue = |policy| {
            let meta = Some(v1::ObjectMeta { name: "q".to_owned(), ..v1::ObjectMeta::default() });
            let queue = v1::Queue { meta, policy, ..v1::Queue::default() };
            v1::Record { record: Some(v1::record::Record::Queue(queue)), ..v1::Record::default() }
        };
        assert_eq!(readable(&queue(0)), Ok(()));
        assert!(readable(&queue(77)).unwrap_err().contains("policy"));
    }

    /// A store with a queue that no service can read, dropped as if it had been killed.
    fn store_with_unreadable(dir: &Path) {
        use godel_proto::raw;
        use godel_store::{Role, SledConfig, Store, StoreConfig};
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let config = StoreConfig::new(Engine::Sled(SledConfig::new(dir)));
        let store = Store::open(config, std::sync::Arc::new(|| 7), CrashPoints::default()).unwrap();
        let lease = v1::LeaseRecord {
            lease: "dispatcher".to_owned(),
            holder: "d".to_owned(),
            epoch: 1,
            ..v1::LeaseRecord::default()
        };
        let ops = vec![raw::encode_op(v1::op::Op::PutLease(lease))];
        let granted = store.submit(raw::TxnRequest { ops, ..raw::TxnRequest::default() }, Role::State);
        runtime.block_on(granted).unwrap();
        for (sequence, policy) in [(1, 0), (2, 77)] {
            let meta = Some(v1::ObjectMeta { name: format!("policy-{policy}"), ..v1::ObjectMeta::default() });
            let queue = v1::Queue { meta, policy, ..v1::Queue::default() };
            let writer = Some(v1::Writer { lease: "dispatcher".to_owned(), epoch: 1, sequence });
            let ops = vec![raw::encode_op(v1::op::Op::PutQueue(queue))];
            let txn = raw::TxnRequest { writer, ops, ..raw::TxnRequest::default() };
            runtime.block_on(store.submit(txn, Role::Leased)).unwrap();
        }
    }

    #[test]
    fn check_and_repair_end_as_their_help_says() {
        let place = tempfile::tempdir().unwrap();
        let (dir, file) = (place.path().join("store"), place.path().join("e"));
        store_with_unreadable(&dir);
        let check = |dir: &Path| {
            state_blocking(State::Check { dir: dir.to_owned(), etcd: EtcdArgs::default() }, Format::Json)
        };
        let repair = |remove: &[&str]| {
            let remove = remove.iter().map(|word| (*word).to_owned()).collect();
            state_blocking(
                State::Repair { dir: dir.clone(), remove, truncate: false, etcd: EtcdArgs::default() },
                Format::Table,
            )
        };
        let truncate = || State::Repair {
            dir: dir.clone(),
            remove: Vec::new(),
            truncate: true,
            etcd: EtcdArgs::default(),
        };
        let code = |done: Result<(), Failure>| done.err().map(|failure| failure.code);
        // One record that nobody can read.
        let failure = check(&dir).unwrap_err();
        assert_eq!(failure.code, Code::Failed);
        assert!(failure.hint.unwrap().contains("--remove KIND KEY"));
        let export = || State::Export { dir: dir.clone(), file: file.clone(), etcd: EtcdArgs::default() };
        let export = || state_blocking(export(), Format::Table);
        export().unwrap();
        assert_eq!(code(export()), Some(Code::Conflict));
        let restore = |keep_unreadable| State::Restore {
            file: file.clone(),
            dir: place.path().join("restored"),
            keep_unreadable,
        };
        let failure = state_blocking(restore(false), Format::Table).unwrap_err();
        assert_eq!(failure.code, Code::Failed);
        assert!(failure.message.contains("KIND_QUEUE policy-77"), "{failure}");
        state_blocking(restore(true), Format::Table).unwrap();
        assert_eq!(code(repair(&["queue", "nosuch"])), Some(Code::Usage));
        assert_eq!(code(repair(&["lease", "dispatcher"])), Some(Code::Usage));
        repair(&["queue", "policy-77"]).unwrap();
        check(&dir).unwrap();
        assert_eq!(code(state_blocking(truncate(), Format::Table)), Some(Code::Usage), "it is whole");
        // Nothing of the log is there.
        std::fs::remove_file(dir.join("gen-00000001/db")).unwrap();
        let failure = check(&dir).unwrap_err();
        assert!(failure.hint.unwrap().contains("repair --truncate"));
        state_blocking(truncate(), Format::Table).unwrap();
        check(&dir).unwrap();
    }

    #[test]
    fn a_restored_store_is_started_by_the_command_that_reads_it() {
        let start = |dir: &str| start_of(Path::new(dir));
        assert_eq!(start("/var/lib/rest"), "godel serve state --data-dir /var/lib/rest");
        assert_eq!(start("/var/lib/rest/state"), "godel up --data-dir /var/lib/rest");
        assert_eq!(start("state"), "godel up --data-dir .");
    }

    #[test]
    fn a_directory_without_a_store_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let failure = state_blocking(
            State::Check { dir: dir.path().join("no"), etcd: EtcdArgs::default() },
            Format::Table,
        )
        .unwrap_err();
        assert_eq!(failure.code, Code::NotFound);
    }
}
