use std::collections::BTreeMap;

use godel_kit::status::{has_reason, reason};
use prost::Message as _;

use super::*;

#[derive(Default)]
struct Fake {
    nodes: BTreeMap<u32, Stored>,
    alive: Vec<u32>,
    /// Instances that others have taken over from.
    displaced: Vec<u64>,
}

impl Fake {
    fn with(mut self, id: u32, name: &str, uid: &str) -> Self {
        let meta = v1::ObjectMeta { name: name.to_owned(), uid: uid.to_owned(), ..v1::ObjectMeta::default() };
        let spec = v1::NodeSpec { node_id: id, meta: Some(meta), ..v1::NodeSpec::default() };
        let report = Some(v1::NodeReport { node_id: id, ready: true, ..v1::NodeReport::default() });
        self.nodes.insert(id, Stored { revision: 7, spec, report, n_live: 0 });
        self
    }

    fn find(&self, wanted: impl Fn(&v1::ObjectMeta) -> bool) -> Option<NodeId> {
        let found = self.nodes.iter().find(|(_, stored)| stored.spec.meta.as_ref().is_some_and(&wanted));
        found.map(|(id, _)| NodeId(*id))
    }
}

impl RoundNodes for Fake {
    fn by_name(&self, name: &str) -> Option<NodeId> {
        self.find(|meta| meta.name == name)
    }
    fn by_uid(&self, uid: &str) -> Option<NodeId> {
        self.find(|meta| meta.uid == uid)
    }
    fn find(&self, asked: &str) -> Result<NodeId, Status> {
        self.by_name(asked).ok_or_else(|| Status::not_found(asked.to_owned()))
    }
    fn stored(&self, node: NodeId) -> Option<Stored> {
        self.nodes.get(&node.0).cloned()
    }
    fn is_alive(&self, node: NodeId) -> bool {
        self.alive.contains(&node.0)
    }
    fn may_speak(&self, _node: NodeId, instance: u64) -> bool {
        !self.displaced.contains(&instance)
    }
    fn next_id(&self) -> NodeId {
        NodeId(self.nodes.keys().last().map_or(1, |last| last + 1))
    }
    fn wall_ms(&self) -> i64 {
        1_000
    }
}

fn registration(name: &str, uid: &str) -> Box<NodeRegistration> {
    Box::new(NodeRegistration {
        name: name.to_owned(),
        uid: uid.to_owned(),
        labels: [].into(),
        owner: String::new(),
        report: v1::NodeReport::default(),
        taints: Vec::new(),
        instance: 0,
        address: "10.0.0.7:1".to_owned(),
    })
}

fn register(name: &str, uid: &str) -> (Job, oneshot::Receiver<Result<v1::RegisterNodeResponse, Status>>) {
    let (reply, answer) = oneshot::channel();
    (Job::Register(registration(name, uid), reply), answer)
}

#[test]
fn new_nodes_share_a_round_and_get_ids_in_order() {
    let fake = Fake::default().with(4, "old", "u-old");
    let mut round = Round::default();
    for (name, uid) in [("a", "1"), ("b", "2")] {
        assert!(round.take(register(name, uid).0, &fake).is_ok());
    }
    assert!(round.take(register("a", "1").0, &fake).is_err(), "a repeated one waits for the first");
    assert!(round.take(register("c", "2").0, &fake).is_err(), "so does one of the same uid");
    assert_eq!((round.role, round.ops.len()), (Some(Role::Agent), 4));
    let ids: Vec<u32> = round
        .answers
        .iter()
        .map(|answer| match answer {
            JobAnswer::Registered(node, _) => node.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, [5, 6]);
}

#[test]
fn a_known_node_writes_only_what_changed() {
    let fake = Fake::default().with(1, "a", "1");
    let mut round = Round::default();
    assert!(round.take(register("a", "1").0, &fake).is_ok());
    assert!(round.ops.is_empty(), "the same report");
    let (reply, _answer) = oneshot::channel();
    let mut changed = registration("a", "1");
    changed.report.attributes.insert("rack".to_owned(), "r1".to_owned());
    assert!(round.take(Job::Register(changed, reply), &fake).is_ok());
    assert_eq!((round.ops.len(), round.answers.len()), (1, 2));
    assert!(!round.change_report(NodeId(1), None, false, &fake), "one change of a node per round");
}

#[test]
fn a_node_is_deleted_only_while_its_lease_is_over() {
    let mut fake = Fake::default().with(1, "a", "1");
    fake.alive = vec![1];
    let delete = |fake: &Fake, leaves| {
        let (reply, mut answer) = oneshot::channel();
        let mut round = Round::default();
        assert!(round.take(Job::Delete { name: "a".to_owned(), leaves, cause: None, reply }, fake).is_ok());
        assert_eq!(round.leaving, Some(NodeId(1)).filter(|_| leaves));
        (round.ops.len(), answer.try_recv().map(|answer| answer.unwrap_err()))
    };
    let forget = |fake: &Fake| {
        let mut round = Round::default();
        assert!(round.take(Job::Forget(NodeId(1)), fake).is_ok());
        round.ops.len()
    };
    assert_eq!(delete(&fake, true).0, 1, "it leaves for good: its agent does not come back");
    assert_eq!(forget(&fake), 0, "it is back");
    let (n_ops, answer) = delete(&fake, false);
    let status = answer.unwrap();
    assert_eq!((n_ops, status.code()), (0, Code::FailedPrecondition));
    assert!(status.message().contains("node a (id 1) is connected: stop its agent"), "{status}");
    fake.alive.clear();
    assert_eq!((delete(&fake, false).0, forget(&fake)), (1, 1));
    fake.nodes.get_mut(&1).unwrap().n_live = 1;
    assert_eq!(forget(&fake), 0, "something runs there");
    fake.nodes.clear();
    assert_eq!(forget(&fake), 0, "it is gone");
    let mut round = Round::default();
    assert!(round.take(register("b", "2").0, &fake).is_ok());
    assert!(round.take(Job::Forget(NodeId(1)), &fake).is_err(), "alone");
}

#[test]
fn another_uid_is_refused_until_the_lease_ends() {
    let mut fake = Fake::default().with(1, "a", "1").with(2, "b", "2");
    fake.alive = vec![1];
    let mut round = Round::default();
    let refused = |round: &mut Round, fake: &Fake, name, uid| {
        let (job, mut answer) = register(name, uid);
        assert!(round.take(job, fake).is_ok());
        let status = answer.try_recv().unwrap().unwrap_err();
        assert!(
            status.code() == Code::AlreadyExists && has_reason(&status, reason::DUPLICATE_NAME),
            "{status}"
        );
    };
    refused(&mut round, &fake, "a", "9");
    refused(&mut round, &fake, "new", "2");
    refused(&mut round, &fake, "b", "1");
    let rival = |uid: &str| Rival {
        kind: RivalKind::OtherInstallation,
        address: "10.0.0.7:1".to_owned(),
        uid: uid.to_owned(),
    };
    assert_eq!(round.rivals, [(NodeId(1), rival("9"))], "the one that lives hears of who wants its name");
    fake.alive.clear();
    assert!(round.take(register("a", "9").0, &fake).is_ok());
    assert_eq!((round.role, round.ops.len()), (Some(Role::Admin), 1));
    assert!(matches!(&round.answers[..], [JobAnswer::Again(Job::Register(..))]));
    // A notice was the old machine's.
    let spec = &mut fake.nodes.get_mut(&2).unwrap().spec;
    (spec.notice, spec.drain) = (Some(v1::NodeNotice::default()), Some(v1::NodeDrain::default()));
    let mut other = Round::default();
    assert!(other.take(register("b", "8").0, &fake).is_ok());
    let meta = v1::ObjectMeta { name: "b".to_owned(), uid: "8".to_owned(), ..v1::ObjectMeta::default() };
    let spec = v1::NodeSpec { node_id: 2, meta: Some(meta), ..v1::NodeSpec::default() };
    assert_eq!(other.ops, [raw::encode_op(v1::op::Op::PutNodeSpec(spec))]);
    assert!(round.take(register("x", "x").0, &fake).is_err(), "another role waits");
}

#[test]
fn a_lost_node_keeps_its_name_while_units_are_bound() {
    let mut fake = Fake::default().with(1, "a", "1");
    fake.nodes.get_mut(&1).unwrap().n_live = 2;
    let mut round = Round::default();
    let (job, mut answer) = register("a", "9");
    assert!(round.take(job, &fake).is_ok());
    let status = answer.try_recv().unwrap().unwrap_err();
    assert!(
        status.code() == Code::FailedPrecondition && has_reason(&status, reason::NODE_IN_USE),
        "{status}"
    );
    assert!(status.message().starts_with("2 running units of another installation of node a"), "{status}");
    assert!(round.is_empty() && round.rivals.is_empty());
    // The installation itself comes back to them.
    assert!(round.take(register("a", "1").0, &fake).is_ok());
    assert!(matches!(&round.answers[..], [JobAnswer::Registered(NodeId(1), _)]));
}

#[test]
fn an_instance_that_was_displaced_stays_out() {
    let mut fake = Fake::default().with(1, "a", "1");
    fake.displaced = vec![7];
    let mut round = Round::default();
    let register_as = |instance| {
        let (reply, answer) = oneshot::channel();
        let mut registration = registration("a", "1");
        registration.instance = instance;
        (Job::Register(registration, reply), answer)
    };
    let (job, mut answer) = register_as(7);
    assert!(round.take(job, &fake).is_ok());
    let status = answer.try_recv().unwrap().unwrap_err();
    assert!(status.code() == Code::AlreadyExists && has_reason(&status, reason::NODE_DISPLACED), "{status}");
    assert_eq!(round.rivals[0].1.kind, RivalKind::SameInstallation);
    assert!(round.take(register_as(8).0, &fake).is_ok());
    assert_eq!(round.answers.len(), 1);
}

#[test]
fn readiness_changes_are_written_once_and_a_deletion_is_alone() {
    let fake = Fake::default().with(1, "a", "1").with(2, "b", "2");
    let mut round = Round::default();
    assert!(round.change_report(NodeId(1), None, true, &fake));
    assert!(round.change_report(NodeId(9), None, true, &fake), "a node that is gone needs nothing");
    assert!(round.ops.is_empty(), "ready already");
    assert!(round.change_report(NodeId(1), None, false, &fake));
    assert_eq!(round.ops.len(), 1);
    let (reply, _answer) = oneshot::channel();
    let delete = Job::Delete { name: "b".to_owned(), leaves: false, cause: None, reply };
    let delete = round.take(delete, &fake).unwrap_err();
    let mut round = Round::default();
    assert!(round.take(delete, &fake).is_ok());
    assert!(!round.change_report(NodeId(1), None, false, &fake));
}

#[test]
fn updates_compare_the_revision() {
    let fake = Fake::default().with(1, "a", "1");
    for (expected_revision, cordoned, n_ops, code) in [
        (0, Some(true), 1, None),
        (7, Some(true), 1, None),
        (7, None, 0, None),
        (6, Some(true), 0, Some(Code::Aborted)),
    ] {
        let mut round = Round::default();
        let (reply, mut answer) = oneshot::channel();
        let name = "a".to_owned();
        let request = v1::UpdateNodeRequest { name, expected_revision, cordoned, ..Default::default() };
        assert!(round.take(Job::Update(Box::new(SpecChange::Update(request)), None, reply), &fake).is_ok());
        assert_eq!(round.ops.len(), n_ops);
        let answered = answer.try_recv().ok();
        assert_eq!(answered.and_then(Result::err).map(|status| status.code()), code);
    }
}

#[test]
fn quarantines_begin_and_end_once() {
    let of = |until_ms| Quarantine { since_ms: 5, until_ms, reason: "why".to_owned() };
    let quarantined = |until_ms| {
        let mut fake = Fake::default().with(1, "a", "u");
        if let Some(until_ms) = until_ms {
            let stored = fake.nodes.get_mut(&1).unwrap();
            stored.spec.quarantine = Some(to_proto::node_quarantine(&of(until_ms)));
        }
        fake
    };
    // As recorded, what is asked for, and whether that changes the record. It is 1,000 now.
    let cases = [
        (None, Some(of(2_000)), true),
        (Some(3_000), Some(of(2_000)), false),
        (Some(1_000), Some(of(2_000)), true),
        (None, None, false),
        (Some(1_001), None, false),
        (Some(1_000), None, true),
    ];
    for (before, asked, changes) in cases {
        let mut round = Round::default();
        let fake = quarantined(before);
        assert!(round.take(Job::Quarantine(NodeId(1), asked.clone()), &fake).is_ok());
        assert_eq!(round.ops.len(), usize::from(changes), "{before:?} {asked:?}");
        if changes {
            assert_eq!(round.role, Some(Role::Admin));
            assert!(round.take(Job::Quarantine(NodeId(1), None), &fake).is_err(), "one change per round");
        }
    }
    let mut round = Round::default();
    assert!(round.take(register("b", "2").0, &quarantined(None)).is_ok());
    assert!(round.take(Job::Quarantine(NodeId(1), Some(of(2_000))), &quarantined(None)).is_err());
    assert!(Round::default().take(Job::Quarantine(NodeId(7), Some(of(2_000))), &quarantined(None)).is_ok());
}

#[test]
fn the_taint_of_failing_units_comes_and_goes_and_a_quarantine_may_end_early() {
    let mut fake = Fake::default().with(1, "a", "u");
    let stored = fake.nodes.get_mut(&1).unwrap();
    let of_admin = v1::Taint { key: "gpu".to_owned(), effect: 1, ..v1::Taint::default() };
    let quarantine = Quarantine { since_ms: 5, until_ms: 9_000, reason: "why".to_owned() };
    stored.spec.taints = vec![of_admin.clone()];
    stored.spec.quarantine = Some(to_proto::node_quarantine(&quarantine));
    let after = |fake: &Fake, job: Job| {
        let mut round = Round::default();
        assert!(round.take(job, fake).is_ok());
        let ops = round.ops.iter().map(|op| v1::Op::decode(op.clone()).unwrap().op.unwrap());
        let specs: Vec<v1::NodeSpec> = ops
            .map(|op| match op {
                v1::op::Op::PutNodeSpec(spec) => spec,
                other => panic!("{other:?}"),
            })
            .collect();
        specs.into_iter().next()
    };
    let lifted = after(&fake, Job::Lift(NodeId(1))).unwrap();
    assert!(lifted.quarantine.is_none() && lifted.taints == [of_admin.clone()], "{lifted:?}");
    assert_eq!(after(&fake, Job::Suspect(NodeId(1), None)), None, "it has none");
    let suspect = after(&fake, Job::Suspect(NodeId(1), Some(TaintEffect::NoSchedule))).unwrap();
    let keys: Vec<&str> = suspect.taints.iter().map(|taint| taint.key.as_str()).collect();
    assert_eq!((keys, suspect.taints[1].added_time_ms), (vec!["gpu", SUSPECT], 1_000));
    fake.nodes.get_mut(&1).unwrap().spec = suspect;
    let softer = after(&fake, Job::Suspect(NodeId(1), Some(TaintEffect::PreferNoSchedule))).unwrap();
    assert_eq!((softer.taints.len(), softer.taints[1].effect()), (2, v1::TaintEffect::PreferNoSchedule));
    assert_eq!(after(&fake, Job::Suspect(NodeId(1), None)).unwrap().taints, [of_admin]);
}

#[test]
fn expired_identity_is_recorded_once_until_it_is_renewed() {
    let mut fake = Fake::default().with(1, "a", "u");
    let after = |fake: &Fake, job: Job| {
        let mut round = Round::default();
        assert!(round.take(job, fake).is_ok());
        let ops = round.ops.iter().map(|op| v1::Op::decode(op.clone()).unwrap().op.unwrap());
        let specs: Vec<v1::op::Op> = ops.collect();
        assert!(specs.is_empty() || round.role == Some(Role::Admin));
        match specs.into_iter().next() {
            Some(v1::op::Op::PutNodeSpec(spec)) => Some(spec),
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(after(&fake, Job::RenewIdentity(NodeId(1))), None);
    let expired = after(&fake, Job::ExpireIdentity(NodeId(1))).unwrap();
    assert_eq!(expired.identity_expired_since_ms, Some(1_000));
    fake.nodes.get_mut(&1).unwrap().spec.identity_expired_since_ms = Some(500);
    assert_eq!(after(&fake, Job::ExpireIdentity(NodeId(1))), None, "since when it has stays");
    let renewed = after(&fake, Job::RenewIdentity(NodeId(1))).unwrap();
    assert_eq!(renewed.identity_expired_since_ms, None);
}
