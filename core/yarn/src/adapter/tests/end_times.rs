//! When an application ended, as its record says.

use super::*;

#[test]
fn the_time_of_its_end_outlives_the_adapter() {
    for master in [Some(group(1)), None] {
        let mut played = Played::new(AppSubmission { master, ..submission() });
        played.run();
        played.register().unwrap();
        played.run();
        played.now = 5_000;
        played.finish().unwrap();
        played.run();
        played.now = 6_000;
        played.end(MASTER, 0);
        played.run();
        assert_eq!(played.app().times_ms(), (1_000, Some(5_000)));
        played.now = 9_000;
        played.crash();
        played.run();
        assert!(played.app().is_over(), "{:?}", played.app());
        assert_eq!(played.app().times_ms(), (1_000, Some(5_000)));
    }
}

#[test]
fn one_that_was_done_is_over_once_its_unit_is_gone() {
    let mut played = running(submission());
    played.finish().unwrap();
    played.run();
    assert_eq!(played.app().state, AppState::Finishing);
    played.with(|app, terms, at, out| app.unit_gone("gone", terms, at, out));
    assert_eq!(played.app().state, AppState::Finished);
    let mut played = running(submission());
    played.with(|app, terms, at, out| app.unit_gone("gone", terms, at, out));
    played.run();
    assert_eq!(played.app().public_state(), PublicAppState::Killed);
}
