//! Which principal may call which method about what, written down once more by hand, and which texts of answers name units.
//!
//! A new method, page or text of an answer fails these tests until somebody has said here who may call it, or what it names.

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::sight::{HIDDEN, Sight};
use godel_identity::{
    needs::{HTTP_NEEDS, NEEDS, Needs},
    permission::{CallObject, Permission, PersonRole, Principal, allow},
};
use godel_proto::v1;
use godel_wire::hidden::HideNames;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value,
};

/// What a principal below the roles of the whole cluster is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// Nothing.
    Nothing,
    /// Namespaces, queues and owners.
    Units,
    /// Namespaces, and in others what it owns.
    Sight,
    /// Itself.
    Itself,
    /// Queues and owners: applications of YARN are all in one namespace.
    Applications,
}

/// Methods by who may call them at least. `None`: no person.
const EXPECTED: &[(Option<PersonRole>, Bound, &str)] = &[
    (
        None,
        Bound::Nothing,
        "BindService/Decide BindService/EvictRunningUnits BindService/MoveRunningUnits ChangeService/ReportCalls DispatchService/Attach
         IdentityService/GetCallers IdentityService/RenewIdentity LogService/SendLog MemberService/AcquireLease
         MemberService/ReleaseLease MemberService/RenewLease NodeService/RegisterNode NodeService/Session StateService/GetRevision
         StateService/Transact StateService/Txn",
    ),
    (
        Some(PersonRole::Viewer),
        Bound::Nothing,
        "BindService/GetBinderStatus ChangeService/ListChanges ChangeService/WatchChanges DispatchService/GetDispatcherStatus
         DispatchService/ListSchedulers IdentityService/CanI
         IdentityService/GetTrust IdentityService/IssueToken IdentityService/Join IdentityService/WhoAmI MemberService/ListMembers
         MemberService/WatchLeader NodeService/ListNodes QueueService/GetPriorityClass QueueService/GetQueue QueueService/ListPriorityClasses
         QueueService/ListQueues RescheduleService/GetRescheduleStatus SchedulerService/GetSchedulerStatus
         StateService/GetStoreStatus StateService/ListAgentReports YarnService/GetApplication YarnService/ListApplications
         YarnService/ListAttempts YarnService/ListContainers YarnService/ListYarnQueues",
    ),
    (
        Some(PersonRole::Viewer),
        Bound::Sight,
        "BudgetService/GetBudget BudgetService/ListBudgets DispatchService/GetDrain LogService/ReadLog NodeService/GetNode
         NodeService/ListRunUsage RescheduleService/GetMovement RescheduleService/ListMovements RescheduleService/ListPolicies
         ReservationService/GetReservation ReservationService/ListReservations UnitService/GetUnit UnitService/ListUnitHistory
         UnitService/ListUnits UnitService/WatchUnits",
    ),
    (Some(PersonRole::Viewer), Bound::Itself, "IdentityService/ListTokens IdentityService/RevokeToken"),
    (
        Some(PersonRole::User),
        Bound::Units,
        "RescheduleService/ReportCheckpoint SchedulerService/Plan UnitService/CancelUnit UnitService/DeleteUnit
         UnitService/ResumeUnit UnitService/RetryUnit UnitService/ScaleUnit UnitService/StopRunningUnits UnitService/SubmitUnit
         UnitService/SubmitUnits UnitService/SuspendUnit UnitService/UpdateUnit",
    ),
    (
        Some(PersonRole::Operator),
        Bound::Nothing,
        "DispatchService/ResumeEvictions DispatchService/SetPartitionMode DispatchService/SetPause NodeService/DeleteNode
         NodeService/DeregisterNode NodeService/GiveNotice NodeService/ListRunProcesses NodeService/UpdateNode
         RescheduleService/AbortMovement RescheduleService/MakeRoomFor RescheduleService/PlanPolicy RescheduleService/ReportTraffic
         RescheduleService/RunPolicy StateService/ListRecords StateService/Watch",
    ),
    (
        Some(PersonRole::User),
        Bound::Applications,
        "YarnService/Allocate YarnService/FinishMaster YarnService/KillApplication YarnService/MoveApplication
         YarnService/NewApplication YarnService/RegisterMaster YarnService/SubmitApplication YarnService/UpdateApplication",
    ),
    (
        Some(PersonRole::Admin),
        Bound::Nothing,
        "BudgetService/CreateBudget BudgetService/DeleteBudget BudgetService/UpdateBudget IdentityService/AllowName
         IdentityService/CreateJoinToken IdentityService/CreateToken IdentityService/DeleteJoinToken IdentityService/DeletePrincipal
         IdentityService/ListIdentities IdentityService/ListJoinTokens IdentityService/ListPrincipals IdentityService/RevokeIdentity
         IdentityService/RotateCa IdentityService/SetPrincipal QueueService/ApplyQueues QueueService/CreatePriorityClass
         QueueService/CreateQueue QueueService/DeletePriorityClass QueueService/DeleteQueue QueueService/UpdatePriorityClass
         QueueService/UpdateQueue ReservationService/CreateReservation ReservationService/DeleteReservation
         ReservationService/UpdateReservation StateService/ReadFloor StateService/ReadStore",
    ),
];

/// Pages by who may ask for them at least; `None`: everybody, without a token.
const PAGES: &[(&str, Option<PersonRole>)] = &[
    ("GET /healthz", None),
    ("GET /metrics", Some(PersonRole::Viewer)),
    ("POST /policies/{name}/run", Some(PersonRole::Operator)),
];

fn pool() -> DescriptorPool {
    DescriptorPool::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap()
}

/// All methods of the API, as reflection lists them: `UnitService/GetUnit` with its answer.
fn methods() -> BTreeMap<String, MessageDescriptor> {
    let named = |method: prost_reflect::MethodDescriptor| {
        (format!("{}/{}", method.parent_service().name(), method.name()), method.output())
    };
    pool().services().flat_map(|service| service.methods().map(named).collect::<Vec<_>>()).collect()
}

/// Who may at least call each method, and what binds.
pub(crate) fn expected() -> BTreeMap<String, Option<PersonRole>> {
    rows().into_iter().map(|(method, (least, _))| (method, least)).collect()
}

fn rows() -> BTreeMap<String, (Option<PersonRole>, Bound)> {
    let rows = EXPECTED.iter().flat_map(|(least, bound, methods)| {
        methods.split_whitespace().map(move |method| (method.to_owned(), (*least, *bound)))
    });
    let rows: Vec<_> = rows.collect();
    let n_rows = rows.len();
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(rows.len(), n_rows, "each method has one row");
    rows
}

#[test]
fn each_method_of_the_reflection_list_has_a_row() {
    let (listed, expected): (BTreeSet<_>, BTreeSet<_>) =
        (methods().into_keys().collect(), rows().into_keys().collect());
    assert_eq!(listed, expected, "say here who may call a new method");
    let served: BTreeSet<String> =
        NEEDS.iter().filter_map(|(path, _)| path.strip_prefix("/godel.v1.")).map(str::to_owned).collect();
    assert_eq!(served, expected, "and in core/identity/src/needs.rs");
    // The rest is gRPC's own.
    let others: Vec<_> = NEEDS.iter().filter(|(path, _)| !path.starts_with("/godel.v1.")).collect();
    for (path, needs) in &others {
        let is_known = path.starts_with("/grpc.health.v1.Health/") && *needs == Needs::Anyone
            || path.ends_with(".ServerReflection/ServerReflectionInfo") && *needs == Needs::Identified;
        assert!(is_known, "{path}");
    }
    assert_eq!(others.len(), 5);
}

#[test]
fn each_role_may_call_each_method_about_its_own_and_not_about_what_is_foreign() {
    let principal = |role| Principal {
        groups: vec!["etl".to_owned()],
        namespaces: vec!["team-a".to_owned()],
        queues: vec!["batch".to_owned()],
        ..Principal::new("ann", role)
    };
    let nothing = CallObject::default();
    let own = CallObject {
        namespace: Some("team-a"),
        queue: Some("batch.nightly"),
        node: Some("n1"),
        owner: Some("ann"),
    };
    let about = [
        ("nothing", nothing),
        ("own", own),
        // What is its own is seen there, and not changed.
        ("namespace", CallObject { namespace: Some("team-b"), ..own }),
        ("foreign", CallObject { namespace: Some("team-b"), owner: Some("bob"), ..own }),
        ("queue", CallObject { queue: Some("online"), ..own }),
        ("owner", CallObject { owner: Some("bob"), ..own }),
        ("group", CallObject { owner: Some("etl"), ..own }),
        // Nobody owns nodes.
        ("node", CallObject { node: Some("n2"), ..own }),
    ];
    for (method, (least, bound)) in rows() {
        let path = format!("/godel.v1.{method}");
        for role in PersonRole::ALL {
            for (what, object) in about {
                let is_role = least.is_some_and(|least| role >= least);
                let is_within = match (bound, role) {
                    (_, PersonRole::Admin) | (Bound::Nothing, _) => true,
                    (Bound::Units | Bound::Sight | Bound::Applications, PersonRole::Operator) => true,
                    (Bound::Units, _) => !matches!(what, "namespace" | "foreign" | "queue" | "owner"),
                    (Bound::Sight, _) => what != "foreign",
                    (Bound::Applications, _) => !matches!(what, "foreign" | "queue" | "owner"),
                    (Bound::Itself, _) => !matches!(what, "foreign" | "owner" | "group"),
                };
                let verdict = allow(&principal(role), &path, &object);
                let is_granted = verdict == Permission::Granted;
                assert_eq!(is_granted, is_role && is_within, "{role} {method} {what}: {verdict:?}");
            }
        }
    }
}

#[test]
fn each_page_has_a_row() {
    let least = |needs: &Needs| match needs {
        Needs::Anyone => None,
        needs => needs.of_persons().map(|(least, _)| least),
    };
    let listed: Vec<_> = HTTP_NEEDS.iter().map(|(page, needs)| (*page, least(needs))).collect();
    assert_eq!(listed, PAGES);
    for (page, least) in PAGES {
        for role in PersonRole::ALL {
            let is_granted =
                allow(&Principal::new("ann", role), page, &CallObject::default()) == Permission::Granted;
            assert_eq!(is_granted, least.is_none_or(|least| role >= least), "{role} {page}");
        }
    }
    // A page that nobody has thought of is the administrator's.
    for role in PersonRole::ALL {
        let verdict = allow(&Principal::new("ann", role), "POST /drop", &CallObject::default());
        assert_eq!(verdict == Permission::Granted, role == PersonRole::Admin);
    }
}

/// A name of a unit that nobody sees here.
const FOREIGN: &str = "foreign/secret";

/// Has an answer lose the names of units that are not in sight, as the service that answers does.
type Hide = fn(&[u8], &Sight) -> Vec<u8>;

fn hide<T: Message + Default + HideNames>(answer: &[u8], sight: &Sight) -> Vec<u8> {
    T::decode(answer).unwrap().within_sight(sight).encode_to_vec()
}

/// Answers that are all about units in sight or name units beside what they are about. Lists of records are answered record by record.
fn hiding() -> BTreeMap<&'static str, Hide> {
    let all: [(&str, Hide); 13] = [
        ("GetUnitResponse", hide::<v1::GetUnitResponse>),
        ("ListUnitsResponse", hide::<v1::ListUnitsResponse>),
        ("WatchUnitsResponse", |answer, sight| {
            let v1::WatchUnitsResponse { units, revision, deleted, store_id } =
                Message::decode(answer).unwrap();
            v1::WatchUnitsResponse { units: units.within_sight(sight), revision, deleted, store_id }
                .encode_to_vec()
        }),
        ("GetNodeResponse", hide::<v1::GetNodeResponse>),
        ("ListRunUsageResponse", hide::<v1::ListRunUsageResponse>),
        ("GetBudgetResponse", |answer, sight| {
            let v1::GetBudgetResponse { budget } = Message::decode(answer).unwrap();
            v1::GetBudgetResponse { budget: budget.within_sight(sight) }.encode_to_vec()
        }),
        ("ListBudgetsResponse", |answer, sight| {
            let answer: v1::ListBudgetsResponse = Message::decode(answer).unwrap();
            v1::ListBudgetsResponse { budgets: answer.budgets.within_sight(sight), ..answer }.encode_to_vec()
        }),
        ("GetReservationResponse", |answer, sight| {
            let v1::GetReservationResponse { reservation } = Message::decode(answer).unwrap();
            v1::GetReservationResponse { reservation: reservation.within_sight(sight) }.encode_to_vec()
        }),
        ("ListReservationsResponse", |answer, sight| {
            let answer: v1::ListReservationsResponse = Message::decode(answer).unwrap();
            let reservations = answer.reservations.within_sight(sight);
            v1::ListReservationsResponse { reservations, ..answer }.encode_to_vec()
        }),
        ("GetDrainResponse", hide::<v1::GetDrainResponse>),
        ("GetMovementResponse", |answer, sight| {
            let v1::GetMovementResponse { movement } = Message::decode(answer).unwrap();
            v1::GetMovementResponse { movement: movement.within_sight(sight) }.encode_to_vec()
        }),
        ("ListMovementsResponse", |answer, sight| {
            let answer: v1::ListMovementsResponse = Message::decode(answer).unwrap();
            let movements = answer.movements.within_sight(sight);
            v1::ListMovementsResponse { movements, ..answer }.encode_to_vec()
        }),
        ("ListPoliciesResponse", |answer, sight| {
            let v1::ListPoliciesResponse { policies } = Message::decode(answer).unwrap();
            v1::ListPoliciesResponse { policies: policies.within_sight(sight) }.encode_to_vec()
        }),
    ];
    BTreeMap::from(all)
}

/// Texts of answers that name no unit which the caller may not see, by message, and why.
const HARMLESS: &[(&str, &str)] = &[
    // A unit in sight as it was submitted, and where it is.
    (
        "units in sight",
        "ObjectMeta.name ObjectMeta.namespace ObjectMeta.uid ObjectMeta.labels ObjectMeta.owner UnitSpec.generate_name
         UnitSpec.priority_class UnitSpec.profile UnitSpec.queue UnitStatus.principal Unit.nodes Unit.scheduler Unit.sub_cluster
         TaskGroup.name RunSpec.command RunSpec.env RunSpec.image RunSpec.user RunSpec.working_directory RunningUnit.device_model
         RunningUnit.node RunningUnit.task_group Volume.name Volume.path Template.node_selector Toleration.key Toleration.value
         LabelExpression.key LabelExpression.values SpreadTerm.topology UnitTerm.topology UnitTopology.homogeneous
         UnitTopology.preferred UnitTopology.required Segments.within DeviceRequest.kind DeviceRequest.models DeviceTerms.link
         DeviceTerms.profile DeviceTerms.same_zone_as CompactedRuns.resource_seconds GetUnitResponse.next_page_token
         ListUnitsResponse.next_page_token ListUnitHistoryResponse.next_page_token UnitHistory.name UnitHistory.namespace
         UnitHistory.owner UnitHistory.queue UnitHistory.uid UnitHistory.resource_seconds DeletedUnit.name DeletedUnit.namespace
         DeletedUnit.uid ReadLogResponse.data ReadLogResponse.node",
    ),
    // What a caller has sent itself comes back.
    (
        "the caller's own",
        "SubmitUnitResponse.defaults SubmitUnitResponse.infeasible SubmitUnitResponse.name SubmitUnitResponse.uid
         SubmitUnitResponse.warnings SubmitError.message FieldViolation.description FieldViolation.field CanIResponse.method
         CanIResponse.principal CanIResponse.why WhoAmIResponse.caller WhoAmIResponse.cluster WhoAmIResponse.token_id
         IssueTokenResponse.person IssueTokenResponse.token PersonToken.principal PersonToken.token_id Principal.default_namespace
         Principal.groups Principal.name Principal.namespaces Principal.queues Principal.role",
    ),
    // A line of the change log is about namespaces of the caller, or about what the caller has named itself.
    (
        "the change log",
        "CallCause.address CallCause.method CallCause.namespace CallCause.objects CallCause.principal ChangeRecord.refused
         ListChangesResponse.next_page_token UnitHistory.principal",
    ),
    // Why a unit is refused names nodes, queues, labels and plugins: plugins know no names of units.
    ("reasons", "RefusalCount.plugin RefusalCount.reason Refusals.nearest_miss PlanResponse.nodes PlanResponse.why DrainBlock.reason
        MovementMove.detail MovementNumber.name"),
    // Movements are named after their policy and a number.
    (
        "movements",
        "Movement.name Movement.policy Movement.trigger MovementMove.actual_node MovementMove.from_node MovementMove.to_node
         Surge.movement ReschedulePolicy.checked_by ReschedulePolicy.kind ReschedulePolicy.last_movement ReschedulePolicy.name
         ReschedulePolicy.triggers GetRescheduleStatusResponse.config_faults GetRescheduleStatusResponse.movement
         ListMovementsResponse.next_page_token",
    ),
    // Nodes, their devices and their networks.
    (
        "nodes",
        "BandwidthCare.reason Device.kind Device.model DeviceDetails.link DeviceProfile.kind DeviceProfile.model DeviceProfile.name
         ListAgentReportsResponse.node ListNodesResponse.next_page_token ListRunUsageResponse.node NodeConflict.address
         NodeConflict.uid NodeNotice.reason NodeQuarantine.reason NodeReport.address NodeReport.attributes
         NodeReport.images_trouble NodeReport.trouble NodeSlots.reservation ReplicaVolumes.volumes Resources.amounts Taint.key
         Taint.value Zone.kind",
    ),
    // What administrators write for all to read.
    (
        "records of the cluster",
        "DisruptionBudget.description DisruptionBudget.name DisruptionBudget.namespace DisruptionBudget.selector
         ListBudgetsResponse.next_page_token ListPriorityClassesResponse.next_page_token
         ListQueuesResponse.next_page_token ListReservationsResponse.next_page_token Pause.reason Pause.scope Pause.sub_cluster_key
         PriorityClass.description PriorityClass.name Queue.owner_weights Queue.submit_owners Reservation.description
         Reservation.name Reservation.namespace Reservation.node_selector Reservation.selector ReservedPlace.node",
    ),
    // Members and the store.
    (
        "members",
        "GetBinderStatusResponse.rejected GetDispatcherStatusResponse.partition_reason GetDispatcherStatusResponse.phases
         GetSchedulerStatusResponse.name GetStoreStatusResponse.engine GetStoreStatusResponse.version
         GetStoreStatusResponse.waiting_for GetTrustResponse.fingerprints JoinResponse.pool Leaf.certificate Leaf.identity
         Member.address Member.holder Member.lease MemberStatus.counters MemberStatus.plain_text_addresses MemberStatus.version
         PersonKey.key_id PersonKey.public_key SchedulerStatus.address SchedulerStatus.name Standby.address Standby.holder
         TrustRoot.certificate TrustRoots.cluster TrustRoots.name WatchLeaderResponse.address",
    ),
    // YARN knows queues and users; its applications are seen by all who may call it.
    (
        "applications",
        "ListApplicationsResponse.next_page_token ListContainersResponse.next_page_token ListYarnQueuesResponse.next_page_token
         YarnAmount.others YarnApplicationStatus.application_id YarnApplicationStatus.attempt_id YarnApplicationStatus.diagnostics
         YarnApplicationStatus.kind YarnApplicationStatus.label YarnApplicationStatus.master_host YarnApplicationStatus.master_node
         YarnApplicationStatus.name YarnApplicationStatus.queue YarnApplicationStatus.tags YarnApplicationStatus.tracking_url
         YarnApplicationStatus.user YarnAttempt.attempt_id YarnAttempt.container_id YarnAttempt.diagnostics YarnAttempt.master_host
         YarnAttempt.node YarnAttempt.tracking_url YarnContainer.container_id YarnContainer.diagnostics YarnContainer.node
         YarnQueue.path YarnQueue.submit_owners",
    ),
    // A master calls about its own application.
    (
        "own applications",
        "AllocateResponse.preempted MoveApplicationResponse.queue NewApplicationResponse.application_id RegisterMasterResponse.queue
         YarnAllocatedContainer.container_id YarnAllocatedContainer.node YarnCompletedContainer.container_id",
    ),
];

/// Fills every text of a message and of those in it with the name of a foreign unit, and messages `depth` deep.
fn fill(message: &mut DynamicMessage, depth: usize) {
    let one = |kind: &Kind| match kind {
        Kind::String => Some(Value::String(FOREIGN.to_owned())),
        Kind::Bytes => Some(Value::Bytes(FOREIGN.as_bytes().to_vec().into())),
        Kind::Message(inner) if depth > 0 => {
            let mut filled = DynamicMessage::new(inner.clone());
            fill(&mut filled, depth - 1);
            Some(Value::Message(filled))
        }
        _ => None,
    };
    for field in message.descriptor().fields() {
        let whole = format!("{}.{}", message.descriptor().name(), field.name());
        let value = if field.is_map() {
            let Kind::Message(entry) = field.kind() else { continue };
            let key = match entry.map_entry_key_field().kind() {
                Kind::String => MapKey::String(FOREIGN.to_owned()),
                _ => MapKey::U64(1),
            };
            let kind = entry.map_entry_value_field().kind();
            let value = one(&kind).unwrap_or_else(|| Value::default_value(&kind));
            Value::Map([(key, value)].into())
        } else {
            let value = match whole.as_str() {
                // A move of a foreign unit is not shown at all.
                "MovementMove.unit" => Some(Value::String("team-a/web".to_owned())),
                "LastEviction.by" => Some(Value::String(format!("unit {FOREIGN}"))),
                _ => one(&field.kind()),
            };
            let Some(value) = value else { continue };
            if field.is_list() { Value::List(vec![value]) } else { value }
        };
        message.set_field(&field, value);
    }
}

/// Fields of a message, `Message.field`, that still have the name of the foreign unit.
fn naming(message: &DynamicMessage, found: &mut BTreeSet<String>) {
    fn names(value: &Value, found: &mut BTreeSet<String>) -> bool {
        match value {
            Value::String(text) => text.contains(FOREIGN),
            Value::Bytes(bytes) => bytes.as_ref() == FOREIGN.as_bytes(),
            Value::Message(inner) => {
                naming(inner, found);
                false
            }
            Value::List(values) => values.iter().filter(|one| names(one, found)).count() > 0,
            Value::Map(values) => values.iter().fold(false, |is_named, (key, one)| {
                matches!(key, MapKey::String(key) if key == FOREIGN) || names(one, found) || is_named
            }),
            _ => false,
        }
    }
    for (field, value) in message.fields() {
        if names(value, found) {
            found.insert(format!("{}.{}", message.descriptor().name(), field.name()));
        }
    }
}

#[test]
fn answers_name_no_unit_that_is_not_seen() {
    let harmless: Vec<&str> = HARMLESS.iter().flat_map(|(_, fields)| fields.split_whitespace()).collect();
    let mut is_needed: BTreeMap<&str, bool> = harmless.iter().map(|field| (*field, false)).collect();
    let (sight, hiding) = (Sight::of(["default".to_owned(), "team-a".to_owned()]), hiding());
    let mut unknown = BTreeSet::new();
    for (method, answer) in methods() {
        let (least, _) = rows()[&method];
        // Others see everything, and no person gets the answers to members.
        if least.is_none_or(|least| least > PersonRole::User) {
            continue;
        }
        let mut filled = DynamicMessage::new(answer.clone());
        fill(&mut filled, 12);
        let mut shown = filled.encode_to_vec();
        if let Some(hide) = hiding.get(answer.name()) {
            shown = hide(&shown, &sight);
            assert_ne!(shown, filled.encode_to_vec(), "{method} hides something");
            let all = hide(&filled.encode_to_vec(), &Sight::All);
            let is_whole = String::from_utf8_lossy(&all).matches(HIDDEN).count() == 0;
            assert!(is_whole, "{method} hides nothing from those who see all");
        }
        let shown = DynamicMessage::decode(answer, shown.as_slice()).unwrap();
        let mut found = BTreeSet::new();
        naming(&shown, &mut found);
        for field in found {
            match is_needed.get_mut(field.as_str()) {
                Some(is_needed) => *is_needed = true,
                None => {
                    unknown.insert(format!("{method}: {field}"));
                }
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "hide these in wire/src/hidden.rs, or say here why they name no unit: {unknown:#?}"
    );
    let superfluous: Vec<_> = is_needed.into_iter().filter(|(_, is_needed)| !is_needed).collect();
    assert!(superfluous.is_empty(), "no answer has these: {superfluous:?}");
}
