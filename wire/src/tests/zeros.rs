//! A zero that is written is never taken for a field that is left out: every number of what clients write is `optional`, or
//! says in [`ZEROS`] what its zero means.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use prost_types::{
    DescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// Services that clients write to.
const SERVICES: [&str; 6] = [
    "UnitService",
    "QueueService",
    "BudgetService",
    "ReservationService",
    "YarnService",
    "RescheduleService",
];

/// Numbers without presence, and what 0 is. A new one has to be `optional`, or to be added here with its reason.
const ZEROS: &[(&str, &str)] = &[
    ("DeviceRequest.count", "refused"),
    ("DeviceTerms.gbps", "asks for nothing, as its comment says"),
    ("DeviceTerms.memory", "asks for nothing, as its comment says"),
    ("GetUnitRequest.page_size", "means 1,000, as its comment says"),
    ("HostPort.port", "refused"),
    ("ListApplicationsRequest.page_size", "means 500, as its comment says"),
    ("ListBudgetsRequest.page_size", "means 500, as its comment says"),
    ("ListContainersRequest.page_size", "means 500, as its comment says"),
    ("ListMovementsRequest.page_size", "means 100, as its comment says"),
    ("ListPriorityClassesRequest.page_size", "means 500, as its comment says"),
    ("ListQueuesRequest.page_size", "means 500, as its comment says"),
    ("ListReservationsRequest.page_size", "means 500, as its comment says"),
    ("ListUnitHistoryRequest.page_size", "means 500, as its comment says"),
    ("ListUnitHistoryRequest.since_ms", "means whenever, as its comment says"),
    ("ListUnitsRequest.page_size", "means 500, as its comment says"),
    ("ListYarnQueuesRequest.page_size", "means 500, as its comment says"),
    ("ObjectMeta.create_revision", "output only"),
    ("ObjectMeta.create_time_ms", "output only"),
    ("ObjectMeta.revision", "output only"),
    ("PreferredNodes.weight", "refused"),
    ("PriorityClass.value", "is the priority 0"),
    ("Reservation.slots", "holds nothing"),
    ("RunSpec.eviction_notice_ms", "gives no notice"),
    ("RunSpec.simulated_exit_code", "is the exit code 0"),
    ("RunSpec.stop_grace_ms", "forces the end at once"),
    ("ScaleUnitRequest.replicas", "leaves none, refused for the only group, but of a service"),
    ("Segments.size", "refused"),
    ("SpreadTerm.weight", "makes the term required, which is the default"),
    ("SubmitUnitsRequest.index", "is the first item"),
    ("TaskGroup.replicas", "refused, but of a service and of one of several groups"),
    ("TaskGroupSize.replicas", "leaves none, refused unless others have some, but of a service"),
    ("UnitSpec.max_surge", "lets no replacement start first, which is the default"),
    ("UnitSpec.min_run_ms", "leaves nothing alone, which is the default"),
    ("UnitTraffic.weight", "forgets the pair, as its comment says"),
    ("UnitTerm.weight", "makes the term required, which is the default"),
    ("Volume.bytes", "refused"),
    ("WatchUnitsRequest.from_revision", "is the present state first"),
    ("WatchUnitsRequest.store_id", "means whichever store is there, as its comment says"),
    ("YarnAmount.memory_mb", "asks for no memory, refused if nothing else is asked for"),
    ("YarnAmount.vcores", "asks for no CPU, refused if nothing else is asked for"),
];
/// Revisions begin with 1: 0 is none, whatever the request.
const NO_REVISION: &str = "expected_revision";

#[test]
fn every_number_of_a_request_knows_its_zero() {
    let set = FileDescriptorSet::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut messages: BTreeMap<String, &DescriptorProto> = BTreeMap::new();
    for file in set.file.iter().filter(|file| file.package() == "godel.v1") {
        let named = |message| (format!(".godel.v1.{}", DescriptorProto::name(message)), message);
        messages.extend(file.message_type.iter().map(named));
    }
    let services = set.file.iter().flat_map(|file| &file.service);
    let mut todo: Vec<String> = services
        .filter(|service| SERVICES.contains(&service.name()))
        .flat_map(|service| service.method.iter().map(|method| method.input_type().to_owned()))
        .collect();
    assert!(todo.len() > 25, "{todo:?}");
    let (mut seen, mut without, mut n_optional) = (BTreeSet::new(), BTreeSet::new(), 0);
    while let Some(name) = todo.pop() {
        // Maps have entries of their own, which are none of ours.
        let Some(message) = messages.get(&name).filter(|_| seen.insert(name.clone())) else { continue };
        for field in &message.field {
            match field.r#type() {
                Type::Message => todo.push(field.type_name().to_owned()),
                Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 | Type::Float | Type::Double => {
                    if field.oneof_index.is_some() {
                        n_optional += 1;
                    } else if field.label() != Label::Repeated && field.name() != NO_REVISION {
                        without.insert(format!("{}.{}", message.name(), field.name()));
                    }
                }
                _ => {}
            }
        }
    }
    assert!(n_optional >= 12, "{n_optional} optional numbers");
    let known: BTreeSet<String> = ZEROS.iter().map(|(field, _)| (*field).to_owned()).collect();
    let unknown: Vec<&String> = without.difference(&known).collect();
    assert!(unknown.is_empty(), "make these `optional`, or say in ZEROS what 0 means: {unknown:?}");
    let gone: Vec<&String> = known.difference(&without).collect();
    assert!(gone.is_empty(), "these are no such fields any more: {gone:?}");
}
