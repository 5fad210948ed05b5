//! What the container of a run is made of, and what the engine's answers mean: pure.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, DeviceRequest, HostConfig, HostConfigLogConfig, Mount,
    MountType, RestartPolicy, RestartPolicyNameEnum,
};
use godel_domain::run_end::RunEndReason;
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{self, GroupLimits},
    keeper::files::Run,
    volumes::Volume,
};

/// Labels of containers.
pub(crate) const NODE: &str = "godel.node";
pub(crate) const UNIT: &str = "godel.unit";
pub(crate) const ORDINAL: &str = "godel.ordinal";
pub(crate) const INCARNATION: &str = "godel.incarnation";
pub(crate) const INSTALLATION: &str = "godel.installation";

/// Characters of the uid of an installation in the names of its containers: enough for the few installations of one machine.
const N_UID_CHARS: usize = 8;
const NANO_PER_MILLI: i64 = 1_000_000;
/// Signal of a polite stop, unless the image says another one.
const SIGTERM: &str = "SIGTERM";
/// Exit codes from here on are numbers of signals, as shells and Docker's own init process have them.
const SIGNALLED: std::ops::RangeInclusive<i32> = 129..=192;

/// The container of one start of a running unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    /// The socket of the engine.
    pub(crate) socket: PathBuf,
    /// The uid of the node whose agent has it started.
    pub(crate) installation: String,
    pub(crate) name: String,
    pub(crate) image: String,
    /// Its registry has so long to deliver the image.
    pub(crate) pull_timeout_ms: u64,
    pub(crate) limits: ContainerLimits,
    /// NVIDIA's GPUs that it is given, by number.
    pub(crate) gpus: Vec<u32>,
}

/// What a container may use, as the engine takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerLimits {
    pub(crate) nano_cpus: Option<i64>,
    pub(crate) cpu_shares: i64,
    pub(crate) memory: Option<i64>,
    pub(crate) memory_reservation: Option<i64>,
    /// Lists as the kernel has them; empty: all.
    pub(crate) cpus: String,
    pub(crate) memory_nodes: String,
}

impl ContainerLimits {
    /// The limits that a control group of a process would have. The engine refuses more CPUs than it sees, which is no limit
    /// anyway: `n_cpus` of them.
    pub(crate) fn of(limits: &GroupLimits, n_cpus: usize) -> Self {
        let GroupLimits { cpu_milli, cpu_weight_milli, memory, memory_soft, cpus, memory_nodes } = limits;
        let most = i64::try_from(n_cpus).unwrap_or(i64::MAX).saturating_mul(1_000);
        let cpu_milli = cpu_milli.filter(|milli| *milli < most);
        Self {
            nano_cpus: cpu_milli.map(|milli| milli.max(cgroup::CPU_MILLI_MIN) * NANO_PER_MILLI),
            cpu_shares: cgroup::shares(*cpu_weight_milli),
            memory: memory.map(|bytes| bytes.max(cgroup::MEMORY_MIN)),
            memory_reservation: memory_soft.map(|bytes| bytes.max(cgroup::MEMORY_MIN)),
            cpus: cgroup::list(cpus),
            memory_nodes: cgroup::list(memory_nodes),
        }
    }
}

/// The name of the container of a run whose directory has this name.
pub(crate) fn name(installation: &str, dir_name: &str) -> String {
    let short: String = installation.chars().filter(char::is_ascii_alphanumeric).take(N_UID_CHARS).collect();
    format!("godel-{short}-{}", dir_name.replace('.', "-"))
}

/// An image with its tag: without one a registry would deliver all that it has.
pub(crate) fn reference(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// What the engine is asked to make.
pub(crate) fn of_run(run: &Run, container: &Container) -> ContainerCreateBody {
    let Container { installation, image, limits, gpus, .. } = container;
    let labels = [
        (NODE, run.node.clone()),
        (UNIT, run.unit.to_string()),
        (ORDINAL, run.ordinal.to_string()),
        (INCARNATION, run.incarnation.to_string()),
        (INSTALLATION, installation.clone()),
    ];
    let mut env: Vec<String> = run.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    env.push(format!("GODEL_RUN={}", run.mark));
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let devices = DeviceRequest {
        driver: Some("nvidia".to_owned()),
        device_ids: Some(gpus.iter().map(u32::to_string).collect()),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..DeviceRequest::default()
    };
    let host_config = HostConfig {
        nano_cpus: limits.nano_cpus,
        cpu_shares: Some(limits.cpu_shares),
        memory: limits.memory,
        // The same: no swap, as it would make the limit twice as large.
        memory_swap: limits.memory,
        memory_reservation: limits.memory_reservation,
        cpuset_cpus: text(&limits.cpus),
        cpuset_mems: text(&limits.memory_nodes),
        device_requests: (!gpus.is_empty()).then(|| vec![devices]),
        mounts: Some(run.volumes.dirs(run.key()).filter_map(|(dir, volume)| mount(&dir, volume)).collect()),
        init: Some(true),
        // A program of the image that is its owner's (setuid) would be root again.
        security_opt: (!run.users.is_empty()).then(|| vec!["no-new-privileges:true".to_owned()]),
        network_mode: Some("host".to_owned()),
        // The keeper writes the output; a second copy would have no bound.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(image.clone()),
        // Program and arguments: those of the image do not mix with them.
        entrypoint: Some(run.command.clone()).filter(|command| !command.is_empty()),
        env: Some(env),
        working_dir: run.directory.clone(),
        user: run.user.clone(),
        labels: Some(
            labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<HashMap<_, _>>(),
        ),
        attach_stdin: Some(false),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    }
}

/// A volume as the engine takes it.
fn mount(dir: &Path, volume: &Volume) -> Option<Mount> {
    Some(Mount {
        typ: Some(MountType::BIND),
        source: Some(dir.to_string_lossy().into_owned()),
        target: Some(volume.path.clone()?),
        ..Mount::default()
    })
}

/// What the engine says of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) is_running: bool,
    /// The first process of the container, on this machine; 0: none.
    pub(crate) pid: u32,
    pub(crate) exit_code: i32,
    pub(crate) out_of_memory: bool,
    /// Unix milliseconds; 0: it did not.
    pub(crate) started_ms: i64,
    pub(crate) ended_ms: i64,
    /// Sent for a polite stop.
    pub(crate) stop_signal: String,
}

impl Facts {
    pub(crate) fn of(found: &ContainerInspectResponse) -> Self {
        let state = found.state.clone().unwrap_or_default();
        let stop_signal = found.config.as_ref().and_then(|config| config.stop_signal.clone());
        let exit_code = state.exit_code.unwrap_or_default();
        Self {
            is_running: state.running.unwrap_or_default(),
            pid: state.pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            exit_code: i32::try_from(exit_code).unwrap_or(i32::MAX),
            out_of_memory: state.oom_killed.unwrap_or_default(),
            started_ms: state.started_at.as_deref().map_or(0, unix_ms),
            ended_ms: state.finished_at.as_deref().map_or(0, unix_ms),
            stop_signal: stop_signal
                .filter(|signal| !signal.is_empty())
                .unwrap_or_else(|| SIGTERM.to_owned()),
        }
    }

    /// Whether the exit code is the number of a signal.
    pub(crate) fn is_signalled(&self) -> bool {
        SIGNALLED.contains(&self.exit_code)
    }
}

/// A time of the engine; 0 where it has none, which it writes as the year 1.
fn unix_ms(text: &str) -> i64 {
    let at = humantime::parse_rfc3339(text).ok();
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0)
}

/// The reason that an engine means which does not start a container.
pub(crate) fn reason(message: &str) -> RunEndReason {
    if message.contains("unable to find user") {
        RunEndReason::NoUser
    } else if message.contains("executable file not found") {
        RunEndReason::CommandNotFound
    } else {
        RunEndReason::CannotStart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_a_tag_is_the_latest() {
        for (image, expected) in [
            ("web", "web:latest"),
            ("web:1", "web:1"),
            ("reg:5000/a/web", "reg:5000/a/web:latest"),
            ("reg:5000/a/web:2", "reg:5000/a/web:2"),
            ("web@sha256:abc", "web@sha256:abc"),
        ] {
            assert_eq!(reference(image), expected);
        }
        assert_eq!(name("0a1b2c3d-4e5f", "7-0-2.11"), "godel-0a1b2c3d-7-0-2-11");
    }

    #[test]
    fn limits_are_those_of_control_groups() {
        let none = ContainerLimits::of(&GroupLimits::default(), 2);
        assert_eq!(none, ContainerLimits { cpu_shares: 2, ..ContainerLimits::default() });
        let guaranteed = GroupLimits {
            cpu_milli: Some(1_500),
            cpu_weight_milli: 1_500,
            memory: Some(1 << 30),
            cpus: vec![1, 0],
            ..GroupLimits::default()
        };
        let expected = ContainerLimits {
            nano_cpus: Some(1_500_000_000),
            cpu_shares: 1_536,
            memory: Some(1 << 30),
            cpus: "0-1".to_owned(),
            ..ContainerLimits::default()
        };
        assert_eq!(ContainerLimits::of(&guaranteed, 2), expected);
        assert_eq!(ContainerLimits::of(&guaranteed, 1).nano_cpus, None, "more than there is is no limit");
        let tiny = GroupLimits { cpu_milli: Some(1), memory_soft: Some(1), ..GroupLimits::default() };
        let limits = ContainerLimits::of(&tiny, 2);
        assert_eq!((limits.nano_cpus, limits.memory_reservation), (Some(100_000_000), Some(16 << 20)));
    }

    #[test]
    fn times_of_the_engine_are_unix_milliseconds() {
        assert_eq!(unix_ms("2026-11-27T08:48:35.095479094Z"), 1_795_769_315_095);
        for none in ["0001-01-01T00:00:00Z", "", "yesterday"] {
            assert_eq!(unix_ms(none), 0, "{none}");
        }
    }

    #[test]
    fn a_container_of_which_nothing_is_said_has_not_run() {
        let facts = Facts::of(&ContainerInspectResponse::default());
        assert_eq!(facts, Facts { stop_signal: "SIGTERM".to_owned(), ..Facts::default() });
        assert!(!facts.is_signalled());
        assert!(Facts { exit_code: 143, ..facts }.is_signalled());
    }
}
