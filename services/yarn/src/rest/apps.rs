//! Applications, attempts and containers.

use axum::http::StatusCode;
use godel_core_yarn::{
    AppAccess,
    adapter::Registration,
    application::PublicAppState,
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_core_yarn_leader::{
    AppReport, AttemptReport, ClusterReport, ContainerReport, QueueReport, YarnAmount,
};
use godel_domain::names::yarn_user;
use serde_json::{Map, Value, json};

use super::{
    Call, Reply,
    json::{
        as_texts, attempt_state, container_state, final_status, float, list, old_list, per_cent, resource,
    },
    problem::Problem,
    query::{deselected, filter, is_named, states},
    route::AppPart,
    time,
};

/// What YARN says of an application that has ended instead of what it has.
const NOT_ANY_MORE: i64 = -1;

/// What applications are shown with.
struct Around {
    cluster: ClusterReport,
    queues: Vec<QueueReport>,
    deselected: Vec<&'static str>,
    host: String,
    now_ms: i64,
}

impl Call {
    fn around(&self) -> Result<Around, Problem> {
        Ok(Around {
            cluster: self.face.manager.cluster()?,
            queues: self.face.manager.queues()?,
            deselected: deselected(&self.query)?,
            host: self.host.clone(),
            now_ms: self.face.clock.wall_ms(),
        })
    }

    pub(super) fn apps(&self) -> Result<Value, Problem> {
        let around = self.around()?;
        let filter = filter(&self.query, &around.queues)?;
        let mut apps = filter.map_or(Ok(Vec::new()), |filter| self.face.manager.applications(&filter))?;
        self.face.manager.hide(&self.by.user, &mut apps);
        let apps = apps.iter().map(|app| Value::Object(around.app(app))).collect();
        Ok(list("apps", "app", apps))
    }

    pub(super) fn app(&self, id: YarnApplicationId, part: AppPart) -> Result<Value, Problem> {
        let manager = &self.face.manager;
        let mut app = manager.application(id)?;
        manager.hide(&self.by.user, std::slice::from_mut(&mut app));
        if matches!(
            part,
            AppPart::Attempts | AppPart::Attempt(_) | AppPart::Containers(_) | AppPart::Container(..)
        ) {
            manager.allow(id, &self.by, AppAccess::View)?;
        }
        Ok(match part {
            AppPart::Whole => json!({ "app": self.around()?.app(&app) }),
            AppPart::State => json!({ "state": app.state.name() }),
            AppPart::Queue => json!({ "queue": app.queue }),
            AppPart::Priority => json!({ "priority": app.priority }),
            AppPart::Timeouts => {
                json!({ "timeouts": { "timeout": [timeout(&app, self.face.clock.wall_ms())] } })
            }
            AppPart::Timeout(kind) => {
                lifetime(&kind)?;
                json!({ "timeout": timeout(&app, self.face.clock.wall_ms()) })
            }
            AppPart::Attempts => {
                let attempts = manager.attempts(id)?;
                list("appAttempts", "appAttempt", attempts.iter().map(attempt_in_list).collect())
            }
            AppPart::Attempt(attempt) => {
                let attempts = manager.attempts(id)?;
                let found = attempts.iter().find(|known| known.id == attempt);
                as_texts(self.one_attempt(found.ok_or_else(|| unknown_attempt(attempt))?))
            }
            AppPart::Containers(attempt) => {
                let now_ms = self.face.clock.wall_ms();
                let containers = manager.containers(attempt)?;
                let shown = containers.iter().map(|one| as_texts(container(one, now_ms)));
                old_list("container", shown.collect())
            }
            AppPart::Container(attempt, id) => {
                let containers = manager.containers(attempt)?;
                let found = containers.iter().find(|known| known.id == id);
                let found =
                    found.ok_or_else(|| Problem::not_found(format!("container with id: {id} not found")))?;
                as_texts(container(found, self.face.clock.wall_ms()))
            }
        })
    }

    pub(super) fn statistics(&self) -> Result<Value, Problem> {
        let mut wanted = states(&self.query, &["states"])?;
        if wanted.is_empty() {
            wanted = PublicAppState::ALL.to_vec();
        }
        let kinds: Vec<&str> = self.query.words("applicationTypes").collect();
        let kind = match kinds.as_slice() {
            [] => None,
            [kind] => Some(kind.to_lowercase()),
            several => {
                let n = several.len();
                return Err(Problem::bad_request(format!(
                    "# of applicationTypes = {n}, we temporarily support at most one applicationType"
                )));
            }
        };
        let known = self.face.manager.statistics()?;
        let items = wanted.into_iter().map(|state| {
            let counted = known.iter().filter(|((of, at), _)| {
                *at == state && kind.as_ref().is_none_or(|kind| of.to_lowercase() == *kind)
            });
            let count: u64 = counted.map(|(_, n)| n).sum();
            json!({ "state": state.name(), "type": kind.as_deref().unwrap_or("*"), "count": count })
        });
        Ok(json!({ "appStatInfo": { "statItem": items.collect::<Vec<_>>() } }))
    }

    /// The page of a master: callers are sent there.
    pub(super) fn proxy(&self, id: YarnApplicationId, rest: &str) -> Result<Reply, Problem> {
        let app = self.face.manager.application(id)?;
        let url = app.registration.map(|master| master.tracking_url).filter(|url| !url.is_empty());
        let url = match url {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => url,
            Some(url) if !url.contains("://") && !url.starts_with(['/', ' ']) => format!("http://{url}"),
            Some(_) | None => {
                return Err(Problem::not_found(format!(
                    "the master of {id} has no page: it has not said where"
                )));
            }
        };
        let at = if rest.is_empty() {
            url
        } else {
            let rest: Vec<String> = rest.split('/').map(escaped).collect();
            format!("{}/{}", url.trim_end_matches('/'), rest.join("/"))
        };
        Ok(Reply::At(StatusCode::FOUND, at, None))
    }

    /// An attempt by itself, which YARN shows otherwise than in a list.
    fn one_attempt(&self, report: &AttemptReport) -> Value {
        let Registration { host, rpc_port, tracking_url } =
            report.registration.clone().unwrap_or_else(|| Registration {
                host: "N/A".to_owned(),
                rpc_port: -1,
                ..Registration::default()
            });
        let mut shown = json!({
            "appAttemptId": report.id.to_string(),
            "host": host,
            "rpcPort": rpc_port,
            "trackingUrl": format!("http://{}/proxy/{}/", self.host, report.id.application),
            "originalTrackingUrl": if tracking_url.is_empty() { "N/A".to_owned() } else { tracking_url },
            "diagnosticsInfo": report.diagnostics,
            "appAttemptState": attempt_state(report.state),
            "startedTime": report.start_ms,
            "finishedTime": report.finish_ms,
        });
        if let (Some(master), Some(fields)) = (report.master, shown.as_object_mut()) {
            fields.insert("amContainerId".to_owned(), json!(master.to_string()));
        }
        shown
    }
}

/// A part of a path as it may stand in an address.
fn escaped(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn unknown_attempt(attempt: YarnAttemptId) -> Problem {
    Problem::not_found(format!("app attempt with id: {attempt} not found"))
}

/// The only kind of timeout.
pub(super) fn lifetime(kind: &str) -> Result<(), Problem> {
    if kind.trim().eq_ignore_ascii_case("LIFETIME") {
        return Ok(());
    }
    let shown: String = kind.chars().take(100).collect();
    Err(Problem::bad_request(format!(
        "Invalid application-state {shown} specified. It should be one of [LIFETIME]"
    )))
}

/// When an application is ended, and how long that is from now.
pub(super) fn timeout(app: &AppReport, now_ms: i64) -> Value {
    let (at, rest) = match app.timeout_at_ms {
        None => ("UNLIMITED".to_owned(), -1),
        Some(at_ms) if app.finish_ms > 0 => (time::show(at_ms), 0),
        Some(at_ms) => (time::show(at_ms), at_ms.saturating_sub(now_ms).max(0) / 1_000),
    };
    json!({ "type": "LIFETIME", "expiryTime": at, "remainingTimeInSeconds": rest })
}

/// How long something took, or takes up to now.
fn elapsed(start_ms: i64, finish_ms: i64, now_ms: i64) -> i64 {
    if start_ms <= 0 {
        return 0;
    }
    let until = if finish_ms > 0 { finish_ms } else { now_ms };
    until.saturating_sub(start_ms).max(0)
}

fn attempt_in_list(report: &AttemptReport) -> Value {
    let node = report.node.clone().unwrap_or_default();
    json!({
        "id": report.id.number,
        "startTime": report.start_ms,
        "finishedTime": report.finish_ms,
        "containerId": report.master.map(|id| id.to_string()).unwrap_or_default(),
        "nodeHttpAddress": node,
        "nodeId": node,
        "logsLink": "",
        "blacklistedNodes": "",
        "nodesBlacklistedBySystem": "",
        "appAttemptId": report.id.to_string(),
    })
}

fn container(report: &ContainerReport, now_ms: i64) -> Value {
    json!({
        "containerId": report.id.to_string(),
        "allocatedMB": report.amount.memory_mb,
        "allocatedVCores": report.amount.vcores,
        "assignedNodeId": report.node,
        "nodeId": report.node,
        "nodeHttpAddress": report.node,
        "priority": report.key.as_ref().map_or(0, |key| key.group.priority),
        "startedTime": report.start_ms,
        "finishedTime": report.finish_ms,
        "elapsedTime": elapsed(report.start_ms, report.finish_ms, now_ms),
        "diagnosticsInfo": report.diagnostics,
        "logUrl": "",
        "containerExitStatus": report.exit,
        "containerState": container_state(report.state),
    })
}

impl Around {
    fn app(&self, app: &AppReport) -> Map<String, Value> {
        let is_over =
            matches!(app.state, PublicAppState::Finished | PublicAppState::Failed | PublicAppState::Killed);
        let mut fields = self.identity(app, is_over);
        fields.extend(self.usage(app, is_over));
        let is_shown = |part: &str| !self.deselected.contains(&part);
        if is_shown("appNodeLabelExpression") && !app.label.is_empty() {
            fields.insert("appNodeLabelExpression".to_owned(), json!(app.label));
        }
        if is_shown("amNodeLabelExpression") && !app.is_unmanaged {
            fields.insert("amNodeLabelExpression".to_owned(), json!(app.master_label));
        }
        if is_shown("timeouts") {
            fields.insert("timeouts".to_owned(), json!({ "timeout": [timeout(app, self.now_ms)] }));
        }
        if is_shown("resourceInfo") && !is_over {
            let none = YarnAmount::default();
            let usage = json!({
                "resourceUsagesByPartition": [{
                    "partitionName": "",
                    "used": resource(&app.used),
                    "reserved": resource(&none),
                    "pending": resource(&app.pending),
                }]
            });
            fields.insert("resourceInfo".to_owned(), usage);
        }
        fields
    }

    /// What it is, and where it has got to.
    fn identity(&self, app: &AppReport, is_over: bool) -> Map<String, Value> {
        let is_waiting = matches!(
            app.state,
            PublicAppState::New
                | PublicAppState::NewSaving
                | PublicAppState::Submitted
                | PublicAppState::Accepted
        );
        let tracking_ui = match (is_waiting, is_over) {
            (true, _) => "UNASSIGNED",
            (false, false) => "ApplicationMaster",
            (false, true) => "History",
        };
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        put("id", json!(app.id.to_string()));
        put("user", json!(yarn_user(&app.user)));
        put("name", json!(app.name));
        put("queue", json!(app.queue));
        put("state", json!(app.state.name()));
        put("finalStatus", json!(final_status(app.final_status)));
        put("progress", float(app.progress * 100.0));
        put("trackingUI", json!(tracking_ui));
        if !is_waiting {
            // A master that never came has no page of its own.
            let page = if app.registration.is_some() { "proxy" } else { "cluster/app" };
            let slash = if app.registration.is_some() { "/" } else { "" };
            put("trackingUrl", json!(format!("http://{}/{page}/{}{slash}", self.host, app.id)));
        }
        put("diagnostics", json!(app.diagnostics));
        put("clusterId", json!(app.id.cluster_timestamp));
        put("applicationType", json!(app.kind));
        put("applicationTags", json!(app.tags.join(",")));
        put("priority", json!(app.priority));
        put("startedTime", json!(app.start_ms));
        put("launchTime", json!(app.launch_ms));
        put("finishedTime", json!(app.finish_ms));
        put("elapsedTime", json!(elapsed(app.start_ms, app.finish_ms, self.now_ms)));
        if let Some(node) = &app.master_node {
            put("amHostHttpAddress", json!(node));
            put("masterNodeId", json!(node));
        }
        if let Some(Registration { host, rpc_port, .. }) = &app.registration
            && *rpc_port >= 0
        {
            put("amRPCAddress", json!(format!("{host}:{rpc_port}")));
        }
        put("logAggregationStatus", json!("DISABLED"));
        put("unmanagedApplication", json!(app.is_unmanaged));
        fields
    }

    /// What it has, has had and waits for.
    fn usage(&self, app: &AppReport, is_over: bool) -> Map<String, Value> {
        let now = |amount: i64| if is_over { NOT_ANY_MORE } else { amount };
        let whole = self.cluster.total.memory_mb;
        let queue = self.queues.iter().find(|queue| is_named(queue, &app.queue));
        let used = if is_over { 0 } else { app.used.memory_mb };
        let of_queue = queue.map_or(json!(0.0), |queue| {
            let share = f64::from(queue.absolute_capacity) / 100.0;
            let used = f64::from(i32::try_from(used).unwrap_or(i32::MAX));
            let whole = f64::from(i32::try_from(whole).unwrap_or(i32::MAX)) * share;
            if whole > 0.0 { json!((used / whole * 100_000.0).round() / 1_000.0) } else { json!(0.0) }
        });
        let seconds = json!({
            "entry": [
                { "key": "memory-mb", "value": app.memory_seconds.to_string() },
                { "key": "vcores", "value": app.vcore_seconds.to_string() },
            ]
        });
        let fields = json!({
            "allocatedMB": now(app.used.memory_mb),
            "allocatedVCores": now(app.used.vcores),
            "reservedMB": now(0),
            "reservedVCores": now(0),
            "runningContainers": now(i64::from(app.n_containers)),
            "memorySeconds": app.memory_seconds,
            "vcoreSeconds": app.vcore_seconds,
            "resourceSecondsMap": seconds,
            "queueUsagePercentage": of_queue,
            "clusterUsagePercentage": per_cent(used, whole),
            "preemptedResourceMB": 0,
            "preemptedResourceVCores": 0,
            "numNonAMContainerPreempted": 0,
            "numAMContainerPreempted": 0,
            "preemptedMemorySeconds": 0,
            "preemptedVcoreSeconds": 0,
            "preemptedResourceSecondsMap": {},
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}
