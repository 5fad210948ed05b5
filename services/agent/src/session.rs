//! What a node says on the wire, and how its session is opened.

use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use futures_util::Stream;
use godel_base::{quantity::MILLI_WHOLE, resources};
use godel_core_agent::{RunOrders, RunStatus, RunWeight, RunWork};
use godel_domain::{
    allocation::{Allocation, CoreSet, DeviceSet, GivenZones, ZoneSet},
    demand::Pool,
    node::Device,
    unit::RestartPolicy,
    zone,
};
use godel_kit::{
    client::Channel,
    message::{RECEIVED_BYTES_MAX, parts},
};
use godel_membership::agent_admission::{AssignmentRefusal, DeviceShares};
use godel_proto::{
    codec::SmallCodec,
    v1::{self, node_service_client::NodeServiceClient},
};
use godel_wire::{from_proto, ops::run_end_reason_to_proto};
use prost::Message as _;
use tonic::{
    GrpcMethod, IntoStreamingRequest as _, Response, Status as RpcStatus, Streaming,
    codegen::http::uri::PathAndQuery,
};

use crate::{
    bandwidth::BandwidthAsk,
    cgroup::GroupLimits,
    detect::CUDA,
    inventory::NodeDef,
    outbound::{self, Messages, Outbound},
    runtime::process::Program,
    volumes::Volume,
};

/// Messages of one node that wait for its stream.
const N_OUTBOUND_MAX: usize = 16;
/// An answer that takes longer is as good as none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A step towards an open session.
pub(crate) enum Progress {
    /// The node has its id and the epoch of its next session.
    Registered { node: usize, result: Result<v1::RegisterNodeResponse, RpcStatus> },
    /// The session's stream is open.
    Opened { node: usize, generation: u64, result: Result<Box<Inbound>, RpcStatus> },
}

pub(crate) type Step = Pin<Box<dyn Future<Output = Progress> + Send>>;

/// Calls state on one connection.
#[derive(Clone)]
pub(crate) struct Client(Channel);

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(channel)
    }

    fn nodes(self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.0).max_decoding_message_size(RECEIVED_BYTES_MAX)
    }

    /// As the generated client does it, but for the codec: a process may have thousands of sessions.
    async fn session(
        self,
        messages: Messages<v1::SessionRequest>,
    ) -> Result<Response<Streaming<v1::SessionResponse>>, RpcStatus> {
        let mut grpc = tonic::client::Grpc::new(self.0).max_decoding_message_size(RECEIVED_BYTES_MAX);
        grpc.ready().await.map_err(|error| RpcStatus::unavailable(error.to_string()))?;
        let mut request = messages.into_streaming_request();
        request.extensions_mut().insert(GrpcMethod::new("godel.v1.NodeService", "Session"));
        let path = PathAndQuery::from_static("/godel.v1.NodeService/Session");
        grpc.streaming(request, path, SmallCodec::default()).await
    }
}

/// Registers a node, which is reported so; `instance` is this start of the agent.
pub(crate) fn register(
    client: Client,
    node: usize,
    def: &NodeDef,
    report: v1::NodeReport,
    instance: u64,
) -> Step {
    let meta = v1::ObjectMeta { name: def.name.clone(), uid: def.uid.clone(), ..v1::ObjectMeta::default() };
    let report = Some(report);
    let request = v1::RegisterNodeRequest { meta: Some(meta), report, taints: Vec::new(), instance };
    Box::pin(async move {
        let result = in_time(client.nodes().register_node(request)).await.map(Response::into_inner);
        Progress::Registered { node, result }
    })
}

/// Opens a session; `open` is its first message, in as many parts as it needs. Returns where to send further
/// ones, and the step to wait for.
pub(crate) fn open(
    client: Client,
    node: usize,
    generation: u64,
    open: v1::SessionOpen,
) -> (Outbound<v1::SessionRequest>, Step) {
    let opens = opens(open);
    let (tx, rx) = outbound::queue(N_OUTBOUND_MAX.max(opens.len()));
    for open in opens {
        // It is empty and has room for all.
        tx.send(message(v1::session_request::Message::Open(open)));
    }
    let step = Box::pin(async move {
        let result = in_time(client.session(rx))
            .await
            .map(|response| Box::new(Inbound { node, generation, stream: Some(response.into_inner()) }));
        Progress::Opened { node, generation, result }
    });
    (tx, step)
}

/// The opening message in parts of bounded size; all but the last say that more follow.
fn opens(open: v1::SessionOpen) -> Vec<v1::SessionOpen> {
    let v1::SessionOpen { node_id, ref uid, epoch, store_id, instance, .. } = open;
    let part = |running| {
        let (uid, more) = (uid.clone(), true);
        v1::SessionOpen { node_id, uid, epoch, running, more, store_id, instance }
    };
    let mut opens: Vec<_> = parts(open.running).into_iter().map(part).collect();
    if opens.is_empty() {
        opens.push(part(Vec::new()));
    }
    if let Some(last) = opens.last_mut() {
        last.more = false;
    }
    opens
}

async fn in_time<T>(call: impl Future<Output = Result<T, RpcStatus>>) -> Result<T, RpcStatus> {
    tokio::time::timeout(ANSWER_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| Err(RpcStatus::deadline_exceeded("no answer in time")))
}

/// What state sends to one node; says so once when the stream is over.
pub(crate) struct Inbound {
    node: usize,
    generation: u64,
    stream: Option<Streaming<v1::SessionResponse>>,
}

/// Something arrived for a node; `None`: its stream is over.
pub(crate) struct Arrival {
    pub(crate) node: usize,
    pub(crate) generation: u64,
    pub(crate) message: Option<Result<v1::SessionResponse, RpcStatus>>,
}

impl Stream for Inbound {
    type Item = Arrival;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let (node, generation) = (self.node, self.generation);
        let Some(stream) = &mut self.stream else { return std::task::Poll::Ready(None) };
        Pin::new(stream).poll_next(cx).map(|message| {
            if !matches!(message, Some(Ok(_))) {
                self.stream = None;
            }
            Some(Arrival { node, generation, message })
        })
    }
}

pub(crate) fn message(message: v1::session_request::Message) -> v1::SessionRequest {
    v1::SessionRequest { message: Some(message) }
}

/// The replicas that an assignment is for.
pub(crate) fn ordinals(assignment: &v1::Assignment) -> impl Iterator<Item = u32> {
    std::iter::once(assignment.ordinal).chain(assignment.more_ordinals.iter().copied())
}

/// The thousandths that one of an assignment's replicas takes of each of its devices on a node that `has` these: of a device of
/// a kind that is not asked for, as much as of any.
fn device_shares(assignment: &v1::Assignment, has: &[Device]) -> DeviceShares {
    let requests = assignment.demand.as_ref().map_or(&[][..], |demand| &demand.devices);
    let milli = |request: &v1::DeviceRequest| request.milli_per_device.unwrap_or(MILLI_WHOLE);
    let devices = DeviceSet(assignment.device_mask);
    let (mut shares, mut left) = (DeviceShares::new(), devices);
    for request in requests {
        let is_own = |idx: &usize| has.get(*idx).is_some_and(|device| device.kind == request.kind);
        let own: DeviceSet = devices.iter().filter(is_own).collect();
        shares.push((own, milli(request)));
        left = left.minus(own);
    }
    shares.push((left, requests.iter().map(milli).max().unwrap_or(0)));
    shares.retain(|(devices, _)| !devices.is_empty());
    shares
}

/// What an assignment asks for of one of its replicas, on a node. `runs_programs`: on this node a command
/// is really run.
pub(crate) fn orders(
    assignment: &v1::Assignment,
    ordinal: u32,
    node: &NodeDef,
    runs_programs: bool,
) -> RunOrders<Program> {
    let requests = assignment.demand.as_ref().and_then(|demand| demand.requests.as_ref());
    let zones = GivenZones { zones: ZoneSet(assignment.zone_mask), cores: CoreSet(assignment.core_mask) };
    let allocation = Allocation { devices: DeviceSet(assignment.device_mask), zones };
    let amount = |name| requests.and_then(|requests| requests.amounts.get(name).copied()).unwrap_or(0);
    let awaited = assignment.run.as_ref().and_then(|run| run.await_command_ms);
    let has_program =
        |run: &&v1::RunSpec| awaited.is_some() || !(run.command.is_empty() && run.image.is_empty());
    let program = assignment.run.as_ref().filter(|run| runs_programs && has_program(run)).map(|run| {
        let own = own_assignment(assignment, ordinal);
        Box::new(Program {
            command: run.command.clone(),
            env: environment(&own, run, node, allocation),
            directory: Some(run.working_directory.clone()).filter(|directory| !directory.is_empty()),
            user: Some(run.user.clone()).filter(|user| !user.is_empty()),
            otherwise_user: None,
            owner: own.owner.clone(),
            owner_groups: own.owner_groups.clone(),
            umask: run.umask,
            image: Some(run.image.clone()).filter(|image| !image.is_empty()),
            gpus: if run.image.is_empty() { Vec::new() } else { cuda_gpus(node, allocation.devices) },
            volumes: run.volumes.iter().map(volume).collect(),
            unit_uid: own.unit_uid.clone(),
            principal: own.principal.clone(),
            limits: limits(assignment, zones, node),
            bandwidth: bandwidth(assignment, zones, node),
            stop_after_ms: assignment.stop_after_disconnect_ms,
            stop_grace_ms: run.stop_grace_ms,
            assignment: own.encode_to_vec(),
            launch: None,
        })
    });
    let work = if let Some(within_ms) = awaited {
        RunWork::Awaited { within_ms, program }
    } else if let Some(program) = program {
        RunWork::Program(program)
    } else {
        let run = assignment.run.as_ref();
        let duration_ms = run.and_then(|run| run.simulated_duration_ms);
        RunWork::Simulated { duration_ms, exit_code: run.map_or(0, |run| run.simulated_exit_code) }
    };
    RunOrders {
        weight: RunWeight {
            cpu_milli: amount(resources::CPU),
            memory: amount(resources::MEMORY),
            network: amount(resources::NETWORK),
        },
        // A pool that this agent does not know is no less than guaranteed.
        pool: from_proto::pool(assignment.pool).unwrap_or_default(),
        allocation,
        devices: device_shares(assignment, &node.devices),
        work,
        // State resolves it; a policy that this agent does not know restarts nothing.
        restart_policy: from_proto::restart_policy(assignment.restart_policy)
            .ok()
            .flatten()
            .unwrap_or(RestartPolicy::Never),
        max_restarts: assignment.max_restarts,
        restarts: assignment.restarts,
        stop_after_ms: assignment.stop_after_disconnect_ms,
        stop_grace_ms: assignment.run.as_ref().map_or(0, |run| run.stop_grace_ms),
    }
}

fn volume(v1::Volume { name, bytes, path }: &v1::Volume) -> Volume {
    Volume { name: name.clone(), bytes: *bytes, path: Some(path.clone()).filter(|path| !path.is_empty()) }
}

/// The assignment of one replica alone.
fn own_assignment(assignment: &v1::Assignment, ordinal: u32) -> v1::Assignment {
    let at = ordinals(assignment).position(|other| other == ordinal).unwrap_or(0);
    let ranks = assignment.ranks.get(at).copied().into_iter().collect();
    v1::Assignment { ordinal, more_ordinals: Vec::new(), ranks, ..assignment.clone() }
}

/// The environment of a command, but for what follows from its user.
fn environment(
    own: &v1::Assignment,
    run: &v1::RunSpec,
    node: &NodeDef,
    allocation: Allocation,
) -> BTreeMap<String, String> {
    let Allocation { devices, zones } = allocation;
    let list = |indices: Vec<String>| indices.join(",");
    let mut env = visible_gpus(node, devices);
    if let Some(visible) = env.get_mut(CUDA).filter(|_| !run.image.is_empty()) {
        // A container has its GPUs only, and counts them from 0.
        let n = cuda_gpus(node, devices).len();
        *visible = list((0..n).map(|at| at.to_string()).collect());
        if n == 0 {
            // Many images ask for all GPUs, and get them where NVIDIA's runtime is the engine's default.
            env.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
        }
    }
    env.extend(run.env.clone());
    let mut set = |name: &str, value: String| env.insert(format!("GODEL_{name}"), value);
    set("UNIT", own.unit_name.clone());
    set("UID", own.unit_uid.clone());
    set("TASK_GROUP", own.task_group.clone());
    set("ORDINAL", own.ordinal.to_string());
    set("RANK", own.ranks.first().unwrap_or(&own.ordinal).to_string());
    // A state of an earlier version does not say it.
    set("WORLD_SIZE", own.replicas.max(1).to_string());
    set("INCARNATION", own.incarnation.to_string());
    set("NODE", node.name.clone());
    set("NODE_UID", node.uid.clone());
    if !own.peers.is_empty() {
        set("PEERS", own.peers.clone());
    }
    if !own.peers_missing.is_empty() {
        set("PEERS_MISSING", own.peers_missing.clone());
    }
    set("DEVICES", list(devices.iter().map(|idx| idx.to_string()).collect()));
    if !zones.is_empty() {
        set("ZONES", list(zones.zones.iter().map(|idx| idx.to_string()).collect()));
        set("CPUS", zone::show_cpus(&zone::cpus_of(&node.zones, zones)));
    }
    env
}

/// NVIDIA's GPUs among devices of a node, by number.
fn cuda_gpus(node: &NodeDef, devices: DeviceSet) -> Vec<u32> {
    let visible = devices.iter().filter_map(|idx| node.visible.get(&idx));
    visible.filter(|(variable, _)| *variable == CUDA).map(|(_, number)| *number).collect()
}

/// Tells the libraries of GPUs which ones a command may see, on a node that has some: none, if it was given none.
fn visible_gpus(node: &NodeDef, devices: DeviceSet) -> BTreeMap<String, String> {
    let mut numbers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (idx, (variable, number)) in &node.visible {
        let own = numbers.entry(variable).or_default();
        if devices.iter().any(|device| device == *idx) {
            own.push(number.to_string());
        }
    }
    let mut env: BTreeMap<String, String> =
        numbers.iter().map(|(variable, own)| ((*variable).to_owned(), own.join(","))).collect();
    if numbers.contains_key(CUDA) {
        // As the devices of a node are counted; CUDA would put the fastest first otherwise.
        env.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
    }
    env
}

/// What a running unit asks for of bandwidths.
fn bandwidth(assignment: &v1::Assignment, zones: GivenZones, node: &NodeDef) -> BandwidthAsk {
    let requests = assignment.demand.as_ref().and_then(|demand| demand.requests.as_ref());
    let amount = |name| {
        let amount = requests.and_then(|requests| requests.amounts.get(name).copied());
        amount.filter(|amount| *amount > 0)
    };
    BandwidthAsk {
        network: amount(resources::NETWORK),
        memory: amount(resources::MEMORY_BANDWIDTH),
        cpus: zone::cpus_of(&node.zones, zones),
        is_best_effort: from_proto::pool(assignment.pool).unwrap_or_default() == Pool::BestEffort,
    }
}

/// What a running unit may use of its node: what it asks for, on the CPUs and from the memory of its zones. A best-effort one has
/// the lowest weight and no limit, and gives memory back first above what it asks for.
fn limits(assignment: &v1::Assignment, zones: GivenZones, node: &NodeDef) -> GroupLimits {
    let demand = assignment.demand.as_ref();
    let requests = demand.and_then(|demand| demand.requests.as_ref());
    let amount = |name| {
        let amount = requests.and_then(|requests| requests.amounts.get(name).copied());
        amount.filter(|amount| *amount > 0)
    };
    let (cpu, memory) = (amount(resources::CPU), amount(resources::MEMORY));
    match from_proto::pool(assignment.pool).unwrap_or_default() {
        Pool::BestEffort => GroupLimits { memory_soft: memory, ..GroupLimits::default() },
        Pool::Guaranteed => {
            let mode = demand.and_then(|demand| demand.zones.as_ref()).map(v1::ZoneRequest::cpu_mode);
            // What has its CPUs to itself takes nothing from others: a limit would only make it wait.
            let cpu_milli = cpu.filter(|_| mode != Some(v1::CpuMode::Dedicated));
            GroupLimits {
                cpu_milli,
                cpu_weight_milli: cpu.unwrap_or(0),
                memory,
                memory_soft: None,
                cpus: zone::cpus_of(&node.zones, zones),
                memory_nodes: zones
                    .zones
                    .iter()
                    .filter_map(|at| node.memory_nodes.get(&at).copied())
                    .collect(),
            }
        }
    }
}

/// A status on the wire.
pub(crate) fn run_status(status: &RunStatus) -> v1::RunStatus {
    v1::RunStatus {
        unit_id: status.key.unit,
        ordinal: status.key.ordinal,
        incarnation: status.incarnation,
        phase: godel_wire::to_proto::phase(status.phase).into(),
        exit_code: status.exit_code,
        restarts: status.restarts,
        reason: run_end_reason_to_proto(status.end.reason).into(),
        started_time_ms: status.end.started_ms,
        ended_time_ms: status.end.ended_ms,
        refused: refused(status.refused).into(),
    }
}

fn refused(refusal: Option<AssignmentRefusal>) -> v1::AssignmentRefusal {
    match refusal {
        None => v1::AssignmentRefusal::Unspecified,
        Some(AssignmentRefusal::Room) => v1::AssignmentRefusal::Room,
        Some(AssignmentRefusal::Devices) => v1::AssignmentRefusal::Devices,
        Some(AssignmentRefusal::Zones) => v1::AssignmentRefusal::Zones,
        Some(AssignmentRefusal::Told) => v1::AssignmentRefusal::Told,
        Some(AssignmentRefusal::Disk) => v1::AssignmentRefusal::Disk,
        Some(AssignmentRefusal::Engine) => v1::AssignmentRefusal::Engine,
        Some(AssignmentRefusal::Keeper) => v1::AssignmentRefusal::Keeper,
        Some(AssignmentRefusal::Lacks) => v1::AssignmentRefusal::Lacks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godel_kit::message::MESSAGE_BYTES_MAX;

    #[test]
    fn an_opening_goes_in_parts_of_bounded_size() {
        let status = v1::RunStatus {
            unit_id: u64::MAX,
            ordinal: u32::MAX,
            incarnation: u32::MAX,
            phase: 6,
            exit_code: -1,
            restarts: u32::MAX,
            reason: 14,
            started_time_ms: i64::MAX,
            ended_time_ms: i64::MAX,
            refused: 3,
        };
        for (n_running, n_parts) in [(0, 1), (1, 1), (40_000, 6)] {
            let running = vec![status; n_running];
            let opens = opens(v1::SessionOpen { node_id: 7, running, ..v1::SessionOpen::default() });
            assert_eq!(opens.len(), n_parts);
            assert_eq!(opens.iter().map(|open| open.running.len()).sum::<usize>(), n_running);
            assert!(opens.iter().all(|open| open.node_id == 7 && open.encoded_len() <= MESSAGE_BYTES_MAX));
            let (last, others) = opens.split_last().unwrap();
            assert!(!last.more && others.iter().all(|open| open.more));
        }
    }

    #[test]
    fn a_command_is_told_who_and_where_it_is() {
        let mut node = crate::inventory::parse_shape("1x cpu=8,memory=8Gi,gpu=3:A10").unwrap().remove(0);
        (node.name, node.uid) = ("n-1".to_owned(), "u-node".to_owned());
        node.visible = BTreeMap::from([(0, (CUDA, 0)), (2, (CUDA, 1)), (1, ("ROCR_VISIBLE_DEVICES", 0))]);
        let env = [("MODE", "live"), ("GODEL_NODE", "mine")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let run = v1::RunSpec { command: vec!["a".to_owned()], env: env.into(), ..v1::RunSpec::default() };
        let assignment = v1::Assignment {
            unit_name: "default/ring".to_owned(),
            unit_uid: "u-1".to_owned(),
            task_group: "main".to_owned(),
            ordinal: 4,
            more_ordinals: vec![7, 9],
            ranks: vec![1, 2, 3],
            replicas: 5,
            incarnation: 6,
            device_mask: 0b101,
            run: Some(run),
            ..v1::Assignment::default()
        };
        let orders = orders(&assignment, 7, &node, true);
        let RunWork::Program(program) = orders.work else { panic!("{:?}", orders.work) };
        let shown: Vec<String> = program.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES=0,1",
            "GODEL_DEVICES=0,2",
            "GODEL_INCARNATION=6",
            "GODEL_NODE=n-1",
            "GODEL_NODE_UID=u-node",
            "GODEL_ORDINAL=7",
            "GODEL_RANK=2",
            "GODEL_TASK_GROUP=main",
            "GODEL_UID=u-1",
            "GODEL_UNIT=default/ring",
            "GODEL_WORLD_SIZE=5",
            "MODE=live",
            "ROCR_VISIBLE_DEVICES=",
        ];
        assert_eq!(shown, expected);
        // The agent that comes later finds the same in what is kept of it.
        let kept = v1::Assignment::decode(&program.assignment[..]).unwrap();
        assert_eq!((kept.ordinal, kept.more_ordinals.len(), &kept.ranks[..]), (7, 0, &[2][..]));
        let RunWork::Program(again) = super::orders(&kept, 7, &node, true).work else { unreachable!() };
        // Encoded anew the environment may have another order.
        let without_assignment = |program: &Program| Program { assignment: Vec::new(), ..program.clone() };
        assert_eq!(without_assignment(&again), without_assignment(&program));
        // A unit that says itself which GPUs it may see, and one without ranks.
        let own = v1::RunSpec {
            command: vec!["a".to_owned()],
            env: std::iter::once((CUDA.to_owned(), "all".to_owned())).collect(),
            ..v1::RunSpec::default()
        };
        let assignment = v1::Assignment { run: Some(own), ranks: Vec::new(), ..assignment };
        let RunWork::Program(program) = super::orders(&assignment, 9, &node, true).work else {
            unreachable!()
        };
        assert_eq!((program.env[CUDA].as_str(), program.env["GODEL_RANK"].as_str()), ("all", "9"));
    }

    #[test]
    fn a_container_counts_the_gpus_that_it_is_given() {
        let mut node = crate::inventory::parse_shape("1x cpu=8,memory=8Gi,gpu=3:A10").unwrap().remove(0);
        node.visible = BTreeMap::from([(0, (CUDA, 0)), (1, (CUDA, 1)), (2, (CUDA, 2))]);
        let program = |device_mask, runs_programs| {
            let run = Some(v1::RunSpec { image: "web:1".to_owned(), ..v1::RunSpec::default() });
            let assignment = v1::Assignment { run, device_mask, ..v1::Assignment::default() };
            match super::orders(&assignment, 0, &node, runs_programs).work {
                RunWork::Program(program) => Some(program),
                RunWork::Simulated { .. } | RunWork::Awaited { .. } => None,
            }
        };
        let given = program(0b110, true).unwrap();
        assert_eq!((given.image.as_deref(), &given.gpus[..]), (Some("web:1"), &[1, 2][..]));
        assert_eq!(
            (given.env[CUDA].as_str(), given.env.contains_key("NVIDIA_VISIBLE_DEVICES")),
            ("0,1", false)
        );
        let none = program(0, true).unwrap();
        assert_eq!(
            (none.env[CUDA].as_str(), none.env["NVIDIA_VISIBLE_DEVICES"].as_str(), none.gpus.len()),
            ("", "void", 0)
        );
        assert!(program(0, false).is_none(), "a simulated node simulates it");
    }

    #[test]
    fn limits_follow_from_the_demand_the_pool_and_the_zones() {
        let mut node =
            crate::inventory::parse_shape("1x cpu=8,memory=8Gi,numa=2,threads=2").unwrap().remove(0);
        node.memory_nodes = BTreeMap::from([(1, 0), (2, 1)]);
        let amounts = [(resources::CPU.to_owned(), 2_000), (resources::MEMORY.to_owned(), 1 << 30)];
        let limits = |pool: v1::Pool, mode: Option<v1::CpuMode>, (zones, cores): (u64, u64)| {
            let zone_request =
                mode.map(|mode| v1::ZoneRequest { cpu_mode: mode.into(), ..Default::default() });
            let requests = Some(v1::Resources { amounts: amounts.clone().into() });
            let demand = Some(v1::Demand { requests, zones: zone_request, ..v1::Demand::default() });
            let assignment = v1::Assignment { demand, pool: pool.into(), ..v1::Assignment::default() };
            super::limits(&assignment, GivenZones { zones: ZoneSet(zones), cores: CoreSet(cores) }, &node)
        };
        let plain = GroupLimits {
            cpu_milli: Some(2_000),
            cpu_weight_milli: 2_000,
            memory: Some(1 << 30),
            ..GroupLimits::default()
        };
        assert_eq!(limits(v1::Pool::Guaranteed, None, (0, 0)), plain);
        let in_zone = GroupLimits { cpus: vec![2, 3, 6, 7], memory_nodes: vec![1], ..plain.clone() };
        assert_eq!(limits(v1::Pool::Guaranteed, Some(v1::CpuMode::Shared), (0b100, 0)), in_zone);
        let own = GroupLimits { cpu_milli: None, cpus: vec![0, 4], memory_nodes: vec![0], ..plain };
        assert_eq!(limits(v1::Pool::Guaranteed, Some(v1::CpuMode::Dedicated), (0b10, 0b1)), own);
        let best_effort = GroupLimits { memory_soft: Some(1 << 30), ..GroupLimits::default() };
        assert_eq!(limits(v1::Pool::BestEffort, None, (0, 0)), best_effort);
    }
}
