//! What each page of members by HTTP needs.

use super::{Needs, OPERATE};

/// What pages of members by HTTP need, as [`page_of`] names them and in order of that. What the YARN adapter and agents serve to clients of
/// YARN is theirs.
pub const HTTP_NEEDS: &[(&str, Needs)] = &[
    // Probes.
    ("GET /healthz", Needs::Anyone),
    // Names queues and members, and no units.
    ("GET /metrics", Needs::Identified),
    ("POST /policies/{name}/run", OPERATE),
];

/// The page that a request is about, as [`HTTP_NEEDS`] names it. One that nobody serves has no name there.
pub fn page_of(method: &str, path: &str) -> &'static str {
    match (method, path) {
        ("GET" | "HEAD", "/healthz") => "GET /healthz",
        ("GET" | "HEAD", "/metrics") => "GET /metrics",
        ("POST", path) if path.starts_with("/policies/") && path.ends_with("/run") => {
            "POST /policies/{name}/run"
        }
        _ => "a page that is not served",
    }
}
