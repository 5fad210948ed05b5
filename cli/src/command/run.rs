//! Verbs that run parts of the control plane in this process.

use std::{path::Path, sync::Arc};

use godel_agent::{Mode, StartedHere, Stats, identity};
use godel_audit::LocalProcess;
use godel_client::{
    audit,
    client::Client,
    context::Context,
    exit::{Code, Failure},
    output::{self, Format, Paint, are, count},
    process::telemetry,
    replay::{self, Options},
};
use godel_kit::{
    CancellationToken,
    address::Speech,
    clock::SystemClock,
    config::{ClientConfig, IdentityConfig, ServerConfig, TelemetryConfig},
    member::speech_of,
    server, shutdown,
};
use godel_rescheduler::Reload;
use tokio::sync::watch;

use super::context::{forget_context, keep_context};
use crate::{
    args::{Agent, Demo, Layers, Serve, ServicePart, SimulatedNodes, Up},
    config::{self, Root},
    local::{self, Layout, Local},
};

/// Marks a directory that `godel demo` made and may empty.
const DEMO_MARK: &str = ".godel-demo";

pub(super) async fn up(up: Up, log: Option<String>, format: Format) -> Result<(), Failure> {
    let root = config::load(&up.layers, &up.exposure.flags())?;
    let _guard = telemetry(root.telemetry.clone(), log)?;
    let nodes = local::nodes(&up.nodes)?;
    let root = with_store(root, &up.data_dir, up.memory);
    let agent = agent_config(&root, &up.nodes);
    let layout = Layout {
        port: up.port,
        dispatchers: up.dispatchers,
        schedulers: up.schedulers,
        binders: up.binders,
        yarn: up.yarn || root.yarn.enabled,
        rescheduler: !up.no_rescheduler && root.rescheduler.enabled,
    };
    let flags = up.exposure.flags().map(|(key, value)| (key.to_owned(), value));
    let reload = reload_of(up.layers.clone(), flags.to_vec());
    let stop = signals()?;
    let mut local = Local::start(root, &layout, Some(reload), stop).await?;
    let kept = KeptContext::keep(local.context.as_ref(), up.memory);
    let n_nodes = nodes.len();
    if n_nodes > 0 {
        local.simulate(agent, nodes).await?;
    }
    match format {
        Format::Json | Format::Yaml => {
            let parts: std::collections::BTreeMap<_, _> = local.parts.iter().cloned().collect();
            output::print_value(format, &parts)?;
        }
        Format::Table | Format::Wide => {
            output::print(&greeting(&local, &store_of(up.memory, &up.data_dir), n_nodes, kept.as_ref()))?;
        }
    }
    let ended = local.ended().await;
    ended.and(local.stop().await)
}

pub(super) async fn demo(demo: Demo, log: Option<String>) -> Result<(), Failure> {
    let root = config::load(&demo.layers, &demo.exposure.flags())?;
    // The bar and the summary are what to look at.
    let _guard = telemetry(root.telemetry.clone(), log.or_else(|| Some("warn".to_owned())))?;
    let tasks = replay::read_tasks(&demo.tasks)?;
    let nodes = local::read_nodes(&demo.nodes)?;
    if !demo.memory {
        empty_demo_dir(&demo.data_dir)?;
    }
    let root = with_store(root, &demo.data_dir, demo.memory);
    let agent = root.agent.clone();
    let default_port = if demo.once { 0 } else { 7700 };
    let layout = Layout {
        port: demo.port.unwrap_or(default_port),
        dispatchers: 1,
        schedulers: demo.schedulers,
        binders: 1,
        yarn: false,
        rescheduler: false,
    };
    let stop = signals()?;
    let mut local = Local::start(root, &layout, None, stop.clone()).await?;
    // The next demo makes another cluster.
    let kept = KeptContext::keep(local.context.as_ref(), true);
    let shown = show(&mut local, &demo, tasks, nodes, agent).await;
    let audited = match shown {
        Ok(audited) => audited,
        Err(failure) => {
            // What failed first is what counts.
            let _also = local.stop().await;
            return Err(failure);
        }
    };
    if !demo.once && !stop.is_cancelled() {
        output::print(&commands_to_try(&local, kept.as_ref()))?;
        local.ended().await?;
    }
    local.stop().await?;
    audited.map_or(Ok(()), |findings| super::audit_ended(&findings, true))
}

/// What runs on this machine, whichever agents have started it.
pub(super) fn processes_here() -> Vec<LocalProcess> {
    let of = |one: StartedHere| {
        let StartedHere { process, mark, node, unit_uid, ordinal, incarnation } = one;
        LocalProcess { process, mark, node, unit_uid, ordinal, incarnation }
    };
    godel_agent::started_here().into_iter().map(of).collect()
}

/// Brings up the nodes, replays the tasks and prints what happened; what the audit found.
async fn show(
    local: &mut Local,
    demo: &Demo,
    tasks: Vec<godel_client::trace::TraceTask>,
    nodes: Vec<godel_agent::NodeDef>,
    agent: godel_agent::Config,
) -> Result<Option<audit::AuditFindings>, Failure> {
    let (n_nodes, n_tasks) = (nodes.len(), tasks.len());
    output::print(&greeting(local, &store_of(demo.memory, &demo.data_dir), 0, None))?;
    local.simulate(agent, nodes).await?;
    output::print(&format!(
        "{} {} connected; {} {} submitted\n\n",
        count(n_nodes, "simulated node"),
        are(n_nodes),
        count(n_tasks, "task"),
        are(n_tasks)
    ))?;
    let options = Options {
        tasks,
        namespace: "default".to_owned(),
        speed: demo.speed,
        ledger: demo.ledger.clone(),
        timeout: demo.timeout,
        // Everything runs in this process: agents, load generator and all services.
        cpu_pids: vec![std::process::id()],
        audit: true,
    };
    let client = Client::direct(&local.access)?;
    let (summary, findings) = tokio::select! {
        replayed = replay::run(&client, options) => replayed?,
        ended = local.ended() => {
            ended?;
            return Err(Failure::failed("stopped before the end of the replay"));
        }
    };
    output::print(&summary.text())?;
    let Some(findings) = findings else { return Ok(None) };
    output::print(&format!("\naudit at revision {}\n{}", findings.revision, findings.text(Paint::stdout())))?;
    if let Some(path) = &demo.json {
        output::write_json(path, &summary)?;
    }
    Ok(Some(findings))
}

/// The context of the cluster that this process runs.
struct KeptContext {
    name: String,
    is_current: bool,
    /// To be forgotten at the end, together with the cluster.
    passing: Option<Context>,
}

impl KeptContext {
    /// Keeps a context, so that commands need no flag; without the file for it they need one.
    fn keep(context: Option<&Context>, is_passing: bool) -> Option<Self> {
        let context = context?;
        match keep_context(context) {
            Ok((name, is_current)) => {
                Some(Self { name, is_current, passing: is_passing.then(|| context.clone()) })
            }
            Err(error) => {
                output::say(format!("warning: {error}; log in with `godel context login`"));
                None
            }
        }
    }
}

impl Drop for KeptContext {
    fn drop(&mut self) {
        if let Some(context) = &self.passing {
            forget_context(context);
        }
    }
}

/// Where the store is, for people.
fn store_of(memory: bool, dir: &Path) -> String {
    if memory { "memory".to_owned() } else { dir.display().to_string() }
}

fn greeting(local: &Local, store: &str, n_nodes: usize, kept: Option<&KeptContext>) -> String {
    let mut text = String::new();
    for (name, address) in &local.parts {
        text.push_str(&format!("{name:<14} {address}\n"));
    }
    text.push_str(&format!("{:<14} {store}\n", "store"));
    if n_nodes > 0 {
        text.push_str(&format!("{} {} connected\n", count(n_nodes, "simulated node"), are(n_nodes)));
    } else {
        text.push('\n');
        return text;
    }
    text.push_str(&commands_to_try(local, kept));
    text
}

fn commands_to_try(local: &Local, kept: Option<&KeptContext>) -> String {
    let reach = match kept {
        Some(KeptContext { is_current: true, .. }) => String::new(),
        Some(KeptContext { name, .. }) => format!("  godel context use {name}\n"),
        None => format!("  export GODEL_ADDR={}\n", local.access.address),
    };
    format!(
        "\nThe cluster runs until Ctrl-C. Try in another terminal:
{reach}  godel status
  godel node list
  godel unit list --phase unschedulable
  godel unit submit --name hello --class service --replicas 3 --cpu 500m --memory 1Gi --wait
  godel unit describe hello
  godel scheduler list
  godel audit\n"
    )
}

fn with_store(mut root: Root, data_dir: &Path, memory: bool) -> Root {
    root.state.data_dir = data_dir.join("state");
    if memory {
        root.state.engine = godel_state::EngineKind::Memory;
    }
    root
}

fn agent_config(root: &Root, simulated: &SimulatedNodes) -> godel_agent::Config {
    let mut agent = root.agent.clone();
    if let Some(speed) = simulated.speed {
        agent.speed = speed;
    }
    agent
}

/// Empties the demo's own directory. Anything else there is left alone, and is a failure.
fn empty_demo_dir(dir: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", dir.display()));
    let mark = dir.join(DEMO_MARK);
    if dir.exists() {
        let is_empty = std::fs::read_dir(dir).map_err(fail)?.next().is_none();
        if !is_empty && !mark.exists() {
            return Err(Failure::usage(format!("{} was not created by `godel demo`", dir.display()))
                .hint("choose another directory with --data-dir"));
        }
        std::fs::remove_dir_all(dir).map_err(fail)?;
    }
    std::fs::create_dir_all(dir).map_err(fail)?;
    std::fs::write(mark, "Created by `godel demo`, which empties this directory when it starts.\n")
        .map_err(fail)
}

fn signals() -> Result<CancellationToken, Failure> {
    shutdown::on_signals().map_err(|error| Failure::failed(format!("signals cannot be caught: {error}")))
}

/// Refuses flags that do not apply to the part.
fn check_flags(serve: &Serve) -> Result<(), Failure> {
    let is_state = serve.part == ServicePart::State;
    if is_state && serve.join_file.is_some() {
        return Err(Failure::usage("`--join-file` is not for state, which has the CA itself")
            .hint("remove it; the other services and agents join state with a token"));
    }
    if !is_state && serve.tls.is_some() {
        return Err(Failure::usage(format!("`--tls` is for state only, not for the {}", serve.part.name())).hint(
            "remove it; a service speaks TLS if it is given a join token (`--join-file`) or state's https:// address (`--address`)",
        ));
    }
    if serve.part != ServicePart::State && (serve.engine.is_some() || serve.etcd_endpoints.is_some()) {
        return Err(Failure::usage(
            "`--engine` and `--etcd-endpoints` are for state: nothing else has a store",
        )
        .hint("leave them out"));
    }
    Ok(())
}

pub(super) async fn serve(serve: Serve, log: Option<String>, address: &str) -> Result<(), Failure> {
    check_flags(&serve)?;
    let part = serve.part.name();
    let key = |name: &str| format!("{part}.{name}");
    let mut flags: Vec<(String, Option<String>)> = vec![
        (key("server.listen"), serve.listen.clone()),
        (key("server.metrics_listen"), serve.metrics_listen.clone()),
        (key("server.advertise"), serve.advertise.clone()),
        (key("server.insecure"), serve.exposure.flag()),
    ];
    if matches!(serve.part, ServicePart::State | ServicePart::Scheduler) {
        flags.push((key("name"), serve.name.clone()));
    }
    if serve.part == ServicePart::State {
        flags.push((key("tls"), serve.tls.clone()));
        flags.push((key("data_dir"), serve.data_dir.as_ref().map(|dir| dir.display().to_string())));
        flags.push((key("engine"), serve.engine.clone()));
        flags.push((key("etcd.endpoints"), serve.etcd_endpoints.clone()));
    } else {
        flags.push((key("identity.join_file"), serve.join_file.clone()));
        flags.push((key("identity.name"), serve.name.clone()));
        flags.push((key("client.state"), set_address(&serve.layers, &key("client.state"), address)));
    }
    let flags: Vec<(&str, Option<String>)> =
        flags.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let mut root = config::load(&serve.layers, &flags)?;
    let _guard = telemetry(logs_of(&root, serve.part), log)?;
    let stop = signals()?;
    match serve.part {
        ServicePart::State => {
            let mode = root.state.prepare_tls();
            let speech = mode.map_err(|error| Failure::chain(Code::Failed, &error).during(part))?.speech();
            let (listener, deps) =
                (listen(part, &root.state.server, speech).await?, godel_state::Deps::default());
            let deps = godel_state::Deps { listener: Some(listener), ..deps };
            over(part, godel_state::serve(root.state, deps, stop).await)
        }
        ServicePart::Dispatcher => {
            let speech = speech(&mut root.dispatcher.client, &root.dispatcher.identity)?;
            let listener = listen(part, &root.dispatcher.server, speech).await?;
            let deps =
                godel_dispatcher::Deps { listener: Some(listener), ..godel_dispatcher::Deps::default() };
            over(part, godel_dispatcher::serve(root.dispatcher, deps, stop).await)
        }
        ServicePart::Scheduler => {
            let speech = speech(&mut root.scheduler.client, &root.scheduler.identity)?;
            let listener = listen(part, &root.scheduler.server, speech).await?;
            let deps = godel_scheduler::Deps { listener: Some(listener), ..godel_scheduler::Deps::default() };
            over(part, godel_scheduler::serve(root.scheduler, deps, stop).await)
        }
        ServicePart::Binder => {
            let speech = speech(&mut root.binder.client, &root.binder.identity)?;
            let listener = listen(part, &root.binder.server, speech).await?;
            let deps = godel_binder::Deps { listener: Some(listener), ..godel_binder::Deps::default() };
            over(part, godel_binder::serve(root.binder, deps, stop).await)
        }
        ServicePart::Yarn => {
            let speech = speech(&mut root.yarn.client, &root.yarn.identity)?;
            let listener = listen(part, &root.yarn.server, speech).await?;
            let deps = godel_yarn::Deps { listener: Some(listener), ..godel_yarn::Deps::default() };
            over(part, godel_yarn::serve(root.yarn, deps, stop).await)
        }
        ServicePart::Rescheduler => {
            let speech = speech(&mut root.rescheduler.client, &root.rescheduler.identity)?;
            let listener = listen(part, &root.rescheduler.server, speech).await?;
            let deps =
                godel_rescheduler::Deps { listener: Some(listener), ..godel_rescheduler::Deps::default() };
            let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            let reload = Some(reload_of(serve.layers.clone(), flags));
            over(part, godel_rescheduler::serve(root.rescheduler, reload, deps, stop).await)
        }
    }
}

/// Reads the configuration of the rescheduler again, with the same layers and flags.
fn reload_of(layers: Layers, flags: Vec<(String, Option<String>)>) -> Reload {
    Arc::new(move || {
        let flags: Vec<(&str, Option<String>)> =
            flags.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        config::load(&layers, &flags).map(|root| root.rescheduler).map_err(|failure| failure.message)
    })
}

/// The state address for a part: `GODEL_ADDR` or `--address`, unless a layer names it for this part.
fn set_address(layers: &Layers, key: &str, address: &str) -> Option<String> {
    let set = layers.set.iter().any(|(name, _)| name == key);
    let env = format!("GODEL_{}", key.replace('.', "__").to_uppercase());
    let default = address == super::context::DEFAULT_ADDRESS;
    (!set && !default && godel_kit::config::env(&env).is_none()).then(|| address.to_owned())
}

fn logs_of(root: &Root, part: ServicePart) -> TelemetryConfig {
    let default = TelemetryConfig::default();
    let own = match part {
        ServicePart::State => default.clone(),
        ServicePart::Dispatcher => root.dispatcher.telemetry.clone(),
        ServicePart::Scheduler => root.scheduler.telemetry.clone(),
        ServicePart::Binder => root.binder.telemetry.clone(),
        ServicePart::Yarn => root.yarn.telemetry.clone(),
        ServicePart::Rescheduler => root.rescheduler.telemetry.clone(),
    };
    // What a part says for itself wins over what the process says.
    if own == default { root.telemetry.clone() } else { own }
}

/// What a part should speak. A part with a join token speaks TLS, and expects state on this machine unless it is given another address.
fn speech(client: &mut ClientConfig, identity: &IdentityConfig) -> Result<Speech, Failure> {
    let joins = !identity.join_file.is_empty();
    if joins && client.state == ClientConfig::default().state {
        client.state = client.state.replacen("http://", "https://", 1);
    }
    match speech_of(client, identity).map_err(|error| Failure::chain(Code::Usage, &error))? {
        Speech::PlainText if joins => Err(Failure::usage(format!(
            "the join token is for a state that speaks TLS, and {} is an address of plain text",
            client.state
        ))
        .hint("set state's https:// address with --address or GODEL_ADDR")),
        speech => Ok(speech),
    }
}

/// Binds, and says where, so that whoever asked for port 0 learns it.
async fn listen(
    part: &str,
    config: &ServerConfig,
    speech: Speech,
) -> Result<tokio::net::TcpListener, Failure> {
    let listener = server::listen_as(config, speech)
        .await
        .map_err(|error| Failure::chain(Code::Failed, &error).during(part))?;
    let local = listener.local_addr().unwrap_or(config.listen);
    let scheme = if speech == Speech::Tls { "https" } else { "http" };
    output::print(&format!("{part} {scheme}://{local}\n"))?;
    Ok(listener)
}

fn over<E: std::error::Error + 'static>(part: &str, ended: Result<(), E>) -> Result<(), Failure> {
    ended.map_err(|error| Failure::chain(Code::Failed, &error).during(part))
}

pub(super) async fn agent(wanted: Agent, log: Option<String>, address: &str) -> Result<(), Failure> {
    let flags = [
        ("agent.client.state", set_address(&wanted.layers, "agent.client.state", address)),
        ("agent.identity.join_file", wanted.join_file.clone()),
        ("agent.speed", wanted.nodes.speed.map(|speed| speed.to_string())),
        ("agent.state_dir", wanted.state_dir.as_ref().map(|dir| dir.display().to_string())),
        ("agent.advertise", wanted.advertise.clone()),
        ("agent.insecure", wanted.exposure.flag()),
        ("agent.max_running_units", wanted.max_running_units.map(|most| most.to_string())),
    ];
    let mut root = config::load(&wanted.layers, &flags)?;
    let _guard = telemetry(root.telemetry, log)?;
    speech(&mut root.agent.client, &root.agent.identity)?;
    // What was asked for decides, not what was found: who names a list must never get this machine instead.
    let (nodes, mode) = if wanted.nodes.is_asked_for() {
        (local::nodes(&wanted.nodes)?, Mode::Simulated)
    } else {
        let mut node = godel_agent::detect::this_machine(wanted.name.as_deref(), &root.agent)
            .map_err(|error| Failure::chain(Code::Usage, &error))?;
        node.uid = identity::of(&node.name, root.agent.state_dir.as_deref(), Path::new("/"))
            .map_err(|error| Failure::chain(Code::Failed, &error))?;
        node.address = root.agent.advertise.clone().unwrap_or_else(|| node.name.clone());
        (vec![node], Mode::Processes)
    };
    let n_nodes = nodes.len();
    let (stats, connected) = watch::channel(Stats::default());
    godel_kit::task::spawn("agent.greeting", greet(connected, n_nodes));
    let deps = godel_agent::Deps {
        nodes,
        mode,
        clock: SystemClock::shared(),
        stats,
        says_goodbye: true,
        keeper: godel_agent::own_keeper(),
    };
    over("agent", godel_agent::serve(root.agent, deps, signals()?).await)
}

/// Says once that every node is connected, or refused.
async fn greet(mut stats: watch::Receiver<Stats>, n_nodes: usize) {
    if let Ok(stats) = stats.wait_for(|stats| stats.connected + stats.refused >= n_nodes).await {
        // Nobody may be reading; the agent goes on.
        let connected = stats.connected;
        let mut says = format!("{} {} connected", count(connected, "node"), are(connected));
        if stats.refused > 0 {
            says += &format!(", {} {} refused", stats.refused, are(stats.refused));
        }
        let _unread = output::print(&(says + "\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_directory_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let demo = dir.path().join("demo");
        empty_demo_dir(&demo).unwrap();
        std::fs::write(demo.join("old"), "").unwrap();
        empty_demo_dir(&demo).unwrap();
        assert!(demo.join(DEMO_MARK).exists() && !demo.join("old").exists());
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("precious"), "").unwrap();
        assert_eq!(empty_demo_dir(&other).unwrap_err().code, Code::Usage);
        assert!(other.join("precious").exists());
    }
}
