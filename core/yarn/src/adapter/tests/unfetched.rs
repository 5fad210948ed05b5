//! Containers that end before their master has fetched them.

use super::*;

#[test]
fn a_container_that_nobody_has_fetched_is_followed_by_another() {
    let mut played = running(submission());
    played.allocate(0, vec![ask(2)]).unwrap();
    played.run();
    played.place_all();
    // The first one is preempted before the master calls.
    played.end(1, -102);
    played.run();
    played.place_all();
    let answer = played.allocate(1, Vec::new()).unwrap();
    let numbers: Vec<u64> = answer.allocated.iter().map(|container| container.id.number).collect();
    assert_eq!(numbers, [3, 4], "the master has two, as it asked for");
    // From now on it knows of them: one that is preempted is told, and does not come again by itself.
    played.with(|app, _, at, out| app.containers_mut().started(2, at, out));
    played.end(2, -102);
    played.run();
    let answer = played.allocate(2, Vec::new()).unwrap();
    let ended: Vec<(u64, i32)> =
        answer.completed.iter().map(|ended| (ended.id.number, ended.exit.0)).collect();
    assert_eq!(ended, [(3, -102)]);
    assert!(played.app().asks().wanted().count() == 0 && answer.allocated.is_empty());
}
