//! The REST face: `/ws/v1/cluster` as YARN's ResourceManager serves it, in JSON.
//!
//! Shapes are those of Hadoop 3.3, quirks included: a wrapper object where YARN has one, `null` for an empty list, texts for numbers where YARN's
//! older encoder writes them. `docs/yarn.md` lists every path and what differs. Who calls shows a person's token (`authorization: Bearer`), or is the
//! user that `user.name` says, as with Hadoop's simple authentication.
//!
//! # Modules
//!
//! - `apps`: applications, attempts and containers.
//! - `change`: calls that change an application.
//! - `cluster`: the cluster, its nodes, labels and users.
//! - `jmx`: the beans that monitoring reads.
//! - `json`: pieces of JSON that many answers have.
//! - `problem`: why a call is refused, as YARN says it.
//! - `query`: what stands behind the question mark, and filters of applications.
//! - `route`: what a path stands for.
//! - `scheduler`: the tree of queues.
//! - `submit`: submissions.
//! - `time`: points in time as YARN writes them.

mod apps;
mod change;
mod cluster;
mod jmx;
mod json;
mod problem;
mod query;
mod route;
mod scheduler;
mod submit;
mod time;

use std::{future::IntoFuture as _, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, LOCATION, SET_COOKIE},
    },
    response::Response,
    serve::IncomingStream,
};
use godel_domain::names::yarn_user;
use godel_kit::{
    CancellationToken,
    clock::SharedClock,
    metrics::{Few, hold},
    room::Room,
};
use serde_json::Value;
use tokio::net::TcpListener;

use self::{
    problem::Problem,
    query::{Query, decoded},
    route::Route,
};
use crate::{
    callers::YarnCallers,
    manager::{ResourceManager, YarnCaller},
};

/// Bytes of a body: a submission with its credentials.
const BODY_BYTES_MAX: usize = 2 << 20;
/// A call that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(30);
/// Connections kept; of more the oldest is closed.
const N_CONNECTIONS_MAX: usize = 1_024;
/// Bytes of answers that callers have not read.
const UNREAD_BYTES_MAX: usize = 64 << 20;
/// Who calls, of callers that do not say so: YARN's own default.
const NOBODY: &str = "dr.who";
/// Bytes of the name of a user.
const USER_LEN_MAX: usize = 253;

/// Every path over an adapter. Time is read from `clock`.
pub fn router(manager: Arc<dyn ResourceManager>, callers: YarnCallers, clock: SharedClock) -> Router {
    let room = Room::with_reserve(UNREAD_BYTES_MAX);
    Router::new().fallback(answer).with_state(Face { manager, callers, clock, room })
}

/// Serves [`router`] on a listener until `stop`.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    manager: Arc<dyn ResourceManager>,
    callers: YarnCallers,
    clock: SharedClock,
    stop: CancellationToken,
) -> io::Result<()> {
    let router = router(manager, callers, clock).into_make_service_with_connect_info::<Peer>();
    let served = axum::serve(Few::at_most(listener, N_CONNECTIONS_MAX), router)
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        served = served.into_future() => served,
        () = stop.cancelled() => Ok(()),
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, Few>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Few>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// What every call works on.
#[derive(Clone)]
struct Face {
    manager: Arc<dyn ResourceManager>,
    callers: YarnCallers,
    clock: SharedClock,
    /// For answers that are not read.
    room: Arc<Room>,
}

/// A call, as far as answers depend on it.
struct Call {
    face: Face,
    query: Query,
    /// Who calls: its principal, or the user where nobody is judged.
    by: YarnCaller,
    /// This server, as the caller reaches it: `host:port`.
    host: String,
}

/// What a call is answered with.
enum Reply {
    /// 200.
    Json(Value),
    /// Another status; with a place to look at, and mostly without content.
    At(StatusCode, String, Option<Value>),
}

async fn answer(State(face): State<Face>, request: Request) -> Response {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let host = host_of(request.headers());
    let room = Arc::clone(&face.room);
    match tokio::time::timeout(DEADLINE, replied(face, request, host.clone())).await {
        Ok(Ok(response)) => {
            let (parts, body) = response.into_parts();
            match hold(body, &room) {
                Some(body) => Response::from_parts(parts, body),
                None => Problem::Unavailable("too many answers are not read yet: try again".to_owned())
                    .response(&host, &target),
            }
        }
        Ok(Err(problem)) => problem.response(&host, &target),
        Err(_) => {
            Problem::Unavailable("the call took too long: try again".to_owned()).response(&host, &target)
        }
    }
}

async fn replied(face: Face, request: Request, host: String) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let route = Route::of(&parts.method, parts.uri.path())?;
    let query = Query::parse(parts.uri.query().unwrap_or_default())?;
    let is_for_programs = !matches!(route, Route::Page | Route::Proxy(..));
    if is_for_programs && !wants_json(&parts.headers) {
        return Err(Problem::NotAcceptable);
    }
    let (claimed, is_new) = user_of(&query, &parts.headers)?;
    let authorization = parts.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let address =
        parts.extensions.get::<ConnectInfo<Peer>>().map_or_else(String::new, |peer| peer.0.0.to_string());
    let principal = face.callers.judge_rest(route.row(), &claimed, authorization, &address)?;
    let user = principal.map_or_else(|| claimed.clone(), |principal| principal.name.clone());
    let is_new = is_new && yarn_user(&user) == claimed;
    let by = YarnCaller::new(&user, route.row(), &address);
    let call = Call { face, query, by, host };
    let reply = match route {
        Route::Change(change) => {
            let body = body_of(change.has_body(), &parts.headers, body).await?;
            call.change(change, body.as_ref()).await?
        }
        route => call.read(route)?,
    };
    let mut response = reply.response()?;
    // As Hadoop's filter does: clients that fetch the cookie once need not name the user again.
    if is_new {
        let cookie = format!("hadoop.auth=\"u={claimed}&p={claimed}&t=simple\"; Path=/; HttpOnly");
        response.headers_mut().extend(HeaderValue::try_from(cookie).ok().map(|cookie| (SET_COOKIE, cookie)));
    }
    Ok(response)
}

impl Call {
    fn read(&self, route: Route) -> Result<Reply, Problem> {
        let value = match route {
            Route::Page => return Ok(Self::page()),
            Route::Info => self.info(),
            Route::Metrics => self.metrics()?,
            Route::Scheduler => self.scheduler()?,
            Route::Nodes => self.nodes()?,
            Route::Node(id) => self.node(&id)?,
            Route::NodeLabels(id) => self.labels_of_node(&id)?,
            Route::Labels => self.labels()?,
            Route::NodesToLabels => self.nodes_to_labels()?,
            Route::LabelsToNodes => self.labels_to_nodes()?,
            Route::UserInfo => self.user_info(),
            Route::Access(queue) => self.access(&queue)?,
            Route::Statistics => self.statistics()?,
            Route::Activities(id) => Self::activities(id),
            Route::Jmx => self.jmx()?,
            Route::Apps => self.apps()?,
            Route::App(id, part) => self.app(id, part)?,
            Route::Proxy(id, rest) => return self.proxy(id, &rest),
            Route::AppPage(id) => {
                let at = format!("http://{}{}/apps/{id}", self.host, route::CLUSTER);
                return Ok(Reply::At(StatusCode::FOUND, at, None));
            }
            Route::Change(_) => return Err(Problem::MethodNotAllowed),
        };
        Ok(Reply::Json(value))
    }

    /// What people and probes see at `/cluster`.
    fn page() -> Reply {
        Reply::Json(serde_json::json!({
            "about": "This is the REST API of godel's YARN adapter.",
            "clusterInfo": "/ws/v1/cluster/info",
            "apps": "/ws/v1/cluster/apps",
        }))
    }
}

impl Reply {
    fn response(self) -> Result<Response, Problem> {
        let (status, at, value) = match self {
            Self::Json(value) => (StatusCode::OK, None, Some(value)),
            Self::At(status, at, value) => (status, Some(at), value),
        };
        let body = value.map_or_else(Body::empty, |value| Body::from(value.to_string()));
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json;charset=utf-8"));
        if let Some(at) = at {
            let at = HeaderValue::try_from(at);
            headers.insert(LOCATION, at.map_err(|_| Problem::not_found("the address is no address"))?);
        }
        Ok(response)
    }
}

/// The body as JSON; `None`: the call has none.
async fn body_of(is_wanted: bool, headers: &HeaderMap, body: Body) -> Result<Option<Value>, Problem> {
    if !is_wanted {
        return Ok(None);
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("application/json");
    if !kind.trim_start().to_ascii_lowercase().starts_with("application/json") {
        return Err(Problem::UnsupportedType);
    }
    let bytes = to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| Problem::TooLarge(BODY_BYTES_MAX))?;
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| Problem::bad_request(format!("the body is no JSON: {error}")))
}

/// Whether the caller takes JSON.
fn wants_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if accepted.peek().is_none() {
        return true;
    }
    let kinds = accepted.flat_map(|value| value.split(','));
    let kinds = kinds.map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    kinds.into_iter().any(|kind| matches!(kind.as_str(), "" | "*/*" | "application/*" | "application/json"))
}

/// Who calls, and whether that stood in the query.
fn user_of(query: &Query, headers: &HeaderMap) -> Result<(String, bool), Problem> {
    if let Some(user) = query.first("user.name").filter(|user| !user.is_empty()) {
        let is_safe = user.len() <= USER_LEN_MAX
            && user.chars().all(|c| c.is_ascii_alphanumeric() || "._-@/$".contains(c));
        return if is_safe {
            Ok((user.to_owned(), true))
        } else {
            Err(Problem::bad_request("user.name: letters, digits and ._-@/$ are allowed"))
        };
    }
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let user = cookies.flat_map(|cookies| cookies.split(';')).find_map(|cookie| {
        let token = cookie.trim().strip_prefix("hadoop.auth=")?.trim_matches('"');
        token.split('&').find_map(|part| part.strip_prefix("u=")).and_then(|user| decoded(user, false))
    });
    let user = user.filter(|user| !user.is_empty() && user.len() <= USER_LEN_MAX);
    Ok((user.filter(|user| !user.chars().any(char::is_control)).unwrap_or_else(|| NOBODY.to_owned()), false))
}

/// This server as the caller names it.
fn host_of(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_safe = !host.is_empty()
        && host.len() <= 300
        && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:[]".contains(c));
    if is_safe { host.to_owned() } else { "localhost".to_owned() }
}

#[cfg(test)]
mod tests;
