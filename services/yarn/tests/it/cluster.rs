//! A whole control plane in this process, with simulated nodes that say they start containers of YARN, and adapters over it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use godel_client::{
    audit::{self, Wanted},
    client::Client,
};
use godel_core_yarn_leader::{LaunchRefusal, MasterLaunch};
use godel_kit::{
    CancellationToken, Deps,
    clock::SystemClock,
    config::{ClientConfig, HumanDuration, ServerConfig},
};
use godel_proto::v1;
use godel_yarn::{Config, Manager, launcher::Launcher, serve_with};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::Instant};
use tonic::async_trait;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// A node's part of starting masters, played: it remembers what it was asked.
#[derive(Debug, Default)]
pub(crate) struct PlayedLauncher {
    pub(crate) launched: Mutex<Vec<MasterLaunch>>,
    pub(crate) stopped: Mutex<Vec<MasterLaunch>>,
    /// The reason for which nodes cannot be called; `None` while they can.
    pub(crate) unavailable: Mutex<Option<String>>,
}

#[async_trait]
impl Launcher for PlayedLauncher {
    async fn launch(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal> {
        if let Some(why) = self.unavailable.lock().unwrap().clone() {
            return Err(LaunchRefusal::Unavailable(why));
        }
        self.launched.lock().unwrap().push(launch);
        Ok(())
    }

    async fn stop(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal> {
        self.stopped.lock().unwrap().push(launch);
        Ok(())
    }
}

/// A running adapter.
pub(crate) struct Adapter {
    pub(crate) manager: Manager,
    stop: CancellationToken,
    running: JoinHandle<Result<(), godel_yarn::Error>>,
}

impl Adapter {
    /// Ends it without a word to anybody: what is not recorded is lost.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }
}

/// See the module.
pub(crate) struct Cluster {
    address: String,
    stop: CancellationToken,
    services: Vec<JoinHandle<()>>,
    pub(crate) launcher: Arc<PlayedLauncher>,
    _dir: tempfile::TempDir,
}

async fn listener() -> (TcpListener, ServerConfig) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let listen = listener.local_addr().unwrap();
    (listener, ServerConfig { listen, metrics: false, ..ServerConfig::default() })
}

fn deps(listener: TcpListener) -> Deps {
    Deps { listener: Some(listener), ..Deps::default() }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let shape =
            "2 x cpu=8,memory=16Gi,label.godel.dev/yarn-port=8041,label.rack=r1,max_running_units=100";
        Self::start_with(&[shape.to_owned()]).await
    }

    /// With nodes of these shapes.
    pub(crate) async fn start_with(shapes: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let (state_listener, server) = listener().await;
        let address = format!("http://{}", server.listen);
        let client = ClientConfig { state: address.clone(), ..ClientConfig::default() };
        let state = godel_state::Config {
            server,
            data_dir: dir.path().join("state"),
            tls: Some(godel_state::TlsMode::Off),
            ..Default::default()
        };
        let mut services = Vec::new();
        let state_deps = godel_state::Deps { listener: Some(state_listener), ..godel_state::Deps::default() };
        let running = godel_state::serve(state, state_deps, stop.clone());
        services.push(tokio::spawn(async move { running.await.unwrap() }));
        let (own, server) = listener().await;
        let config = godel_dispatcher::Config { server, client: client.clone(), ..Default::default() };
        let running = godel_dispatcher::serve(config, deps(own), stop.clone());
        services.push(tokio::spawn(async move { running.await.unwrap() }));
        let (own, server) = listener().await;
        let config = godel_binder::Config { server, client: client.clone(), ..Default::default() };
        let running = godel_binder::serve(config, deps(own), stop.clone());
        services.push(tokio::spawn(async move { running.await.unwrap() }));
        let (own, server) = listener().await;
        let config = godel_scheduler::Config {
            server,
            client: client.clone(),
            name: "s1".to_owned(),
            ..Default::default()
        };
        let running = godel_scheduler::serve(config, deps(own), stop.clone());
        services.push(tokio::spawn(async move { running.await.unwrap() }));
        let nodes = shapes.iter().flat_map(|shape| godel_agent::inventory::parse_shape(shape).unwrap());
        let mut nodes: Vec<_> = nodes.collect();
        for node in &mut nodes {
            let name = node.name.clone();
            node.attributes.entry("godel.dev/yarn-host".to_owned()).or_insert(name);
        }
        let agents = godel_agent::Deps {
            nodes,
            mode: godel_agent::Mode::Simulated,
            clock: SystemClock::shared(),
            stats: tokio::sync::watch::Sender::new(godel_agent::Stats::default()),
            says_goodbye: false,
            keeper: Vec::new(),
        };
        let config = godel_agent::Config { client, ..Default::default() };
        let running = godel_agent::serve(config, agents, stop.clone());
        services.push(tokio::spawn(async move { running.await.unwrap() }));
        Self { address, stop, services, launcher: Arc::default(), _dir: dir }
    }

    /// Starts an adapter and waits until it leads. Masters have so long to be started.
    pub(crate) async fn adapter(&self, launch_timeout: Duration) -> Adapter {
        let (own, server) = listener().await;
        let client = ClientConfig { state: self.address.clone(), ..ClientConfig::default() };
        let config =
            Config { server, client, launch_timeout: HumanDuration(launch_timeout), ..Config::default() };
        let stop = CancellationToken::new();
        let (sender, receiver) = oneshot::channel();
        let launcher = Arc::clone(&self.launcher);
        let running = serve_with(
            config,
            deps(own),
            stop.clone(),
            |_, _| launcher,
            |context| async move {
                // The test waits for it.
                let _ = sender.send(context.manager);
                Ok::<Box<dyn FnOnce(godel_kit::server::Server) -> godel_kit::server::Server + Send>, _>(
                    Box::new(|server| server),
                )
            },
        );
        let running = tokio::spawn(running);
        let manager = receiver.await.unwrap();
        Adapter { manager, stop, running }
    }

    /// Nothing is wrong with what the control plane has done.
    pub(crate) async fn audit(&self) {
        let client = Client::direct(&self.address).unwrap();
        let wanted = Wanted { ledger: None, patience: Duration::from_secs(10), look_here: None };
        let findings = audit::run(&client, wanted).await.unwrap();
        assert!(findings.hold(), "{:?}", findings.view());
    }

    /// What a unit is, as the dispatcher has it.
    pub(crate) async fn unit(&self, name: &str) -> v1::UnitSpec {
        let client = Client::direct(&self.address).unwrap();
        let unit = client.get_unit("yarn", name).await.unwrap().unit.unwrap();
        unit.spec.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        for service in self.services {
            service.await.unwrap();
        }
    }
}

/// Waits until something is so, and gives it.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
