//! Verbs about the node of this machine, for who is on it: whatever its agent is doing.

use std::{path::Path, time::Duration};

use godel_agent::{detect, identity};
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, shown},
    process::quiet_telemetry,
};
use godel_kit::{config::ClientConfig, telemetry::Guard};
use godel_proto::v1;
use serde::Serialize;

use super::{context, node};
use crate::{
    args::agent::{LeaveArgs, Notice, OwnNode},
    config,
};

/// What helps if running units are on a node that is to leave.
const IN_USE: &str =
    "`--drain` waits until they have left, as their units can spare them; `--force` evicts them at once";

/// What became of the node of this machine, as JSON.
#[derive(Serialize)]
struct OwnView<'a> {
    node: &'a str,
    uid: &'a str,
    /// `drained` or `left`.
    outcome: &'static str,
}

/// The node of this machine.
struct Own {
    client: Client,
    /// How it is called.
    name: String,
    /// What state knows it by: another machine may have its name.
    uid: String,
    _logs: Guard,
}

/// How the command line says to reach state.
pub(super) struct Reach<'a> {
    /// `--address`, or `GODEL_ADDR`.
    pub(super) address: Option<String>,
    /// `--context`, or `GODEL_CONTEXT`.
    pub(super) context: Option<&'a str>,
}

pub(super) async fn notice(
    wanted: Notice,
    log: Option<String>,
    reach: Reach<'_>,
    format: Format,
) -> Result<(), Failure> {
    let own = own(&wanted.node, log, reach).await?;
    let given = node::give_notice(&own.client, own.uid.clone(), &wanted.reason, wanted.deadline).await;
    given.map_err(|failure| own.explain(failure))?;
    let within = humantime::format_duration(wanted.deadline);
    own.tell(format, "drained", &format!("is drained, and what is left is evicted after {within}"))
}

/// Takes the node out of the cluster: what runs there leaves first, if that is asked for, then its record goes, and its agent ends.
pub(super) async fn leave(
    wanted: LeaveArgs,
    log: Option<String>,
    reach: Reach<'_>,
    format: Format,
) -> Result<(), Failure> {
    let LeaveArgs { node, drain, deadline, force, timeout } = wanted;
    let own = own(&node, log, reach).await?;
    if drain || force {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let deadline = if force { Some(Duration::ZERO) } else { deadline };
        let order = v1::DrainOrder { deadline_in_ms: deadline.map(ms) };
        let request = v1::UpdateNodeRequest {
            name: own.uid.clone(),
            drain: Some(order),
            ..v1::UpdateNodeRequest::default()
        };
        node::update(&own.client, request).await.map_err(|failure| own.explain(failure))?;
        node::until_empty(&own.client, vec![own.uid.clone()], timeout).await?;
    }
    let request = v1::DeregisterNodeRequest { name: own.uid.clone() };
    // Not sent again after a lost answer: the node would not be found then.
    let answer = own.client.nodes().deregister_node(request).await;
    if let Err(status) = answer {
        let is_in_use = status.code() == tonic::Code::FailedPrecondition;
        let failure = own.explain(own.client.explain(status));
        return Err(if is_in_use && !(drain || force) { failure.hint(IN_USE) } else { failure });
    }
    let said = "has left: its record is deleted, and its agent ends; an agent that is started again makes a new node";
    own.tell(format, "left", said)
}

/// Finds out which node this machine is, as its agent does. The caller is a person, so the address comes from the command line, or else from the agent's
/// configuration, or else from the context.
async fn own(wanted: &OwnNode, log: Option<String>, reach: Reach<'_>) -> Result<Own, Failure> {
    let flags = [("agent.state_dir", wanted.state_dir.as_ref().map(|dir| dir.display().to_string()))];
    let root = config::load(&wanted.layers, &flags)?;
    let logs = quiet_telemetry(log)?;
    let name = detect::name_of_this_machine(wanted.name.as_deref())
        .map_err(|error| Failure::chain(Code::Usage, &error))?;
    let state_dir = root.agent.state_dir.as_deref();
    let known = identity::known(&name, state_dir, Path::new("/"));
    let known = known.map_err(|error| Failure::chain(Code::Failed, &error))?;
    let uid = match (known, state_dir) {
        (Some(uid), _) => uid,
        (None, Some(dir)) => {
            let what = format!("no agent has run as node {name} with the state directory {}", dir.display());
            let hint = "give the --name and --state-dir that the agent of this machine has";
            return Err(Failure::new(Code::NotFound, what).hint(hint));
        }
        // A machine without an id: its name has to do.
        (None, None) => name.clone(),
    };
    let of_agent = root.agent.client.state;
    let is_set = of_agent != ClientConfig::default().state;
    let given = reach.address.or_else(|| is_set.then_some(of_agent));
    let access = context::access(given, reach.context).await?;
    Ok(Own { client: Client::new(&access)?, name, uid, _logs: logs })
}

impl Own {
    fn tell(&self, format: Format, outcome: &'static str, said: &str) -> Result<(), Failure> {
        match format {
            Format::Json | Format::Yaml => {
                output::print_value(format, &OwnView { node: &self.name, uid: &self.uid, outcome })
            }
            Format::Table | Format::Wide => {
                output::say(format!("node {} {said}", shown(&self.name)));
                Ok(())
            }
        }
    }

    fn explain(&self, failure: Failure) -> Failure {
        if failure.code != Code::NotFound {
            return failure;
        }
        let what = format!("node {} of this machine (uid {}) is not registered", self.name, self.uid);
        Failure::new(Code::NotFound, what).hint(
            "its agent has not run yet, or its record is deleted; give the --name and --state-dir that the agent has",
        )
    }
}
