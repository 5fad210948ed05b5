use proptest::prelude::*;

use super::*;

fn names(text: &str) -> AgentNames {
    text.parse().unwrap()
}

#[test]
fn an_identity_is_read_as_it_is_written() {
    for (uri, role, name) in [
        ("spiffe://godel-0badcafe/state/main", Role::State, "main"),
        ("spiffe://c/dispatcher/d.1", Role::Dispatcher, "d.1"),
        ("spiffe://c/agent/rack1-node7.example", Role::Agent, "rack1-node7.example"),
        ("spiffe://c/agent/sim-*", Role::Agent, "sim-*"),
        ("spiffe://c/agent/*", Role::Agent, "*"),
    ] {
        let identity: Identity = uri.parse().unwrap();
        assert_eq!((identity.role(), identity.name()), (role, name));
        assert_eq!(identity.to_string(), uri);
        assert_eq!(identity.key(), format!("{role}/{name}"));
    }
    assert_eq!(ClusterName::generate(0x000b_adca).as_str(), "godel-000badca");
}

#[test]
fn what_is_no_identity_is_refused_with_words() {
    let long = format!("spiffe://c/state/{}", "a".repeat(64));
    for (uri, words) in [
        ("https://c/state/main", "`https://c/state/main` is no identity"),
        ("spiffe://c/state", "is no identity"),
        ("spiffe:///state/main", "cluster `` must have 1 to 63"),
        ("spiffe://C/state/main", "cluster `C` must"),
        ("spiffe://a.b/state/main", "cluster `a.b` must"),
        ("spiffe://c/king/main", "role `king` is unknown: state, dispatcher"),
        ("spiffe://c/State/main", "role `State` is unknown"),
        ("spiffe://c/state/", "name ``: empty"),
        ("spiffe://c/state/a/b", "name `a/b`: `/` is not allowed"),
        ("spiffe://c/state/a?b", "`?` is not allowed"),
        ("spiffe://c/state/sim-*", "`*` is not allowed"),
        ("spiffe://c/agent/a*b", "`*` is not allowed"),
        ("spiffe://c/agent/a**", "`*` is not allowed"),
        ("spiffe://c/agent/-*", "must begin and end with a letter or digit"),
        (long.as_str(), "64 characters; at most 63"),
    ] {
        let error = uri.parse::<Identity>().unwrap_err().to_string();
        assert!(error.contains(words), "{uri}: {error}");
    }
    assert!("c".repeat(63).parse::<ClusterName>().is_ok());
    assert!("c".repeat(64).parse::<ClusterName>().is_err());
    let endless = format!("spiffe://c/agent/{}", "a".repeat(1_000_000));
    assert!(endless.parse::<Identity>().unwrap_err().to_string().len() < 500);
}

#[test]
fn an_agent_covers_its_node_or_those_with_its_prefix() {
    for (own, node, covers) in [
        ("n1", "n1", true),
        ("n1", "n11", false),
        ("sim-*", "sim-1", true),
        ("sim-*", "sim-", true),
        ("sim-*", "sim", false),
        ("*", "anything", true),
    ] {
        assert_eq!(names(own).covers(node), covers, "{own} {node}");
    }
    for (own, others, covers_all, overlaps) in [
        ("sim-*", "sim-1*", true, true),
        ("sim-1*", "sim-*", false, true),
        ("sim-*", "sim-7", true, true),
        ("sim-7", "sim-*", false, true),
        ("sim-7", "sim-7*", false, true),
        ("sim-*", "sin-*", false, false),
        ("a", "b", false, false),
    ] {
        assert_eq!(names(own).covers_all(&names(others)), covers_all, "{own} covers {others}");
        assert_eq!(names(own).overlaps(&names(others)), overlaps, "{own} overlaps {others}");
        assert_eq!(names(others).overlaps(&names(own)), overlaps, "{others} overlaps {own}");
    }
    let identity = |uri: &str| uri.parse::<Identity>().unwrap();
    assert_eq!(identity("spiffe://c/agent/sim-*").agent_names(), Some(names("sim-*")));
    assert_eq!(identity("spiffe://c/state/main").agent_names(), None);
}

#[test]
fn nodes_of_one_agent_have_the_narrowest_names() {
    for (nodes, expected) in [
        (&["n1"][..], "n1"),
        (&["sim-1", "sim-2", "sim-10"], "sim-*"),
        (&["sim-1", "sim-10"], "sim-1*"),
        (&["sim-10", "sim-1"], "sim-1*"),
        (&["a", "b"], "*"),
    ] {
        let found = AgentNames::covering(nodes.iter().copied()).unwrap();
        assert_eq!(found.to_string(), expected);
        assert!(nodes.iter().all(|node| found.covers(node)));
    }
    assert_eq!(AgentNames::covering([]), None);
}

#[test]
fn only_an_agent_is_no_server() {
    let servers: Vec<Role> = Role::ALL.into_iter().filter(|role| role.is_server()).collect();
    assert_eq!(servers.len(), Role::ALL.len() - 1);
    assert!(!servers.contains(&Role::Agent));
}

proptest! {
    /// Nothing is read as an identity that is written otherwise: names that are compared as text are equal or differ.
    #[test]
    fn an_identity_has_one_form(uri in "spiffe://[a-c.-]{0,3}/(state|agent|binder)/[a-c.*/%-]{0,6}") {
        if let Ok(identity) = uri.parse::<Identity>() {
            prop_assert_eq!(identity.to_string(), uri);
        }
    }
}
