//! Callers with tokens and without, over Hadoop RPC and REST: who may do what with whose application, and until when.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use godel_core_yarn::{HadoopConfiguration, YarnAcls};
use godel_domain::change_line::ChangeLine;
use godel_hadoop::{
    client::{CallError, Client, Shows},
    common::TokenProto,
    credentials::Credentials,
    exception,
    person_token::PersonTokenFile,
    yarn::{
        GetApplicationAttemptsRequestProto, GetApplicationAttemptsResponseProto,
        GetApplicationReportRequestProto, GetApplicationReportResponseProto, GetApplicationsRequestProto,
        GetApplicationsResponseProto, KillApplicationRequestProto, KillApplicationResponseProto,
        RefreshNodesRequestProto, RefreshNodesResponseProto,
    },
};
use godel_identity::permission::{PersonRole, Principal};
use godel_kit::{
    clock::SystemClock,
    security::{CallerRecords, KnownPrincipal},
};
use godel_pki::{
    person_tokens::{TokenOrder, make_token},
    seal::SealKey,
    signer::Signer,
    yarn_tokens::{YarnSecret, said_by},
};
use tower::ServiceExt as _;

use super::*;
use crate::{
    hadoop::{FaceSettings, HadoopAddresses, HadoopFaces, NodeCalls, TokenKeys, Tokens},
    rest,
};

const WITHIN: Duration = Duration::from_secs(30);
const CLIENT: &str = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB";
const ADMIN: &str = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB";
const NOW: u64 = 1_790_000_000_000;
const END: u64 = NOW + 60_000;
/// Owners of the applications, by number.
const OWNERS: [(u32, &str); 4] = [(1, "yarn-simple:ann"), (2, "ann"), (3, "bob"), (4, "etl")];

/// An adapter that judges its callers, with its faces.
struct Judged {
    manager: Manager,
    records: CallerRecords,
    callers: YarnCallers,
    signer: Signer,
    secret: YarnSecret,
    now_ms: Arc<AtomicU64>,
    client_at: SocketAddr,
    admin_at: SocketAddr,
    _stop: CancellationToken,
}

fn principals() -> Vec<KnownPrincipal> {
    let of = |name: &str, role, groups: &[&str]| {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let principal = Arc::new(Principal { groups, ..Principal::new(name, role) });
        KnownPrincipal { principal, refused_before_ms: 0 }
    };
    vec![
        of("ann", PersonRole::User, &["etl"]),
        of("vic", PersonRole::Viewer, &[]),
        of("olga", PersonRole::Operator, &[]),
    ]
}

fn no_keys() -> watch::Receiver<godel_domain::yarn_keys::YarnKeys> {
    watch::Sender::new(godel_domain::yarn_keys::YarnKeys::default()).subscribe()
}

impl Judged {
    async fn new() -> Self {
        Self::with(AdapterRules::default()).await
    }

    async fn with(rules: AdapterRules) -> Self {
        let signer = Signer::make("c".parse().unwrap()).unwrap();
        let records = CallerRecords::new("c".parse().unwrap());
        let key = signer.token_key();
        let secret = YarnSecret::of(&SealKey::new(&[7; 32]), key.id());
        records.set_yarn_secrets([(key.id().to_owned(), secret.clone())].into());
        records.set_token_keys(vec![key]);
        records.replace_people(principals(), HashSet::new());
        let now_ms = Arc::new(AtomicU64::new(NOW));
        let clock = Arc::clone(&now_ms);
        let clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let callers = YarnCallers::new(records.clone(), clock);
        let manager = manager_of(callers.clone(), rules);
        lead(&manager);
        for (number, owner) in OWNERS {
            drop(submit_as(&manager, number, owner));
        }
        let keys = TokenKeys { amrm: no_keys(), nm: no_keys(), container: no_keys() };
        let tokens = Tokens::new(keys, SystemClock::shared(), 600_000);
        let settings = FaceSettings { callers: callers.clone(), ..FaceSettings::default() };
        let nodes = NodeCalls::new(tokens.clone());
        let faces =
            HadoopFaces::new(Arc::new(manager.clone()), tokens, nodes, SystemClock::shared(), settings);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = faces.bind(HadoopAddresses { client: any, master: any, admin: any }).await.unwrap();
        let HadoopAddresses { client, admin, .. } = bound.addresses();
        let stop = CancellationToken::new();
        godel_kit::task::spawn("test.faces", bound.serve(stop.clone()));
        let (client_at, admin_at) = (client, admin);
        Self { manager, records, callers, signer, secret, now_ms, client_at, admin_at, _stop: stop }
    }

    fn token(&self, person: &str) -> String {
        let order = TokenOrder { person, id: person, issued_ms: NOW, expires_ms: END, is_session: false };
        make_token(&self.signer, &order).unwrap()
    }

    /// As the file has it that `godel token create --yarn` writes.
    fn hadoop_token(&self, person: &str) -> TokenProto {
        let token = self.token(person);
        let said = said_by(&token).unwrap();
        let file = PersonTokenFile {
            owner: person.to_owned(),
            issued_ms: 0,
            ends_ms: 0,
            said: said.to_owned(),
            password: self.secret.password(said),
            services: vec![self.client_at.to_string()],
        };
        Credentials::read(file.write()).unwrap().tokens.into_values().next().unwrap()
    }

    async fn connect(&self, shows: &Shows) -> Result<Client, CallError> {
        Client::connect(self.client_at, CLIENT, 1, shows, WITHIN).await
    }

    /// A caller by name: with a token, or as one who proves nothing.
    fn shows(&self, caller: &str) -> Shows {
        match caller.strip_prefix("yarn-simple:") {
            Some(user) => Shows::User { effective: user.to_owned(), real: None },
            None => Shows::Token(self.hadoop_token(caller)),
        }
    }

    async fn rest(&self, method: &str, path: &str, caller: &str, body: &'static str) -> (u16, String) {
        let mut request = Request::builder().method(method);
        request = match caller.strip_prefix("yarn-simple:") {
            Some(user) => request.uri(format!("{path}?user.name={user}")),
            None => request.uri(path).header("authorization", format!("Bearer {}", self.token(caller))),
        };
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    /// The refused calls since this was asked last.
    fn noted(&self) -> Vec<NotedCall> {
        let lines = self.records.call_log().take(9, END);
        let noted = lines.into_iter().map(|ChangeLine { call, refused, n_calls, .. }| NotedCall {
            principal: call.principal,
            method: call.method,
            refused,
            n_calls,
            objects: call.objects,
        });
        noted.collect()
    }

    async fn send(&self, request: Request<Body>) -> (u16, String) {
        let manager = Arc::new(self.manager.clone());
        let router = rest::router(manager, self.callers.clone(), SystemClock::shared());
        let response = router.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

/// A refused call as the change log describes it.
#[derive(Debug, PartialEq, Eq)]
struct NotedCall {
    principal: String,
    method: String,
    refused: String,
    n_calls: u64,
    objects: Vec<String>,
}

fn kill(number: u32) -> KillApplicationRequestProto {
    let id = YarnApplicationId { cluster_timestamp: 1, number };
    let id = godel_hadoop::yarn::ApplicationIdProto {
        id: Some(i32::try_from(id.number).unwrap()),
        cluster_timestamp: Some(id.cluster_timestamp),
    };
    KillApplicationRequestProto { application_id: Some(id), ..KillApplicationRequestProto::default() }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, CallError>) -> godel_hadoop::Exception {
    match answer.unwrap_err() {
        CallError::Refused(exception) => exception,
        other => panic!("{other}"),
    }
}

/// Numbers of the applications that a caller may end.
const MAY: [(&str, &[u32]); 5] = [
    ("yarn-simple:ann", &[1]),
    ("ann", &[2, 4]),
    ("vic", &[]),
    ("olga", &[1, 2, 3, 4]),
    ("admin", &[1, 2, 3, 4]),
];

/// Lines of the change log for what was refused to a caller who has tried to end all applications: alike calls are merged, and the last one is described.
fn refused_lines(caller: &str, method: &str) -> Vec<NotedCall> {
    let line = |why: &str, n_calls, object: &str| NotedCall {
        principal: caller.to_owned(),
        method: method.to_owned(),
        refused: why.to_owned(),
        n_calls,
        objects: Some(object).filter(|object| !object.is_empty()).map(str::to_owned).into_iter().collect(),
    };
    match caller {
        "yarn-simple:ann" => vec![line("owner", 3, "application/application_1_0004")],
        "ann" => vec![line("owner", 2, "application/application_1_0003")],
        "vic" => vec![line("role", 4, "")],
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn applications_are_ended_by_their_owners_and_by_operators_over_hadoop_rpc() {
    for (caller, may) in MAY {
        let judged = Judged::new().await;
        let mut client = judged.connect(&judged.shows(caller)).await.unwrap();
        for (number, owner) in OWNERS {
            let answer =
                client.call::<_, KillApplicationResponseProto>("forceKillApplication", &kill(number)).await;
            if may.contains(&number) {
                assert!(answer.is_ok(), "{caller} of {owner}: {answer:?}");
                continue;
            }
            let exception = refused(answer);
            let words = match caller {
                "yarn-simple:ann" => "HADOOP_TOKEN_FILE_LOCATION",
                "ann" => "cannot perform operation MODIFY_APP",
                _ => "needs role user; vic has role viewer",
            };
            assert!(exception.message.contains(words), "{caller} of {owner}: {exception}");
            assert!(exception.to_string().contains("AccessControlException"), "{exception}");
        }
        let method = "hadoop/ApplicationClientProtocol/forceKillApplication";
        assert_eq!(judged.noted(), refused_lines(caller, method));
        // All see all, by their names as YARN has them.
        let all: GetApplicationsResponseProto =
            client.call("getApplications", &GetApplicationsRequestProto::default()).await.unwrap();
        let users: Vec<&str> = all.applications.iter().map(|application| application.user()).collect();
        assert_eq!(users.len(), 4);
        assert!(users.iter().all(|user| ["ann", "bob", "etl"].contains(user)), "{users:?}");
    }
}

#[tokio::test]
async fn applications_are_ended_by_their_owners_and_by_operators_over_rest() {
    for (caller, may) in MAY {
        let judged = Judged::new().await;
        for (number, owner) in OWNERS {
            let path = format!("/ws/v1/cluster/apps/application_1_{number:04}/state");
            let (status, text) = judged.rest("PUT", &path, caller, r#"{"state": "KILLED"}"#).await;
            let expected = if may.contains(&number) { [200, 202] } else { [403, 403] };
            assert!(expected.contains(&status), "{caller} of {owner}: {status} {text}");
            assert_eq!(judged.rest("GET", &path, caller, "").await.0, 200, "{caller}");
        }
        assert_eq!(judged.noted(), refused_lines(caller, "rest/PUT /ws/v1/cluster/apps/ID/state"));
    }
}

#[tokio::test]
async fn nobody_without_a_token_drains_nodes() {
    let judged = Judged::new().await;
    let shows = Shows::User { effective: "admin".to_owned(), real: None };
    let mut admin = Client::connect(judged.admin_at, ADMIN, 1, &shows, WITHIN).await.unwrap();
    let refresh = RefreshNodesRequestProto::default();
    let exception = refused(admin.call::<_, RefreshNodesResponseProto>("refreshNodes", &refresh).await);
    assert!(
        exception.message.contains("needs role operator; yarn-simple:admin has not proved"),
        "{exception}"
    );
    let row = "hadoop/ResourceManagerAdministrationProtocol/refreshNodes";
    let noted: Vec<_> =
        judged.noted().into_iter().map(|line| (line.principal, line.method, line.refused)).collect();
    assert_eq!(noted, [("yarn-simple:admin".to_owned(), row.to_owned(), "role".to_owned())]);
}

#[tokio::test]
async fn what_a_user_may_not_see_is_noted() {
    let rules = |text: &str| {
        let mut configuration = HadoopConfiguration::default();
        configuration.read("site", &format!("<configuration>{text}</configuration>")).unwrap();
        let acls = YarnAcls::read(&configuration);
        AdapterRules { acls, ..AdapterRules::default() }
    };
    let property =
        |name: &str, value: &str| format!("<property><name>{name}</name><value>{value}</value></property>");
    let judged =
        Judged::with(rules(&(property("yarn.acl.enable", "true") + &property("yarn.admin.acl", " ")))).await;
    let path = "/ws/v1/cluster/apps/application_1_0003/appattempts";
    assert_eq!(judged.rest("GET", path, "ann", "").await.0, 403);
    assert_eq!(judged.rest("GET", &path.replace("0003", "0002"), "ann", "").await.0, 200);
    let mut client = judged.connect(&judged.shows("ann")).await.unwrap();
    let attempts = GetApplicationAttemptsRequestProto { application_id: kill(3).application_id };
    refused(client.call::<_, GetApplicationAttemptsResponseProto>("getApplicationAttempts", &attempts).await);
    let line = |method: &str| NotedCall {
        principal: "ann".to_owned(),
        method: method.to_owned(),
        refused: "owner".to_owned(),
        n_calls: 1,
        objects: vec!["application/application_1_0003".to_owned()],
    };
    let noted = judged.noted();
    assert_eq!(
        noted,
        [
            line("hadoop/ApplicationClientProtocol/getApplicationAttempts"),
            line("rest/GET /ws/v1/cluster/apps/ID/appattempts"),
        ]
    );
}

#[tokio::test]
async fn a_queue_that_is_not_ones_own_is_noted() {
    let judged = Judged::new().await;
    let ann = Principal { queues: vec!["prod".to_owned()], ..Principal::new("ann", PersonRole::User) };
    let known = KnownPrincipal { principal: Arc::new(ann), refused_before_ms: 0 };
    judged.records.replace_people(vec![known], HashSet::new());
    let body = r#"{"application-id": "application_1_0009", "application-name": "x", "queue": "default",
        "am-container-spec": {"commands": {"command": "run"}}, "resource": {"memory": 1024, "vCores": 1}}"#;
    let (status, text) = judged.rest("POST", "/ws/v1/cluster/apps", "ann", body).await;
    assert_eq!(status, 403, "{text}");
    let [line] = &judged.noted()[..] else { panic!("one line") };
    assert_eq!((line.method.as_str(), line.refused.as_str()), ("rest/POST /ws/v1/cluster/apps", "queue"));
    assert_eq!(line.objects, ["application/application_1_0009"]);
}

#[tokio::test]
async fn tokens_that_end_are_refused_on_open_connections_and_new_ones() {
    let report = GetApplicationReportRequestProto { application_id: kill(2).application_id };
    type Report = GetApplicationReportResponseProto;
    type End = fn(&Judged);
    let ends: [(&str, End); 4] = [
        ("was revoked", |judged| judged.records.set_revoked("ann", true)),
        ("has expired", |judged| judged.now_ms.store(END, Ordering::Relaxed)),
        ("is not known", |judged| judged.records.replace_people(Vec::new(), HashSet::new())),
        ("is not one of the cluster any more", |judged| judged.records.set_token_keys(Vec::new())),
    ];
    for (words, end) in ends {
        let judged = Judged::new().await;
        let shows = judged.shows("ann");
        let mut client = judged.connect(&shows).await.unwrap();
        let answer = client.call::<_, Report>("getApplicationReport", &report).await.unwrap();
        assert_eq!(answer.application_report.unwrap().user(), "ann");
        let path = "/ws/v1/cluster/info";
        assert_eq!(judged.rest("GET", path, "ann", "").await.0, 200);
        end(&judged);
        let open = refused(client.call::<_, Report>("getApplicationReport", &report).await);
        let new = refused(judged.connect(&shows).await.map(drop));
        for exception in [open, new] {
            assert_eq!(exception.class, exception::INVALID_TOKEN, "{exception}");
            assert!(exception.message.contains(words), "{exception}");
        }
        let (status, text) = judged.rest("GET", path, "ann", "").await;
        assert!(status == 401 && text.contains(words), "{status} {text}");
        // Once for the call, where the connection has proved who it is, and once for the new connection, where nothing is proved; and for REST by the token.
        let noted: Vec<_> = judged.noted().into_iter().map(|line| (line.principal, line.method)).collect();
        let ann = if words == "is not one of the cluster any more" { "unknown" } else { "ann" };
        let line = |who: &str, method: &str| (who.to_owned(), method.to_owned());
        let mut expected = [
            line("ann", "hadoop/ApplicationClientProtocol/getApplicationReport"),
            line("unknown", "hadoop/ApplicationClientProtocol"),
            line(ann, "rest/GET /ws/v1/cluster/info"),
        ];
        expected.sort();
        assert_eq!(noted, expected, "{words}");
        // Whoever proves nothing calls on.
        assert_eq!(judged.rest("GET", path, "yarn-simple:ann", "").await.0, 200);
    }
}

#[tokio::test]
async fn forged_tokens_prove_nothing() {
    let judged = Judged::new().await;
    let good = judged.hadoop_token("ann");
    let password = TokenProto { password: vec![0; 20].into(), ..good.clone() };
    // The token of another one, with the password of hers.
    let identifier = TokenProto { identifier: judged.hadoop_token("admin").identifier, ..good.clone() };
    let foreign = TokenProto { identifier: bytes::Bytes::from_static(b"id"), ..good };
    for token in [password, identifier, foreign] {
        let exception = refused(judged.connect(&Shows::Token(token)).await.map(drop));
        let classes = [exception::ACCESS_CONTROL, exception::INVALID_TOKEN];
        assert!(classes.contains(&&*exception.class), "{exception}");
    }
    for header in ["Bearer x", "Basic YTpi", "Bearer "] {
        let request = Request::builder().uri("/ws/v1/cluster/apps").header("authorization", header);
        let (status, text) = judged.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(status, 401, "{header}: {text}");
    }
    let noted = judged.noted();
    assert!(noted.iter().all(|line| line.principal == "unknown"), "{noted:?}");
    let noted: Vec<_> =
        noted.iter().map(|line| (line.method.as_str(), line.refused.as_str(), line.n_calls)).collect();
    let connection = "hadoop/ApplicationClientProtocol";
    assert_eq!(
        noted,
        [
            (connection, "not a token", 1),
            (connection, "token with a wrong signature", 2),
            ("rest/GET /ws/v1/cluster/apps", "not a token", 3),
        ]
    );
    // A name that is written as one that is proved stays one that is not.
    let (status, _) = judged
        .rest(
            "PUT",
            "/ws/v1/cluster/apps/application_1_0002/state",
            "yarn-simple:ann",
            r#"{"state": "KILLED"}"#,
        )
        .await;
    assert_eq!(status, 403);
}
