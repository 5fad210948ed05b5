//! What requests say, read and checked: every wrong field is named at once.

use std::str::FromStr;

use godel_core_yarn::{
    adapter::{AllocateCall, AppSubmission, NO_REQUEST_ID, Registration},
    application::{FinalStatus, PublicAppState},
    asks::{ANY, AskGroup, AskKey, AskRow, BlacklistChange, ExecutionType},
    ids::{BadYarnId, YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::{AppFilter, SubmittedApp, YarnAmount};
use godel_domain::names::{
    APPLICATION_NAME_LEN_MAX, APPLICATION_QUEUE_LEN_MAX, N_TAGS_MAX, NAME_LEN_MAX, TAG_LEN_MAX,
};
use godel_hadoop::yarn::ContainerLaunchContextProto;
use godel_proto::v1;
use godel_wire::{BadField, invalid_argument};
use prost::Message as _;
use tonic::Status;

/// Bytes of an address of a page.
pub(super) const URL_LEN_MAX: usize = 4 << 10;
/// Items of a page that does not say how many, and of the largest one.
const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 1_000;

/// Fields that are wrong so far.
#[derive(Debug, Default)]
pub(super) struct Given {
    wrong: Vec<BadField>,
}

impl Given {
    /// Says that a field is wrong.
    pub(super) fn wrong(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.wrong.push(BadField::new(field, why));
    }

    /// An id; `None`: it is wrong, and that is noted.
    pub(super) fn id<T: FromStr<Err = BadYarnId>>(&mut self, field: &str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(id) => Some(id),
            Err(_) if text.is_empty() => {
                self.wrong(field, "missing");
                None
            }
            Err(bad) => {
                self.wrong(field, shortened(&bad.to_string()));
                None
            }
        }
    }

    /// Text that has to be there.
    pub(super) fn required(&mut self, field: &str, text: &str) {
        if text.is_empty() {
            self.wrong(field, "missing");
        }
    }

    /// Text of at most so many bytes; control characters only in diagnostics, which have lines.
    pub(super) fn text(&mut self, field: &str, text: &str, max: usize) {
        if text.len() > max {
            self.wrong(field, format!("has {} bytes, at most {max} are allowed", text.len()));
        }
        if field != "diagnostics" && text.chars().any(char::is_control) {
            self.wrong(field, "has control characters");
        }
    }

    /// A user, who has to be named.
    pub(super) fn user(&mut self, user: &str) {
        self.required("user", user);
        self.text("user", user, NAME_LEN_MAX);
    }

    /// What a page may hold.
    pub(super) fn page_size(&mut self, page_size: u32) -> usize {
        match usize::try_from(page_size).unwrap_or(usize::MAX) {
            0 => PAGE_DEFAULT,
            n if n > PAGE_MAX => {
                self.wrong("page_size", format!("{n} is not in 1..={PAGE_MAX}"));
                PAGE_MAX
            }
            n => n,
        }
    }

    /// Where a page begins: after this id.
    pub(super) fn page_token<T: FromStr<Err = BadYarnId>>(&mut self, token: &str) -> Option<T> {
        if token.is_empty() {
            return None;
        }
        let parsed = token.parse().ok();
        if parsed.is_none() {
            self.wrong("page_token", "not a token of a previous page");
        }
        parsed
    }

    /// How an application ended, which has to be said.
    pub(super) fn final_status(&mut self, status: i32) -> Option<FinalStatus> {
        let said = match v1::YarnAppFinalStatus::try_from(status) {
            Ok(v1::YarnAppFinalStatus::Succeeded) => Some(FinalStatus::Succeeded),
            Ok(v1::YarnAppFinalStatus::Failed) => Some(FinalStatus::Failed),
            Ok(v1::YarnAppFinalStatus::Killed) => Some(FinalStatus::Killed),
            Ok(v1::YarnAppFinalStatus::Unspecified) => None,
            Err(_) => {
                self.wrong("final_status", format!("{status} is no final status"));
                return None;
            }
        };
        if said.is_none() {
            self.wrong("final_status", "missing");
        }
        said
    }

    fn amount(&mut self, field: &str, amount: Option<v1::YarnAmount>) -> YarnAmount {
        let Some(v1::YarnAmount { memory_mb, vcores, others }) = amount else {
            self.wrong(field, "missing");
            return YarnAmount::default();
        };
        let all = [memory_mb, vcores].into_iter().chain(others.values().copied());
        if all.clone().any(|amount| amount < 0) {
            self.wrong(field, "has an amount below 0");
        }
        if memory_mb <= 0 && vcores <= 0 {
            self.wrong(field, "memory or CPUs above 0 are required");
        }
        YarnAmount { memory_mb, vcores, others: others.into_iter().collect() }
    }

    /// The value, if nothing was wrong.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with every wrong field.
    pub(super) fn checked<T>(self, value: Option<T>) -> Result<T, Status> {
        match value {
            Some(value) if self.wrong.is_empty() => Ok(value),
            Some(_) | None => Err(invalid_argument(self.wrong)),
        }
    }
}

/// What a caller sent, as far as one wants to read it again.
fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

/// A submission with its id.
pub(super) fn submission(
    request: v1::SubmitApplicationRequest,
) -> Result<(YarnApplicationId, SubmittedApp), Status> {
    let v1::SubmitApplicationRequest {
        application_id,
        name,
        user,
        queue,
        kind,
        priority,
        master,
        launch_context,
        max_attempts,
        validity_interval_ms,
        keep_containers,
        lifetime_ms,
        tags,
        label,
    } = request;
    let mut given = Given::default();
    let id = given.id("application_id", &application_id);
    given.user(&user);
    given.text("name", &name, APPLICATION_NAME_LEN_MAX);
    given.text("queue", &queue, APPLICATION_QUEUE_LEN_MAX);
    given.text("kind", &kind, NAME_LEN_MAX);
    given.text("label", &label, NAME_LEN_MAX);
    let label = label.trim().to_owned();
    if tags.len() > N_TAGS_MAX {
        given.wrong("tags", format!("{} tags, at most {N_TAGS_MAX} are allowed", tags.len()));
    }
    for (n, tag) in tags.iter().enumerate() {
        given.text(&format!("tags[{n}]"), tag, TAG_LEN_MAX);
    }
    if let Some(lifetime_ms) = lifetime_ms.filter(|lifetime_ms| *lifetime_ms <= 0) {
        given.wrong("lifetime_ms", format!("{lifetime_ms} is not above 0"));
    }
    let priority = priority.unwrap_or(0);
    let master = master.map(|v1::YarnMasterAsk { amount, label: own }| {
        given.text("master.label", &own, NAME_LEN_MAX);
        let amount = given.amount("master.amount", amount);
        if launch_context.is_empty() {
            given.wrong("launch_context", "missing: it says how the master is started");
        }
        AskGroup {
            priority: 0,
            execution: ExecutionType::Guaranteed,
            capability: amount.to_capability(),
            label: if own.is_empty() { label.clone() } else { own },
        }
    });
    if ContainerLaunchContextProto::decode(launch_context.as_slice()).is_err() {
        given.wrong("launch_context", "is no encoded ContainerLaunchContextProto");
    }
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let submission = AppSubmission {
        name: or(name, "N/A"),
        user,
        queue,
        kind: or(kind, "YARN"),
        priority,
        master,
        label,
        max_attempts: max_attempts.unwrap_or(0),
        validity_interval_ms: validity_interval_ms.unwrap_or(-1),
        keeps_containers: keep_containers,
        lifetime_ms,
    };
    let tags = tags.iter().map(|tag| tag.to_lowercase()).collect();
    let submitted = SubmittedApp { submission, launch: launch_context.into(), tags };
    given.checked(id.map(|id| (id, submitted)))
}

/// Which applications are listed.
pub(super) fn filter(given: &mut Given, request: v1::ListApplicationsRequest) -> AppFilter {
    let v1::ListApplicationsRequest { states, users, queues, kinds, tags, name, page_size: _, page_token: _ } =
        request;
    let mut known = Vec::new();
    for (n, state) in states.into_iter().enumerate() {
        match v1::YarnAppState::try_from(state).ok().and_then(app_state) {
            Some(state) => known.push(state),
            None => given.wrong(format!("states[{n}]"), format!("{state} is no state")),
        }
    }
    AppFilter {
        states: known,
        users,
        queues,
        kinds,
        tags: tags.iter().map(|tag| tag.to_lowercase()).collect(),
        name: (!name.is_empty()).then_some(name),
        ..AppFilter::default()
    }
}

fn app_state(state: v1::YarnAppState) -> Option<PublicAppState> {
    PublicAppState::ALL.into_iter().find(|known| super::shown::app_state(*known) == state)
}

/// A master that registers.
pub(super) fn registration(
    request: v1::RegisterMasterRequest,
) -> Result<(YarnAttemptId, Registration), Status> {
    let v1::RegisterMasterRequest { attempt_id, host, rpc_port, tracking_url } = request;
    let mut given = Given::default();
    let attempt = given.id("attempt_id", &attempt_id);
    given.text("host", &host, NAME_LEN_MAX);
    given.text("tracking_url", &tracking_url, URL_LEN_MAX);
    let rpc_port = rpc_port.unwrap_or(-1);
    if !(-1..=i32::from(u16::MAX)).contains(&rpc_port) {
        given.wrong("rpc_port", format!("{rpc_port} is no port"));
    }
    given.checked(attempt.map(|attempt| (attempt, Registration { host, rpc_port, tracking_url })))
}

/// A call of a master.
pub(super) struct Allocation {
    pub(super) attempt: YarnAttemptId,
    pub(super) call: AllocateCall,
    pub(super) progress: f32,
}

/// What a master asks for.
pub(super) fn allocation(request: v1::AllocateRequest) -> Result<Allocation, Status> {
    let v1::AllocateRequest {
        attempt_id,
        response_id,
        asks,
        release,
        blacklist_add,
        blacklist_remove,
        progress,
        tracking_url,
    } = request;
    let mut given = Given::default();
    let attempt = given.id("attempt_id", &attempt_id);
    let mut released = Vec::new();
    for (n, id) in release.iter().enumerate() {
        let id: Option<YarnContainerId> = given.id(&format!("release[{n}]"), id);
        released.extend(id);
    }
    for (field, nodes) in [("blacklist_add", &blacklist_add), ("blacklist_remove", &blacklist_remove)] {
        for (n, node) in nodes.iter().enumerate() {
            given.text(&format!("{field}[{n}]"), node, NAME_LEN_MAX);
        }
    }
    let asks = asks.into_iter().enumerate().map(|(n, one)| ask(&mut given, n, one)).collect();
    let progress = progress.filter(|progress| progress.is_finite()).unwrap_or(0.0).clamp(0.0, 1.0);
    if let Some(url) = &tracking_url {
        given.text("tracking_url", url, URL_LEN_MAX);
    }
    let blacklist = BlacklistChange { add: blacklist_add, remove: blacklist_remove };
    let call =
        AllocateCall { seen: response_id.unwrap_or(0), asks, blacklist, release: released, tracking_url };
    given.checked(attempt.map(|attempt| Allocation { attempt, call, progress }))
}

fn ask(given: &mut Given, n: usize, ask: v1::YarnAsk) -> AskRow {
    let v1::YarnAsk { priority, execution, amount, label, allocation_request_id, name, containers, strict } =
        ask;
    let amount = given.amount(&format!("asks[{n}].amount"), amount);
    if let Some(label) = &label {
        given.text(&format!("asks[{n}].label"), label, NAME_LEN_MAX);
    }
    given.text(&format!("asks[{n}].name"), &name, NAME_LEN_MAX);
    let execution = match v1::YarnExecutionType::try_from(execution) {
        Ok(v1::YarnExecutionType::Unspecified | v1::YarnExecutionType::Guaranteed) => {
            ExecutionType::Guaranteed
        }
        Ok(v1::YarnExecutionType::Opportunistic) => ExecutionType::Opportunistic,
        Err(_) => {
            given.wrong(format!("asks[{n}].execution"), format!("{execution} is no execution type"));
            ExecutionType::Guaranteed
        }
    };
    let group = AskGroup {
        priority: priority.unwrap_or(0),
        execution,
        capability: amount.to_capability(),
        label: String::new(),
    };
    AskRow {
        key: AskKey { group, allocation_request_id: allocation_request_id.unwrap_or(NO_REQUEST_ID) },
        name: if name.is_empty() { ANY.to_owned() } else { name },
        n: containers.unwrap_or(0),
        relax_locality: !strict,
        label: label.map(|label| label.trim().to_owned()),
    }
}
