//! How each process of a cluster is started: the only place of the tests that knows the binary's flags.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use crate::{process::CommandLine, settings::godel_bin};

/// Above all ports that processes of a cluster are given, below those of outgoing connections.
const METRICS_PORT_OFFSET: u16 = 10_000;

/// What a service process needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service<'a> {
    /// `state`, `dispatcher`, `scheduler` or `binder`.
    pub(super) part: &'a str,
    pub(super) name: &'a str,
    pub(super) listen: SocketAddr,
    /// What others are told to connect to; a proxy, or `listen`.
    pub(super) advertise: SocketAddr,
    /// State, or a proxy before it. Unused by state itself.
    pub(super) state: SocketAddr,
    /// Those of other parts are left out.
    pub(super) settings: &'a [(String, String)],
    /// A configuration file of its own.
    pub(super) config: Option<&'a Path>,
    pub(super) dir: &'a Path,
}

/// The metrics of a service that listens there. Its address is the cluster's own, so no port of it is taken.
pub(super) fn metrics_address(listen: SocketAddr) -> SocketAddr {
    SocketAddr::new(listen.ip(), listen.port() + METRICS_PORT_OFFSET)
}

/// `godel serve …`.
pub(super) fn serve(service: Service<'_>) -> CommandLine {
    let Service { part, name, listen, advertise, state, settings, config, dir } = service;
    let mut args = vec!["serve".to_owned(), part.to_owned(), format!("--listen={listen}")];
    args.push(format!("--metrics-listen={}", metrics_address(listen)));
    let mut env = Vec::new();
    if part == "state" {
        args.push(format!("--data-dir={}", dir.join(name).display()));
    } else {
        args.push(format!("--set={part}.server.advertise=http://{advertise}"));
        args.push(format!("--set={part}.client.state=http://{state}"));
        env = client_env(state);
    }
    if part == "scheduler" {
        args.push(format!("--name={name}"));
    }
    args.extend(config.map(|file| format!("--config={}", file.display())));
    let own = settings.iter().filter(|(key, _)| key.split('.').next() == Some(part));
    args.extend(own.map(|(key, value)| format!("--set={key}={value}")));
    CommandLine { program: godel_bin(), args, env }
}

/// `godel agent`: every node of the list `nodes`. Lost sessions come back soon, not spread over 5 s.
pub(super) fn agent(state: SocketAddr, nodes: &Path) -> CommandLine {
    let args = ["agent", "--nodes", &nodes.display().to_string(), "--set=agent.reconnect_spread=300ms"];
    CommandLine {
        program: godel_bin(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: client_env(state),
    }
}

/// The same for simulated nodes of shapes, as `2x cpu=8,memory=16Gi,name=edge`.
pub(super) fn agent_of(state: SocketAddr, shapes: &[String], settings: &[String]) -> CommandLine {
    let mut args = vec!["agent".to_owned(), "--set=agent.reconnect_spread=300ms".to_owned()];
    args.extend(shapes.iter().map(|shape| format!("--simulate={shape}")));
    args.extend(settings.iter().map(|setting| format!("--set={setting}")));
    CommandLine { program: godel_bin(), args, env: client_env(state) }
}

/// The agent of this machine, which runs commands, as node `name`, with settings `KEY=VALUE`.
pub(super) fn agent_of_this_machine(
    program: PathBuf,
    state: SocketAddr,
    (name, state_dir): (&str, &Path),
    settings: &[String],
) -> CommandLine {
    let mut args = vec![
        "agent".to_owned(),
        "--set=agent.reconnect_spread=300ms".to_owned(),
        format!("--name={name}"),
        format!("--state-dir={}", state_dir.display()),
    ];
    args.extend(settings.iter().map(|setting| format!("--set={setting}")));
    CommandLine { program, args, env: client_env(state) }
}

/// A client verb.
pub(super) fn client(state: SocketAddr, args: &[&str]) -> CommandLine {
    CommandLine {
        program: godel_bin(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: client_env(state),
    }
}

fn client_env(state: SocketAddr) -> Vec<(String, String)> {
    vec![("GODEL_ADDR".into(), format!("http://{state}"))]
}
