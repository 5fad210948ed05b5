use bytes::Bytes;
use godel_base::{
    ids::{Epoch, NodeId, Revision, StoreId},
    resources::Resources,
};
use godel_domain::{change::Change, node::NodeAllocatable, records::Record, txn::TxnRefusalReason};
use godel_wire::to_proto;

use super::{Conditions, Receipt, TXN_BYTES_MAX, TxnError, TxnPipeline};
use crate::{
    config::{ServerConfig, TxnConfig},
    lease::Fence,
    tests::fake::{Fake, Served, eventually, soon},
};

fn op(node: u32) -> Vec<Bytes> {
    let record = NodeAllocatable { id: NodeId(node), amounts: Resources::default() };
    to_proto::op(&Change::Put(Record::NodeAllocatable(record))).into_iter().collect()
}

fn pipeline(served: &Served, max_in_flight: usize) -> (TxnPipeline, Fence) {
    let fence = Fence::unlimited("binder", Epoch(1));
    let config = TxnConfig {
        max_in_flight,
        reconnect_max: std::time::Duration::from_millis(5).into(),
        ..TxnConfig::default()
    };
    (TxnPipeline::spawn(served.channel(), fence.clone(), &config), fence)
}

async fn submit_all(pipeline: &TxnPipeline, n_txns: u32) -> Vec<Result<Receipt, TxnError>> {
    let submitter = pipeline.clone();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    crate::task::spawn("submitter", async move {
        for node in 1..=n_txns {
            sender.send(submitter.submit(op(node), Conditions::default()).await.unwrap()).unwrap();
        }
    });
    let mut answers = Vec::new();
    while let Some(pending) = soon("submitted", receiver.recv()).await {
        answers.push(soon("answered", pending).await);
    }
    answers
}

/// Node ids in the order in which their transactions were applied.
fn applied(fake: &Fake) -> Vec<Bytes> {
    fake.with(|world| world.commits.iter().flat_map(|commit| commit.ops.clone()).collect())
}

fn expected(n_txns: u32) -> Vec<Bytes> {
    (1..=n_txns).flat_map(op).collect()
}

#[tokio::test]
async fn many_transactions_are_answered_in_order() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 16);
    let answers = submit_all(&pipeline, 200).await;
    let revisions: Vec<u64> = answers.into_iter().map(|answer| answer.unwrap().revision.0).collect();
    assert_eq!(revisions, (1..=200).collect::<Vec<u64>>());
    assert_eq!(fake.with(|world| world.arrived.clone()), (1..=200).collect::<Vec<u64>>());
    assert_eq!(applied(&fake), expected(200));
}

#[tokio::test]
async fn lost_answers_and_repeated_requests_apply_once_and_in_order() {
    let fake = Fake::new();
    fake.with(|world| world.break_transact_after = Some(7));
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 16);
    let answers = submit_all(&pipeline, 60).await;
    let revisions: Vec<u64> = answers.into_iter().map(|answer| answer.unwrap().revision.0).collect();
    assert_eq!(revisions, (1..=60).collect::<Vec<u64>>());
    assert_eq!(applied(&fake), expected(60));
    assert!(fake.with(|world| world.arrived.len()) > 60, "something was sent again");
}

#[tokio::test]
async fn a_restarted_store_gets_what_is_unanswered_again() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 8);
    fake.with(|world| world.hold_transact = true);
    let mut pending = Vec::new();
    for node in 1..=5 {
        pending.push(pipeline.submit(op(node), Conditions::default()).await.unwrap());
    }
    let address = served.kill().await;
    fake.with(|world| world.hold_transact = false);
    let _served = fake.serve_with(address, &ServerConfig::default()).await;
    for pending in pending {
        soon("answered", pending).await.unwrap();
    }
    assert_eq!(applied(&fake), expected(5));
}

#[tokio::test]
async fn a_refusal_concerns_one_transaction_only() {
    let fake = Fake::new();
    fake.with(|world| world.refuse = vec![2]);
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 8);
    let answers = submit_all(&pipeline, 3).await;
    assert_eq!(answers[0].as_ref().unwrap().revision, Revision(1));
    let Err(TxnError::Refused(refusal)) = &answers[1] else { panic!("{:?}", answers[1]) };
    assert_eq!(refusal.reason, TxnRefusalReason::Precondition);
    assert_eq!(answers[2].as_ref().unwrap().revision, Revision(2));
}

#[tokio::test]
async fn a_stale_epoch_ends_everything() {
    let fake = Fake::new();
    fake.with(|world| (world.hold_transact, world.stale) = (true, true));
    let served = fake.serve().await;
    let (pipeline, fence) = pipeline(&served, 8);
    let mut pending = Vec::new();
    for node in 1..=3 {
        pending.push(pipeline.submit(op(node), Conditions::default()).await.unwrap());
    }
    fake.with(|world| world.hold_transact = false);
    for pending in pending {
        assert_eq!(soon("failed", pending).await, Err(TxnError::LeaseLost));
    }
    assert!(!fence.is_valid(), "the owner of the lease learns it too");
    assert_eq!(pipeline.submit(op(4), Conditions::default()).await.unwrap_err(), TxnError::LeaseLost);
}

#[tokio::test]
async fn another_store_ends_everything() {
    let fake = Fake::new();
    fake.with(|world| (world.hold_transact, world.store_id) = (true, 7));
    let served = fake.serve().await;
    let fence = Fence::of_store("binder", Epoch(1), StoreId(7));
    let pipeline = TxnPipeline::spawn(served.channel(), fence.clone(), &TxnConfig::default());
    let first = pipeline.submit(op(1), Conditions::default()).await.unwrap();
    fake.with(|world| world.hold_transact = false);
    soon("committed", first).await.unwrap();
    fake.with(|world| world.store_id = 8);
    let second = pipeline.submit(op(2), Conditions::default()).await.unwrap();
    assert_eq!(soon("failed", second).await, Err(TxnError::LeaseLost));
    assert!(!fence.is_valid());
    assert_eq!(applied(&fake), expected(1));
}

#[tokio::test]
async fn a_lost_lease_ends_everything_even_without_a_store() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let (pipeline, fence) = pipeline(&served, 1);
    served.kill().await;
    let pending = pipeline.submit(op(1), Conditions::default()).await.unwrap();
    let waiting = pipeline.clone();
    let waiting = crate::task::spawn("waiting", async move {
        waiting.submit(op(2), Conditions::default()).await.map(|_| ())
    });
    fence.revoke();
    assert_eq!(soon("failed", pending).await, Err(TxnError::LeaseLost));
    assert_eq!(soon("failed", waiting).await.unwrap(), Err(TxnError::LeaseLost));
}

#[tokio::test]
async fn what_is_in_flight_is_bounded() {
    let fake = Fake::new();
    fake.with(|world| world.hold_transact = true);
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 2);
    let first = pipeline.submit(op(1), Conditions::default()).await.unwrap();
    let second = pipeline.try_submit(op(2), Conditions::default()).unwrap().expect("there is room for two");
    assert!(pipeline.try_submit(op(3), Conditions::default()).unwrap().is_none());
    fake.with(|world| world.hold_transact = false);
    let third = soon("room", pipeline.submit(op(3), Conditions::default())).await.unwrap();
    for pending in [first, second, third] {
        soon("answered", pending).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_submitted_is_answered_after_the_last_handle_is_gone() {
    let fake = Fake::new();
    fake.with(|world| world.hold_transact = true);
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 8);
    let pending = pipeline.submit(op(1), Conditions::default()).await.unwrap();
    drop(pipeline);
    fake.with(|world| world.hold_transact = false);
    soon("answered", pending).await.unwrap();
    eventually("applied", || fake.with(|world| (world.commits.len() == 1).then_some(()))).await;
}

#[tokio::test]
async fn impossible_transactions_are_refused_at_once() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let (pipeline, _) = pipeline(&served, 8);
    for ops in [vec![], vec![Bytes::from(vec![0; TXN_BYTES_MAX + 1])]] {
        let error = pipeline.submit(ops, Conditions::default()).await.unwrap_err();
        assert!(matches!(error, TxnError::Refused(_)), "{error:?}");
    }
    assert!(fake.with(|world| world.arrived.is_empty()));
}
