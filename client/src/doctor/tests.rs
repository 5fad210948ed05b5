//! Which facts lead to which findings, and how both are shown.

use super::*;

/// In 2026.
const NOW: i64 = 1_790_000_000_000;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

fn local() -> LocalFacts {
    LocalFacts { version: "1.0.0".to_owned(), now_ms: NOW, ..LocalFacts::default() }
}

/// A cluster without problems.
fn cluster() -> ClusterFacts {
    ClusterFacts {
        address: "https://127.0.0.1:7700".to_owned(),
        version: "1.0.0".to_owned(),
        speaks: Protocol::Tls,
        plain_text_connections: 0,
        clock: Some(ClockFacts { state_ms: NOW, ahead_ms: 0, within_ms: 1 }),
        members: vec![member("state/main", "https://10.0.0.7:7700", Protocol::Tls, Reach::Network)],
        identities: vec![identity("state/main", Standing::Valid, NOW - 7 * HOUR, NOW + 17 * HOUR)],
        join_tokens: Vec::new(),
        person_tokens: Vec::new(),
        container_ports: Vec::new(),
    }
}

fn member(name: &str, address: &str, speaks: Protocol, open_to: Reach) -> MemberFacts {
    MemberFacts {
        name: name.to_owned(),
        stands_by: false,
        address: address.to_owned(),
        speaks,
        open_to,
        version: "1.0.0".to_owned(),
        plain_text_connections: 0,
        plain_text_ports: Vec::new(),
    }
}

fn identity(name: &str, standing: Standing, issued_ms: i64, ends_ms: i64) -> IdentityFacts {
    IdentityFacts { identity: name.to_owned(), standing, issued_ms, ends_ms }
}

fn file(kind: PrivateKind, state: FileState) -> FileFacts {
    FileFacts { path: "/d/it".to_owned(), kind, state }
}

/// `error plain_text`, in order.
fn found(local: LocalFacts, cluster: ClusterFacts) -> Vec<String> {
    let findings = Diagnosis::new(local, Some(cluster)).findings;
    findings
        .iter()
        .map(|finding| {
            let json = serde_json::to_value(finding).unwrap();
            format!("{} {}", json["severity"].as_str().unwrap(), json["section"].as_str().unwrap())
        })
        .collect()
}

/// The only finding of a changed cluster.
fn only(change: impl FnOnce(&mut LocalFacts, &mut ClusterFacts)) -> Finding {
    let (mut local, mut cluster) = (local(), cluster());
    change(&mut local, &mut cluster);
    let findings = Diagnosis::new(local, Some(cluster)).findings;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.into_iter().next().unwrap()
}

#[track_caller]
fn check(finding: &Finding, severity: Severity, section: Section, words: &[&str]) {
    assert_eq!((finding.severity, finding.section), (severity, section), "{finding:#?}");
    let text = format!("{}\n{}", finding.message, finding.next);
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}

#[test]
fn healthy_cluster_has_no_findings() {
    assert_eq!(found(local(), cluster()), [""; 0]);
}

#[test]
fn plain_text_is_an_error_where_other_machines_reach_it() {
    let open = member("binder", "http://10.0.0.7:7702", Protocol::PlainText, Reach::Network);
    let own = member("binder", "http://127.0.0.1:7702", Protocol::PlainText, Reach::Machine);
    let text = Section::PlainText;
    let off = |cluster: &mut ClusterFacts, member: &MemberFacts| {
        *cluster = ClusterFacts {
            speaks: Protocol::PlainText,
            members: vec![member.clone()],
            identities: Vec::new(),
            plain_text_connections: 9,
            ..cluster.clone()
        };
    };
    let finding = only(|_, cluster| off(cluster, &open));
    check(&finding, Severity::Error, text, &["binder at http://10.0.0.7:7702", "turn on TLS"]);
    let finding = only(|_, cluster| off(cluster, &own));
    check(&finding, Severity::Warning, text, &["every program on this machine", "turn on TLS"]);
    // The move to TLS is not finished.
    let finding = only(|_, cluster| cluster.members.push(open.clone()));
    check(&finding, Severity::Error, text, &["binder at http://10.0.0.7:7702", "`identity.plain_text`"]);
    let finding = only(|_, cluster| cluster.members.push(own.clone()));
    check(&finding, Severity::Warning, text, &["binder answers plain text", "`state.tls=on`"]);
    let finding = only(|_, cluster| {
        cluster.speaks = Protocol::TlsAndPlainText;
        cluster.members[0] =
            member("state/main", "http://127.0.0.1:7700", Protocol::TlsAndPlainText, Reach::Machine);
    });
    check(&finding, Severity::Warning, text, &["state/main answers plain text"]);
}

#[test]
fn own_connection_in_plain_text_is_not_counted() {
    let finding = only(|_, cluster| cluster.plain_text_connections = 2);
    check(&finding, Severity::Warning, Section::PlainText, &["2 connections in plain text are open"]);
    let finding = only(|_, cluster| cluster.members[0].plain_text_connections = 1);
    check(&finding, Severity::Warning, Section::PlainText, &["1 connection in plain text is open"]);
    let mut cluster = cluster();
    (cluster.address, cluster.plain_text_connections) = ("http://127.0.0.1:7700".to_owned(), 1);
    assert_eq!(found(local(), cluster), [""; 0]);
}

#[test]
fn finding_of_an_expired_certificate_says_how_to_renew_it() {
    let section = Section::Certificates;
    let with = |name: &str, standing, ends_ms| {
        only(|_, cluster| cluster.identities.push(identity(name, standing, ends_ms - DAY, ends_ms)))
    };
    let finding = with("binder/b1", Standing::Expired, NOW - HOUR);
    check(
        &finding,
        Severity::Error,
        section,
        &["the certificate of binder/b1 has expired", "renews its certificate"],
    );
    let finding = with("agent/n1", Standing::Expired, NOW - HOUR);
    check(&finding, Severity::Warning, section, &["agent/n1 has expired", "`godel identity revoke NAME`"]);
    let finding = with("agent/n1", Standing::Gone, NOW - 31 * DAY);
    check(
        &finding,
        Severity::Warning,
        section,
        &["expired more than 30 days ago", "`godel node join-token`"],
    );
    let finding = with("agent/n1", Standing::Valid, NOW + 8 * HOUR - 1);
    check(&finding, Severity::Warning, section, &["agent/n1 missed its renewal", "its log says why"]);
    for (standing, ends_ms) in [(Standing::Valid, NOW + 8 * HOUR), (Standing::Revoked, NOW - HOUR)] {
        let mut cluster = cluster();
        cluster.identities.push(identity("agent/n1", standing, ends_ms - DAY, ends_ms));
        assert_eq!(found(local(), cluster), [""; 0]);
    }
}

#[test]
fn many_names_are_one_finding() {
    let finding = only(|_, cluster| {
        let expired = |n| identity(&format!("agent/n{n}"), Standing::Expired, NOW - 2 * DAY, NOW - DAY);
        cluster.identities.extend((0..100).map(expired));
    });
    let words =
        ["the certificates of agent/n0, agent/n1, agent/n2, agent/n3, agent/n4 and 95 more have expired"];
    check(&finding, Severity::Warning, Section::Certificates, &words);
}

#[test]
fn certificates_are_judged_by_the_clock_of_state() {
    let finding = only(|_, cluster| {
        cluster.clock = Some(ClockFacts { state_ms: NOW, ahead_ms: 20_000, within_ms: 1 });
    });
    check(&finding, Severity::Warning, Section::Clock, &["state's clock is 20s ahead of", "chrony"]);
    let finding = only(|local, cluster| {
        local.now_ms = NOW + 20 * HOUR;
        cluster.clock = Some(ClockFacts { state_ms: NOW, ahead_ms: -20 * HOUR, within_ms: 1 });
    });
    check(&finding, Severity::Error, Section::Clock, &["20h behind"]);
    // A slow call explains the difference.
    let mut cluster = cluster();
    cluster.clock = Some(ClockFacts { state_ms: NOW, ahead_ms: 20_000, within_ms: 15_000 });
    assert_eq!(found(local(), cluster), [""; 0]);
}

#[test]
fn expired_token_is_found_although_state_refuses_it() {
    let context = |left_ms: i64| {
        let address = "https://127.0.0.1:7700".to_owned();
        let (name, token_ends_ms) = ("main".to_owned(), Some(NOW + left_ms));
        Some(ContextFacts { name, address, token_ends_ms, renews_token: true })
    };
    let finding = only(|local, _| local.context = context(3 * HOUR));
    check(&finding, Severity::Warning, Section::Tokens, &["ends in 3h", "godel context login main"]);
    let created = |left_ms| context(left_ms).map(|facts| ContextFacts { renews_token: false, ..facts });
    let finding = only(|local, _| local.context = created(60 * HOUR));
    check(
        &finding,
        Severity::Warning,
        Section::Tokens,
        &["ends in 2", "`godel login main --token-file FILE"],
    );
    assert_eq!(found(LocalFacts { context: created(73 * HOUR), ..local() }, cluster()), [""; 0]);
    let gone = Diagnosis::new(LocalFacts { context: context(-1), ..local() }, None);
    check(&gone.findings[0], Severity::Error, Section::Tokens, &["has expired"]);
    assert_eq!(found(LocalFacts { context: context(5 * HOUR), ..local() }, cluster()), [""; 0]);
}

#[test]
fn finding_of_an_open_mode_names_the_command() {
    let unreadable = FileState::Unreadable("Permission denied".to_owned());
    let (error, warning) = (Severity::Error, Severity::Warning);
    for (kind, state, severity, word) in [
        (PrivateKind::File, FileState::Mode(0o640), error, "`chmod 600 /d/it`"),
        (PrivateKind::Dir, FileState::Mode(0o770), error, "`chmod 700 /d/it`"),
        (PrivateKind::Dir, FileState::Mode(0o755), warning, "`chmod 700 /d/it`"),
        (PrivateKind::AboveStore, FileState::Mode(0o777), error, "`chmod o-w /d/it`"),
        (PrivateKind::File, unreadable, warning, "sudo -u USER"),
    ] {
        let finding = only(|local, _| local.files.push(file(kind, state)));
        check(&finding, severity, Section::Files, &[word]);
    }
    for (kind, state) in [
        (PrivateKind::File, FileState::Mode(0o600)),
        (PrivateKind::File, FileState::Absent),
        (PrivateKind::Dir, FileState::Mode(0o700)),
        (PrivateKind::AboveStore, FileState::Mode(0o775)),
    ] {
        assert_eq!(found(LocalFacts { files: vec![file(kind, state)], ..local() }, cluster()), [""; 0]);
    }
}

#[test]
fn different_versions_and_open_yarn_ports_are_warnings() {
    let finding = only(|_, cluster| cluster.members[0].version = "0.9.0".to_owned());
    check(
        &finding,
        Severity::Warning,
        Section::Versions,
        &["state has version 1.0.0", "state/main 0.9.0", "docs/install.md"],
    );
    let finding = only(|local, _| local.version = "1.1.0".to_owned());
    check(&finding, Severity::Warning, Section::Versions, &["this program 1.1.0"]);
    let finding = only(|_, cluster| cluster.version = String::new());
    check(&finding, Severity::Warning, Section::Versions, &["older than this program"]);
    let port = |address: &str, open_to| PlainTextPort {
        name: "client".to_owned(),
        address: address.to_owned(),
        open_to,
    };
    let finding =
        only(|_, cluster| cluster.members[0].plain_text_ports.push(port("0.0.0.0:8032", Reach::Network)));
    check(&finding, Severity::Warning, Section::Yarn, &["0.0.0.0:8032 (client)", "yarn.simple_auth"]);
    let mut cluster = cluster();
    cluster.members[0].plain_text_ports.push(port("127.0.0.1:8032", Reach::Machine));
    assert_eq!(found(local(), cluster), [""; 0]);
}

#[test]
fn errors_come_first_and_only_they_fail() {
    let mut local = local();
    local.files =
        vec![file(PrivateKind::Dir, FileState::Mode(0o755)), file(PrivateKind::File, FileState::Mode(0o644))];
    let diagnosis = Diagnosis::new(local.clone(), Some(cluster()));
    let failure = diagnosis.verdict().unwrap_err();
    assert_eq!(failure.to_string(), "the doctor found 1 error and 1 warning");
    assert_eq!(diagnosis.findings[0].severity, Severity::Error);
    assert_eq!(diagnosis.view().verdict, "errors");
    local.files.pop();
    let diagnosis = Diagnosis::new(local, Some(cluster()));
    assert_eq!((diagnosis.verdict(), diagnosis.view().verdict), (Ok(()), "warnings"));
}

#[test]
fn text_and_json_show_all_facts() {
    let (mut local, mut cluster) = (local(), cluster());
    local.context = Some(ContextFacts {
        name: "main".to_owned(),
        address: "https://127.0.0.1:7700".to_owned(),
        token_ends_ms: Some(NOW + 12 * HOUR),
        renews_token: true,
    });
    local.files.push(file(PrivateKind::File, FileState::Mode(0o600)));
    let token = JoinTokenFacts { id: "t1".to_owned(), role: "agent".to_owned(), ends_ms: NOW, uses_left: 2 };
    cluster.join_tokens.push(token);
    let (id, principal) = ("t2".to_owned(), "ann".to_owned());
    cluster.person_tokens.push(PersonTokenFacts { id, principal, ends_ms: NOW });
    cluster.members.push(MemberFacts {
        stands_by: true,
        version: String::new(),
        ..member("binder", "https://127.0.0.1:7702", Protocol::Tls, Reach::Machine)
    });
    cluster.container_ports = vec!["n1:8041".to_owned(), "n2:8041".to_owned()];
    let diagnosis = Diagnosis::new(local, Some(cluster));
    assert_eq!(
        diagnosis.text(crate::output::Paint::plain()),
        "MEMBER              ADDRESS                 SPEAKS  OPEN-TO       VERSION\n\
         state/main          https://10.0.0.7:7700   TLS     network       1.0.0\n\
         binder (stands by)  https://127.0.0.1:7702  TLS     this machine  -\n\
         \n\
         CERTIFICATE  STANDING  ENDS\n\
         state/main   valid     2026-09-22T07:13:20Z\n\
         \n\
         JOIN-TOKEN  ROLE   USES-LEFT  ENDS\n\
         t1          agent  2          2026-09-21T14:13:20Z\n\
         \n\
         TOKEN  PRINCIPAL  ENDS\n\
         t2     ann        2026-09-21T14:13:20Z\n\
         \n\
         FILE   MODE  WANTED\n\
         /d/it  0600  0600\n\
         \n\
         plain text  state speaks TLS; 0 connections in plain text to it, 0 to other members\n\
         containers  n1:8041 and n2:8041: Hadoop RPC, which has no TLS, open to the agent's machine only unless `agent.yarn.simple_auth` is \
         set there\n\
         context     main: token until 2026-09-22T02:13:20Z\n\
         clock       state is 0ms ahead of this machine, give or take 1ms\n\
         versions    this program 1.0.0, state 1.0.0\n\
         \n\
         ok: no problems found\n"
    );
    let json = serde_json::to_value(diagnosis.view()).unwrap();
    assert_eq!(json["cluster"]["members"][0]["speaks"], "tls");
    assert_eq!(json["cluster"]["members"][1]["open_to"], "machine");
    assert_eq!(json["cluster"]["certificates"][0]["standing"], "valid");
    assert_eq!(json["verdict"], "ok");
}

#[test]
fn text_from_elsewhere_is_escaped() {
    use crate::output::{NASTY, Paint, assert_shown};
    let (mut local, mut cluster) = (local(), cluster());
    local.files.push(FileFacts {
        path: NASTY.to_owned(),
        kind: PrivateKind::File,
        state: FileState::Mode(0o644),
    });
    cluster.version = NASTY.to_owned();
    cluster.container_ports = vec![NASTY.to_owned()];
    cluster.members[0].name = NASTY.to_owned();
    cluster.identities[0].identity = NASTY.to_owned();
    assert_shown(&Diagnosis::new(local, Some(cluster)).text(Paint::plain()));
}
