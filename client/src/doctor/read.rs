//! Reads what state reports about its cluster.

use godel_kit::{address::ServerAddress, clock::SystemClock, metrics::PLAIN_TEXT_COUNTER};
use godel_proto::v1;
use tonic::{Code as RpcCode, Status};

use super::facts::{
    ClockFacts, ClusterFacts, IdentityFacts, JoinTokenFacts, MemberFacts, PersonTokenFacts, PlainTextPort,
    Protocol, Reach, Standing,
};
use crate::{client::Client, exit::Failure};

/// Prefix of leases whose rest names the member.
const MEMBER: &str = "member/";
/// The lease of the YARN adapter.
const YARN: &str = "yarn";
/// Attributes of nodes that start YARN containers.
const YARN_HOST: &str = "godel.dev/yarn-host";
const YARN_PORT: &str = "godel.dev/yarn-port";

/// Asks state who can reach the cluster and how they prove their identity.
///
/// # Errors
/// State does not answer, or refuses.
pub async fn read_cluster(client: &Client) -> Result<ClusterFacts, Failure> {
    let clock = SystemClock::shared();
    // The first call opens connections, whose time must not count for the clock.
    client.store_status().await?;
    let asked_ms = clock.wall_ms();
    let store = client.store_status().await?;
    let answered_ms = clock.wall_ms();
    let v1::GetStoreStatusResponse { security, version, now_ms: state_ms, .. } = store;
    let security = security.unwrap_or_default();
    let members = client.directory().members("").await.map_err(|status| client.explain(status))?;
    let now_ms = if state_ms == 0 { answered_ms } else { state_ms };
    let (mut join_tokens, mut person_tokens) = (Vec::new(), Vec::new());
    let (speaks, identities) = match protocol_of(security.tls()) {
        Protocol::PlainText => (Protocol::PlainText, Vec::new()),
        speaks => match read_identities(client).await? {
            Some(identities) => {
                join_tokens = read_join_tokens(client, now_ms).await?;
                person_tokens = read_person_tokens(client, now_ms).await?;
                (speaks, identities)
            }
            None => (Protocol::PlainText, Vec::new()),
        },
    };
    let mut members: Vec<MemberFacts> =
        members.into_iter().flat_map(|member| member_facts(member, speaks)).collect();
    // State does not renew its own lease, and renewals carry the versions of the others.
    members
        .iter_mut()
        .filter(|member| member.is_state())
        .for_each(|state| state.version.clone_from(&version));
    let has_yarn = members.iter().any(|member| member.name == YARN);
    let nodes = if has_yarn { client.list_nodes(&[]).await? } else { Vec::new() };
    Ok(ClusterFacts {
        address: client.address().to_owned(),
        version,
        speaks,
        plain_text_connections: security.plain_text_connections,
        clock: (state_ms != 0).then(|| clock_facts(asked_ms, state_ms, answered_ms)),
        members,
        identities,
        join_tokens,
        person_tokens,
        container_ports: nodes.iter().filter_map(container_port).collect(),
    })
}

/// All identities; `None` if the cluster has no CA.
async fn read_identities(client: &Client) -> Result<Option<Vec<IdentityFacts>>, Failure> {
    let answer = client.identities().list_identities(v1::ListIdentitiesRequest::default()).await;
    let listed = some_with_ca(answer).map_err(|status| client.explain(status))?;
    Ok(listed.map(|listed| listed.into_inner().identities.into_iter().map(identity_facts).collect()))
}

/// Join tokens that can still be used at `now_ms`.
async fn read_join_tokens(client: &Client, now_ms: i64) -> Result<Vec<JoinTokenFacts>, Failure> {
    let answer = client.identities().list_join_tokens(v1::ListJoinTokensRequest {}).await;
    let tokens = answer.map_err(|status| client.explain(status))?.into_inner().tokens;
    Ok(tokens.into_iter().filter(|token| is_usable(token, now_ms)).map(token_facts).collect())
}

/// Tokens of persons that count at `now_ms`; none if state is older than they are.
async fn read_person_tokens(client: &Client, now_ms: i64) -> Result<Vec<PersonTokenFacts>, Failure> {
    let answer = client.identities().list_tokens(v1::ListTokensRequest::default()).await;
    let listed = some_with_ca(answer).map_err(|status| client.explain(status))?;
    let tokens = listed.map(|listed| listed.into_inner().tokens).unwrap_or_default();
    let counting = tokens.into_iter().filter(|token| !token.is_revoked && token.ends_ms > now_ms);
    let facts = |v1::PersonToken { token_id: id, principal, ends_ms, .. }| PersonTokenFacts {
        id,
        principal,
        ends_ms,
    };
    Ok(counting.map(facts).collect())
}

/// The address at which application masters call the agent of a node that starts YARN containers.
fn container_port(node: &v1::Node) -> Option<String> {
    let attributes = &node.report.as_ref()?.attributes;
    Some(format!("{}:{}", attributes.get(YARN_HOST)?, attributes.get(YARN_PORT)?))
}

/// `None` if the cluster has no CA, or state is older than identities.
fn some_with_ca<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(status) if matches!(status.code(), RpcCode::FailedPrecondition | RpcCode::Unimplemented) => {
            Ok(None)
        }
        Err(status) => Err(status),
    }
}

fn protocol_of(mode: v1::TlsMode) -> Protocol {
    match mode {
        v1::TlsMode::Unspecified => Protocol::Unknown,
        v1::TlsMode::Off => Protocol::PlainText,
        v1::TlsMode::Migrate => Protocol::TlsAndPlainText,
        v1::TlsMode::On => Protocol::Tls,
    }
}

/// State read its clock somewhere between the two readings of this machine's clock.
fn clock_facts(asked_ms: i64, state_ms: i64, answered_ms: i64) -> ClockFacts {
    let within_ms = answered_ms.saturating_sub(asked_ms).max(0) / 2;
    ClockFacts { state_ms, ahead_ms: state_ms.saturating_sub(asked_ms.saturating_add(within_ms)), within_ms }
}

/// Whether a token has neither expired nor been used up.
fn is_usable(token: &v1::JoinTokenInfo, now_ms: i64) -> bool {
    token.uses_left > 0 && token.expires_ms > now_ms
}

fn token_facts(token: v1::JoinTokenInfo) -> JoinTokenFacts {
    let v1::JoinTokenInfo { token_id, role, expires_ms, uses_left, .. } = token;
    JoinTokenFacts { id: token_id, role, ends_ms: expires_ms, uses_left }
}

fn identity_facts(info: v1::IdentityInfo) -> IdentityFacts {
    let standing = Standing::from(info.standing());
    let v1::IdentityRecord { identity, issued_ms, ends_ms, .. } = info.record.unwrap_or_default();
    IdentityFacts { identity, standing, issued_ms, ends_ms }
}

/// The holder of a lease and its standbys; `state_speaks` is what state speaks.
fn member_facts(member: v1::Member, state_speaks: Protocol) -> Vec<MemberFacts> {
    let v1::Member { lease, holder, address, status, standbys, .. } = member;
    let v1::MemberStatus { mut counters, version, plain_text_addresses } = status.unwrap_or_default();
    let name = lease.strip_prefix(MEMBER).unwrap_or(&lease);
    let at = |address: String, stands_by| MemberFacts {
        name: name.to_owned(),
        stands_by,
        speaks: protocol_at(&address),
        open_to: reach_of(&address),
        address,
        version: String::new(),
        plain_text_connections: 0,
        plain_text_ports: Vec::new(),
    };
    let mut facts = Vec::new();
    // The last holder of a lost lease may no longer listen.
    if !holder.is_empty() {
        let mut plain_text_ports: Vec<PlainTextPort> = plain_text_addresses
            .into_iter()
            .map(|(name, address)| PlainTextPort { name, open_to: reach_of(&address), address })
            .collect();
        plain_text_ports.sort_by(|one, other| one.name.cmp(&other.name));
        let plain_text_connections = counters.remove(PLAIN_TEXT_COUNTER).unwrap_or(0);
        facts.push(MemberFacts { version, plain_text_connections, plain_text_ports, ..at(address, false) });
    }
    facts.extend(standbys.into_iter().map(|standby| at(standby.address, true)));
    // The scheme of state's address names only one of the two protocols that it may speak.
    if state_speaks != Protocol::Unknown {
        facts.iter_mut().filter(|member| member.is_state()).for_each(|own| own.speaks = state_speaks);
    }
    facts
}

fn protocol_at(address: &str) -> Protocol {
    match ServerAddress::parse(address, false) {
        Ok(ServerAddress::Tls(_)) => Protocol::Tls,
        Ok(ServerAddress::PlainText(_) | ServerAddress::Unix(_)) => Protocol::PlainText,
        Err(_) => Protocol::Unknown,
    }
}

/// Who can reach an address. A malformed one counts as open.
fn reach_of(address: &str) -> Reach {
    match ServerAddress::parse(address, false) {
        Ok(address) if address.is_local() => Reach::Machine,
        Ok(_) | Err(_) => Reach::Network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_and_sockets_are_open_to_this_machine_only() {
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
    fn clock_is_compared_with_the_middle_of_the_call() {
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
    fn state_without_a_ca_or_without_the_service_has_no_identities() {
        let refused = |code| some_with_ca::<()>(Err(Status::new(code, "")));
        for code in [RpcCode::FailedPrecondition, RpcCode::Unimplemented] {
            assert!(refused(code).unwrap().is_none(), "{code:?}");
        }
        assert_eq!(refused(RpcCode::PermissionDenied).unwrap_err().code(), RpcCode::PermissionDenied);
        assert!(some_with_ca(Ok(())).unwrap().is_some());
    }

    #[test]
    fn tokens_that_expired_or_are_used_up_are_left_out() {
        let token = |uses_left, expires_ms| v1::JoinTokenInfo { uses_left, expires_ms, ..Default::default() };
        for (token, alive) in [(token(1, 10), true), (token(0, 10), false), (token(1, 5), false)] {
            assert_eq!(is_usable(&token, 5), alive);
        }
    }

    #[test]
    fn container_port_is_read_from_attributes() {
        let attributes = [(YARN_HOST.to_owned(), "n1".to_owned()), (YARN_PORT.to_owned(), "8041".to_owned())];
        let report = v1::NodeReport { attributes: attributes.into(), ..v1::NodeReport::default() };
        let node = v1::Node { report: Some(report), ..v1::Node::default() };
        assert_eq!(container_port(&node).as_deref(), Some("n1:8041"));
        assert_eq!(container_port(&v1::Node::default()), None);
    }

    #[test]
    fn holder_and_standbys_of_a_lease_become_members() {
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
        let facts = member_facts(member.clone(), Protocol::Unknown);
        let [own, standby] = facts.as_slice() else { panic!("{facts:?}") };
        assert_eq!(
            (own.name.as_str(), own.speaks, own.open_to),
            ("state/main", Protocol::PlainText, Reach::Machine)
        );
        assert_eq!((own.version.as_str(), own.plain_text_connections), ("1.0.0", 3));
        assert_eq!(own.plain_text_ports[0].open_to, Reach::Network);
        assert_eq!(
            (standby.stands_by, standby.speaks, standby.open_to),
            (true, Protocol::Tls, Reach::Network)
        );
        assert_eq!(
            member_facts(member.clone(), Protocol::TlsAndPlainText)[0].speaks,
            Protocol::TlsAndPlainText
        );
        let lost = v1::Member { holder: String::new(), ..member };
        assert_eq!(member_facts(lost, Protocol::Unknown).len(), 1);
    }
}
