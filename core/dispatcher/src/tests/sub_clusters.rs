//! Sub-clusters: pauses and turns of their own, and which units may be submitted.

use godel_domain::{
    pause::{Pause, Scope as Paused},
    sub_cluster::KEY,
};

use super::*;
use crate::queues::Unwelcome;

fn located(record: UnitRecord, sub_cluster: &str) -> UnitRecord {
    let mut record = record;
    for group in &mut record.spec.task_groups {
        group.template.node_selector.insert(KEY.to_owned(), sub_cluster.to_owned());
    }
    record
}

fn paused(name: &str) -> Pause {
    let scope = Paused::SubCluster(name.to_owned());
    Pause { scope, since_ms: 5, reason: "new racks".to_owned(), sub_cluster_key: KEY.to_owned() }
}

#[test]
fn a_paused_sub_cluster_waits_and_the_others_go_on() {
    let mut rig = Rig::new();
    let labels = [(KEY.to_owned(), "gpu".to_owned())].into();
    let node = NodeSpec { id: NodeId(1), name: "n1".into(), labels, ..NodeSpec::default() };
    rig.core.on_node_spec(&node, rig.now);
    rig.attach("a", 1, 1, &[], 100);
    rig.put(located(spec(1, 2), "gpu"));
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
    rig.next();
    rig.core.assignments.on_pause(paused("gpu"), rig.now);
    assert_eq!(rig.step(), ["revoke 1 from 1"]);
    // In one queue: those that wait hold up nobody.
    for (id, sub_cluster) in [(2, "gpu"), (3, "cpu"), (5, "gpu")] {
        rig.put(located(spec(id, 2), sub_cluster));
    }
    rig.put(spec(4, 2));
    let mut seen = rig.step();
    seen.sort();
    assert_eq!(seen, ["assign 3 to 1: [0, 1]", "assign 4 to 1: [0, 1]"]);
    let view = rig.core.unit(UnitId(2)).unwrap();
    let reason = &view.refusals.as_ref().unwrap().reasons[0];
    assert_eq!(reason.reason, "sub-cluster gpu is paused by an administrator: new racks");
    assert_eq!((view.sub_cluster, view.phase), (Some("gpu"), UnitPhase::Queued));
    assert_eq!(rig.core.unit(UnitId(4)).unwrap().sub_cluster, None);
    rig.now = rig.now.plus(10_000);
    assert_eq!((rig.step(), rig.core.summary().counters.repairs), (vec![], 0));
    rig.next();
    rig.core.assignments.on_pause_deleted(&paused("gpu").scope, rig.now);
    let mut seen = rig.step();
    seen.sort();
    assert_eq!(seen, ["assign 1 to 1: [0, 1]", "assign 2 to 1: [0, 1]", "assign 5 to 1: [0, 1]"]);
}

#[test]
fn a_unit_whose_task_groups_are_of_two_sub_clusters_is_refused() {
    let rig = Rig::new();
    let mut unit = located(spec(1, 2), "gpu").spec;
    assert_eq!(rig.core.admit(&unit, &[]), Ok(()));
    let mut second = unit.task_groups[0].clone();
    second.name = "other".to_owned();
    second.template.node_selector.clear();
    unit.task_groups.push(second);
    let wrong = rig.core.admit(&unit, &[]).unwrap_err();
    assert!(matches!(wrong.as_slice(), [Unwelcome::SubClusters(_)]), "{wrong:?}");
    let words = format!(
        "task group `main` demands sub-cluster `gpu`, `other` no sub-cluster: let all of them demand the same \
         `{KEY}`, or none of them"
    );
    assert_eq!(wrong[0].to_string(), words);
    // Without sub-clusters it is a label like any other.
    let rig = Rig::with(Config { sub_cluster_key: String::new(), ..Config::default() });
    assert_eq!(rig.core.admit(&unit, &[]), Ok(()));
}

#[test]
fn a_gang_of_each_sub_cluster_has_its_turn_at_the_same_time() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    for (id, sub_cluster) in [(1, "gpu"), (2, "gpu"), (3, "cpu")] {
        rig.put(located(spec(id, 2).min_member(2), sub_cluster));
    }
    rig.core.step(rig.now);
    for unit in 1..=3 {
        rig.report(1, unit, ReportState::Parked);
    }
    rig.now = rig.now.plus(60_500);
    let turns = rig.core.step(rig.now).into_iter().filter_map(|action| match action {
        Action::Assign(_, one) => one.permit.turn.then_some(one.record.id.0),
        _ => None,
    });
    assert_eq!(turns.collect::<Vec<_>>(), [1, 3]);
}
