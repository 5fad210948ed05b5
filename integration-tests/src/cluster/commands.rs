//! How each process of a cluster is started: the only place of the tests that knows the binary's flags.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use crate::{process::CommandLine, settings::godel_bin};

/// Above all ports that processes of a cluster are given, below those of outgoing connections.
const METRICS_PORT_OFFSET: u16 = 10_000;

/// The socket of state, in the cluster's own directory.
const SOCKET: &str = "godel.sock";

/// File of the configuration of agents of this machine, in the cluster's own directory.
pub(super) const USERS_FILE: &str = "users.yaml";

/// Roles of those that join.
pub(super) const JOINING: [&str; 6] = ["dispatcher", "binder", "scheduler", "rescheduler", "yarn", "agent"];

/// How processes reach state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route<'a> {
    /// State, or a proxy before it.
    pub(super) state: SocketAddr,
    /// The cluster's own directory, with the socket of state and the join tokens.
    pub(super) dir: &'a Path,
    /// State speaks plain text, and nobody joins.
    pub(super) is_plain: bool,
}

impl Route<'_> {
    /// What members and agents are told.
    fn url(&self, address: SocketAddr) -> String {
        format!("{}://{address}", if self.is_plain { "http" } else { "https" })
    }

    /// Where the administrator calls: no token is needed at the socket.
    pub(super) fn client_address(&self) -> String {
        if self.is_plain { self.url(self.state) } else { format!("unix:{}", self.dir.join(SOCKET).display()) }
    }

    fn env(&self) -> Vec<(String, String)> {
        vec![("GODEL_ADDR".into(), self.url(self.state))]
    }

    /// How a part joins; what it keeps is in a directory of all parts, by role and name.
    fn joining(&self, part: &str) -> Vec<String> {
        if self.is_plain {
            return Vec::new();
        }
        let kept = format!("--set={part}.identity.dir={}", self.dir.join("identity").display());
        vec![format!("--join-file={}", join_token(self.dir, part).display()), kept]
    }
}

/// Environment by which any part joins. The name that a service gets is that of its host.
pub(super) fn member_env(route: Route<'_>) -> Vec<(String, String)> {
    if route.is_plain {
        return Vec::new();
    }
    let of = |part: &str| {
        let key = |name: &str| format!("GODEL_{}__{name}", part.to_uppercase());
        [
            (key("CLIENT__STATE"), route.url(route.state)),
            (key("IDENTITY__JOIN_FILE"), join_token(route.dir, part).display().to_string()),
            (key("IDENTITY__DIR"), route.dir.join("identity").display().to_string()),
        ]
    };
    JOINING.into_iter().flat_map(of).collect()
}

/// Where the join token of a role is.
pub(super) fn join_token(dir: &Path, role: &str) -> PathBuf {
    dir.join(format!("{role}.token"))
}

/// What a service process needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service<'a> {
    /// `state`, `dispatcher`, `scheduler` or `binder`.
    pub(super) part: &'a str,
    pub(super) name: &'a str,
    pub(super) listen: SocketAddr,
    /// What others are told to connect to; a proxy, or `listen`.
    pub(super) advertise: SocketAddr,
    /// Unused by state itself.
    pub(super) route: Route<'a>,
    /// Those of other parts are left out.
    pub(super) settings: &'a [(String, String)],
    /// A configuration file of its own.
    pub(super) config: Option<&'a Path>,
}

/// The metrics of a service that listens there. Its address is the cluster's own, so no port of it is taken.
pub(super) fn metrics_address(listen: SocketAddr) -> SocketAddr {
    SocketAddr::new(listen.ip(), listen.port() + METRICS_PORT_OFFSET)
}

/// `godel serve …`.
pub(super) fn serve(service: Service<'_>) -> CommandLine {
    let Service { part, name, listen, advertise, route, settings, config } = service;
    let mut args = vec!["serve".to_owned(), part.to_owned(), format!("--listen={listen}")];
    args.push(format!("--metrics-listen={}", metrics_address(listen)));
    let mut env = Vec::new();
    if part == "state" {
        args.push(format!("--data-dir={}", route.dir.join(name).display()));
        args.extend(route.is_plain.then(|| "--insecure".to_owned()));
    } else {
        args.push(format!("--set={part}.server.advertise={}", route.url(advertise)));
        args.push(format!("--set={part}.client.state={}", route.url(route.state)));
        args.push(format!("--name={name}"));
        args.extend(route.joining(part));
        env = route.env();
    }
    args.extend(config.map(|file| format!("--config={}", file.display())));
    let own = settings.iter().filter(|(key, _)| key.split('.').next() == Some(part));
    args.extend(own.map(|(key, value)| format!("--set={key}={value}")));
    CommandLine { program: godel_bin(), args, env }
}

/// `godel agent` with these flags. Lost sessions come back soon, not spread over 5 s, nor after 10 s at an address where nobody answers.
fn agent_with(route: Route<'_>, flags: impl IntoIterator<Item = String>) -> CommandLine {
    let soon = ["agent", "--set=agent.reconnect_spread=300ms", "--set=agent.client.connect_timeout=2s"];
    let mut args: Vec<String> = soon.map(str::to_owned).into();
    args.extend(route.joining("agent"));
    args.extend(flags);
    CommandLine { program: godel_bin(), args, env: route.env() }
}

/// `godel agent`: every node of the list `nodes`.
pub(super) fn agent(route: Route<'_>, nodes: &Path) -> CommandLine {
    agent_with(route, [format!("--nodes={}", nodes.display())])
}

/// The same for simulated nodes of shapes, as `2x cpu=8,memory=16Gi,name=edge`.
pub(super) fn agent_of(route: Route<'_>, shapes: &[String], settings: &[String]) -> CommandLine {
    let shapes = shapes.iter().map(|shape| format!("--simulate={shape}"));
    agent_with(route, shapes.chain(settings.iter().map(|setting| format!("--set={setting}"))))
}

/// The agent of this machine, which runs commands as whoever runs the tests, as node `name`, with settings `KEY=VALUE`.
pub(super) fn agent_of_this_machine(
    program: PathBuf,
    route: Route<'_>,
    (name, state_dir): (&str, &Path),
    settings: &[String],
) -> CommandLine {
    let users = (!route.is_plain).then(|| format!("--config={}", route.dir.join(USERS_FILE).display()));
    let own = [format!("--name={name}"), format!("--state-dir={}", state_dir.display())];
    let settings = settings.iter().map(|setting| format!("--set={setting}"));
    CommandLine { program, ..agent_with(route, users.into_iter().chain(own).chain(settings)) }
}

/// A client verb.
pub(super) fn client(route: Route<'_>, args: &[&str]) -> CommandLine {
    CommandLine {
        program: godel_bin(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: vec![("GODEL_ADDR".into(), route.client_address())],
    }
}
