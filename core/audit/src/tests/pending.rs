//! I8: who waits and fits, and who waits for a reason.

use super::*;
use godel_domain::records::Record;

#[test]
fn i8_knows_who_has_no_room_in_its_queue() {
    let single = spec(2, 2, 1, demand(500, None));
    let max = |cpu| {
        let max = [(CPU.to_owned(), cpu)].into();
        vec![Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new("default") })))]
    };
    let story = |cpu| Story::healthy().0.then(max(cpu)).then(vec![unit(&single)]);
    let full = story(4_499).evidence();
    assert!(check_all(&full).iter().all(InvariantReport::holds));
    assert_eq!(held_up(&full.listed), 1);
    let wide = story(4_500).evidence();
    assert_eq!(held_up(&wide.listed), 0);
    only(&wide, Invariant::I8, "unit unit-2");
}

#[test]
fn i8_allows_waiting_behind_a_unit_under_the_same_maximum() {
    let queue = |path: &str, max: &[i64]| {
        let max = max.iter().map(|cpu| (CPU.to_owned(), *cpu)).collect();
        Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new(path) })))
    };
    let of = |id, path: &str, cpu| unit(&spec(id, 1, 1, demand(cpu, None)).queue(path));
    let story = |path: &str| {
        let queues = vec![queue("a", &[300]), queue("a.x", &[]), queue("b", &[])];
        let large = vec![of(2, "a.x", 400)];
        Story::healthy().0.then(queues).then(large).then(vec![of(3, path, 200)]).evidence()
    };
    let kept = story("a");
    assert!(check_all(&kept).iter().all(InvariantReport::holds));
    let line = check_all(&kept).iter().map(ToString::to_string).find(|line| line.starts_with("I8")).unwrap();
    let words = "1 of them have no room in their queue; 1 of them fit, and may have to wait behind those";
    assert!(line.contains(words), "{line}");
    only(&story("b"), Invariant::I8, "unit unit-3");
}

#[test]
fn i8_judges_gangs_of_several_templates_that_fit_in_any_order() {
    // On two nodes with room for 2,000 each.
    let story = |second: i64| {
        let gang = spec(2, 1, 2, demand(1_500, None));
        let first = &gang.spec.task_groups[0];
        let template = Template { demand: demand(second, None), ..first.template.clone() };
        let group = TaskGroup { name: "second".to_owned(), template, ..first.clone() };
        let gang = gang.group(group);
        Story::healthy().0.then(vec![unit(&gang)]).evidence()
    };
    only(&story(500), Invariant::I8, "unit unit-2");
    assert!(
        check_all(&story(1_900)).iter().all(InvariantReport::holds),
        "whoever puts the first one elsewhere misses it"
    );
}

#[test]
fn i8_counts_the_room_that_an_earlier_look_saw_too() {
    // Two nodes with room for 2,000 each, filled, until one on the first ends.
    let fillers = [spec(2, 1, 1, demand(1_500, None)), spec(3, 1, 1, demand(1_500, None))];
    let large = spec(4, 1, 1, demand(1_800, None));
    let full = || {
        let story = Story::healthy().0.then(fillers.iter().chain([&large]).map(unit).collect());
        story.then(vec![bind(&fillers[0], &[(0, 1, 0)], 0)]).then(vec![bind(&fillers[1], &[(0, 2, 0)], 0)])
    };
    let free = || full().then(vec![status(&fillers[0], 0, 0, Phase::Succeeded)]);
    let since =
        |before: Story| Evidence { before: Some(Before::of(&before.evidence())), ..free().evidence() };
    only(&since(free()), Invariant::I8, "unit unit-4 (id 4) waits, but fits on n1");
    assert!(check_all(&since(full())).iter().all(InvariantReport::holds), "the room is new");
    let new = check_all(&since(Story::healthy().0));
    assert!(new.iter().all(InvariantReport::holds), "the unit is new");
    let line = new.iter().map(ToString::to_string).find(|line| line.starts_with("I8")).unwrap();
    assert!(line.contains("1 units wait") && line.contains("1 of them are not tried"), "{line}");
    // What was there once and is there again was not there all the while.
    let looks = |stories: [Story; 2]| {
        stories.iter().fold(None, |before, story| Some(Before::of(&Evidence { before, ..story.evidence() })))
    };
    let last = |before: [Story; 2]| Evidence { before: looks(before), ..free().evidence() };
    only(&last([free(), free()]), Invariant::I8, "unit unit-4 (id 4) waits, but fits on n1");
    assert!(check_all(&last([full(), free()])).iter().all(InvariantReport::holds));
    assert!(check_all(&last([free(), full()])).iter().all(InvariantReport::holds));
    assert!(check_all(&last([Story::healthy().0, free()])).iter().all(InvariantReport::holds));
}

#[test]
fn i8_tries_fewer_where_more_found_no_place() {
    let waiting = [spec(2, 3, 3, demand(1_500, None)), spec(3, 1, 1, demand(1_500, None))];
    let story =
        |units: &[&UnitRecord]| Story::healthy().0.then(units.iter().map(|record| unit(record)).collect());
    let [gang, single] = &waiting;
    assert!(check_all(&story(&[gang]).evidence()).iter().all(InvariantReport::holds));
    only(&story(&[gang, single]).evidence(), Invariant::I8, "unit unit-3");
}

#[test]
fn i8_lets_paused_units_wait() {
    let (story, _) = Story::healthy();
    let idle = spec(2, 1, 1, demand(100, None));
    let story = story.then(vec![unit(&idle)]);
    only(&story.evidence(), Invariant::I8, "unit unit-2");
    let queue = |path: &str| Scope::Queue(path.to_owned());
    let holds = |story: &Story, scope, key: &str| {
        let pause = Pause { scope, since_ms: 1, reason: String::new(), sub_cluster_key: key.to_owned() };
        let paused = Story(story.0.clone()).then(vec![Change::Put(Record::Pause(pause))]);
        check_all(&paused.evidence()).iter().all(InvariantReport::holds)
    };
    for (scope, expected) in
        [(Scope::All, true), (queue("default"), true), (queue("def"), false), (Scope::Preemption, false)]
    {
        assert_eq!(holds(&story, scope.clone(), ""), expected, "{scope:?}");
    }
    let sub_cluster = |name: &str| Scope::SubCluster(name.to_owned());
    assert!(!holds(&story, sub_cluster("z"), "zone"), "it is of none");
    let mut located = idle;
    located.spec.task_groups[0].template.node_selector.insert("zone".to_owned(), "z".to_owned());
    let labels = BTreeMap::from([("zone".to_owned(), "z".to_owned())]);
    let [Change::Put(Record::NodeSpec(first)), _] = node(1, 4000, &[]) else {
        panic!("a spec, then a report")
    };
    let (story, _) = Story::healthy();
    let story = story
        .then(vec![Change::Put(Record::NodeSpec(NodeSpec { labels, ..first }))])
        .then(vec![unit(&located)]);
    only(&story.evidence(), Invariant::I8, "unit unit-2");
    assert!(holds(&story, sub_cluster("z"), "zone"));
    assert!(!holds(&story, sub_cluster("y"), "zone") && !holds(&story, sub_cluster("z"), "rack"));
}

#[test]
fn i8_names_a_waiting_unit_that_fits_and_where() {
    let (story, _) = Story::healthy();
    let fits = spec(2, 1, 1, demand(2000, Some((1, 500, "A10"))));
    let story = story.then(vec![unit(&fits)]);
    let mut evidence = story.evidence();
    only(&evidence, Invariant::I8, "unit unit-2 (id 2) waits, but fits on n1");
    evidence.busy = Some("1 unit is queued".to_owned());
    assert!(!check_all(&evidence).iter().any(InvariantReport::has_failed));
}

#[test]
fn i8_knows_which_nodes_are_not_for_a_unit() {
    let waits = |change: &dyn Fn(&mut NodeSpec, &mut NodeReport), with: &dyn Fn(&mut Template)| {
        let (story, _) = Story::healthy();
        // The one node that is large enough.
        let [Change::Put(Record::NodeSpec(mut of)), Change::Put(Record::NodeReport(mut report))] =
            node(3, 9_000, &[])
        else {
            panic!("a spec, then a report")
        };
        change(&mut of, &mut report);
        let mut record = spec(2, 1, 1, demand(5_000, None));
        with(&mut record.spec.task_groups[0].template);
        let nodes = vec![Change::Put(Record::NodeSpec(of)), Change::Put(Record::NodeReport(report))];
        let evidence = story.then(nodes).then(vec![unit(&record)]).evidence();
        check_all(&evidence).iter().all(InvariantReport::holds)
    };
    let any = |_: &mut Template| {};
    assert!(!waits(&|_, _| {}, &any), "it fits there");
    let real = |_: &mut NodeSpec, report: &mut NodeReport| report.runtime = NodeRuntime::Processes;
    assert!(waits(&real, &any));
    assert!(!waits(&real, &|template| template.run.command.push("sleep".to_owned())));
    let classed = |of: &mut NodeSpec, _: &mut NodeReport| {
        of.labels.insert(NODE_CLASS.to_owned(), "virtual".to_owned());
    };
    assert!(waits(&classed, &any));
    let names = |template: &mut Template| {
        template.node_selector.insert(NODE_CLASS.to_owned(), "virtual".to_owned());
    };
    assert!(!waits(&classed, &names));
}

#[test]
fn i8_accepts_what_really_does_not_fit() {
    for waiting in [
        spec(2, 1, 1, demand(2001, None)),
        spec(2, 1, 1, demand(10, Some((2, 1000, "A10")))),
        spec(2, 1, 1, demand(10, Some((1, 600, "V100")))),
        spec(2, 5, 5, demand(1000, None)),
        spec(2, 4, 4, demand(10, Some((1, 1000, "A10")))),
    ] {
        let (story, _) = Story::healthy();
        let reports = check_all(&story.then(vec![unit(&waiting)]).evidence());
        assert!(reports.iter().all(InvariantReport::holds), "{waiting:?}");
    }
    let (mut story, _) = Story::healthy();
    for changes in &mut story.0 {
        for change in changes {
            if let Change::Put(Record::NodeSpec(spec)) = change {
                let effect = TaintEffect::NoSchedule;
                spec.taints.push(Taint { key: "k".to_owned(), value: String::new(), effect, added_ms: 0 });
            }
        }
    }
    let reports = check_all(&story.then(vec![unit(&spec(2, 1, 1, demand(1, None)))]).evidence());
    assert!(reports.iter().all(InvariantReport::holds));
}

#[test]
fn i8_expects_nothing_from_a_node_short_of_devices() {
    let held = spec(1, 1, 1, demand(10, Some((1, 1000, ""))));
    let waits = spec(2, 1, 1, demand(10, Some((1, 1000, ""))));
    let story = || {
        Story(vec![
            node(1, 4000, &["A10", "A10"]).into(),
            vec![unit(&held)],
            vec![bind(&held, &[(0, 1, 0b10)], 0)],
        ])
    };
    let [_, less] = node(1, 4000, &["A10"]);
    let shrunk = story().then(vec![less]).then(vec![unit(&waits)]);
    assert!(check_all(&shrunk.evidence()).iter().all(InvariantReport::holds));
    only(&story().then(vec![unit(&waits)]).evidence(), Invariant::I8, "unit-2 (id 2) waits, but fits on n1");
}

#[test]
fn i8_lets_a_unit_wait_whose_group_lacks_more_than_the_unit() {
    // Two large replicas, both needed, and two small ones; three are needed in all.
    let pair = spec(2, 2, 3, demand(1_500, None)).on_below_min(OnBelowMin::Restart);
    let first = TaskGroup { min_member: 2, ..pair.spec.task_groups[0].clone() };
    let template = Template { demand: demand(10, None), ..first.template.clone() };
    let small = TaskGroup { name: "small".to_owned(), template, min_member: 0, ..first.clone() };
    let pair = pair.task_groups(vec![first, small]);
    let small = match bind(&pair, &[(2, 2, 0), (3, 2, 0)], 0) {
        Change::Rows(unit, RunChange::Bind(bound)) => {
            let demand = Arc::new(pair.spec.task_groups[1].template.demand.clone());
            Change::Rows(unit, RunChange::Bind(Bind { group: 1, demand, ..bound }))
        }
        other => other,
    };
    let ended = |ordinal, phase| status(&pair, ordinal, 0, phase);
    let requeue = Requeue { ordinals: vec![0, 1], incarnations: vec![1, 1], anew: false };
    let waits = |others: Vec<Change>| {
        let story = Story::healthy().0.then(vec![unit(&pair)]);
        let story = story.then(vec![bind(&pair, &[(0, 1, 0), (1, 2, 0)], 0), small.clone()]);
        let story = story.then(vec![ended(2, Phase::Succeeded), ended(3, Phase::Succeeded)]);
        let story = story.then(vec![evict(&pair, 0, EvictionReason::Preempted)]);
        let story = story.then(vec![evict(&pair, 1, EvictionReason::BelowMin)]);
        let story = story.then(vec![ended(0, Phase::Stopped), ended(1, Phase::Stopped)]);
        let story = story.then(vec![Change::Rows(pair.id, RunChange::Requeue(requeue.clone()))]);
        check_all(&story.then(others).evidence())[7].clone()
    };
    // The small ones count for good: the unit lacks one of three, and its first group two of two.
    let filler = spec(3, 1, 1, demand(2_000, None));
    let report = waits(vec![unit(&filler), bind(&filler, &[(0, 1, 0)], 0)]);
    assert!(report.holds(), "{report}");
    let report = waits(Vec::new());
    assert!(report.violations.iter().any(|wrong| wrong.contains("unit unit-2")), "{report}");
}

#[test]
fn i8_lets_a_unit_wait_that_lacks_several_since_it_was_scaled() {
    let sized = |min_member, ordinals: Vec<(u32, u32)>| {
        let mut record = spec(2, 3, min_member, demand(1_500, None)).on_below_min(OnBelowMin::Keep);
        record.status.ordinals = vec![ordinals].into();
        record
    };
    let (before, grown) = (sized(1, vec![(0, 1)]), sized(3, vec![(0, 1), (3, 5)]));
    let waits = |filler: i64| {
        let filler = spec(3, 1, 1, demand(filler, None));
        let story = Story::healthy().0.then(node(3, 1_500, &[]).into());
        let story = story.then(vec![unit(&filler)]).then(vec![bind(&filler, &[(0, 1, 0)], 0)]);
        let story = story.then(vec![unit(&before)]).then(vec![bind(&before, &[(0, 2, 0)], 0)]);
        // Two more of three, neither of which has had a node.
        check_all(&story.then(vec![unit(&grown)]).evidence())[7].clone()
    };
    let report = waits(2_000);
    assert!(report.holds(), "{report}");
    let report = waits(400);
    assert!(report.violations.iter().any(|wrong| wrong.contains("unit unit-2")), "{report}");
}
