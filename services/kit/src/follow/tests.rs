use std::time::Duration;

use bytes::Bytes;
use godel_core::{
    change::Change,
    ids::{NodeId, Revision},
    resources::Resources,
};
use godel_proto::v1;
use tokio_util::sync::CancellationToken;

use super::{FollowConfig, FollowEvent, Follower};
use crate::{
    config::ServerConfig,
    fake::{Fake, Served, soon},
    to_proto,
};

fn resources(cpu: i64) -> Resources {
    Resources::new([("cpu", cpu)]).unwrap()
}

fn grant(node: u32, cpu: i64) -> Vec<Bytes> {
    vec![to_proto::put_node_grant(NodeId(node), &resources(cpu))]
}

fn record(node: u32, cpu: i64, revision: u64) -> v1::Record {
    let grant = to_proto::node_grant(NodeId(node), &resources(cpu));
    v1::Record { revision, record: Some(v1::record::Record::NodeGrant(grant)), ..v1::Record::default() }
}

fn follow(served: &Served) -> Follower {
    let config =
        FollowConfig { queue: 2, reconnect_max: Duration::from_millis(5), ..FollowConfig::default() };
    Follower::spawn(served.channel(), vec![v1::Kind::NodeGrant], config, CancellationToken::new())
}

async fn next(follower: &mut Follower) -> FollowEvent {
    soon("an event", follower.next()).await.expect("the follower goes on")
}

fn changes(revision: u64, node: u32, cpu: i64) -> FollowEvent {
    FollowEvent::Changes {
        revision: Revision(revision),
        time_ms: i64::try_from(revision).unwrap() * 10,
        changes: vec![Change::NodeGrant(NodeId(node), resources(cpu))],
    }
}

fn synced(revision: u64) -> FollowEvent {
    FollowEvent::Synced { revision: Revision(revision) }
}

/// Reads a list of `n_records` records.
async fn read_list(follower: &mut Follower, n_records: usize, revision: u64) {
    assert_eq!(next(follower).await, FollowEvent::Reset);
    let mut n_loaded = 0;
    while n_loaded < n_records {
        let FollowEvent::Loaded(records) = next(follower).await else { panic!("the list goes on") };
        n_loaded += records.len();
    }
    assert_eq!(next(follower).await, synced(revision));
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
        fake.commit(grant(1, i64::from(revision)));
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
        fake.commit(grant(1, revision));
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
    fake.commit(grant(1, 1));
    assert_eq!(next(&mut follower).await, changes(1, 1, 1));
    let address = served.kill().await;
    fake.commit(grant(2, 2));
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
    fake.commit(grant(3, 4));
    assert_eq!(next(&mut follower).await, changes(10, 3, 4));
}

#[tokio::test]
async fn changes_that_the_list_had_already_are_left_out() {
    let fake = Fake::new();
    // The list began at revision 0; its second page was read after revision 2.
    fake.commit(grant(1, 1));
    fake.commit(grant(2, 2));
    fake.commit(grant(2, 3));
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
async fn a_stop_or_nonsense_ends_it() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let stop = CancellationToken::new();
    let kinds = vec![v1::Kind::NodeGrant];
    let mut follower = Follower::spawn(served.channel(), kinds, FollowConfig::default(), stop.clone());
    read_list(&mut follower, 0, 0).await;
    stop.cancel();
    assert_eq!(soon("the end", follower.next()).await, None);

    let mut follower = follow(&served);
    read_list(&mut follower, 0, 0).await;
    fake.commit(vec![Bytes::from_static(&[0xff, 0xff])]);
    assert_eq!(soon("the end", follower.next()).await, None);
}
