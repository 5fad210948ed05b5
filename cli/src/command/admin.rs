//! `godel admin`.

use godel_client::{client::Client, exit::Failure, output::Format};
use godel_proto::v1;

use super::each::{Done, UNCHANGED, each};
use crate::args::Admin;

pub(super) async fn run(client: &Client, verb: Admin, format: Format) -> Result<(), Failure> {
    let (scopes, paused, reason) = match verb {
        Admin::Pause { scopes, reason } => (scopes, true, reason),
        Admin::Resume { scopes } => (scopes, false, String::new()),
    };
    let changed = each(format, "scope", &scopes, async |scope| {
        let request = v1::SetPauseRequest { scope, paused, reason: reason.clone() };
        let call = client.dispatch(async |mut dispatch| dispatch.set_pause(request.clone()).await);
        let v1::SetPauseResponse { revision, changed } = call.await?;
        Ok(match (paused, changed) {
            (true, true) => Done::at("paused", revision),
            (false, true) => Done::at("resumed", revision),
            (true, false) => Done { said: Some("is already paused"), ..Done::at(UNCHANGED, 0) },
            (false, false) => Done { said: Some("is not paused"), ..Done::at(UNCHANGED, 0) },
        })
    });
    changed.await.map(drop)
}
