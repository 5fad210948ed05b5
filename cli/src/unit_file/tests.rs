use super::*;

const WEB: &str = "\
name: web
namespace: shop
labels: {app: web, version: 1.5, canary: true}
class: service
priority: 7
replicas: 3
ttl_after_finished: 10m
template:
  requests: {cpu: 500m, memory: 1Gi, fpga: 1}
  gpu: {milli: 250, models: [A10, T4]}
  node_selector: {zone: a}
  tolerations:
    - {key: gpu, value: only, effect: no-schedule}
    - key: spot
  command: [sleep, 10]
  env: {PORT: 8080}
  stop_grace: 30s
  simulated: {duration: 5s, exit_code: 2}
";

#[test]
fn a_short_unit_is_read_whole() {
    let units = parse(WEB).unwrap();
    let spec = &units[0].spec;
    let meta = spec.meta.as_ref().unwrap();
    assert_eq!((meta.namespace.as_str(), meta.name.as_str()), ("shop", "web"));
    assert_eq!(meta.labels["version"], "1.5");
    assert_eq!(meta.labels["canary"], "true");
    assert_eq!(spec.workload_class(), v1::WorkloadClass::Service);
    assert_eq!((spec.priority, spec.ttl_after_finished_ms), (7, 600_000));
    assert_eq!(spec.min_member, 0);
    let group = &spec.task_groups[0];
    assert_eq!((group.replicas, spec.task_groups.len()), (3, 1));
    let template = group.template.as_ref().unwrap();
    let demand = template.demand.as_ref().unwrap();
    let amounts = &demand.requests.as_ref().unwrap().amounts;
    assert_eq!((amounts["cpu"], amounts["memory"], amounts["fpga"]), (500, 1 << 30, 1));
    let devices = demand.devices.as_ref().unwrap();
    assert_eq!((devices.count, devices.milli_per_device, devices.models.len()), (1, 250, 2));
    assert_eq!(template.tolerations[0].effect(), v1::TaintEffect::NoSchedule);
    assert!(!template.tolerations[0].any_value && template.tolerations[1].any_value);
    let run = template.run.as_ref().unwrap();
    assert_eq!(run.command, ["sleep", "10"]);
    assert_eq!(run.env["PORT"], "8080");
    assert_eq!((run.stop_grace_ms, run.simulated_duration_ms, run.simulated_exit_code), (30_000, 5_000, 2));
}

#[test]
fn a_file_may_have_many_documents_and_groups() {
    let text = "---\nname: a\ntask_groups:\n- name: ps\n  template: {requests: {cpu: 1}}\n- name: worker\n  replicas: 4\n  template: {requests: {cpu: 2}}\n---\n# nothing\n---\nname: b\ntemplate: {}\n";
    let units = parse(text).unwrap();
    let names: Vec<(&str, usize)> =
        units.iter().map(|unit| (unit.spec.meta.as_ref().unwrap().name.as_str(), unit.document)).collect();
    assert_eq!(names, [("a", 1), ("b", 3)]);
    let replicas: Vec<u32> = units[0].spec.task_groups.iter().map(|group| group.replicas).collect();
    assert_eq!(replicas, [1, 4]);
}

#[test]
fn mistakes_are_told_with_line_column_and_the_nearest_word() {
    for (text, expected) in [
        ("name: a\nreplicsa: 3\n", "2:1: unknown key `replicsa`: did you mean `replicas`?"),
        (
            "name: a\ntemplate:\n  comand: [x]\n",
            "3:3: template: unknown key `comand`: did you mean `command`?",
        ),
        ("name: a\nclass: sevice\n", "2:8: class: unknown value `sevice`: did you mean `service`?"),
        ("name: a\npool: zzz\n", "2:7: pool: unknown value `zzz`: known are guaranteed, best-effort"),
        (
            "name: a\ntemplate:\n  requests:\n    cpu: 1Gb\n",
            "4:10: template.requests.cpu: `1Gb` is no CPU quantity (`500m`, `2`, `0.5`): not a number with a known suffix",
        ),
        (
            "name: a\ntemplate:\n  requests: {memory: -1}\n",
            "3:22: template.requests.memory: `-1` is no memory quantity (`512Mi`, `1Gi`, `1.5G`): it is negative",
        ),
        ("name: a\nreplicas: many\n", "2:11: replicas: invalid type: string \"many\", expected u32"),
        ("replicas: 1\n", "1:1: missing field `name`"),
        ("name: a\nname: b\n", "duplicate field `name`"),
        ("name: a\nttl_after_finished: soon\n", "`soon` is no duration"),
        ("name: a\nlabels: {a: b\n", "did not find expected ',' or '}'"),
        ("name: a\ntemplate:\n  requests: {gpu: 1}\n", "`gpu` stands beside `requests`"),
        ("# nothing\n", "the file has no unit"),
        ("", "the file has no unit"),
    ] {
        let found = parse(text).unwrap_err().to_string();
        assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
    }
}

#[test]
fn a_mistake_in_a_later_document_has_its_line_in_the_file() {
    let found = parse("name: a\ntemplate: {}\n---\nname: b\nreplica: 2\n").unwrap_err();
    assert_eq!((found.line, found.column), (5, 1));
}
