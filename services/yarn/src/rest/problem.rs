//! Why a call is refused, as YARN says it: a status, and a RemoteException with class and message.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use godel_core_yarn::adapter::MasterRefusal;
use godel_core_yarn_leader::ManagerRefusal;
use serde_json::json;

use super::query::Query;
use crate::callers::RestRefusal;

/// Seconds after which a caller looks again for the adapter that leads.
const REFRESH_SECS: u32 = 5;

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    BadRequest(String),
    /// As Java's own exception, which YARN does not wrap everywhere.
    IllegalArgument(String),
    NotFound(String),
    Forbidden(String),
    /// The token of the caller does not count.
    Unauthorized(String),
    MethodNotAllowed,
    NotAcceptable,
    UnsupportedType,
    TooLarge(usize),
    Unavailable(String),
    /// Another adapter leads, at this address if it is known.
    Standby(Option<String>),
}

impl From<ManagerRefusal> for Problem {
    fn from(refusal: ManagerRefusal) -> Self {
        match refusal {
            // YARN's own words: there are clients that look for them.
            ManagerRefusal::NoApplication(id) => Self::NotFound(format!("app with id: {id} not found")),
            ManagerRefusal::NoAttempt(_) | ManagerRefusal::NoContainer(_) => {
                Self::NotFound(refusal.to_string())
            }
            ManagerRefusal::NoQueue(_) | ManagerRefusal::Taken(_) => Self::BadRequest(refusal.to_string()),
            ManagerRefusal::Invalid(why) => Self::BadRequest(why),
            ManagerRefusal::Denied(why)
            | ManagerRefusal::NotAllowed(why)
            | ManagerRefusal::QueueNotAllowed(why) => Self::Forbidden(why),
            ManagerRefusal::Master(MasterRefusal::NoAttempt(_)) => Self::NotFound(refusal.to_string()),
            ManagerRefusal::Master(MasterRefusal::NotYet(_)) => Self::Unavailable(refusal.to_string()),
            ManagerRefusal::Master(why) => Self::BadRequest(why.to_string()),
            ManagerRefusal::Standby(leader) => Self::Standby(leader),
            ManagerRefusal::Unavailable(why) => Self::Unavailable(why),
        }
    }
}

impl From<RestRefusal> for Problem {
    fn from(refusal: RestRefusal) -> Self {
        match refusal {
            RestRefusal::Unproven(why) => Self::Unauthorized(why),
            RestRefusal::Forbidden(why) => Self::Forbidden(why),
            RestRefusal::Unavailable(why) => Self::Unavailable(why),
        }
    }
}

impl Problem {
    pub(super) fn bad_request(why: impl Into<String>) -> Self {
        Self::BadRequest(why.into())
    }

    pub(super) fn not_found(what: impl Into<String>) -> Self {
        Self::NotFound(what.into())
    }

    /// Nothing is served there.
    pub(super) fn unknown_path(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        Self::NotFound(format!("null for uri: {shown}"))
    }

    /// The answer to a call of `target` (path and query) on `host`.
    pub(super) fn response(self, host: &str, target: &str) -> Response {
        let yarn = |name: &str| format!("org.apache.hadoop.yarn.webapp.{name}");
        // YARN's exceptions carry their message in a cause, whose class is shown with it.
        let caused = |why: &str| format!("java.lang.Exception: {why}");
        let (status, class, message) = match self {
            Self::BadRequest(why) => (StatusCode::BAD_REQUEST, yarn("BadRequestException"), caused(&why)),
            Self::IllegalArgument(why) => {
                (StatusCode::BAD_REQUEST, "java.lang.IllegalArgumentException".to_owned(), why)
            }
            Self::NotFound(what) => (StatusCode::NOT_FOUND, yarn("NotFoundException"), caused(&what)),
            Self::Forbidden(why) => (StatusCode::FORBIDDEN, yarn("ForbiddenException"), caused(&why)),
            Self::Unauthorized(why) => (
                StatusCode::UNAUTHORIZED,
                "org.apache.hadoop.security.authentication.client.AuthenticationException".to_owned(),
                why,
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "javax.ws.rs.WebApplicationException".to_owned(),
                "this path is not for this method".to_owned(),
            ),
            Self::NotAcceptable => {
                let why = "godel's YARN adapter answers in JSON only: send `Accept: application/json`, or no \
                           Accept header\n";
                return text(StatusCode::NOT_ACCEPTABLE, why.to_owned());
            }
            Self::UnsupportedType => {
                let why = "godel's YARN adapter reads JSON only: send the body with `Content-Type: \
                           application/json`\n";
                return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why.to_owned());
            }
            Self::TooLarge(n_max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                yarn("BadRequestException"),
                caused(&format!("the body has more than {n_max} bytes, or does not come")),
            ),
            Self::Unavailable(why) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "org.apache.hadoop.yarn.exceptions.YarnRuntimeException".to_owned(),
                why,
            ),
            Self::Standby(leader) => return standby(leader.as_deref(), host, target),
        };
        let exception = class.rsplit('.').next().unwrap_or_default();
        let body = json!({
            "RemoteException": { "exception": exception, "message": message, "javaClassName": class }
        });
        let mut response = text(status, body.to_string());
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json;charset=utf-8"));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

fn text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain;charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// What a standby answers, as YARN's do: look at the one that leads, or look again here. Adapters serve REST on one and the same
/// port: the host is that of the leader, the port the one that was called.
fn standby(leader: Option<&str>, host: &str, target: &str) -> Response {
    let at = leader.and_then(|leader| leader_at(leader, host));
    let (words, name, value) = match at {
        Some(at) => {
            let at = format!("http://{at}{target}");
            (format!("This is standby RM. The redirect url is: {at}\n"), header::LOCATION, at)
        }
        None => {
            let words = format!("Can not find any active RM. Will retry in next {REFRESH_SECS} seconds.\n");
            (words, header::REFRESH, format!("{REFRESH_SECS};url=http://{host}{target}"))
        }
    };
    let mut response = text(StatusCode::TEMPORARY_REDIRECT, words);
    response.headers_mut().extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
    response
}

/// Where the leader serves REST; `None`: that would be here.
fn leader_at(leader: &str, host: &str) -> Option<String> {
    let authority = leader.split_once("://").map_or(leader, |(_, rest)| rest).split('/').next()?;
    let (leader, _) = split_port(authority);
    let (own, port) = split_port(host);
    if leader.is_empty() || leader == own {
        return None;
    }
    Some(port.map_or_else(|| leader.to_owned(), |port| format!("{leader}:{port}")))
}

/// `host:port`, the host with its brackets.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, Some(port))
        }
        _ => (authority, None),
    }
}

/// A value of an enumeration that is none, in Java's words.
pub(super) fn no_constant(class: &str, word: &str) -> Problem {
    let shown: String = word.chars().take(100).collect();
    Problem::IllegalArgument(format!("No enum constant org.apache.hadoop.yarn.api.records.{class}.{shown}"))
}

/// A number in the query, of Java's `long`.
pub(super) fn number(query: &Query, name: &str) -> Result<Option<i64>, Problem> {
    let Some(text) = query.first(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let shown: String = text.chars().take(100).collect();
    let parsed = text.parse().map_err(|_| Problem::bad_request(format!("{name}: \"{shown}\" is no number")));
    parsed.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(problem: Problem) -> (StatusCode, Option<String>, Option<String>) {
        let response = problem.response("rm1:8088", "/ws/v1/cluster/apps?limit=1");
        let of = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        (response.status(), of(header::LOCATION), of(header::REFRESH))
    }

    #[test]
    fn a_standby_names_the_leader_or_itself() {
        let standby = |leader: Option<&str>| sent(Problem::Standby(leader.map(str::to_owned)));
        let redirect = StatusCode::TEMPORARY_REDIRECT;
        let at = Some("http://rm2:8088/ws/v1/cluster/apps?limit=1".to_owned());
        assert_eq!(standby(Some("http://rm2:7704")), (redirect, at, None));
        let again = Some("5;url=http://rm1:8088/ws/v1/cluster/apps?limit=1".to_owned());
        assert_eq!(standby(None), (redirect, None, again.clone()));
        // Nobody is sent round in a circle.
        assert_eq!(standby(Some("http://rm1:7704")), (redirect, None, again));
        assert_eq!(leader_at("http://[::1]:7704", "rm1"), Some("[::1]".to_owned()));
    }

    #[test]
    fn refusals_have_the_statuses_of_yarn() {
        let status = |refusal: ManagerRefusal| sent(refusal.into()).0.as_u16();
        let id = "application_17_0001".parse().unwrap();
        assert_eq!(status(ManagerRefusal::NoApplication(id)), 404);
        assert_eq!(status(ManagerRefusal::NoQueue("q".into())), 400);
        assert_eq!(status(ManagerRefusal::Taken(id)), 400);
        assert_eq!(status(ManagerRefusal::Invalid("x".into())), 400);
        let unknown = godel_core_yarn::asks::BadAsk::Label("slow".into());
        assert_eq!(status(MasterRefusal::BadAsk(unknown).into()), 400);
        assert_eq!(status(ManagerRefusal::Denied("x".into())), 403);
        assert_eq!(status(ManagerRefusal::Unavailable("x".into())), 503);
        assert_eq!(sent(Problem::NotAcceptable).0.as_u16(), 406);
        let unauthorized = Problem::Unauthorized("expired".into()).response("rm1", "/");
        assert_eq!(unauthorized.status().as_u16(), 401);
        assert_eq!(unauthorized.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
}
