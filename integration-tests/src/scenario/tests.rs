use super::*;

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
fn mistakes_are_told_with_line_and_column() {
    for (text, expected) in [
        ("scenario: a\nnodes: {}\nstepps: []\n", "3:1: unknown key `stepps`: did you mean `steps`?"),
        ("scenario: a\nnodes: {}\nsteps:\n  - submitt: web\n", "4:5: steps[0]: unknown key `submitt`"),
        ("scenario: a\nnodes: {}\nsteps:\n  - expect: {units: {web: runing}}\n", "4:27: "),
        ("scenario: a\nnodes: {}\nsteps:\n  - expect: {holds: few}\n", "4:21: "),
        ("scenario: a\nnodes: {}\nsteps:\n  - godel: unit scael web\n", "4:12: "),
        ("scenario: a\nnodes: {}\nsteps:\n  - submit: web\n", "step 1: no unit web"),
        ("scenario: a\nnodes: {}\nsteps:\n  - {kill: state, start: state}\n", "step 1: more than one action"),
        ("scenario: a\nnodes: {}\nsteps: []\n---\nname: web\nreplicsa: 3\n", "6:1: unknown key `replicsa`"),
        ("", "missing field `scenario`"),
    ] {
        assert!(mistake(text).contains(expected), "{text}\nfound    {}\nexpected {expected}", mistake(text));
    }
}
