//! QueueService: records of queues and priority classes, one by one and together.

use std::collections::BTreeMap;

use godel_kit::status;
use godel_proto::v1;
use tonic::{Code, Status};

use crate::world::{Process, World, fields, unit};

pub(crate) fn queue(name: &str) -> v1::Queue {
    let meta = v1::ObjectMeta { name: name.to_owned(), ..v1::ObjectMeta::default() };
    v1::Queue { meta: Some(meta), ..v1::Queue::default() }
}

pub(crate) fn amounts(pairs: &[(&str, i64)]) -> Option<v1::Resources> {
    let amounts = pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    Some(v1::Resources { amounts })
}

pub(crate) fn class(name: &str, value: i32) -> v1::PriorityClass {
    v1::PriorityClass { name: name.to_owned(), value, ..v1::PriorityClass::default() }
}

/// A unit with one replica in a queue.
pub(crate) fn unit_in(queue: &str, name: &str) -> v1::UnitSpec {
    v1::UnitSpec { queue: queue.to_owned(), ..unit(name, 1) }
}

impl Process {
    pub(crate) async fn create(&self, queue: v1::Queue) -> Result<v1::CreateQueueResponse, Status> {
        let request = v1::CreateQueueRequest { queue: Some(queue) };
        self.queues().create_queue(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn update(&self, queue: v1::Queue, expected_revision: u64) -> Result<u64, Status> {
        let request = v1::UpdateQueueRequest { queue: Some(queue), expected_revision };
        self.queues().update_queue(request).await.map(|answer| answer.into_inner().revision)
    }

    pub(crate) async fn delete(&self, name: &str, expected_revision: u64) -> Result<u64, Status> {
        let request = v1::DeleteQueueRequest { name: name.to_owned(), expected_revision };
        self.queues().delete_queue(request).await.map(|answer| answer.into_inner().revision)
    }

    pub(crate) async fn queue(&self, name: &str) -> Result<v1::QueueStatus, Status> {
        let request = v1::GetQueueRequest { name: name.to_owned() };
        self.queues().get_queue(request).await.map(|answer| answer.into_inner().queue.unwrap())
    }

    pub(crate) async fn list(&self, page_size: u32) -> (Vec<String>, u32) {
        let (mut names, mut total, mut page_token) = (Vec::new(), None, String::new());
        loop {
            let request = v1::ListQueuesRequest { page_size, page_token };
            let page = self.queues().list_queues(request).await.unwrap().into_inner();
            assert_eq!(*total.get_or_insert(page.total), page.total);
            assert!(page.revision > 0 && page.queues.len() <= page_size as usize);
            names.extend(page.queues.into_iter().map(|one| one.queue.unwrap().meta.unwrap().name));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return (names, total.unwrap());
            }
        }
    }

    pub(crate) async fn apply(
        &self,
        queues: Vec<v1::Queue>,
        priority_classes: Vec<v1::PriorityClass>,
    ) -> Result<v1::ApplyQueuesResponse, Status> {
        let request = v1::ApplyQueuesRequest { queues, priority_classes };
        self.queues().apply_queues(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn try_submit(&self, unit: v1::UnitSpec) -> Result<v1::SubmitUnitResponse, Status> {
        let request = v1::SubmitUnitRequest { unit: Some(unit) };
        self.units().submit_unit(request).await.map(tonic::Response::into_inner)
    }

    async fn create_class(
        &self,
        class: v1::PriorityClass,
    ) -> Result<v1::CreatePriorityClassResponse, Status> {
        let request = v1::CreatePriorityClassRequest { priority_class: Some(class) };
        self.queues().create_priority_class(request).await.map(tonic::Response::into_inner)
    }

    async fn update_class(&self, class: v1::PriorityClass, expected_revision: u64) -> Result<u64, Status> {
        let request = v1::UpdatePriorityClassRequest { priority_class: Some(class), expected_revision };
        self.queues().update_priority_class(request).await.map(|answer| answer.into_inner().revision)
    }

    async fn delete_class(&self, name: &str, expected_revision: u64) -> Result<u64, Status> {
        let request = v1::DeletePriorityClassRequest { name: name.to_owned(), expected_revision };
        self.queues().delete_priority_class(request).await.map(|answer| answer.into_inner().revision)
    }

    async fn class(&self, name: &str) -> Result<v1::PriorityClassStatus, Status> {
        let request = v1::GetPriorityClassRequest { name: name.to_owned() };
        let answer = self.queues().get_priority_class(request).await?;
        Ok(answer.into_inner().priority_class.unwrap())
    }
}

/// Subjects of what is in the way.
fn in_the_way(status: &Status) -> (Code, Vec<String>) {
    (status.code(), status::preconditions_of(status).into_iter().map(|one| one.path).collect())
}

async fn one() -> (World, Process) {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    (world, dispatcher)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_created_shown_changed_and_deleted() {
    let (world, dispatcher) = one().await;
    // It is there without a record.
    let default = dispatcher.queue("default").await.unwrap();
    let meta = default.queue.unwrap().meta.unwrap();
    assert_eq!((meta.name.as_str(), meta.revision, meta.uid.as_str()), ("default", 0, ""));

    let prod =
        v1::Queue { max: amounts(&[("cpu", 4_000)]), min: amounts(&[("cpu", 1_000)]), ..queue("prod") };
    let created = dispatcher.create(prod.clone()).await.unwrap();
    assert!(created.revision > 0 && !created.duplicate && !created.uid.is_empty());
    let shown = dispatcher.queue("prod").await.unwrap();
    let (record, usage) = (shown.queue.unwrap(), shown.usage.unwrap());
    let meta = record.meta.clone().unwrap();
    assert_eq!((meta.create_revision, meta.revision), (created.revision, created.revision));
    assert!(meta.uid == created.uid && meta.create_time_ms > 0);
    assert_eq!((record.weight(), record.policy()), (1, v1::QueuePolicy::Priority));
    assert_eq!(
        (usage.guaranteed, usage.max, usage.used),
        (amounts(&[("cpu", 1_000)]), prod.max.clone(), None)
    );

    // The same again is the first one's answer, with its uid or none.
    let again = dispatcher.create(prod.clone()).await.unwrap();
    assert_eq!((again.duplicate, again.revision, &again.uid), (true, created.revision, &created.uid));
    let mut other_uid = prod.clone();
    other_uid.meta.as_mut().unwrap().uid = uuid::Uuid::now_v7().to_string();
    for other in [other_uid, v1::Queue { weight: Some(7), ..prod.clone() }] {
        let taken = dispatcher.create(other).await.unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists, "{taken:?}");
        assert!(status::has_reason(&taken, status::reason::DUPLICATE_NAME));
    }

    let heavier = v1::Queue { weight: Some(7), policy: v1::QueuePolicy::Fifo.into(), ..prod.clone() };
    let stale = dispatcher.update(heavier.clone(), created.revision + 1_000).await.unwrap_err();
    assert!(stale.code() == Code::Aborted && status::has_reason(&stale, status::reason::REVISION_MISMATCH));
    assert_eq!(status::metadata_of(&stale, "revision"), Some(created.revision.to_string()));
    let updated = dispatcher.update(heavier.clone(), created.revision).await.unwrap();
    assert!(updated > created.revision);
    // Repeated by somebody who did not hear the answer.
    assert_eq!(dispatcher.update(heavier, created.revision).await.unwrap(), updated);
    let meta = dispatcher.queue("prod").await.unwrap().queue.unwrap().meta.unwrap();
    assert_eq!((meta.create_revision, meta.revision, meta.uid), (created.revision, updated, created.uid));

    dispatcher.create(queue("prod.search")).await.unwrap();
    dispatcher.create(queue("prod.index")).await.unwrap();
    for page_size in [1, 2, 3, 500] {
        let expect = ["default", "prod", "prod.index", "prod.search"].map(str::to_owned);
        assert_eq!(dispatcher.list(page_size).await, (expect.to_vec(), 4));
    }
    let stale = dispatcher.delete("prod.index", 1).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    let gone = dispatcher.delete("prod.index", 0).await.unwrap();
    assert!(gone > updated);
    assert_eq!(dispatcher.queue("prod.index").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(dispatcher.delete("prod.index", 0).await.unwrap_err().code(), Code::NotFound);
    // A record of `default` comes and goes, whoever names it.
    dispatcher.submit(unit("web", 1)).await;
    dispatcher.create(v1::Queue { weight: Some(3), ..queue("default") }).await.unwrap();
    assert_eq!(dispatcher.list(500).await.1, 3);
    dispatcher.delete("default", 0).await.unwrap();
    assert_eq!(dispatcher.queue("default").await.unwrap().queue.unwrap().weight(), 1);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_wrong_with_a_queue_is_named_at_once() {
    let (world, dispatcher) = one().await;
    let mut bad = v1::Queue {
        min: amounts(&[("cpu", 2), ("memory", -1)]),
        max: amounts(&[("cpu", 1)]),
        weight: Some(2_000_000),
        policy: 99,
        submit_owners: vec![String::new()],
        ..queue("Prod")
    };
    bad.meta.as_mut().unwrap().namespace = "default".into();
    bad.meta.as_mut().unwrap().uid = "x".into();
    let refused = dispatcher.create(bad).await.unwrap_err();
    let expect = [
        "meta.namespace",
        "policy",
        "meta.name",
        "meta.uid",
        "min[\"cpu\"]",
        "min[\"memory\"]",
        "submit_owners[0]",
        "weight",
    ];
    let (code, mut named) = fields(&refused);
    named.sort();
    let mut expect = expect.map(str::to_owned);
    expect.sort();
    assert_eq!((code, named), (Code::InvalidArgument, expect.to_vec()));

    let none = dispatcher.queues().create_queue(v1::CreateQueueRequest { queue: None }).await.unwrap_err();
    assert_eq!(fields(&none), (Code::InvalidArgument, vec!["queue".to_owned()]));
    let none = dispatcher.queues().update_queue(v1::UpdateQueueRequest::default()).await.unwrap_err();
    assert_eq!(fields(&none).1, ["queue"]);
    assert_eq!(fields(&dispatcher.delete("", 0).await.unwrap_err()).1, ["name"]);
    assert_eq!(fields(&dispatcher.queue("").await.unwrap_err()).1, ["name"]);
    assert_eq!(dispatcher.update(queue("none"), 0).await.unwrap_err().code(), Code::NotFound);
    let list = v1::ListQueuesRequest { page_size: 1_001, page_token: "x".into() };
    let refused = dispatcher.queues().list_queues(list).await.unwrap_err();
    assert_eq!(fields(&refused), (Code::InvalidArgument, vec!["page_size".into(), "page_token".into()]));
    let list = v1::ListPriorityClassesRequest { page_size: 1_001, page_token: "x".into() };
    let refused = dispatcher.queues().list_priority_classes(list).await.unwrap_err();
    assert_eq!(fields(&refused).1, ["page_size", "page_token"]);

    // Nothing may be below `default`, nor below what does not exist.
    let refused = dispatcher.create(queue("default.a")).await.unwrap_err();
    assert_eq!(fields(&refused), (Code::InvalidArgument, vec!["meta.name".to_owned()]));
    let refused = dispatcher.create(queue("none.a")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("no queue `none`")), (Code::NotFound, true));
    // Guarantees add up.
    dispatcher.create(v1::Queue { max: amounts(&[("cpu", 10)]), ..queue("prod") }).await.unwrap();
    dispatcher.create(v1::Queue { min: amounts(&[("cpu", 8)]), ..queue("prod.a") }).await.unwrap();
    let more = v1::Queue { min: amounts(&[("cpu", 3)]), ..queue("prod.b") };
    assert_eq!(fields(&dispatcher.create(more).await.unwrap_err()).1, ["min[\"cpu\"]"]);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_use_stays() {
    let (world, dispatcher) = one().await;
    for name in ["prod", "prod.search"] {
        dispatcher.create(queue(name)).await.unwrap();
    }
    let refused = dispatcher.delete("prod", 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("prod.search"), "{refused:?}");
    for number in 0..12 {
        dispatcher.submit(unit_in("prod.search", &format!("u{number:02}"))).await;
    }
    let refused = dispatcher.delete("prod.search", 0).await.unwrap_err();
    assert_eq!(in_the_way(&refused), (Code::FailedPrecondition, vec!["name".to_owned()]));
    assert!(refused.message().contains("default/u00, "), "{refused:?}");
    assert!(refused.message().ends_with("default/u09 and 2 more"), "{refused:?}");
    // A queue with units of its own gets none below it.
    let refused = dispatcher.create(queue("prod.search.a")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("default/u00"), "{refused:?}");

    dispatcher.create_class(class("gold", 7)).await.unwrap();
    dispatcher.submit(v1::UnitSpec { priority_class: "gold".into(), ..unit("web", 1) }).await;
    let refused = dispatcher.delete_class("gold", 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("default/web"), "{refused:?}");
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priority_classes_live_beside_those_built_in() {
    let (world, dispatcher) = one().await;
    let built_in = dispatcher.class("system").await.unwrap();
    assert!(built_in.built_in && built_in.revision == 0);
    assert_eq!(built_in.priority_class.unwrap().value, 1_000_000_000);
    let created = dispatcher.create_class(class("gold", 7)).await.unwrap();
    assert!(!created.duplicate && created.revision > 0);
    assert!(dispatcher.create_class(class("gold", 7)).await.unwrap().duplicate);
    for taken in [class("gold", 8), class("online", 1_000_000), class("online", 3)] {
        let refused = dispatcher.create_class(taken).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused:?}");
    }
    assert_eq!(dispatcher.update_class(class("gold", 8), 1).await.unwrap_err().code(), Code::Aborted);
    let updated = dispatcher.update_class(class("gold", 8), created.revision).await.unwrap();
    let shown = dispatcher.class("gold").await.unwrap();
    assert_eq!((shown.create_revision, shown.revision), (created.revision, updated));
    assert!(!shown.built_in && shown.create_time_ms > 0);
    for (refused, code) in [
        (dispatcher.update_class(class("none", 1), 0).await.unwrap_err(), Code::NotFound),
        (dispatcher.update_class(class("batch", 1), 0).await.unwrap_err(), Code::FailedPrecondition),
        (dispatcher.update_class(class("gold", i32::MAX), 0).await.unwrap_err(), Code::InvalidArgument),
        (dispatcher.create_class(class("Gold", 1)).await.unwrap_err(), Code::InvalidArgument),
        (dispatcher.delete_class("batch", 0).await.unwrap_err(), Code::FailedPrecondition),
        (dispatcher.delete_class("none", 0).await.unwrap_err(), Code::NotFound),
        (dispatcher.delete_class("", 0).await.unwrap_err(), Code::InvalidArgument),
        (dispatcher.delete_class("gold", 1).await.unwrap_err(), Code::Aborted),
        (dispatcher.class("none").await.unwrap_err(), Code::NotFound),
        (dispatcher.class("").await.unwrap_err(), Code::InvalidArgument),
    ] {
        assert_eq!(refused.code(), code, "{refused:?}");
    }
    let none = v1::CreatePriorityClassRequest { priority_class: None };
    let none = dispatcher.queues().create_priority_class(none).await.unwrap_err();
    assert_eq!(fields(&none).1, ["priority_class"]);
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListPriorityClassesRequest { page_size: 2, page_token };
        let page = dispatcher.queues().list_priority_classes(request).await.unwrap().into_inner();
        assert_eq!(page.total, 5);
        names.extend(page.priority_classes.into_iter().map(|one| one.priority_class.unwrap().name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["batch", "best-effort", "gold", "online", "system"]);
    dispatcher.delete_class("gold", updated).await.unwrap();
    assert_eq!(dispatcher.class("gold").await.unwrap_err().code(), Code::NotFound);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_applied_together_or_not_at_all() {
    let (world, dispatcher) = one().await;
    use v1::ApplyOutcome::{Created, Unchanged, Updated};
    let outcomes = |numbers: &[i32]| -> Vec<v1::ApplyOutcome> {
        numbers.iter().map(|number| v1::ApplyOutcome::try_from(*number).unwrap()).collect()
    };
    // Parents may come behind their children.
    let tree = vec![queue("prod.search"), queue("prod"), queue("dev")];
    let applied = dispatcher.apply(tree.clone(), vec![class("gold", 7)]).await.unwrap();
    assert_eq!(outcomes(&applied.queues), [Created, Created, Created]);
    assert_eq!(outcomes(&applied.priority_classes), [Created]);
    let revisions: BTreeMap<String, u64> = {
        let mut revisions = BTreeMap::new();
        for name in ["prod", "prod.search", "dev"] {
            let meta = dispatcher.queue(name).await.unwrap().queue.unwrap().meta.unwrap();
            assert!(!meta.uid.is_empty());
            revisions.insert(name.to_owned(), meta.revision);
        }
        revisions
    };
    assert!(revisions.values().all(|revision| *revision == applied.revision), "{revisions:?}");
    let again = dispatcher.apply(tree, vec![class("gold", 7)]).await.unwrap();
    assert_eq!(outcomes(&again.queues), [Unchanged, Unchanged, Unchanged]);
    assert_eq!(outcomes(&again.priority_classes), [Unchanged]);
    let some = vec![queue("dev"), v1::Queue { weight: Some(2), ..queue("prod") }, queue("lab")];
    let some = dispatcher.apply(some, Vec::new()).await.unwrap();
    assert_eq!(outcomes(&some.queues), [Unchanged, Updated, Created]);
    assert!(some.revision > applied.revision);
    let dev = dispatcher.queue("dev").await.unwrap().queue.unwrap().meta.unwrap();
    assert_eq!(dev.revision, applied.revision, "what is as given is not written");

    // One that can never be valid: nothing of it, and each violation by its path.
    let before = dispatcher.list(500).await;
    let bad = v1::Queue { min: amounts(&[("cpu", -1)]), policy: 99, ..queue("b") };
    let with_bad = vec![queue("a"), bad, queue("none.c"), queue("a")];
    let refused = dispatcher.apply(with_bad, vec![class("Silver", 1)]).await.unwrap_err();
    let expect = [
        "queues[1].policy",
        "queues[1].min[\"cpu\"]",
        "queues[2].meta.name",
        "queues[3].meta.name",
        "priority_classes[0].name",
    ];
    assert_eq!(fields(&refused), (Code::InvalidArgument, expect.map(str::to_owned).to_vec()));
    // One that has to wait for something.
    let refused = dispatcher.apply(vec![queue("a"), queue("none.c")], Vec::new()).await.unwrap_err();
    assert_eq!(in_the_way(&refused), (Code::FailedPrecondition, vec!["queues[1].meta.name".to_owned()]));
    assert_eq!(dispatcher.list(500).await, before);
    for n in [0, 1_001] {
        let many = (0..n).map(|number| queue(&format!("q{number}"))).collect();
        assert_eq!(fields(&dispatcher.apply(many, Vec::new()).await.unwrap_err()).1, ["queues"]);
    }
    // As many as are taken, at once.
    let many = (0..1_000).map(|number| queue(&format!("q{number}"))).collect();
    dispatcher.apply(many, Vec::new()).await.unwrap();
    assert_eq!(dispatcher.list(1_000).await.1, 1_005);
    // Too large for one transaction, though not for a message.
    let owners: Vec<String> = (0..1_000).map(|number| format!("{number:0250}")).collect();
    let owned = |n: usize| v1::Queue { submit_owners: owners[..n].to_vec(), ..queue(&format!("l{n}")) };
    let large = [1_000, 999, 998, 997, 146].map(owned).to_vec();
    let refused = dispatcher.apply(large, Vec::new()).await.unwrap_err();
    assert_eq!(fields(&refused), (Code::InvalidArgument, vec!["queues".to_owned()]), "{refused:?}");
    assert_eq!(dispatcher.list(1_000).await.1, 1_005);
    world.end([dispatcher]).await;
}

/// An answer with many long violations still reaches its client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_bounded() {
    let (world, dispatcher) = one().await;
    let bad = |number: usize| v1::Queue {
        weight: Some(u32::MAX),
        min: amounts(&[("cpu", -1), ("memory", -1), (&"x".repeat(500), 1)]),
        ..queue(&format!("Q{number}"))
    };
    let refused = dispatcher.apply((0..1_000).map(bad).collect(), Vec::new()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let violations = status::violations_of(&refused);
    let last = violations.last().unwrap();
    assert!(violations.len() > 3 && last.description.ends_with("more violations are not shown"), "{last:?}");
    world.end([dispatcher]).await;
}
