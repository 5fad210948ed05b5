use godel_base::ids::{Epoch, NodeId, Revision, StoreId};
use godel_proto::v1::{self, record::Record};
use tokio::sync::watch;

use super::{LeaderTerms, TermChange};
use crate::{
    config::TxnConfig,
    lease::{Fence, Leadership},
    tests::fake::{Fake, Served, soon},
};

fn standby(leader: Option<&str>) -> Leadership {
    Leadership::Standby { leader: leader.map(str::to_owned) }
}

fn granted(fence: &Fence) -> Leadership {
    Leadership::Leader { epoch: fence.epoch(), since: Revision(9), fence: fence.clone() }
}

/// Terms of an election in which nobody leads yet.
fn terms(served: &Served) -> (watch::Sender<Leadership>, LeaderTerms) {
    let (sender, leadership) = watch::channel(standby(None));
    (sender, LeaderTerms::new(leadership, served.channel(), TxnConfig::default()))
}

async fn changed(terms: &mut LeaderTerms) -> Option<TermChange> {
    soon("changed", terms.changed()).await
}

fn ended(leader: Option<&str>) -> Option<TermChange> {
    Some(TermChange::Ended { leader: leader.map(str::to_owned) })
}

#[tokio::test]
async fn terms_begin_with_grants_and_end_with_them() {
    let served = Fake::new().serve().await;
    let (sender, mut terms) = terms(&served);
    assert_eq!(changed(&mut terms).await, ended(None), "the leadership at the start counts");
    let first = Fence::unlimited("binder", Epoch(1));
    sender.send(granted(&first)).unwrap();
    assert_eq!(changed(&mut terms).await, Some(TermChange::Elected));
    let grant = terms.valid_grant().unwrap();
    assert_eq!(
        (grant.since, grant.fence.epoch(), grant.pipeline.fence().epoch()),
        (Revision(9), Epoch(1), Epoch(1))
    );
    // The same grant once more is no change; a lost one is, before anybody says who leads.
    sender.send(granted(&first)).unwrap();
    first.revoke();
    assert!(terms.grant().is_some() && terms.valid_grant().is_none());
    assert_eq!(changed(&mut terms).await, ended(None));
    assert!(terms.grant().is_none());
    sender.send(standby(Some("http://b"))).unwrap();
    assert_eq!(changed(&mut terms).await, ended(Some("http://b")));
    assert_eq!(terms.other_leader().as_deref(), Some("http://b"));
    // One grant may follow another, of the same epoch in another store too.
    for store in [7, 8] {
        let fence = Fence::of_store("binder", Epoch(3), StoreId(store));
        sender.send(granted(&fence)).unwrap();
        assert_eq!(changed(&mut terms).await, Some(TermChange::Elected));
        assert_eq!(terms.grant().unwrap().fence.store(), StoreId(store));
    }
    drop(sender);
    assert_eq!(changed(&mut terms).await, None);
}

#[tokio::test]
async fn a_leader_begins_with_every_record_that_can_be_read() {
    let fake = Fake::new();
    let node = |id: u32| v1::Record {
        record: Some(Record::NodeAllocatable(v1::NodeAllocatable { node_id: id, ..Default::default() })),
        ..Default::default()
    };
    fake.with(|world| {
        world.page_len = 2;
        world.records = (1..=5).map(node).collect();
    });
    let served = fake.serve().await;
    let (sender, mut terms) = terms(&served);
    let kinds = [v1::Kind::NodeAllocatable];
    assert_eq!(terms.list(&kinds).await, None, "nobody leads");
    let fence = Fence::unlimited("binder", Epoch(1));
    sender.send(granted(&fence)).unwrap();
    assert_eq!(changed(&mut terms).await, Some(TermChange::Elected));
    let records = soon("listed", terms.list(&kinds)).await.unwrap();
    let ids: Vec<_> = records
        .into_iter()
        .map(|record| match record {
            Record::NodeAllocatable(node) => NodeId(node.node_id),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, (1..=5).map(NodeId).collect::<Vec<_>>());
    // Without answers it is asked for until the grant is lost.
    served.kill().await;
    let listed = terms.list(&kinds);
    let lost = async {
        tokio::task::yield_now().await;
        fence.revoke();
    };
    assert_eq!(soon("given up", async { tokio::join!(listed, lost).0 }).await, None);
}
