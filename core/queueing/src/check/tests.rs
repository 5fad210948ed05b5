use proptest::{collection::vec, prelude::*};

use super::*;

fn amounts(pairs: &[(&str, i64)]) -> NamedAmounts {
    pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
}

fn queue(path: &str, min: &[(&str, i64)], max: &[(&str, i64)]) -> QueueSpec {
    QueueSpec { min: amounts(min), max: amounts(max), ..QueueSpec::new(path) }
}

fn tree(queues: &[QueueSpec]) -> QueueTree {
    let mut tree = QueueTree::default();
    for queue in queues {
        tree.put(Arc::new(queue.clone()));
    }
    tree
}

fn put(spec: QueueSpec) -> QueueChange {
    RecordChange::Put(Arc::new(spec))
}

fn nobody(_: &str) -> Users {
    Users::default()
}

/// Ground and field of each violation.
fn found(tree: &QueueTree, changes: &[QueueChange], users: &dyn Fn(&str) -> Users) -> Vec<(Ground, String)> {
    let violations = queues(tree, changes, users).err().unwrap_or_default();
    violations.into_iter().map(|one| (one.ground, one.field)).collect()
}

#[test]
fn every_field_is_checked_and_all_are_named_at_once() {
    type Case = (&'static str, fn(&mut QueueSpec), &'static [&'static str]);
    let cases: [Case; 16] = [
        ("sound", |_| {}, &[]),
        ("name", |spec| spec.name = "Prod".into(), &["meta.name"]),
        ("empty name", |spec| spec.name = String::new(), &["meta.name"]),
        ("grammar", |spec| spec.name = "a/b".into(), &["meta.name"]),
        ("owner", |spec| spec.owner = "a\nb".into(), &["meta.owner"]),
        (
            "labels",
            |spec| spec.labels = [("a b".to_owned(), "\t".to_owned())].into(),
            &["meta.labels[\"a b\"]"; 2],
        ),
        ("resource", |spec| spec.max = amounts(&[("a b", 1)]), &["max[\"a b\"]"]),
        ("negative", |spec| spec.min = amounts(&[("cpu", -1)]), &["min[\"cpu\"]"]),
        ("too much", |spec| spec.max = amounts(&[("cpu", i64::MAX)]), &["max[\"cpu\"]"]),
        (
            "min above max",
            |spec| {
                (spec.min, spec.max) =
                    (amounts(&[("cpu", 2), ("gpu", 1)]), amounts(&[("cpu", 1), ("gpu", 0)]))
            },
            &["min[\"cpu\"]", "min[\"gpu\"]"],
        ),
        ("no weight", |spec| spec.weight = 0, &["weight"]),
        ("weight", |spec| spec.weight = WEIGHT_MAX + 1, &["weight"]),
        (
            "weights of owners",
            |spec| {
                let weights = [("a", 0), ("b", WEIGHT_MAX + 1), ("c", 1), ("d\n", 2)];
                spec.owner_weights = weights.map(|(owner, weight)| (owner.to_owned(), weight)).into();
            },
            &["owner_weights[\"a\"]", "owner_weights[\"b\"]", "owner_weights[\"d\\n\"]"],
        ),
        (
            "limits of owners",
            |spec| spec.max_per_owner = amounts(&[("cpu", -1), ("a b", 1)]),
            &["max_per_owner[\"a b\"]", "max_per_owner[\"cpu\"]"],
        ),
        ("share of masters", |spec| spec.am_share_milli = 1_001, &["am_share_milli"]),
        (
            "several",
            |spec| {
                spec.submit_owners = vec!["a".into(), String::new()];
                spec.weight = 0;
                spec.owner = "\0".into();
            },
            &["meta.owner", "weight", "submit_owners[1]"],
        ),
    ];
    for (name, change, fields) in cases {
        let mut spec = queue("prod", &[("cpu", 5)], &[("cpu", 5)]);
        change(&mut spec);
        let expected: Vec<_> = fields.iter().map(|field| (Ground::Invalid, (*field).to_owned())).collect();
        assert_eq!(found(&tree(&[]), &[put(spec)], &nobody), expected, "{name}");
    }
}

#[test]
fn a_queue_has_only_so_many_labels_and_owners() {
    let names = |n: usize| (0..n).map(|idx| format!("x{idx}"));
    let with = |n_labels: usize, n_owners: usize| QueueSpec {
        labels: names(n_labels).map(|name| (name, String::new())).collect(),
        submit_owners: names(n_owners).collect(),
        owner_weights: names(n_owners).map(|name| (name, 1)).collect(),
        ..QueueSpec::new("prod")
    };
    for (n_labels, n_owners, fields) in [
        (ENTRIES_MAX, N_OWNERS_MAX, vec![]),
        (ENTRIES_MAX + 1, N_OWNERS_MAX, vec!["meta.labels"]),
        (ENTRIES_MAX, N_OWNERS_MAX + 1, vec!["submit_owners", "owner_weights"]),
        (ENTRIES_MAX + 2, N_OWNERS_MAX + 2, vec!["meta.labels", "submit_owners", "owner_weights"]),
    ] {
        let expected: Vec<_> = fields.into_iter().map(|field| (Ground::Invalid, field.to_owned())).collect();
        assert_eq!(found(&tree(&[]), &[put(with(n_labels, n_owners))], &nobody), expected);
    }
}

#[test]
fn masters_get_a_share_of_a_maximum_only() {
    let mut spec = QueueSpec { am_share_milli: 100, ..queue("prod", &[], &[]) };
    let expected = [(Ground::Invalid, "am_share_milli".to_owned())];
    assert_eq!(found(&tree(&[]), &[put(spec.clone())], &nobody), expected);
    spec.max = amounts(&[("cpu", 1)]);
    assert_eq!(found(&tree(&[]), &[put(spec)], &nobody), []);
}

#[test]
fn a_guarantee_and_a_maximum_name_only_so_many_resources() {
    let named = |n: usize| (0..n).map(|idx| (format!("r{idx}"), 1)).collect();
    for (n_min, n_max, fields) in [
        (N_NAMES_MAX, N_NAMES_MAX, vec![]),
        (N_NAMES_MAX + 1, N_NAMES_MAX, vec!["min"]),
        (N_NAMES_MAX, N_NAMES_MAX + 1, vec!["max"]),
        (N_NAMES_MAX + 2, N_NAMES_MAX + 2, vec!["min", "max"]),
    ] {
        let spec = QueueSpec { min: named(n_min), max: named(n_max), ..QueueSpec::new("prod") };
        let expected: Vec<_> = fields.into_iter().map(|field| (Ground::Invalid, field.to_owned())).collect();
        assert_eq!(found(&tree(&[]), &[put(spec)], &nobody), expected);
    }
}

#[test]
fn records_exist_or_do_not() {
    let tree = tree(&[queue("prod", &[], &[])]);
    let spec = |path: &str| Arc::new(QueueSpec::new(path));
    let cases: [(QueueChange, Vec<(Ground, String)>); 10] = [
        (RecordChange::Create(spec("new")), vec![]),
        (RecordChange::Create(spec("prod")), vec![(Ground::AlreadyExists, "meta.name".into())]),
        (RecordChange::Update(spec("prod")), vec![]),
        (RecordChange::Update(spec("new")), vec![(Ground::NotFound, "meta.name".into())]),
        (RecordChange::Create(spec("default")), vec![]),
        (RecordChange::Update(spec("default")), vec![(Ground::NotFound, "meta.name".into())]),
        (RecordChange::Delete("prod".into()), vec![]),
        (RecordChange::Delete("default".into()), vec![(Ground::NotFound, "name".into())]),
        (RecordChange::Put(spec("default.child")), vec![(Ground::Invalid, "meta.name".into())]),
        (RecordChange::Put(spec("no.parent")), vec![(Ground::NotFound, "meta.name".into())]),
    ];
    for (change, expected) in cases {
        assert_eq!(found(&tree, std::slice::from_ref(&change), &nobody), expected, "{change:?}");
    }
}

#[test]
fn queues_in_use_keep_their_place() {
    let tree = tree(&["a", "a.b", "c", "default"].map(QueueSpec::new));
    let users = |path: &str| match path {
        "c" | "a.b" | "default" => Users { n: 12, first: vec!["u1".into(), "u2".into()] },
        _ => Users::default(),
    };
    let words = |change: QueueChange| {
        let violations = queues(&tree, &[change], &users).unwrap_err();
        violations.into_iter().map(|one| one.description).collect::<Vec<_>>()
    };
    assert_eq!(words(put(QueueSpec::new("c.d"))), ["queue `c` has units of its own: u1, u2 and 10 more"]);
    assert_eq!(words(RecordChange::Delete("c".into())), ["units name it: u1, u2 and 10 more"]);
    assert_eq!(words(RecordChange::Delete("a".into())), ["queues are below it: a.b"]);
    assert_eq!(queues(&tree, &[RecordChange::Delete("default".into())], &users), Ok(()));
    assert_eq!(queues(&tree, &[put(QueueSpec::new("a.d")), put(QueueSpec::new("c"))], &users), Ok(()));
}

#[test]
fn changes_are_checked_together() {
    let tree = tree(&["old", "old.child"].map(QueueSpec::new));
    let delete = |path: &str| QueueChange::Delete(path.into());
    assert_eq!(queues(&tree, &[delete("old"), delete("old.child")], &nobody), Ok(()));
    let children_first = ["a.b.c", "a.b", "a"].map(|path| put(QueueSpec::new(path)));
    assert_eq!(queues(&tree, &children_first, &nobody), Ok(()));
    let state = (Ground::State, "name".to_owned());
    let changes = [delete("old"), delete("old.child"), put(QueueSpec::new("old.new"))];
    assert_eq!(found(&tree, &changes, &nobody), [state, (Ground::NotFound, "meta.name".into())]);
    let twice = [put(QueueSpec::new("a")), put(QueueSpec::new("a"))];
    assert_eq!(found(&tree, &twice, &nobody), [(Ground::Invalid, "meta.name".to_owned())]);
    assert_eq!(queues(&tree, &twice, &nobody).unwrap_err()[0].change, 1);
}

#[test]
fn guarantees_add_up() {
    let tree = tree(&[
        queue("a", &[("cpu", 10)], &[("gpu", 8)]),
        queue("a.b", &[], &[]),
        queue("a.b.c", &[("cpu", 6), ("gpu", 4)], &[]),
    ]);
    type Case<'a> = (&'a str, Vec<QueueSpec>, &'a [(usize, &'a str)]);
    let cases: [Case<'_>; 9] = [
        ("just fits", vec![queue("a.d", &[("cpu", 4), ("gpu", 4)], &[])], &[]),
        ("with its siblings", vec![queue("a.d", &[("cpu", 5)], &[])], &[(0, "min[\"cpu\"]")]),
        ("above a maximum", vec![queue("a.d", &[("gpu", 5)], &[])], &[(0, "min[\"gpu\"]")]),
        ("two levels below", vec![queue("a.b.e", &[("cpu", 5)], &[])], &[(0, "min[\"cpu\"]")]),
        ("less than below", vec![queue("a", &[("cpu", 5)], &[])], &[(0, "min[\"cpu\"]")]),
        ("maximum below guarantees", vec![queue("a.b", &[], &[("cpu", 5)])], &[(0, "max[\"cpu\"]")]),
        ("one gives way", vec![queue("a.b.c", &[("cpu", 1)], &[]), queue("a.d", &[("cpu", 9)], &[])], &[]),
        (
            "the parent says so itself",
            vec![queue("a", &[("cpu", 7)], &[]), queue("a.d", &[("cpu", 2)], &[])],
            &[(0, "min[\"cpu\"]")],
        ),
        ("parent first", vec![queue("a", &[("cpu", 99)], &[]), queue("a.d", &[("cpu", 93)], &[])], &[]),
    ];
    for (name, specs, expected) in cases {
        let changes: Vec<QueueChange> = specs.into_iter().map(put).collect();
        let violations = queues(&tree, &changes, &nobody).err().unwrap_or_default();
        let found: Vec<(usize, &str)> =
            violations.iter().map(|one| (one.change, one.field.as_str())).collect();
        assert_eq!(found, expected, "{name}: {violations:?}");
    }
    // What was wrong before does not stand in the way of what has nothing to do with it.
    let mut wrong = tree.clone();
    wrong.put(Arc::new(queue("a", &[("cpu", 1)], &[])));
    assert_eq!(queues(&wrong, &[put(queue("a.d", &[], &[("cpu", 1)]))], &nobody), Ok(()));
    let as_it_was = queue("a.b.c", &[("cpu", 6), ("gpu", 4)], &[]);
    assert_eq!(queues(&wrong, &[put(as_it_was)], &nobody), Ok(()));
}

#[test]
fn only_so_many_queues_are_kept() {
    let mut tree = QueueTree::default();
    for idx in 1..N_QUEUES_MAX {
        tree.put(Arc::new(QueueSpec::new(format!("q{idx}"))));
    }
    let [one, two, three] = ["a", "b", "c"].map(|path| put(QueueSpec::new(path)));
    let too_many = [(Ground::State, "meta.name".to_owned())];
    assert_eq!(found(&tree, std::slice::from_ref(&one), &nobody), [], "the last one");
    assert_eq!(found(&tree, &[one.clone(), two.clone()], &nobody), too_many);
    assert_eq!(found(&tree, &[one.clone(), two, three], &nobody), too_many);
    tree.put(Arc::new(QueueSpec::new("z")));
    assert_eq!(found(&tree, &[one], &nobody), too_many);
    assert_eq!(found(&tree, &[put(QueueSpec::new("z"))], &nobody), [], "it is there");
}

#[test]
fn priority_classes_are_checked() {
    let class = |name: &str, value: i32| PriorityClass {
        name: name.to_owned(),
        value,
        preemptible: true,
        description: String::new(),
    };
    let mut known = PriorityClasses::default();
    known.put(class("gold", 7));
    known.put(class("used", 7));
    let users = |name: &str| Users { n: usize::from(name == "used"), first: vec!["u".to_owned()] };
    let cases: [(ClassChange, &[(Ground, &str)]); 11] = [
        (RecordChange::Create(class("new", 5)), &[]),
        (RecordChange::Create(class("gold", 5)), &[(Ground::AlreadyExists, "name")]),
        (RecordChange::Create(class("online", 5)), &[(Ground::AlreadyExists, "name")]),
        (RecordChange::Put(class("online", 5)), &[(Ground::State, "name")]),
        (RecordChange::Update(class("gold", 5)), &[]),
        (RecordChange::Update(class("new", 5)), &[(Ground::NotFound, "name")]),
        (
            RecordChange::Put(class("A.b", 1_000_000_001)),
            &[(Ground::Invalid, "name"), (Ground::Invalid, "value")],
        ),
        (RecordChange::Delete("gold".into()), &[]),
        (RecordChange::Delete("system".into()), &[(Ground::State, "name")]),
        (RecordChange::Delete("used".into()), &[(Ground::State, "name")]),
        (RecordChange::Delete("new".into()), &[(Ground::NotFound, "name")]),
    ];
    for (change, expected) in cases {
        let violations = classes(&known, std::slice::from_ref(&change), &users).err().unwrap_or_default();
        let found: Vec<_> = violations.iter().map(|one| (one.ground, one.field.as_str())).collect();
        assert_eq!(found, expected, "{change:?}");
    }
}

const PATHS: [&str; 7] = ["a", "a.b", "a.b.c", "a.b.d", "a.e", "f", "f.g"];

fn change() -> impl Strategy<Value = QueueChange> {
    let amount = || prop::option::of(0i64..12);
    (0..PATHS.len(), amount(), amount(), prop::bool::weighted(0.85)).prop_map(|(at, min, max, is_put)| {
        let named =
            |amount: Option<i64>| amount.map(|amount| ("cpu".to_owned(), amount)).into_iter().collect();
        let spec = QueueSpec { min: named(min), max: named(max), ..QueueSpec::new(PATHS[at]) };
        if is_put { put(spec) } else { RecordChange::Delete(PATHS[at].to_owned()) }
    })
}

/// What must hold of a whole tree, looked at plainly.
fn is_sound(tree: &QueueTree) -> bool {
    tree.iter().all(|queue| {
        let Some(record) = tree.record(queue) else { return true };
        let above = tree.parent(queue);
        let below: i64 = tree.children(queue).iter().map(|child| cpu(tree.guaranteed(*child))).sum();
        let min = record.min.get("cpu").copied();
        let in_force = min.unwrap_or(0).max(below);
        (above == super::super::tree::QueueIdx::ROOT || tree.record(above).is_some())
            && min.is_none_or(|min| below <= min)
            && record.max.get("cpu").is_none_or(|max| in_force <= *max)
    })
}

fn cpu(amounts: &NamedAmounts) -> i64 {
    amounts.get("cpu").copied().unwrap_or(0)
}

proptest! {
    #[test]
    fn what_is_allowed_is_sound_and_what_is_refused_is_not(steps in vec(vec(change(), 1..4), 1..25)) {
        let mut tree = QueueTree::default();
        for mut changes in steps {
            let mut seen = BTreeSet::new();
            changes.retain(|change| seen.insert(path_of(change).to_owned()));
            let mut after = tree.clone();
            for change in &changes {
                match change {
                    RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => {
                        after.put(Arc::clone(spec));
                    }
                    RecordChange::Delete(path) => {
                        after.remove(path);
                    }
                }
            }
            let gone = |change: &QueueChange| matches!(change, RecordChange::Delete(path) if !known(&tree, path));
            let expected = is_sound(&after) && !changes.iter().any(gone);
            let checked = queues(&tree, &changes, &nobody);
            prop_assert_eq!(checked.is_ok(), expected, "{:?}", checked);
            if expected {
                tree = after;
            }
        }
    }
}
