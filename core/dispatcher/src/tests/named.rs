//! What names stand for, and records that are deleted.

use super::*;

fn rig() -> Rig {
    let mut rig = Rig::new();
    for (id, name) in [(1, "web"), (2, "web-2"), (3, "etl")] {
        rig.put(spec(id, 1).name(name));
    }
    rig.put(spec(4, 1).namespace("prod").name("db"));
    rig
}

#[test]
fn who_reads_may_say_a_unique_prefix() {
    let rig = rig();
    let resolve = |namespace: &str, text: &str| rig.core.units().resolve(&Sight::All, namespace, text);
    for (namespace, text, unit) in [
        ("", "web", 1),
        ("default", "web-", 2),
        ("", "e", 3),
        ("prod", "d", 4),
        ("", &*uid(4).to_uppercase(), 4),
        ("prod", &uid(4)[..35], 4),
    ] {
        assert_eq!(resolve(namespace, text), Ok(UnitId(unit)), "{text}");
    }
    let several = Unresolved::Ambiguous(vec!["default/web".into(), "default/web-2".into()]);
    assert_eq!(resolve("", "we"), Err(several));
    assert!(matches!(resolve("", "0190163d-8694"), Err(Unresolved::Ambiguous(names)) if names.len() == 3));
    // Prefixes of uids reach no other namespace.
    for (namespace, text) in [("", ""), ("", "x"), ("", "db"), ("other", &uid(4)[..35])] {
        assert_eq!(resolve(namespace, text), Err(Unresolved::NotFound(vec![])), "{text}");
    }
}

#[test]
fn who_changes_something_says_a_whole_name_or_uid() {
    let mut rig = rig();
    let find = |namespace: &str, text: &str| rig.core.units().find(namespace, text);
    for (namespace, text, unit) in
        [("", "web", 1), ("default", "web-2", 2), ("prod", "db", 4), ("", &*uid(4), 4)]
    {
        assert_eq!(find(namespace, text), Ok(UnitId(unit)), "{text}");
    }
    let none =
        |names: &[&str]| Err(Unresolved::NotFound(names.iter().map(|name| (*name).to_owned()).collect()));
    for (namespace, text, near) in [
        ("", "we", &["web", "web-2"][..]),
        ("", "web-", &["web-2"]),
        ("prod", "d", &["db"]),
        ("", "d", &[]),
        ("", "", &[]),
        ("", &uid(1)[..35], &["etl", "web", "web-2"]),
    ] {
        let mut found = find(namespace, text);
        if let Err(Unresolved::NotFound(names)) = &mut found {
            names.sort();
        }
        assert_eq!(found, none(near), "{text}");
    }
    // A unit that is called as another one's uid takes nothing from it.
    rig.put(spec(9, 1).name(uid(1)));
    let both = Unresolved::Ambiguous(vec![format!("default/{}", uid(1)), "default/web".into()]);
    assert_eq!(rig.core.units().find("", &uid(1)), Err(both.clone()));
    assert_eq!(rig.core.units().resolve(&Sight::All, "", &uid(1)), Err(both));
    assert_eq!(rig.core.units().find("prod", &uid(1)), Ok(UnitId(1)));
}

#[test]
fn the_record_of_a_unit_that_has_ended_may_be_deleted_at_once() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.put(spec(1, 2).ttl_after_finished_ms(60_000));
    rig.step();
    assert_eq!(rig.core.assignments.delete(UnitId(1)), Err(DeleteRefusal::Phase(UnitPhase::Scheduling)));
    assert_eq!(rig.core.assignments.delete(UnitId(2)), Err(DeleteRefusal::Unknown));
    rig.bind(1, &[0, 1]);
    rig.put(spec(1, 2).ttl_after_finished_ms(60_000).cancelled(true));
    assert_eq!(rig.core.assignments.delete(UnitId(1)), Err(DeleteRefusal::Leaving(2)));
    assert_eq!(rig.core.units().ended(UnitId(1), rig.now), None);
    rig.status(1, &[0, 1], RowPhase::Stopped);
    rig.now = rig.now.plus(20_000);
    let ended = EndedView { phase: UnitPhase::Cancelled, ago_ms: Some(20_000), left_ms: 40_000 };
    assert_eq!(rig.core.units().ended(UnitId(1), rig.now), Some(ended));
    assert_eq!(rig.core.assignments.delete(UnitId(1)), Ok(true));
    assert_eq!(rig.core.assignments.delete(UnitId(1)), Ok(false));
    // Nobody else deletes it now; if that fails, retention does in the end.
    rig.now = rig.now.plus(100_000);
    assert!(!rig.step().iter().any(|action| action.starts_with("delete")));
    rig.core.assignments.on_delete_failed(UnitId(1), rig.now);
    assert_eq!(rig.core.assignments.delete(UnitId(1)), Ok(true));
    rig.core.on_unit_deleted(UnitId(1), rig.now);
    assert_eq!(
        (rig.core.summary().ended, rig.core.units().find("", "u1")),
        (0, Err(Unresolved::NotFound(vec![])))
    );
}

#[test]
fn a_unit_out_of_sight_is_answered_as_one_that_is_not_there() {
    let rig = rig();
    let sight = Sight::of(["default".to_owned()]);
    let resolve = |namespace: &str, text: &str| rig.core.units().resolve(&sight, namespace, text);
    assert_eq!(resolve("", "web"), Ok(UnitId(1)));
    assert_eq!(resolve("", &uid(1)), Ok(UnitId(1)));
    let absent = resolve("", "nothing");
    assert_eq!(absent, Err(Unresolved::NotFound(Vec::new())));
    for (namespace, text) in [
        ("prod", "db"),
        ("prod", "d"),
        ("prod", "nothing"),
        ("prod", &*uid(1)),
        ("", &*uid(4)),
        ("prod", &*uid(4)),
    ] {
        assert_eq!(resolve(namespace, text), absent, "{namespace}/{text}");
    }
    // A name that is also the uid of a unit out of sight is the name alone.
    let mut rig = rig;
    rig.put(spec(5, 1).name(uid(4)));
    assert_eq!(rig.core.units().resolve(&sight, "", &uid(4)), Ok(UnitId(5)));
    assert!(rig.core.units().resolve(&Sight::All, "", &uid(4)).is_err());
}

#[test]
fn a_unit_is_seen_by_its_owner_wherever_it_is() {
    let mut rig = Rig::new();
    for (id, namespace, owner) in
        [(6, "default", "bob"), (7, "yarn", "ann"), (8, "yarn", "bob"), (9, "z", "ann")]
    {
        let mut unit = spec(id, 1).namespace(namespace).name(format!("app-{id}"));
        unit.spec.owner = owner.to_owned();
        rig.put(unit);
    }
    let ann = Sight::of(["default".to_owned()]).with_units_of("ann");
    let units = rig.core.units();
    for (namespace, text, expected) in [
        ("yarn", "app-7", Some(7)),
        ("yarn", &*uid(7), Some(7)),
        ("", &*uid(7), Some(7)),
        ("yarn", &*uid(9), None),
        // Prefixes count in namespaces that are seen as a whole.
        ("yarn", "app", None),
        ("yarn", "app-8", None),
        ("yarn", &*uid(8), None),
        ("", "app", Some(6)),
    ] {
        let expected = expected.map(UnitId).ok_or_else(|| Unresolved::NotFound(Vec::new()));
        assert_eq!(units.resolve(&ann, namespace, text), expected, "{namespace}/{text}");
    }
    for (namespace, expected) in [("", &[6, 7, 9][..]), ("yarn", &[7]), ("default", &[6]), ("x", &[])] {
        let filter = ListFilter { sight: ann.clone().within(namespace), ..ListFilter::default() };
        let chunk = units.list(&filter, "", 100, 10);
        let ids: Vec<u64> = chunk.units.iter().map(|unit| unit.0).collect();
        assert_eq!((ids.as_slice(), chunk.n_matched as usize), (expected, expected.len()), "{namespace}");
    }
}

#[test]
fn a_list_of_some_namespaces_reads_these_alone() {
    let mut rig = Rig::new();
    for (id, namespace) in [(6, "a"), (7, "m"), (8, "z")] {
        rig.put(spec(id, 1).namespace(namespace));
    }
    let ids = |chunk: &ListChunk| chunk.units.iter().map(|unit| unit.0).collect::<Vec<_>>();
    let of = |namespaces: &[&str]| ListFilter {
        sight: Sight::of(namespaces.iter().map(|one| (*one).to_owned())),
        ..ListFilter::default()
    };
    for (namespaces, expected) in
        [(&["z", "a"][..], vec![6, 8]), (&["m"], vec![7]), (&["b", "y"], vec![]), (&[], vec![])]
    {
        let chunk = rig.core.units().list(&of(namespaces), "", 100, 10);
        assert_eq!((ids(&chunk), chunk.n_matched as usize), (expected.clone(), expected.len()));
        assert_eq!(rig.core.units().count_listed(&of(namespaces)), None);
        let (mut paged, mut after) = (Vec::new(), String::new());
        loop {
            let chunk = rig.core.units().list(&of(namespaces), &after, 1, 1);
            paged.extend(ids(&chunk));
            after = chunk.next;
            if after.is_empty() {
                break;
            }
        }
        assert_eq!(paged, expected);
    }
    assert_eq!(ids(&rig.core.units().list(&of(&["a", "z"]), "m\0", 100, 10)), [8]);
}
