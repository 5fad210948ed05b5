//! `godel admin`.

use godel_proto::v1;

use crate::{args::Admin, client::Client, exit::Failure, output};

pub(super) async fn run(client: &Client, verb: Admin) -> Result<(), Failure> {
    let (scopes, paused, reason) = match verb {
        Admin::Pause { scopes, reason } => (scopes, true, reason),
        Admin::Resume { scopes } => (scopes, false, String::new()),
    };
    for scope in scopes {
        let request = v1::SetPauseRequest { scope: scope.clone(), paused, reason: reason.clone() };
        let call = client.dispatch(|mut dispatch| {
            let request = request.clone();
            async move { dispatch.set_pause(request).await }
        });
        let v1::SetPauseResponse { revision, changed } = call.await?.into_inner();
        output::say(match (paused, changed) {
            (true, true) => format!("{scope} paused at revision {revision}"),
            (true, false) => format!("{scope} was paused already"),
            (false, true) => format!("{scope} goes on since revision {revision}"),
            (false, false) => format!("{scope} was not paused"),
        });
    }
    Ok(())
}
