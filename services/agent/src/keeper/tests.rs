use rustix::process::waitpid;

use super::*;

/// What a shell that does this ends with.
#[allow(clippy::zombie_processes, reason = "it is waited for by its number, as keepers do")]
fn status(script: &str) -> WaitStatus {
    let child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    waitpid(pid, WaitOptions::empty()).unwrap().unwrap().1
}

#[test]
fn an_end_has_one_reason() {
    let (well, badly, killed) = (status("exit 0"), status("exit 3"), status("kill -9 $$"));
    for (status, told, out_of_memory, exit_code, reason) in [
        (well, None, false, 0, RunEndReason::Exited),
        (badly, None, false, 3, RunEndReason::Exited),
        (killed, None, false, 137, RunEndReason::Signalled),
        (killed, None, true, 137, RunEndReason::OutOfMemory),
        // A part of it was ended, and it went on and ended well.
        (well, None, true, 0, RunEndReason::Exited),
        (badly, Some(RunEndReason::Told), false, 3, RunEndReason::Told),
        (killed, Some(RunEndReason::NoContact), true, 137, RunEndReason::NoContact),
    ] {
        let ended = how(Some(status), told, out_of_memory, 5, 9);
        let expected = Ended {
            exit_code,
            reason: reason.name().to_owned(),
            why: String::new(),
            refused: String::new(),
            started_ms: 5,
            ended_ms: 9,
        };
        assert_eq!(ended, expected, "{told:?} {out_of_memory}");
        assert_eq!(ended.end().reason, Some(reason));
    }
}

#[test]
fn files_are_whole_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run { command: vec!["a".to_owned()], umask: Some(7), ..Run::default() };
    files::write(dir.path(), RUN, &run).unwrap();
    assert_eq!(files::read::<Run>(&dir.path().join(RUN)).unwrap(), run);
    // A file of a later version has more, one of an earlier version has less.
    std::fs::write(dir.path().join(RUN), r#"{"command": ["a"], "umask": 7, "colour": "red"}"#).unwrap();
    assert_eq!(files::read::<Run>(&dir.path().join(RUN)).unwrap(), run);
    std::fs::write(dir.path().join(RUN), r#"{"command": ["a"#).unwrap();
    assert!(files::read::<Run>(&dir.path().join(RUN)).is_err());
    assert!(files::read::<Run>(&dir.path().join("missing")).is_err());
    let end = Ended { reason: "of a later version".to_owned(), ..Ended::default() };
    assert_eq!(end.end().reason, None);
}

#[test]
fn one_at_a_time_has_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LOCK);
    let first = lock(&path).unwrap();
    assert!(first.is_some() && lock(&path).unwrap().is_none());
    drop(first);
    assert!(lock(&path).unwrap().is_some());
}

#[test]
fn a_run_that_never_began_is_never_begun() {
    let dir = tempfile::tempdir().unwrap();
    files::write(dir.path(), RUN, &Run { command: vec!["true".to_owned()], ..Run::default() }).unwrap();
    // Its agent was killed before it started the keeper, or while the keeper was starting.
    assert!(matches!(end_left_over(dir.path()).unwrap(), FoundRun::Nothing));
    assert!(matches!(end_left_over(dir.path()).unwrap(), FoundRun::Nothing), "nor is it found again");
    assert!(!dir.path().join(RUN).exists(), "its keeper, however late, has nothing to run");
}

#[test]
fn what_ran_before_a_reboot_is_over() {
    let dir = tempfile::tempdir().unwrap();
    files::write(dir.path(), RUN, &Run { mark: "of-a-test".to_owned(), ..Run::default() }).unwrap();
    // The numbers are those of a process that lives now, in another boot.
    let own = procfs::Process::of(std::process::id()).unwrap();
    let started = Started { pid: own.pid, at_ms: 77, in_group: true };
    let keeper = Keeper {
        pid: own.pid,
        began: own.began,
        boot_id: "of-another-boot".to_owned(),
        started: Some(started),
    };
    files::write(dir.path(), KEEPER, &keeper).unwrap();
    let FoundRun::Over(ended) = end_left_over(dir.path()).unwrap() else { panic!("it is over") };
    assert_eq!((ended.exit_code, ended.reason.as_str(), ended.started_ms), (137, "rebooted", 77));
    assert!(
        matches!(end_left_over(dir.path()).unwrap(), FoundRun::Over(again) if again == ended),
        "written once"
    );
}
