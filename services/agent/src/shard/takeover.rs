//! The start of a real node: what an earlier agent has left running is taken over, and what may not go on ends first.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, PoisonError},
    time::Duration,
};

use godel_core_agent::LeftRunning;
use godel_proto::v1;
use prost::Message as _;
use tokio::sync::mpsc;

use super::{Shard, real_node::RealNode};
use crate::{
    Config, NodeDef, UseDocker,
    cgroup::Groups,
    docker::Engine,
    runtime::{
        Event, HostedRun,
        process::{Home, Images, Processes, left},
    },
    service::Error,
    session,
};

/// Between looks for logs that are old enough to be removed.
const SWEEP: Duration = Duration::from_secs(600);

impl Shard {
    /// Opens the runs of the node, and takes over those that go on.
    pub(super) async fn take_over(&mut self, events: mpsc::Sender<Event>) -> Result<Processes, Error> {
        let Some(node) = self.nodes.first() else { return Err(Error::OneNode(0)) };
        let name = node.name.to_string();
        let home = self.real.open(&node.def).await?;
        self.node_use.measure(&home, &node.def, events.clone());
        let found = left::find(Arc::clone(&home)).await.map_err(Error::Runs)?;
        let (kept, mut rest) = left::newest(found, &name);
        let mut processes = Processes::new(events, Arc::clone(&home));
        let (mut n_live, mut n_ended, mut containers) = (0, 0, BTreeSet::new());
        for one in kept {
            if !self.adopt(&one) {
                rest.push(one);
                continue;
            }
            if one.goes_on() {
                n_live += 1;
                containers.extend(one.run.container.as_ref().map(|container| container.name.clone()));
            } else {
                n_ended += 1;
            }
            let run = HostedRun { node: 0, key: one.key(), incarnation: one.run.incarnation };
            if let (Some(desk), Some(launch)) = (&mut self.containers, &one.run.launch) {
                desk.adopt(launch.container, (run.key, run.incarnation));
            }
            processes.adopt(run, one);
        }
        if n_live + n_ended > 0 {
            tracing::info!(node = %name, n_live, n_ended, "running units of an earlier agent are taken over");
        }
        left::end(rest).await;
        left::end_containers(&home, |one| containers.contains(&one.name)).await;
        home.set_store(self.nodes[0].agent.session().store());
        self.real.sweep_logs(&home);
        Ok(processes)
    }

    /// Whether what is left is what the node should go on with.
    fn adopt(&mut self, left: &left::Left) -> bool {
        let (key, run) = (left.key(), &left.run);
        let Ok(assignment) = v1::Assignment::decode(&run.assignment[..]) else {
            tracing::warn!(
                unit_id = key.unit,
                ordinal = key.ordinal,
                "a run of an earlier agent cannot be read and is ended"
            );
            return false;
        };
        let (now, node) = (self.clock.now(), &mut self.nodes[0]);
        let orders = session::orders(&assignment, key.ordinal, &node.def, true);
        let of_run = LeftRunning { restarts: run.restarts, in_row: run.in_row, started_ms: left.started_ms };
        let is_adopted = node.agent.adopt(key, run.incarnation, orders, of_run, now, &mut self.out);
        self.act(0);
        is_adopted
    }
}

impl RealNode {
    /// Opens the runs of the node, and begins to look at what it can do.
    async fn open(&mut self, def: &NodeDef) -> Result<Arc<Home>, Error> {
        let (config, uid) = (Arc::clone(&self.config), def.uid.clone());
        let home = Home::open(&config, &def.name, self.keeper.clone(), |name| self.open_groups(name));
        let home = home.map_err(Error::Runs)?;
        let images = find_engine(Arc::clone(&config), uid.clone()).await?;
        let home = home.with_bandwidths(&config, def).with_images(images.clone());
        let home = Arc::new(home.owned_by(&uid, self.claim.clone()));
        self.home = Some(Arc::clone(&home));
        let later = images_of(&config, uid)?;
        let engine = later.as_ref().map(|images| images.socket.clone());
        self.watch_condition(home.looked(engine), later, images.is_some());
        Ok(home)
    }

    /// Removes what is over of the logs, now and once in a while.
    fn sweep_logs(&self, home: &Arc<Home>) {
        let limits = self.log_limits();
        let (home, ended) = (Arc::downgrade(home), Arc::clone(&self.log_units));
        godel_kit::task::spawn("agent.logs", async move {
            let mut ticks = tokio::time::interval(SWEEP);
            loop {
                ticks.tick().await;
                let Some(home) = home.upgrade() else { return };
                let swept = tokio::task::spawn_blocking(move || home.sweep_logs(limits, &BTreeSet::new()));
                if let Ok(units) = swept.await {
                    *ended.lock().unwrap_or_else(PoisonError::into_inner) = units;
                }
            }
        });
    }

    /// Finds out where control groups can be made; `None`, with one warning: nowhere.
    fn open_groups(&self, name: &str) -> Option<Groups> {
        if !self.config.cgroups {
            return None;
        }
        let mut warnings = Vec::new();
        let opened = Groups::open(Path::new("/"), self.config.cgroup_root.as_deref(), name, &mut warnings);
        match &opened {
            Ok(groups) => {
                tracing::info!(version = groups.version(), "running units run in control groups");
                warnings
                    .iter()
                    .for_each(|warning| tracing::warn!(warning, "control groups are not complete"));
            }
            Err(why) => {
                tracing::warn!(
                    why,
                    "running units run without control groups: limits and zones are not kept"
                );
            }
        }
        opened.ok()
    }
}

/// How images are run on the node with this uid once its engine answers; `None`: never.
fn images_of(config: &Config, installation: String) -> Result<Option<Images>, Error> {
    if config.docker == UseDocker::Off {
        return Ok(None);
    }
    let socket = std::path::absolute(&config.docker_socket).map_err(Error::Runs)?;
    Ok(Some(Images { socket, installation, pull_timeout: *config.docker_pull_timeout }))
}

/// Looks for the engine that runs images on the node with this uid; `None`: the node runs none.
async fn find_engine(config: Arc<Config>, installation: String) -> Result<Option<Images>, Error> {
    let Some(images) = images_of(&config, installation)? else { return Ok(None) };
    let socket = images.socket.clone();
    match (Engine::connect(&socket).await, config.docker) {
        (Ok(_), _) => {
            tracing::info!(socket = %socket.display(), "units that have an image run as containers");
            Ok(Some(images))
        }
        (Err(why), UseDocker::On) => Err(Error::Docker { socket, why: why.to_string() }),
        (Err(why), UseDocker::Auto | UseDocker::Off) => {
            tracing::info!(%why, socket = %socket.display(), "this node runs no images");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_starts_without_an_engine_unless_it_is_on() {
        let dir = tempfile::tempdir().unwrap();
        let config = |docker| {
            let docker_socket = dir.path().join("none.sock");
            Arc::new(Config { docker, docker_socket, ..Config::default() })
        };
        let find = |docker| find_engine(config(docker), "uid".to_owned());
        assert!(
            find(UseDocker::Auto).await.unwrap().is_none() && find(UseDocker::Off).await.unwrap().is_none()
        );
        let error = find(UseDocker::On).await.unwrap_err().to_string();
        assert!(error.starts_with("`agent.docker` is `on`, and no Docker engine can be used at "), "{error}");
        assert!(error.contains("none.sock: the Docker engine does not answer: "), "{error}");
    }
}
