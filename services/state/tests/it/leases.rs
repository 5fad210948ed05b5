use godel_kit::status::{has_reason, metadata_of, reason};
use godel_proto::v1;
use tonic::{Code, Status};

use crate::harness::{State, acquire, put_unit, until};

async fn renew(state: &State, lease: &str, epoch: u64) -> Result<u32, Status> {
    let request = v1::RenewLeaseRequest { lease: lease.to_owned(), epoch, ..Default::default() };
    Ok(state.members().renew_lease(request).await?.into_inner().ttl_ms)
}

async fn members(state: &State, prefix: &str) -> Vec<v1::Member> {
    let request = v1::ListMembersRequest { prefix: prefix.to_owned() };
    state.members().list_members(request).await.unwrap().into_inner().members
}

#[tokio::test]
async fn state_registers_itself_and_a_held_lease_names_its_holder() {
    let state = State::start().await;
    let own = members(&state, "member/").await;
    assert_eq!((own[0].lease.as_str(), own[0].address.as_str()), ("member/state/main", state.uri.as_str()));
    let granted = acquire(&state.channel, "binder", "a", 0).await.unwrap();
    assert_eq!((granted.epoch, granted.ttl_ms), (1, 3_000));
    assert!(granted.revision > 0);
    let refused = acquire(&state.channel, "binder", "b", 0).await.unwrap_err();
    assert!(
        refused.code() == Code::FailedPrecondition && has_reason(&refused, reason::LEASE_HELD),
        "{refused}"
    );
    assert_eq!(metadata_of(&refused, "address").as_deref(), Some("http://a"));
    assert_eq!(metadata_of(&refused, "holder").as_deref(), Some("a"));
    assert_eq!(acquire(&state.channel, "binder", "a", 0).await.unwrap().epoch, 2, "its holder may ask again");
    state.stop().await;
}

#[tokio::test]
async fn an_expired_lease_is_vacated_refused_and_granted_to_the_next() {
    let state = State::start().await;
    let first = acquire(&state.channel, "dispatcher", "a", 500).await.unwrap();
    let mut writer = state_writer(&state, first.epoch);
    assert!(writer.write([put_unit(1)]).await.is_ok());
    until("the lease expires", async || {
        let record =
            state.list(&[v1::Kind::Lease]).await.into_iter().find_map(|record| match record.record {
                Some(v1::record::Record::Lease(lease)) if lease.lease == "dispatcher" => Some(lease),
                _ => None,
            });
        record.filter(|lease| lease.holder.is_empty() && lease.epoch == 1)
    })
    .await;
    assert_eq!(members(&state, "dispatcher").await[0].holder, "");
    let late = renew(&state, "dispatcher", 1).await.unwrap_err();
    assert!(has_reason(&late, reason::STALE_EPOCH), "{late}");
    let refused = writer.write([put_unit(2)]).await.unwrap_err();
    assert!(
        refused.code() == Code::FailedPrecondition && has_reason(&refused, reason::STALE_EPOCH),
        "{refused}"
    );
    let second = acquire(&state.channel, "dispatcher", "b", 60_000).await.unwrap();
    assert_eq!(second.epoch, 2);
    let status = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.stale_epoch_refusals, 1);
    assert!(writer.write([put_unit(2)]).await.is_err(), "the old epoch stays out");
    state.stop().await;
}

fn state_writer(state: &State, epoch: u64) -> crate::harness::Writer {
    crate::harness::Writer { client: state.state(), lease: "dispatcher".to_owned(), epoch, sequence: 0 }
}

#[tokio::test]
async fn renewals_keep_a_lease_and_carry_counters() {
    let state = State::start().await;
    let granted = acquire(&state.channel, "scheduler/s1", "a", 1_500).await.unwrap();
    let counters = [("placed".to_owned(), 7)].into();
    let started = std::time::Instant::now();
    while started.elapsed().as_millis() < 2_000 {
        let request = v1::RenewLeaseRequest {
            lease: "scheduler/s1".to_owned(),
            epoch: granted.epoch,
            status: Some(v1::MemberStatus {
                counters: std::collections::HashMap::clone(&counters),
                version: "1.2.3".to_owned(),
                plain_text_addresses: [("client".to_owned(), "127.0.0.1:8032".to_owned())].into(),
            }),
            ..Default::default()
        };
        assert_eq!(state.members().renew_lease(request).await.unwrap().into_inner().ttl_ms, 1_500);
        let shown = &members(&state, "scheduler/").await[0];
        let status = shown.status.as_ref().unwrap();
        assert_eq!((shown.holder.as_str(), status.counters["placed"]), ("a", 7));
        assert_eq!(
            (status.version.as_str(), status.plain_text_addresses["client"].as_str()),
            ("1.2.3", "127.0.0.1:8032")
        );
        assert!((1..=1_500).contains(&shown.remaining_ms));
    }
    state.stop().await;
}

#[tokio::test]
async fn a_release_is_idempotent_and_frees_at_once() {
    let state = State::start().await;
    acquire(&state.channel, "binder", "a", 60_000).await.unwrap();
    for epoch in [9, 1, 1] {
        let request = v1::ReleaseLeaseRequest { lease: "binder".to_owned(), epoch, store_id: 0 };
        state.members().release_lease(request).await.unwrap();
    }
    assert_eq!(acquire(&state.channel, "binder", "b", 0).await.unwrap().epoch, 2);
    state.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_epochs_and_gives_full_ttls() {
    let state = State::start().await;
    acquire(&state.channel, "binder", "a", 60_000).await.unwrap();
    let own = members(&state, "member/state/").await[0].epoch;
    let state = state.restart().await;
    let shown = members(&state, "binder").await;
    assert_eq!((shown[0].holder.as_str(), shown[0].epoch), ("a", 1));
    assert!(shown[0].remaining_ms > 50_000);
    assert_eq!(renew(&state, "binder", 1).await.unwrap(), 60_000);
    assert!(acquire(&state.channel, "binder", "b", 0).await.is_err());
    assert_eq!(members(&state, "member/state/").await[0].epoch, own + 1);
    state.stop().await;
}

#[tokio::test]
async fn many_ask_at_once_and_one_gets_it() {
    let state = State::start().await;
    let mut asking = tokio::task::JoinSet::new();
    for holder in 0..50 {
        let channel = state.channel.clone();
        asking.spawn(async move { acquire(&channel, "binder", &format!("h{holder}"), 60_000).await.is_ok() });
    }
    let granted = asking.join_all().await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 1);
    state.stop().await;
}

#[tokio::test]
async fn bad_input() {
    let state = State::start().await;
    let too_long = "a".repeat(254);
    for (lease, holder, ttl_ms, field) in [
        ("nonsense", "a", 0, "lease"),
        ("scheduler/", "a", 0, "lease"),
        ("binder", "", 0, "holder"),
        ("binder", too_long.as_str(), 0, "holder"),
        ("binder", "a", 499, "ttl_ms"),
        ("binder", "a", 60_001, "ttl_ms"),
    ] {
        let refused = acquire(&state.channel, lease, holder, ttl_ms).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{lease} {holder} {ttl_ms}");
        assert_eq!(godel_kit::status::violations_of(&refused)[0].path, field);
    }
    state.stop().await;
}
