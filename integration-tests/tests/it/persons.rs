//! What persons learn of units that they may not see: every call of the API that they may make is made, and nowhere in an answer or an error is the name of
//! a foreign unit.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use bytes::{Buf as _, BufMut as _};
use godel_client::client::Client;
use godel_identity::{
    needs::NEEDS,
    permission::{ObjectScope, PersonRole},
};
use godel_integration_tests::{
    secured::{SecuredCluster, SteppedClock},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_kit::{client::Channel, clock::SharedClock};
use godel_proto::v1::{
    self, budget_service_client::BudgetServiceClient, reservation_service_client::ReservationServiceClient,
};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use tonic::{
    Code, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

/// Names of all foreign units begin so.
const SECRET: &str = "secret-";
/// What is shown in their place.
const HIDDEN: &str = "(hidden)";
/// Messages of a stream that are looked at.
const N_MESSAGES: usize = 64;
/// A stream that says nothing more for so long has said what there is.
const QUIET: Duration = Duration::from_millis(300);

/// Messages as they are on the wire.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining()).to_vec()))
    }
}

/// What a call was answered.
#[derive(Debug)]
struct Answered {
    /// All messages, one after the other.
    messages: Vec<Vec<u8>>,
    /// How it ended; `None`: well, or it goes on.
    end: Option<Status>,
}

impl Answered {
    fn code(&self) -> Code {
        self.end.as_ref().map_or(Code::Ok, Status::code)
    }

    /// All that it says, its error and the details of that included.
    fn text(&self) -> String {
        let mut text: String = self.messages.iter().map(|message| String::from_utf8_lossy(message)).collect();
        if let Some(end) = &self.end {
            text += end.message();
            text += &String::from_utf8_lossy(end.details());
        }
        text
    }
}

/// Calls a method with a message, whether it answers with one or with many.
async fn ask(client: &Client, method: &str, request: Vec<u8>) -> Answered {
    let mut grpc = Grpc::new(client.directory().state());
    let path: PathAndQuery = format!("/godel.v1.{method}").parse().unwrap();
    let mut answered = Answered { messages: Vec::new(), end: None };
    let begun = async {
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        grpc.server_streaming(tonic::Request::new(request), path, RawCodec).await
    };
    let mut stream = match tokio::time::timeout(LIMIT, begun).await.expect("an answer") {
        Ok(stream) => stream.into_inner(),
        Err(end) => return Answered { end: Some(end), ..answered },
    };
    while answered.messages.len() < N_MESSAGES {
        match tokio::time::timeout(QUIET, stream.message()).await {
            Ok(Ok(Some(message))) => answered.messages.push(message),
            Ok(Ok(None)) | Err(_) => break,
            Ok(Err(end)) => {
                answered.end = Some(end);
                break;
            }
        }
    }
    answered
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap()
}

/// A request of a method, from JSON.
fn request(method: &str, json: &str) -> Vec<u8> {
    let (service, name) = method.split_once('/').unwrap();
    let service = pool().get_service_by_name(&format!("godel.v1.{service}")).unwrap();
    let input = service.methods().find(|one| one.name() == name).unwrap().input();
    let mut json = serde_json::Deserializer::from_str(json);
    DynamicMessage::deserialize(input, &mut json).unwrap().encode_to_vec()
}

/// What a person is answered who names a unit of a foreign namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// As if it were not there.
    NotFound,
    /// Refused.
    Denied,
    /// With what else there is.
    LeftOut,
    /// With its name hidden.
    Hidden,
    /// By a member that does not run here.
    Away,
}

/// For each method that is bound to namespaces a request about a foreign unit. `NS`, `UNIT`, `UID` and `ID` stand for what it is called.
const REQUESTS: &[(&str, &str, Foreign)] = &[
    ("BudgetService/GetBudget", r#"{"name": "guard"}"#, Foreign::Hidden),
    ("BudgetService/ListBudgets", "{}", Foreign::Hidden),
    ("DispatchService/GetDrain", r#"{"nodeId": 1}"#, Foreign::LeftOut),
    ("LogService/ReadLog", r#"{"unitId": "ID"}"#, Foreign::NotFound),
    ("NodeService/GetNode", r#"{"name": "sim0-0000"}"#, Foreign::Hidden),
    ("NodeService/ListRunUsage", "{}", Foreign::LeftOut),
    ("RescheduleService/GetMovement", r#"{"name": "room-1"}"#, Foreign::Away),
    ("RescheduleService/ListMovements", "{}", Foreign::Away),
    ("RescheduleService/ListPolicies", "{}", Foreign::Away),
    ("RescheduleService/ReportCheckpoint", r#"{"namespace": "NS", "unit": "UNIT"}"#, Foreign::Away),
    ("ReservationService/GetReservation", r#"{"name": "kept"}"#, Foreign::Hidden),
    ("ReservationService/ListReservations", "{}", Foreign::LeftOut),
    ("SchedulerService/Plan", r#"{"unit": {"meta": {"namespace": "NS", "name": "x"}}}"#, Foreign::Denied),
    ("UnitService/GetUnit", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::NotFound),
    ("UnitService/GetUnit", r#"{"namespace": "NS", "name": "UID"}"#, Foreign::NotFound),
    ("UnitService/GetUnit", r#"{"namespace": "team-a", "name": "UID"}"#, Foreign::NotFound),
    ("UnitService/GetUnit", r#"{"name": "UID"}"#, Foreign::NotFound),
    ("UnitService/GetUnit", r#"{"namespace": "NS", "name": "secret"}"#, Foreign::NotFound),
    ("UnitService/GetUnit", r#"{"namespace": "team-a", "name": "web"}"#, Foreign::Hidden),
    ("UnitService/ListUnitHistory", r#"{"namespace": "NS"}"#, Foreign::LeftOut),
    ("UnitService/ListUnits", r#"{"namespace": "NS"}"#, Foreign::LeftOut),
    ("UnitService/ListUnits", "{}", Foreign::Hidden),
    ("UnitService/ListUnits", r#"{"node": "sim0-0000"}"#, Foreign::Hidden),
    ("UnitService/WatchUnits", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::NotFound),
    ("UnitService/WatchUnits", r#"{"name": "UID"}"#, Foreign::NotFound),
    ("UnitService/WatchUnits", "{}", Foreign::Hidden),
    ("UnitService/CancelUnit", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::Denied),
    ("UnitService/CancelUnit", r#"{"namespace": "team-a", "name": "UID"}"#, Foreign::NotFound),
    ("UnitService/DeleteUnit", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::Denied),
    ("UnitService/ResumeUnit", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::Denied),
    ("UnitService/RetryUnit", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::Denied),
    ("UnitService/ScaleUnit", r#"{"namespace": "NS", "name": "UNIT", "replicas": 2}"#, Foreign::Denied),
    (
        "UnitService/StopRunningUnits",
        r#"{"namespace": "NS", "name": "UNIT", "ordinals": [0]}"#,
        Foreign::Denied,
    ),
    ("UnitService/SubmitUnit", r#"{"unit": {"meta": {"namespace": "NS", "name": "x"}}}"#, Foreign::Denied),
    ("UnitService/SuspendUnit", r#"{"namespace": "NS", "name": "UNIT"}"#, Foreign::Denied),
    ("UnitService/UpdateUnit", r#"{"groups": {"namespace": "NS", "name": "UNIT"}}"#, Foreign::Denied),
    // Its items are judged one by one.
    ("UnitService/SubmitUnits", r#"{"unit": {"meta": {"namespace": "NS", "name": "x"}}}"#, Foreign::LeftOut),
];

/// A team whose unit was preempted by a foreign one, on the only node.
struct Teams {
    cluster: SecuredCluster,
    /// The foreign unit that preempted.
    secret: v1::Unit,
}

impl Teams {
    async fn start() -> Self {
        let clock = SteppedClock::new() as SharedClock;
        let mut cluster = SecuredCluster::new(&[]);
        for (part, name) in [("state", "state"), ("dispatcher", "d1"), ("binder", "b1"), ("scheduler", "s1")]
        {
            cluster.start_inside(part, name, &clock).await;
        }
        cluster.start_agents_inside(1, &clock).await;
        cluster.wait_ready().await;
        let of = |namespace: &str, name: &str, replicas, cpu_milli, priority| {
            let mut spec = unit(name, "", replicas, resources(cpu_milli, 1), None, 0);
            namespace.clone_into(&mut spec.meta.get_or_insert_default().namespace);
            v1::UnitSpec { priority: Some(priority), min_member: Some(1), ..spec }
        };
        // The node has 8 CPUs.
        cluster.submit(of("team-a", "web", 3, 2_000, 0)).await.unwrap();
        wait_bound(&cluster, "team-a", "web", 3).await;
        let budget = v1::DisruptionBudget {
            name: "guard".to_owned(),
            namespace: "prod".to_owned(),
            unit: "secret-high".to_owned(),
            limit: Some(v1::disruption_budget::Limit::MaxUnavailable(v1::BudgetAmount {
                amount: Some(v1::budget_amount::Amount::Count(1)),
            })),
            ..v1::DisruptionBudget::default()
        };
        let reservation = v1::Reservation {
            name: "kept".to_owned(),
            namespace: "prod".to_owned(),
            selector: [("app".to_owned(), "kept".to_owned())].into(),
            slots: 1,
            demand: Some(v1::Demand { requests: Some(resources(1_000, 1)), ..v1::Demand::default() }),
            ..v1::Reservation::default()
        };
        let channel = cluster.client.directory().state();
        let mut budgets = BudgetServiceClient::new(channel.clone());
        budgets.create_budget(v1::CreateBudgetRequest { budget: Some(budget) }).await.unwrap();
        let mut reservations = ReservationServiceClient::new(channel);
        let request = v1::CreateReservationRequest { reservation: Some(reservation) };
        reservations.create_reservation(request).await.unwrap();
        wait_reserved(&reservations, |kept| kept.held == 1).await;
        let mut kept = of("prod", "secret-kept", 1, 1_000, 0);
        kept.meta.get_or_insert_default().labels.insert("app".to_owned(), "kept".to_owned());
        cluster.submit(kept).await.unwrap();
        wait_reserved(&reservations, |kept| kept.used == 1).await;
        cluster.submit(of("prod", "secret-high", 1, 2_500, 100)).await.unwrap();
        wait_bound(&cluster, "prod", "secret-high", 1).await;
        wait_for("a preemption", LIMIT, async || {
            let web = cluster.client.get_unit("team-a", "web").await?.unit.unwrap_or_default();
            ensure!(web.preempted_by == ["prod/secret-high"], "{web:?}");
            Ok(())
        })
        .await;
        let secret = cluster.client.get_unit("prod", "secret-high").await.unwrap().unit.unwrap();
        Self { cluster, secret }
    }

    async fn person(&self, name: &str, role: PersonRole, namespaces: &[&str]) -> Client {
        let terms = v1::PrincipalTerms {
            role: role.to_string(),
            namespaces: namespaces.iter().map(|namespace| (*namespace).to_owned()).collect(),
            ..v1::PrincipalTerms::default()
        };
        self.cluster.person(name, terms).await
    }

    /// A request about the foreign unit.
    fn about(&self, method: &str, json: &str) -> Vec<u8> {
        let meta = self.secret.spec.as_ref().and_then(|spec| spec.meta.clone()).unwrap();
        let json = json.replace("NS", &meta.namespace).replace("UNIT", &meta.name).replace("UID", &meta.uid);
        request(method, &json.replace("ID", &self.secret.unit_id.to_string()))
    }
}

async fn wait_bound(cluster: &SecuredCluster, namespace: &str, name: &str, n: u32) {
    wait_for(&format!("{namespace}/{name} to be bound"), LIMIT, async || {
        let unit = cluster.client.get_unit(namespace, name).await?.unit.unwrap_or_default();
        let n_bound = unit.counts.unwrap_or_default().bound;
        ensure!(n_bound >= n, "{unit:?}");
        Ok(())
    })
    .await;
}

async fn wait_reserved(
    reservations: &ReservationServiceClient<Channel>,
    is_so: impl Fn(&v1::ReservationStatus) -> bool,
) {
    wait_for("a slot of the reservation", LIMIT, async || {
        let request = v1::GetReservationRequest { name: "kept".to_owned() };
        let kept = reservations.clone().get_reservation(request).await?.into_inner();
        let kept = kept.reservation.unwrap_or_default();
        ensure!(is_so(&kept), "{kept:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_learns_the_name_of_a_unit_that_he_may_not_see() {
    let teams = Teams::start().await;
    // Each method that is bound to namespaces has a request.
    let bound: BTreeSet<&str> = NEEDS
        .iter()
        .filter(|(_, needs)| {
            matches!(needs.of_persons(), Some((_, ObjectScope::Sight | ObjectScope::Namespace)))
        })
        .filter_map(|(path, _)| path.strip_prefix("/godel.v1."))
        .collect();
    let asked: BTreeSet<&str> = REQUESTS.iter().map(|(method, ..)| *method).collect();
    assert_eq!(bound, asked, "add a request about a foreign unit");

    let mut hidden_in = BTreeSet::new();
    for role in [PersonRole::Viewer, PersonRole::User] {
        let ann = teams.person(&format!("ann-{role}"), role, &["team-a"]).await;
        for (method, json, foreign) in REQUESTS {
            let answered = ask(&ann, method, teams.about(method, json)).await;
            let text = answered.text();
            // Whoever names it has its name back.
            let is_named = ["UNIT", "secret"].iter().any(|word| json.contains(word));
            assert!(is_named || !text.contains(SECRET), "{role} {method} {json}: {text}");
            assert!(
                !text.contains("prod/secret") && !text.contains("secret-kept"),
                "{role} {method} {json}: {text}"
            );
            let needs_user = needs_of(method) > role;
            let expected = match foreign {
                _ if needs_user => Code::PermissionDenied,
                Foreign::NotFound => Code::NotFound,
                Foreign::Denied => Code::PermissionDenied,
                Foreign::LeftOut | Foreign::Hidden => Code::Ok,
                Foreign::Away => Code::Unavailable,
            };
            assert_eq!(answered.code(), expected, "{role} {method} {json}: {answered:?}");
            if *foreign == Foreign::Hidden && text.contains(HIDDEN) {
                hidden_in.insert(*method);
            }
        }
        // And all else that may be asked, with nothing said.
        for (path, needs) in NEEDS {
            let Some(method) = path.strip_prefix("/godel.v1.") else { continue };
            if needs.of_persons().is_some_and(|(least, _)| least <= role) && !asked.contains(method) {
                let answered = ask(&ann, method, Vec::new()).await;
                assert!(!answered.text().contains(SECRET), "{role} {method}: {answered:?}");
            }
        }
    }
    let hidden_in: Vec<&str> = hidden_in.into_iter().collect();
    assert_eq!(
        hidden_in,
        [
            "BudgetService/GetBudget",
            "BudgetService/ListBudgets",
            "NodeService/GetNode",
            "ReservationService/GetReservation",
            "UnitService/GetUnit",
            "UnitService/ListUnits",
            "UnitService/WatchUnits",
        ]
    );
    an_absent_unit_is_answered_like_a_foreign_one(&teams).await;
    whoever_sees_all_is_shown_all(&teams).await;
    an_owner_sees_its_unit_in_a_foreign_namespace(&teams).await;
    teams.cluster.stop().await;
}

/// The least role of persons.
fn needs_of(method: &str) -> PersonRole {
    let needs = godel_identity::needs::needs_of(&format!("/godel.v1.{method}"));
    needs.of_persons().map(|(least, _)| least).unwrap()
}

async fn an_absent_unit_is_answered_like_a_foreign_one(teams: &Teams) {
    let ann = teams.person("ann", PersonRole::User, &["team-a"]).await;
    let absent = uuid::Uuid::now_v7().to_string();
    for (method, json) in [
        ("UnitService/GetUnit", r#"{"namespace": "prod", "name": "NAME"}"#),
        ("UnitService/WatchUnits", r#"{"namespace": "prod", "name": "NAME"}"#),
        ("UnitService/GetUnit", r#"{"name": "NAME"}"#),
        ("UnitService/CancelUnit", r#"{"namespace": "team-a", "name": "NAME"}"#),
    ] {
        let meta = teams.secret.spec.as_ref().and_then(|spec| spec.meta.clone()).unwrap();
        for (there, not_there) in [(meta.uid.as_str(), absent.as_str()), ("secret-high", "secret-none")] {
            let of = async |name: &str| {
                let answered = ask(&ann, method, request(method, &json.replace("NAME", name))).await;
                // The details are a map, which comes in any order.
                let mut details = answered.text().replace(name, "NAME").into_bytes();
                details.sort_unstable();
                let message = answered.end.as_ref().map(|end| end.message().replace(name, "NAME"));
                (answered.code(), message, details)
            };
            assert_eq!(of(there).await, of(not_there).await, "{method} {json}");
        }
    }
    // A uid of a foreign unit is taken, and that is all.
    let mut spec = unit("mine", "", 1, resources(100, 1), None, 0);
    let meta = spec.meta.get_or_insert_default();
    "team-a".clone_into(&mut meta.namespace);
    meta.uid = teams.secret.spec.as_ref().and_then(|spec| spec.meta.clone()).unwrap().uid;
    let submitted = v1::SubmitUnitRequest { unit: Some(spec) }.encode_to_vec();
    let answered = ask(&ann, "UnitService/SubmitUnit", submitted).await;
    assert_eq!(answered.code(), Code::AlreadyExists);
    assert!(!answered.text().contains(SECRET) && !answered.text().contains("prod"), "{answered:?}");
}

async fn whoever_sees_all_is_shown_all(teams: &Teams) {
    for (name, role, namespaces) in [
        ("board", PersonRole::Viewer, &["*"][..]),
        ("bob", PersonRole::Viewer, &["prod", "team-a"]),
        ("olga", PersonRole::Operator, &[]),
    ] {
        let client = teams.person(name, role, namespaces).await;
        for (method, json, foreign) in REQUESTS {
            if !matches!(foreign, Foreign::Hidden) {
                continue;
            }
            let answered = ask(&client, method, teams.about(method, json)).await;
            assert_eq!(answered.code(), Code::Ok, "{name} {method}: {answered:?}");
            assert!(!answered.text().contains(HIDDEN), "{name} {method}: {answered:?}");
        }
        let listed = ask(&client, "UnitService/ListUnits", Vec::new()).await;
        assert!(listed.text().contains("secret-high") && listed.text().contains("web"), "{name}");
    }
}

async fn an_owner_sees_its_unit_in_a_foreign_namespace(teams: &Teams) {
    for role in [PersonRole::Viewer, PersonRole::User] {
        let (name, job) = (format!("owen-{role}"), format!("job-{role}"));
        let mut spec = unit(&job, "", 1, resources(100, 1), None, 0);
        let meta = spec.meta.get_or_insert_default();
        "prod".clone_into(&mut meta.namespace);
        meta.owner.clone_from(&name);
        teams.cluster.submit(spec).await.unwrap();
        let owen = teams.person(&name, role, &["team-a"]).await;
        let eve = teams.person(&format!("eve-{role}"), role, &["team-a"]).await;
        for (method, json, of_owner, of_other) in [
            ("UnitService/GetUnit", r#"{"namespace": "prod", "name": "JOB"}"#, Code::Ok, Code::NotFound),
            ("UnitService/WatchUnits", r#"{"namespace": "prod", "name": "JOB"}"#, Code::Ok, Code::NotFound),
            ("UnitService/ListUnits", r#"{"namespace": "prod"}"#, Code::Ok, Code::Ok),
            ("UnitService/ListUnits", "{}", Code::Ok, Code::Ok),
            ("UnitService/WatchUnits", "{}", Code::Ok, Code::Ok),
        ] {
            let answered = ask(&owen, method, request(method, &json.replace("JOB", &job))).await;
            assert_eq!(answered.code(), of_owner, "{role} {method} {json}: {answered:?}");
            // With the unit, and none of the others there.
            assert!(answered.text().contains("owen"), "{role} {method} {json}: {answered:?}");
            assert!(!answered.text().contains("prod/secret"), "{role} {method} {json}: {answered:?}");
            assert!(!answered.text().contains("secret-kept"), "{role} {method} {json}: {answered:?}");
            let answered = ask(&eve, method, request(method, &json.replace("JOB", &job))).await;
            assert_eq!(answered.code(), of_other, "{role} {method} {json}: {answered:?}");
            assert!(!answered.text().contains("owen"), "{role} {method} {json}: {answered:?}");
        }
        for method in ["CancelUnit", "DeleteUnit", "SuspendUnit"] {
            let method = format!("UnitService/{method}");
            let cancelled = request(&method, &r#"{"namespace": "prod", "name": "JOB"}"#.replace("JOB", &job));
            let answered = ask(&owen, &method, cancelled).await;
            assert_eq!(answered.code(), Code::PermissionDenied, "{role} {method}: {answered:?}");
        }
    }
}
