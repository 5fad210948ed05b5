use std::time::Duration;

use bytes::Bytes;
use godel_base::{
    ids::{NodeId, Revision, StoreId, UnitId},
    resources::Resources,
};
use godel_domain::{
    change::{Change, Commit},
    node::NodeAllocatable,
    queue_spec::QueueSpec,
    records::{Record, RecordKey, RecordKind},
    running_units::{Bind, Evict, EvictionReason, RunChange, RunningUnits},
    unreadable::Unreadable,
};
use godel_proto::{raw, v1};
use godel_wire::to_proto;
use proptest::prelude::*;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::{
    FollowConfig, FollowEvent, Informer, Shared,
    task::{join_rows, read_page},
};
use crate::{
    config::ServerConfig,
    tests::fake::{Fake, Served, soon},
};

fn resources(cpu: i64) -> Resources {
    Resources::new([("cpu", cpu)]).unwrap()
}

fn put(record: Record) -> Bytes {
    to_proto::op(&Change::Put(record)).unwrap()
}

fn allocatable(node: u32, cpu: i64) -> Vec<Bytes> {
    vec![put(Record::NodeAllocatable(NodeAllocatable { id: NodeId(node), amounts: resources(cpu) }))]
}

fn record(node: u32, cpu: i64, revision: u64) -> v1::Record {
    let record = to_proto::node_allocatable(&NodeAllocatable { id: NodeId(node), amounts: resources(cpu) });
    v1::Record {
        revision,
        record: Some(v1::record::Record::NodeAllocatable(record)),
        ..v1::Record::default()
    }
}

fn follow(served: &Served) -> Informer {
    let config =
        FollowConfig { queue: 2, reconnect_max: Duration::from_millis(5), ..FollowConfig::default() };
    Informer::spawn(served.channel(), &[RecordKind::NodeAllocatable], config, CancellationToken::new())
}

async fn next(follower: &mut Informer) -> FollowEvent {
    soon("an event", follower.next()).await.expect("the follower goes on")
}

fn changes(revision: u64, node: u32, cpu: i64) -> FollowEvent {
    FollowEvent::Committed(Commit {
        revision: Revision(revision),
        time_ms: i64::try_from(revision).unwrap() * 10,
        changes: vec![Change::Put(Record::NodeAllocatable(NodeAllocatable {
            id: NodeId(node),
            amounts: resources(cpu),
        }))],
    })
}

fn synced(revision: u64) -> FollowEvent {
    FollowEvent::Synced { revision: Revision(revision) }
}

/// Reads a list of `n_records` records.
async fn read_list(follower: &mut Informer, n_records: usize, revision: u64) {
    let store = read_list_of(follower, n_records, revision).await;
    assert_eq!(store, StoreId(0));
}

/// The same, and of which store it is.
async fn read_list_of(follower: &mut Informer, n_records: usize, revision: u64) -> StoreId {
    let FollowEvent::Reset { store } = next(follower).await else { panic!("a list begins") };
    let mut n_loaded = 0;
    while n_loaded < n_records {
        let FollowEvent::Loaded(records) = next(follower).await else { panic!("the list goes on") };
        n_loaded += records.len();
    }
    assert_eq!(next(follower).await, synced(revision));
    store
}

#[tokio::test]
async fn a_list_in_pages_comes_first_then_each_change_in_order() {
    let fake = Fake::new();
    fake.with(|world| {
        world.records = (1..=5).map(|node| record(node, 1, 1)).collect();
        world.revision = 7;
    });
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 5, 7).await;
    for revision in 8..40u32 {
        fake.commit(allocatable(1, i64::from(revision)));
    }
    for revision in 8..40u32 {
        assert_eq!(next(&mut follower).await, changes(u64::from(revision), 1, i64::from(revision)));
    }
}

#[tokio::test]
async fn broken_watches_that_repeat_commits_lose_and_repeat_nothing() {
    let fake = Fake::new();
    fake.with(|world| world.break_watch_after = Some(4));
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 0, 0).await;
    for revision in 1..=30 {
        fake.commit(allocatable(1, revision));
    }
    for revision in 1..=30u32 {
        assert_eq!(next(&mut follower).await, changes(u64::from(revision), 1, i64::from(revision)));
    }
    assert!(fake.with(|world| world.watches) > 5 && fake.with(|world| world.lists) == 1);
}

#[tokio::test]
async fn a_restarted_store_is_followed_from_the_last_revision() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 0, 0).await;
    fake.commit(allocatable(1, 1));
    assert_eq!(next(&mut follower).await, changes(1, 1, 1));
    let address = served.kill().await;
    fake.commit(allocatable(2, 2));
    let _served = fake.serve_with(address, &ServerConfig::default()).await;
    assert_eq!(next(&mut follower).await, changes(2, 2, 2));
}

#[tokio::test]
async fn a_compacted_history_is_listed_again() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 0, 0).await;
    let address = served.kill().await;
    fake.with(|world| {
        world.records = vec![record(1, 1, 5), record(2, 1, 6), record(3, 1, 9)];
        (world.revision, world.floor) = (9, 8);
    });
    let _served = fake.serve_with(address, &ServerConfig::default()).await;
    read_list(&mut follower, 3, 9).await;
    fake.commit(allocatable(3, 4));
    assert_eq!(next(&mut follower).await, changes(10, 3, 4));
}

#[tokio::test]
async fn another_store_is_listed_anew_whatever_its_revision() {
    // (its id, its revision): an older export, one that is further by now, and the same store put back by a copy of
    // its disk, which shows in the revision alone.
    for (store_id, revision) in [(8, 1), (8, 90), (7, 1)] {
        let fake = Fake::new();
        fake.with(|world| (world.store_id, world.revision) = (7, 9));
        let served = fake.serve().await;
        let mut follower = follow(&served);
        assert_eq!(read_list_of(&mut follower, 0, 9).await, StoreId(7));
        fake.commit(allocatable(1, 1));
        assert_eq!(next(&mut follower).await, changes(10, 1, 1));
        let address = served.kill().await;
        fake.with(|world| {
            (world.store_id, world.revision) = (store_id, revision);
            world.records = vec![record(2, 2, 1)];
            world.commits.clear();
        });
        let _served = fake.serve_with(address, &ServerConfig::default()).await;
        assert_eq!(read_list_of(&mut follower, 1, revision).await, StoreId(store_id));
        let next_revision = fake.commit(allocatable(2, 3));
        assert_eq!(next(&mut follower).await, changes(next_revision, 2, 3));
    }
}

#[tokio::test]
async fn changes_that_the_list_had_already_are_left_out() {
    let fake = Fake::new();
    // The list began at revision 0; its second page was read after revision 2.
    fake.commit(allocatable(1, 1));
    fake.commit(allocatable(2, 2));
    fake.commit(allocatable(2, 3));
    fake.with(|world| {
        world.records = vec![record(1, 0, 0), record(2, 2, 2)];
        (world.list_revision, world.page_len) = (0, 1);
        world.revision = 0;
    });
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 2, 0).await;
    fake.with(|world| world.revision = 3);
    assert_eq!(next(&mut follower).await, changes(1, 1, 1));
    // Revision 2 put what the list showed.
    assert_eq!(next(&mut follower).await, changes(3, 2, 3));
}

#[tokio::test]
async fn a_name_that_came_back_before_the_list_read_it_stays() {
    let fake = Fake::new();
    let spec = |weight| QueueSpec { weight, ..QueueSpec::new("prod") };
    // The list began at revision 1; its last page was read after revision 3.
    fake.commit(vec![put(Record::Queue(spec(1).into()))]);
    fake.commit(vec![to_proto::delete_named(v1::Kind::Queue, "prod")]);
    fake.commit(vec![put(Record::Queue(spec(3).into()))]);
    fake.commit(vec![to_proto::delete_named(v1::Kind::PriorityClass, "prod")]);
    fake.commit(vec![to_proto::delete_named(v1::Kind::Queue, "prod")]);
    fake.with(|world| {
        let record = Some(v1::record::Record::Queue(to_proto::queue(&spec(3))));
        world.records = vec![v1::Record { revision: 3, record, ..v1::Record::default() }];
        (world.list_revision, world.revision) = (1, 1);
    });
    let served = fake.serve().await;
    let kinds = vec![RecordKind::Queue, RecordKind::PriorityClass];
    let mut follower =
        Informer::spawn(served.channel(), &kinds, FollowConfig::default(), CancellationToken::new());
    read_list(&mut follower, 1, 1).await;
    fake.with(|world| world.revision = 5);
    for (at, expected) in [
        (4, Change::Gone(RecordKey::PriorityClass("prod".to_owned()))),
        (5, Change::Gone(RecordKey::Queue("prod".to_owned()))),
    ] {
        let FollowEvent::Committed(Commit { revision, changes, .. }) = next(&mut follower).await else {
            panic!("the deletion of the one before is left out")
        };
        assert_eq!((revision, changes), (Revision(at), vec![expected]));
    }
}

#[tokio::test]
async fn bookmarks_tell_how_far_it_has_read() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 0, 0).await;
    fake.with(|world| world.revision = 12);
    assert_eq!(next(&mut follower).await, synced(12));
    assert!(follower.try_next().is_none());
}

#[tokio::test]
async fn a_stop_ends_it() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let stop = CancellationToken::new();
    let kinds = vec![RecordKind::NodeAllocatable];
    let mut follower = Informer::spawn(served.channel(), &kinds, FollowConfig::default(), stop.clone());
    read_list(&mut follower, 0, 0).await;
    stop.cancel();
    assert_eq!(soon("the end", follower.next()).await, None);
}

fn bad_allocatable(node: u32) -> v1::NodeAllocatable {
    let amounts = [("cpu".to_owned(), -1)].into();
    v1::NodeAllocatable { node_id: node, allocatable: Some(v1::Resources { amounts }) }
}

fn unreadable(change: &Change) -> &Unreadable {
    let Change::Unreadable(unreadable) = change else { panic!("{change:?} was read") };
    unreadable
}

/// Allocatables of two nodes in a list, one of them negative, then changes of both, and another that is negative.
#[tokio::test]
async fn unreadable_records_are_counted_and_the_rest_is_delivered() {
    let fake = Fake::new();
    fake.with(|world| {
        let bad = Some(v1::record::Record::NodeAllocatable(bad_allocatable(1)));
        world.records =
            vec![v1::Record { revision: 1, record: bad, ..v1::Record::default() }, record(2, 1, 1)];
        world.revision = 1;
    });
    let served = fake.serve().await;
    let shared = Shared::default();
    let unread = shared.unread.clone();
    let (kinds, stop) = (vec![RecordKind::NodeAllocatable], CancellationToken::new());
    let mut follower =
        Informer::spawn_with(served.channel(), &kinds, FollowConfig::default(), shared, stop.clone());
    assert_eq!(next(&mut follower).await, FollowEvent::Reset { store: StoreId(0) });
    let FollowEvent::Loaded(records) = next(&mut follower).await else { panic!("a list comes") };
    let [bad, good] = &records[..] else { panic!("{records:?}") };
    assert_eq!(unreadable(&bad.change).key, RecordKey::NodeAllocatable(NodeId(1)));
    assert_eq!(
        good.change,
        Change::Put(Record::NodeAllocatable(NodeAllocatable { id: NodeId(2), amounts: resources(1) }))
    );
    assert_eq!(next(&mut follower).await, synced(1));
    assert_eq!(unread.get(), 1);

    fake.commit(allocatable(2, 7));
    assert_eq!(next(&mut follower).await, changes(2, 2, 7));
    fake.commit(vec![raw::encode_op(v1::op::Op::PutNodeAllocatable(bad_allocatable(2)))]);
    let FollowEvent::Committed(Commit { changes: found, .. }) = next(&mut follower).await else {
        panic!("it comes")
    };
    let found = unreadable(&found[0]);
    assert_eq!(
        (&found.key, found.field.as_str()),
        (&RecordKey::NodeAllocatable(NodeId(2)), "allocatable.amounts[cpu]")
    );
    assert_eq!(unread.get(), 2);
    fake.commit(allocatable(1, 4));
    assert_eq!(next(&mut follower).await, changes(4, 1, 4));
    assert_eq!(unread.get(), 1, "the first one can be read again");
    stop.cancel();
}

/// Operations that no version of this one knows: whatever they did, the list shows it.
#[tokio::test]
async fn an_operation_without_a_readable_key_causes_a_new_list() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let mut follower = follow(&served);
    read_list(&mut follower, 0, 0).await;
    for lists in 2..=4 {
        fake.commit(vec![Bytes::from_static(&[0xff, 0xff])]);
        let revision = fake.with(|world| world.revision);
        read_list(&mut follower, 0, revision).await;
        assert_eq!(fake.with(|world| world.lists), lists);
    }
    fake.commit(vec![Bytes::from_static(&[0xff, 0xff])]);
    let FollowEvent::Committed(Commit { changes, .. }) = next(&mut follower).await else {
        panic!("not for ever")
    };
    assert_eq!(unreadable(&changes[0]).key, RecordKey::Unknown);
    fake.commit(allocatable(1, 1));
    assert_eq!(next(&mut follower).await, self::changes(5, 1, 1));
}

#[test]
fn a_record_that_does_not_decode_is_known_by_its_key() {
    let good = record(2, 1, 1).encode_to_vec();
    let unit = [
        v1::UnitRecord { unit_id: 9, ..v1::UnitRecord::default() }.encode_to_vec(),
        vec![0x12, 5, 0x0a, 3, 0x0a, 1, 0xff],
    ]
    .concat();
    // Revision 3; field 14, which holds a unit whose namespace is no text.
    let bad = [vec![0x10, 3, 0x72, u8::try_from(unit.len()).unwrap()], unit].concat();
    let rows = v1::UnitRows { unit_id: 8, ..v1::UnitRows::default() };
    let rows = v1::Record { record: Some(v1::record::Record::Rows(rows)), ..v1::Record::default() };
    let page = [rows.encode_to_vec(), bad, vec![0xff], good].map(Bytes::from);
    let read = read_page(&mut None, &page, true);
    assert_eq!(read.len(), 4);
    assert_eq!(read[0].change, Change::RowsLoaded(UnitId(8), RunningUnits::default()));
    // The store files it by its first field, and by nothing else.
    assert_eq!(
        (&unreadable(&read[1].change).key, read[1].revision),
        (&RecordKey::Unit(UnitId(9)), Revision(3))
    );
    assert_eq!(unreadable(&read[2].change).key, RecordKey::Unknown);
    assert_eq!(
        read[3].change,
        Change::Put(Record::NodeAllocatable(NodeAllocatable { id: NodeId(2), amounts: resources(1) }))
    );
}

fn rows_record(
    unit: UnitId,
    rows: &RunningUnits,
    ordinals: std::ops::Range<u32>,
    revision: u64,
) -> v1::Record {
    let mut part = to_proto::unit_rows(unit, rows);
    for block in &mut part.blocks {
        let wanted = |idx: &usize| ordinals.contains(&block.ordinals[*idx]);
        let kept: Vec<usize> = (0..block.ordinals.len()).filter(wanted).collect();
        let keep = |column: &[u32]| kept.iter().map(|idx| column[*idx]).collect::<Vec<_>>();
        *block = v1::RowBlock {
            demand: block.demand.take(),
            ordinals: keep(&block.ordinals),
            node_ids: keep(&block.node_ids),
            evictions: keep(&block.evictions),
            phases: kept.iter().map(|idx| block.phases[*idx]).collect(),
            revisions: kept.iter().map(|idx| block.revisions[*idx]).collect(),
            bound_times_ms: kept.iter().map(|idx| block.bound_times_ms[*idx]).collect(),
            ..v1::RowBlock::default()
        };
    }
    v1::Record { revision, record: Some(v1::record::Record::Rows(part)), ..v1::Record::default() }
}

/// Three pages, each with a part of one unit's rows, and between any two of them a transaction that changes rows
/// of all parts.
#[tokio::test]
async fn rows_that_change_between_two_parts_of_a_list_come_out_right() {
    let unit = UnitId(9);
    let bind = |ordinals: &[u32], node| {
        let nodes = vec![NodeId(node); ordinals.len()];
        RunChange::Bind(Bind { ordinals: ordinals.to_vec(), nodes, ..Bind::default() })
    };
    let evict = |ordinals: &[u32]| {
        let (reason, by) = (EvictionReason::Drained, String::new());
        RunChange::Evict(Evict {
            ordinals: ordinals.to_vec(),
            incarnations: Vec::new(),
            reason,
            by,
            preemptor: UnitId(0),
        })
    };
    let history = [
        bind(&[0, 1, 10, 11, 20, 21], 1),
        bind(&[2, 12, 22], 2),
        evict(&[0, 2, 10, 12, 20, 22]),
        bind(&[3, 13, 23, 33], 3),
    ];
    let at = |revision: usize| {
        let mut rows = RunningUnits::default();
        for (idx, change) in (1u32..).zip(&history[..revision]) {
            rows.apply(change, Revision(u64::from(idx)), i64::from(idx) * 10, |_, _, _| {});
        }
        rows
    };
    let fake = Fake::new();
    for change in &history {
        fake.commit(vec![to_proto::row_op(unit, change)]);
    }
    fake.with(|world| {
        world.records = vec![
            rows_record(unit, &at(1), 0..10, 1),
            rows_record(unit, &at(2), 10..20, 2),
            rows_record(unit, &at(3), 20..30, 3),
            record(1, 1, 1),
        ];
        (world.list_revision, world.page_len) = (1, 1);
    });
    let served = fake.serve().await;
    let config = FollowConfig::default();
    let mut follower =
        Informer::spawn(served.channel(), &[RecordKind::Rows], config, CancellationToken::new());
    assert_eq!(next(&mut follower).await, FollowEvent::Reset { store: StoreId(0) });
    let FollowEvent::Loaded(loaded) = next(&mut follower).await else { panic!("the list goes on") };
    let [of_unit, _allocatable] = &loaded[..] else { panic!("{loaded:?}") };
    let Change::RowsLoaded(UnitId(9), rows) = &of_unit.change else { panic!("{of_unit:?}") };
    let mut rows = rows.clone();
    assert_eq!([0, 10, 20].map(|ordinal| rows.row(ordinal).revision.0), [1, 1, 3]);
    assert_eq!([2, 12, 22].map(|ordinal| rows.row(ordinal).revision.0), [0, 2, 3]);
    assert_eq!(next(&mut follower).await, synced(1));
    for revision in 2..=4 {
        let FollowEvent::Committed(Commit { revision: found, time_ms, changes }) = next(&mut follower).await
        else {
            panic!("changes come")
        };
        assert_eq!(found, Revision(revision));
        for change in changes {
            let Change::Rows(UnitId(9), change) = change else { panic!("{change:?}") };
            rows.apply(&change, found, time_ms, |_, _, _| {});
        }
    }
    assert_eq!(rows, at(4));
}

proptest! {
    #[test]
    fn parts_are_joined_whatever_the_pages(
        parts in proptest::collection::vec((1..4u64, 1..5u32, any::<bool>()), 0..20),
        page_len in 1..7usize,
    ) {
        // Units rise, each in a few parts; now and then another record lies between two of them.
        let (mut records, mut expected, mut unit, mut ordinal) = (Vec::new(), Vec::new(), 0, 0);
        for (step, n_parts, between) in parts {
            if between {
                records.push(record(7, 1, 5));
                expected.push((None, Vec::new()));
            }
            unit += step;
            let mut whole = Vec::new();
            for _ in 0..n_parts {
                ordinal += 1;
                whole.push(ordinal);
                let block = v1::RowBlock { ordinals: vec![ordinal], ..v1::RowBlock::default() };
                let rows = v1::UnitRows { unit_id: unit, blocks: vec![block], ..v1::UnitRows::default() };
                let record = Some(v1::record::Record::Rows(rows));
                records.push(v1::Record { revision: u64::from(ordinal), record, ..v1::Record::default() });
            }
            expected.push((Some((unit, u64::from(ordinal))), whole));
        }
        let pages: Vec<Vec<v1::Record>> = records.chunks(page_len).map(<[_]>::to_vec).collect();
        let (mut open, mut found, n_pages) = (None, Vec::new(), pages.len());
        for (idx, page) in pages.into_iter().enumerate() {
            found.extend(join_rows(&mut open, page, idx + 1 == n_pages));
        }
        let found: Vec<_> = found
            .into_iter()
            .map(|record| match record.record {
                Some(v1::record::Record::Rows(rows)) => {
                    let ordinals = rows.blocks.into_iter().flat_map(|block| block.ordinals).collect();
                    (Some((rows.unit_id, record.revision)), ordinals)
                }
                _ => (None, Vec::new()),
            })
            .collect();
        prop_assert_eq!(found, expected);
    }
}
