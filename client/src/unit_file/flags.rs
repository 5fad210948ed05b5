//! A unit from the flags of `godel unit submit`: everything that a unit file with one task group can say.

use std::collections::{BTreeMap, HashMap};

use godel_base::quantity;
use godel_proto::v1;
use godel_wire::to_proto::host_port;

use super::{
    Submit, check, key_of_unit, nearest, node_selector, unit::default_replicas, unit_affinity, unit_topology,
    words, zones,
};

/// The unit that the flags describe.
///
/// # Errors
/// Everything wrong, by flag: `--cpu: what`.
pub fn from_flags(submit: &Submit) -> Result<v1::UnitSpec, Vec<String>> {
    let mut wrong = Vec::new();
    let spec = spec(submit, &mut wrong);
    let told = |flag: &str, wrong: &[String]| wrong.iter().any(|line| line.starts_with(&format!("{flag}:")));
    for violation in check::violations(spec.clone()) {
        let flag = flag_of(&key_of_unit(&violation.field, true), submit);
        if !told(&flag, &wrong) {
            wrong.push(format!("{flag}: {}", violation.description));
        }
    }
    if wrong.is_empty() { Ok(spec) } else { Err(wrong) }
}

fn spec(submit: &Submit, wrong: &mut Vec<String>) -> v1::UnitSpec {
    let word =
        |flag: &str, given: &Option<String>, known: &[(&'static str, i32)], wrong: &mut Vec<String>| {
            let Some(given) = given else { return 0 };
            if let Some((_, number)) = known.iter().find(|(word, _)| word == given) {
                return *number;
            }
            let known: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
            let hint = nearest(given, &known).map_or_else(
                || format!("known are {}", known.join(", ")),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            wrong.push(format!("{flag}: unknown value `{given}`: {hint}"));
            0
        };
    let text = |given: &Option<String>| given.clone().unwrap_or_default();
    let meta = v1::ObjectMeta {
        namespace: submit.namespace.clone(),
        name: text(&submit.name),
        uid: text(&submit.uid),
        labels: once("--label", &submit.labels, wrong),
        owner: text(&submit.owner),
        ..v1::ObjectMeta::default()
    };
    let template = template(submit, wrong);
    let topology = unit_topology::of_flags(submit).unwrap_or_else(|error| {
        wrong.push(error);
        None
    });
    let affinity = unit_affinity::of_flags(submit).unwrap_or_else(|errors| {
        wrong.extend(errors);
        None
    });
    let workload_class = word("--class", &submit.class, &words::CLASS, wrong);
    v1::UnitSpec {
        meta: Some(meta),
        workload_class,
        queue: text(&submit.queue),
        priority: submit.priority,
        priority_class: text(&submit.priority_class),
        pool: word("--pool", &submit.pool, &words::POOL, wrong),
        min_member: submit.min_member,
        restart_policy: word("--restart-policy", &submit.restart_policy, &words::RESTART, wrong),
        profile: text(&submit.profile),
        ttl_after_finished_ms: submit.ttl_after_finished,
        max_restarts: submit.max_restarts,
        on_eviction: submit.on_eviction.unwrap_or_default(),
        on_below_min: submit.on_below_min.unwrap_or_default(),
        on_failure: submit.on_failure.unwrap_or_default(),
        preemptible: submit.preemptible,
        min_run_ms: submit.min_run.unwrap_or_default(),
        max_surge: submit.max_surge.unwrap_or_default(),
        movable: submit.movable,
        scheduling_timeout_ms: submit.scheduling_timeout,
        active_deadline_ms: submit.active_deadline,
        affinity,
        topology,
        generate_name: text(&submit.generate_name),
        task_groups: vec![v1::TaskGroup {
            replicas: submit.replicas.unwrap_or_else(|| default_replicas(workload_class)),
            template: Some(template),
            ..v1::TaskGroup::default()
        }],
    }
}

fn template(submit: &Submit, wrong: &mut Vec<String>) -> v1::Template {
    let mut amounts = BTreeMap::new();
    let own = [("cpu", &submit.cpu), ("memory", &submit.memory)];
    let own = own.into_iter().filter_map(|(name, text)| Some((format!("--{name}"), name, text.as_deref()?)));
    let others = submit.requests.iter();
    let others = others.map(|(name, text)| (format!("--request {name}"), name.as_str(), text.as_str()));
    for (flag, name, text) in own.chain(others) {
        match quantity::parse(name, text) {
            _ if name == quantity::GPU => wrong.push(format!("{flag}: use the flag `--gpu` for GPUs")),
            Err(error) => wrong.push(format!("{flag}: {error}")),
            Ok(amount) if amounts.insert(name.to_owned(), amount).is_some() => {
                wrong.push(format!("{flag}: duplicate `{name}`"));
            }
            Ok(_) => {}
        }
    }
    let gpus = submit.gpu.iter().map(|text| device("--gpu", quantity::GPU, text));
    let others = submit.devices.iter().map(|(kind, text)| device("--device", kind, text));
    let devices =
        gpus.chain(others).filter_map(|read| read.map_err(|error| wrong.push(error)).ok()).collect();
    let tolerations = submit.tolerations.iter().filter_map(|text| {
        toleration(text).map_err(|error| wrong.push(format!("--toleration: {error}"))).ok()
    });
    let tolerations = tolerations.collect();
    let mut template = v1::Template::default();
    wrong.extend(node_selector::of_flags(submit, &mut template).err());
    let max_load = max_load(submit, wrong);
    v1::Template {
        demand: Some(v1::Demand {
            requests: Some(v1::Resources { amounts: amounts.into_iter().collect() }),
            devices,
            host_ports: submit.host_ports.iter().copied().map(host_port).collect(),
            zones: zones::of_flags(submit.zone_policy, submit.cpu_mode),
        }),
        tolerations,
        max_load,
        run: Some(submit.run.run_spec(&submit.command, wrong)),
        ..template
    }
}

fn max_load(submit: &Submit, wrong: &mut Vec<String>) -> Option<v1::MaxLoad> {
    let mut load = v1::MaxLoad::default();
    for (name, text) in &submit.max_load {
        let of = match name.as_str() {
            "cpu" => &mut load.cpu,
            "memory" => &mut load.memory,
            other => {
                wrong.push(format!("--max-load: unknown resource `{other}`: known are cpu, memory"));
                continue;
            }
        };
        match text.parse() {
            Ok(_) if of.is_some() => wrong.push(format!("--max-load: duplicate `{name}`")),
            Ok(percent) => *of = Some(percent),
            Err(_) => wrong.push(format!("--max-load {name}: `{text}` is no percentage, as 80")),
        }
    }
    (!submit.max_load.is_empty()).then_some(load)
}

/// Pairs, each key once.
pub(super) fn once(
    flag: &str,
    pairs: &[(String, String)],
    wrong: &mut Vec<String>,
) -> HashMap<String, String> {
    let mut map = HashMap::new();
    for (key, value) in pairs {
        if map.insert(key.clone(), value.clone()).is_some() {
            wrong.push(format!("{flag}: duplicate `{key}`"));
        }
    }
    map
}

/// `2`, `2:A10`, `0.5`, `0.5:T4|A10`, each with `;key=value` for what they have to be besides.
fn device(flag: &str, kind: &str, text: &str) -> Result<v1::DeviceRequest, String> {
    let bad = || format!("{flag}: `{text}` is neither a count (`2:A10`) nor a share of one (`0.5`)");
    let (which, pairs) = text.split_once(';').map_or((text, None), |(which, pairs)| (which, Some(pairs)));
    let (number, models) = which.split_once(':').unwrap_or((which, ""));
    let mut terms = v1::DeviceTerms::default();
    for pair in pairs.into_iter().flat_map(|pairs| pairs.split(';')) {
        zones::take_term(&mut terms, pair).map_err(|wrong| format!("{flag}: {wrong}"))?;
    }
    let milli = quantity::parse_queued(quantity::GPU, number).ok();
    let milli = milli.and_then(|milli| u32::try_from(milli).ok()).ok_or_else(bad)?;
    let (count, milli_per_device) = match milli {
        0 => return Err(bad()),
        1..1000 => (1, milli),
        _ if milli % 1000 == 0 => (milli / 1000, 1000),
        _ => return Err(bad()),
    };
    Ok(v1::DeviceRequest {
        kind: kind.to_owned(),
        count,
        milli_per_device: Some(milli_per_device),
        models: models.split('|').filter(|model| !model.is_empty()).map(str::to_owned).collect(),
        terms: (terms != v1::DeviceTerms::default()).then_some(terms),
    })
}

/// `key=value:effect`, `key:effect`, `key=value`, `key`, `*`; for so many seconds with `:no-execute=300`.
fn toleration(text: &str) -> Result<v1::Toleration, String> {
    let (taint, effect) = text.rsplit_once(':').map_or((text, None), |(taint, effect)| (taint, Some(effect)));
    let (effect, seconds) = match effect.and_then(|effect| effect.split_once('=')) {
        Some((effect, seconds)) => (Some(effect), Some(seconds)),
        None => (effect, None),
    };
    let tolerated_seconds = seconds
        .map(|given| given.parse().map_err(|_| format!("`{given}` is not a number of seconds")))
        .transpose()?;
    let effect = match effect {
        None => 0,
        Some(given) => {
            let known = words::EFFECT.iter().find(|(word, _)| *word == given);
            let expected = "no-schedule, prefer-no-schedule or no-execute";
            known.map(|(_, number)| *number).ok_or_else(|| format!("unknown effect `{given}`: {expected}"))?
        }
    };
    let (key, value) = taint.split_once('=').map_or((taint, None), |(key, value)| (key, Some(value)));
    let key = if key == "*" { "" } else { key };
    if taint.is_empty() || (key.is_empty() && value.is_some()) {
        return Err(format!("`{text}` has no key; use `*` for all keys"));
    }
    Ok(v1::Toleration {
        key: key.to_owned(),
        any_value: value.is_none(),
        value: value.unwrap_or_default().to_owned(),
        effect,
        tolerated_seconds,
    })
}

/// The flag that a key of unit files has.
fn flag_of(key: &str, submit: &Submit) -> String {
    let named = |prefix: &str| {
        key.strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix("[\""))
            .and_then(|rest| rest.strip_suffix("\"]"))
    };
    if let Some(name) = named("template.requests") {
        let has_own =
            (name == "cpu" && submit.cpu.is_some()) || (name == "memory" && submit.memory.is_some());
        return if has_own { format!("--{name}") } else { format!("--request {name}") };
    }
    for (prefix, flag) in
        [("labels", "--label"), ("template.node_selector", "--node-selector"), ("template.env", "--env")]
    {
        if let Some(name) = named(prefix) {
            return format!("{flag} {name}");
        }
    }
    let prefixes = [
        ("template.simulated.duration", "--duration"),
        ("template.gpu", "--gpu"),
        ("template.devices", "--gpu or --device"),
        ("template.tolerations", "--toleration"),
        ("template.host_ports", "--host-port"),
        ("template.topology.policy", "--zone-policy"),
        ("template.topology.cpu_mode", "--cpu-mode"),
        ("template.max_load", "--max-load"),
        ("template.volumes", "--volume"),
        ("template.node_affinity.required", "--node-selector or --require-nodes"),
        ("template.node_affinity.preferred", "--prefer-nodes"),
        ("template.command", "the command"),
        ("template.requests", "--request"),
        ("topology.required", "--topology"),
        ("topology.preferred", "--prefer-topology"),
        ("topology.homogeneous", "--homogeneous"),
        ("topology.segments", "--segments"),
        ("affinity.near", "--near"),
        ("affinity.apart", "--apart"),
        ("affinity.spread", "--spread"),
        ("labels", "--label"),
        ("template.node_selector", "--node-selector"),
    ];
    if let Some((_, flag)) = prefixes.iter().find(|(prefix, _)| key.starts_with(prefix)) {
        return (*flag).to_owned();
    }
    let leaf = key.rsplit('.').next().unwrap_or(key);
    if leaf.is_empty() { "the unit".to_owned() } else { format!("--{}", leaf.replace('_', "-")) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::unit_file::{keys_of_a_unit, parse};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        submit: Submit,
    }

    fn flags(words: &str) -> Result<v1::UnitSpec, String> {
        let line = ["submit"].into_iter().chain(words.split_whitespace());
        let submit = Line::try_parse_from(line).map_err(|error| error.to_string())?.submit;
        from_flags(&submit).map_err(|wrong| wrong.join("\n"))
    }

    /// Flags that say together what a key of a file says; a unit of flags has one task group, without a name.
    const FLAGS: [(&str, &[&str]); 30] = [
        ("labels", &["label"]),
        ("template.requests", &["cpu", "memory", "request"]),
        ("template.gpu", &["gpu"]),
        ("template.devices", &["gpu", "device"]),
        ("template.tolerations", &["toleration"]),
        ("template.host_ports", &["host-port"]),
        ("template.max_load", &["max-load"]),
        ("template.volumes", &["volume"]),
        ("template.node_affinity.required", &["require-nodes"]),
        ("template.node_affinity.preferred", &["prefer-nodes"]),
        ("template.node_affinity", &["require-nodes", "prefer-nodes"]),
        ("topology.required", &["topology"]),
        ("topology.preferred", &["prefer-topology"]),
        ("topology.homogeneous", &["homogeneous"]),
        ("topology.segments.size", &["segments"]),
        ("topology.segments.within", &["segments"]),
        ("topology.segments", &["segments"]),
        ("affinity.near", &["near"]),
        ("affinity.apart", &["apart"]),
        ("affinity.spread", &["spread"]),
        ("affinity", &["near", "apart", "spread"]),
        ("template.topology.policy", &["zone-policy"]),
        ("template.topology.cpu_mode", &["cpu-mode"]),
        ("template.topology", &["zone-policy", "gpu", "device"]),
        ("template.command", &[]),
        ("template.simulated.duration", &["duration"]),
        ("template.simulated", &["duration", "exit-code"]),
        ("task_groups", &["replicas"]),
        ("template", &["cpu"]),
        ("kind", &["name"]),
    ];

    #[test]
    fn every_key_of_a_unit_file_has_a_flag() {
        let command = <Line as clap::CommandFactory>::command();
        let known: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let keys = keys_of_a_unit();
        assert!(keys.len() > 35, "{keys:?}");
        for key in &keys {
            let parent = key.split("[0]").next().unwrap_or(key);
            let by_hand = FLAGS.iter().find(|(known, _)| {
                *known == key
                    || (*known != "template" && parent.starts_with(known) && !key.contains("simulated.exit"))
            });
            let leaf = key.rsplit('.').next().unwrap_or(key).replace('_', "-");
            let wanted = by_hand.map_or_else(|| vec![leaf.as_str()], |(_, flags)| flags.to_vec());
            for flag in wanted {
                assert!(known.contains(&flag), "key `{key}` of unit files has no flag --{flag}");
            }
        }
    }

    #[test]
    fn flags_and_files_say_the_same() {
        let file = "\
name: web
namespace: shop
uid: 5f0c9a52-5d6f-4c1e-8a53-0f6f8b2f0001
labels: {app: web, version: 1.10}
owner: alice
class: service
queue: prod.search
priority: -7
pool: best-effort
min_member: 2
restart_policy: never
profile: most-allocated
ttl_after_finished: 0s
max_restarts: 0
on_eviction: fail
on_below_min: stop
on_failure: restart
preemptible: false
movable: true
min_run: 5m
scheduling_timeout: 1m
active_deadline: 12h
affinity:
  near: [{units: 'app = db', topology: rack}, {topology: zone, weight: 10}]
  apart: [{topology: node}, {units: 'app in (web), !canary', topology: rack, weight: 5}]
  spread: [{topology: rack}, {topology: rack, max_skew: 2, units: app=web}, {topology: node, max_skew: 3, weight: 5}]
topology: {required: zone, preferred: [node, rack], homogeneous: model, segments: {size: 8, within: rack}}
replicas: 3
template:
  requests: {cpu: 500m, memory: 1.2Gi, fpga: 2}
  devices:
    - {kind: gpu, count: 1, milli: 500, models: [A10, T4], link: nvlink, memory: 1Gi}
    - {kind: nic, count: 2, milli: 1000, gbps: 100, same_zone_as: gpu}
  topology: {policy: none, cpu_mode: reclaimed}
  node_selector: 'zone = a, rack != 3'
  node_affinity: {required: [disk, cores > 64], preferred: [{weight: 10, nodes: '!spot'}, {nodes: disk=ssd}]}
  host_ports: [8080, 53/udp]
  max_load: {cpu: 80, memory: 90}
  volumes: [{name: data, size: 10Gi, path: /var/lib/db}]
  tolerations: [{key: gpu, value: only, effect: no-schedule}, {key: spot}, {}, {key: dead, effect: no-execute, tolerated_seconds: 300}]
  command: [server, --port, 8080]
  env: {MODE: 1.0}
  stop_grace: 30s
  eviction_notice: 5s
  checkpoint_every: 15m
  simulated: {duration: 0s, exit_code: 3}
";
        let words = "--name web -n shop --uid 5f0c9a52-5d6f-4c1e-8a53-0f6f8b2f0001 --label app=web,version=1.10 \
            --owner alice --class service --queue prod.search --priority -7 --pool best-effort --min-member 2 \
            --restart-policy never --profile most-allocated --ttl-after-finished 0s --max-restarts 0 \
            --on-eviction fail --on-below-min stop --on-failure restart --preemptible false --movable true --min-run 5m --scheduling-timeout 1m \
            --topology zone --prefer-topology node,rack --homogeneous model --segments 8@rack \
            --near rack:app=db --near 10@zone --apart node --apart 5@rack:app=web,!canary --spread rack \
            --spread rack=2:app=web --spread 5@node=3 --active-deadline 12h --replicas 3 --cpu 500m --memory 1.2Gi --request fpga=2 --gpu 0.5:A10|T4;link=nvlink;memory=1Gi \
            --device nic=2;gbps=100;same_zone_as=gpu --zone-policy none --cpu-mode reclaimed \
            --node-selector zone=a --node-selector rack!=3 --require-nodes disk --require-nodes cores>64 \
            --prefer-nodes 10:!spot --prefer-nodes disk=ssd --host-port 8080,53/udp --max-load cpu=80,memory=90 --volume data=10Gi:/var/lib/db \
            --toleration gpu=only:no-schedule,spot,*,dead:no-execute=300 --env MODE=1.0 --stop-grace 30s --eviction-notice 5s --checkpoint-every 15m \
            --duration 0s --exit-code 3 -- server --port 8080";
        assert_eq!(flags(words).unwrap(), parse(file).unwrap().remove(0).spec);
        let surging = "name: a\nclass: service\nmax_surge: 2\ntemplate: {requests: {cpu: 1}}\n";
        let said = flags("--name a --class service --max-surge 2 --cpu 1").unwrap();
        assert_eq!(said, parse(surging).unwrap().remove(0).spec);
        let class = flags("--name a --cpu 1 --priority-class gold").unwrap();
        assert_eq!((class.priority, class.priority_class.as_str()), (None, "gold"));
    }

    #[test]
    fn what_is_wrong_is_told_by_flag_all_at_once() {
        let told = flags(
            "--name Web --cpu 1GB --request mem=1Gi,fpga=500m --class sevice --replicas 0 --label a=b,a=c --gpu 1.5",
        );
        let told = told.unwrap_err();
        let expected = [
            "--label: duplicate `a`",
            "--cpu: `1GB` is no CPU quantity",
            "--request mem: did you mean `memory`?",
            "--request fpga: `500m` is no number of fpga (`3`, `2k`): fpga comes in whole numbers",
            "--gpu: `1.5` is neither a count",
            "--class: unknown value `sevice`: did you mean `service`?",
            "--name: `W` is not allowed",
            "--replicas: 0 is not in 1..=100000",
        ];
        for expected in expected {
            assert!(told.contains(expected), "{expected}\n{told}");
        }
        for (words, expected) in [
            ("--active-deadline 900us", "finer than a millisecond"),
            ("--active-deadline 1M", "would be months"),
            ("--active-deadline 0s", "--active-deadline: 0s is too short"),
            ("--min-member 0", "--min-member: 0 is not in 1..=10000"),
            ("--toleration =x", "has no key"),
            ("--toleration a:never", "unknown effect `never`"),
            ("--max-load disk=3", "--max-load: unknown resource `disk`"),
            ("--max-load cpu=x", "--max-load cpu: `x` is no percentage"),
            ("--max-load cpu=1,cpu=2", "--max-load: duplicate `cpu`"),
            ("--max-load cpu=0", "--max-load: 0 is not in 1..=100"),
            ("--env A=B --env A=C", "--env: duplicate `A`"),
            ("--label Ä=b", "--label Ä: `Ä` is not allowed"),
            ("--request gpu=1", "`--gpu`"),
            ("--gpu 1;speed=2", "--gpu: unknown key `speed`: link, gbps, memory, same_zone_as or profile"),
            ("--gpu 1;gbps=fast", "--gpu: gbps: `fast` is not a number"),
            ("--device nic=1;same_zone_as=gpu", "`gpu` names a kind that is not requested"),
            ("--zone-policy single", "expected one of none, best-effort, restricted, single-zone, exclusive"),
            ("--cpu-mode reclaimed", "--cpu-mode: reclaimed CPUs are for units of the best-effort pool"),
            ("--near :app=db", "--near: no topology key is given"),
            ("--near rack=2", "--near: `=` is not allowed"),
            ("--apart 101@rack", "--apart: 101 is not in 0..=100"),
            ("--apart x@rack", "--apart: `x` is no weight"),
            ("--apart rack:a=b=c,", "--apart: `` is no condition"),
            ("--spread rack=0", "--spread: 0 is not in 1..=10000"),
            ("--spread rack --spread =2", "--spread: no topology key is given"),
        ] {
            let told = flags(&format!("--name a --cpu 1 {words}")).unwrap_err();
            assert!(told.contains(expected), "{words}: {told}");
        }
    }

    #[test]
    fn gpus_are_counts_or_shares() {
        let of = |text: &str| {
            device("--gpu", quantity::GPU, text)
                .map(|asked| (asked.count, asked.milli_per_device(), asked.models.join(",")))
        };
        assert_eq!(of("2").unwrap(), (2, 1000, String::new()));
        assert_eq!(of("1:A10").unwrap(), (1, 1000, "A10".to_owned()));
        assert_eq!(of("0.25:A10|T4").unwrap(), (1, 250, "A10,T4".to_owned()));
        for bad in ["0", "1.5", "many", "-1", ""] {
            assert!(of(bad).unwrap_err().starts_with("--gpu: "), "{bad}");
        }
    }
}
