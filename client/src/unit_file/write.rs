//! Units as files: what [`super::unit`] reads, written back. A file of a unit's record can be submitted elsewhere, or
//! changed and given to `godel unit edit`.
//!
//! Every value is written, also where it is a default: what the unit is does not depend on the version that reads the
//! file. Left out are the uid, which is this unit's own, and how many replicas a daemon has, which the nodes say.

use godel_base::{duration, quantity, resources::MEMORY};
use godel_domain::unit::UnitSpec;
use godel_proto::v1;
use godel_rules::admission::{admit, same::spec_differences};
use godel_wire::{from_proto, ops::host_port};

use super::{Document, parse_manifest, words, yaml_out::Yaml};

/// A unit that no file says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no unit file says {0} of this unit: it was submitted through the API")]
pub struct NoFile(String);

/// The file of a unit, as it is in a record or in a submission.
///
/// # Errors
/// The unit says something that has no notation in files, as a condition on a label whose value has a comma.
pub fn to_file(spec: &v1::UnitSpec) -> Result<String, NoFile> {
    let text = unit(spec).document();
    let read = match parse_manifest(&text) {
        Ok(documents) => documents.into_iter().next().map(|(_, document)| document),
        Err(mistakes) => return Err(NoFile(format!("all that is said ({mistakes})"))),
    };
    let Some(Document::Unit(read)) = read else { return Err(NoFile("all that is said".to_owned())) };
    let (Some(known), Some(read)) = (admitted(spec), admitted(&read)) else {
        return Err(NoFile("all that is said".to_owned()));
    };
    let found = spec_differences(&known, &read);
    if found.is_empty() { Ok(text) } else { Err(NoFile(found.to_string())) }
}

/// A unit with its defaults filled in. The replicas of a daemon follow the nodes.
fn admitted(spec: &v1::UnitSpec) -> Option<UnitSpec> {
    let mut submission = from_proto::submission(spec.clone());
    submission.uid = uuid::Uuid::nil().to_string();
    if spec.workload_class() == v1::WorkloadClass::Daemon {
        submission.task_groups.iter_mut().for_each(|group| group.replicas = 0);
    }
    admit(submission).ok().map(|admitted| admitted.spec)
}

/// The word of a number of the API; `None` for 0, which says nothing.
fn word(number: i32, words: &[(&'static str, i32)]) -> Option<Yaml> {
    words.iter().find(|(_, known)| *known == number).map(|(word, _)| Yaml::plain(word))
}

/// Whether a unit is written in the short form, with the template of its only task group at the top.
pub(super) fn is_short(task_groups: &[v1::TaskGroup]) -> bool {
    matches!(task_groups, [one] if matches!(one.name.as_str(), "" | "main") && one.min_member.is_none() && one.topology.is_none())
}

fn unit(spec: &v1::UnitSpec) -> Yaml {
    // A new field breaks the build here: say how a file writes it.
    let v1::UnitSpec {
        meta,
        workload_class,
        task_groups,
        min_member,
        queue,
        priority,
        priority_class,
        pool,
        restart_policy,
        profile,
        ttl_after_finished_ms,
        max_restarts,
        preemptible,
        min_run_ms,
        on_eviction,
        on_below_min,
        on_failure,
        scheduling_timeout_ms,
        active_deadline_ms,
        affinity,
        topology,
        generate_name,
        max_surge,
        movable,
    } = spec;
    let v1::ObjectMeta { namespace, name, labels, owner, .. } = meta.clone().unwrap_or_default();
    let is_daemon = spec.workload_class() == v1::WorkloadClass::Daemon;
    let mut out = Yaml::map();
    out.text("name", &name);
    out.text("generate_name", generate_name);
    out.text("namespace", &namespace);
    out.texts_by_key("labels", &labels);
    out.text("owner", &owner);
    out.put("class", word(*workload_class, &words::CLASS));
    out.text("queue", queue);
    out.put("priority", priority.map(Yaml::plain));
    out.text("priority_class", priority_class);
    out.put("pool", word(*pool, &words::POOL));
    out.put("min_member", min_member.filter(|_| !is_daemon).map(Yaml::plain));
    out.put("restart_policy", word(*restart_policy, &words::RESTART));
    out.put("max_restarts", max_restarts.map(Yaml::plain));
    out.put("on_eviction", word(*on_eviction, &words::ON_EVICTION));
    out.put("on_below_min", word(*on_below_min, &words::ON_BELOW_MIN));
    out.put("on_failure", word(*on_failure, &words::ON_FAILURE));
    out.put("preemptible", preemptible.map(Yaml::plain));
    out.put("max_surge", (*max_surge > 0).then(|| Yaml::plain(max_surge)));
    out.put("movable", movable.map(Yaml::plain));
    out.put("min_run", (*min_run_ms > 0).then(|| lasting(*min_run_ms)));
    out.put("scheduling_timeout", scheduling_timeout_ms.map(lasting));
    out.put("active_deadline", active_deadline_ms.map(lasting));
    out.put("ttl_after_finished", ttl_after_finished_ms.map(lasting));
    out.text("profile", profile);
    out.put("affinity", affinity.as_ref().map(unit_affinity));
    out.put("topology", topology.as_ref().map(unit_topology));
    if let ([one], true) = (task_groups.as_slice(), is_short(task_groups)) {
        out.put("replicas", (!is_daemon).then(|| Yaml::plain(one.replicas)));
        out.put("template", Some(template(&one.template.clone().unwrap_or_default())));
        return out;
    }
    let groups = task_groups.iter().map(|group| {
        let v1::TaskGroup { name, replicas, template: one, min_member, topology } = group;
        let mut out = Yaml::map();
        out.text("name", name);
        out.put("replicas", (!is_daemon).then(|| Yaml::plain(replicas)));
        out.put("min_member", min_member.map(Yaml::plain));
        out.put("topology", topology.as_ref().map(unit_topology));
        out.put("template", Some(template(&one.clone().unwrap_or_default())));
        out
    });
    out.list("task_groups", groups);
    out
}

fn lasting(ms: u64) -> Yaml {
    Yaml::plain(duration::show_ms(ms))
}

fn template(one: &v1::Template) -> Yaml {
    let v1::Template { demand, node_selector, tolerations, run, node_affinity: affinity, max_load } = one;
    let v1::Demand { requests, devices, host_ports, zones } = demand.clone().unwrap_or_default();
    let mut out = Yaml::map();
    let mut amounts: Vec<(String, i64)> = requests.unwrap_or_default().amounts.into_iter().collect();
    amounts.sort();
    let mut asked = Yaml::map();
    for (name, amount) in amounts {
        asked.put(&name, Some(Yaml::plain(quantity::show(&name, amount))));
    }
    out.some("requests", asked);
    out.list("devices", devices.iter().map(device));
    out.list("host_ports", host_ports.iter().filter_map(|port| host_port(port).map(Yaml::plain)));
    if let Some(v1::ZoneRequest { policy, cpu_mode }) = zones {
        let mut zones = Yaml::map();
        zones.put("policy", word(policy, &words::ZONE_POLICY));
        zones.put("cpu_mode", word(cpu_mode, &words::CPU_MODE));
        out.some("topology", zones);
    }
    out.texts_by_key("node_selector", node_selector);
    out.put("node_affinity", affinity.as_ref().map(node_affinity));
    out.list("tolerations", tolerations.iter().map(toleration));
    if let Some(v1::MaxLoad { cpu, memory }) = max_load {
        let mut load = Yaml::map();
        load.put("cpu", cpu.map(Yaml::plain));
        load.put("memory", memory.map(Yaml::plain));
        out.some("max_load", load);
    }
    run_spec(&run.clone().unwrap_or_default(), &mut out);
    out
}

fn run_spec(run: &v1::RunSpec, out: &mut Yaml) {
    let v1::RunSpec {
        command,
        env,
        simulated_duration_ms,
        simulated_exit_code,
        stop_grace_ms,
        eviction_notice_ms,
        checkpoint_every_ms,
        await_command_ms,
        working_directory,
        user,
        umask,
        image,
        volumes,
    } = run;
    out.text("image", image);
    out.list("command", command.iter().map(|word| Yaml::text_of(word)));
    out.texts_by_key("env", env);
    out.text("working_directory", working_directory);
    out.text("user", user);
    out.put("umask", umask.map(|umask| Yaml::plain(format!("{umask:#o}"))));
    out.put("stop_grace", (*stop_grace_ms > 0).then(|| lasting(u64::from(*stop_grace_ms))));
    out.put("eviction_notice", (*eviction_notice_ms > 0).then(|| lasting(u64::from(*eviction_notice_ms))));
    out.put("checkpoint_every", checkpoint_every_ms.map(lasting));
    out.put("await_command", await_command_ms.map(lasting));
    out.list("volumes", volumes.iter().map(volume));
    let mut simulated = Yaml::map();
    simulated.put("duration", simulated_duration_ms.map(lasting));
    simulated.put("exit_code", (*simulated_exit_code != 0).then(|| Yaml::plain(simulated_exit_code)));
    out.some("simulated", simulated);
}

fn volume(v1::Volume { name, bytes, path }: &v1::Volume) -> Yaml {
    let mut out = Yaml::map();
    out.text("name", name);
    let bytes = i64::try_from(*bytes).unwrap_or(i64::MAX);
    out.put("size", Some(Yaml::plain(quantity::show(MEMORY, bytes))));
    out.text("path", path);
    out
}

fn device(request: &v1::DeviceRequest) -> Yaml {
    let v1::DeviceRequest { kind, count, milli_per_device, models, terms } = request;
    let v1::DeviceTerms { link, gbps, memory, same_zone_as, profile } = terms.clone().unwrap_or_default();
    let mut out = Yaml::map();
    out.text("kind", if kind.is_empty() { quantity::GPU } else { kind });
    out.put("count", Some(Yaml::plain(count)));
    out.put("milli", milli_per_device.map(Yaml::plain));
    out.list("models", models.iter().map(|model| Yaml::text_of(model)));
    out.text("link", &link);
    out.put("gbps", (gbps > 0).then(|| Yaml::plain(gbps)));
    out.put("memory", (memory > 0).then(|| Yaml::plain(quantity::show(MEMORY, memory))));
    out.text("same_zone_as", &same_zone_as);
    out.text("profile", &profile);
    out
}

fn toleration(one: &v1::Toleration) -> Yaml {
    let v1::Toleration { key, value, any_value, effect, tolerated_seconds } = one;
    let mut out = Yaml::map();
    out.text("key", key);
    out.put("value", (!any_value).then(|| Yaml::text_of(value)));
    out.put("effect", word(*effect, &words::EFFECT));
    out.put("tolerated_seconds", tolerated_seconds.map(Yaml::plain));
    out
}

/// Conditions in the notation in which files write them.
fn conditions(all_of: &[v1::LabelExpression]) -> Yaml {
    let all: Vec<_> =
        all_of.iter().cloned().filter_map(|one| from_proto::label_expression(one).ok()).collect();
    Yaml::text_of(&godel_domain::label_expression::show(&all))
}

fn node_affinity(affinity: &v1::NodeAffinity) -> Yaml {
    let v1::NodeAffinity { required, preferred } = affinity;
    let mut out = Yaml::map();
    out.list("required", required.iter().map(|term| conditions(&term.all_of)));
    let preferred = preferred.iter().map(|one| {
        let mut out = Yaml::map();
        out.put("weight", Some(Yaml::plain(one.weight)));
        out.put("nodes", Some(conditions(&one.nodes.clone().unwrap_or_default().all_of)));
        out
    });
    out.list("preferred", preferred);
    out
}

fn unit_affinity(affinity: &v1::UnitAffinity) -> Yaml {
    let term = |units: &[v1::LabelExpression], topology: &str, weight: u32| {
        let mut out = Yaml::map();
        out.put("units", (!units.is_empty()).then(|| conditions(units)));
        out.text("topology", topology);
        out.put("weight", (weight > 0).then(|| Yaml::plain(weight)));
        out
    };
    let unit_term = |one: &v1::UnitTerm| term(&one.units, &one.topology, one.weight);
    let v1::UnitAffinity { near, apart, spread } = affinity;
    let mut out = Yaml::map();
    out.list("near", near.iter().map(unit_term));
    out.list("apart", apart.iter().map(unit_term));
    let spread = spread.iter().map(|one| {
        let mut out = term(&one.units, &one.topology, one.weight);
        out.put("max_skew", one.max_skew.map(Yaml::plain));
        out
    });
    out.list("spread", spread);
    out
}

fn unit_topology(topology: &v1::UnitTopology) -> Yaml {
    let v1::UnitTopology { required, preferred, homogeneous, segments } = topology;
    let mut out = Yaml::map();
    out.text("required", required);
    out.list("preferred", preferred.iter().map(|key| Yaml::text_of(key)));
    out.text("homogeneous", homogeneous);
    if let Some(v1::Segments { size, within }) = segments {
        let mut segments = Yaml::map();
        segments.put("size", Some(Yaml::plain(size)));
        segments.text("within", within);
        out.some("segments", segments);
    }
    out
}

#[cfg(test)]
mod tests;
