use std::{sync::Arc, time::Duration};

use godel_identity::rotation::{PERSON_TOKEN_MS, ROOT_LEAD_MS};
use godel_kit::{CancellationToken, clock::ManualClock};
use godel_state::{Config, Deps, Error, TlsMode};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;

const HOUR_MS: u64 = 3_600_000;
/// When the tests begin.
const START_MS: u64 = 1_790_000_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// A state with TLS whose time the test tells, and a person's contexts.
struct TimedState {
    dir: TempDir,
    address: String,
    clock: ManualClock,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), Error>>,
}

impl TimedState {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config =
            Config { data_dir: dir.path().join("state"), tls: Some(TlsMode::On), ..Config::default() };
        config.server.metrics = false;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let (clock, stop) = (ManualClock::new(START_MS), CancellationToken::new());
        let deps = Deps { listener: Some(listener), clock: Arc::new(clock.clone()), ..Deps::default() };
        let serving = tokio::spawn(godel_state::serve(config, deps, stop.clone()));
        let state = Self { dir, address, clock, stop, serving };
        let answered = async {
            while take_trust(&state.socket(), 0).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, answered).await.unwrap();
        state
    }

    fn socket(&self) -> Client {
        Client::new(&format!("unix:{}", self.dir.path().join("godel.sock").display())).unwrap()
    }

    fn now_ms(&self) -> i64 {
        godel_kit::clock::Clock::wall_ms(&self.clock)
    }

    /// Logs in by the socket, as `godel context login` does.
    async fn login(&self, name: &str) -> ContextFile {
        let file = ContextFile::new(self.dir.path().join(name));
        let client = self.socket();
        let context = Context {
            address: self.address.clone(),
            trust: Some(take_trust(&client, self.now_ms()).await.unwrap()),
            token: Some(take_token(&client).await.unwrap()),
        };
        file.change(|contexts| contexts.put("c", context.clone())).unwrap();
        file
    }

    /// A command that uses the context of a file.
    fn command(&self, file: &ContextFile) -> ContextRenewal {
        let contexts = file.read().unwrap();
        let (name, context) = contexts.find(None).unwrap().unwrap();
        ContextRenewal::by_clock(file.clone(), name, context, Arc::new(self.clock.clone())).unwrap()
    }

    /// What one finds who uses the context of a file now.
    async fn used(&self, file: &ContextFile) -> Result<(), Failure> {
        let mut command = self.command(file);
        let client = Client::new(command.access()).unwrap();
        command.renew().await;
        client.store_status().await.map(drop)
    }

    async fn stop(self) {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

fn n_roots(file: &ContextFile) -> usize {
    let contexts = file.read().unwrap();
    let (_, context) = contexts.find(None).unwrap().unwrap();
    context.read_trust().unwrap().unwrap().roots().len()
}

#[test]
fn a_token_is_renewed_at_half_and_roots_each_hour() {
    let context = |asked_ms, expires_ms| Context {
        address: String::new(),
        trust: Some(ContextTrust { cluster: "c".to_owned(), roots: String::new(), asked_ms }),
        token: Some(ContextToken { token: "t".to_owned(), expires_ms }),
    };
    let (hour, now) = (3_600_000, 1_790_000_000_000);
    for (asked_ms, expires_ms, expected) in [
        (now, now + 12 * hour, RenewalNeed::Nothing),
        (now - hour + 1, now + 6 * hour, RenewalNeed::Nothing),
        (now - hour, now + 6 * hour, RenewalNeed::Roots),
        // The clock went back.
        (now + 1, now + 6 * hour, RenewalNeed::Roots),
        (0, now + 6 * hour - 1, RenewalNeed::Token),
        (now, now, RenewalNeed::Token),
        (now, now - 1, RenewalNeed::Nothing),
        (0, now - 1, RenewalNeed::Roots),
    ] {
        assert_eq!(need(&context(asked_ms, expires_ms), now), expected, "{asked_ms} {expires_ms}");
    }
    assert_eq!(need(&Context { trust: None, ..context(0, now) }, now), RenewalNeed::Nothing);
}

#[tokio::test]
async fn a_context_in_use_works_after_the_roots_have_changed() {
    let state = TimedState::start().await;
    let (used, unused) = (state.login("used.yaml").await, state.login("unused.yaml").await);
    state.used(&used).await.unwrap();
    let rotated = state.socket().identities().rotate_ca(v1::RotateCaRequest {}).await.unwrap().into_inner();
    let lead_ms = u64::try_from(rotated.signs_from_ms).unwrap() - START_MS;
    assert!(lead_ms >= PERSON_TOKEN_MS && lead_ms == ROOT_LEAD_MS, "{lead_ms}");
    assert_eq!((n_roots(&used), n_roots(&unused)), (1, 1));
    // Used as seldom as can be without logging in again.
    state.clock.advance(PERSON_TOKEN_MS - HOUR_MS);
    state.used(&used).await.unwrap();
    assert_eq!((n_roots(&used), n_roots(&unused)), (2, 1));
    state.clock.advance(HOUR_MS + 1_000);
    // State shows a leaf of the new root soon: whoever has the old one alone is told what to do.
    let refused = async {
        loop {
            // It does not ask for other roots: as long as state shows the old one it would get them.
            let client = Client::new(state.command(&unused).access()).unwrap();
            match client.store_status().await {
                Err(failure) if failure.message.contains("not one of this cluster") => return failure,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert!(refused.message.contains("take them with `godel context login`"), "{}", refused.message);
    state.used(&used).await.unwrap();
    state.login("unused.yaml").await;
    state.used(&unused).await.unwrap();
    state.stop().await;
}

#[tokio::test]
async fn a_command_that_runs_for_long_shows_newer_tokens() {
    let state = TimedState::start().await;
    let file = state.login("contexts.yaml").await;
    let (mut first, mut second) = (state.command(&file), state.command(&file));
    let clients = [&first, &second].map(|command| Client::new(command.access()).unwrap());
    for _ in 0..3 {
        state.clock.advance(PERSON_TOKEN_MS / 2 + HOUR_MS);
        first.renew().await;
        second.renew().await;
        for client in &clients {
            client.store_status().await.unwrap();
        }
    }
    assert_eq!(first.context, second.context, "one renews, and the other reads the file");
    // Once the token is over, another login helps those that run, too.
    state.clock.advance(PERSON_TOKEN_MS + HOUR_MS);
    first.renew().await;
    let refused = clients[0].store_status().await.unwrap_err();
    assert!(refused.message.contains("the token has expired"), "{}", refused.message);
    state.login("contexts.yaml").await;
    first.renew().await;
    clients[0].store_status().await.unwrap();
    state.stop().await;
}
