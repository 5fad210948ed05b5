//! Several states with one store: one leads, the others follow, answer reads, pass on the rest, and take over.

use std::{sync::Arc, time::Duration};

use godel_etcd::model::{EtcdModel, Session};
use godel_kit::security::{BearerToken, ClientSecurity};
use godel_proto::v1::{
    self, identity_service_client::IdentityServiceClient, state_service_client::StateServiceClient,
};
use tempfile::TempDir;
use tokio::sync::watch;
use tonic::{Code, Request, Status, metadata::MetadataValue};

use crate::{
    harness::{Agent, PATIENCE, State, acquire, put_unit},
    tls::{SecuredState, lease, status_of},
};

struct States {
    sessions: Vec<Arc<Session>>,
    states: Vec<State>,
    _dir: TempDir,
}

impl States {
    /// The first one leads.
    async fn start(seed: u64) -> Self {
        let (model, dir) = (EtcdModel::new(seed), tempfile::tempdir().unwrap());
        let (mut sessions, mut states) = (Vec::new(), Vec::new());
        for name in ["a", "b", "c"] {
            let session = model.connect();
            let state = State::start_one_of(Arc::clone(&session), name, dir.path()).await;
            sessions.push(session);
            until_leader(&state, states.first().unwrap_or(&state)).await;
            states.push(state);
        }
        Self { sessions, states, _dir: dir }
    }
}

/// Waits until `state` says that `leader` leads, or itself if it is the one. Returns the term.
async fn until_leader(state: &State, leader: &State) -> u64 {
    let known = async {
        loop {
            let request = v1::WatchLeaderRequest { beat_interval_ms: 0 };
            // It may be about to lead, and then ends what it has served.
            let Ok(answer) = state.members().watch_leader(request).await else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let mut words = answer.into_inner();
            while let Ok(Some(word)) = words.message().await {
                if word.address == leader.uri && word.leads == (state.uri == leader.uri) {
                    return word.term;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("another one leads")
}

async fn units(state: &State) -> Result<Vec<u64>, Status> {
    units_read(state, None).await
}

/// The ids of all units, as `state` has them, read as the header says.
async fn units_read(state: &State, read: Option<&str>) -> Result<Vec<u64>, Status> {
    let mut request = Request::new(v1::ListRecordsRequest {
        kinds: vec![v1::Kind::Unit.into()],
        ..v1::ListRecordsRequest::default()
    });
    if let Some(read) = read {
        request.metadata_mut().insert("godel-read", read.parse::<MetadataValue<_>>().unwrap());
    }
    let answer = state.state().list_records(request).await?;
    for header in ["godel-revision", "godel-age-ms"] {
        assert!(answer.metadata().get(header).is_some(), "{header}");
    }
    let records = answer.into_inner().records.into_iter();
    let unit = |record: v1::Record| match record.record {
        Some(v1::record::Record::Unit(unit)) => unit.unit_id,
        other => panic!("{other:?}"),
    };
    Ok(records.map(unit).collect())
}

/// Calls again until somebody answers: a state that has just taken over is known to others a moment later.
async fn until_answered<T>(call: impl AsyncFn() -> Result<T, Status>) -> T {
    let answered = async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                // A state that begins to lead cuts its connections.
                Err(status) => {
                    let codes = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
                    assert!(codes.contains(&status.code()), "{status:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("nobody answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_follow_answer_reads_and_pass_on_the_rest() {
    let States { states, .. } = States::start(1).await;
    // All through states that follow.
    let mut writer = states[1].writer("dispatcher").await;
    for unit in 1..20 {
        let revision = writer.write([put_unit(unit)]).await.unwrap();
        for state in &states {
            assert_eq!(units(state).await.unwrap(), (1..=unit).collect::<Vec<_>>(), "{}", state.uri);
            let at_least = revision.to_string();
            assert_eq!(units_read(state, Some(&at_least)).await.unwrap().len() as u64, unit);
            assert!(units_read(state, Some("stale-ok")).await.unwrap().len() as u64 <= unit);
        }
    }
    let registered = states[2].register("n1").await;
    for state in &states {
        assert_eq!(state.node("n1").await.node_id, registered.node_id);
    }
    Agent::open(&states[1].channel, "n1", registered, Vec::new()).await;
    // A revision that there is nowhere is what the leader says of it.
    let ahead = v1::WatchRequest { from_revision: 1_000, ..v1::WatchRequest::default() };
    for state in &states {
        let refused = state.state().watch(ahead.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    }
    let refused = units_read(&states[1], Some("tomorrow")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for state in states {
        state.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_state_takes_the_place_of_one_that_stops() {
    let States { mut states, .. } = States::start(2).await;
    let mut writer = states[2].writer("dispatcher").await;
    let first = writer.write([put_unit(1)]).await.unwrap();
    let mut watch = states[2]
        .state()
        .watch(v1::WatchRequest { from_revision: first, ..v1::WatchRequest::default() })
        .await
        .unwrap()
        .into_inner();
    let before = until_leader(&states[0], &states[0]).await;
    states.remove(0).stop().await;
    // The lease goes on, and so do the numbers of its transactions.
    let txn = writer.txn([put_unit(2)]);
    let second = until_answered(async || {
        let mut client = states[1].state();
        Ok(client.txn(txn.clone()).await?.into_inner().revision)
    })
    .await;
    let again = states[0].state().txn(txn.clone()).await.unwrap().into_inner().revision;
    assert_eq!(again, second, "a transaction that is repeated changes nothing");
    for state in &states {
        assert_eq!(until_answered(async || units(state).await).await, [1, 2]);
    }
    let leader = async {
        loop {
            for (at, state) in states.iter().enumerate() {
                let request = v1::WatchLeaderRequest { beat_interval_ms: 0 };
                let mut words = state.members().watch_leader(request).await.unwrap().into_inner();
                let word = words.message().await.unwrap().unwrap();
                if word.leads {
                    return (at, word.term);
                }
            }
        }
    };
    let (leader, term) = tokio::time::timeout(PATIENCE, leader).await.unwrap();
    assert!(term > before);
    // Who follows on has a watch that has missed nothing.
    if leader == 0 {
        let mut next = first;
        while next <= second {
            for commit in watch.message().await.unwrap().unwrap().commits {
                assert_eq!(commit.revision, next);
                next += 1;
            }
        }
    }
    for state in states {
        state.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_cannot_tell_whether_it_leads_answers_nothing_as_the_leader() {
    let States { states, sessions, _dir } = States::start(3).await;
    let old = &states[0];
    let mut writer = old.writer("dispatcher").await;
    writer.write([put_unit(1)]).await.unwrap();
    let registered = old.register("n1").await;
    let mut agent = Agent::open(&old.channel, "n1", registered, Vec::new()).await;
    let granted = acquire(&old.channel, "binder", "binder", 60_000).await.unwrap();
    // It is cut off from etcd, and not from those who call.
    sessions[0].cut();
    let txn = writer.txn([put_unit(2)]);
    let leads = until_answered(async || {
        let answer = states[1].state().txn(txn.clone()).await?;
        Ok(answer.into_inner().revision)
    })
    .await;
    assert!(leads > 0);
    let renew = v1::RenewLeaseRequest {
        lease: "binder".to_owned(),
        epoch: granted.epoch,
        ..v1::RenewLeaseRequest::default()
    };
    let none =
        |what: &str, status: Status| assert_eq!(status.code(), Code::Unavailable, "{what}: {status:?}");
    none("renewal", old.members().renew_lease(renew.clone()).await.unwrap_err());
    none("fresh read", units(old).await.unwrap_err());
    none("node", old.nodes().get_node(v1::GetNodeRequest { name: "n1".to_owned() }).await.unwrap_err());
    none("transaction", old.state().txn(writer.txn([put_unit(3)])).await.unwrap_err());
    none("members", old.members().list_members(v1::ListMembersRequest::default()).await.unwrap_err());
    let session = old.nodes().session(tokio_stream::pending::<v1::SessionRequest>()).await;
    none("session", session.map(drop).unwrap_err());
    agent.heartbeat(None).await;
    let answer = tokio::time::timeout(Duration::from_secs(1), agent.next()).await;
    assert!(answer.is_err(), "a heartbeat was answered: {answer:?}");
    assert_eq!(units_read(old, Some("stale-ok")).await.unwrap(), [1], "what it has, it shows");
    // The new leader knows the lease.
    until_answered(async || states[1].members().renew_lease(renew.clone()).await).await;
    drop(agent);
    for state in states {
        state.stop().await;
    }
}

/// A call of a person, with a token that the socket of one state has given, at another one.
async fn list_as(state: &SecuredState, nobody: &ClientSecurity, token: &str) -> Result<(), Status> {
    let person = nobody.clone().with_token(watch::channel(BearerToken::new(token).unwrap()).1);
    let mut client = StateServiceClient::new(state.tls(person));
    let request =
        v1::ListRecordsRequest { kinds: vec![v1::Kind::Unit.into()], ..v1::ListRecordsRequest::default() };
    client.list_records(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_follow_know_who_calls() {
    let model = EtcdModel::new(4);
    let a = SecuredState::start_one_of(model.connect(), "a", None).await;
    let b = SecuredState::start_one_of(model.connect(), "b", Some(&a)).await;
    // The socket of the one that follows, and a token of either, will do at both.
    let token = b.token().await;
    let nobody = ClientSecurity::new(a.identity(None).await);
    for state in [&a, &b] {
        status_of(state.tls(nobody.clone())).await.unwrap_err();
        list_as(state, &nobody, &token).await.unwrap();
    }
    // Who joins at the one that follows is known to both.
    let join = b.join_token("binder").await;
    let leaf = b.join(&join, "binder-1").await.unwrap();
    let binder = ClientSecurity::new(b.identity(Some(leaf)).await);
    lease(b.tls(binder.clone())).await.unwrap();
    // What is revoked at the leader is refused at the one that follows.
    let revoke = v1::RevokeIdentityRequest { identity: "binder/binder-1".to_owned() };
    IdentityServiceClient::new(a.socket()).revoke_identity(revoke).await.unwrap();
    let refused = async {
        loop {
            match status_of(b.tls(binder.clone())).await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(status) => return status,
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.expect("a revoked member is refused");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    a.stop().await;
    until_answered(async || list_as(&b, &nobody, &token).await).await;
    b.stop().await;
}
