//! Calls as clients make them, through the router.

use axum::http::Method;
use godel_core_yarn::adapter::AllocateCall;
use godel_core_yarn_leader::ManagerRefusal;
use godel_kit::clock::ManualClock;
use proptest::prelude::*;
use serde_json::json;
use tower::ServiceExt as _;

use super::*;
use crate::tests::{
    fake::FakeManager,
    samples::{CLUSTER, START, app_id, attempt_id},
};

struct Answered {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{}", self.text))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

struct Client {
    router: Router,
    manager: Arc<FakeManager>,
}

impl Client {
    fn new() -> Self {
        let manager = Arc::new(FakeManager::with_canned_applications());
        let clock = ManualClock::new(u64::try_from(START + 60_000).unwrap());
        Self { router: router(manager.clone(), YarnCallers::default(), Arc::new(clock)), manager }
    }

    async fn send(&self, method: &str, at: &str, body: Option<&str>, headers: &[(&str, &str)]) -> Answered {
        let mut request = Request::builder().method(method).uri(at).header("host", "rm:8088");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_owned()));
        let response = self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 10 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answered { status: parts.status.as_u16(), headers: parts.headers, text }
    }

    async fn get(&self, path: &str) -> Answered {
        self.send("GET", &format!("/ws/v1/cluster{path}"), None, &[]).await
    }

    async fn put(&self, path: &str, body: &Value) -> Answered {
        let at = format!("/ws/v1/cluster/apps/{}/{path}?user.name=ann", app_id(1));
        self.send("PUT", &at, Some(&body.to_string()), &[]).await
    }
}

/// Fields of an object that are as expected, whatever else there is.
fn assert_has(value: &Value, expected: &Value) {
    for (name, expected) in expected.as_object().unwrap() {
        assert_eq!(&value[name], expected, "{name}");
    }
}

#[tokio::test]
async fn an_application_looks_as_in_yarn() {
    let client = Client::new();
    let found = client.get(&format!("/apps/{}", app_id(1))).await;
    assert_eq!((found.status, found.header("content-type")), (200, "application/json;charset=utf-8"));
    let app = &found.json()["app"];
    assert_has(
        app,
        &json!({
            "id": "application_1700000000000_0001",
            "user": "ann",
            "name": "word count",
            "queue": "root.default",
            "state": "RUNNING",
            "finalStatus": "UNDEFINED",
            "progress": 25.0,
            "trackingUI": "ApplicationMaster",
            "trackingUrl": "http://rm:8088/proxy/application_1700000000000_0001/",
            "diagnostics": "",
            "clusterId": CLUSTER,
            "applicationType": "SPARK",
            "applicationTags": "night,etl",
            "priority": 0,
            "startedTime": START,
            "finishedTime": 0,
            "elapsedTime": 60_000,
            "amHostHttpAddress": "n1:8041",
            "amRPCAddress": "n1:40193",
            "allocatedMB": 3_072,
            "allocatedVCores": 3,
            "runningContainers": 2,
            "memorySeconds": 206_464,
            "vcoreSeconds": 201,
            "clusterUsagePercentage": 18.75,
            "queueUsagePercentage": 37.5,
            "unmanagedApplication": false,
            "amNodeLabelExpression": "",
            "logAggregationStatus": "DISABLED",
            "timeouts": {
                "timeout": [
                    { "type": "LIFETIME", "expiryTime": "UNLIMITED", "remainingTimeInSeconds": -1 }
                ]
            },
        }),
    );
    let finished = client.get(&format!("/apps/{}?deSelects=timeouts,resourceInfo", app_id(2))).await.json();
    assert_has(
        &finished["app"],
        &json!({
            "state": "FINISHED",
            "finalStatus": "SUCCEEDED",
            "progress": 100.0,
            "trackingUI": "History",
            "elapsedTime": 304_578,
            "allocatedMB": -1,
            "runningContainers": -1,
            "timeouts": null,
            "resourceInfo": null,
        }),
    );
    let waiting = client.get(&format!("/apps/{}", app_id(3))).await.json();
    assert_has(&waiting["app"], &json!({ "trackingUI": "UNASSIGNED", "trackingUrl": null }));
}

#[tokio::test]
async fn lists_are_filtered_and_limited() {
    let client = Client::new();
    for (query, expected) in [
        ("", vec![3, 2, 1]),
        ("?states=RUNNING,finished", vec![2, 1]),
        ("?finalStatus=SUCCEEDED", vec![2]),
        ("?finalStatus=ENDED", vec![]),
        ("?user=bob", vec![3]),
        ("?queue=default", vec![3, 2, 1]),
        ("?queue=night", vec![]),
        ("?applicationTypes=spark", vec![2, 1]),
        ("?applicationTags=NIGHT,other", vec![2, 1]),
        ("?limit=1", vec![3]),
        ("?startedTimeBegin=1700000100001", vec![]),
        ("?finishedTimeBegin=1&finishedTimeEnd=1800000000000", vec![2]),
        ("?name=word%20count&limit=2", vec![3, 2]),
    ] {
        let found = client.get(&format!("/apps{query}")).await;
        assert_eq!(found.status, 200, "{query}: {}", found.text);
        let apps = found.json()["apps"].clone();
        let ids: Vec<Value> =
            apps["app"].as_array().into_iter().flatten().map(|app| app["id"].clone()).collect();
        let expected: Vec<Value> = expected.into_iter().map(|n| json!(app_id(n).to_string())).collect();
        assert_eq!(ids, expected, "{query}");
        assert_eq!(apps.is_null(), expected.is_empty(), "{query}");
    }
    let counted = client.get("/appstatistics?states=running,accepted&applicationTypes=Spark").await.json();
    let expected = json!([
        { "state": "RUNNING", "type": "spark", "count": 1 },
        { "state": "ACCEPTED", "type": "spark", "count": 0 },
    ]);
    assert_eq!(counted["appStatInfo"]["statItem"], expected);
    let all = client.get("/appstatistics").await.json();
    assert_eq!(all["appStatInfo"]["statItem"].as_array().unwrap().len(), 8);
    assert_eq!(client.get("/appstatistics?applicationTypes=a,b").await.status, 400);
}

#[tokio::test]
async fn the_cluster_looks_as_in_yarn() {
    let client = Client::new();
    for path in ["", "/info"] {
        let info = client.get(path).await.json()["clusterInfo"].clone();
        assert_has(
            &info,
            &json!({ "id": CLUSTER, "state": "STARTED", "haState": "ACTIVE", "hadoopVersion": "3.3.4" }),
        );
    }
    let metrics = client.get("/metrics").await.json()["clusterMetrics"].clone();
    assert_has(
        &metrics,
        &json!({
            "appsSubmitted": 3,
            "appsCompleted": 1,
            "appsPending": 1,
            "appsRunning": 1,
            "availableMB": 12_288,
            "allocatedMB": 4_096,
            "totalMB": 16_384,
            "totalVirtualCores": 16,
            "containersAllocated": 4,
            "totalNodes": 2,
            "lostNodes": 1,
            "activeNodes": 1,
        }),
    );
    let nodes = client.get("/nodes").await.json();
    let first = &nodes["nodes"]["node"][0];
    assert_has(
        first,
        &json!({
            "rack": "/default-rack",
            "state": "RUNNING",
            "id": "n1:8041",
            "nodeHostName": "n1",
            "usedMemoryMB": 2_048,
            "availMemoryMB": 6_144,
            "availableVirtualCores": 6,
            "nodeLabels": [],
        }),
    );
    assert_eq!(client.get("/nodes/n1:8041").await.json()["node"], *first);
    let lost = client.get("/nodes?states=lost").await.json();
    assert_eq!(lost["nodes"]["node"].as_array().unwrap().len(), 1);
    assert_eq!(client.get("/nodes?states=new").await.json(), json!({ "nodes": null }));
    let queue = client.get("/scheduler").await.json();
    let queue = &queue["scheduler"]["schedulerInfo"]["queues"]["queue"][0];
    assert_eq!((&queue["queueName"], &queue["capacity"]), (&json!("default"), &json!(50.0)));
    let labels = client.get("/get-node-labels").await.json();
    assert_has(&labels["nodeLabelInfo"], &json!({ "name": "gpu", "exclusivity": "true" }));
    let mapped = client.get("/get-node-to-labels").await.json();
    assert_eq!(mapped["nodeToLabels"]["entry"]["key"], "n2:8041");
    let mapped = client.get("/label-mappings?labels=gpu").await.json();
    assert_eq!(mapped["labelsToNodes"]["entry"]["value"], json!({ "nodes": "n2:8041" }));
    assert_eq!(client.get("/label-mappings?labels=ssd").await.json(), json!({ "labelsToNodes": {} }));
    let jmx = client.send("GET", "/jmx?qry=Hadoop:*,name=ClusterMetrics", None, &[]).await.json();
    assert_eq!((&jmx["beans"][0]["NumActiveNMs"], &jmx["beans"][1]), (&json!(1), &Value::Null));
}

#[tokio::test]
async fn attempts_and_containers_look_as_in_yarn() {
    let client = Client::new();
    let of_app = format!("/apps/{}/appattempts", app_id(1));
    let attempts = client.get(&of_app).await.json();
    assert_has(
        &attempts["appAttempts"]["appAttempt"][0],
        &json!({ "id": 1, "nodeId": "n1:8041", "containerId": "container_1700000000000_0001_01_000001" }),
    );
    let of_attempt = format!("{of_app}/appattempt_1700000000000_0001_000001");
    assert_has(
        &client.get(&of_attempt).await.json(),
        &json!({
            "appAttemptId": "appattempt_1700000000000_0001_000001",
            "host": "n1",
            "rpcPort": "40193",
            "originalTrackingUrl": "http://n1:4040",
            "appAttemptState": "RUNNING",
            "amContainerId": "container_1700000000000_0001_01_000001",
        }),
    );
    let containers = client.get(&format!("{of_attempt}/containers")).await.json();
    let second = json!({
        "containerId": "container_1700000000000_0001_01_000002",
        "allocatedMB": "1536",
        "priority": "7",
        "elapsedTime": "60000",
        "containerState": "RUNNING",
        "assignedNodeId": "n1:8041",
    });
    assert_has(&containers["container"][1], &second);
    let one = format!("{of_attempt}/containers/container_1700000000000_0001_01_000002");
    assert_has(&client.get(&one).await.json(), &second);
    for missing in [
        format!("{of_app}/appattempt_1700000000000_0001_000009"),
        format!("{of_app}/appattempt_1700000000000_0001_000009/containers"),
        format!("{of_attempt}/containers/container_1700000000000_0001_01_000009"),
    ] {
        assert_eq!(client.get(&missing).await.status, 404, "{missing}");
    }
}

#[tokio::test]
async fn applications_are_changed() {
    let client = Client::new();
    let id = app_id(1);
    let state = format!("/apps/{id}/state");
    assert_eq!(client.get(&state).await.json(), json!({ "state": "RUNNING" }));
    let refused = client.put("state", &json!({ "state": "FINISHED" })).await;
    let message = refused.json()["RemoteException"]["message"].clone();
    assert_eq!(
        (refused.status, message),
        (400, json!("java.lang.Exception: Only 'KILLED' is allowed as a target state."))
    );
    assert_eq!(
        client.put("queue", &json!({ "queue": "night" })).await.json(),
        json!({ "queue": "root.night" })
    );
    assert_eq!(client.put("queue", &json!({ "queue": "nowhere" })).await.status, 400);
    assert_eq!(client.put("priority", &json!({ "priority": 8 })).await.json(), json!({ "priority": 8 }));
    assert_eq!(client.get(&format!("/apps/{id}/priority")).await.json(), json!({ "priority": 8 }));
    let at = json!({ "type": "LIFETIME", "expiryTime": "2023-11-14T22:16:50.000+0000" });
    for body in [json!({ "timeout": at }), at.clone()] {
        let set = client.put("timeout", &body).await.json();
        assert_has(&set["timeout"], &at);
        assert_eq!(set["timeout"]["remainingTimeInSeconds"], 50);
    }
    let timeout = client.get(&format!("/apps/{id}/timeouts/lifetime")).await.json();
    assert_has(&timeout["timeout"], &at);
    assert_eq!(client.put("timeout", &json!({ "type": "LIFETIME", "expiryTime": "soon" })).await.status, 400);
    let asked = client.put("state", &json!({ "state": "KILLED", "diagnostics": "enough" })).await;
    assert_eq!((asked.status, asked.json()), (202, json!({ "state": "RUNNING" })));
    assert_eq!(asked.header("location"), format!("http://rm:8088/ws/v1/cluster/apps/{id}/state"));
    let done = client.put("state", &json!({ "state": "KILLED" })).await;
    assert_eq!((done.status, done.json()), (200, json!({ "state": "KILLED" })));
    // Nothing more is asked of one that is there.
    assert_eq!(client.put("state", &json!({ "state": "KILLED" })).await.status, 200);
    let calls = client.manager.calls.lock().clone();
    let expected = [
        format!("move {id} ann night"),
        format!("priority {id} ann 8"),
        format!("timeout {id} ann 1700000210000"),
        format!("timeout {id} ann 1700000210000"),
        format!("kill {id} ann enough"),
        format!("kill {id} ann "),
    ];
    assert_eq!(calls, expected);
}

#[tokio::test]
async fn submissions_are_answered_with_their_place() {
    let client = Client::new();
    let new = client.send("POST", "/ws/v1/cluster/apps/new-application", None, &[]).await.json();
    assert_eq!(new["application-id"], app_id(4).to_string());
    assert_has(&new["maximum-resource-capability"], &json!({ "memory": 8_192, "vCores": 4 }));
    let body = json!({
        "application-id": app_id(4).to_string(),
        "application-name": "test",
        "am-container-spec": { "commands": { "command": "sleep 1" } },
        "resource": { "memory": 1_024, "vCores": 1 },
    });
    let sent = client.send("POST", "/ws/v1/cluster/apps?user.name=eve", Some(&body.to_string()), &[]).await;
    assert_eq!((sent.status, sent.text.as_str()), (202, ""));
    assert_eq!(sent.header("location"), format!("http://rm:8088/ws/v1/cluster/apps/{}", app_id(4)));
    assert_eq!(sent.header("set-cookie"), "hadoop.auth=\"u=eve&p=eve&t=simple\"; Path=/; HttpOnly");
    let submitted = client.manager.submitted.lock().clone();
    assert_eq!((submitted[0].0, submitted[0].1.submission.user.as_str()), (app_id(4), "eve"));
    let nowhere =
        json!({ "application-id": app_id(5).to_string(), "queue": "nowhere", "unmanaged-AM": true });
    let refused = client.send("POST", "/ws/v1/cluster/apps", Some(&nowhere.to_string()), &[]).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    for (body, words) in [("{", "the body is no JSON"), ("{}", "application-id: is missing")] {
        let refused = client.send("POST", "/ws/v1/cluster/apps", Some(body), &[]).await;
        assert!(refused.status == 400 && refused.text.contains(words), "{}", refused.text);
    }
    let large = format!("{{\"x\": \"{}\"}}", "x".repeat(BODY_BYTES_MAX));
    assert_eq!(client.send("POST", "/ws/v1/cluster/apps", Some(&large), &[]).await.status, 413);
}

#[tokio::test]
async fn errors_are_remote_exceptions() {
    let client = Client::new();
    for (path, status, exception, class, words) in [
        (
            "/apps/application_1_0009",
            404,
            "NotFoundException",
            "org.apache.hadoop.yarn.webapp.NotFoundException",
            "java.lang.Exception: app with id: application_1_0009 not found",
        ),
        (
            "/apps/application_x",
            400,
            "BadRequestException",
            "org.apache.hadoop.yarn.webapp.BadRequestException",
            "is no application id",
        ),
        (
            "/nodes/n9:1",
            404,
            "NotFoundException",
            "org.apache.hadoop.yarn.webapp.NotFoundException",
            "java.lang.Exception: nodeId, n9:1, is not found",
        ),
        (
            "/nodes/n9",
            400,
            "IllegalArgumentException",
            "java.lang.IllegalArgumentException",
            "Invalid NodeId [n9]. Expected host:port",
        ),
        (
            "/nodes?states=odd",
            400,
            "IllegalArgumentException",
            "java.lang.IllegalArgumentException",
            "No enum constant org.apache.hadoop.yarn.api.records.NodeState.ODD",
        ),
        ("/x", 404, "NotFoundException", "org.apache.hadoop.yarn.webapp.NotFoundException", "null for uri"),
    ] {
        let refused = client.get(path).await;
        let body = refused.json()["RemoteException"].clone();
        assert_eq!((refused.status, &body["exception"]), (status, &json!(exception)), "{path}");
        assert_eq!(body["javaClassName"], class, "{path}");
        assert!(body["message"].as_str().unwrap().contains(words), "{path}: {body}");
    }
    *client.manager.refusal.lock() = Some(ManagerRefusal::Denied("not yours".to_owned()));
    assert_eq!(client.get("/apps").await.status, 403);
    *client.manager.refusal.lock() = Some(ManagerRefusal::Unavailable("state is away".to_owned()));
    assert_eq!(client.get("/apps").await.status, 503);
}

#[tokio::test]
async fn standbys_send_callers_to_the_leader() {
    let client = Client::new();
    *client.manager.refusal.lock() = Some(ManagerRefusal::Standby(Some("http://rm2:7704".to_owned())));
    for method in ["GET", "POST"] {
        let body = json!({ "application-id": app_id(9).to_string(), "unmanaged-AM": true }).to_string();
        let sent = client.send(method, "/ws/v1/cluster/apps?limit=1", Some(&body), &[]).await;
        assert_eq!(sent.status, 307, "{method}");
        assert_eq!(sent.header("location"), "http://rm2:8088/ws/v1/cluster/apps?limit=1");
    }
    let info = client.get("/info").await;
    assert_eq!((info.status, &info.json()["clusterInfo"]["haState"]), (200, &json!("STANDBY")));
    assert_eq!(client.send("GET", "/cluster", None, &[]).await.status, 200);
    *client.manager.refusal.lock() = Some(ManagerRefusal::Standby(None));
    let waiting = client.get("/metrics").await;
    assert_eq!((waiting.status, waiting.header("location")), (307, ""));
    assert_eq!(waiting.header("refresh"), "5;url=http://rm:8088/ws/v1/cluster/metrics");
}

#[tokio::test]
async fn only_json_is_spoken() {
    let client = Client::new();
    for (accept, status) in [
        ("application/json", 200),
        ("text/html,application/xml;q=0.9,*/*;q=0.8", 200),
        ("Application/*", 200),
        ("application/xml", 406),
        ("text/html", 406),
    ] {
        let answered = client.send("GET", "/ws/v1/cluster/info", None, &[("accept", accept)]).await;
        assert_eq!(answered.status, status, "{accept}");
        assert!(status == 200 || answered.text.contains("Accept: application/json"), "{}", answered.text);
    }
    let xml = [("content-type", "application/xml")];
    let refused = client.send("POST", "/ws/v1/cluster/apps", Some("<x/>"), &xml).await;
    assert!(refused.status == 415 && refused.text.contains("Content-Type: application/json"));
}

#[tokio::test]
async fn users_are_taken_from_query_and_cookie() {
    let client = Client::new();
    let user = async |at: &str, headers: &[(&str, &str)]| {
        let answered = client.send("GET", &format!("/ws/v1/cluster/userinfo{at}"), None, headers).await;
        (answered.status, answered.json()["clusterUserInfo"]["requestedUser"].clone())
    };
    assert_eq!(user("", &[]).await, (200, json!("dr.who")));
    assert_eq!(user("?user.name=ann", &[]).await, (200, json!("ann")));
    let cookie = [("cookie", "a=b; hadoop.auth=\"u=bob&p=bob&t=simple\"")];
    assert_eq!(user("", &cookie).await, (200, json!("bob")));
    assert_eq!(user("?user.name=a%22%3B", &[]).await.0, 400);
    let access = async |user: &str| {
        client.get(&format!("/queues/root.night/access?user={user}")).await.json()["allowed"].clone()
    };
    assert_eq!((access("ann").await, access("bob").await), (json!("true"), json!("false")));
    let unknown = client.get("/queues/nowhere/access?user=ann").await.json();
    assert_eq!(
        unknown["diagnostics"],
        "User=ann doesn't have access to queue=nowhere with acl-type=SUBMIT_APPLICATIONS"
    );
    assert_eq!(client.get("/queues/night/access?queue-acl-type=ALL").await.status, 400);
}

#[tokio::test]
async fn pages_of_masters_are_found() {
    let client = Client::new();
    let at = async |path: String| {
        let sent = client.send("GET", &path, None, &[]).await;
        (sent.status, sent.header("location").to_owned())
    };
    assert_eq!(at(format!("/proxy/{}/", app_id(1))).await, (302, "http://n1:4040".to_owned()));
    let escaped = (302, "http://n1:4040/jobs/a%20b".to_owned());
    assert_eq!(at(format!("/proxy/{}/jobs/a%20b", app_id(1))).await, escaped);
    assert_eq!(at(format!("/proxy/{}/", app_id(3))).await.0, 404);
    let own = format!("http://rm:8088/ws/v1/cluster/apps/{}", app_id(1));
    assert_eq!(at(format!("/cluster/app/{}", app_id(1))).await, (302, own));
    let urls = [("javascript:x", 302), ("ftp://n1/", 404), ("n1:4040", 302), ("//n1", 404)];
    for (seen, (url, status)) in (1..).zip(urls) {
        let tracking_url = Some(url.to_owned());
        let call = AllocateCall { seen, tracking_url, ..AllocateCall::default() };
        client.manager.allocate(attempt_id(1), &call, 0.5).await.unwrap();
        let (found, location) = at(format!("/proxy/{}/", app_id(1))).await;
        assert_eq!(found, status, "{url}");
        assert!(status == 404 || location.starts_with("http://"), "{location}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever is called, there is an answer, and it is no fault of the server.
    #[test]
    fn every_call_is_answered(
        method in prop::sample::select(vec!["GET", "PUT", "POST", "DELETE", "HEAD"]),
        parts in prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![
                    "apps", "nodes", "scheduler", "appattempts", "containers", "state", "queue", "priority",
                    "timeouts", "timeout", "queues", "access", "application_1700000000000_0001",
                    "appattempt_1700000000000_0001_000001", "get-labels", "n1:8041", "info", "metrics",
                    "application_99999999999999999999_1", "%", "%ff", "%2e%2e",
                ]).prop_map(str::to_owned),
                "[a-z0-9_%.-]{0,12}",
            ],
            0..6,
        ),
        query in "[a-zA-Z=&%,.0-9+-]{0,60}",
        name in prop::sample::select(vec![
            "states", "limit", "startedTimeBegin", "finishedTimeEnd", "queue", "deSelects", "user.name",
            "finalStatus", "qry", "labels",
        ]),
        is_cluster: bool,
        body in prop_oneof![Just("{}".to_owned()), "\\PC{0,80}", Just("{\"state\":\"KILLED\"}".to_owned())],
    ) {
        let path = parts.join("/");
        let prefix = if is_cluster { "/ws/v1/cluster/" } else { "/" };
        let at = format!("{prefix}{path}?{name}={query}");
        prop_assume!(at.parse::<axum::http::Uri>().is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answered = runtime.block_on(Client::new().send(method, &at, Some(&body), &[]));
        prop_assert!((200..500).contains(&answered.status), "{at}: {} {}", answered.status, answered.text);
        prop_assert!(Method::from_bytes(method.as_bytes()).is_ok());
    }
}

/// Serves the canned applications to `integration-tests/yarn/rest.py`, which plays every call of the Python package `yarn-api-client` against it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "installs a Python package from its registry"]
async fn yarn_api_client_passes_its_calls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let manager: Arc<dyn ResourceManager> = Arc::new(FakeManager::with_canned_applications());
    let clock = godel_kit::clock::SystemClock::shared();
    let served = tokio::spawn(serve(listener, manager, YarnCallers::default(), clock, stop.clone()));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../integration-tests/yarn/rest.py");
    let played =
        tokio::process::Command::new("python3").arg(script).arg(format!("http://{address}")).output();
    let played = played.await.unwrap();
    stop.cancel();
    served.await.unwrap().unwrap();
    println!("{}", String::from_utf8_lossy(&played.stdout));
    assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
}
