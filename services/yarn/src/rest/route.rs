//! What a path stands for: method and path in, route out, without anything else.

use axum::http::Method;
use godel_core_yarn::ids::{BadYarnId, YarnApplicationId, YarnAttemptId, YarnContainerId};

use super::{problem::Problem, query::decoded};

/// Where YARN's API begins.
pub(super) const CLUSTER: &str = "/ws/v1/cluster";

/// What is read of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AppPart {
    Whole,
    State,
    Queue,
    Priority,
    Timeouts,
    Timeout(String),
    Attempts,
    Attempt(YarnAttemptId),
    Containers(YarnAttemptId),
    Container(YarnAttemptId, YarnContainerId),
}

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    NewApplication,
    Submit,
    State(YarnApplicationId),
    Queue(YarnApplicationId),
    Priority(YarnApplicationId),
    Timeout(YarnApplicationId),
}

impl Change {
    /// Whether the call says more than its path.
    pub(super) fn has_body(&self) -> bool {
        *self != Self::NewApplication
    }
}

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Page,
    Info,
    Metrics,
    Scheduler,
    Nodes,
    Node(String),
    NodeLabels(String),
    Labels,
    NodesToLabels,
    LabelsToNodes,
    UserInfo,
    Access(String),
    Statistics,
    /// Of one application, or of the scheduler.
    Activities(Option<String>),
    Jmx,
    Apps,
    App(YarnApplicationId, AppPart),
    /// The page of a master, and what follows in the path.
    Proxy(YarnApplicationId, String),
    AppPage(YarnApplicationId),
    Change(Change),
}

/// Paths that change what godel has other ways for, and which: method, path with `*` for one part, way.
const ELSEWHERE: [(&str, &str, &str); 17] = [
    ("POST", "add-node-labels", LABELS),
    ("POST", "remove-node-labels", LABELS),
    ("POST", "replace-node-to-labels", LABELS),
    ("POST", "nodes/*/replace-labels", LABELS),
    (
        "POST",
        "nodes/*/resource",
        "agents say what their nodes have (`agent` in the configuration of the node)",
    ),
    ("GET", "scheduler-conf", QUEUES),
    ("PUT", "scheduler-conf", QUEUES),
    ("GET", "scheduler-conf/version", QUEUES),
    ("POST", "scheduler/logs", "set the level of logs with `--log` or GODEL_LOG of each service"),
    ("POST", "reservation/new-reservation", RESERVATIONS),
    ("POST", "reservation/submit", RESERVATIONS),
    ("POST", "reservation/update", RESERVATIONS),
    ("POST", "reservation/delete", RESERVATIONS),
    ("GET", "reservation/list", RESERVATIONS),
    ("POST", "containers/*/signal/*", "`godel unit stop` ends single replicas of the unit of an application"),
    ("POST", "delegation-token", TOKENS),
    ("POST", "delegation-token/expiration", TOKENS),
];
const LABELS: &str = "`godel node label NODE` sets labels, and agents report those of their configuration";
const QUEUES: &str =
    "`godel queue set` and `godel apply -f` change queues, `godel queue list -o yaml` shows them";
const RESERVATIONS: &str = "`godel reservation create` reserves room for units";
const TOKENS: &str = "delegation tokens need Kerberos, which godel does not have";

fn id<T: std::str::FromStr<Err = BadYarnId>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|bad: BadYarnId| Problem::bad_request(bad.to_string()))
}

impl AppPart {
    fn row(&self) -> &'static str {
        match self {
            Self::Whole => "rest/GET /ws/v1/cluster/apps/ID",
            Self::State => "rest/GET /ws/v1/cluster/apps/ID/state",
            Self::Queue => "rest/GET /ws/v1/cluster/apps/ID/queue",
            Self::Priority => "rest/GET /ws/v1/cluster/apps/ID/priority",
            Self::Timeouts => "rest/GET /ws/v1/cluster/apps/ID/timeouts",
            Self::Timeout(_) => "rest/GET /ws/v1/cluster/apps/ID/timeouts/TYPE",
            Self::Attempts => "rest/GET /ws/v1/cluster/apps/ID/appattempts",
            Self::Attempt(_) => "rest/GET /ws/v1/cluster/apps/ID/appattempts/ID",
            Self::Containers(_) => "rest/GET /ws/v1/cluster/apps/ID/appattempts/ID/containers",
            Self::Container(..) => "rest/GET /ws/v1/cluster/apps/ID/appattempts/ID/containers/ID",
        }
    }
}

impl Route {
    /// Its row in the table of permissions.
    pub(super) fn row(&self) -> &'static str {
        match self {
            Self::Page => "rest/GET /cluster",
            Self::AppPage(_) => "rest/GET /cluster/app/ID",
            Self::Jmx => "rest/GET /jmx",
            Self::Proxy(..) => "rest/GET /proxy/ID",
            Self::Info => "rest/GET /ws/v1/cluster/info",
            Self::Metrics => "rest/GET /ws/v1/cluster/metrics",
            Self::Scheduler => "rest/GET /ws/v1/cluster/scheduler",
            Self::Nodes => "rest/GET /ws/v1/cluster/nodes",
            Self::Node(_) => "rest/GET /ws/v1/cluster/nodes/ID",
            Self::NodeLabels(_) => "rest/GET /ws/v1/cluster/nodes/ID/get-labels",
            Self::Labels => "rest/GET /ws/v1/cluster/get-node-labels",
            Self::NodesToLabels => "rest/GET /ws/v1/cluster/get-node-to-labels",
            Self::LabelsToNodes => "rest/GET /ws/v1/cluster/label-mappings",
            Self::UserInfo => "rest/GET /ws/v1/cluster/userinfo",
            Self::Access(_) => "rest/GET /ws/v1/cluster/queues/QUEUE/access",
            Self::Statistics => "rest/GET /ws/v1/cluster/appstatistics",
            Self::Activities(None) => "rest/GET /ws/v1/cluster/scheduler/activities",
            Self::Activities(Some(_)) => "rest/GET /ws/v1/cluster/scheduler/app-activities/ID",
            Self::Apps => "rest/GET /ws/v1/cluster/apps",
            Self::App(_, part) => part.row(),
            Self::Change(Change::NewApplication) => "rest/POST /ws/v1/cluster/apps/new-application",
            Self::Change(Change::Submit) => "rest/POST /ws/v1/cluster/apps",
            Self::Change(Change::State(_)) => "rest/PUT /ws/v1/cluster/apps/ID/state",
            Self::Change(Change::Queue(_)) => "rest/PUT /ws/v1/cluster/apps/ID/queue",
            Self::Change(Change::Priority(_)) => "rest/PUT /ws/v1/cluster/apps/ID/priority",
            Self::Change(Change::Timeout(_)) => "rest/PUT /ws/v1/cluster/apps/ID/timeout",
        }
    }

    /// What a call of `path` is for.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let decoded: Option<Vec<String>> =
            path.split('/').filter(|part| !part.is_empty()).map(|part| decoded(part, false)).collect();
        let parts = decoded.ok_or_else(|| Problem::bad_request("the path is no UTF-8"))?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let route = match parts.as_slice() {
            ["ws", "v1", "cluster", rest @ ..] => return Self::of_cluster(method, rest, path),
            [] | ["cluster"] | ["cluster", "cluster" | "apps" | "nodes" | "scheduler"] => Self::Page,
            ["cluster", "app", app] => Self::AppPage(id(app)?),
            ["jmx"] => Self::Jmx,
            ["proxy", app, rest @ ..] => Self::Proxy(id(app)?, rest.join("/")),
            _ => return Err(Problem::unknown_path(path)),
        };
        if is_read { Ok(route) } else { Err(Problem::MethodNotAllowed) }
    }

    fn of_cluster(method: &Method, parts: &[&str], path: &str) -> Result<Self, Problem> {
        if let Some((_, _, way)) =
            ELSEWHERE.iter().find(|(asked, known, _)| *asked == method.as_str() && is_like(known, parts))
        {
            return Err(Problem::bad_request(format!("godel does not do this by YARN's API: {way}")));
        }
        if let ["delegation-token"] = parts
            && method == Method::DELETE
        {
            return Err(Problem::bad_request(format!("godel does not do this by YARN's API: {TOKENS}")));
        }
        let read = Self::read(parts)?;
        let change = Self::change(method, parts)?;
        match (*method == Method::GET || *method == Method::HEAD, read, change) {
            (true, Some(route), _) | (false, _, Some(route)) => Ok(route),
            (_, None, None) if !Self::is_written(parts) => Err(Problem::unknown_path(path)),
            _ => Err(Problem::MethodNotAllowed),
        }
    }

    fn read(parts: &[&str]) -> Result<Option<Self>, Problem> {
        Ok(Some(match parts {
            [] | ["info"] => Self::Info,
            ["metrics"] => Self::Metrics,
            ["scheduler"] => Self::Scheduler,
            ["scheduler", "activities" | "bulk-activities"] => Self::Activities(None),
            ["scheduler", "app-activities", app] => Self::Activities(Some((*app).to_owned())),
            ["nodes"] => Self::Nodes,
            ["nodes", node] => Self::Node((*node).to_owned()),
            ["nodes", node, "get-labels"] => Self::NodeLabels((*node).to_owned()),
            ["get-node-labels"] => Self::Labels,
            ["get-node-to-labels"] => Self::NodesToLabels,
            ["label-mappings"] => Self::LabelsToNodes,
            ["userinfo"] => Self::UserInfo,
            ["queues", queue, "access"] => Self::Access((*queue).to_owned()),
            ["appstatistics"] => Self::Statistics,
            ["apps"] => Self::Apps,
            ["apps", "new-application"] => return Ok(None),
            ["apps", app, rest @ ..] => match Self::app_part(id(app)?, rest)? {
                Some(part) => Self::App(id(app)?, part),
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    fn app_part(app: YarnApplicationId, parts: &[&str]) -> Result<Option<AppPart>, Problem> {
        let attempt = |text: &str| {
            let attempt: YarnAttemptId = id(text)?;
            let is_its_own = attempt.application == app;
            is_its_own
                .then_some(attempt)
                .ok_or_else(|| Problem::not_found("appId and appAttemptId don't match"))
        };
        Ok(Some(match parts {
            [] => AppPart::Whole,
            ["state"] => AppPart::State,
            ["queue"] => AppPart::Queue,
            ["priority"] => AppPart::Priority,
            ["timeouts"] => AppPart::Timeouts,
            ["timeouts", kind] => AppPart::Timeout((*kind).to_owned()),
            ["appattempts"] => AppPart::Attempts,
            ["appattempts", one] => AppPart::Attempt(attempt(one)?),
            ["appattempts", one, "containers"] => AppPart::Containers(attempt(one)?),
            ["appattempts", one, "containers", container] => {
                let (attempt, container): (_, YarnContainerId) = (attempt(one)?, id(container)?);
                if container.attempt != attempt {
                    return Err(Problem::not_found("appAttemptId and containerId don't match"));
                }
                AppPart::Container(attempt, container)
            }
            _ => return Ok(None),
        }))
    }

    fn change(method: &Method, parts: &[&str]) -> Result<Option<Self>, Problem> {
        let change = match (method.as_str(), parts) {
            ("POST", ["apps", "new-application"]) => Change::NewApplication,
            ("POST", ["apps"]) => Change::Submit,
            ("PUT", ["apps", app, "state"]) => Change::State(id(app)?),
            ("PUT", ["apps", app, "queue"]) => Change::Queue(id(app)?),
            ("PUT", ["apps", app, "priority"]) => Change::Priority(id(app)?),
            ("PUT", ["apps", app, "timeout"]) => Change::Timeout(id(app)?),
            _ => return Ok(None),
        };
        Ok(Some(Self::Change(change)))
    }

    /// Whether a path that nobody reads is written.
    fn is_written(parts: &[&str]) -> bool {
        matches!(parts, ["apps", "new-application"] | ["apps", _, "timeout"])
    }
}

/// Whether parts of a path are those of `known`, in which `*` is any one.
fn is_like(known: &str, parts: &[&str]) -> bool {
    let mut n_parts = 0;
    let all = known.split('/').zip(parts).all(|(known, part)| {
        n_parts += 1;
        known == "*" || known == *part
    });
    all && n_parts == parts.len() && n_parts == known.split('/').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> Result<Route, Problem> {
        Route::of(&Method::from_bytes(method.as_bytes()).unwrap(), path)
    }

    #[test]
    fn every_path_of_yarn_has_its_route() {
        let app: YarnApplicationId = "application_17_0001".parse().unwrap();
        let attempt: YarnAttemptId = "appattempt_17_0001_000001".parse().unwrap();
        let container: YarnContainerId = "container_17_0001_01_000002".parse().unwrap();
        let of_app = |part| Route::App(app, part);
        for (path, expected) in [
            ("", Route::Info),
            ("/", Route::Info),
            ("/info", Route::Info),
            ("/metrics", Route::Metrics),
            ("/scheduler", Route::Scheduler),
            ("/scheduler/activities", Route::Activities(None)),
            ("/scheduler/app-activities/x", Route::Activities(Some("x".into()))),
            ("/nodes", Route::Nodes),
            ("/nodes/n1:8041", Route::Node("n1:8041".into())),
            ("/nodes/n1%3A8041", Route::Node("n1:8041".into())),
            ("/nodes/n1:8041/get-labels", Route::NodeLabels("n1:8041".into())),
            ("/get-node-labels", Route::Labels),
            ("/get-node-to-labels", Route::NodesToLabels),
            ("/label-mappings", Route::LabelsToNodes),
            ("/userinfo", Route::UserInfo),
            ("/queues/root.a/access", Route::Access("root.a".into())),
            ("/appstatistics", Route::Statistics),
            ("/apps", Route::Apps),
            ("/apps/application_17_0001", of_app(AppPart::Whole)),
            ("/apps/application_17_0001/state", of_app(AppPart::State)),
            ("/apps/application_17_0001/queue", of_app(AppPart::Queue)),
            ("/apps/application_17_0001/priority", of_app(AppPart::Priority)),
            ("/apps/application_17_0001/timeouts", of_app(AppPart::Timeouts)),
            ("/apps/application_17_0001/timeouts/LIFETIME", of_app(AppPart::Timeout("LIFETIME".into()))),
            ("/apps/application_17_0001/appattempts", of_app(AppPart::Attempts)),
            (
                "/apps/application_17_0001/appattempts/appattempt_17_0001_000001",
                of_app(AppPart::Attempt(attempt)),
            ),
            (
                "/apps/application_17_0001/appattempts/appattempt_17_0001_000001/containers",
                of_app(AppPart::Containers(attempt)),
            ),
            (
                "/apps/application_17_0001/appattempts/appattempt_17_0001_000001/containers/container_17_0001_01_000002",
                of_app(AppPart::Container(attempt, container)),
            ),
        ] {
            assert_eq!(of("GET", &format!("{CLUSTER}{path}")), Ok(expected), "{path}");
        }
        for (method, path, expected) in [
            ("POST", "/apps/new-application", Change::NewApplication),
            ("POST", "/apps", Change::Submit),
            ("PUT", "/apps/application_17_0001/state", Change::State(app)),
            ("PUT", "/apps/application_17_0001/queue", Change::Queue(app)),
            ("PUT", "/apps/application_17_0001/priority", Change::Priority(app)),
            ("PUT", "/apps/application_17_0001/timeout", Change::Timeout(app)),
        ] {
            assert_eq!(of(method, &format!("{CLUSTER}{path}")), Ok(Route::Change(expected)), "{path}");
        }
        assert_eq!(of("GET", "/proxy/application_17_0001/jobs/"), Ok(Route::Proxy(app, "jobs".into())));
        assert_eq!(of("GET", "/cluster"), Ok(Route::Page));
        assert_eq!(of("GET", "/jmx"), Ok(Route::Jmx));
    }

    #[test]
    fn every_route_has_its_row_and_every_row_its_route() {
        let app = "application_17_0001";
        let attempt = "appattempts/appattempt_17_0001_000001";
        let filled = |row: &str| {
            row.replace(
                "appattempts/ID/containers/ID",
                &format!("{attempt}/containers/container_17_0001_01_000002"),
            )
            .replace("appattempts/ID", attempt)
            .replace("nodes/ID", "nodes/n1:8041")
            .replace("QUEUE", "root.a")
            .replace("TYPE", "LIFETIME")
            .replace("ID", app)
        };
        let mut n_rows = 0;
        for (row, _) in godel_identity::needs::YARN_NEEDS {
            let Some((method, path)) = row.strip_prefix("rest/").and_then(|row| row.split_once(' ')) else {
                continue;
            };
            n_rows += 1;
            assert_eq!(of(method, &filled(path)).unwrap().row(), *row, "{path}");
        }
        // One of each kind of route; a new one does not build without its row.
        assert_eq!(n_rows, 19 + 10 + 6);
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        for (method, path) in [
            ("POST", "/info"),
            ("DELETE", "/apps/application_17_0001"),
            ("GET", "/apps/new-application"),
            ("GET", "/apps/application_17_0001/timeout"),
            ("PUT", "/apps"),
        ] {
            assert_eq!(of(method, &format!("{CLUSTER}{path}")), Err(Problem::MethodNotAllowed), "{path}");
        }
        for path in
            ["/ws/v1/cluster/nothing", "/ws/v2/cluster", "/ws/v1/cluster/apps/application_17_0001/x", "/x"]
        {
            assert_eq!(of("GET", path), Err(Problem::unknown_path(path)));
        }
        for path in ["/apps/x", "/apps/application_x_1/state", "/apps/application_17_0001/appattempts/1"] {
            let refused = of("GET", &format!("{CLUSTER}{path}")).unwrap_err();
            assert!(matches!(refused, Problem::BadRequest(_)), "{path}: {refused:?}");
        }
        let other = "/apps/application_17_0001/appattempts/appattempt_17_0002_000001";
        assert!(matches!(of("GET", &format!("{CLUSTER}{other}")), Err(Problem::NotFound(_))));
        assert!(matches!(of("GET", "/ws/%ff"), Err(Problem::BadRequest(_))));
    }

    #[test]
    fn what_godel_does_otherwise_says_how() {
        for (method, path, _) in ELSEWHERE {
            let path = format!("{CLUSTER}/{}", path.replace('*', "x"));
            let Err(Problem::BadRequest(why)) = of(method, &path) else { panic!("{path}") };
            assert!(why.starts_with("godel does not do this by YARN's API: "), "{why}");
        }
        assert!(matches!(of("DELETE", "/ws/v1/cluster/delegation-token"), Err(Problem::BadRequest(_))));
    }
}
