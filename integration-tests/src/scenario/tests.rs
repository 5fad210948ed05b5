use godel_proto::v1;

use super::{
    covers::{Code, Traces, WAITING},
    lives::Lives,
    *,
};

const STORY: &str = "\
scenario: nothing happens
nodes: {n: {cpu: 4}}
steps:
  - submit: web
    expect: {units: {web: running}}
";

fn mistake(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_story_and_its_manifests_are_read() {
    let text =
        format!("{STORY}---\nkind: queue\nname: team\n---\nname: web\ntemplate: {{requests: {{cpu: 1}}}}\n");
    let scenario = parse(&text).unwrap();
    assert_eq!((scenario.queues.len(), scenario.units.len(), scenario.story.steps.len()), (1, 1, 1));
    assert!(scenario.place(1).contains("submit: web"), "{}", scenario.place(1));
}

#[test]
fn profiles_are_the_configuration_of_every_scheduler() {
    let unit = "---\nname: web\ntemplate: {requests: {cpu: 1}}\n";
    let profiles = "{fast: {scores: [{name: spread, weight: 3}]}}";
    let text = format!("{STORY}cluster: {{schedulers: 2, profiles: {profiles}}}\n{unit}");
    let config = parse(&text).unwrap().layout().config_file;
    let config: serde_yaml_ng::Value = serde_yaml_ng::from_str(&config).unwrap();
    let score = &config["scheduler"]["profiles"]["fast"]["scores"][0];
    assert_eq!((score["name"].as_str(), score["weight"].as_u64()), (Some("spread"), Some(3)));
    assert_eq!(parse(&format!("{STORY}{unit}")).unwrap().layout().config_file, "");
}

#[test]
fn mistakes_are_told_with_line_and_column() {
    for (text, expected) in [
        ("scenario: a\nnodes: {}\nstepps: []\n", "3:1: unknown key `stepps`: did you mean `steps`?"),
        ("scenario: a\nnodes: {}\nsteps:\n  - submitt: web\n", "4:5: steps[0]: unknown key `submitt`"),
        ("scenario: a\nnodes: {}\nsteps:\n  - expect: {units: {web: runing}}\n", "4:27: "),
        ("scenario: a\nnodes: {}\nsteps:\n  - expect: {holds: few}\n", "4:21: "),
        ("scenario: a\nnodes: {}\nsteps:\n  - godel: unit scael web\n", "4:12: "),
        ("scenario: a\nnodes: {}\nsteps:\n  - expect: {shows: {unit scael web: x}}\n", "4:"),
        ("scenario: a\nnodes: {}\nsteps:\n  - submit: web\n", "step 1: no unit web"),
        ("scenario: a\nnodes: {}\nsteps:\n  - {kill: state, start: state}\n", "step 1: more than one action"),
        ("scenario: a\nnodes: {}\nsteps: []\n---\nname: web\nreplicsa: 3\n", "6:1: unknown key `replicsa`"),
        (
            "scenario: a\ncovers: [plugin/taint]\nnodes: {}\nsteps: []\n",
            "2:10: covers[0]: there is no plugin/taint: there are node-ready, node-class, runtime, node-selector, taints, ",
        ),
        (
            "scenario: a\ncovers: [plugins/taints]\nnodes: {}\nsteps: []\n",
            "`plugins/taints` is of no kind: a code begins with one of plugin/, preemption/, policy/, ",
        ),
        (
            "scenario: a\ncovers: [plugin/taints, plugin/taints]\nnodes: {}\nsteps: []\n",
            "covers[1]: plugin/taints stands twice",
        ),
        ("", "missing field `scenario`"),
    ] {
        assert!(mistake(text).contains(expected), "{text}\nfound    {}\nexpected {expected}", mistake(text));
    }
}

#[test]
fn codes_leave_traces_but_plugins() {
    let claimed = ["plugin/taints", "on-failure/restart", "waiting/queue", "policy/fair-share"];
    let claimed = claimed.map(|text| Code::parse(text).unwrap());
    let mut traces = Traces::default();
    traces.add_value("ON_FAILURE_KEEP");
    traces.add_value("QUEUE_POLICY_FAIR_SHARE");
    traces.add_value("RESTART_POLICY_ON_FAILURE");
    assert_eq!(traces.missing(&claimed), [&claimed[1], &claimed[2]]);
    traces.add_value("ON_FAILURE_RESTART");
    traces.add(WAITING, "queue".to_owned());
    assert_eq!(traces.missing(&claimed), [&claimed[0]; 0]);
}

#[test]
fn transitions_are_those_that_the_store_allows() {
    let (mut lives, mut traces) = (Lives::default(), Traces::default());
    let report = |incarnation, phase: v1::RunPhase, restarts| v1::RunStatuses {
        unit_id: 1,
        ordinals: vec![3],
        incarnations: vec![incarnation],
        phases: vec![phase.into()],
        exit_codes: Vec::new(),
        restarts: vec![restarts],
        ..v1::RunStatuses::default()
    };
    lives.bind(&v1::Binding { unit_id: 1, ordinals: vec![3], ..v1::Binding::default() }, &mut traces);
    lives.report(&report(0, v1::RunPhase::Running, 0), &mut traces);
    lives.report(&report(0, v1::RunPhase::Starting, 1), &mut traces);
    // Of another incarnation, and late.
    lives.report(&report(1, v1::RunPhase::Failed, 0), &mut traces);
    lives.report(&report(0, v1::RunPhase::Running, 0), &mut traces);
    let lost = v1::EvictionReason::NodeLost.into();
    let evict = v1::Eviction { unit_id: 1, ordinals: vec![3], reason: lost, ..v1::Eviction::default() };
    lives.evict(&evict, &mut traces);
    lives.requeue(
        &v1::Requeue { unit_id: 1, ordinals: vec![3], incarnations: vec![1], anew: false },
        &mut traces,
    );
    let codes = |names: &[&str]| -> Vec<Code> {
        names.iter().map(|name| Code::parse(&format!("transition/{name}")).unwrap()).collect()
    };
    let happened =
        ["pending-bound", "bound-running", "running-starting-again", "starting-stopped", "stopped-pending"];
    assert!(traces.missing(&codes(&happened)).is_empty(), "{traces:?}");
    let not = codes(&["starting-running", "running-failed", "starting-failed"]);
    assert_eq!(traces.missing(&not).len(), not.len(), "{traces:?}");
}

#[test]
fn rejections_are_read_from_the_metrics() {
    let mut metrics = seen::Metrics::default();
    metrics.add("binder_rejected_total{service=\"binder\",reason=\"queue-full\"} 2");
    metrics.add("binder_rejected_total{service=\"binder\",reason=\"stale\"} 0");
    metrics.add("binder_evicted_total{service=\"binder\",reason=\"tainted\"} 1");
    metrics.add("binder_moves_refused_total{service=\"binder\",reason=\"not-there\"} 1");
    metrics.add("binder_decisions_total 7");
    assert_eq!(metrics.rejected.iter().collect::<Vec<_>>(), ["not-there", "queue-full"]);
    assert_eq!((metrics.sums["binder_rejected"], metrics.sums["binder_decisions"]), (2, 7));
}
