//! Reads what state says of its cluster.

use std::net::IpAddr;

use godel_kit::{
    address::ServerAddress,
    clock::{SharedClock, SystemClock},
    metrics::PLAIN_TEXT_COUNTER,
};
use godel_proto::v1;
use tonic::{Code as RpcCode, Status};

use super::facts::{
    ClockFacts, ClusterFacts, IdentityFacts, JoinTokenFacts, MemberFacts, PlainTextFace, Reach, Spoken,
    Standing,
};
use crate::{client::Client, exit::Failure};

/// Leases of this kind name what they are for behind it.
const MEMBER: &str = "member/";
/// The lease of the YARN adapter.
const YARN: &str = "yarn";
/// Attributes of nodes that start containers of YARN.
const YARN_HOST: &str = "godel.dev/yarn-host";
const YARN_PORT: &str = "godel.dev/yarn-port";

/// Asks state for all that it knows of who can reach the cluster.
///
/// # Errors
/// State does not answer, or refuses.
pub async fn look_at_cluster(client: &Client) -> Result<ClusterFacts, Failure> {
    let clock = SystemClock::shared();
    // Whatever is opened for the first call does not count for the clock.
    client.store_status().await?;
    let (asked_ms, store, answered_ms) = time_status(client, &clock).await?;
    let v1::GetStoreStatusResponse { security, version, now_ms: state_ms, .. } = store;
    let security = security.unwrap_or_default();
    let tls = spoken_of(security.tls());
    let members = client.directory().members("").await.map_err(|status| client.explain(status))?;
    let (mut identities, mut join_tokens) = (Vec::new(), Vec::new());
    let mut has_ca = tls != Spoken::PlainText;
    if has_ca {
        let request = v1::ListIdentitiesRequest::default();
        let answer =
            unless_without_ca(client.identities().list_identities(request).await.map(|it| it.into_inner()));
        match answer.map_err(|status| client.explain(status))? {
            Some(listed) => identities = listed.identities.into_iter().map(identity_facts).collect(),
            None => has_ca = false,
        }
    }
    if has_ca {
        let answer = client.identities().list_join_tokens(v1::ListJoinTokensRequest {}).await;
        let tokens = answer.map_err(|status| client.explain(status))?.into_inner().tokens;
        let now_ms = if state_ms == 0 { answered_ms } else { state_ms };
        join_tokens = tokens.into_iter().filter(|token| is_alive(token, now_ms)).map(token_facts).collect();
    }
    let mut members: Vec<MemberFacts> =
        members.into_iter().flat_map(|member| member_facts(member, tls)).collect();
    // State holds its lease without renewals, by which others say their versions.
    members
        .iter_mut()
        .filter(|member| member.is_state())
        .for_each(|state| state.version.clone_from(&version));
    let has_yarn = members.iter().any(|member| member.name == YARN);
    let nodes = if has_yarn { client.list_nodes(&[]).await? } else { Vec::new() };
    Ok(ClusterFacts {
        address: client.address().to_owned(),
        version,
        tls: if has_ca { tls } else { Spoken::PlainText },
        plain_text_connections: security.plain_text_connections,
        clock: (state_ms != 0).then(|| clock_facts(asked_ms, state_ms, answered_ms)),
        members,
        identities,
        join_tokens,
        container_ports: nodes.iter().filter_map(container_port).collect(),
    })
}

/// Where masters of YARN call the agent of a node that starts their containers.
fn container_port(node: &v1::Node) -> Option<String> {
    let attributes = &node.report.as_ref()?.attributes;
    Some(format!("{}:{}", attributes.get(YARN_HOST)?, attributes.get(YARN_PORT)?))
}

/// The status of state, and the clock of this machine before and after.
async fn time_status(
    client: &Client,
    clock: &SharedClock,
) -> Result<(i64, v1::GetStoreStatusResponse, i64), Failure> {
    let asked_ms = clock.wall_ms();
    let store = client.store_status().await?;
    Ok((asked_ms, store, clock.wall_ms()))
}

/// `None` where the cluster has no CA.
fn unless_without_ca<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(status) if status.code() == RpcCode::FailedPrecondition => Ok(None),
        Err(status) => Err(status),
    }
}

fn spoken_of(mode: v1::TlsMode) -> Spoken {
    match mode {
        v1::TlsMode::Unspecified => Spoken::Unknown,
        v1::TlsMode::Off => Spoken::PlainText,
        v1::TlsMode::Migrate => Spoken::Both,
        v1::TlsMode::On => Spoken::Tls,
    }
}

/// State took its time somewhere between the two of this machine.
fn clock_facts(asked_ms: i64, state_ms: i64, answered_ms: i64) -> ClockFacts {
    let within_ms = answered_ms.saturating_sub(asked_ms).max(0) / 2;
    ClockFacts { state_ms, ahead_ms: state_ms.saturating_sub(asked_ms.saturating_add(within_ms)), within_ms }
}

/// A token that is over, or used up, opens nothing.
fn is_alive(token: &v1::JoinTokenInfo, now_ms: i64) -> bool {
    token.uses_left > 0 && token.expires_ms > now_ms
}

fn token_facts(token: v1::JoinTokenInfo) -> JoinTokenFacts {
    let v1::JoinTokenInfo { token_id, role, expires_ms, uses_left, .. } = token;
    JoinTokenFacts { id: token_id, role, ends_ms: expires_ms, uses_left }
}

fn identity_facts(info: v1::IdentityInfo) -> IdentityFacts {
    let standing = match info.standing() {
        v1::IdentityStanding::Unspecified => Standing::Unknown,
        v1::IdentityStanding::Valid => Standing::Valid,
        v1::IdentityStanding::Expired => Standing::Expired,
        v1::IdentityStanding::Gone => Standing::Gone,
        v1::IdentityStanding::Revoked => Standing::Revoked,
    };
    let v1::IdentityRecord { identity, issued_ms, ends_ms, .. } = info.record.unwrap_or_default();
    IdentityFacts { identity, standing, issued_ms, ends_ms }
}

/// Who holds a lease and who stands by for it; `state` is what state speaks.
fn member_facts(member: v1::Member, state: Spoken) -> Vec<MemberFacts> {
    let v1::Member { lease, holder, address, status, standbys, .. } = member;
    let v1::MemberStatus { mut counters, version, plain_text_addresses } = status.unwrap_or_default();
    let name = lease.strip_prefix(MEMBER).unwrap_or(&lease);
    let at = |address: String, stands_by| MemberFacts {
        name: name.to_owned(),
        stands_by,
        spoken: spoken_at(&address),
        reach: reach_of(&address),
        address,
        version: String::new(),
        plain_text_connections: 0,
        faces: Vec::new(),
    };
    let mut facts = Vec::new();
    // Whoever held it last may listen no more.
    if !holder.is_empty() {
        let mut faces: Vec<PlainTextFace> = plain_text_addresses
            .into_iter()
            .map(|(name, address)| PlainTextFace { name, reach: reach_of(&address), address })
            .collect();
        faces.sort_by(|one, other| one.name.cmp(&other.name));
        let plain_text_connections = counters.remove(PLAIN_TEXT_COUNTER).unwrap_or(0);
        facts.push(MemberFacts { version, plain_text_connections, faces, ..at(address, false) });
    }
    facts.extend(standbys.into_iter().map(|standby| at(standby.address, true)));
    // The address of state says one of the two that it speaks.
    if state != Spoken::Unknown {
        facts.iter_mut().filter(|member| member.is_state()).for_each(|own| own.spoken = state);
    }
    facts
}

fn spoken_at(address: &str) -> Spoken {
    match ServerAddress::parse(address, false) {
        Ok(ServerAddress::Tls(_)) => Spoken::Tls,
        Ok(ServerAddress::PlainText(_) | ServerAddress::Unix(_)) => Spoken::PlainText,
        Err(_) => Spoken::Unknown,
    }
}

/// Who can reach an address. One that cannot be read is taken for open.
fn reach_of(address: &str) -> Reach {
    let host = match ServerAddress::parse(address, false) {
        Ok(ServerAddress::Unix(_)) => return Reach::Machine,
        Ok(ServerAddress::PlainText(uri) | ServerAddress::Tls(uri)) => {
            uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned()
        }
        Err(_) => return Reach::Network,
    };
    let is_loopback = match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    if is_loopback { Reach::Machine } else { Reach::Network }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_is_this_machines_alone() {
        for (address, reach) in [
            ("http://127.0.0.1:7700", Reach::Machine),
            ("https://127.9.9.9:7700", Reach::Machine),
            ("https://[::1]:7700", Reach::Machine),
            ("http://[::ffff:127.0.0.1]:7700", Reach::Machine),
            ("https://LOCALHOST:7700", Reach::Machine),
            ("127.0.0.1:8032", Reach::Machine),
            ("unix:/run/godel.sock", Reach::Machine),
            ("0.0.0.0:8032", Reach::Network),
            ("[::]:8032", Reach::Network),
            ("https://10.0.0.7:7700", Reach::Network),
            ("https://control-1:7700", Reach::Network),
            ("no address", Reach::Network),
        ] {
            assert_eq!(reach_of(address), reach, "{address}");
        }
    }

    #[test]
    fn a_clock_is_compared_with_the_middle_of_the_call() {
        let facts = |asked, state, answered| {
            let ClockFacts { ahead_ms, within_ms, .. } = clock_facts(asked, state, answered);
            (ahead_ms, within_ms)
        };
        assert_eq!(facts(1_000, 1_050, 1_100), (0, 50));
        assert_eq!(facts(1_000, 6_050, 1_100), (5_000, 50));
        assert_eq!(facts(9_000, 1_000, 9_000), (-8_000, 0));
        // The clock of this machine was set back meanwhile.
        assert_eq!(facts(9_000, 9_000, 1_000), (0, 0));
    }

    #[test]
    fn tokens_that_are_over_or_used_up_are_left_out() {
        let token = |uses_left, expires_ms| v1::JoinTokenInfo { uses_left, expires_ms, ..Default::default() };
        for (token, alive) in [(token(1, 10), true), (token(0, 10), false), (token(1, 5), false)] {
            assert_eq!(is_alive(&token, 5), alive);
        }
    }

    #[test]
    fn agents_say_where_masters_call() {
        let attributes = [(YARN_HOST.to_owned(), "n1".to_owned()), (YARN_PORT.to_owned(), "8041".to_owned())];
        let report = v1::NodeReport { attributes: attributes.into(), ..v1::NodeReport::default() };
        let node = v1::Node { report: Some(report), ..v1::Node::default() };
        assert_eq!(container_port(&node).as_deref(), Some("n1:8041"));
        assert_eq!(container_port(&v1::Node::default()), None);
    }

    #[test]
    fn who_holds_a_lease_serves_and_who_stands_by_may() {
        let member = v1::Member {
            lease: "member/state/main".to_owned(),
            holder: "h".to_owned(),
            address: "http://127.0.0.1:1".to_owned(),
            standbys: vec![v1::Standby { holder: "i".to_owned(), address: "https://b:2".to_owned() }],
            status: Some(v1::MemberStatus {
                counters: [(PLAIN_TEXT_COUNTER.to_owned(), 3)].into(),
                version: "1.0.0".to_owned(),
                plain_text_addresses: [("client".to_owned(), "0.0.0.0:8032".to_owned())].into(),
            }),
            ..v1::Member::default()
        };
        let facts = member_facts(member.clone(), Spoken::Unknown);
        let [own, standby] = facts.as_slice() else { panic!("{facts:?}") };
        assert_eq!(
            (own.name.as_str(), own.spoken, own.reach),
            ("state/main", Spoken::PlainText, Reach::Machine)
        );
        assert_eq!((own.version.as_str(), own.plain_text_connections), ("1.0.0", 3));
        assert_eq!(own.faces[0].reach, Reach::Network);
        assert_eq!((standby.stands_by, standby.spoken, standby.reach), (true, Spoken::Tls, Reach::Network));
        assert_eq!(member_facts(member.clone(), Spoken::Both)[0].spoken, Spoken::Both);
        let lost = v1::Member { holder: String::new(), ..member };
        assert_eq!(member_facts(lost, Spoken::Unknown).len(), 1);
    }
}
