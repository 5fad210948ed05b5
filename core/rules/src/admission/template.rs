//! Checks of one replica: what it takes, where it may go, what runs.

use std::{borrow::Cow, collections::BTreeMap};

use godel_base::{
    duration,
    quantity::GPU,
    quantity::MILLI_WHOLE,
    resources::{N_NAMES_MAX, Resources},
};
use godel_domain::{
    defaults::{AppliedDefault, DefaultValue},
    demand::{Demand, DeviceRequest, N_DEVICE_REQUESTS_MAX, N_DEVICES_MAX, Pool},
    host_port::{HostPort, N_HOST_PORTS_MAX, Protocol},
    limits::{
        AMOUNT_MAX, AWAIT_COMMAND_MS_MAX, CHECKPOINT_EVERY_MS_MAX, CHECKPOINT_EVERY_MS_MIN,
        EVICTION_NOTICE_MS_MAX, STOP_GRACE_MS_MAX, amount_out_of_range,
    },
    names::{self, ENTRIES_MAX},
    node::{TaintEffect, Toleration},
    node_load::MaxLoad,
    submission::{DeviceSubmission, Given, GroupSubmission, TolerationSubmission},
    unit::{RunSpec, Template, Volume},
};

use super::{TemplateReport, affinity, zones};

/// Longest path of Linux.
const PATH_LEN_MAX: usize = 4_096;
const USER_LEN_MAX: usize = 256;
/// A registry, a path, a tag and a digest fit twice.
const IMAGE_LEN_MAX: usize = 512;
const UMASK_MAX: u32 = 0o777;
const N_VOLUMES_MAX: usize = 16;
const VOLUME_NAME_LEN_MAX: usize = 63;
/// One EiB: amounts are signed numbers elsewhere.
const VOLUME_BYTES_MAX: u64 = 1 << 60;

pub(super) fn template(
    group: GroupSubmission,
    pool: Pool,
    report: &mut TemplateReport<'_>,
    defaults: &mut Vec<AppliedDefault>,
) -> Template {
    let requests = requests(group.requests, report);
    let devices = device_requests(group.devices, report, defaults);
    zones::check_beside(&devices, report);
    let host_ports = host_ports(&group.host_ports, report);
    let zones = zones::zones(group.zones, &requests, pool, report, defaults);
    check_selector(&group.node_selector, report);
    if group.tolerations.len() > ENTRIES_MAX {
        report.add("tolerations", format_args!("{} entries; at most {ENTRIES_MAX}", group.tolerations.len()));
    }
    let tolerations = group
        .tolerations
        .into_iter()
        .take(ENTRIES_MAX)
        .enumerate()
        .map(|(at, one)| toleration(at, one, report));
    let tolerations = tolerations.collect();
    let node_affinity = affinity::node_affinity(report.idx, group.node_affinity, report.report);
    check_max_load(group.max_load, report);
    check_run(&group.run, report);
    Template {
        demand: Demand { requests, devices, host_ports, zones },
        node_selector: group.node_selector,
        tolerations,
        node_affinity,
        max_load: group.max_load,
        run: group.run,
    }
}

fn requests(requests: Vec<(String, i64)>, report: &mut TemplateReport<'_>) -> Resources {
    if requests.len() > N_NAMES_MAX {
        report.add("demand.requests", format_args!("{} names; at most {N_NAMES_MAX}", requests.len()));
    }
    let mut sound = Vec::with_capacity(requests.len());
    for (name, amount) in requests {
        report.named(format_args!("demand.requests[{name:?}]"), names::asked(&name));
        if (0..=AMOUNT_MAX).contains(&amount) {
            sound.push((name, amount));
        } else {
            report.add(format_args!("demand.requests[{name:?}]"), amount_out_of_range(&name, amount));
        }
    }
    Resources::new(sound).unwrap_or_default()
}

fn device_requests(
    devices: Vec<DeviceSubmission>,
    report: &mut TemplateReport<'_>,
    defaults: &mut Vec<AppliedDefault>,
) -> Vec<DeviceRequest> {
    if devices.len() > N_DEVICE_REQUESTS_MAX {
        report.add(
            "demand.devices",
            format_args!("{} requests; at most {N_DEVICE_REQUESTS_MAX}", devices.len()),
        );
    }
    let mut requests: Vec<DeviceRequest> = Vec::with_capacity(devices.len());
    for (at, devices) in devices.into_iter().take(N_DEVICE_REQUESTS_MAX).enumerate() {
        let request = device_request(at, devices, report, defaults);
        if requests.iter().any(|other| other.kind == request.kind) {
            report.add(
                format_args!("demand.devices[{at}].kind"),
                format_args!("duplicate kind `{}`", request.kind),
            );
        }
        requests.push(request);
    }
    requests
}

fn device_request(
    at: usize,
    devices: DeviceSubmission,
    report: &mut TemplateReport<'_>,
    defaults: &mut Vec<AppliedDefault>,
) -> DeviceRequest {
    let field = |leaf: &str| format!("demand.devices[{at}].{leaf}");
    let kind = match devices.kind.as_str() {
        "" => {
            defaults.push(AppliedDefault {
                field: Cow::Owned(report.path_of(field("kind"))),
                value: DefaultValue::Word(GPU),
            });
            GPU.to_owned()
        }
        kind => {
            report.named(field("kind"), names::device_kind(kind));
            devices.kind
        }
    };
    let milli = devices.milli.unwrap_or_else(|| {
        let value = DefaultValue::Number(i64::from(MILLI_WHOLE));
        defaults.push(AppliedDefault { field: Cow::Owned(report.path_of(field("milli_per_device"))), value });
        MILLI_WHOLE
    });
    if !(1..=N_DEVICES_MAX).contains(&(devices.count as usize)) {
        report.add(field("count"), format_args!("{} is not in 1..={N_DEVICES_MAX}", devices.count));
    }
    if !(1..=MILLI_WHOLE).contains(&milli) {
        report.add(field("milli_per_device"), format_args!("{milli} is not in 1..={MILLI_WHOLE}"));
    } else if milli < MILLI_WHOLE && devices.count > 1 {
        report.add(
            field("milli_per_device"),
            format_args!("a share ({milli}) can be asked of one device only, not of {}", devices.count),
        );
    }
    if devices.models.len() > ENTRIES_MAX {
        report.add(field("models"), format_args!("{} models; at most {ENTRIES_MAX}", devices.models.len()));
    }
    let at_request = at;
    for (at, model) in devices.models.iter().enumerate().take(ENTRIES_MAX) {
        if model.is_empty() {
            report.add(format_args!("{}[{at}]", field("models")), "empty");
        }
        report.named(format_args!("{}[{at}]", field("models")), names::text(model, names::NAMESPACE_LEN_MAX));
    }
    let terms = zones::device_terms(at_request, devices.terms, devices.count, milli, report);
    DeviceRequest { kind, count: devices.count, milli, models: devices.models, terms }
}

fn check_max_load(MaxLoad { cpu, memory }: MaxLoad, report: &mut TemplateReport<'_>) {
    for (name, percent) in [("cpu", cpu), ("memory", memory)] {
        if let Some(percent) = percent.filter(|percent| !(1..=100).contains(percent)) {
            report.add(format_args!("max_load.{name}"), format_args!("{percent} is not in 1..=100"));
        }
    }
}

fn host_ports(given: &[(u32, i32)], report: &mut TemplateReport<'_>) -> Vec<HostPort> {
    let field = |leaf: &str| format!("demand.host_ports{leaf}");
    if given.len() > N_HOST_PORTS_MAX {
        report.add(field(""), format_args!("{} ports; at most {N_HOST_PORTS_MAX}", given.len()));
    }
    let mut ports = Vec::with_capacity(given.len());
    for (at, (port, protocol)) in given.iter().enumerate().take(N_HOST_PORTS_MAX) {
        let protocol = match protocol {
            0 | 1 => Protocol::Tcp,
            2 => Protocol::Udp,
            code => {
                report.add(field(&format!("[{at}].protocol")), format_args!("{code} stands for nothing"));
                continue;
            }
        };
        let Some(port) = u16::try_from(*port).ok().filter(|port| *port > 0) else {
            report.add(field(&format!("[{at}].port")), format_args!("{port} is not in 1..=65535"));
            continue;
        };
        let port = HostPort { port, protocol };
        if ports.contains(&port) {
            report.add(field(&format!("[{at}]")), format_args!("duplicate port {port}"));
        }
        ports.push(port);
    }
    ports
}

fn check_selector(selector: &BTreeMap<String, String>, report: &mut TemplateReport<'_>) {
    if selector.len() > ENTRIES_MAX {
        report.add("node_selector", format_args!("{} entries; at most {ENTRIES_MAX}", selector.len()));
    }
    for (key, value) in selector {
        for checked in [names::label_key(key), names::text(value, names::NAME_LEN_MAX)] {
            report.named(format_args!("node_selector[{key:?}]"), checked);
        }
    }
}

fn toleration(at: usize, given: TolerationSubmission, report: &mut TemplateReport<'_>) -> Toleration {
    if !given.key.is_empty() {
        report.named(format_args!("tolerations[{at}].key"), names::label_key(&given.key));
    }
    if given.any_value && !given.value.is_empty() {
        report.add(format_args!("tolerations[{at}].value"), "must be empty together with any_value");
    }
    let effect = match given.effect {
        Given::Absent => None,
        Given::Value(effect) => Some(effect),
        Given::Unknown(code) => {
            report.add(format_args!("tolerations[{at}].effect"), format_args!("{code} stands for nothing"));
            None
        }
    };
    if given.tolerated_s.is_some() && effect != Some(TaintEffect::NoExecute) {
        report.add(format_args!("tolerations[{at}].tolerated_seconds"), "is for the effect no-execute only");
    }
    let value = (!given.any_value).then_some(given.value);
    Toleration { key: given.key, value, effect, tolerated_s: given.tolerated_s }
}

fn check_run(run: &RunSpec, report: &mut TemplateReport<'_>) {
    if run.command.first().is_some_and(String::is_empty) {
        report.add("run.command[0]", "no program");
    }
    for (at, argument) in run.command.iter().enumerate() {
        report.named(format_args!("run.command[{at}]"), names::argument(argument));
    }
    for (key, value) in &run.env {
        for checked in [names::variable(key), names::argument(value)] {
            report.named(format_args!("run.env[{key:?}]"), checked);
        }
    }
    if let Some(await_ms) = run.await_command_ms {
        check_await_command(run, await_ms, report);
    }
    check_place(run, report);
    check_image(run, report);
    check_volumes(run, report);
    let durations = [
        ("stop_grace_ms", run.stop_grace_ms, STOP_GRACE_MS_MAX),
        ("eviction_notice_ms", run.eviction_notice_ms, EVICTION_NOTICE_MS_MAX),
    ];
    for (field, given, max) in durations.into_iter().filter(|(_, given, max)| given > max) {
        let (given, max) = (duration::show_ms(u64::from(given)), duration::show_ms(u64::from(max)));
        report.add(format_args!("run.{field}"), format_args!("{given} is longer than {max}"));
    }
    if let Some(every_ms) = run.checkpoint_every_ms {
        let (min, max) = (CHECKPOINT_EVERY_MS_MIN, CHECKPOINT_EVERY_MS_MAX);
        if !(min..=max).contains(&every_ms) {
            let [given, min, max] = [every_ms, min, max].map(duration::show_ms);
            report.add("run.checkpoint_every_ms", format_args!("{given} is not in {min} to {max}"));
        }
    }
}

/// Where and as whom a command runs: whether there is such a directory and user only its node can say.
fn check_place(run: &RunSpec, report: &mut TemplateReport<'_>) {
    if let Some(directory) = &run.working_directory {
        let field = "run.working_directory";
        report.named(field, names::argument(directory));
        if !directory.starts_with('/') || directory.len() > PATH_LEN_MAX {
            report.add(
                "run.working_directory",
                format_args!("it is not an absolute path of at most {PATH_LEN_MAX} bytes"),
            );
        }
    }
    if let Some(user) = &run.user {
        // In a container a user may have a group behind it, as Docker writes it.
        let is_apart = |char| matches!(char, '/' | ',') || char == ':' && run.image.is_none();
        let is_word = user.chars().all(|char| char.is_ascii_graphic() && !is_apart(char));
        if !is_word || user.len() > USER_LEN_MAX {
            report.add("run.user", "it is neither the name nor the number of a user");
        }
    }
    if let Some(umask) = run.umask.filter(|umask| *umask > UMASK_MAX) {
        report.add("run.umask", format_args!("{umask:#o} is more than {UMASK_MAX:#o}"));
    }
}

/// The name of an image, whose registry knows more of names, and what goes with one.
fn check_image(run: &RunSpec, report: &mut TemplateReport<'_>) {
    let Some(image) = &run.image else { return };
    // It becomes a part of the address of a request on its node.
    let is_part = |char: char| char.is_ascii_alphanumeric() || "._-/:@+".contains(char);
    let begins = image.starts_with(|char: char| char.is_ascii_alphanumeric());
    let wrong = if !begins || !image.chars().all(is_part) || image.contains("..") {
        "it is not the name of an image, as `registry/path/name:tag`".to_owned()
    } else if image.len() > IMAGE_LEN_MAX {
        format!("it is longer than {IMAGE_LEN_MAX} bytes")
    } else if run.umask.is_some() {
        "an image excludes `umask`: the image says it".to_owned()
    } else {
        return;
    };
    report.add("run.image", wrong);
}

/// Names and paths of volumes, which become directories and mount points of their node.
fn check_volumes(run: &RunSpec, report: &mut TemplateReport<'_>) {
    let field = |leaf: &str| format!("run.volumes{leaf}");
    if run.volumes.len() > N_VOLUMES_MAX {
        let n = run.volumes.len();
        report.add(field(""), format_args!("{n} volumes; at most {N_VOLUMES_MAX}"));
    }
    for (at, volume) in run.volumes.iter().enumerate().take(N_VOLUMES_MAX) {
        let before = &run.volumes[..at];
        let Volume { name, bytes, path } = volume;
        report.named(field(&format!("[{at}].name")), names::name(name, VOLUME_NAME_LEN_MAX));
        if before.iter().any(|other| other.name == *name) {
            report.add(field(&format!("[{at}].name")), format_args!("duplicate name `{name}`"));
        }
        if !(1..=VOLUME_BYTES_MAX).contains(bytes) {
            report.add(
                field(&format!("[{at}].bytes")),
                format_args!("{bytes} is not in 1..={VOLUME_BYTES_MAX}"),
            );
        }
        let wrong = match path {
            None if run.image.is_some() => {
                Some("empty: a container needs the path at which it finds the volume")
            }
            None => None,
            Some(path) if before.iter().any(|other| other.path.as_ref() == Some(path)) => {
                Some("another volume of the template has this path")
            }
            Some(path) => (!is_mount_point(path))
                .then_some("it is not an absolute path below `/`, without `..` and `:`"),
        };
        if let Some(wrong) = wrong {
            report.add(field(&format!("[{at}].path")), wrong);
        }
    }
}

fn is_mount_point(path: &str) -> bool {
    let parts = path.split('/').skip(1);
    path.starts_with('/')
        && path.len() <= PATH_LEN_MAX
        && names::argument(path).is_ok()
        // It separates the two sides of a mount.
        && !path.contains(':')
        && parts.clone().all(|part| !matches!(part, "." | ".."))
        && parts.clone().any(|part| !part.is_empty())
}

/// A command that comes later needs a time until which it may come, and nothing else that would start before.
fn check_await_command(run: &RunSpec, await_ms: u64, report: &mut TemplateReport<'_>) {
    let starts = !run.command.is_empty() || run.image.is_some() || run.simulated_duration_ms.is_some();
    let wrong = if !(1..=AWAIT_COMMAND_MS_MAX).contains(&await_ms) {
        format!(
            "{} is not in 1ms to {}",
            duration::show_ms(await_ms),
            duration::show_ms(AWAIT_COMMAND_MS_MAX)
        )
    } else if starts {
        "a command that comes later excludes a command, an image and a simulated run".to_owned()
    } else {
        return;
    };
    report.add("run.await_command_ms", wrong);
}
