//! The containers of this node, and what becomes of them, as masters ask for it.

use std::collections::{BTreeMap, VecDeque};

use godel_core_agent::{RunKey, RunStatus};
use godel_domain::{run_end::RunEndReason, running_units::Phase};
use godel_hadoop::{
    Exception, exception,
    yarn::{ContainerStateProto, ContainerStatusProto, ContainerSubStateProto},
};
use rustc_hash::FxHashMap;

use super::ids::ContainerId;

/// Ended containers whose status can be asked for; the oldest are forgotten.
const N_ENDED_MAX: usize = 1_000;
/// Exit statuses of YARN's.
const INVALID: i32 = -1_000;
const ABORTED: i32 = -100;
const PREEMPTED: i32 = -102;
const EXCEEDED_MEMORY: i32 = -104;
const KILLED_BY_MASTER: i32 = -105;
const KILLED_BY_RESOURCE_MANAGER: i32 = -106;

/// A running unit in one incarnation.
pub(crate) type Life = (RunKey, u32);

/// Containers that were started here.
#[derive(Debug, Default)]
pub(crate) struct Containers {
    known: BTreeMap<ContainerId, KnownContainer>,
    ids: FxHashMap<Life, ContainerId>,
    /// In the order of their ends.
    ended: VecDeque<ContainerId>,
}

#[derive(Debug)]
struct KnownContainer {
    life: Life,
    state: ContainerState,
}

#[derive(Debug)]
enum ContainerState {
    Live { stopped_by_master: bool },
    Ended { exit_status: i32, diagnostics: String },
}

impl Containers {
    pub(crate) fn knows(&self, id: ContainerId) -> bool {
        self.known.contains_key(&id)
    }

    /// A container was started, now or by an earlier agent.
    pub(crate) fn add(&mut self, id: ContainerId, life: Life) {
        self.known
            .insert(id, KnownContainer { life, state: ContainerState::Live { stopped_by_master: false } });
        self.ids.insert(life, id);
    }

    /// The running unit of a container that a master stops; `None`: it has ended already.
    ///
    /// # Errors
    /// There is no such container here.
    pub(crate) fn stop(&mut self, id: ContainerId) -> Result<Option<Life>, Exception> {
        let known = self.known.get_mut(&id).ok_or_else(|| unknown(id))?;
        Ok(match &mut known.state {
            ContainerState::Live { stopped_by_master } => {
                *stopped_by_master = true;
                Some(known.life)
            }
            ContainerState::Ended { .. } => None,
        })
    }

    /// A running unit has ended.
    pub(crate) fn on_end(&mut self, status: &RunStatus) {
        let Some(id) = self.ids.remove(&(status.key, status.incarnation)) else { return };
        let Some(known) = self.known.get_mut(&id) else { return };
        let stopped_by_master = matches!(known.state, ContainerState::Live { stopped_by_master: true });
        let exit_status = exit_status(status, stopped_by_master);
        known.state = ContainerState::Ended { exit_status, diagnostics: diagnostics(status, exit_status) };
        self.ended.push_back(id);
        if self.ended.len() > N_ENDED_MAX {
            self.ended.pop_front().map(|oldest| self.known.remove(&oldest));
        }
    }

    /// What a master is told of a container.
    ///
    /// # Errors
    /// There is no such container here.
    pub(crate) fn status(&self, id: ContainerId) -> Result<ContainerStatusProto, Exception> {
        let known = self.known.get(&id).ok_or_else(|| unknown(id))?;
        let (state, sub_state, exit_status, diagnostics) = match &known.state {
            ContainerState::Live { .. } => {
                (ContainerStateProto::CRunning, ContainerSubStateProto::CssRunning, INVALID, String::new())
            }
            ContainerState::Ended { exit_status, diagnostics } => (
                ContainerStateProto::CComplete,
                ContainerSubStateProto::CssDone,
                *exit_status,
                diagnostics.clone(),
            ),
        };
        Ok(ContainerStatusProto {
            container_id: Some(id.to_proto()),
            state: Some(state.into()),
            diagnostics: Some(diagnostics),
            exit_status: Some(exit_status),
            container_sub_state: Some(sub_state.into()),
            ..ContainerStatusProto::default()
        })
    }
}

fn unknown(id: ContainerId) -> Exception {
    Exception::new(exception::YARN, format!("Container {id} is not handled by this NodeManager"))
}

/// How YARN says why a container is over.
fn exit_status(status: &RunStatus, stopped_by_master: bool) -> i32 {
    use RunEndReason as Reason;
    match status.end.reason {
        Some(Reason::Told) if stopped_by_master => KILLED_BY_MASTER,
        Some(Reason::Told) => KILLED_BY_RESOURCE_MANAGER,
        Some(Reason::Exited | Reason::Signalled) => status.exit_code,
        Some(Reason::OutOfMemory) => EXCEEDED_MEMORY,
        Some(Reason::Squeezed) => PREEMPTED,
        Some(Reason::AgentStopped | Reason::NoContact | Reason::Lost | Reason::Rebooted) => ABORTED,
        Some(
            Reason::CommandNotFound
            | Reason::CommandNotExecutable
            | Reason::NoDirectory
            | Reason::NoUser
            | Reason::UserNotPermitted
            | Reason::PrincipalNotPermitted
            | Reason::CannotStart,
        ) => INVALID,
        None if status.phase == Phase::Stopped => KILLED_BY_RESOURCE_MANAGER,
        None => status.exit_code,
    }
}

fn diagnostics(status: &RunStatus, exit_status: i32) -> String {
    let reason = status.end.reason.map_or("not known", RunEndReason::name);
    if exit_status == 0 {
        return String::new();
    }
    format!(
        "the container ended with exit status {exit_status} (exit code {}, reason: {reason}); `godel unit logs` shows what it wrote",
        status.exit_code
    )
}

#[cfg(test)]
mod tests {
    use godel_domain::run_end::RunEnd;

    use super::*;

    const KEY: RunKey = RunKey { unit: 7, ordinal: 1 };

    fn id(number: i64) -> ContainerId {
        ContainerId { number, ..ContainerId::default() }
    }

    fn ended(incarnation: u32, reason: Option<RunEndReason>, exit_code: i32) -> RunStatus {
        let end = RunEnd { reason, ..RunEnd::default() };
        let (phase, restarts, refused) = (Phase::Failed, 0, None);
        RunStatus { key: KEY, incarnation, phase, exit_code, restarts, refused, end }
    }

    #[test]
    fn ends_are_told_as_yarn_tells_them() {
        let told = |reason, exit_code, stops: bool| {
            let mut containers = Containers::default();
            containers.add(id(1), (KEY, 0));
            assert_eq!(containers.status(id(1)).unwrap().state(), ContainerStateProto::CRunning);
            if stops {
                assert_eq!(containers.stop(id(1)), Ok(Some((KEY, 0))));
            }
            containers.on_end(&ended(0, reason, exit_code));
            let status = containers.status(id(1)).unwrap();
            assert_eq!(status.state(), ContainerStateProto::CComplete);
            assert_eq!(containers.stop(id(1)), Ok(None));
            status.exit_status()
        };
        let reason = RunEndReason::of_name;
        for (name, exit_code, expected) in [
            ("exited", 0, 0),
            ("exited", 3, 3),
            ("signalled", 137, 137),
            ("out-of-memory", 137, EXCEEDED_MEMORY),
            ("told", 143, KILLED_BY_RESOURCE_MANAGER),
            ("squeezed", 143, PREEMPTED),
            ("lost", 127, ABORTED),
            ("cannot-start", 127, INVALID),
        ] {
            assert_eq!(told(reason(name), exit_code, false), expected, "{name}");
        }
        assert_eq!(told(reason("told"), 143, true), KILLED_BY_MASTER);
        assert_eq!(told(reason("exited"), 0, true), 0, "it was over before");
    }

    #[test]
    fn only_the_newest_ends_are_remembered() {
        let mut containers = Containers::default();
        let n = u32::try_from(N_ENDED_MAX).unwrap() + 1;
        for incarnation in 0..n {
            containers.add(id(incarnation.into()), (KEY, incarnation));
            containers.on_end(&ended(incarnation, None, 1));
        }
        assert!(!containers.knows(id(0)) && containers.knows(id(1)));
        let message = containers.status(id(0)).unwrap_err().message;
        assert_eq!(message, "Container container_0_0000_00_000000 is not handled by this NodeManager");
    }
}
