use std::time::Duration;

use godel_kit::status::{has_reason, metadata_of, reason};
use godel_proto::{raw, v1};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status, Streaming};

use crate::harness::{PATIENCE, State, bind, evict, put_large_unit, put_unit};

async fn watch(
    state: &State,
    from_revision: u64,
    kinds: &[v1::Kind],
) -> Result<Streaming<v1::WatchResponse>, Status> {
    let kinds = kinds.iter().map(|kind| *kind as i32).collect();
    Ok(state
        .state()
        .watch(v1::WatchRequest { from_revision, kinds, ..v1::WatchRequest::default() })
        .await?
        .into_inner())
}

/// Commits up to `revision`.
async fn commits(watch: &mut Streaming<v1::WatchResponse>, revision: u64) -> Vec<raw::Commit> {
    let mut commits = Vec::new();
    loop {
        let next = tokio::time::timeout(PATIENCE, watch.next()).await.expect("in time").unwrap().unwrap();
        commits.extend(next.commits);
        if next.revision >= revision {
            return commits;
        }
    }
}

fn revisions(commits: &[raw::Commit]) -> Vec<u64> {
    commits.iter().map(|commit| commit.revision).collect()
}

#[tokio::test]
async fn history_then_live_each_exactly_once_and_resumable() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut last = 0;
    for unit in 1..=20 {
        last = dispatcher.write([put_unit(unit)]).await.unwrap();
    }
    let mut all = watch(&state, 0, &[]).await.unwrap();
    let history = commits(&mut all, last).await;
    let first = history[0].revision;
    assert_eq!(revisions(&history), (first..=last).collect::<Vec<_>>());
    for unit in 21..=30 {
        last = dispatcher.write([put_unit(unit)]).await.unwrap();
    }
    let live = commits(&mut all, last).await;
    assert_eq!(revisions(&live), (last - 9..=last).collect::<Vec<_>>());
    assert_eq!(live[0].writer.as_ref().unwrap().lease, "dispatcher");
    let mut resumed = watch(&state, last - 4, &[]).await.unwrap();
    assert_eq!(commits(&mut resumed, last).await.len(), 5);

    let state = state.restart().await;
    let mut resumed = watch(&state, last - 4, &[]).await.unwrap();
    // Stop and start have written state's own registration behind it.
    let seen = revisions(&commits(&mut resumed, last + 2).await);
    assert_eq!(seen, (last - 4..=last + 2).collect::<Vec<_>>());
    state.stop().await;
}

#[tokio::test]
async fn watched_kinds_are_filtered_and_deletions_cascade() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let node = state.register("n1").await.node_id;
    let start = dispatcher.write([put_unit(1), put_unit(2)]).await.unwrap();
    let bound = binder.write([bind(1, &[0], node)]).await.unwrap();
    let evicted = binder.write([evict(1, &[0])]).await.unwrap();
    let delete =
        v1::Delete { kind: v1::Kind::Unit.into(), key: Some(v1::Key { id: 2, name: String::new() }) };
    let deleted = dispatcher.write([put_unit(3), v1::op::Op::Delete(delete)]).await.unwrap();

    let fields = |commits: &[raw::Commit]| -> Vec<(u64, Vec<u32>)> {
        let fields = |commit: &raw::Commit| commit.ops.iter().filter_map(|op| raw::op_field(op)).collect();
        commits.iter().map(|commit| (commit.revision, fields(commit))).collect()
    };
    let mut rows = watch(&state, start, &[v1::Kind::Rows]).await.unwrap();
    let seen = commits(&mut rows, deleted).await;
    assert_eq!(fields(&seen), [(bound, vec![20]), (evicted, vec![21]), (deleted, vec![16])]);
    let mut specs = watch(&state, start, &[v1::Kind::Unit, v1::Kind::Partition]).await.unwrap();
    let seen = commits(&mut specs, deleted).await;
    assert_eq!(fields(&seen), [(start, vec![4, 4]), (deleted, vec![4, 16])]);
    let mut nothing = watch(&state, start, &[v1::Kind::NodeAllocatable]).await.unwrap();
    assert!(commits(&mut nothing, deleted).await.is_empty(), "a bookmark says how far it is");
    assert_eq!(watch(&state, 0, &[v1::Kind::Unspecified]).await.unwrap_err().code(), Code::InvalidArgument);
    state.stop().await;
}

fn put_queue(name: &str) -> v1::op::Op {
    let meta = v1::ObjectMeta { name: name.to_owned(), ..v1::ObjectMeta::default() };
    v1::op::Op::PutQueue(v1::Queue { meta: Some(meta), ..v1::Queue::default() })
}

#[tokio::test]
async fn queues_and_priority_classes_are_listed_and_watched_by_name() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let class = v1::PriorityClass { name: "gold".to_owned(), value: 7, ..v1::PriorityClass::default() };
    let put_class = v1::op::Op::PutPriorityClass(class.clone());
    let names = ["prod.b", "prod", "prod.a"];
    let start = dispatcher.write(names.map(put_queue).into_iter().chain([put_class])).await.unwrap();
    let key = v1::Key { id: 0, name: "prod.b".to_owned() };
    let delete = v1::Delete { kind: v1::Kind::Queue.into(), key: Some(key) };
    let deleted = dispatcher.write([v1::op::Op::Delete(delete)]).await.unwrap();
    let forbidden = binder.write([put_queue("prod.c")]).await.unwrap_err();
    assert_eq!(forbidden.code(), Code::PermissionDenied);

    let kinds = [v1::Kind::Queue, v1::Kind::PriorityClass];
    let mut watched = watch(&state, start, &kinds).await.unwrap();
    let ops = |commit: &raw::Commit| commit.ops.iter().filter_map(|op| raw::op_field(op)).collect();
    let seen: Vec<Vec<u32>> = commits(&mut watched, deleted).await.iter().map(ops).collect();
    assert_eq!(seen, [vec![7, 7, 7, 8], vec![16]]);
    let mut classes = watch(&state, start, &[v1::Kind::PriorityClass]).await.unwrap();
    let seen: Vec<Vec<u32>> = commits(&mut classes, deleted).await.iter().map(ops).collect();
    assert_eq!(seen, [vec![8]]);

    let state = state.restart().await;
    let listed = state.list(&kinds).await;
    assert!(listed.iter().all(|record| (record.create_revision, record.revision) == (start, start)));
    let queue = |record: &v1::Record| match &record.record {
        Some(v1::record::Record::Queue(queue)) => queue.meta.as_ref().map(|meta| meta.name.clone()),
        _ => None,
    };
    assert_eq!(listed.iter().filter_map(queue).collect::<Vec<_>>(), ["prod", "prod.a"]);
    assert_eq!(listed[2].record, Some(v1::record::Record::PriorityClass(class)));
    state.stop().await;
}

#[tokio::test]
async fn an_idle_watch_is_told_how_far_it_is() {
    let state = State::start().await;
    let revision = state.writer("binder").await.epoch;
    assert_eq!(revision, 1);
    let now = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    let mut idle = watch(&state, now.revision + 1, &[]).await.unwrap();
    for _ in 0..3 {
        let bookmark =
            tokio::time::timeout(Duration::from_secs(2), idle.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((bookmark.commits.len(), bookmark.revision), (0, now.revision));
    }
    state.stop().await;
}

#[tokio::test]
async fn history_that_is_gone_is_compacted() {
    // Tiny generations, no history beyond the previous one.
    let state = State::start_with(|config| {
        config.generation_bytes_min = 64 << 10;
        config.history_bytes_min = 0;
        config.watch_history_bytes = 32 << 10;
    })
    .await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut unit = 0;
    let floor = crate::harness::until("the history is cut", async || {
        for _ in 0..20 {
            unit += 1;
            dispatcher.write([put_large_unit(unit, 8_000)]).await.unwrap();
        }
        let status = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
        (status.floor_revision > 3).then_some(status.floor_revision)
    })
    .await;
    let gone = watch(&state, 1, &[]).await.unwrap_err();
    assert!(gone.code() == Code::OutOfRange && has_reason(&gone, reason::COMPACTED), "{gone}");
    assert!(metadata_of(&gone, "floor").unwrap().parse::<u64>().unwrap() >= floor);
    let mut from_floor = watch(&state, 0, &[]).await.unwrap();
    let first = tokio::time::timeout(PATIENCE, from_floor.next()).await.unwrap().unwrap().unwrap();
    assert!(first.revision + 1 >= floor);
    state.stop().await;
}

#[tokio::test]
async fn a_slow_watcher_is_cut_off_and_resumes() {
    let state = State::start_with(|config| {
        config.watch_backlog_bytes = 256 << 10;
        config.watch_history_bytes = 512 << 10;
    })
    .await;
    let mut dispatcher = state.writer("dispatcher").await;
    let start = dispatcher.write([put_unit(1)]).await.unwrap();
    let mut slow = watch(&state, start, &[]).await.unwrap();
    assert_eq!(commits(&mut slow, start).await.len(), 1);
    // Not read from here on, while more is written than all buffers on the way hold.
    let mut last = start;
    for unit in 2..=800 {
        last = dispatcher.write([put_large_unit(unit, 50_000)]).await.unwrap();
    }
    let mut seen = start;
    let cut = loop {
        match tokio::time::timeout(PATIENCE, slow.next()).await.unwrap().unwrap() {
            Ok(message) => {
                for commit in message.commits {
                    assert_eq!(commit.revision, seen + 1);
                    seen = commit.revision;
                }
            }
            Err(status) => break status,
        }
    };
    assert!(cut.code() == Code::Aborted && has_reason(&cut, reason::SLOW_WATCHER), "{cut}");
    assert_eq!(metadata_of(&cut, "resume_from"), Some((seen + 1).to_string()));
    let mut resumed = watch(&state, seen + 1, &[]).await.unwrap();
    let rest = commits(&mut resumed, last).await;
    assert_eq!(revisions(&rest), (seen + 1..=last).collect::<Vec<_>>());
    state.stop().await;
}
