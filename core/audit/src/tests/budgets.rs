//! I6 for disruption budgets: preemptions as they were judged, drains as some binder might have seen it.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    hold::{Hold, Slot},
    node::Drain,
    records::Record,
};
use godel_testkit::{BuildUnit as _, web_budget};

use super::{
    preemptions::{holds, lone, preempted, preemption},
    *,
};

/// As far as a binder may be behind, in commits.
const N_LATER: usize = 10_000;

fn most(n: u32) -> Change {
    Change::Put(Record::Budget(Arc::new(web_budget(n))))
}

fn web(record: UnitRecord) -> UnitRecord {
    record.labels([("app".to_owned(), "web".to_owned())].into())
}

/// Two running units on a node that is drained, of which one may be unavailable. The second one ran after the slot was
/// made, then nothing happened for so many commits; `evicts` is the last one.
fn drained(n_later: usize, evicts: Vec<Change>) -> Evidence {
    let unit_spec = web(spec(1, 2, 1, demand(1000, None)));
    let [Change::Put(Record::NodeSpec(record)), report] = node(1, 4000, &[]) else { unreachable!() };
    let drain = Drain { since_ms: 1, deadline_ms: None, running_units: 2 };
    let mut commits = vec![
        vec![Change::Put(Record::NodeSpec(record.clone())), report],
        vec![most(1)],
        vec![unit(&unit_spec)],
        vec![bind(&unit_spec, &[(0, 1, 0), (1, 1, 0)], 0)],
        vec![status(&unit_spec, 0, 0, Phase::Running)],
        vec![Change::Put(Record::Hold(Arc::new(slot(None))))],
        vec![status(&unit_spec, 1, 0, Phase::Running)],
    ];
    commits.resize(commits.len() + n_later, Vec::new());
    commits.push(vec![Change::Put(Record::NodeSpec(NodeSpec { drain: Some(drain), ..record }))]);
    commits.push(evicts);
    Story(commits).evidence()
}

/// Made when one of the two ran.
fn slot(occupant: Option<RunningUnitId>) -> Hold {
    Hold {
        id: HoldId(1),
        node: NodeId(1),
        demand: Arc::new(demand(1000, None)),
        ordinals: vec![0],
        slot: Some(Slot { reservation: Arc::from("r"), occupant }),
        judged: Revision(5),
        ..Hold::default()
    }
}

fn leave(ordinal: u32) -> Change {
    evict(&spec(1, 2, 1, demand(1000, None)), ordinal, EvictionReason::Drained)
}

#[test]
fn i6_keeps_a_budget_as_it_was_judged() {
    let two = |judged, allowed| preempted(web(lone(4, 1)), 2, vec![most(allowed)], judged);
    holds(&two(8, 2));
    fails(&two(8, 1), Invariant::I6, "disruption budget web: 2 were made to leave, 1 might");
    // The budget was made after that.
    holds(&two(7, 1));
    // It selects others.
    holds(&preempted(lone(4, 1), 2, vec![most(1)], 8));
}

#[test]
fn i6_counts_for_a_budget_whom_a_unit_wanted_as_it_was_judged() {
    let unit_spec = web(lone(4, 1));
    let suspended = unit_spec.clone().suspended(true);
    let mut smaller = unit_spec.clone();
    smaller.spec.task_groups[0].replicas = 1;
    smaller.status.ordinals[0] = vec![(1, 2)];
    for before in [suspended, smaller] {
        let two = |judged| {
            let mut story = preemption(unit_spec.clone(), 2, vec![unit(&unit_spec)], judged);
            story.0[2].push(most(1));
            story.0[3] = vec![unit(&before)];
            story.evidence()
        };
        holds(&two(7));
        fails(&two(8), Invariant::I6, "disruption budget web: 2 were made to leave, 1 might");
    }
}

#[test]
fn i6_keeps_a_budget_from_a_drain() {
    holds(&drained(N_LATER, vec![leave(0)]));
    let both = drained(N_LATER, vec![leave(0), leave(1)]);
    fails(&both, Invariant::I6, "disruption budget web: 2 were made to leave, 1 might");
    // A binder that was so far behind did not see them run.
    holds(&drained(10, vec![leave(0), leave(1)]));
}

#[test]
fn i6_judges_a_drain_by_no_slot_that_is_entered_beside_it() {
    let occupant = RunningUnitId::new(UnitId(9), 0, 0);
    holds(&drained(0, vec![leave(0), Change::Put(Record::Hold(Arc::new(slot(Some(occupant)))))]));
}
