//! Sessions that are lost and come back.

use godel_agent::{Mode, NodeDef};
use godel_base::resources::Resources;
use godel_proto::v1::RunPhase;

use super::{
    Agents,
    fake::{Fake, assignment},
    phases,
};

#[tokio::test]
async fn a_lost_session_reopens_and_repeats_what_was_unacknowledged() {
    let mut fake = Fake::start(10_000).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let mut agents = Agents::start(&fake, vec![node], Mode::Simulated, |_| {});
    agents.connected(1).await;
    fake.send(1, assignment(1, 0, 0));
    fake.send(1, assignment(2, 1, 0));
    let mut said = Vec::new();
    while !said.contains(&(2, RunPhase::Succeeded, 0)) {
        said.extend(phases(&fake.report_of(1).await));
    }
    fake.drop_session(1);
    let open = fake.open_of(1).await;
    let running: Vec<(u64, RunPhase)> = open.running.iter().map(|run| (run.unit_id, run.phase())).collect();
    assert_eq!(running, [(1, RunPhase::Running), (2, RunPhase::Succeeded)]);
    assert_eq!(open.epoch, 2);
    let mut again = Vec::new();
    while !again.contains(&(2, RunPhase::Succeeded, 0)) {
        again.extend(phases(&fake.report_of(1).await));
    }
    fake.ack(1, 100);
    // A copy of the assignment after the acknowledgement starts nothing: the end is said once more.
    fake.send(1, assignment(2, 1, 0));
    assert_eq!(phases(&fake.report_of(1).await), [(2, RunPhase::Succeeded, 0)]);
    assert!(agents.stats.borrow().lost >= 1);
    agents.end().await;
}
