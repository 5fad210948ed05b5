use super::*;

const ID: &str = "application_1700000000000_0001";

fn unit(cancelled: bool) -> v1::op::Op {
    let meta = v1::ObjectMeta { name: ID.replace('_', "-"), ..v1::ObjectMeta::default() };
    let spec = v1::UnitSpec {
        meta: Some(meta),
        workload_class: v1::WorkloadClass::Yarn.into(),
        queue: QUEUES[1].0.to_owned(),
        ..v1::UnitSpec::default()
    };
    let status = v1::UnitStatus { cancelled, ..v1::UnitStatus::default() };
    v1::op::Op::PutUnit(v1::UnitRecord { unit_id: 7, spec: Some(spec), status: Some(status) })
}

fn group(start: u32, end: u32) -> v1::op::Op {
    let amounts = [(MEMORY.to_owned(), 2 << 30)].into();
    let demand = v1::Demand { requests: Some(v1::Resources { amounts }), ..v1::Demand::default() };
    let template = v1::Template { demand: Some(demand), ..v1::Template::default() };
    v1::op::Op::PutTaskGroup(v1::TaskGroupRecord {
        unit_id: 7,
        task_group: 1,
        group: Some(v1::TaskGroup { template: Some(template), ..v1::TaskGroup::default() }),
        ordinals: Some(v1::OrdinalRanges { ranges: vec![v1::OrdinalRange { start, end }] }),
    })
}

fn bind(ordinals: &[u32]) -> v1::op::Op {
    let ordinals = ordinals.to_vec();
    v1::op::Op::Bind(v1::Binding { unit_id: 7, task_group: 1, ordinals, ..v1::Binding::default() })
}

fn stopped(ordinals: &[u32]) -> v1::op::Op {
    let phases = vec![v1::RunPhase::Stopped.into(); ordinals.len()];
    let ordinals = ordinals.to_vec();
    v1::op::Op::RunStatus(v1::RunStatuses { unit_id: 7, ordinals, phases, ..v1::RunStatuses::default() })
}

fn record(said: Option<v1::YarnFinalStatus>, end: v1::YarnEnd) -> v1::op::Op {
    let said = said.map(Into::into);
    let attempt = v1::YarnAttemptRecord { said, end: end.into(), ..v1::YarnAttemptRecord::default() };
    v1::op::Op::PutYarnApplication(v1::YarnApplication {
        application: ID.to_owned(),
        attempts: vec![attempt],
        ..v1::YarnApplication::default()
    })
}

fn delete() -> v1::op::Op {
    let key = Some(v1::Key { id: 7, ..v1::Key::default() });
    v1::op::Op::Delete(v1::Delete { kind: v1::Kind::Unit.into(), key })
}

fn take(watched: &WatchedApplications, revision: u64, ops: Vec<v1::op::Op>) -> Result<Seen, Status> {
    let ops = ops.into_iter().map(raw::encode_op).collect();
    let commit = raw::Commit { revision, ops, ..raw::Commit::default() };
    watched.take(&v1::WatchResponse { commits: vec![commit], revision })?;
    Ok(watched.seen(ID))
}

#[test]
fn an_application_is_followed_to_its_end() {
    let watched = WatchedApplications::new(4);
    let bell = watched.bell(ID);
    take(&watched, 5, vec![unit(false), group(1, 4)]).unwrap();
    assert_eq!(watched.shares().1, [0, 3, 0]);
    let seen = take(&watched, 6, vec![bind(&[1, 2])]).unwrap();
    assert_eq!((seen.n_bound, seen.n_ended, watched.shares().1[1]), (2, 0, 1));
    assert_eq!(take(&watched, 6, vec![bind(&[1, 2])]).unwrap(), seen, "a repetition");
    // The first one is given back, and two more are asked for: 3, 4 and 5 wait.
    let seen = take(&watched, 7, vec![group(2, 6), stopped(&[0, 1, 3])]).unwrap();
    assert_eq!((seen.n_bound, seen.n_ended), (2, 1));
    assert_eq!(watched.shares().1, [0, 3, 0]);
    // Two that wait are not wanted any more; what is released while it gets a place waits for none.
    take(&watched, 8, vec![group(2, 4), bind(&[5])]).unwrap();
    assert_eq!((watched.shares().1, watched.seen(ID).n_bound), (vec![0, 1, 0], 3));
    assert!(!seen.has_succeeded && seen.over.is_none() && !seen.has_attempt);
    let said = Some(v1::YarnFinalStatus::Succeeded);
    let seen = take(&watched, 9, vec![record(said, v1::YarnEnd::Finished), unit(true)]).unwrap();
    assert!(seen.has_succeeded && seen.over.is_some() && seen.has_attempt);
    assert_eq!(watched.shares().1, [0, 0, 0]);
    take(&watched, 10, vec![stopped(&[2, 5]), delete()]).unwrap();
    let progress = Progress { n_units: 1, n_bound: 3, n_ended: 3, n_succeeded: 1, n_failed: 0 };
    assert_eq!(watched.progress(), progress);
    // It was rung.
    assert!(has_rung(&bell));
}

#[test]
fn what_must_not_be_is_a_fault() {
    let watched = WatchedApplications::new(4);
    take(&watched, 5, vec![unit(false), group(1, 4), bind(&[1])]).unwrap();
    assert!(take(&watched, 6, vec![bind(&[1])]).is_err(), "bound twice");
    let gone = take(&watched, 7, vec![delete()]).unwrap_err();
    assert!(gone.message().contains("has not ended"), "{gone}");
    let seen = take(&watched, 8, vec![record(None, v1::YarnEnd::Finished)]).unwrap();
    assert!(!seen.has_succeeded && watched.progress().n_failed == 1);
    let other = v1::YarnApplication {
        application: "application_1700000000000_0002".to_owned(),
        end: v1::YarnEnd::Killed.into(),
        ..v1::YarnApplication::default()
    };
    take(&watched, 9, vec![v1::op::Op::PutYarnApplication(other)]).unwrap();
    assert_eq!((watched.progress().n_failed, watched.progress().n_succeeded), (2, 0));
}

/// Whether a bell was rung.
fn has_rung(bell: &Notify) -> bool {
    let mut rung = std::pin::pin!(bell.notified());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    rung.as_mut().poll(&mut context).is_ready()
}
