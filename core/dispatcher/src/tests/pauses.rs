//! What administrators keep from being handed out.

use godel_domain::pause::{Pause, Scope};

use super::*;

impl Rig {
    pub(super) fn pause(&mut self, scope: Scope) {
        self.next();
        let reason = "maintenance".to_owned();
        let sub_cluster_key = godel_domain::sub_cluster::KEY.to_owned();
        let pause = Pause { scope, since_ms: 5, reason, sub_cluster_key };
        put(&mut self.core, Record::Pause(pause), self.now);
    }

    pub(super) fn go_on(&mut self, scope: &Scope) {
        self.next();
        self.core.assignments.on_pause_deleted(scope, self.now);
    }

    fn kept_by(&self, unit: u64) -> String {
        let refusals = self.core.unit(UnitId(unit)).unwrap().refusals;
        refusals.map_or_else(String::new, |refusals| refusals.reasons[0].reason.clone())
    }
}

fn of_queue(id: u64, queue: &str) -> UnitRecord {
    spec(id, 2).queue(queue)
}

#[test]
fn what_is_paused_comes_back_from_schedulers_and_waits() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit(1..=2);
    assert_eq!(rig.step().len(), 2);
    rig.bind(1, &[0, 1]);
    rig.pause(Scope::All);
    assert_eq!(rig.step(), ["revoke 2 from 1"]);
    rig.submit([3]);
    assert_eq!(rig.step(), [""; 0]);
    assert_eq!(
        [1, 2, 3].map(|unit| rig.phase(unit)),
        [UnitPhase::Scheduled, UnitPhase::Queued, UnitPhase::Queued]
    );
    assert_eq!(rig.kept_by(3), "everything is paused by an administrator: maintenance");
    // What runs goes on; what ends of it comes back and waits.
    rig.status(1, &[1], RowPhase::Stopped);
    let requeue = Requeue { ordinals: vec![1], incarnations: vec![1], anew: false };
    rig.rows(1, RunChange::Requeue(requeue));
    // A scheduler that comes back with what it had does not keep it.
    rig.attach("a", 1, 2, &[(2, 12)], 100);
    assert_eq!(rig.step(), ["close 1", "revoke 2 from 2"]);
    rig.now = rig.now.plus(10_000);
    assert_eq!(rig.step(), [""; 0]);
    rig.go_on(&Scope::All);
    let mut seen = rig.step();
    seen.sort();
    assert_eq!(seen, ["assign 1 to 2: [1]", "assign 2 to 2: [0, 1]", "assign 3 to 2: [0, 1]"]);
    assert_eq!((rig.kept_by(3), rig.core.summary().counters.repairs), (String::new(), 0));
}

#[test]
fn a_pause_of_a_queue_covers_those_below_it() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.pause(Scope::Queue("prod".to_owned()));
    rig.pause(Scope::Preemption);
    for unit in [of_queue(1, "prod.search"), of_queue(2, "prod"), of_queue(3, "production"), spec(4, 2)] {
        rig.put(unit);
    }
    let mut seen = rig.step();
    seen.sort();
    assert_eq!(seen, ["assign 3 to 1: [0, 1]", "assign 4 to 1: [0, 1]"]);
    assert_eq!(rig.kept_by(1), "queue prod is paused by an administrator: maintenance");
    // A paused unit may be cancelled, and one that is gone is gone.
    rig.put(of_queue(1, "prod.search").cancelled(true));
    assert_eq!(rig.phase(1), UnitPhase::Cancelled);
    rig.core.on_unit_deleted(UnitId(2), rig.now);
    rig.go_on(&Scope::Queue("prod".to_owned()));
    assert_eq!(rig.step(), [""; 0]);
}

#[test]
fn a_new_leader_and_a_new_list_know_what_is_paused() {
    let mut rig = Rig::loading(Config::default());
    rig.put(spec(1, 2));
    rig.pause(Scope::All);
    rig.core.on_synced(Revision(rig.revision), rig.now);
    rig.attach("a", 1, 1, &[], 100);
    rig.now = rig.now.plus(10_000);
    assert_eq!((rig.step(), rig.phase(1)), (vec![], UnitPhase::Queued));
    // A list without it: it is over.
    rig.core.on_reset();
    let node = NodeSpec { id: NodeId(1), name: "n1".into(), ..NodeSpec::default() };
    rig.core.on_node_spec(&node, rig.now);
    rig.put(spec(1, 2));
    rig.core.on_synced(Revision(rig.revision), rig.now);
    assert_eq!(rig.step(), ["assign 1 to 1: [0, 1]"]);
}
