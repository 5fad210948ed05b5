//! What a test waits for: who is there, who leads, and whether everything has a place.

use anyhow::{Context as _, ensure};
use godel_proto::v1;

use super::Cluster;
use crate::{
    api::Records,
    check,
    wait::{LIMIT, wait_for},
};

impl Cluster {
    /// Waits until a process has ended by itself, and clears it for the next start.
    pub async fn wait_ended(&mut self, name: &str) {
        let process = self.process(name);
        let what = format!("the end of {name}");
        wait_for(&what, LIMIT, async || process.ended().map(drop).context("still runs")).await;
        process.kill();
    }

    /// Waits until every running unit of `n_units` units has a place.
    pub async fn wait_all_bound(&self, n_units: usize) -> Records {
        wait_for("a place for every running unit", LIMIT, async || {
            let records = self.api.records().await?;
            let (names, n_unbound) = check::unbound(&records);
            ensure!(records.units.len() >= n_units, "{} of {n_units} units exist", records.units.len());
            ensure!(n_unbound == 0, "{n_unbound} have none: {names:?}");
            Ok(records)
        })
        .await
    }

    /// Waits until the dispatcher counts `n_units` units in phase Running and none in any other.
    pub async fn wait_all_running(&self, n_units: u64) {
        wait_for("every unit to run", LIMIT, async || {
            let phases = self.api.dispatcher_status().await?.phases;
            let n_running = phases.get("Running").copied().unwrap_or_default();
            ensure!(n_running == n_units && phases.values().sum::<u64>() == n_units, "{phases:?}");
            Ok(())
        })
        .await;
    }

    /// Waits until state answers.
    pub async fn wait_state(&self) {
        wait_for("state to answer", LIMIT, async || self.api.store_status().await.map(drop)).await;
    }

    /// Waits until both leaders are elected, all schedulers are attached and all nodes are there.
    pub async fn wait_ready(&self) {
        let n_schedulers = self.processes.keys().filter(|name| name.starts_with("scheduler-")).count();
        wait_for("a cluster that can take work", LIMIT, async || {
            self.api.holder("binder").await?;
            let schedulers = self.api.list_schedulers().await?;
            let n_attached = schedulers.iter().filter(|scheduler| scheduler.attached).count();
            ensure!(n_attached >= n_schedulers, "{n_attached} of {n_schedulers} schedulers are attached");
            let status = self.api.store_status().await?;
            let n_nodes = u64::try_from(self.layout.n_nodes)?;
            ensure!(status.sessions >= n_nodes, "{} of {n_nodes} nodes are there", status.sessions);
            let records = self.api.records().await?;
            let n_ready = records.nodes.values().filter(|node| node.ready).count();
            ensure!(n_ready >= self.layout.n_nodes, "{n_ready} of {n_nodes} nodes are ready");
            Ok(())
        })
        .await;
    }

    /// Waits until every scheduler knows all nodes of a cluster that is not partitioned: what is submitted after that may go to any of them.
    pub async fn wait_nodes_known(&self) {
        let n_nodes = u64::try_from(self.layout.n_nodes).unwrap_or(u64::MAX);
        wait_for("the schedulers to know all nodes", LIMIT, async || {
            for name in self.processes.keys().filter(|name| name.starts_with("scheduler-")) {
                let n_known = self.metric(name, "godel_scheduler_nodes").await?;
                ensure!(n_known >= n_nodes, "{name} knows {n_known} of {n_nodes} nodes");
            }
            Ok(())
        })
        .await;
    }

    /// Waits until every scheduler has read what is committed now.
    pub async fn wait_schedulers_have_read_all(&self) {
        let revision = self.api.store_status().await.expect("state answers").revision;
        wait_for("the schedulers to have read all", LIMIT, async || {
            for name in self.processes.keys().filter(|name| name.starts_with("scheduler-")) {
                let request = v1::GetSchedulerStatusRequest {};
                let status =
                    self.api.scheduler(name).await?.get_scheduler_status(request).await?.into_inner();
                ensure!(status.revision >= revision, "{name} has read {} of {revision}", status.revision);
            }
            Ok(())
        })
        .await;
    }

    /// Waits until another process than `old` holds `lease` under a higher epoch than `epoch`.
    pub async fn wait_other_leader(&self, lease: &str, epoch: u64) -> v1::Member {
        let what = format!("another holder of {lease}");
        wait_for(&what, LIMIT, async || {
            let member = self.api.holder(lease).await?;
            ensure!(member.epoch > epoch, "{} still holds epoch {}", member.address, member.epoch);
            Ok(member)
        })
        .await
    }
}
