//! What state keeps to itself: no way out of it shows what signs, or join tokens.

use godel_kit::status::{has_reason, reason};
use godel_proto::{
    kinds::HIDDEN,
    raw,
    v1::{self, op::Op, record::Record},
};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::harness::{PATIENCE, State, put_large_unit};

/// Bytes that no answer may hold.
const SECRET: [u8; 32] = *b"keys of the CA, sealed; to none!";

fn records() -> Vec<Op> {
    vec![
        Op::PutTrustRoots(v1::TrustRoots {
            name: "default".to_owned(),
            cluster: "godel-1".to_owned(),
            roots: vec![v1::TrustRoot { certificate: vec![7; 300], ..v1::TrustRoot::default() }],
            person_keys: vec![v1::PersonKey { key_id: "p1".to_owned(), public_key: vec![7; 32], ends_ms: 0 }],
            ..v1::TrustRoots::default()
        }),
        Op::PutSealedSigner(v1::SealedSigner {
            name: "0b".repeat(32),
            key_id: "s1".to_owned(),
            sealed: SECRET.to_vec(),
        }),
        Op::PutJoinToken(v1::JoinToken {
            token_id: "t1".to_owned(),
            secret_sha256: SECRET.to_vec(),
            role: "agent".to_owned(),
            expires_ms: i64::MAX,
            uses_left: 1,
            ..v1::JoinToken::default()
        }),
        Op::PutIdentity(v1::IdentityRecord {
            identity: "agent/n1".to_owned(),
            root_fingerprint: vec![7; 32],
            ..v1::IdentityRecord::default()
        }),
    ]
}

fn has_secret(message: &impl prost::Message) -> bool {
    message.encode_to_vec().windows(SECRET.len()).any(|bytes| bytes == SECRET)
}

fn numbers(kinds: &[v1::Kind]) -> Vec<i32> {
    kinds.iter().map(|kind| *kind as i32).collect()
}

#[tokio::test]
async fn no_list_returns_them() {
    let state = State::start_with_records(|_| (), records()).await;
    for kind in HIDDEN {
        for kinds in [vec![kind], vec![v1::Kind::Unit, kind]] {
            let request =
                v1::ListRecordsRequest { kinds: numbers(&kinds), ..v1::ListRecordsRequest::default() };
            let status = state.state().list_records(request).await.unwrap_err();
            assert!(
                status.code() == Code::PermissionDenied && has_reason(&status, reason::FORBIDDEN),
                "{status}"
            );
        }
        // Nor a page that goes on in the middle of them.
        let first = v1::ListRecordsRequest {
            kinds: numbers(&[v1::Kind::TrustRoots, v1::Kind::Identity]),
            page_size: 1,
            page_token: String::new(),
        };
        let page = state.state().list_records(first.clone()).await.unwrap().into_inner();
        let token = page
            .next_page_token
            .replace(&format!(".{}.", v1::Kind::TrustRoots as i32), &format!(".{}.", kind as i32));
        assert_ne!(token, page.next_page_token);
        let status = state.state().list_records(v1::ListRecordsRequest { page_token: token, ..first }).await;
        assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
    }
    let shown = state.list(&[v1::Kind::TrustRoots, v1::Kind::Identity]).await;
    assert_eq!(shown.len(), 2);
    assert!(shown.iter().all(|record| !has_secret(record)));
    state.stop().await;
}

#[tokio::test]
async fn no_watch_delivers_them() {
    let state = State::start_with_records(|_| (), records()).await;
    for kind in HIDDEN {
        let request = v1::WatchRequest { kinds: numbers(&[kind]), ..v1::WatchRequest::default() };
        let status = state.state().watch(request).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
    let last =
        state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner().revision;
    for kinds in [Vec::new(), vec![v1::Kind::TrustRoots, v1::Kind::Identity]] {
        // From the beginning of the log, and what comes.
        let request =
            v1::WatchRequest { from_revision: 1, kinds: numbers(&kinds), ..v1::WatchRequest::default() };
        let mut watch = state.state().watch(request).await.unwrap().into_inner();
        let mut names = Vec::new();
        loop {
            let answer =
                tokio::time::timeout(PATIENCE, watch.next()).await.expect("in time").unwrap().unwrap();
            assert!(!has_secret(&answer));
            let ops = answer.commits.iter().flat_map(|commit| &commit.ops);
            names.extend(ops.filter_map(|op| raw::op_name(raw::op_field(op)?)));
            if answer.revision >= last {
                break;
            }
        }
        assert!(names.contains(&"put_trust_roots") && names.contains(&"put_identity"), "{names:?}");
        assert!(!names.contains(&"put_sealed_signer") && !names.contains(&"put_join_token"), "{names:?}");
    }
    state.stop().await;
}

#[tokio::test]
async fn the_start_of_the_history_leaves_them_out() {
    let change = |config: &mut godel_state::Config| {
        config.generation_bytes_min = 4 << 10;
        config.history_bytes_min = 0;
    };
    let state = State::start_with_records(change, records()).await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut has_base = false;
    for unit in 1..=500 {
        dispatcher.write([put_large_unit(unit, 2_000)]).await.unwrap();
        let mut floor = state.state().read_floor(v1::ReadFloorRequest {}).await.unwrap().into_inner();
        let (mut n_roots, mut base) = (0, 0);
        while let Some(answer) = floor.next().await {
            let answer = answer.unwrap();
            assert!(!has_secret(&answer));
            base = answer.base_revision;
            for record in answer.records {
                assert!(!matches!(record.record, Some(Record::SealedSigner(_) | Record::JoinToken(_))));
                n_roots += usize::from(matches!(record.record, Some(Record::TrustRoots(_))));
            }
        }
        has_base = base > 4;
        assert_eq!(n_roots, usize::from(base > 0));
        if has_base {
            break;
        }
    }
    assert!(has_base, "the history still begins with the first commit");
    state.stop().await;
}

#[tokio::test]
async fn no_transaction_of_others_touches_them() {
    let state = State::start_with_records(|_| (), records()).await;
    let mut writers = Vec::new();
    for lease in ["dispatcher", "binder", "yarn", "rescheduler", "scheduler/s1", "member/state/other"] {
        writers.push(state.writer(lease).await);
    }
    let delete = |kind: v1::Kind, name: &str| {
        Op::Delete(v1::Delete { kind: kind.into(), key: Some(v1::Key { id: 0, name: name.to_owned() }) })
    };
    let mut ops = records();
    ops.extend([
        delete(v1::Kind::TrustRoots, "default"),
        delete(v1::Kind::SealedSigner, &"0b".repeat(32)),
        delete(v1::Kind::Identity, "agent/n1"),
        delete(v1::Kind::JoinToken, "t1"),
    ]);
    for writer in &mut writers {
        for op in &ops {
            let status = writer.write([op.clone()]).await.unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied, "{}: {status}", writer.lease);
            // The answers of the pipeline, too.
            let txn = writer.txn([op.clone()]);
            let answers =
                state.state().transact(tokio_stream::once(txn)).await.unwrap().into_inner().next().await;
            let refusal = answers.unwrap().unwrap().refusal.unwrap();
            assert_eq!(refusal.reason(), v1::TxnRefusalReason::Forbidden);
            assert!(!has_secret(&refusal) && !refusal.message.contains("keys of the CA"));
        }
    }
    let condition = |revision| v1::Precondition {
        kind: v1::Kind::JoinToken.into(),
        key: Some(v1::Key { id: 0, name: "t1".to_owned() }),
        revision,
    };
    for revision in [0, 1] {
        let mut txn = writers[0].txn([put_large_unit(1, 1)]);
        txn.preconditions = vec![condition(revision)];
        let status = state.state().txn(txn).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
    state.stop().await;
}
