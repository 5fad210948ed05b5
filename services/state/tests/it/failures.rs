//! Nodes on which replicas fail, and replicas that are tried on another node.

use godel_proto::v1::{self, RunPhase};

use crate::harness::{Agent, State, bind, put_unit_of, says, until};

/// The key of the taint of a node on which units fail.
const SUSPECT: &str = "godel.dev/units-fail";

/// A unit that runs this program.
fn put_program(unit_id: u64, program: &str) -> v1::op::Op {
    let v1::op::Op::PutUnit(mut record) = put_unit_of(unit_id, 1) else { unreachable!() };
    let group = &mut record.spec.as_mut().unwrap().task_groups[0];
    let run = group.template.as_mut().and_then(|template| template.run.as_mut()).unwrap();
    (run.command, run.simulated_duration_ms) = (vec![program.to_owned()], None);
    v1::op::Op::PutUnit(record)
}

/// It ended by itself as soon as it was started.
fn failed(unit_id: u64, reason: v1::RunEndReason) -> v1::RunStatus {
    let (started_time_ms, ended_time_ms) = (1_000, 1_003);
    v1::RunStatus {
        exit_code: 1,
        reason: reason.into(),
        started_time_ms,
        ended_time_ms,
        ..says(unit_id, 0, RunPhase::Failed)
    }
}

/// Two nodes that are ready, with their sessions.
async fn two_nodes(state: &State) -> [(u32, Agent); 2] {
    let mut nodes = Vec::new();
    for name in ["n1", "n2"] {
        let registered = state.register(name).await;
        let agent = Agent::open(&state.channel, name, registered, Vec::new()).await;
        let is_ready = async || state.node(name).await.report.unwrap().ready.then_some(());
        until("readiness", is_ready).await;
        nodes.push((registered.node_id, agent));
    }
    nodes.try_into().unwrap_or_else(|_| unreachable!())
}

/// Waits until an agent has been told of so many replicas.
async fn told(agent: &mut Agent, n: usize) {
    let mut assigned = Vec::new();
    while assigned.len() < n {
        assigned.extend(agent.assigned().await);
    }
}

async fn quick() -> State {
    State::start_with(|config| config.node_scan_interval = std::time::Duration::from_millis(20).into()).await
}

#[tokio::test]
async fn a_node_where_that_fails_which_runs_elsewhere_is_quarantined() {
    let state = quick().await;
    let (mut dispatcher, mut binder) = (state.writer("dispatcher").await, state.writer("binder").await);
    let [(bad, mut agent), (good, mut other)] = two_nodes(&state).await;
    for unit in 1..=4 {
        dispatcher.write([put_program(unit, "work")]).await.unwrap();
        binder.write([bind(unit, &[0], if unit == 4 { good } else { bad })]).await.unwrap();
    }
    told(&mut agent, 3).await;
    told(&mut other, 1).await;
    let sequence = other.report(vec![says(4, 0, RunPhase::Running)]).await;
    other.acked(sequence).await;
    let exited = v1::RunEndReason::Exited;
    let sequence = agent.report((1..=3).map(|unit| failed(unit, exited)).collect()).await;
    agent.acked(sequence).await;
    assert_eq!(state.row_phases(1).await, [RunPhase::Failed as i32], "it ran, and is not repeated");
    let quarantine = async || state.node("n1").await.spec.unwrap().quarantine;
    let reason = until("the quarantine", quarantine).await.reason;
    assert!(
        reason.starts_with("units fail there: 3 replicas ended at once within 60 s, the last default/unit-"),
        "{reason}"
    );
    let healthy = state.node("n2").await.spec.unwrap();
    assert!(healthy.quarantine.is_none() && healthy.taints.is_empty(), "{healthy:?}");
    // Something waits that can go nowhere else: the node is not taken from it.
    let v1::op::Op::PutUnit(mut record) = put_program(9, "other") else { unreachable!() };
    let group = &mut record.spec.as_mut().unwrap().task_groups[0];
    let selector = [("only".to_owned(), "n1".to_owned())].into();
    group.template.as_mut().unwrap().node_selector = selector;
    let labels = v1::UpdateNodeRequest {
        name: "n1".to_owned(),
        set_labels: [("only".to_owned(), "n1".to_owned())].into(),
        ..v1::UpdateNodeRequest::default()
    };
    state.nodes().update_node(labels).await.unwrap();
    dispatcher.write([v1::op::Op::PutUnit(record)]).await.unwrap();
    until("the end of the quarantine", async || quarantine().await.is_none().then_some(())).await;
    state.stop().await;
}

#[tokio::test]
async fn a_node_where_all_fails_that_differs_is_quarantined_while_others_run_elsewhere() {
    let state = quick().await;
    let (mut dispatcher, mut binder) = (state.writer("dispatcher").await, state.writer("binder").await);
    let [(bad, mut agent), (good, mut other)] = two_nodes(&state).await;
    for unit in 1..=3 {
        dispatcher.write([put_program(unit, &format!("work-{unit}"))]).await.unwrap();
        binder.write([bind(unit, &[0], bad)]).await.unwrap();
    }
    told(&mut agent, 3).await;
    let exited = v1::RunEndReason::Exited;
    let sequence = agent.report((1..=3).map(|unit| failed(unit, exited)).collect()).await;
    agent.acked(sequence).await;
    // As long as nothing is known to run elsewhere, it is suspect and no more.
    let taint =
        async || state.node("n1").await.spec.unwrap().taints.pop().filter(|taint| taint.key == SUSPECT);
    until("a lower rank", taint).await;
    assert!(state.node("n1").await.spec.unwrap().quarantine.is_none());
    // A unit with yet another command runs on the other node.
    dispatcher.write([put_program(4, "work-4")]).await.unwrap();
    binder.write([bind(4, &[0], good)]).await.unwrap();
    told(&mut other, 1).await;
    let sequence = other.report(vec![says(4, 0, RunPhase::Running)]).await;
    other.acked(sequence).await;
    let quarantine = async || state.node("n1").await.spec.unwrap().quarantine;
    let reason = until("the quarantine", quarantine).await.reason;
    assert!(
        reason.starts_with("units fail there: 3 replicas ended at once within 60 s, the last default/unit-")
            && reason.ends_with("nothing that was started there does well, and other units do elsewhere"),
        "{reason}"
    );
    assert!(state.node("n2").await.spec.unwrap().quarantine.is_none());
    state.stop().await;
}

#[tokio::test]
async fn a_node_where_something_runs_is_not_quarantined_for_what_differs() {
    let state = quick().await;
    let (mut dispatcher, mut binder) = (state.writer("dispatcher").await, state.writer("binder").await);
    let [(first, mut agent), (second, mut other)] = two_nodes(&state).await;
    for unit in 1..=5 {
        dispatcher.write([put_program(unit, &format!("work-{unit}"))]).await.unwrap();
        binder.write([bind(unit, &[0], if unit == 5 { second } else { first })]).await.unwrap();
    }
    told(&mut agent, 4).await;
    told(&mut other, 1).await;
    let sequence = other.report(vec![says(5, 0, RunPhase::Running)]).await;
    other.acked(sequence).await;
    // One has ended well there.
    let sequence = agent.report(vec![says(4, 0, RunPhase::Succeeded)]).await;
    agent.acked(sequence).await;
    let exited = v1::RunEndReason::Exited;
    let sequence = agent.report((1..=3).map(|unit| failed(unit, exited)).collect()).await;
    agent.acked(sequence).await;
    // It is suspect, and nothing more until it only ranks lower: by then the other unit has long been running.
    let is_held = async || {
        let spec = state.node("n1").await.spec.unwrap();
        assert!(spec.quarantine.is_none(), "{spec:?}");
        let taint = spec.taints.into_iter().find(|taint| taint.key == SUSPECT)?;
        (taint.effect() == v1::TaintEffect::PreferNoSchedule).then_some(())
    };
    until("a lower rank", is_held).await;
    state.stop().await;
}

#[tokio::test]
async fn a_broken_command_speaks_against_no_node() {
    let state = quick().await;
    let (mut dispatcher, mut binder) = (state.writer("dispatcher").await, state.writer("binder").await);
    let nodes = two_nodes(&state).await;
    let exited = v1::RunEndReason::Exited;
    let mut first = 1;
    for (node, mut agent) in nodes {
        for unit in first..first + 3 {
            dispatcher.write([put_program(unit, "broken")]).await.unwrap();
            binder.write([bind(unit, &[0], node)]).await.unwrap();
        }
        told(&mut agent, 3).await;
        let sequence = agent.report((first..first + 3).map(|unit| failed(unit, exited)).collect()).await;
        agent.acked(sequence).await;
        first += 3;
    }
    for name in ["n1", "n2"] {
        let spec = async || state.node(name).await.spec.unwrap();
        until("a node without a taint", async || spec().await.taints.is_empty().then_some(())).await;
        assert!(spec().await.quarantine.is_none(), "{name}");
    }
    state.stop().await;
}

#[tokio::test]
async fn what_a_node_lacks_is_looked_for_on_another_one_before_it_is_final() {
    let state = quick().await;
    let (mut dispatcher, mut binder) = (state.writer("dispatcher").await, state.writer("binder").await);
    let [(first, mut agent), (second, mut other)] = two_nodes(&state).await;
    let lack = v1::RunEndReason::NoDirectory;
    dispatcher.write([put_program(1, "work")]).await.unwrap();
    binder.write([bind(1, &[0], first)]).await.unwrap();
    told(&mut agent, 1).await;
    let sequence = agent.report(vec![failed(1, lack)]).await;
    agent.acked(sequence).await;
    assert_eq!(state.row_phases(1).await, [RunPhase::Stopped as i32], "it returns as its next incarnation");
    let is_last = async || {
        let spec = state.node("n1").await.spec.unwrap();
        let taint = spec.taints.iter().find(|taint| taint.key == SUSPECT)?;
        Some(taint.effect()).filter(|effect| *effect == v1::TaintEffect::PreferNoSchedule)
    };
    until("a lower rank", is_last).await;
    // The other one lacks it too: there is no third.
    dispatcher.write([put_program(2, "work")]).await.unwrap();
    binder.write([bind(2, &[0], first)]).await.unwrap();
    told(&mut agent, 1).await;
    let sequence = agent.report(vec![failed(2, lack)]).await;
    agent.acked(sequence).await;
    assert_eq!(state.row_phases(2).await, [RunPhase::Stopped as i32]);
    let requeue = v1::op::Op::Requeue(v1::Requeue {
        unit_id: 2,
        ordinals: vec![0],
        incarnations: vec![1],
        anew: false,
    });
    binder.write([requeue]).await.unwrap();
    let mut again = bind(2, &[0], second);
    if let v1::op::Op::Bind(binding) = &mut again {
        binding.incarnations = vec![1];
    }
    binder.write([again]).await.unwrap();
    let again = v1::RunStatus { incarnation: 1, ..failed(2, lack) };
    told(&mut other, 1).await;
    let sequence = other.report(vec![again]).await;
    other.acked(sequence).await;
    assert_eq!(state.row_phases(2).await, [RunPhase::Failed as i32], "it is final");
    state.stop().await;
}
