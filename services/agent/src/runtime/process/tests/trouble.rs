//! Keepers and runs of a node whose disk is full, whose directory is lost, or whose keepers do not listen.

use super::{super::left, *};

/// A directory on a file system of its own that is full; `None`, said in the output of the test, where none can be mounted.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let status = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
            .arg(dir.path())
            .stderr(std::process::Stdio::null())
            .status();
        let is_mounted = status.is_ok_and(|status| status.success());
        if !is_mounted {
            skip("this test may not mount a file system");
        }
        is_mounted.then_some(Self(dir))
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.path().join("fill")).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.path().join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn node_on(disk: &SmallDisk) -> Node {
    let dir = tempfile::tempdir_in(disk.0.path()).unwrap();
    let home = home(Some(dir.path()), false);
    Node::with(dir, home)
}

#[tokio::test]
async fn what_ends_on_a_full_disk_has_ended_and_nothing_starts_there() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut node = node_on(&disk);
    let outside = tempfile::tempdir().unwrap();
    let (go, runs) = (outside.path().join("go"), outside.path().join("runs"));
    let script = format!(
        "echo ran >> {}; while ! test -e {}; do sleep 0.01; done; exit 0",
        runs.display(),
        go.display()
    );
    node.start(run(0, 0), shell(&script, ""));
    node.started(run(0, 0)).await;
    node.home.renew_contact(0);
    disk.fill();
    node.start(run(1, 0), shell("true", ""));
    assert_eq!(node.refused(run(1, 0)).await, AssignmentRefusal::Disk);
    assert!(node.home.trouble().contains("cannot be written"), "{}", node.home.trouble());
    node.home.renew_contact(5_000);
    let age = crate::keeper::contact_age_ms(&node.dir.path().join("contact"));
    assert!(age.is_some_and(|age| age >= 5_000), "contact is noted all the same: {age:?}");
    std::fs::write(&go, "").unwrap();
    assert_eq!(node.ended(run(0, 0)).await, (0, Some(RunEndReason::Exited)));
    // And the end of one that is found by the next agent.
    let end = node.dir.path().join("runs/1-0-0.0").join(END);
    assert!(end.exists(), "{end:?}");
    let node = node.restarted(false);
    let found = left::find(Arc::clone(&node.home)).await.unwrap();
    assert!(found.len() == 1 && !found[0].goes_on(), "{found:?}");
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "ran\n", "it ran once");
    disk.empty();
    assert_eq!(node.home.trouble(), "", "it comes back by itself");
}

#[tokio::test]
async fn a_keeper_that_was_stopped_does_not_keep_its_run() {
    let mut node = Node::new(false);
    let mark = mark("stopped-keeper");
    node.start(run(0, 0), shell(&format!("trap '' TERM; {ESCAPES} while :; do sleep 1000; done"), &mark));
    node.started(run(0, 0)).await;
    wait_until("all of it runs", || n_marked(&mark) == N_ESCAPED + 2).await;
    let keeper = node.keeper_of("1-0-0.0").process();
    keeper.signal(Signal::STOP);
    assert!(node.processes.stop(run(0, 0), Duration::ZERO, Told));
    assert_eq!(node.ended(run(0, 0)).await, (137, Some(Told)), "it goes on for its agent");
    // One that does not go on is ended with all that it keeps.
    node.start(run(0, 1), shell(&format!("trap '' TERM; {ESCAPES} while :; do sleep 1000; done"), &mark));
    node.started(run(0, 1)).await;
    wait_until("all of it runs", || n_marked(&mark) == N_ESCAPED + 2).await;
    let keeper = node.keeper_of("1-0-1.0").process();
    keeper.signal(Signal::STOP);
    keeper::end_for_keeper(keeper, None);
    assert_eq!(node.ended(run(0, 1)).await, (137, Some(RunEndReason::Lost)));
    assert_eq!(n_marked(&mark), 0);
}

fn owned(dir: &Path, uid: &str, claim: Option<DirClaim>) -> Arc<Home> {
    let config = Config { state_dir: Some(dir.to_owned()), ..Config::default() };
    let home = Home::open(&config, "n", keeper(), |_| None).unwrap();
    Arc::new(home.owned_by(uid, claim.map(Arc::new)))
}

#[tokio::test]
async fn what_runs_of_a_directory_that_was_removed_is_ended_by_the_next_agent() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("state");
    let claim = DirClaim::take(&dir).unwrap();
    let mut node = Node::with(parent, owned(&dir, "first", Some(claim)));
    let mark = mark("removed");
    node.start(run(0, 0), shell(&format!("{ESCAPES} env -i sleep 1000"), &mark));
    node.started(run(0, 0)).await;
    wait_until("all of it runs", || n_marked(&mark) > N_ESCAPED).await;
    std::fs::remove_dir_all(&dir).unwrap();
    let work = RunWork::Program(Box::new(shell("true", "")));
    let started = node.processes.start(run(1, 0), &work, 0, 0, Millis(0));
    let Some(Event::Ended { ended: HowEnded { refused, .. }, .. }) = started else { panic!("{started:?}") };
    assert_eq!(refused, Some(AssignmentRefusal::Disk), "nothing starts without it");
    assert!(node.home.trouble().contains("was removed"), "{}", node.home.trouble());
    let Node { dir: parent, processes, events, home } = node;
    drop((processes, events, home));
    wait_until("the agent is gone", || DirClaim::take(&dir).is_ok()).await;
    // The next agent finds neither an identity nor a directory of the run.
    let home = owned(&dir, "second", Some(DirClaim::take(&dir).unwrap()));
    assert!(left::find(home).await.unwrap().is_empty());
    assert_eq!(n_marked(&mark), 0);
    drop(parent);
}

#[tokio::test]
async fn what_runs_of_a_directory_that_was_copied_is_ended_by_the_agent_of_the_copy() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, copy) = (parent.path().join("state"), parent.path().join("copy"));
    let uid = uuid::Uuid::new_v4().to_string();
    let mut node = Node::with(parent, owned(&dir, &uid, Some(DirClaim::take(&dir).unwrap())));
    let mark = mark("copied");
    for ordinal in 0..2 {
        node.start(run(ordinal, 0), shell("sleep 1000", &mark));
        node.started(run(ordinal, 0)).await;
    }
    let copied = std::process::Command::new("cp").arg("-a").arg(&dir).arg(&copy).status().unwrap();
    assert!(copied.success());
    // One run is in the copy, of the other one it knows nothing.
    std::fs::remove_dir_all(copy.join("runs/1-1-0.0")).unwrap();
    let Node { dir: parent, processes, events, home } = node;
    drop((processes, events, home));
    let found = left::find(owned(&copy, &uid, None)).await.unwrap();
    assert!(found.iter().all(|left| !left.goes_on()), "{found:?}");
    assert_eq!(n_marked(&mark), 0, "of no replica a second process can be started beside it");
    drop(parent);
}
