//! Every pair of state and event, and which failures count.

use super::*;

const STATES: [(&str, AttemptState); 16] = [
    ("New", AttemptState::New),
    ("Submitted", AttemptState::Submitted),
    ("Scheduled", AttemptState::Scheduled),
    ("AllocatedSaving", AttemptState::AllocatedSaving),
    ("Allocated", AttemptState::Allocated),
    ("UnmanagedSaving", AttemptState::LaunchedUnmanagedSaving),
    ("Launched", AttemptState::Launched),
    ("Running", AttemptState::Running),
    ("Saving>Finishing", AttemptState::FinalSaving { target: EndTarget::Finishing }),
    ("Saving>Finished", AttemptState::FinalSaving { target: EndTarget::Finished }),
    ("Saving>Failed", AttemptState::FinalSaving { target: EndTarget::Failed }),
    ("Saving>Killed", AttemptState::FinalSaving { target: EndTarget::Killed }),
    ("Finishing", AttemptState::Finishing),
    ("Finished", AttemptState::Finished),
    ("Failed", AttemptState::Failed),
    ("Killed", AttemptState::Killed),
];
const EVENTS: [(&str, AttemptEvent); 20] = [
    ("start", AttemptEvent::Start),
    ("added", AttemptEvent::Added { is_unmanaged: false }),
    ("added-unmanaged", AttemptEvent::Added { is_unmanaged: true }),
    ("allocated", AttemptEvent::ContainerAllocated),
    ("saved", AttemptEvent::NewSaved),
    ("launched", AttemptEvent::Launched),
    ("launch-failed", AttemptEvent::LaunchFailed),
    ("registered", AttemptEvent::Registered),
    ("status", AttemptEvent::StatusUpdate),
    ("unregistered", AttemptEvent::Unregistered { is_unmanaged: false }),
    ("unregistered-unmanaged", AttemptEvent::Unregistered { is_unmanaged: true }),
    ("master-ended", AttemptEvent::MasterEnded),
    ("ended", AttemptEvent::ContainerEnded),
    ("expire", AttemptEvent::Expire),
    ("kill", AttemptEvent::Kill),
    ("fail", AttemptEvent::Fail),
    ("updated", AttemptEvent::UpdateSaved),
    ("recover", AttemptEvent::Recover(None)),
    ("recover-finished", AttemptEvent::Recover(Some(EndTarget::Finished))),
    ("recover-failed", AttemptEvent::Recover(Some(EndTarget::Failed))),
];

/// Every pair that is allowed, as YARN's ResourceManager has them; `=` stays.
const TABLE: &str = "\
New: start Submitted, kill Saving>Killed, fail Saving>Failed, registered Saving>Failed, recover Launched, recover-finished Finished, recover-failed Failed
Submitted: added Scheduled, added-unmanaged UnmanagedSaving, kill Saving>Killed, fail Saving>Failed, registered Saving>Failed
Scheduled: allocated AllocatedSaving, kill Saving>Killed, fail Saving>Failed, master-ended Saving>Failed
AllocatedSaving: saved Allocated, kill Saving>Killed, fail Saving>Failed, master-ended Saving>Failed
Allocated: launched Launched, launch-failed Saving>Failed, kill Saving>Killed, fail Saving>Failed, master-ended Saving>Failed
UnmanagedSaving: saved Launched, registered Saving>Failed, kill Saving>Killed, fail Saving>Failed
Launched: registered Running, master-ended Saving>Failed, ended =, expire Saving>Failed, kill Saving>Killed, fail Saving>Failed
Running: unregistered Saving>Finishing, unregistered-unmanaged Saving>Finished, status =, allocated =, master-ended Saving>Failed, ended =, expire Saving>Failed, kill Saving>Killed, fail Saving>Failed
Saving>Finishing: updated Finishing, master-ended Saving>Finished, expire Saving>Finished, ended =, unregistered =, unregistered-unmanaged =, status =, launched =, launch-failed =, allocated =, saved =, kill =, fail =
Saving>Finished: updated Finished, master-ended =, expire =, ended =, unregistered =, unregistered-unmanaged =, status =, launched =, launch-failed =, allocated =, saved =, kill =, fail =
Saving>Failed: updated Failed, master-ended =, expire =, ended =, unregistered =, unregistered-unmanaged =, status =, launched =, launch-failed =, allocated =, saved =, kill =, fail =
Saving>Killed: updated Killed, master-ended =, expire =, ended =, unregistered =, unregistered-unmanaged =, status =, launched =, launch-failed =, allocated =, saved =, kill =, fail =
Finishing: master-ended Finished, ended =, expire Finished, unregistered =, unregistered-unmanaged =, status =, allocated =, kill =, fail =
Finished: expire =, unregistered =, unregistered-unmanaged =, allocated =, kill =, fail =, master-ended =, ended =
Failed: master-ended =, ended =, expire =, kill =, fail =, unregistered =, unregistered-unmanaged =, status =, allocated =
Killed: added =, added-unmanaged =, launched =, launch-failed =, expire =, registered =, allocated =, unregistered =, unregistered-unmanaged =, kill =, fail =, status =, master-ended =, ended =
";

#[test]
fn every_pair_is_as_in_yarn() {
    for (line, (from, state)) in TABLE.lines().zip(STATES) {
        let (name, cells) = line.split_once(": ").unwrap();
        assert_eq!(name, from);
        let cells: Vec<(&str, &str)> = cells.split(", ").map(|cell| cell.split_once(' ').unwrap()).collect();
        let mut n_allowed = 0;
        for (event_name, event) in EVENTS {
            let expected = cells.iter().find(|(name, _)| *name == event_name).map(|(_, to)| *to);
            let found = state.after(event);
            let to = found.map(|(to, _)| {
                if to == state { "=" } else { STATES.iter().find(|(_, state)| *state == to).unwrap().0 }
            });
            assert_eq!(to, expected, "{from} on {event_name}");
            n_allowed += usize::from(found.is_some());
        }
        assert_eq!(n_allowed, cells.len(), "{from}");
    }
    assert_eq!(TABLE.lines().count(), STATES.len());
}

/// What an attempt has done on the way.
fn walk(events: &[AttemptEvent]) -> (AttemptState, Vec<AttemptEffect>) {
    let mut state = AttemptState::New;
    let mut done = Vec::new();
    for event in events {
        let (next, effects) = state.after(*event).unwrap_or_else(|| panic!("{state:?} on {event:?}"));
        state = next;
        done.extend(effects);
    }
    (state, done)
}

#[test]
fn a_master_lives_its_life() {
    use AttemptEffect as Do;
    use AttemptEvent as On;
    let start =
        [On::Start, On::Added { is_unmanaged: false }, On::ContainerAllocated, On::NewSaved, On::Launched];
    let launched = [Do::AddToScheduler, Do::AskForMaster, Do::SaveNew, Do::Launch];
    let end = [
        On::Registered,
        On::StatusUpdate,
        On::Unregistered { is_unmanaged: false },
        On::UpdateSaved,
        On::MasterEnded,
    ];
    let well = [Do::TellRegistered, Do::TellUnregistered, Do::SaveFinal, Do::TellFinished];
    assert_eq!(
        walk(&[&start[..], &end[..]].concat()),
        (AttemptState::Finished, [&launched[..], &well].concat())
    );
    let lost = [On::Registered, On::Expire, On::UpdateSaved];
    let gone = [Do::TellRegistered, Do::StopMaster, Do::SaveFinal, Do::TellFailed];
    assert_eq!(walk(&[&start[..], &lost].concat()), (AttemptState::Failed, [&launched[..], &gone].concat()));
    // A place in which no master could be started is given back.
    let refused = [&start[..4], &[On::LaunchFailed, On::UpdateSaved]].concat();
    let given_back = [&launched[..], &[Do::StopMaster, Do::SaveFinal, Do::TellFailed]].concat();
    assert_eq!(walk(&refused), (AttemptState::Failed, given_back));
    // One that runs elsewhere is over when it says goodbye.
    let elsewhere = [
        On::Start,
        On::Added { is_unmanaged: true },
        On::NewSaved,
        On::Registered,
        On::Unregistered { is_unmanaged: true },
        On::UpdateSaved,
    ];
    assert_eq!(walk(&elsewhere).0, AttemptState::Finished);
    // A goodbye whose process ends before it is recorded.
    let quick = [On::Registered, On::Unregistered { is_unmanaged: false }, On::MasterEnded, On::UpdateSaved];
    assert_eq!(walk(&[&start[..], &quick].concat()).0, AttemptState::Finished);
}

#[test]
fn failures_count_by_exit_and_age() {
    let terms = |max_of_application, validity_interval_ms| AttemptTerms {
        max_of_application,
        max_of_cluster: 3,
        validity_interval_ms,
        is_unmanaged: false,
    };
    for (wanted, max) in [(0, 3), (-1, 3), (1, 1), (3, 3), (4, 3)] {
        assert_eq!(terms(wanted, 0).max_attempts(), max, "{wanted}");
    }
    let failed = |ended_ms: i64, exit: i32| FailedAttempt { ended_ms, exit: YarnExitStatus(exit) };
    let now = 100_000;
    let all = [failed(10_000, 1), failed(50_000, -102), failed(90_000, 137), failed(99_000, -106)];
    assert_eq!(terms(2, 0).n_failures(&all, now), 2);
    assert_eq!(terms(2, 20_000).n_failures(&all, now), 1);
    assert_eq!(terms(2, 10_000).n_failures(&all, now), 0, "an interval is over when it is as long");
    assert!(!terms(2, 0).may_retry(&all, now));
    assert!(terms(2, 20_000).may_retry(&all, now));
    assert!(terms(3, 0).may_retry(&all, now));
    let unmanaged = AttemptTerms { is_unmanaged: true, ..terms(3, 0) };
    assert!(!unmanaged.may_retry(&[], now));
}

#[test]
fn masters_may_register_only_once_they_are_launched() {
    let launched: Vec<&str> =
        STATES.iter().filter(|(_, state)| state.is_launched()).map(|(name, _)| *name).collect();
    assert_eq!(launched, ["Launched", "Running"]);
    for (name, state) in STATES {
        let takes =
            state.after(AttemptEvent::Registered).is_some_and(|(next, _)| next == AttemptState::Running);
        assert!(!takes || state.is_launched(), "{name}");
    }
}
