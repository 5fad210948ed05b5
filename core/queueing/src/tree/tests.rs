use proptest::{collection::vec, prelude::*};

use super::*;

mod frozen;

fn spec(path: &str, min: &[(&str, i64)]) -> Arc<QueueSpec> {
    let min = min.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    Arc::new(QueueSpec { min, ..QueueSpec::new(path) })
}

#[test]
fn default_exists_without_a_record() {
    let mut tree = QueueTree::default();
    assert_eq!(tree.find("default"), Some(QueueIdx::DEFAULT));
    assert_eq!(tree.admit("default", "anyone", &[]), Ok(QueueIdx::DEFAULT));
    assert_eq!((tree.weight(QueueIdx::DEFAULT), tree.policy(QueueIdx::DEFAULT)), (1, QueuePolicy::Priority));
    tree.put(Arc::new(QueueSpec { weight: 7, ..QueueSpec::new("default") }));
    assert_eq!((tree.weight(QueueIdx::DEFAULT), tree.n_records()), (7, 1));
    tree.remove("default");
    assert_eq!((tree.weight(QueueIdx::DEFAULT), tree.n_records()), (1, 0));
    assert!(tree.exists(QueueIdx::DEFAULT));
    assert_eq!((tree.len(), tree.is_empty()), (2, false), "the root is there too");
}

#[test]
fn units_go_into_leaves_that_exist() {
    let mut tree = QueueTree::default();
    let named = tree.intern("lost.child");
    assert!(!tree.exists(named));
    for path in ["prod", "prod.web", "prod.search"] {
        tree.put(spec(path, &[]));
    }
    assert!(tree.admit("prod.web", "a", &[]).is_ok());
    let is_leaf = |tree: &QueueTree, path: &str| tree.is_leaf(tree.find(path).unwrap());
    assert_eq!(["prod", "prod.web", "lost"].map(|path| is_leaf(&tree, path)), [false, true, true]);
    for (path, words) in [
        (
            "prod",
            "queue `prod` has queues below it, which take its units: name one of them, as `prod.search`",
        ),
        ("lost.child", "there is no queue `lost.child`: create it first, or name another one"),
        ("lost", "there is no queue `lost`: create it first, or name another one"),
        ("", "there is no queue ``: create it first, or name another one"),
    ] {
        assert_eq!(tree.admit(path, "a", &[]).unwrap_err().to_string(), words);
    }
    for path in ["prod.web", "prod.search"] {
        tree.remove(path);
    }
    assert!(tree.admit("prod", "a", &[]).is_ok() && is_leaf(&tree, "prod"));
    let paths: Vec<&str> = tree.iter().map(|queue| tree.path(queue)).collect();
    assert_eq!(paths, ["default", "prod"]);
    assert_eq!(tree.after("default").count(), 1);
}

fn owners(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_first_list_of_owners_upwards_decides() {
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str], &'a str, Option<&'a str>);
    let cases: [Case<'_>; 7] = [
        (&[], &[], &[], "x", None),
        (&["x"], &[], &[], "x", None),
        (&["y"], &[], &[], "x", Some("a")),
        (&["y"], &["x"], &[], "x", None),
        (&["x"], &["y"], &[], "x", Some("a.b")),
        (&["y"], &["y"], &["x"], "x", None),
        (&["x"], &[], &["y"], "", Some("a.b.c")),
    ];
    for (top, middle, leaf, owner, denied) in cases {
        let mut tree = QueueTree::default();
        for (path, list) in [("a", top), ("a.b", middle), ("a.b.c", leaf)] {
            tree.put(Arc::new(QueueSpec { submit_owners: owners(list), ..QueueSpec::new(path) }));
        }
        let by = match tree.admit("a.b.c", owner, &[]) {
            Ok(_) => None,
            Err(NotAdmitted::Denied { by, .. }) => Some(by),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(by.as_deref(), denied, "{top:?} {middle:?} {leaf:?} {owner}");
    }
}

#[test]
fn a_list_names_owners_principals_and_groups() {
    for (list, owner, names, is_admitted) in [
        (&["etl"][..], "ann", &["ann", "etl"][..], true),
        (&["ann"], "etl", &["ann", "etl"], true),
        (&["etl"], "etl", &[], true),
        (&["etl"], "ann", &["ann"], false),
        (&["etl"], "ann", &[], false),
        (&["etl"], "", &["ann", "ml"], false),
        (&[], "ann", &[], true),
    ] {
        let mut tree = QueueTree::default();
        tree.put(Arc::new(QueueSpec { submit_owners: owners(list), ..QueueSpec::new("a") }));
        let admitted = tree.admit("a", owner, &owners(names));
        assert_eq!(admitted.is_ok(), is_admitted, "{list:?} {owner} {names:?}");
    }
}

#[test]
fn records_come_in_any_order() {
    let mut tree = QueueTree::default();
    tree.put(spec("a.b", &[("cpu", 5)]));
    let changed = tree.put(spec("a.c", &[("cpu", 7)]));
    let a = tree.find("a").unwrap();
    assert_eq!(changed, [tree.find("a.c").unwrap(), a]);
    assert_eq!(tree.guaranteed(a)["cpu"], 12);
    assert_eq!(tree.put(spec("a", &[("cpu", 9), ("gpu", 1)])), [a]);
    assert_eq!((tree.guaranteed(a)["cpu"], tree.guaranteed(a)["gpu"]), (12, 1));
    tree.remove("a.b");
    assert_eq!(tree.guaranteed(a)["cpu"], 9);
    assert_eq!(tree.remove("nobody.named"), []);
}

#[test]
fn the_smallest_maximum_upwards_is_in_force() {
    let mut tree = QueueTree::default();
    for (path, max) in [("a", [("cpu", 5), ("gpu", 3)]), ("a.b", [("cpu", 9), ("memory", 1)])] {
        let max = max.map(|(name, amount)| (name.to_owned(), amount)).into();
        tree.put(Arc::new(QueueSpec { max, ..QueueSpec::new(path) }));
    }
    let max = tree.max_in_force(tree.find("a.b").unwrap());
    assert!(max.iter().map(|(name, max)| (name.as_str(), *max)).eq([("cpu", 5), ("gpu", 3), ("memory", 1)]));
}

proptest! {
    #[test]
    fn guarantees_are_as_summed_anew(
        changes in vec((0usize..6, prop::option::weighted(0.8, (0i64..9, 0i64..9))), 0..40),
    ) {
        const PATHS: [&str; 6] = ["a", "a.b", "a.c", "a.b.d", "a.b.e", "f"];
        let mut tree = QueueTree::default();
        let mut own: BTreeMap<&str, NamedAmounts> = BTreeMap::new();
        for (at, min) in changes {
            match min {
                Some((cpu, gpu)) => {
                    let record = spec(PATHS[at], &[("cpu", cpu), ("gpu", gpu)]);
                    own.insert(PATHS[at], record.min.clone());
                    tree.put(record);
                }
                None => {
                    own.remove(PATHS[at]);
                    tree.remove(PATHS[at]);
                }
            }
            for queue in PATHS.iter().filter_map(|path| tree.find(path)) {
                for name in ["cpu", "gpu"] {
                    let in_force = tree.guaranteed(queue).get(name).copied().unwrap_or(0);
                    prop_assert_eq!(in_force, naive(&own, tree.path(queue), name));
                }
            }
        }

        fn naive(own: &BTreeMap<&str, NamedAmounts>, path: &str, name: &str) -> i64 {
            let below = PATHS.iter().filter(|other| parent(other) == Some(path));
            let below: i64 = below.map(|child| naive(own, child, name)).sum();
            let own = own.get(path).and_then(|min| min.get(name)).copied().unwrap_or(0);
            own.max(below)
        }
    }
}

#[test]
fn pages_of_queues_go_on_after_a_path() {
    let mut tree = QueueTree::default();
    for path in ["b", "a", "a.c"] {
        tree.put(Arc::new(QueueSpec::new(path)));
    }
    let after = |path: &str| tree.after(path).map(|queue| tree.path(queue)).collect::<Vec<_>>();
    assert_eq!(after(""), ["a", "a.c", "b", "default"]);
    assert_eq!(after("a"), ["a.c", "b", "default"]);
    assert_eq!(after("a.d"), ["b", "default"], "there need not be one of that path");
    assert_eq!(after("default"), [] as [&str; 0]);
}
