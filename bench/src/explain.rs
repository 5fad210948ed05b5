//! `godel bench explain`: on a full cluster, how long until one knows why a unit has no place. Asked in both ways:
//! `GetUnit` of a unit that was tried and waits, whose summary the dispatcher keeps; and the scheduler's `Plan`, which
//! tries a unit on the live cluster, each time one of another size, so that no call profits from the one before.

use std::{fmt::Write as _, time::Instant};

use clap::Args as ClapArgs;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::Format,
    replay::Latency,
};
use godel_kit::client::Channel;
use godel_proto::v1::{self, scheduler_service_client::SchedulerServiceClient};
use serde::{Deserialize, Serialize};

use super::{
    cluster::{BenchCluster, POLL, READY_TIMEOUT},
    load::{Load, SubmitWay},
    report::Run,
    setup::{Setup, at_least_one},
    workload::Maker,
};

/// Running units that fill a node: 5 CPU and 20 GiB each.
const N_OF_NODE: usize = 20;
/// Most running units of one unit.
const N_REPLICAS: usize = 1000;
/// Milli-CPUs of what finds no place.
const CPU_MILLI: i64 = 500;

/// `godel bench explain`.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_arg("nodes", |nodes| nodes.default_value("20000")))]
pub struct ExplainArgs {
    /// Number of calls of each kind.
    #[arg(long, default_value_t = 100, value_parser = at_least_one)]
    calls: usize,
    #[command(flatten)]
    setup: Setup,
}

/// From asking to the answer, with the reasons in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Explain {
    /// Of each kind.
    pub(super) calls: usize,
    /// Nodes whose refusal each answer accounts for.
    pub(super) nodes_refusing: u32,
    /// What is kept of the last try.
    pub(super) get_unit_ms: Latency,
    /// A new try.
    pub(super) plan_ms: Latency,
}

impl Explain {
    /// For people, as lines of a report.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, Latency { p50, p99, max, .. }) in [("GetUnit", self.get_unit_ms), ("Plan", self.plan_ms)] {
            let calls = self.calls;
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{name:<12} p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms of {calls} calls"
            );
        }
        text
    }
}

pub(super) async fn run(wanted: ExplainArgs, format: Format) -> Result<(), Failure> {
    let setup = &wanted.setup;
    setup
        .repeat(format, "explain", async |layout| {
            let shapes = [format!("{}x cpu=100,memory=400Gi", setup.nodes)];
            let mut maker = Maker::new(setup.seed, false);
            let load = full(&mut maker, setup.nodes);
            let mut cluster = BenchCluster::start(layout, &shapes, false).await?;
            let filled = cluster.run(load, SubmitWay::Stream).await?;
            let explain = explain(cluster.client(), &mut maker, &wanted).await?;
            let run = cluster.verify(vec![filled]).await?.into_iter().next();
            let run = run.ok_or_else(|| Failure::failed("nothing was measured"))?;
            Ok(Run { explain: Some(explain), ..run })
        })
        .await
}

/// Every CPU of every node.
fn full(maker: &mut Maker, n_nodes: usize) -> Load {
    let mut load = Load::default();
    let mut n_left = n_nodes * N_OF_NODE;
    while n_left > 0 {
        let n_replicas = n_left.min(N_REPLICAS);
        let replicas = u32::try_from(n_replicas).unwrap_or(u32::MAX);
        load.push(&maker.sized(v1::WorkloadClass::Service, replicas, 5000, 20));
        n_left -= n_replicas;
    }
    load
}

async fn explain(client: &Client, maker: &mut Maker, wanted: &ExplainArgs) -> Result<Explain, Failure> {
    let nodes_refusing = u32::try_from(wanted.setup.nodes).unwrap_or(u32::MAX);
    let unit = maker.sized(v1::WorkloadClass::Service, 1, CPU_MILLI, 1);
    let name = unit.meta.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
    let request = v1::SubmitUnitRequest { unit: Some(unit) };
    client.units(async |mut units| units.submit_unit(request.clone()).await).await?;
    let deadline = Instant::now() + READY_TIMEOUT;
    while reasons(client, &name).await?.is_none() {
        if Instant::now() > deadline {
            return Err(Failure::new(Code::Timeout, format!("unit {name} is not refused")));
        }
        tokio::time::sleep(POLL).await;
    }
    let (mut asked, mut planned) = (Vec::new(), Vec::new());
    let mut scheduler = scheduler(client).await?;
    for cpu_milli in (CPU_MILLI + 1..).take(wanted.calls) {
        let started = Instant::now();
        let refusals = reasons(client, &name).await?;
        asked.push(started.elapsed());
        check(refusals.as_ref(), nodes_refusing)?;

        let unit = maker.sized(v1::WorkloadClass::Service, 1, cpu_milli, 1);
        let started = Instant::now();
        let plan = scheduler.plan(v1::PlanRequest { unit: Some(unit) }).await;
        planned.push(started.elapsed());
        let plan = plan.map_err(|status| client.explain(status).during("a plan"))?.into_inner();
        check(plan.refusals.as_ref(), nodes_refusing)?;
    }
    let (get_unit_ms, plan_ms) = (Latency::of(asked), Latency::of(planned));
    Ok(Explain { calls: wanted.calls, nodes_refusing, get_unit_ms, plan_ms })
}

/// Of its last try.
async fn reasons(client: &Client, name: &str) -> Result<Option<v1::Refusals>, Failure> {
    let answer = client.get_unit("default", name).await?;
    Ok(answer.unit.and_then(|unit| unit.refusals))
}

async fn scheduler(client: &Client) -> Result<SchedulerServiceClient<Channel>, Failure> {
    let schedulers = client.schedulers().await?.schedulers;
    let first = schedulers.first().ok_or_else(|| Failure::failed("there is no scheduler"))?;
    let channel = client.directory().scheduler(&first.name, &first.address);
    Ok(SchedulerServiceClient::new(channel.map_err(|bad| Failure::chain(Code::Failed, &bad))?))
}

/// An answer counts only if it accounts for every node.
fn check(refusals: Option<&v1::Refusals>, n_nodes: u32) -> Result<(), Failure> {
    let n_refused: u32 = refusals.iter().flat_map(|all| &all.reasons).map(|reason| reason.nodes).sum();
    if n_refused == n_nodes {
        return Ok(());
    }
    Err(Failure::failed(format!("the answer does not account for all nodes: {refusals:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_filled() {
        let load = full(&mut Maker::new(1, false), 120);
        assert_eq!((load.len(), load.n_replicas()), (3, 2400));
    }

    #[test]
    fn an_answer_that_leaves_nodes_out_does_not_count() {
        let reason = |nodes| v1::RefusalCount { nodes, ..v1::RefusalCount::default() };
        let refusals = v1::Refusals { reasons: vec![reason(3), reason(2)], ..v1::Refusals::default() };
        assert!(check(Some(&refusals), 5).is_ok());
        assert!(check(Some(&refusals), 6).is_err() && check(None, 6).is_err());
    }
}
