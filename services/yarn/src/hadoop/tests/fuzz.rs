//! Any request to any method of the faces is answered, and the face goes on.

use bytes::{Buf, BufMut};
use godel_hadoop::yarn::{
    AllocateRequestProto, ContainerIdProto, ResourceBlacklistRequestProto, ResourceRequestProto,
};
use proptest::{prelude::*, sample::select, test_runner::TestRunner};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType},
};

use super::*;

/// A message of any bytes.
#[derive(Debug, Default)]
struct Raw(Vec<u8>);

impl Message for Raw {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

// Every method of Hadoop 3.3.
const OF_CLIENTS: [&str; 35] = [
    "getNewApplication",
    "getApplicationReport",
    "submitApplication",
    "failApplicationAttempt",
    "forceKillApplication",
    "getClusterMetrics",
    "getApplications",
    "getClusterNodes",
    "getQueueInfo",
    "getQueueUserAcls",
    "getDelegationToken",
    "renewDelegationToken",
    "cancelDelegationToken",
    "moveApplicationAcrossQueues",
    "getApplicationAttemptReport",
    "getApplicationAttempts",
    "getContainerReport",
    "getContainers",
    "getNewReservation",
    "submitReservation",
    "updateReservation",
    "deleteReservation",
    "listReservations",
    "getNodeToLabels",
    "getLabelsToNodes",
    "getClusterNodeLabels",
    "updateApplicationPriority",
    "signalToContainer",
    "updateApplicationTimeouts",
    "getResourceProfiles",
    "getResourceProfile",
    "getResourceTypeInfo",
    "getClusterNodeAttributes",
    "getAttributesToNodes",
    "getNodesToAttributes",
];
const OF_MASTERS: [&str; 3] = ["registerApplicationMaster", "finishApplicationMaster", "allocate"];
const OF_ADMINS: [&str; 15] = [
    "refreshQueues",
    "refreshNodes",
    "refreshSuperUserGroupsConfiguration",
    "refreshUserToGroupsMappings",
    "refreshAdminAcls",
    "refreshServiceAcls",
    "getGroupsForUser",
    "updateNodeResource",
    "refreshNodesResources",
    "addToClusterNodeLabels",
    "removeFromClusterNodeLabels",
    "replaceLabelsOnNodes",
    "checkForDecommissioningNodes",
    "refreshClusterMaxPriority",
    "mapAttributesToNodes",
];
const OF_AVAILABILITY: [&str; 5] = [
    "monitorHealth",
    "transitionToActive",
    "transitionToStandby",
    "transitionToObserver",
    "getServiceStatus",
];

/// Any bytes, or a message with some fields of any bytes: the wire format lets most of them through.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let varint = (1u32..20, any::<u64>()).prop_map(|(tag, value)| {
        let mut field = Vec::new();
        prost::encoding::uint64::encode(tag, &value, &mut field);
        field
    });
    let leaf = prop_oneof![varint, prop::collection::vec(any::<u8>(), 0..24)];
    leaf.prop_recursive(4, 64, 6, |inner| {
        (1u32..20, prop::collection::vec(inner, 0..5)).prop_map(|(tag, fields)| {
            let mut field = Vec::new();
            prost::encoding::bytes::encode(tag, &fields.concat(), &mut field);
            field
        })
    })
}

async fn call(client: &mut Client, method: &str, bytes: Vec<u8>) -> Result<(), TestCaseError> {
    match client.call::<Raw, Raw>(method, &Raw(bytes)).await {
        Err(CallError::Refused(exception)) if exception.class.ends_with("NoSuchMethodException") => {
            Err(TestCaseError::fail(exception.message))
        }
        Ok(_) | Err(CallError::Refused(_)) => Ok(()),
        Err(other) => Err(TestCaseError::fail(format!("{method}: {other}"))),
    }
}

#[test]
fn any_request_is_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (rig, token) = runtime.block_on(async {
        let rig = Rig::new(FaceSettings::default()).await;
        let (_, token) = unmanaged(&rig).await;
        (rig, token)
    });
    let (mut client, mut master) =
        runtime.block_on(async { (rig.client("anna").await, rig.master(&token).await) });
    let (mut admin, mut availability) =
        runtime.block_on(async { (rig.admin(ADMIN).await, rig.admin(AVAILABILITY).await) });
    let all: Vec<(usize, &str)> = [&OF_CLIENTS[..], &OF_MASTERS[..], &OF_ADMINS[..], &OF_AVAILABILITY[..]]
        .into_iter()
        .enumerate()
        .flat_map(|(face, methods)| methods.iter().map(move |method| (face, *method)))
        .collect();
    let clients = std::cell::RefCell::new([&mut client, &mut master, &mut admin, &mut availability]);
    for (face, method) in &all {
        runtime.block_on(call(clients.borrow_mut()[*face], method, Vec::new())).unwrap();
    }
    let mut runner = TestRunner::new(ProptestConfig { cases: 3_000, ..ProptestConfig::default() });
    let tried = runner.run(&(select(all), request()), |((face, method), bytes)| {
        runtime.block_on(call(clients.borrow_mut()[face], method, bytes))
    });
    tried.unwrap();
}

fn container_id() -> impl Strategy<Value = ContainerIdProto> {
    prop::collection::vec(any::<u8>(), 0..32)
        .prop_map(|bytes| ContainerIdProto::decode(&bytes[..]).unwrap_or_default())
}

fn row() -> impl Strategy<Value = ResourceRequestProto> {
    (
        any::<Option<i64>>(),
        any::<Option<i32>>(),
        any::<Option<i32>>(),
        any::<Option<String>>(),
        any::<Option<i64>>(),
    )
        .prop_map(|(memory, virtual_cores, num_containers, resource_name, allocation_request_id)| {
            ResourceRequestProto {
                capability: memory.map(|memory| ResourceProto {
                    memory: Some(memory),
                    virtual_cores,
                    resource_value_map: Vec::new(),
                }),
                num_containers,
                resource_name,
                allocation_request_id,
                ..ResourceRequestProto::default()
            }
        })
}

proptest! {
    #[test]
    fn any_call_of_allocate_is_read_or_refused(
        ask in prop::collection::vec(row(), 0..4),
        release in prop::collection::vec(container_id(), 0..4),
        names: Vec<String>,
        progress: Option<f32>,
        response_id: Option<i32>,
    ) {
        let blacklist = ResourceBlacklistRequestProto {
            blacklist_additions: names,
            ..ResourceBlacklistRequestProto::default()
        };
        let request = AllocateRequestProto {
            ask,
            release,
            blacklist_request: Some(blacklist),
            progress,
            response_id,
            ..AllocateRequestProto::default()
        };
        let application = godel_core_yarn::ids::YarnApplicationId { cluster_timestamp: 9, number: 1 };
        let amount = |memory_mb, vcores| crate::tests::samples::amount(memory_mb, vcores);
        let bounds = || Ok((amount(1_024, 1), amount(8_192, 4)));
        let attempt = YarnAttemptId { application, number: 1 };
        if let Ok(asked) = super::super::asks::read(request, attempt, &bounds) {
            prop_assert!((0.0..=1.0).contains(&asked.progress));
            for row in asked.call.asks {
                let memory = row.key.group.capability["memory"];
                prop_assert!(memory > 0 && memory <= 8_192 << 20 && row.key.group.capability["cpu"] >= 1_000);
            }
        }
    }
}
