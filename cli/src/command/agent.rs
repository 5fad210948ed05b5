//! Verbs about the node of this machine, for who is on it: whatever its agent is doing.

use std::path::Path;

use godel_agent::{detect, identity};
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, shown},
    process::quiet_telemetry,
};

use super::{node, run::set_address};
use crate::{
    args::{AgentNotice, OwnNode},
    config,
};

/// The node of this machine.
struct Own {
    client: Client,
    /// How it is called.
    name: String,
    /// What state knows it by: another machine may have its name.
    uid: String,
}

pub(super) async fn notice(wanted: AgentNotice, log: Option<String>, address: &str) -> Result<(), Failure> {
    let own = own(&wanted.node, log, address)?;
    let given = node::give_notice(&own.client, own.uid.clone(), &wanted.reason, wanted.deadline).await;
    given.map_err(|failure| own.explain(failure))?;
    let within = humantime::format_duration(wanted.deadline);
    output::say(format!("node {} is drained, and what is left is evicted after {within}", shown(&own.name)));
    Ok(())
}

/// Finds out which node this machine is, as its agent does.
fn own(wanted: &OwnNode, log: Option<String>, address: &str) -> Result<Own, Failure> {
    let flags = [
        ("agent.client.state", set_address(&wanted.layers, "agent.client.state", address)),
        ("agent.state_dir", wanted.state_dir.as_ref().map(|dir| dir.display().to_string())),
    ];
    let root = config::load(&wanted.layers, &flags)?;
    let _guard = quiet_telemetry(log)?;
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
    Ok(Own { client: Client::new(&root.agent.client.state)?, name, uid })
}

impl Own {
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
