//! Units that wait for the same room: who joins whom.

use godel_testkit::group;

use super::*;

/// A unit of which the first task group fits no node; the second one has as many replicas as given.
fn stuck(id: u64, n_others: u32) -> UnitRecord {
    let mut unit = spec(id, 1);
    unit.spec.task_groups[0].template.node_selector.insert("nowhere".to_owned(), "yes".to_owned());
    if n_others == 0 { unit } else { with_others(unit, n_others) }
}

fn with_others(unit: UnitRecord, n: u32) -> UnitRecord {
    let template = spec(1, 1).spec.task_groups[0].template.clone();
    unit.group(group("others", n, template))
}

impl Rig {
    /// The scheduler `a` has placed what it could, and lacks a place for one replica of a task group.
    fn park(&mut self, unit: u64, group: u32, need: u64) {
        let spec_revision = self.core.unit(UnitId(unit)).unwrap().spec_revision;
        let report = UnitReport {
            unit: UnitId(unit),
            spec_revision,
            state: ReportState::Parked,
            refusals: Some(Arc::default()),
            need,
            unplaced: Some(1),
            lacking: vec![group],
        };
        self.core.on_report(SessionId(1), report, self.now);
    }
}

#[test]
fn what_is_placed_and_not_yet_read_is_lacked_by_nobody() {
    for is_read_first in [true, false] {
        let mut rig = Rig::new();
        rig.attach("a", 1, 1, &[], 1_000);
        rig.put(stuck(1, 1));
        assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
        if is_read_first {
            rig.bind_group(1, 1, &[1]);
        }
        rig.park(1, 0, 7);
        assert_eq!(rig.step(), [""; 0]);
        if !is_read_first {
            rig.bind_group(1, 1, &[1]);
        }
        for unit in 2..=20 {
            rig.put(stuck(unit, 1));
            assert_eq!(rig.step(), [format!("assign {unit} to 1: [0, 1]")], "read first: {is_read_first}");
            rig.park(unit, 0, 7);
        }
    }
}

#[test]
fn a_gang_that_is_placed_and_not_yet_read_keeps_no_other_gang_waiting() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 1_000);
    let gang = |id| with_others(spec(id, 2), 1).min_member(2);
    rig.put(gang(1));
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1, 2]"]);
    rig.park(1, 1, 7);
    rig.put(gang(2));
    assert_eq!(rig.step(), ["assign 2 to 1: [0, 1, 2]"]);
}

#[test]
fn a_unit_that_waits_leaves_its_room_when_it_gets_a_task_group() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 1_000);
    rig.put(stuck(1, 0));
    assert_eq!(rig.step(), ["assign 1 to 1: [0]"]);
    rig.park(1, 0, 7);
    rig.put(stuck(2, 0));
    assert_eq!(rig.step(), [""; 0], "nobody has a place for what it needs");
    assert_eq!(rig.phase(2), UnitPhase::Unschedulable);
    rig.put(stuck(2, 1));
    assert_eq!(rig.step(), ["assign 2 to 1: [0, 1]"]);
}
