//! `godel identity`, `godel join-token` and `godel ca`.

use std::time::Duration;

use clap::ValueEnum as _;
use godel_client::{
    client::Client,
    doctor::{Standing, check_store_dir},
    exit::{Code, Failure},
    output::{self, Format, View, ViewColumn, count, time},
    view,
};
use godel_kit::{
    address::{ServerAddress, parse_list},
    clock::SystemClock,
};
use godel_proto::v1;

use super::each::{Done, each};
use crate::{
    args::identity::{
        Ca, IdentityVerb, JoinRole, JoinTokenArgs, JoinTokenVerb, NamedIdentities, NewJoinToken,
        NodeJoinToken,
    },
    config,
    local::DEFAULT_PORT,
};

view! {
    struct JoinTokenView from (token: v1::JoinTokenInfo) {
        id: String = token.token_id,
        role: String = token.role,
        names: String = token.names,
        pool: String = token.pool,
        created_ms: i64 = token.created_ms,
        expires_ms: i64 = token.expires_ms,
        uses_left: u32 = token.uses_left,
    }
}

impl View for JoinTokenView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("ID", |view| view.id.clone()),
        ("ROLE", |view| view.role.clone()),
        ("NAMES", |view| view.names.clone()),
        ("POOL", |view| view.pool.clone()),
        ("USES-LEFT", |view| view.uses_left.to_string()),
        ("ENDS", |view| time(view.expires_ms)),
    ];
}

view! {
    struct IdentityView from (info: v1::IdentityInfo) with {
        let standing = Standing::from(info.standing());
        let record = info.record.unwrap_or_default();
    } {
        identity: String = record.identity,
        standing: Standing = standing,
        pool: String = record.pool,
        joined_ms: i64 = record.joined_ms,
        issued_ms: i64 = record.issued_ms,
        ends_ms: i64 = record.ends_ms,
        may_join_again: bool = record.may_join_again,
        has_leaving_root: bool = info.has_leaving_root,
    }
}

impl View for IdentityView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("IDENTITY", |view| view.identity.clone()),
        ("STANDING", |view| view.standing.name().to_owned()),
        ("POOL", |view| view.pool.clone()),
        ("ISSUED", |view| time(view.issued_ms)),
        ("ENDS", |view| time(view.ends_ms)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("JOINED", |view| time(view.joined_ms)),
        ("MAY-JOIN-AGAIN", |view| view.may_join_again.to_string()),
        ("LEAVING-ROOT", |view| view.has_leaving_root.to_string()),
    ];
}

view! {
    struct RootView from (root: (String, String, v1::TrustRoot)) with {
        let (cluster, fingerprint, root) = root;
    } {
        cluster: String = cluster,
        fingerprint: String = fingerprint,
        created_ms: i64 = root.created_ms,
        signs_from_ms: i64 = root.signs_from_ms,
        is_leaving: bool = root.is_leaving,
    }
}

impl View for RootView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("CLUSTER", |view| view.cluster.clone()),
        ("FINGERPRINT", |view| view.fingerprint.clone()),
        ("CREATED", |view| time(view.created_ms)),
        ("LEAVING", |view| view.is_leaving.to_string()),
    ];
}

pub(super) async fn run(client: &Client, verb: IdentityVerb, format: Format) -> Result<(), Failure> {
    match verb {
        IdentityVerb::List { prefix } => {
            let request = v1::ListIdentitiesRequest { prefix };
            let listed =
                client.read(async || client.identities().list_identities(request.clone()).await).await?;
            let views: Vec<IdentityView> =
                listed.into_inner().identities.into_iter().map(IdentityView::from).collect();
            output::print_list(format, &views, "identities")
        }
        IdentityVerb::Revoke(NamedIdentities { identities }) => {
            let revoked = each(format, "identity", &identities, async |identity| {
                let request = v1::RevokeIdentityRequest { identity };
                client.read(async || client.identities().revoke_identity(request.clone()).await).await?;
                Ok(Done::at("revoked", 0))
            });
            revoked.await.map(drop)
        }
        IdentityVerb::Allow(NamedIdentities { identities }) => {
            let allowed = each(format, "identity", &identities, async |identity| {
                let request = v1::AllowNameRequest { identity };
                client.read(async || client.identities().allow_name(request.clone()).await).await?;
                Ok(Done { said: Some("may be joined once more"), ..Done::at("allowed", 0) })
            });
            allowed.await.map(drop)
        }
    }
}

pub(super) async fn join_token(
    client: &Client,
    wanted: JoinTokenArgs,
    format: Format,
) -> Result<(), Failure> {
    let JoinTokenArgs { verb, role, token } = wanted;
    match verb {
        None => create(client, role.unwrap_or(JoinRole::Agent), String::new(), token, format).await,
        Some(JoinTokenVerb::List) => {
            let request = v1::ListJoinTokensRequest {};
            let listed = client.read(async || client.identities().list_join_tokens(request).await).await?;
            let views: Vec<JoinTokenView> =
                listed.into_inner().tokens.into_iter().map(JoinTokenView::from).collect();
            output::print_list(format, &views, "join tokens")
        }
        Some(JoinTokenVerb::Delete { ids }) => {
            let deleted = each(format, "join token", &ids, async |token_id| {
                let request = v1::DeleteJoinTokenRequest { token_id };
                let answer = client.identities().delete_join_token(request).await;
                answer.map_err(|status| client.explain(status))?;
                Ok(Done::at("deleted", 0))
            });
            deleted.await.map(drop)
        }
    }
}

pub(super) async fn node_join_token(
    client: &Client,
    wanted: NodeJoinToken,
    format: Format,
) -> Result<(), Failure> {
    let NodeJoinToken { pool, token } = wanted;
    create(client, JoinRole::Agent, pool, token, format).await
}

/// Prints only the token to standard output, so that it can go into a file; instructions for people go to standard error.
async fn create(
    client: &Client,
    role: JoinRole,
    pool: String,
    token: NewJoinToken,
    format: Format,
) -> Result<(), Failure> {
    let NewJoinToken { names, ttl, uses } = token;
    let role_name = role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let request = v1::CreateJoinTokenRequest { role: role_name, names, pool, ttl_ms: millis(ttl), uses };
    let answer = client.identities().create_join_token(request).await;
    let v1::CreateJoinTokenResponse { token, info } =
        answer.map_err(|status| client.explain(status))?.into_inner();
    let info = JoinTokenView::from(info.unwrap_or_default());
    if format == Format::Table || format == Format::Wide {
        output::print_raw(&format!("{token}\n"))?;
        output::say(what_to_do(role, &info, client.address()));
        return Ok(());
    }
    output::print_value(format, &serde_json::json!({"token": token, "info": info}))
}

/// What a token is for, and the command that uses it; `state` is the address at which it was made.
fn what_to_do(role: JoinRole, info: &JoinTokenView, state: &str) -> String {
    let JoinTokenView { id, role: role_name, names, .. } = info;
    let process = if role == JoinRole::Agent {
        "godel agent".to_owned()
    } else {
        format!("godel serve {role_name} --listen IP:PORT")
    };
    let of_name =
        if names.is_empty() { "under any single name".to_owned() } else { format!("named {names}") };
    let mut text = format!(
        "token {id} is good for {} as {role_name} {of_name}, until {}\n\
         put it into a file that nobody else can read, and start the process with that file on any machine:\n  \
         {process} --address {} --join-file FILE",
        count(info.uses_left, "use"),
        time(info.expires_ms),
        address_for_others(state)
    );
    if role == JoinRole::Agent && names.is_empty() {
        text.push_str("\nan agent of several nodes, for example of simulated ones, needs a token with `--names`, such as `--names 'sim-*'`");
    }
    text
}

/// The address of state for other machines, or the addresses of several states: `state` with a placeholder if only this machine can use one of them.
pub(super) fn address_for_others(state: &str) -> String {
    let addresses = parse_list(state, true).unwrap_or_default();
    let is_for_others =
        |address: &ServerAddress| matches!(address, ServerAddress::Tls(_)) && !address.is_local();
    if !addresses.is_empty() && addresses.iter().all(is_for_others) {
        return state.to_owned();
    }
    let port = match addresses.first() {
        Some(ServerAddress::Tls(uri)) => uri.port_u16().unwrap_or(DEFAULT_PORT),
        Some(ServerAddress::PlainText(_) | ServerAddress::Unix(_)) | None => DEFAULT_PORT,
    };
    format!("https://HOST:{port}")
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) async fn ca(client: &Client, verb: Ca, format: Format) -> Result<(), Failure> {
    match verb {
        Ca::Show => {
            let request = v1::GetTrustRequest {};
            let answer =
                client.read(async || client.identities().get_trust(request).await).await?.into_inner();
            let v1::TrustRoots { cluster, roots, .. } = answer.trust.unwrap_or_default();
            let of = |(root, fingerprint): (v1::TrustRoot, Vec<u8>)| {
                RootView::from((cluster.clone(), hex(&fingerprint), root))
            };
            let views: Vec<RootView> = roots.into_iter().zip(answer.fingerprints).map(of).collect();
            output::print_list(format, &views, "roots")
        }
        Ca::Rotate => {
            let answer = client.identities().rotate_ca(v1::RotateCaRequest {}).await;
            let v1::RotateCaResponse { fingerprint, signs_from_ms, n_left } =
                answer.map_err(|status| client.explain(status))?.into_inner();
            let fingerprint = hex(&fingerprint);
            if format == Format::Table || format == Format::Wide {
                output::say(format!(
                    "made root {fingerprint}: it signs from {}; then {} will renew automatically",
                    time(signs_from_ms),
                    count(n_left, "identity")
                ));
                return Ok(());
            }
            let made = serde_json::json!({
                "fingerprint": fingerprint, "signs_from_ms": signs_from_ms, "identities_left": n_left
            });
            output::print_value(format, &made)
        }
        // `new_ca` does it, without a server.
        Ca::New { .. } => Ok(()),
    }
}

pub(super) async fn new_ca(verb: Ca) -> Result<(), Failure> {
    let Ca::New { data_dir, layers } = verb else { return Ok(()) };
    let data_dir = data_dir.map(|dir| dir.display().to_string());
    let root = config::load(&layers, &[("state.data_dir", data_dir)])?;
    // Opening an absent store would make one, which would be another cluster.
    check_store_dir(&root.state.data_dir)?;
    let made = godel_state::make_new_ca(&root.state, SystemClock::shared()).await;
    let made = made.map_err(|error| Failure::chain(Code::Failed, &error))?;
    output::say(format!(
        "made a CA for {}, with root {}: start state, then let services and agents join again with new tokens",
        made.cluster, made.root
    ));
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_for_others_leads_to_no_loopback() {
        for (state, shown) in [
            ("https://control-1:7700", "https://control-1:7700"),
            ("https://10.0.0.7:7701", "https://10.0.0.7:7701"),
            ("https://127.0.0.1:7701", "https://HOST:7701"),
            ("https://localhost:7700", "https://HOST:7700"),
            ("https://[::1]:7702", "https://HOST:7702"),
            ("https://127.example.com:7702", "https://127.example.com:7702"),
            ("https://localhost.example.com:7702", "https://localhost.example.com:7702"),
            ("https://a:7700,https://b:7700", "https://a:7700,https://b:7700"),
            ("https://a:7701,https://127.0.0.1:7700", "https://HOST:7701"),
            ("http://control-1:7700", "https://HOST:7700"),
            ("unix:/run/godel.sock", "https://HOST:7700"),
        ] {
            assert_eq!(address_for_others(state), shown);
        }
    }
}
