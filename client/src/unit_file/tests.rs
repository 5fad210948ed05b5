use super::*;

const WEB: &str = "\
name: web
namespace: shop
labels: {app: web, version: 1.10, canary: True}
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
  working_directory: /srv
  user: www
  umask: 0o027
  simulated: {duration: 5s, exit_code: 2}
";

#[test]
fn a_short_unit_is_read_whole() {
    let units = parse(WEB).unwrap();
    let spec = &units[0].spec;
    let meta = spec.meta.as_ref().unwrap();
    assert_eq!((meta.namespace.as_str(), meta.name.as_str()), ("shop", "web"));
    assert_eq!((meta.labels["version"].as_str(), meta.labels["canary"].as_str()), ("1.10", "True"));
    assert_eq!(spec.workload_class(), v1::WorkloadClass::Service);
    assert_eq!((spec.priority, spec.ttl_after_finished_ms), (Some(7), Some(600_000)));
    assert_eq!(spec.min_member, None);
    let group = &spec.task_groups[0];
    assert_eq!((group.replicas, spec.task_groups.len()), (3, 1));
    let template = group.template.as_ref().unwrap();
    let demand = template.demand.as_ref().unwrap();
    let amounts = &demand.requests.as_ref().unwrap().amounts;
    assert_eq!((amounts["cpu"], amounts["memory"], amounts["fpga"]), (500, 1 << 30, 1));
    let [devices] = demand.devices.as_slice() else { panic!("{demand:?}") };
    assert_eq!((devices.count, devices.milli_per_device, devices.models.len()), (1, Some(250), 2));
    assert_eq!(template.tolerations[0].effect(), v1::TaintEffect::NoSchedule);
    assert!(!template.tolerations[0].any_value && template.tolerations[1].any_value);
    let run = template.run.as_ref().unwrap();
    assert_eq!(run.command, ["sleep", "10"]);
    assert_eq!(run.env["PORT"], "8080");
    assert_eq!((run.working_directory.as_str(), run.user.as_str(), run.umask), ("/srv", "www", Some(0o27)));
    let simulated = (run.simulated_duration_ms, run.simulated_exit_code);
    assert_eq!((run.stop_grace_ms, simulated), (30_000, (Some(5_000), 2)));
}

#[test]
fn an_image_needs_no_command_and_excludes_a_umask() {
    let image = "template: {image: 'registry.local/web:1.10', user: 'www:www'}";
    let units = parse(&format!("name: a\n{image}\n")).unwrap();
    let run = units[0].spec.task_groups[0].template.clone().unwrap().run.unwrap();
    assert_eq!(
        (run.image.as_str(), run.user.as_str(), run.command.len()),
        ("registry.local/web:1.10", "www:www", 0)
    );
    let wrong = parse("name: a\ntemplate: {image: web, umask: 022}\n").unwrap_err().to_string();
    assert!(wrong.contains("template.image: an image excludes `umask`"), "{wrong}");
    let wrong = parse("name: a\ntemplate: {user: 'www:www'}\n").unwrap_err().to_string();
    assert!(wrong.contains("template.user"), "{wrong}");
}

#[test]
fn devices_are_one_request_or_a_list() {
    let read = |template: &str| {
        let units =
            parse(&format!("name: a\ntemplate: {{{template}}}\n")).map_err(|wrong| wrong.to_string())?;
        let template = units[0].spec.task_groups[0].template.clone().unwrap_or_default();
        let devices = template.demand.unwrap_or_default().devices.into_iter();
        Ok::<_, String>(devices.map(|one| (one.kind, one.count, one.milli_per_device)).collect::<Vec<_>>())
    };
    let of = |kind: &str, count, milli| (kind.to_owned(), count, milli);
    assert_eq!(read("devices: {kind: nic, milli: 500}"), Ok(vec![of("nic", 1, Some(500))]));
    assert_eq!(
        read("devices: [{kind: gpu, count: 2}, {kind: nic}]"),
        Ok(vec![of("gpu", 2, None), of("nic", 1, None)])
    );
    for (template, expected) in [
        ("devices: {count: 1}", "2:21: template.devices.kind: the key is missing"),
        ("devices: {kind: nic, count: 0}", "2:40: template.devices.count: 0 is not in 1..=64"),
        ("devices: [{kind: nic}, {kind: nic}]", "2:42: template.devices[1].kind: duplicate kind `nic`"),
        ("gpu: {}, devices: {kind: nic}", "2:17: template.gpu: add it to `devices`"),
    ] {
        let found = read(template).unwrap_err();
        assert!(found.starts_with(expected), "{template}\nfound    {found}\nexpected {expected}");
    }
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
fn affinity_is_read_with_its_conditions() {
    let text = "\
name: web
affinity:
  near: [{units: 'app = db, !canary', topology: rack}]
  apart: [{topology: node}, {units: app, topology: rack, weight: 5}]
  spread: [{topology: rack, max_skew: 2}, {topology: node, weight: 5}]
template: {}
";
    let affinity = parse(text).unwrap().remove(0).spec.affinity.unwrap();
    let [near] = affinity.near.as_slice() else { panic!("{affinity:?}") };
    assert_eq!((near.topology.as_str(), near.weight, near.units.len()), ("rack", 0, 2));
    assert_eq!(near.units[1].operator(), v1::LabelOperator::DoesNotExist);
    let terms: Vec<_> =
        affinity.apart.iter().map(|one| (one.topology.as_str(), one.weight, one.units.len())).collect();
    assert_eq!(terms, [("node", 0, 0), ("rack", 5, 1)]);
    let terms: Vec<_> =
        affinity.spread.iter().map(|one| (one.topology.as_str(), one.max_skew, one.weight)).collect();
    assert_eq!(terms, [("rack", Some(2), 0), ("node", None, 5)]);
    let empty = parse("name: a\naffinity: {near: []}\ntemplate: {}\n").unwrap().remove(0).spec;
    assert_eq!(empty.affinity, None);
    for (affinity, expected) in [
        ("{near: [{units: a = b}]}", "2:19: affinity.near[0].topology: the key is missing"),
        ("{near: [{topology: a b}]}", "2:30: affinity.near[0].topology: ` ` is not allowed"),
        ("{near: [{topology: \"\"}]}", "2:30: affinity.near[0].topology: empty"),
        ("{near: {topology: rack}}", "2:18: affinity.near: expected a list, as `[a, b]`, found a map"),
        (
            "{near: [{topology: rack, units: \"\"}]}",
            "2:43: affinity.near[0].units: `` is no condition on a label",
        ),
        ("{apart: [{topology: node, weight: 101}]}", "2:45: affinity.apart[0].weight: 101 is not in 0..=100"),
        (
            "{apart: [{topology: node, max_skew: 1}]}",
            "2:37: affinity.apart[0]: unknown key `max_skew`: known are ",
        ),
        (
            "{spread: [{topology: rack, max_skew: 0}]}",
            "2:48: affinity.spread[0].max_skew: 0 is not in 1..=10000",
        ),
        ("{neer: []}", "2:12: affinity: unknown key `neer`: did you mean `near`?"),
    ] {
        let found =
            parse(&format!("name: a\naffinity: {affinity}\ntemplate: {{}}\n")).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{affinity}\nfound    {found}\nexpected {expected}");
    }
}

/// What looks like a number stays the text that it was.
#[test]
fn text_is_never_taken_for_a_number() {
    let text = "\
name: odd
labels: {version: 1.10, commit: 1234567e8, build: 0x1F, one: 1.0, t: True, long: 123456789012345678901234567890123456789012}
template:
  requests: {cpu: 1}
  env: {VERSION: 1.10, COMMIT: 1234567e8, N: 1.0, YES: yes}
  node_selector: {rack: 007}
  command: [server, --ratio, 1.0, --v, 3.10, 0o17]
";
    let spec = parse(text).unwrap().remove(0).spec;
    let meta = spec.meta.unwrap();
    for (key, value) in [
        ("version", "1.10"),
        ("commit", "1234567e8"),
        ("build", "0x1F"),
        ("one", "1.0"),
        ("t", "True"),
        ("long", "123456789012345678901234567890123456789012"),
    ] {
        assert_eq!(meta.labels[key], value);
    }
    let template = spec.task_groups[0].template.clone().unwrap();
    assert_eq!(template.node_selector["rack"], "007");
    let run = template.run.unwrap();
    assert_eq!(
        (run.env["VERSION"].as_str(), run.env["N"].as_str(), run.env["YES"].as_str()),
        ("1.10", "1.0", "yes")
    );
    assert_eq!(run.command, ["server", "--ratio", "1.0", "--v", "3.10", "0o17"]);
}

/// A zero that is written reaches the dispatcher as one, or is refused here.
#[test]
fn zeros_are_not_absent() {
    let unit = |keys: &str| parse(&format!("name: a\n{keys}\n")).map(|mut units| units.remove(0).spec);
    let spec = unit("ttl_after_finished: 0s\npriority: 0\nmax_restarts: 0\nmin_run: 0s\ntemplate: {simulated: {duration: 0s}, stop_grace: 0s}").unwrap();
    assert_eq!((spec.ttl_after_finished_ms, spec.priority, spec.max_restarts), (Some(0), Some(0), Some(0)));
    let run = spec.task_groups[0].template.as_ref().unwrap().run.as_ref().unwrap();
    assert_eq!(run.simulated_duration_ms, Some(0));
    let absent = unit("template: {}").unwrap();
    assert_eq!((absent.ttl_after_finished_ms, absent.priority, absent.max_restarts), (None, None, None));
    for (keys, expected) in [
        (
            "template: {simulated: {duration: 200us}}",
            "2:34: template.simulated.duration: `200us` is finer than a millisecond",
        ),
        (
            "active_deadline: 900us\ntemplate: {}",
            "2:18: active_deadline: `900us` is finer than a millisecond",
        ),
        (
            "active_deadline: 0s\ntemplate: {}",
            "2:18: active_deadline: 0s is too short; leave it out for a unit without a deadline",
        ),
        ("active_deadline: 1M\ntemplate: {}", "2:18: active_deadline: `1M`: `M` would be months"),
        ("scheduling_timeout: 0s\ntemplate: {}", "2:21: scheduling_timeout: 0s is too short"),
        ("min_member: 0\ntemplate: {}", "2:13: min_member: 0 is not in 1..=10000"),
        ("replicas: 0", "2:11: replicas: 0 is not in 1..=100000"),
        ("template: {gpu: {count: 0}}", "2:25: template.gpu.count: 0 is not in 1..=64"),
        ("template: {gpu: {milli: 0}}", "2:25: template.gpu.milli: 0 is not in 1..=1000"),
    ] {
        let found = unit(keys).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{keys}\nfound    {found}\nexpected {expected}");
    }
    assert_eq!(
        unit("active_deadline: 1y\ntemplate: {}").unwrap().active_deadline_ms,
        Some(godel_base::duration::YEAR_MS)
    );
    for (text, expected) in [
        ("kind: queue\nname: q\nweight: 0\n", "3:9: weight: 0 is not in 1..=1000000"),
        ("kind: queue\nname: q\nmax_running_units: 0\n", "3:20: max_running_units: 0 would admit nothing"),
    ] {
        let found = parse_manifest(text).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn mistakes_are_told_with_line_column_and_the_nearest_word() {
    for (text, expected) in [
        ("name: a\nreplicsa: 3\ntemplate: {}\n", "2:1: unknown key `replicsa`: did you mean `replicas`?"),
        (
            "name: a\ntemplate:\n  comand: [x]\n",
            "3:3: template: unknown key `comand`: did you mean `command`?",
        ),
        ("name: a\nzzz: [x]\ntemplate: {}\n", "2:1: unknown key `zzz`: known are kind, name, "),
        (
            "name: a\nclass: sevice\ntemplate: {}\n",
            "2:8: class: unknown value `sevice`: did you mean `service`?",
        ),
        (
            "name: a\npool: zzz\ntemplate: {}\n",
            "2:7: pool: unknown value `zzz`: known are guaranteed, best-effort",
        ),
        (
            "name: a\ntemplate:\n  requests:\n    cpu: 1Gb\n",
            "4:10: template.requests.cpu: `1Gb` is no CPU quantity (`500m`, `2`, `0.5`): `Gb` is no suffix; did you mean `G`?",
        ),
        (
            "name: a\ntemplate:\n  requests: {memory: -1}\n",
            "3:22: template.requests.memory: `-1` is no memory quantity (`512Mi`, `1Gi`, `1.5G`): it is negative",
        ),
        (
            "name: a\ntemplate: {requests: {mem: 1Gi}}\n",
            "2:28: template.requests.mem: did you mean `memory`?",
        ),
        (
            "name: a\ntemplate: {requests: {mem: 100}}\n",
            "2:28: template.requests.mem: did you mean `memory`?",
        ),
        ("name: a\nreplicas: many\ntemplate: {}\n", "2:11: replicas: `many` is not a whole number"),
        ("name: a\nreplicas: [1]\ntemplate: {}\n", "2:11: replicas: expected a single value, found a list"),
        ("name: a\ntemplate: x\n", "2:11: template: expected keys with values"),
        (
            "name: a\nlabels: x\ntemplate: {}\n",
            "2:9: labels: expected keys with values, as `{a: b}`, found text",
        ),
        ("name: a\nlabels:\ntemplate: {}\n", "2:1: labels: the value is missing: give one, or omit the key"),
        (
            "name: a\nlabels: {a: }\ntemplate: {}\n",
            "2:10: labels.a: the value is missing: give one, or `\"\"` for empty text",
        ),
        (
            "name: a\ntemplate: {command: x}\n",
            "2:21: template.command: expected a list, as `[a, b]`, found text",
        ),
        ("replicas: 1\n", "1:1: name: the key is missing"),
        ("name: a\nname: b\ntemplate: {}\n", "2:1: duplicate key `name`, first in line 1, column 1"),
        (
            "name: a\nlabels: {app: web, app: db}\ntemplate: {}\n",
            "2:20: duplicate key `app`, first in line 2, column 10",
        ),
        ("name: a\ntemplate: {env: {A: 1, A: 2}}\n", "2:24: duplicate key `A`, first in line 2, column 18"),
        (
            "name: a\nttl_after_finished: soon\ntemplate: {}\n",
            "2:21: ttl_after_finished: `soon` is no duration",
        ),
        (
            "name: a\ntemplate:\n  requests: {gpu: 1}\n",
            "3:19: template.requests.gpu: use the key `gpu` beside `requests`",
        ),
        ("name: Web\ntemplate: {}\n", "1:7: name: `W` is not allowed"),
        ("name: a\nlabels: {a b: c}\ntemplate: {}\n", "2:15: labels[\"a b\"]: ` ` is not allowed"),
        (
            "name: a\nmin_member: 5\nreplicas: 3\ntemplate: {}\n",
            "2:13: min_member: 5 is above the 3 replicas",
        ),
        ("name: a\n", "1:1: task_groups: at least one is needed"),
        ("name: \"a\\nb\"\ntemplate: {}\n", "1:7: name: `\\n` is not allowed"),
        ("- a\n", "1:1: expected keys with values, found a list"),
        ("kind: pod\nname: a\n", "1:7: kind: unknown value `pod`"),
        ("# nothing\n", "the file has no unit"),
        ("", "the file has no unit"),
    ] {
        let found = parse(text).unwrap_err().to_string();
        let first = found.lines().next().unwrap();
        assert!(first.contains(expected), "{text}\nfound    {first}\nexpected {expected}");
    }
}

#[test]
fn every_mistake_of_every_document_is_told_at_once() {
    let text = "\
name: Web
replicas: many
min_member: 5
template:
  requests: {cpu: 1GB, mem: 5, memory: 2Pi}
  gpu: {count: 65}
  comand: [x]
---
a: [
---
name: fine
template: {}
---
kind: queue
name: prod
min: {cpu: 8, gpu: 2}
max: {cpu: 4}
weigth: 3
---
name: last
task_groups:
- {name: a, replicas: 100001, template: {}}
- {name: a, template: {stop_grace: 2h}}
";
    let found = parse(text).unwrap_err();
    let lines: Vec<String> = found.0.iter().map(ToString::to_string).collect();
    let expected = [
        "1:7: name: `W` is not allowed",
        "2:11: replicas: `many` is not a whole number",
        "5:19: template.requests.cpu: `1GB` is no CPU quantity",
        "5:29: template.requests.mem: did you mean `memory`?",
        "5:40: template.requests.memory: 2Pi is more than 1Pi",
        "6:16: template.gpu.count: 65 is not in 1..=64",
        "7:3: template: unknown key `comand`: did you mean `command`?",
        "",
        "16:12: min.cpu: 8 is above the maximum 4",
        "18:1: unknown key `weigth`: did you mean `weight`?",
        "22:23: task_groups[0].replicas: 100001 is not in 0..=100000",
        "23:10: task_groups[1].name: `a` stands twice",
        "23:36: task_groups[1].template.stop_grace: 2h is longer than 1h",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "found    {line}\nexpected {expected}");
    }
    let told = found.of(Path::new("web.yaml"));
    assert!(told.starts_with("web.yaml:1:7: name: ") && told.lines().count() == expected.len(), "{told}");
    for rust in ["u32", "u64", "struct", "task_groups[0].template", "demand", "_ms"] {
        assert!(!told.contains(rust), "{rust}: {told}");
    }
}

#[test]
fn a_mistake_in_a_later_document_has_its_line_in_the_file() {
    let found = parse("name: a\ntemplate: {}\n---\nname: b\nreplica: 2\n").unwrap_err().0;
    assert!(found.iter().any(|one| (one.line, one.column) == (5, 1)), "{found:?}");
}

#[test]
fn anchors_and_merge_keys_share_what_units_have_in_common() {
    let text = "\
name: a
labels: &labels {app: web, tier: front}
template: &template
  requests: {cpu: 1}
  env: {<<: *labels, tier: own}
---
name: b
template: {}
";
    let spec = parse(text).unwrap().remove(0).spec;
    let run = spec.task_groups[0].template.clone().unwrap().run.unwrap();
    assert_eq!((run.env["app"].as_str(), run.env["tier"].as_str()), ("web", "own"));
    let other = parse("name: a\ntemplate: &t {}\n---\nname: b\ntemplate: *t\n").unwrap_err().to_string();
    assert!(other.contains("5:11: the alias has no anchor before it"), "{other}");
}

#[test]
fn bytes_are_utf_8_with_or_without_a_mark() {
    let marked = [b"\xef\xbb\xbf", WEB.as_bytes()].concat();
    assert_eq!(parse(&decode(marked).unwrap()), parse(WEB));
    let told = |bytes: &[u8]| decode(bytes.to_vec()).unwrap_err().of(Path::new("a.yaml"));
    assert_eq!(told(b"name: a\nowner: \xff\n"), "a.yaml:2:8: the file is not UTF-8 from here on");
    assert_eq!(told(b"\xff\xfen\0"), "a.yaml: the file is UTF-16; save it as UTF-8");
}

/// Cases of quantities as people write them in files, with and without quotes.
#[test]
fn quantities_are_the_same_with_and_without_quotes() {
    for (key, text, amount) in [
        ("memory", "128974848000m", 123 << 20),
        ("memory", "1288490188800m", 1_288_490_189),
        ("memory", "1.2Gi", 1_288_490_189),
        ("memory", "129e6", 129_000_000),
        ("cpu", "1e-1", 100),
        ("cpu", "+1", 1_000),
        ("cpu", "2k", 2_000_000),
        ("cpu", "100n", 1),
        ("cpu", "0.0005", 1),
        ("cpu", "-0", 0),
        ("cpu", "-0.0", 0),
        ("fpga", "2k", 2_000),
    ] {
        for quote in ["", "\"", "'"] {
            let file = format!("name: a\ntemplate: {{requests: {{{key}: {quote}{text}{quote}}}}}\n");
            let spec = parse(&file).unwrap_or_else(|wrong| panic!("{file}{wrong}")).remove(0).spec;
            let demand = spec.task_groups[0].template.clone().unwrap().demand.unwrap();
            assert_eq!(demand.requests.unwrap().amounts[key], amount, "{file}");
        }
    }
    for (key, text, expected) in [
        ("fpga", "500m", "fpga comes in whole numbers"),
        ("memory", "1Kib", "did you mean `Ki`?"),
        ("memory", "2Pi", "2Pi is more than 1Pi"),
        ("memory", "50E", "it is too large"),
        ("cpu", "1e3m", "not a number with a known suffix"),
        ("cpu", "\"1 \"", "not a number with a known suffix"),
        ("cpu", "100%", "not a number with a known suffix"),
        ("cpu", ".inf", "not a number with a known suffix"),
        ("cpu", ".nan", "not a number with a known suffix"),
        ("cpu", "true", "not a number with a known suffix"),
        ("cpu", "null", "the value is missing"),
        ("cpu", "\"\"", "it is empty"),
    ] {
        let file = format!("name: a\ntemplate: {{requests: {{{key}: {text}}}}}\n");
        let found = parse(&file).unwrap_err().to_string();
        assert!(found.contains(expected), "{file}{found}");
    }
}

/// A file for the stream is read faster than it is sent.
#[test]
fn a_file_of_20000_documents_is_read() {
    let text: String = (0..20_000)
        .map(|n| format!("{}---\n", WEB.replace("name: web", &format!("name: web-{n}"))))
        .collect();
    let units = parse(&text).unwrap();
    assert_eq!((units.len(), units[19_999].document), (20_000, 20_000));
}

/// The examples of `docs/` that are files, or parts of files of a unit: with the page and the line where each begins.
fn examples() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages: Vec<_> =
        std::fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    let mut found = Vec::new();
    for page in pages.iter().filter(|page| page.extension().is_some_and(|ending| ending == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        let mut begun: Option<(usize, String)> = None;
        for (at, line) in text.lines().enumerate() {
            match (&mut begun, line) {
                (None, "```yaml") => begun = Some((at + 2, String::new())),
                // Of a script that writes a file.
                (None, line) if line.ends_with("<<'YAML'") => begun = Some((at + 2, String::new())),
                (Some(_), "```" | "YAML") => {
                    let (line, block) = begun.take().unwrap();
                    found.push((format!("{}:{line}", page.file_name().unwrap().to_string_lossy()), block));
                }
                (Some((_, block)), line) => block.push_str(&format!("{line}\n")),
                (None, _) => {}
            }
        }
    }
    found
}

/// The keys at the top of a document.
fn top_keys(document: &str) -> Vec<&str> {
    let top = document.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    top.filter_map(|line| Some(line.split_once(':')?.0)).collect()
}

#[test]
fn examples_of_the_docs_apply() {
    let mut n_files = 0;
    for (place, block) in examples() {
        let is_part = |key: &str| ["template", "topology", "affinity", "class"].contains(&key);
        for document in block.split("---\n").filter(|document| !document.trim().is_empty()) {
            let keys = top_keys(document);
            let has = |key: &str| keys.contains(&key);
            let is_file = has("kind") || has("name");
            if !is_file && !keys.iter().any(|key| is_part(key)) {
                // Scenarios and configurations have readers of their own.
                assert!(
                    keys.iter().all(|key| ["scenario", "scheduler", "covers"].contains(key))
                        || has("scenario"),
                    "{place}: what is this? {keys:?}"
                );
                continue;
            }
            // A part shows some keys of a unit, whose others do not matter.
            let mut text = document.to_owned();
            if !is_file {
                text.push_str("name: example\n");
                if !has("template") && !has("task_groups") {
                    text.push_str("template: {requests: {cpu: 1}}\n");
                }
            }
            n_files += usize::from(is_file);
            if let Err(mistakes) = parse_manifest(&text) {
                panic!("{place}: {mistakes}\n{text}");
            }
        }
    }
    assert!(n_files > 13, "{n_files} files");
}

#[test]
fn a_selector_with_another_operator_is_refused() {
    assert_eq!(label_pair("app=web"), Ok(("app".to_owned(), "web".to_owned())));
    assert_eq!(label_pair("godel.dev/zone="), Ok(("godel.dev/zone".to_owned(), String::new())));
    for text in ["app", "!app", "app!=web", "app==web", "app in (a", "b)", "cores>64", "cores>=64", "=web"] {
        let refused = label_pair(text).unwrap_err();
        assert!(refused.starts_with(&format!("`{text}` is not of the form key=value")), "{refused}");
    }
}
