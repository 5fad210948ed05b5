use std::collections::BTreeMap;

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    label_expression::parse,
    node::Toleration,
    running_units::{Bind, Evict, EvictionReason, Phase, RunChange, Statuses},
    unit::{RestartPolicy, WorkloadClass},
};
use godel_testkit::{BuildUnit as _, unit};
use proptest::prelude::*;

use super::*;

fn daemon() -> UnitRecord {
    let record = unit("d").edit(|record| {
        record.spec.class = WorkloadClass::Daemon;
        record.spec.restart_policy = RestartPolicy::Always;
        record.spec.task_groups[0].replicas = 0;
    });
    UnitRecord::new(record.id, record.spec)
}

fn all(record: &UnitRecord, rows: &RunningUnits, nodes: &[u32]) -> Followed {
    let is_wanted = |node: NodeId| nodes.contains(&node.0);
    let use_of = |node| if is_wanted(node) { NodeUse::Wanted } else { NodeUse::Refused };
    follow(record, rows, nodes.iter().copied().map(NodeId), use_of, true)
}

fn next(record: &UnitRecord, rows: &RunningUnits, nodes: &[u32]) -> UnitRecord {
    all(record, rows, nodes).record.unwrap_or_else(|| record.clone())
}

fn bind(rows: &mut RunningUnits, places: &[(u32, u32)]) {
    let (ordinals, nodes) = places.iter().map(|(ordinal, node)| (*ordinal, NodeId(*node))).unzip();
    apply(rows, RunChange::Bind(Bind { ordinals, nodes, ..Bind::default() }));
}

fn apply(rows: &mut RunningUnits, change: RunChange) {
    rows.apply(&change, Revision(1), 1, |_, _, _| {});
}

fn end(rows: &mut RunningUnits, ordinal: u32, phase: Phase) {
    let (ordinals, phases) = (vec![ordinal], vec![phase]);
    apply(rows, RunChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() }));
}

#[test]
fn nodes_are_used_by_their_labels_and_taints() {
    let taint = |key: &str, effect| Taint { key: key.to_owned(), value: String::new(), effect, added_ms: 0 };
    let (schedule, execute) = (TaintEffect::NoSchedule, TaintEffect::NoExecute);
    let tolerates =
        |key: &str| Toleration { key: key.to_owned(), value: None, effect: None, tolerated_s: None };
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Vec<Taint>, NodeUse);
    let cases: [Case<'_>; 11] = [
        ("any", &[], vec![], NodeUse::Wanted),
        ("zone a", &[("zone", "a")], vec![], NodeUse::Wanted),
        ("zone a", &[("zone", "b")], vec![], NodeUse::Refused),
        ("zone a", &[], vec![], NodeUse::Refused),
        ("ssd or big", &[("cores", "96")], vec![], NodeUse::Wanted),
        ("ssd or big", &[("cores", "8")], vec![], NodeUse::Refused),
        ("any", &[(NODE_CLASS, "virtual")], vec![], NodeUse::Refused),
        ("virtual", &[(NODE_CLASS, "virtual")], vec![], NodeUse::Wanted),
        ("any", &[], vec![taint("t", schedule), taint("ok", execute)], NodeUse::Kept),
        ("any", &[], vec![taint("t", schedule), taint("t", execute)], NodeUse::Refused),
        ("any", &[], vec![taint("t", TaintEffect::PreferNoSchedule)], NodeUse::Wanted),
    ];
    for (what, labels, taints, expected) in cases {
        let mut template = Template { tolerations: vec![tolerates("ok")], ..Template::default() };
        match what {
            "zone a" => drop(template.node_selector.insert("zone".to_owned(), "a".to_owned())),
            "virtual" => drop(template.node_selector.insert(NODE_CLASS.to_owned(), "virtual".to_owned())),
            "ssd or big" => {
                template.node_affinity.required =
                    vec![parse("disk = ssd").unwrap(), parse("cores > 64").unwrap()];
            }
            _ => {}
        }
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let found = node_use(&template, &taints, NodeRuntime::Unknown, |key| labels.get(key).copied());
        assert_eq!(found, expected, "{what} on {labels:?} {taints:?}");
        let real = node_use(&template, &taints, NodeRuntime::Processes, |key| labels.get(key).copied());
        assert_eq!(real, NodeUse::Refused, "it has no command");
        template.run.command.push("agent".to_owned());
        let real = node_use(&template, &taints, NodeRuntime::Processes, |key| labels.get(key).copied());
        assert_eq!(real, expected);
    }
}

#[test]
fn replicas_follow_the_nodes() {
    let mut rows = RunningUnits::default();
    let record = next(&daemon(), &rows, &[1, 2, 3]);
    assert_eq!((record.status.ordinals[0].as_slice(), record.spec.replicas()), (&[(0, 3)][..], 3));
    bind(&mut rows, &[(0, 2), (1, 3), (2, 1)]);
    assert_eq!(all(&record, &rows, &[1, 2, 3]), Followed::default());
    // Node 3 is not for it any more, and two join: its replica goes, and two come.
    let record = next(&record, &rows, &[1, 2, 4, 5]);
    assert_eq!(record.status.ordinals[0], [(0, 1), (2, 5)]);
    // One of those goes again before anything is bound there: the highest one, which does not come back.
    let record = next(&record, &rows, &[1, 2, 4]);
    assert_eq!(record.status.ordinals[0], [(0, 1), (2, 4), (5, 5)]);
    let record = next(&record, &rows, &[1, 2, 4, 6]);
    assert_eq!(record.status.ordinals[0], [(0, 1), (2, 4), (5, 6)]);
    let record = next(&record, &rows, &[]);
    assert_eq!((record.status.ordinals[0].as_slice(), record.spec.replicas()), (&[(6, 6)][..], 0));
}

#[test]
fn a_node_that_takes_nothing_new_keeps_what_it_has() {
    let mut rows = RunningUnits::default();
    let record = next(&daemon(), &rows, &[1, 2]);
    bind(&mut rows, &[(0, 1)]);
    let use_of = |node| if node == NodeId(3) { NodeUse::Wanted } else { NodeUse::Kept };
    let followed = follow(&record, &rows, [NodeId(3)].into_iter(), use_of, true);
    // Ordinal 1 was for node 2, and is now for node 3.
    assert_eq!(followed, Followed::default());
    let evict = Evict {
        ordinals: vec![0],
        incarnations: Vec::new(),
        reason: EvictionReason::NodeLost,
        by: String::new(),
        preemptor: UnitId(0),
    };
    apply(&mut rows, RunChange::Evict(evict));
    let record = follow(&record, &rows, [NodeId(3)].into_iter(), use_of, true).record.unwrap();
    assert_eq!(record.status.ordinals[0], [(0, 1), (2, 2)], "what comes back is for node 3");
}

#[test]
fn what_has_ended_for_good_is_replaced_when_that_is_due() {
    let mut rows = RunningUnits::default();
    let record = next(&daemon(), &rows, &[1, 2]);
    bind(&mut rows, &[(0, 1), (1, 2)]);
    end(&mut rows, 0, Phase::Failed);
    let use_of = |_| NodeUse::Wanted;
    let nodes = || [1, 2].map(NodeId).into_iter();
    assert_eq!(follow(&record, &rows, nodes(), use_of, false), Followed { record: None, n_ended: 1 });
    let followed = follow(&record, &rows, nodes(), use_of, true);
    assert_eq!(followed.record.unwrap().status.ordinals[0], [(1, 3)]);
}

#[test]
fn ranges_stay_few() {
    let mut record = daemon();
    let n = u32::try_from(N_RANGES_MAX).unwrap();
    record.status.ordinals[0] = (0..n).map(|idx| (idx * 4, idx * 4 + 2 + u32::from(idx != 7))).collect();
    record.spec.task_groups[0].replicas = record.ranges().map(|(start, end)| end - start).sum();
    let mut rows = RunningUnits::default();
    let bound: Vec<(u32, u32)> = record.iter_ordinals().map(|ordinal| (ordinal, ordinal)).collect();
    bind(&mut rows, &bound);
    let replicas = record.spec.replicas();
    let use_of = |node| if node == NodeId(401) { NodeUse::Refused } else { NodeUse::Wanted };
    let wanted = bound.iter().map(|(_, node)| NodeId(*node)).filter(|node| *node != NodeId(401));
    let left = follow(&record, &rows, wanted, use_of, true).record.unwrap();
    assert!(left.ranges().count() <= N_RANGES_MAX);
    assert_eq!(left.spec.replicas(), replicas - 1);
    assert_eq!(left.iter_ordinals().count(), replicas as usize - 1);
    assert!(left.group_of(400).is_none() && left.group_of(28).is_some(), "the shortest ranges gave way");
}

proptest! {
    /// Whatever nodes come and go: as many ordinals are wanted as there are nodes, none on a node that is not for it, two
    /// never share a node, none comes back that has gone, and following a second time changes nothing.
    #[test]
    fn each_node_has_one_replica(steps in prop::collection::vec((prop::collection::btree_set(1u32..9, 0..8), any::<u8>()), 1..30)) {
        let (mut record, mut rows) = (daemon(), RunningUnits::default());
        let mut gone: BTreeSet<u32> = BTreeSet::new();
        let mut known: BTreeSet<u32> = BTreeSet::new();
        for (nodes, seed) in steps {
            let nodes: Vec<u32> = nodes.into_iter().collect();
            record = next(&record, &rows, &nodes);
            prop_assert_eq!(all(&record, &rows, &nodes).record, None);
            let wanted: BTreeSet<u32> = record.iter_ordinals().collect();
            prop_assert_eq!(wanted.len(), record.spec.replicas() as usize);
            prop_assert_eq!(wanted.len(), nodes.len());
            prop_assert!(wanted.is_disjoint(&gone), "{:?} {:?}", wanted, gone);
            gone.extend(known.difference(&wanted));
            known.extend(&wanted);
            for ordinal in &gone {
                if rows.row(*ordinal).phase.is_live() {
                    end(&mut rows, *ordinal, Phase::Stopped);
                }
            }
            // A scheduler places some of those that wait, and something may end.
            let taken: BTreeSet<u32> = rows.live().map(|(_, row)| row.node.0).collect();
            let free = nodes.iter().filter(|node| !taken.contains(node));
            let waiting = wanted.iter().filter(|ordinal| rows.row(**ordinal).phase == Phase::Pending);
            let places: Vec<(u32, u32)> = waiting.copied().zip(free.copied()).take(usize::from(seed % 4)).collect();
            bind(&mut rows, &places);
            let ending = rows.live().map(|(ordinal, _)| ordinal).next().filter(|_| seed > 200);
            if let Some(ordinal) = ending {
                end(&mut rows, ordinal, Phase::Failed);
            }
        }
    }
}
