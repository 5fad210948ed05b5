use godel_kit::status::{has_reason, metadata_of, reason};
use godel_proto::{raw, v1};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::harness::{State, bind, evict, put_large_unit, put_unit, resources};

fn precondition(kind: v1::Kind, id: u64, revision: u64) -> v1::Precondition {
    v1::Precondition { kind: kind.into(), key: Some(v1::Key { id, name: String::new() }), revision }
}

#[tokio::test]
async fn a_repeated_transaction_is_applied_once() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let txn = dispatcher.txn([put_unit(1), put_unit(2)]);
    let first = state.state().txn(txn.clone()).await.unwrap().into_inner();
    assert_eq!((first.sequence, first.refusal), (1, None));
    let again = state.state().txn(txn.clone()).await.unwrap().into_inner();
    assert_eq!((again.revision, again.commit_time_ms), (first.revision, first.commit_time_ms));
    let state = state.restart().await;
    let again = state.state().txn(txn).await.unwrap().into_inner();
    assert_eq!(again.revision, first.revision, "also after a restart");
    assert_eq!(state.list(&[v1::Kind::Unit]).await.len(), 2);
    state.stop().await;
}

#[tokio::test]
async fn refusals_have_their_codes_and_reasons() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let created = dispatcher.write([put_unit(5)]).await.unwrap();

    let mut stale = dispatcher.txn([put_unit(6)]);
    stale.preconditions = vec![precondition(v1::Kind::Unit, 5, created - 1)];
    let status = state.state().txn(stale).await.unwrap_err();
    assert!(status.code() == Code::Aborted && has_reason(&status, reason::REVISION_MISMATCH), "{status}");
    assert_eq!(metadata_of(&status, "revision"), Some(created.to_string()));

    let forbidden = binder.write([put_unit(7)]).await.unwrap_err();
    assert!(forbidden.code() == Code::PermissionDenied && has_reason(&forbidden, reason::FORBIDDEN));
    let mut nobody = state.writer("scheduler/s1").await;
    assert_eq!(nobody.write([put_unit(7)]).await.unwrap_err().code(), Code::PermissionDenied);

    let reused = dispatcher.write([put_unit(4)]).await.unwrap_err();
    assert_eq!(reused.code(), Code::InvalidArgument, "unit ids only rise: {reused}");
    let node = state.register("n1").await.node_id;
    binder.write([bind(5, &[0], node)]).await.unwrap();
    let conflict = binder.write([bind(5, &[0], node)]).await.unwrap_err();
    assert_eq!(conflict.code(), Code::Aborted, "{conflict}");
    assert!(binder.write([bind(5, &[1], 99)]).await.is_err(), "no such node");

    let empty = dispatcher.write([]).await.unwrap_err();
    assert_eq!(empty.code(), Code::InvalidArgument);
    let anonymous = raw::TxnRequest { ops: vec![raw::encode_op(put_unit(8))], ..raw::TxnRequest::default() };
    assert_eq!(state.state().txn(anonymous).await.unwrap_err().code(), Code::InvalidArgument);
    let mut garbage = dispatcher.txn([]);
    garbage.ops = vec![bytes::Bytes::from_static(b"\xff\xff")];
    assert_eq!(state.state().txn(garbage).await.unwrap_err().code(), Code::InvalidArgument);
    state.stop().await;
}

/// One operation each that its readers cannot read, and the path of the field.
fn unreadable() -> Vec<(v1::op::Op, &'static str)> {
    use v1::op::Op;
    let meta = |name: &str| Some(v1::ObjectMeta { name: name.to_owned(), ..v1::ObjectMeta::default() });
    let demand = || {
        Some(v1::Demand {
            requests: Some(resources(&[("", 1)])),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        })
    };
    let Op::PutUnit(unit) = put_unit(7) else { unreachable!() };
    let mut classless = unit.clone();
    classless.spec.as_mut().unwrap().workload_class = 99;
    let mut nameless = unit;
    nameless.spec.as_mut().unwrap().task_groups[0].template.as_mut().unwrap().demand = demand();
    let partition =
        v1::Partition { name: "default".to_owned(), node_ids: vec![1], ..v1::Partition::default() };
    let Op::Bind(binding) = bind(7, &[0, 1], 1) else { unreachable!() };
    vec![
        (
            Op::PutQueue(v1::Queue { meta: meta("evil"), policy: 7, ..v1::Queue::default() }),
            "put_queue.policy",
        ),
        (Op::PutQueue(v1::Queue { meta: meta("e\nvil"), ..v1::Queue::default() }), "put_queue.meta.name"),
        (
            Op::PutReservation(v1::Reservation {
                name: "r".to_owned(),
                demand: demand(),
                ..v1::Reservation::default()
            }),
            "put_reservation.demand.requests.amounts",
        ),
        (Op::PutUnit(classless), "put_unit.spec.workload_class"),
        (Op::PutUnit(nameless), "put_unit.spec.task_groups[0].template.demand.requests.amounts"),
        (Op::PutPartition(partition), "put_partition.slots"),
        (Op::PutPause(v1::Pause { scope: "some".to_owned(), ..v1::Pause::default() }), "put_pause.scope"),
        (Op::Bind(v1::Binding { pool: 9, ..binding.clone() }), "bind.pool"),
        (Op::Bind(v1::Binding { node_ids: vec![1], ..binding }), "bind.node_ids"),
    ]
}

#[tokio::test]
async fn what_readers_cannot_read_is_refused_by_the_path_of_its_field() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    for (op, path) in unreadable() {
        let status = dispatcher.write([put_unit(1), op]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{path}: {status}");
        let details = tonic_types::StatusExt::get_details_bad_request(&status).unwrap();
        assert_eq!(details.field_violations[0].field, format!("ops[1].{path}"), "{status}");
    }
    let txns: Vec<raw::TxnRequest> =
        unreadable().into_iter().map(|(op, _)| dispatcher.txn([put_unit(1), op])).collect();
    let mut answers = state.state().transact(tokio_stream::iter(txns)).await.unwrap().into_inner();
    for (_, path) in unreadable() {
        let refusal = answers.next().await.unwrap().unwrap().refusal.unwrap();
        let found =
            (refusal.reason(), refusal.index, refusal.message.starts_with(&format!("ops[1].{path}: ")));
        assert_eq!(found, (v1::TxnRefusalReason::Invalid, 1, true), "{path}: {}", refusal.message);
    }
    assert!(state.list(&[v1::Kind::Unit, v1::Kind::Queue]).await.is_empty(), "nothing of it is there");
    state.stop().await;
}

#[tokio::test]
async fn a_pipeline_answers_in_order_with_refusals_in_place() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut txns = Vec::new();
    for unit in 1..=1_000 {
        txns.push(dispatcher.txn([put_unit(unit)]));
    }
    txns.push(dispatcher.txn([evict(1, &[0])]));
    txns.push(dispatcher.txn([put_unit(1_001)]));
    let mut answers = state.state().transact(tokio_stream::iter(txns)).await.unwrap().into_inner();
    let (mut last, mut refused) = (0, Vec::new());
    for sequence in 1..=1_002 {
        let answer = answers.next().await.unwrap().unwrap();
        assert_eq!(answer.sequence, sequence);
        match answer.refusal {
            Some(refusal) => refused.push((sequence, refusal.reason())),
            None => {
                assert!(answer.revision > last);
                last = answer.revision;
            }
        }
    }
    assert!(answers.next().await.is_none());
    assert_eq!(refused, [(1_001, v1::TxnRefusalReason::Forbidden)]);
    state.stop().await;
}

#[tokio::test]
async fn lists_are_paged_in_key_order_at_the_first_pages_revision() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let node = state.register("n1").await.node_id;
    dispatcher.write((1..=5).map(put_unit)).await.unwrap();
    let last = binder.write([bind(2, &[0, 1, 3], node), bind(4, &[0], node)]).await.unwrap();
    let kinds = [v1::Kind::Unit, v1::Kind::Rows, v1::Kind::Lease];
    let request = v1::ListRecordsRequest {
        kinds: kinds.iter().map(|kind| *kind as i32).collect(),
        page_size: 2,
        page_token: String::new(),
    };
    let first = state.state().list_records(request.clone()).await.unwrap().into_inner();
    assert_eq!((first.revision, first.records.len()), (last, 2));
    dispatcher.write([put_unit(6)]).await.unwrap();
    let next = v1::ListRecordsRequest { page_token: first.next_page_token.clone(), ..request.clone() };
    let second = state.state().list_records(next).await.unwrap().into_inner();
    assert_eq!(second.revision, first.revision, "a later page carries the first one's revision");

    let records = state.list(&kinds).await;
    let units: Vec<u64> = records
        .iter()
        .filter_map(|record| match &record.record {
            Some(v1::record::Record::Unit(record)) => Some(record.unit_id),
            _ => None,
        })
        .collect();
    assert_eq!(units, [1, 2, 3, 4, 5, 6]);
    let rows: Vec<_> = records
        .iter()
        .filter_map(|record| match &record.record {
            Some(v1::record::Record::Rows(rows)) => {
                Some((rows.unit_id, rows.blocks[0].clone(), record.revision))
            }
            _ => None,
        })
        .collect();
    assert_eq!((rows.len(), rows[0].0, rows[1].0, rows[0].2), (2, 2, 4, last));
    assert_eq!((&rows[0].1.ordinals[..], &rows[0].1.revisions[..]), (&[0, 1, 3][..], &[last; 3][..]));
    assert_eq!(records.len(), 6 + 2 + 3, "two writers and state itself hold leases");

    for (kinds, page_token, field) in [
        (vec![], String::new(), "kinds"),
        (vec![0], String::new(), "kinds[0]"),
        (vec![4, 99], String::new(), "kinds[1]"),
        (vec![4], "junk".to_owned(), "page_token"),
        (vec![5], first.next_page_token, "page_token"),
    ] {
        let request = v1::ListRecordsRequest { kinds, page_token, ..request.clone() };
        let status = state.state().list_records(request).await.unwrap_err();
        assert_eq!(godel_kit::status::violations_of(&status)[0].path, field);
    }
    state.stop().await;
}

#[tokio::test]
async fn a_page_holds_a_mebibyte_at_most() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    for unit in 1..=40 {
        dispatcher.write([put_large_unit(unit, 60_000)]).await.unwrap();
    }
    let mut request = v1::ListRecordsRequest { kinds: vec![4], page_size: 10_000, page_token: String::new() };
    let mut sizes = Vec::new();
    loop {
        let page = state.state().list_records(request.clone()).await.unwrap().into_inner();
        sizes.push(page.records.len());
        assert!(prost::Message::encoded_len(&page) <= 1 << 20);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(sizes.iter().sum::<usize>(), 40);
    assert!(sizes.len() >= 3, "{sizes:?}");
    state.stop().await;
}

#[tokio::test]
async fn everything_acknowledged_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("state");
    let state = State::start_as_configured(|config| config.data_dir = data_dir).await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let node = state.register("n1").await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    let last = binder.write([bind(1, &[0, 1], node.node_id)]).await.unwrap();
    let before = state.list(&[v1::Kind::Unit, v1::Kind::NodeSpec, v1::Kind::Rows]).await;
    let state = state.restart().await;
    let after = state.list(&[v1::Kind::Unit, v1::Kind::NodeSpec, v1::Kind::Rows]).await;
    assert_eq!((before.len(), &before), (3, &after));
    let status = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    assert!(status.engine == "sled" && status.revision >= last && status.disk_bytes > 0, "{status:?}");
    assert_eq!((status.units, status.nodes, status.rows, status.last_unit_id), (1, 1, 2, 1));
    state.stop().await;
}

#[tokio::test]
async fn impossible_settings_are_refused_at_the_start() {
    let config = godel_state::Config { name: "No Such".to_owned(), ..godel_state::Config::default() };
    let stop = godel_kit::CancellationToken::new();
    let refused = godel_state::serve(config, godel_state::Deps::default(), stop.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("name"), "{refused}");
    let config = godel_state::Config { crash_points: "no.such".to_owned(), ..godel_state::Config::default() };
    assert!(godel_state::serve(config, godel_state::Deps::default(), stop).await.is_err());
}
