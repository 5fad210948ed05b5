//! Lists of units so large that their rows take several records and pages.

use std::collections::BTreeMap;

use godel_audit::{Commit, World};
use godel_base::ids::{Revision, UnitId};
use godel_domain::{change::Change, records::RecordKind, running_units::RunningUnits};
use godel_kit::{
    CancellationToken,
    client::channel,
    config::ClientConfig,
    informer::{FollowConfig, FollowEvent, Informer},
};
use godel_proto::{raw, v1};
use godel_wire::from_proto;
use prost::Message as _;
use tokio_stream::StreamExt as _;

use crate::harness::{State, Writer, bind, evict, put_unit};

const MESSAGE_BYTES_MAX: usize = 1 << 20;
const N_REPLICAS: u32 = 100_000;

/// Binds all replicas but `left_out`, in transactions of a few thousand.
async fn bind_all(binder: &mut Writer, unit: u64, left_out: &[u32], nodes: &[u32]) {
    let ordinals: Vec<u32> = (0..N_REPLICAS).filter(|ordinal| !left_out.contains(ordinal)).collect();
    for (idx, ordinals) in ordinals.chunks(16_384).enumerate() {
        binder.write([bind(unit, ordinals, nodes[idx % nodes.len()])]).await.unwrap();
    }
}

async fn page(state: &State, page_size: u32, page_token: String) -> v1::ListRecordsResponse {
    let kinds = vec![v1::Kind::Rows.into()];
    let request = v1::ListRecordsRequest { kinds, page_size, page_token };
    let page = state.state().list_records(request).await.unwrap().into_inner();
    assert!(page.encoded_len() <= MESSAGE_BYTES_MAX, "{}", page.encoded_len());
    page
}

/// What readers make of a list: rows by unit, and the auditor's world.
#[derive(Default)]
struct Read {
    parts: BTreeMap<u64, v1::UnitRows>,
    world: World,
}

impl Read {
    fn take(&mut self, page: v1::ListRecordsResponse) {
        for record in page.records {
            if let Some(v1::record::Record::Rows(rows)) = &record.record {
                let joined = self.parts.entry(rows.unit_id).or_default();
                let last = joined.blocks.last().and_then(|block| block.ordinals.last());
                let first = rows.blocks.first().and_then(|block| block.ordinals.first());
                assert!(last < first, "parts come in order of ordinals");
                joined.unit_id = rows.unit_id;
                joined.blocks.extend(rows.blocks.clone());
                joined.evictions.extend(rows.evictions.clone());
            }
            let loaded = from_proto::record(record).unwrap();
            self.world.load(loaded.create_revision, loaded.revision, &loaded.change);
        }
    }

    fn rows(&self) -> BTreeMap<UnitId, RunningUnits> {
        self.parts.values().map(|rows| from_proto::unit_rows(rows.clone()).unwrap()).collect()
    }
}

async fn list(state: &State) -> Read {
    let mut read = Read::default();
    let mut next = page(state, 10_000, String::new()).await;
    loop {
        let page_token = next.next_page_token.clone();
        read.take(next);
        if page_token.is_empty() {
            return read;
        }
        next = page(state, 10_000, page_token).await;
    }
}

/// Every commit from `from` to `to`.
async fn commits(state: &State, from: u64, to: u64) -> Vec<raw::Commit> {
    let request = v1::WatchRequest { from_revision: from, kinds: Vec::new(), ..v1::WatchRequest::default() };
    let mut stream = state.state().watch(request).await.unwrap().into_inner();
    let mut commits = Vec::new();
    while let Some(message) = stream.next().await {
        let message = message.unwrap();
        assert!(message.encoded_len() <= MESSAGE_BYTES_MAX);
        commits.extend(message.commits.into_iter().filter(|commit| commit.revision <= to));
        if message.revision >= to {
            break;
        }
    }
    commits
}

#[tokio::test]
async fn rows_changed_between_two_pages_are_listed_right() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let nodes = [state.register("n1").await.node_id, state.register("n2").await.node_id];
    dispatcher.write([put_unit(1), put_unit(2)]).await.unwrap();
    bind_all(&mut binder, 1, &[7, 50_000, 99_990], &nodes).await;
    binder.write([bind(2, &[0, 1], nodes[0])]).await.unwrap();

    // One transaction changes rows that were listed and rows that will be, after each page.
    let mut read = Read::default();
    let first = page(&state, 4, String::new()).await;
    let (listed_at, mut page_token) = (first.revision, first.next_page_token.clone());
    assert_eq!(first.records.len(), 4, "the first page ends within unit 1");
    read.take(first);
    let mut changes = vec![
        vec![bind(1, &[7, 50_000, 99_990], nodes[1]), evict(1, &[0, 49_999, 99_999])],
        vec![evict(1, &[1, 7, 50_001, 99_990]), bind(1, &[100_000, 120_000], nodes[0]), evict(2, &[1])],
        vec![evict(1, &[2, 50_002, 99_998, 100_000])],
    ]
    .into_iter();
    let (mut last, mut n_pages) = (listed_at, 1);
    while !page_token.is_empty() {
        if let Some(ops) = changes.next() {
            last = binder.write(ops).await.unwrap();
        }
        let next = page(&state, 4, page_token).await;
        assert_eq!(next.revision, listed_at);
        page_token = next.next_page_token.clone();
        read.take(next);
        n_pages += 1;
    }
    assert_eq!((n_pages, changes.len()), (6, 0));

    let stale = read.rows();
    let mut rows = stale.clone();
    for commit in commits(&state, listed_at + 1, last).await {
        let changes: Vec<Change> = commit.ops.iter().map(|op| from_proto::op(op).unwrap()).collect();
        for change in &changes {
            let Change::Rows(unit, change) = change else { panic!("{change:?}") };
            let of = rows.entry(*unit).or_default();
            of.apply(change, Revision(commit.revision), commit.commit_time_ms, |_, _, _| {});
        }
        let (revision, time_ms) = (Revision(commit.revision), commit.commit_time_ms);
        read.world.apply(&Commit { revision, time_ms, changes }, |_, _| {});
    }
    let now = list(&state).await;
    assert!(stale != now.rows(), "the list alone was of no single moment");
    assert!(rows == now.rows(), "the rows that followers make of it");
    assert!(read.world.units == now.world.units, "the world that the auditor makes of it");
    assert_eq!(rows[&UnitId(1)].live().count(), 100_002);
    state.stop().await;
}

#[tokio::test]
async fn a_unit_of_100_000_replicas_is_listed_in_bounded_pages() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let nodes = [state.register("n1").await.node_id, state.register("n2").await.node_id];
    dispatcher.write([put_unit(1), put_unit(2)]).await.unwrap();
    bind_all(&mut binder, 1, &[], &nodes).await;
    let last = binder.write([bind(2, &[3], nodes[0])]).await.unwrap();
    let listed = list(&state).await.rows();
    assert_eq!(listed[&UnitId(1)].live().count(), N_REPLICAS as usize);

    let kinds = [RecordKind::Rows];
    let follow = |page_size| {
        let config = FollowConfig { page_size, ..FollowConfig::default() };
        let channel = channel(&state.uri, &ClientConfig::default()).unwrap();
        Informer::spawn(channel, &kinds, config, CancellationToken::new())
    };
    for page_size in [1, 3, 1_000] {
        let mut follower = follow(page_size);
        let (mut followed, mut n_loaded) = (BTreeMap::new(), 0);
        loop {
            match follower.next().await.unwrap() {
                FollowEvent::Loaded(records) => {
                    for record in records {
                        if let Change::RowsLoaded(unit, rows) = record.change {
                            followed.insert(unit, rows);
                            n_loaded += 1;
                        }
                    }
                }
                FollowEvent::Synced { revision } => {
                    assert!(revision.0 >= last);
                    break;
                }
                FollowEvent::Reset { .. } => {}
                event @ FollowEvent::Committed(_) => panic!("{event:?}"),
            }
        }
        assert_eq!(n_loaded, 2, "each unit once, whole");
        assert!(followed == listed);
    }
    state.stop().await;
}
