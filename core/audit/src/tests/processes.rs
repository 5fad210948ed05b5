//! What really runs, against what the records say.

use godel_base::ids::ReplicaId;
use godel_domain::records::Record;

use super::*;

/// The healthy story, with a command in each replica, on nodes that run processes.
fn real() -> (Story, UnitRecord) {
    let (mut story, mut gang) = Story::healthy();
    gang.spec.task_groups[0].template.run.command = vec!["serve".to_owned()];
    for changes in &mut story.0 {
        for change in changes {
            match change {
                Change::Put(Record::NodeReport(report)) => report.runtime = NodeRuntime::Processes,
                Change::Put(Record::Unit(record)) => *record = Arc::new(gang.clone()),
                _ => {}
            }
        }
    }
    (story, gang)
}

fn orphan(pid: u32, unit: OrphanUnit) -> Orphan {
    let replica = ReplicaId { ordinal: 1, incarnation: 0 };
    Orphan { process: (pid, 70), name: "sleep".to_owned(), unit, replica }
}

fn i3(evidence: &Evidence) -> InvariantReport {
    check_all(evidence).into_iter().find(|report| report.invariant == Invariant::I3).unwrap()
}

#[test]
fn what_runs_as_it_should_is_counted() {
    let evidence = real().0.evidence();
    assert!(check_all(&evidence).iter().all(InvariantReport::holds));
    let line = i3(&evidence).checked;
    assert!(
        line.contains("2 running units reported, 2 of them seen by their processes on 2 nodes"),
        "{line}"
    );
}

#[test]
fn i3_names_processes_that_should_not_be_there() {
    let corrupt = |change: &dyn Fn(&mut Vec<NodeProcesses>), words: &str| {
        let mut evidence = real().0.evidence();
        change(&mut evidence.processes);
        only(&evidence, Invariant::I3, words);
    };
    let run = |unit, ordinal, incarnation| RunProcesses {
        id: RunningUnitId::new(UnitId(unit), ordinal, incarnation),
        n_processes: 1,
    };
    corrupt(
        &|nodes| nodes[0].running.push(run(7, 0, 0)),
        "1 process of unit id 7/0 incarnation 0 live on n1: was never placed",
    );
    corrupt(
        &|nodes| nodes[0].running.push(run(1, 1, 0)),
        "1 process of unit-1/1 incarnation 0 live on n1: it is placed on n2",
    );
    corrupt(&|nodes| nodes[0].running.push(run(1, 1, 0)), "processes of unit-1/1 are on n1 and on n2");
    corrupt(
        &|nodes| nodes[1].running.push(run(1, 1, 3)),
        "1 process of unit-1/1 incarnation 3 live on n2: incarnation 0 is current",
    );
    // An ended one.
    let (story, gang) = real();
    let mut after = story.then(vec![status(&gang, 1, 0, Phase::Succeeded)]).evidence();
    after.processes[1].running = vec![run(1, 1, 0)];
    only(&after, Invariant::I3, "1 process of unit-1/1 incarnation 0 live on n2: it is Succeeded");
}

#[test]
fn i3_names_what_has_no_process() {
    let (story, _) = real();
    let silent = |story: &Story| {
        let mut evidence = story.evidence();
        evidence.processes[1].running.clear();
        evidence
    };
    only(&silent(&story), Invariant::I3, "unit-1/1 is Running on n2, but it has no process there");
    // It has changed since the look before.
    let (mut earlier, _) = real();
    earlier.0.pop();
    let mut moved = silent(&story);
    moved.before = Some(Before::of(&earlier.evidence()));
    assert!(i3(&moved).holds());
    // Nothing of what is simulated is a process.
    let (mut simulated, mut gang) = real();
    gang.spec.task_groups[0].template.run.command.clear();
    gang.spec.task_groups[0].template.run.simulated_duration_ms = Some(1);
    simulated.0[3] = vec![unit(&gang)];
    assert!(i3(&silent(&simulated)).holds());
}

#[test]
fn i3_names_orphans_that_stay() {
    let with = |orphans: &[Orphan]| {
        let mut evidence = real().0.evidence();
        evidence.processes[0].orphans = orphans.to_vec();
        evidence
    };
    let of_unit = orphan(42, OrphanUnit::Id(UnitId(1)));
    let of_uid = orphan(43, OrphanUnit::Uid("uid-1".to_owned()));
    let of_gone = orphan(44, OrphanUnit::Uid("uid-7".to_owned()));
    let container = Orphan {
        process: (0, 0),
        name: "godel-x-1-1-0-0".to_owned(),
        ..orphan(0, OrphanUnit::Id(UnitId(1)))
    };
    for (orphan, words) in [
        (&of_unit, "process 42 (sleep) on n1 is of unit-1/1 incarnation 0, but no running unit owns it"),
        (&of_uid, "process 43 (sleep) on n1 is of unit-1/1 incarnation 0"),
        (&of_gone, "process 44 (sleep) on n1 is of unit with uid uid-7/1 incarnation 0"),
        (&container, "container godel-x-1-1-0-0 on n1 is of unit-1/1 incarnation 0"),
    ] {
        only(&with(std::slice::from_ref(orphan)), Invariant::I3, words);
    }
    // One that comes and goes may be about to end at each look.
    let mut later = with(&[of_unit.clone(), of_uid]);
    later.before = Some(Before::of(&with(&[of_unit.clone(), of_gone])));
    assert_eq!(i3(&later).n_violations, 1);
    later.before = Some(Before::of(&Evidence { before: later.before, ..with(&[]) }));
    assert!(i3(&later).holds());
}

#[test]
fn nodes_that_do_not_say_what_runs_are_not_judged() {
    let mut evidence = real().0.evidence();
    evidence.processes[0].failure = Some("no answer".to_owned());
    evidence.processes[0].running.clear();
    evidence.processes.pop();
    assert_eq!(
        i3(&evidence).not_judged,
        ["the processes on 2 nodes: n1: no answer, n2: its agent was not asked"]
    );
    assert!(!i3(&evidence).has_failed());
    // Simulated ones are not asked.
    evidence.processes.clear();
    evidence.listed = Story::healthy().0.evidence().listed;
    assert!(i3(&evidence).not_judged.is_empty());
}

fn local(pid: u32, mark: &str, node: &str, incarnation: u32) -> LocalProcess {
    LocalProcess {
        process: (pid, 70),
        mark: mark.to_owned(),
        node: (node.to_owned(), "uid-before".to_owned()),
        unit_uid: "uid-1".to_owned(),
        ordinal: 1,
        incarnation,
    }
}

#[test]
fn i3_names_two_commands_of_one_replica_though_no_agent_says_so() {
    let with = |local: &[LocalProcess]| {
        let mut evidence = real().0.evidence();
        evidence.local = local.to_vec();
        evidence
    };
    let right = [local(42, "a", "n2", 0), local(43, "a", "n2", 0)];
    assert!(i3(&with(&right)).holds());
    assert!(i3(&with(&right)).checked.contains("2 processes of this machine looked at"));
    let double = [local(42, "a", "n2", 0), local(50, "b", "n2", 0)];
    only(&with(&double), Invariant::I3, "2 commands of unit-1/1 run on this machine: processes 42, 50");
    only(
        &with(&[local(42, "a", "n2", 3)]),
        Invariant::I3,
        "process 42 of unit-1/1 incarnation 3 runs on this machine, for node n2: incarnation 0 is current",
    );
    only(
        &with(&[local(42, "a", "n1", 0)]),
        Invariant::I3,
        "runs on this machine, for node n1: it is placed on n2",
    );
    // Another cluster has its own units, and its own nodes.
    let other = LocalProcess { unit_uid: "uid-of-another".to_owned(), ..double[0].clone() };
    assert!(i3(&with(&[local(42, "a", "another", 9), other])).holds());
    // What goes on without its agent is not judged.
    let mut away = with(&double);
    away.agents.iter_mut().for_each(|agent| agent.connected &= agent.name != "n2");
    assert!(i3(&away).n_violations == 0);
    // One of the two ends while it is looked at.
    let mut later = with(&double);
    later.before = Some(Before::of(&with(&double[..1])));
    assert!(i3(&later).holds());
}
