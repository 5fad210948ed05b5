//! Stores that an earlier version wrote, with records of every kind: they open as they are, and say the same. See `tests/golden/README.md`.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use godel_base::ids::Revision;
use godel_domain::change::Change;
use godel_proto::{
    kinds::{self, KINDS},
    v1,
};
use godel_store::{
    Engine, Record, SledConfig, State, Store, StoreConfig,
    admin::{UnreadablePolicy, check, export, restore},
};
use godel_wire::from_proto;

use crate::support::{open, read_all};

/// The stores `log` and `snapshot`, and the export of the former.
const STORES: &[u8] = include_bytes!("../golden/stores.tar.gz");
/// The records of each of them, as the version wrote them down that made them.
const RECORDS: &str = include_str!("../golden/records.txt");
/// Kinds of records that there were.
const N_KINDS: usize = 21;

fn unpack() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    tar::Archive::new(flate2::read::GzDecoder::new(STORES)).unpack(dir.path()).unwrap();
    dir
}

fn open_default(dir: &Path) -> Store {
    open(StoreConfig { reserve_bytes: 0, ..StoreConfig::new(Engine::Sled(SledConfig::new(dir))) })
}

/// Every record with its kind, in the order of lists.
fn records(state: &State) -> Vec<(v1::Kind, Record)> {
    let mut all = Vec::new();
    for entry in &KINDS {
        let whole = state.records(entry.kind, None).map(|(_, record)| record.clone());
        all.extend(whole.map(|record| (entry.kind, record)));
    }
    let rows = state.rows().iter(None).filter_map(|(unit, ..)| state.rows().record(unit));
    all.extend(rows.map(|record| (v1::Kind::Rows, record)));
    all
}

/// Every record as text: fields that are not set are left out, so that new ones change nothing.
fn dump(state: &State) -> String {
    let mut text = String::new();
    for (kind, record) in records(state) {
        let value = kinds::decode(kind, record.value).unwrap().unwrap();
        let shown = format!("{value:#?}");
        let mut lines: Vec<&str> = shown.lines().filter(|line| !is_unset(line)).collect();
        // Maps have no order of their own.
        for entries in lines.chunk_by_mut(|one, next| is_entry(one) && is_entry(next)) {
            entries.sort_unstable();
        }
        writeln!(text, "{}\n", lines.join("\n")).unwrap();
    }
    text
}

fn is_unset(line: &str) -> bool {
    ["0", "0.0", "None", "false", "\"\"", "b\"\"", "[]", "{}", "Unspecified"].iter().any(|unset| {
        line.trim_start().split_once(": ").is_some_and(|(_, set)| set.strip_suffix(',') == Some(unset))
    })
}

fn is_entry(line: &str) -> bool {
    line.trim_start().starts_with('"') && line.contains("\": ")
}

/// Compares what is in a store, and reads it as everybody does who lists records.
fn judge(store: &Store, name: &str) {
    assert_eq!(store.opened(), &godel_store::Opened::default(), "{name}");
    let records = store.read(records);
    let kinds: BTreeSet<i32> = records.iter().map(|(kind, _)| *kind as i32).collect();
    assert_eq!(kinds.len(), N_KINDS, "{name}: {kinds:?}");
    for (kind, record) in &records {
        from_proto::check_value(*kind, &record.value).unwrap_or_else(|bad| panic!("{name}: {bad}"));
        let value = kinds::decode(*kind, record.value.clone()).unwrap().unwrap();
        // The order of maps is left to chance, and with it that of the bytes.
        assert_eq!(
            kinds::encode(&value).len(),
            record.value.len(),
            "{name}: a field of {value:?} is not known"
        );
    }
    let text = store.read(dump);
    if let Some((line, (is, was))) =
        text.lines().zip(RECORDS.lines()).enumerate().find(|(_, (is, was))| is != was)
    {
        panic!("{name}: line {} of records.txt is `{was}`, and now reads `{is}`", line + 1);
    }
    assert_eq!(text.lines().count(), RECORDS.lines().count(), "{name}");
}

#[tokio::test]
async fn stores_of_an_earlier_version_open_as_they_are() {
    let dir = unpack();
    for (name, revision, is_in_log) in [("log", 62, true), ("snapshot", 286, false)] {
        let path = dir.path().join(name);
        let report =
            check(&path, &|record| from_proto::check_record(record).map_err(|bad| bad.to_string())).unwrap();
        assert!(
            report.is_ok() && report.unreadable.is_empty() && report.notes.is_empty(),
            "{name}: {report}"
        );
        let first = &report.generations[0];
        // All records were written at revisions up to 62.
        assert_eq!((first.base < 62, first.snapshot_bytes == 0), (is_in_log, is_in_log), "{name}: {report}");
        let store = open_default(&path);
        judge(&store, name);
        let status = store.status();
        assert_eq!((status.revision, status.units, status.nodes), (Revision(revision), 2, 2), "{name}");
        let (history, end) = read_all(&store, status.floor, status.revision).await;
        assert!(end.is_none(), "{name}: {end:?}");
        for published in &history {
            for op in &published.commit.ops {
                let change = from_proto::read_op(op);
                assert!(
                    !matches!(change, Change::Unreadable(_)),
                    "{name}, {}: {change:?}",
                    published.revision()
                );
            }
        }
        store.close().await;
        judge(&open_default(&path), name);
    }
}

#[tokio::test]
async fn an_export_of_an_earlier_version_is_restored() {
    let dir = unpack();
    let (file, restored) = (dir.path().join("export"), dir.path().join("restored"));
    let read = |record: &v1::Record| from_proto::check_record(record).map_err(|bad| bad.to_string());
    restore(&file, &restored, &read, UnreadablePolicy::Refuse).unwrap();
    let store = open_default(&restored);
    judge(&store, "restored");
    store.close().await;
    let (again, twice) = (dir.path().join("again"), dir.path().join("twice"));
    export(&restored, &again).unwrap();
    restore(&again, &twice, &read, UnreadablePolicy::Refuse).unwrap();
    judge(&open_default(&twice), "restored twice");
}
