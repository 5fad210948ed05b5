//! How the processes of a run are started: their command lines, ports and join tokens.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use godel_client::{
    administrator::LocalAdministrator,
    client::Client,
    context::Context,
    exit::{Code, Failure},
};
use godel_kit::security::Role;
use godel_proto::v1;

use crate::{
    engine::{QUOTA_BYTES, StoreEngine},
    processes::BenchProcesses,
};

/// Nodes without agents stay ready for so long.
const DETACHED_TTL: &str = "1h";
/// What state logs: also when it begins and completes a snapshot.
const STATE_LOG: &str = "warn,godel_store=info";
/// What the user is called who submits units.
const SUBMITTER: &str = "bench";
/// How long the dispatcher may take to hear of the user, and how often it is asked.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(30);
const KNOWN_LOOK: Duration = Duration::from_millis(50);
/// A free port.
const FREE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What to bring up.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Data and logs of the run.
    pub(crate) dir: PathBuf,
    pub(crate) n_nodes: usize,
    pub(crate) n_schedulers: usize,
    pub(crate) partition: v1::PartitionMode,
    /// `KEY=VALUE` for every process.
    pub(crate) set: Vec<String>,
    /// Everybody speaks TLS.
    pub(crate) tls: bool,
    /// Over TLS, units are submitted by a principal of role `user` instead of the administrator.
    pub(crate) by_user: bool,
    /// Where state keeps its store.
    pub(crate) engine: StoreEngine,
}

impl Layout {
    /// Where whoever runs state reaches it without TLS.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("godel.sock")
    }

    /// Who lets the processes join; `None`: nobody needs to.
    fn administrator(&self) -> Result<Option<LocalAdministrator>, Failure> {
        self.tls.then(|| LocalAdministrator::at(&self.socket())).transpose()
    }

    /// A client of the state at `address`.
    pub(crate) async fn client(&self, address: &str) -> Result<Client, Failure> {
        let Some(administrator) = self.administrator()? else { return Client::direct(address) };
        let context = administrator.context(address).await?;
        of_context(&context)
    }

    /// Whoever submits units to the state of `client`: the same, or a user.
    pub(crate) async fn submitter(&self, client: &Client) -> Result<Client, Failure> {
        let administrator = self.administrator()?.filter(|_| self.by_user);
        let Some(administrator) = administrator else { return Ok(client.clone()) };
        let user = of_context(&administrator.context_of(client.address(), SUBMITTER, user_terms()).await?)?;
        wait_until_known(&user).await?;
        Ok(user)
    }
}

/// Waits until the dispatcher knows a principal, of which it hears a moment after it was made.
async fn wait_until_known(user: &Client) -> Result<(), Failure> {
    let deadline = Instant::now() + KNOWN_TIMEOUT;
    loop {
        let request = v1::ListUnitsRequest { page_size: 1, ..v1::ListUnitsRequest::default() };
        let looked = user.units(|mut units| {
            let request = request.clone();
            async move { units.list_units(request).await }
        });
        match looked.await {
            Ok(_) => return Ok(()),
            Err(failure) if Instant::now() >= deadline => return Err(failure),
            Err(_) => tokio::time::sleep(KNOWN_LOOK).await,
        }
    }
}

fn of_context(context: &Context) -> Result<Client, Failure> {
    let access = context.access().map_err(|error| Failure::chain(Code::Failed, &error))?;
    Client::direct(access)
}

/// A principal of role `user` with several entries in each list, the last of which are those of the units.
fn user_terms() -> v1::PrincipalTerms {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    v1::PrincipalTerms {
        role: "user".to_owned(),
        groups: words(&["etl", "ml"]),
        namespaces: words(&["team-a", "team-b", "default"]),
        queues: words(&["batch", "online.web", "default"]),
        ..v1::PrincipalTerms::default()
    }
}

/// The flags with which a process joins: a file with a token for it, and a directory for its identity.
async fn joins(layout: &Layout, part: &str, name: &str, names: &str) -> Result<Vec<String>, Failure> {
    let Some(administrator) = layout.administrator()? else { return Ok(Vec::new()) };
    let role: Role = part.parse().map_err(|error| Failure::chain(Code::Failed, &error))?;
    let token = administrator.join_token(role, names).await?;
    let file = layout.dir.join(format!("{name}.token"));
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file);
    let written = written.and_then(|mut open| open.write_all(token.as_bytes()));
    written.map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
    let identities = layout.dir.join("identity");
    let mut flags = vec!["--join-file".to_owned(), file.display().to_string()];
    flags.extend(sets(&[format!("{part}.identity.dir={}", identities.display())]));
    Ok(flags)
}

/// A process of agents.
pub(crate) struct AgentProcess<'a> {
    /// Of state.
    pub(crate) address: &'a str,
    pub(crate) name: &'a str,
    /// What its join token is for: the name of its node, or what the names begin with and `*`.
    pub(crate) names: &'a str,
    /// Its nodes, as `godel agent --simulate` takes them.
    pub(crate) shapes: &'a [String],
    /// Whether it only gets the CPU time that the others leave.
    pub(crate) is_behind: bool,
}

/// Starts a process of agents, and waits until all of its nodes are connected.
pub(crate) async fn start_agents(
    processes: &mut BenchProcesses,
    layout: &Layout,
    AgentProcess { address, name, names, shapes, is_behind }: &AgentProcess<'_>,
) -> Result<(), Failure> {
    let mut agent = vec!["agent".to_owned(), "--address".to_owned(), (*address).to_owned()];
    agent.extend(joins(layout, "agent", name, names).await?);
    agent.extend(shapes.iter().flat_map(|shape| ["--simulate".to_owned(), shape.clone()]));
    agent.extend(sets(&layout.set));
    if *is_behind {
        return processes.start_behind(name, &agent).await.map(drop);
    }
    processes.start(name, &agent).await.map(drop)
}

/// Starts state and every part; the address of state, and those of the others by name. None need answer yet.
pub(crate) async fn start_all(
    processes: &mut BenchProcesses,
    layout: &Layout,
    agents: bool,
) -> Result<(String, BTreeMap<String, String>), Failure> {
    let address = start_state(processes, layout, agents).await?;
    let mut addresses = BTreeMap::new();
    for (name, part) in parts(layout.n_schedulers) {
        let mut args = vec!["serve".to_owned(), part.to_owned(), "--address".to_owned(), address.clone()];
        if part == "scheduler" {
            args.extend(["--name".to_owned(), name.clone()]);
        }
        args.extend(joins(layout, part, &name, &name).await?);
        let listens = serve(processes, &name, args, &layout.set).await?;
        addresses.insert(name, listens);
    }
    Ok((address, addresses))
}

/// Names and parts, in order of start.
pub(super) fn parts(n_schedulers: usize) -> Vec<(String, &'static str)> {
    let mut parts = vec![("dispatcher".to_owned(), "dispatcher"), ("binder".to_owned(), "binder")];
    parts.extend((1..=n_schedulers).map(|number| (format!("s{number}"), "scheduler")));
    parts
}

pub(crate) async fn start_state(
    processes: &mut BenchProcesses,
    layout: &Layout,
    agents: bool,
) -> Result<String, Failure> {
    let args = on_free_ports(state(processes, layout, agents).await?, &layout.set);
    let line = processes.start_logging("state", &args, STATE_LOG).await?;
    address("state", &line)
}

/// Starts state again where it was before.
pub(crate) async fn start_state_at(
    processes: &mut BenchProcesses,
    layout: &Layout,
    listen: SocketAddr,
) -> Result<(), Failure> {
    let args = state(processes, layout, true).await?;
    processes.start("state", &on_ports(args, &layout.set, listen)).await.map(drop)
}

/// The command line of state, but for its ports. The etcd of its store runs then.
async fn state(
    processes: &mut BenchProcesses,
    layout: &Layout,
    agents: bool,
) -> Result<Vec<String>, Failure> {
    let data_dir = layout.dir.join("state").display().to_string();
    let mut args: Vec<String> = ["serve", "state", "--data-dir", &data_dir].map(str::to_owned).into();
    args.push(if layout.tls { "--tls=on" } else { "--insecure" }.to_owned());
    if !agents {
        args.extend(sets(&[
            format!("state.node_lease_ttl={DETACHED_TTL}"),
            "state.node_grace=2h".to_owned(),
        ]));
    }
    let endpoints = processes.start_etcd(layout.engine).await?;
    if !endpoints.is_empty() {
        args.extend(["--engine", "etcd", "--etcd-endpoints", &endpoints.join(",")].map(str::to_owned));
        args.extend(sets(&[format!("state.etcd.quota_bytes={QUOTA_BYTES}")]));
    }
    Ok(args)
}

/// The address of a part on free ports.
pub(crate) async fn serve(
    processes: &mut BenchProcesses,
    name: &str,
    args: Vec<String>,
    set: &[String],
) -> Result<String, Failure> {
    let line = processes.start(name, &on_free_ports(args, set)).await?;
    address(name, &line)
}

/// The address in the first line of a part.
fn address(name: &str, line: &str) -> Result<String, Failure> {
    let address = line.split_whitespace().nth(1).map(str::to_owned);
    address.ok_or_else(|| Failure::failed(format!("{name} printed `{line}` instead of its address")))
}

/// Starts a part on free ports with a filter of its log; where that is.
pub(crate) async fn serve_logging(
    processes: &mut BenchProcesses,
    name: &str,
    args: Vec<String>,
    set: &[String],
    filter: &str,
) -> Result<PathBuf, Failure> {
    processes.start_logging(name, &on_free_ports(args, set), filter).await?;
    Ok(processes.log(name))
}

fn on_free_ports(args: Vec<String>, set: &[String]) -> Vec<String> {
    on_ports(args, set, FREE)
}

/// With these settings, at `listen`, and with metrics on a free port.
fn on_ports(mut args: Vec<String>, set: &[String], listen: SocketAddr) -> Vec<String> {
    args.extend(["--listen".to_owned(), listen.to_string(), "--metrics-listen".to_owned(), FREE.to_string()]);
    args.extend(sets(set));
    args
}

fn sets(set: &[String]) -> Vec<String> {
    set.iter().flat_map(|pair| ["--set".to_owned(), pair.clone()]).collect()
}
