use std::time::Duration;

use godel_proto::v1::{self, state_service_client::StateServiceClient};
use tokio::net::{TcpListener, TcpSocket};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

use crate::{
    client::{Channel, Directory, channel, retry_idempotent},
    config::{ClientConfig, ServerConfig},
    metrics::Metrics,
    security::tests::TestCluster,
    status::{self, OUTCOME, OUTCOME_UNKNOWN, reason},
    tests::fake::{Fake, Served, client_config, eventually, soon},
};

/// A fake state that says so of itself.
async fn state(leads: bool, term: u64) -> (Fake, Served) {
    let fake = Fake::new();
    say(&fake, leads, term);
    let served = fake.serve().await;
    (fake, served)
}

fn say(fake: &Fake, leads: bool, term: u64) {
    fake.with(|world| (world.leads, world.term) = (leads, term));
}

fn of(addresses: &[&str]) -> ClientConfig {
    ClientConfig { state: addresses.join(","), ..client_config() }
}

fn following(config: &ClientConfig) -> Channel {
    channel(&config.state, config).unwrap()
}

fn asking(config: &ClientConfig) -> Channel {
    Directory::through_state(config).unwrap().state()
}

async fn get_status(channel: &Channel) -> Result<(), Status> {
    let mut client = StateServiceClient::new(channel.clone());
    soon("an answer", client.get_store_status(v1::GetStoreStatusRequest {})).await.map(drop)
}

fn n_calls(fake: &Fake) -> usize {
    fake.with(|world| world.status_calls)
}

/// Calls until a call arrives at `fake`.
async fn until_called(channel: &Channel, fake: &Fake) {
    let before = n_calls(fake);
    let called = async {
        loop {
            // While another one is chosen, calls may end.
            drop(get_status(channel).await);
            if n_calls(fake) > before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon("a call at the state that leads", called).await;
}

/// An address at which nobody listens, for as long as the socket is kept.
fn dead_address() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", socket.local_addr().unwrap());
    (socket, address)
}

/// An address that accepts, and never answers: a state that is paused.
async fn deaf_address() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    (listener, address)
}

fn is_superseded(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && status::has_reason(status, reason::UNREACHABLE)
        && status::metadata_of(status, OUTCOME).as_deref() == Some(OUTCOME_UNKNOWN)
}

#[tokio::test]
async fn the_leader_is_called_and_followed_when_it_moves() {
    let ((a, at_a), (b, at_b)) = (state(false, 1).await, state(true, 1).await);
    let channel = following(&of(&[&at_a.url(), &at_b.url()]));
    assert_eq!(a.with(|world| world.leader_watches), 0, "nothing is opened before the first call");
    for _ in 0..3 {
        get_status(&channel).await.unwrap();
    }
    assert_eq!((n_calls(&a), n_calls(&b)), (0, 3));
    let mut client = StateServiceClient::new(channel.clone());
    let watch = v1::WatchRequest { from_revision: 1, ..v1::WatchRequest::default() };
    let mut stream = client.watch(watch).await.unwrap().into_inner();
    b.commit(Vec::new());
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
    // The one before has not noticed yet that it leads no more.
    say(&a, true, 2);
    let end = loop {
        match soon("the end of the stream", stream.next()).await.unwrap() {
            Ok(_) => {}
            Err(end) => break end,
        }
    };
    assert!(is_superseded(&end), "{end}");
    assert!(soon("nothing more", stream.next()).await.is_none());
    until_called(&channel, &a).await;
    let at_b_before = n_calls(&b);
    get_status(&channel).await.unwrap();
    assert_eq!(n_calls(&b), at_b_before);
}

#[tokio::test]
async fn a_call_at_a_paused_leader_ends_when_another_one_leads() {
    let ((paused, at_paused), (next, at_next)) = (state(true, 4).await, state(false, 4).await);
    paused.with(|world| world.block_status = true);
    let channel = following(&of(&[&at_paused.url(), &at_next.url()]));
    let waiting = crate::task::spawn("call", {
        let channel = channel.clone();
        async move { get_status(&channel).await }
    });
    eventually("the call at the paused one", || (n_calls(&paused) > 0).then_some(())).await;
    say(&next, true, 5);
    let ended = soon("the end of the call", waiting).await.unwrap().unwrap_err();
    assert!(is_superseded(&ended), "{ended}");
    // What may be done twice is done at the next one, by whoever retries already.
    let policy = Directory::new(&client_config()).unwrap().policy();
    retry_idempotent(&policy, || get_status(&channel)).await.unwrap();
    assert!(!status::is_retryable(&ended) && status::is_retryable_idempotent(&ended));
    assert_eq!(n_calls(&next), 1);
}

#[tokio::test]
async fn dead_and_deaf_addresses_keep_nobody_from_the_others() {
    let (fake, served) = state(true, 1).await;
    let ((_dead, at_dead), (_deaf, at_deaf)) = (dead_address(), deaf_address().await);
    let url = served.url();
    for addresses in [[at_dead.as_str(), &url, &at_deaf], [&at_deaf, &at_dead, &url]] {
        for channel in [following(&of(&addresses)), asking(&of(&addresses))] {
            get_status(&channel).await.unwrap();
        }
    }
    assert_eq!(n_calls(&fake), 4);
    // One that does not lead passes calls on; a leader that comes is followed.
    say(&fake, false, 1);
    let channel = following(&of(&[&at_dead, &url]));
    get_status(&channel).await.unwrap();
    get_status(&asking(&of(&[&at_dead, &url]))).await.unwrap();
    assert_eq!(n_calls(&fake), 6);
}

#[tokio::test]
async fn where_nobody_answers_each_address_is_named() {
    let (dead, deaf) = (dead_address(), deaf_address().await);
    let config =
        ClientConfig { connect_timeout: Duration::from_millis(50).into(), ..of(&[&dead.1, &deaf.1]) };
    for channel in [following(&config), asking(&config)] {
        let refused = get_status(&channel).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(status::is_retryable(&refused), "nobody has done anything");
        for address in [&dead.1, &deaf.1] {
            assert!(refused.message().contains(address.as_str()), "{refused}");
        }
    }
    // As one address does when its state is back.
    let config = of(&[&dead.1, "http://127.0.0.1:1"]);
    let channels = [following(&config), asking(&config)];
    for channel in &channels {
        assert!(get_status(channel).await.is_err());
    }
    let fake = Fake::new();
    let socket = dead.0;
    let address = socket.local_addr().unwrap();
    let listener = socket.listen(64).unwrap();
    fake.serve_at(listener.into(), address, &ServerConfig::default(), &Metrics::new("fake"));
    for channel in &channels {
        until_called(channel, &fake).await;
    }
}

#[tokio::test]
async fn channels_of_one_configuration_share_their_streams() {
    let ((a, at_a), (b, at_b)) = (state(true, 1).await, state(false, 1).await);
    let config = of(&[&at_a.url(), &at_b.url()]);
    let n_streams = |n: usize| {
        let (a, b) = (a.clone(), b.clone());
        let each = move || [&a, &b].iter().all(|fake| fake.with(|world| world.leader_watches) == n);
        eventually("the streams", move || each().then_some(()))
    };
    let channels = [following(&config), following(&config.clone()), Directory::new(&config).unwrap().state()];
    for channel in &channels {
        get_status(channel).await.unwrap();
    }
    n_streams(1).await;
    // They end with the last channel.
    drop(channels);
    n_streams(0).await;
    // A command keeps none, and one address needs none.
    let one = ClientConfig { state: at_a.url(), ..client_config() };
    let channels = [asking(&config), following(&one), asking(&one)];
    for channel in &channels {
        get_status(channel).await.unwrap();
    }
    n_streams(0).await;
    assert_eq!((n_calls(&a), n_calls(&b)), (6, 0));
}

#[tokio::test]
async fn a_command_asks_again_when_its_state_is_gone() {
    let ((a, at_a), (b, at_b)) = (state(false, 1).await, state(true, 1).await);
    let channel = asking(&of(&[&at_a.url(), &at_b.url()]));
    for _ in 0..3 {
        get_status(&channel).await.unwrap();
    }
    assert_eq!((n_calls(&a), n_calls(&b)), (0, 3), "the leader gets a moment to answer");
    at_b.kill().await;
    assert!(get_status(&channel).await.is_err(), "the call that finds out");
    get_status(&channel).await.unwrap();
    assert_eq!(n_calls(&a), 1);
}

#[tokio::test]
async fn each_address_must_be_a_state_of_the_cluster() {
    let (cluster, other) = (TestCluster::new(), TestCluster::new());
    let mut served = Vec::new();
    for (security, term) in
        [(cluster.server("binder/b"), 9), (other.server("state/main"), 8), (cluster.server("state/main"), 1)]
    {
        let fake = Fake::new();
        say(&fake, true, term);
        let config = ServerConfig { security, ..ServerConfig::default() };
        let at = fake.serve_with("127.0.0.1:0".parse().unwrap(), &config).await;
        served.push((fake, at));
    }
    let addresses: Vec<String> = served.iter().map(|(_, at)| format!("https://{}", at.address)).collect();
    let security = cluster.member("scheduler/s1");
    let config = ClientConfig { state: addresses.join(","), security, ..client_config() };
    for channel in [following(&config), asking(&config)] {
        get_status(&channel).await.unwrap();
    }
    assert_eq!(served.iter().map(|(fake, _)| n_calls(fake)).collect::<Vec<_>>(), [0, 0, 2]);
}
