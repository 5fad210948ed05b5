//! Calls of YarnService over an adapter in memory.

use godel_domain::change_line::CallCause;
use godel_kit::{security::Principal, status};
use prost::Message as _;
use tonic::Code;

use super::*;
use crate::tests::{
    fake::FakeManager,
    samples::{app_id, attempt_id},
};

fn face() -> (YarnFace, Arc<FakeManager>) {
    let manager = Arc::new(FakeManager::with_canned_applications());
    (YarnFace { manager: manager.clone() }, manager)
}

fn amount(memory_mb: i64, vcores: i64) -> Option<v1::YarnAmount> {
    Some(v1::YarnAmount { memory_mb, vcores, ..v1::YarnAmount::default() })
}

fn wrong_fields(status: &Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    status::violations_of(status).into_iter().map(|bad| bad.path).collect()
}

fn launch_context() -> Vec<u8> {
    let launch = godel_hadoop::yarn::ContainerLaunchContextProto {
        command: vec!["sleep 1".to_owned()],
        ..Default::default()
    };
    launch.encode_to_vec()
}

#[tokio::test]
async fn applications_are_submitted_shown_and_changed() {
    let (face, manager) = face();
    let new = face.new_application(Request::new(v1::NewApplicationRequest {})).await.unwrap().into_inner();
    assert_eq!(
        (new.application_id.as_str(), new.maximum),
        ("application_1700000000000_0004", amount(8_192, 4))
    );
    let request = v1::SubmitApplicationRequest {
        application_id: new.application_id.clone(),
        user: "ann".to_owned(),
        master: Some(v1::YarnMasterAsk { amount: amount(1_024, 1), label: String::new() }),
        launch_context: launch_context(),
        tags: vec!["Night".to_owned()],
        priority: Some(7),
        ..v1::SubmitApplicationRequest::default()
    };
    face.submit_application(Request::new(request)).await.unwrap();
    let submitted = manager.submitted.lock()[0].1.clone();
    assert_eq!((submitted.submission.name.as_str(), submitted.submission.kind.as_str()), ("N/A", "YARN"));
    assert_eq!((submitted.submission.priority, submitted.tags), (7, vec!["night".to_owned()]));
    assert_eq!(submitted.submission.validity_interval_ms, -1);
    let id = new.application_id;
    let get = v1::GetApplicationRequest { application_id: id.clone() };
    let app = face.get_application(Request::new(get)).await.unwrap().into_inner().application.unwrap();
    assert_eq!((app.state(), app.master_rpc_port), (v1::YarnAppState::Accepted, -1));
    let user = "ann".to_owned();
    let moved = v1::MoveApplicationRequest {
        application_id: id.clone(),
        user: user.clone(),
        queue: "night".to_owned(),
    };
    let moved = face.move_application(Request::new(moved)).await.unwrap().into_inner();
    assert_eq!(moved.queue, "root.night");
    let update = v1::UpdateApplicationRequest {
        application_id: id.clone(),
        user: user.clone(),
        priority: Some(0),
        timeout_at_ms: Some(5),
    };
    let updated = face.update_application(Request::new(update)).await.unwrap().into_inner();
    let updated = updated.application.unwrap();
    assert_eq!((updated.priority, updated.timeout_at_ms), (0, Some(5)));
    let kill = v1::KillApplicationRequest { application_id: id, user, diagnostics: "enough".to_owned() };
    let asked = face.kill_application(Request::new(kill.clone())).await.unwrap().into_inner();
    let done = face.kill_application(Request::new(kill)).await.unwrap().into_inner();
    assert_eq!((asked.done, done.done), (false, true));
}

#[tokio::test]
async fn lists_come_in_pages() {
    let (face, _) = face();
    let list = async |request: v1::ListApplicationsRequest| {
        let page = face.list_applications(Request::new(request)).await.unwrap().into_inner();
        let ids: Vec<String> = page.applications.into_iter().map(|app| app.application_id).collect();
        (ids, page.next_page_token, page.total)
    };
    let id = |number| app_id(number).to_string();
    let request = v1::ListApplicationsRequest { page_size: 2, ..v1::ListApplicationsRequest::default() };
    assert_eq!(list(request.clone()).await, (vec![id(3), id(2)], id(2), 3));
    let next = v1::ListApplicationsRequest { page_token: id(2), ..request };
    assert_eq!(list(next).await, (vec![id(1)], String::new(), 1));
    let running = v1::ListApplicationsRequest {
        states: vec![v1::YarnAppState::Running.into()],
        tags: vec!["NIGHT".to_owned()],
        ..v1::ListApplicationsRequest::default()
    };
    assert_eq!(list(running).await.0, [id(1)]);
    let containers = async |page_token: String| {
        let attempt_id = attempt_id(1).to_string();
        let request = v1::ListContainersRequest { attempt_id, page_size: 1, page_token };
        let page = face.list_containers(Request::new(request)).await.unwrap().into_inner();
        (page.containers[0].container_id.clone(), page.containers[0].priority, page.next_page_token)
    };
    let (first, _, token) = containers(String::new()).await;
    assert_eq!((first.as_str(), token.as_str()), (token.as_str(), "container_1700000000000_0001_01_000001"));
    let (second, priority, token) = containers(token).await;
    assert_eq!(
        (second.as_str(), priority, token.as_str()),
        ("container_1700000000000_0001_01_000002", 7, "")
    );
    let queues = async |page_token: &str| {
        let request = v1::ListYarnQueuesRequest { page_size: 2, page_token: page_token.to_owned() };
        face.list_yarn_queues(Request::new(request)).await.map(Response::into_inner)
    };
    let first = queues("").await.unwrap();
    assert_eq!((first.queues[0].path.as_str(), first.total), ("root", 3));
    let last = queues(&first.next_page_token).await.unwrap();
    assert_eq!((last.queues[0].path.as_str(), last.next_page_token.as_str()), ("root.night", ""));
    assert_eq!(wrong_fields(&queues("gone").await.unwrap_err()), ["page_token"]);
    let request = v1::ListAttemptsRequest { application_id: id(1) };
    let attempts = face.list_attempts(Request::new(request)).await.unwrap().into_inner().attempts;
    assert_eq!((attempts.len(), attempts[0].state()), (1, v1::YarnAttemptState::Running));
}

#[tokio::test]
async fn masters_register_ask_and_leave() {
    let (face, manager) = face();
    let attempt = attempt_id(3).to_string();
    let register = v1::RegisterMasterRequest {
        attempt_id: attempt.clone(),
        host: "n1".to_owned(),
        ..v1::RegisterMasterRequest::default()
    };
    let registered = face.register_master(Request::new(register)).await.unwrap().into_inner();
    assert_eq!((registered.queue.as_str(), registered.maximum), ("root.default", amount(8_192, 4)));
    let ask = v1::YarnAsk {
        amount: amount(1_024, 1),
        containers: Some(2),
        allocation_request_id: Some(5),
        strict: true,
        execution: v1::YarnExecutionType::Opportunistic.into(),
        ..v1::YarnAsk::default()
    };
    // A strict ask is for the nodes that it names.
    let on_node = v1::YarnAsk { name: "n1".to_owned(), ..ask.clone() };
    let request = v1::AllocateRequest {
        attempt_id: attempt.clone(),
        asks: vec![ask, on_node],
        progress: Some(f32::NAN),
        blacklist_add: vec!["n2".to_owned()],
        ..v1::AllocateRequest::default()
    };
    let answer = face.allocate(Request::new(request)).await.unwrap().into_inner();
    assert_eq!((answer.response_id, answer.allocated.len(), answer.nodes), (1, 2, 1));
    let first = &answer.allocated[0];
    assert_eq!((first.amount.clone(), first.allocation_request_id), (amount(1_024, 1), 5));
    let said = manager.calls.lock().last().cloned().unwrap();
    for part in ["relax_locality: false", "Opportunistic", "name: \"*\"", "\"n2\"", " 0"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let finish = v1::FinishMasterRequest {
        attempt_id: attempt,
        final_status: v1::YarnAppFinalStatus::Succeeded.into(),
        ..v1::FinishMasterRequest::default()
    };
    assert!(face.finish_master(Request::new(finish)).await.unwrap().into_inner().done);
    assert!(manager.calls.lock().last().unwrap().contains("Succeeded"));
}

#[tokio::test]
async fn every_wrong_field_is_named() {
    let (face, manager) = face();
    let submit = v1::SubmitApplicationRequest {
        application_id: "x".to_owned(),
        name: "a\u{7}".to_owned(),
        master: Some(v1::YarnMasterAsk { amount: amount(-1, 0), label: String::new() }),
        launch_context: vec![0xff],
        lifetime_ms: Some(0),
        tags: vec!["x".repeat(101)],
        ..v1::SubmitApplicationRequest::default()
    };
    let refused = face.submit_application(Request::new(submit)).await.unwrap_err();
    let expected = [
        "application_id",
        "user",
        "name",
        "tags[0]",
        "lifetime_ms",
        "master.amount",
        "master.amount",
        "launch_context",
    ];
    assert_eq!(wrong_fields(&refused), expected);
    let ask = v1::YarnAsk { execution: 9, ..v1::YarnAsk::default() };
    let allocate = v1::AllocateRequest {
        asks: vec![ask],
        release: vec!["y".to_owned()],
        ..v1::AllocateRequest::default()
    };
    let refused = face.allocate(Request::new(allocate)).await.unwrap_err();
    assert_eq!(wrong_fields(&refused), ["attempt_id", "release[0]", "asks[0].amount", "asks[0].execution"]);
    let list = v1::ListApplicationsRequest {
        states: vec![0, 99],
        page_size: 1_001,
        page_token: "z".to_owned(),
        ..v1::ListApplicationsRequest::default()
    };
    let refused = face.list_applications(Request::new(list)).await.unwrap_err();
    assert_eq!(wrong_fields(&refused), ["page_size", "page_token", "states[0]", "states[1]"]);
    let finish = v1::FinishMasterRequest::default();
    let refused = face.finish_master(Request::new(finish)).await.unwrap_err();
    assert_eq!(wrong_fields(&refused), ["attempt_id", "final_status"]);
    let update = v1::UpdateApplicationRequest {
        application_id: app_id(1).to_string(),
        user: "ann".to_owned(),
        ..v1::UpdateApplicationRequest::default()
    };
    let refused = face.update_application(Request::new(update)).await.unwrap_err();
    assert_eq!(wrong_fields(&refused), ["priority"]);
    assert!(manager.calls.lock().is_empty() && manager.submitted.lock().is_empty());
    let get = v1::GetApplicationRequest { application_id: "application_1_0001".to_owned() };
    let refused = face.get_application(Request::new(get)).await.unwrap_err();
    assert_eq!(
        (refused.code(), status::reason_of(&refused).as_deref()),
        (Code::NotFound, Some("UNKNOWN_NAME"))
    );
}

#[test]
fn a_person_acts_as_itself_and_operators_as_whom_they_name() {
    const KILL: &str = "/godel.v1.YarnService/KillApplication";
    let nobody = Caller::Anonymous;
    let by = |role, user: &str| {
        let principal = Principal { groups: vec!["etl".to_owned()], ..Principal::new("ann", role) };
        let call = PersonCall::new(Arc::new(principal), KILL);
        acting(&call, &nobody, user.to_owned()).map_err(|status| status.code())
    };
    for (role, user, expected) in [
        (PersonRole::User, "", Ok("ann")),
        (PersonRole::User, "ann", Ok("ann")),
        (PersonRole::User, "bob", Err(Code::PermissionDenied)),
        (PersonRole::User, "yarn-simple:ann", Err(Code::PermissionDenied)),
        (PersonRole::User, "etl", Err(Code::InvalidArgument)),
        (PersonRole::Operator, "", Ok("ann")),
        (PersonRole::Operator, "bob", Ok("bob")),
        (PersonRole::Admin, "yarn-simple:bob", Ok("yarn-simple:bob")),
    ] {
        // The change log names the one who calls.
        let expected = expected
            .map(|user| YarnCaller { user: user.to_owned(), call: Some(CallCause::new("ann", KILL, "")) });
        assert_eq!(by(role, user), expected, "{role} {user}");
    }
    // Of others nothing is judged: they say who acts, but for those in plain text, who count as the administrator.
    let others =
        |caller: &Caller, user: &str| acting(&PersonCall::default(), caller, user.to_owned()).unwrap();
    assert_eq!(others(&Caller::Unjudged, "bob"), YarnCaller::unnoted("bob"));
    assert_eq!(others(&Caller::Unjudged, ""), YarnCaller::unnoted("admin"));
    assert_eq!(others(&nobody, ""), YarnCaller::unnoted(""));
}
