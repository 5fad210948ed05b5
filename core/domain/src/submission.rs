//! Units as clients write them: lenient, so that admission can name every wrong field at once.

use std::collections::BTreeMap;

use crate::{
    demand::{DeviceTerms, Pool},
    label_expression::LabelOperator,
    node::TaintEffect,
    node_load::MaxLoad,
    unit::{OnBelowMin, OnEviction, OnFailure, RestartPolicy, RunSpec, WorkloadClass},
    unit_topology::UnitTopology,
    zone::ZonePolicy,
};

/// An enumeration as a client wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Given<T> {
    /// Not written.
    #[default]
    Absent,
    /// One of ours.
    Value(T),
    /// A number that stands for nothing.
    Unknown(i32),
}

/// A unit as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// Bytes on the wire.
    pub encoded_len: usize,
    /// Empty: `default`.
    pub namespace: String,
    /// Required, unless `generate_name` is given.
    pub name: String,
    /// Beginning of the name, which ends as the uid says.
    pub generate_name: String,
    /// A UUID; required here (the service makes one up when the client gave none).
    pub uid: String,
    /// For selection.
    pub labels: BTreeMap<String, String>,
    /// Free text.
    pub owner: String,
    /// Absent: batch.
    pub class: Given<WorkloadClass>,
    /// At least one.
    pub task_groups: Vec<GroupSubmission>,
    /// `None`: the default of the class.
    pub min_member: Option<u32>,
    /// Empty: `default`.
    pub queue: String,
    /// `None`: that of the priority class, or the default of the workload class.
    pub priority: Option<i32>,
    /// Empty: none.
    pub priority_class: String,
    /// Absent: the default of the class.
    pub pool: Given<Pool>,
    /// Absent: the default of the class.
    pub restart_policy: Given<RestartPolicy>,
    /// Empty: that of the sub-cluster or class.
    pub profile: String,
    /// `None`: one hour.
    pub ttl_after_finished_ms: Option<u64>,
    /// `None`: three.
    pub max_restarts: Option<u32>,
    /// Absent: requeue.
    pub on_eviction: Given<OnEviction>,
    /// Absent: keep.
    pub on_below_min: Given<OnBelowMin>,
    /// Absent: the default of the class.
    pub on_failure: Given<OnFailure>,
    /// `None`: the default of the class.
    pub preemptible: Option<bool>,
    /// 0: they are not left alone at all.
    pub min_run_ms: u64,
    /// `None`: five minutes.
    pub scheduling_timeout_ms: Option<u64>,
    /// `None`: none.
    pub active_deadline_ms: Option<u64>,
    /// Where its replicas go in relation to running units.
    pub affinity: UnitAffinitySubmission,
    /// Where running units go in relation to one another.
    pub topology: UnitTopology,
    /// 0: no replacement starts first.
    pub max_surge: u32,
    /// `None`: where its running units may be preempted.
    pub movable: Option<bool>,
}

/// A task group as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSubmission {
    /// Empty: `main`.
    pub name: String,
    /// At least 1.
    pub replicas: u32,
    /// `None`: no minimum of its own, or all replicas where another group has one and the class binds all at once.
    pub min_member: Option<u32>,
    /// Where its replicas go in relation to one another; `None`: it says nothing.
    pub topology: Option<Box<UnitTopology>>,
    /// By name, in any order.
    pub requests: Vec<(String, i64)>,
    /// Each kind at most once.
    pub devices: Vec<DeviceSubmission>,
    /// Ports of the node, each with the number of its protocol.
    pub host_ports: Vec<(u32, i32)>,
    /// What it asks of zones.
    pub zones: ZoneSubmission,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints accepted.
    pub tolerations: Vec<TolerationSubmission>,
    /// Which nodes a replica may have and which it prefers.
    pub node_affinity: NodeAffinitySubmission,
    /// How much of a node may be used already.
    pub max_load: MaxLoad,
    /// What the agent runs.
    pub run: RunSpec,
}

/// Which nodes a replica may have and which it prefers, as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAffinitySubmission {
    /// One of these terms is met.
    pub required: Vec<Vec<ExpressionSubmission>>,
    /// Weight and term.
    pub preferred: Vec<(u32, Vec<ExpressionSubmission>)>,
}

/// Where replicas go in relation to running units, as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitAffinitySubmission {
    /// Beside these units.
    pub near: Vec<UnitTermSubmission>,
    /// Apart from these units.
    pub apart: Vec<UnitTermSubmission>,
    /// Evenly over domains.
    pub spread: Vec<SpreadSubmission>,
}

/// Some units, and how near is near, as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitTermSubmission {
    /// None: the unit itself.
    pub units: Vec<ExpressionSubmission>,
    /// Required.
    pub topology: String,
    /// 0: the term is required.
    pub weight: u32,
}

/// How evenly running units are spread, as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpreadSubmission {
    /// None: the unit itself.
    pub units: Vec<ExpressionSubmission>,
    /// Required.
    pub topology: String,
    /// `None`: 1.
    pub max_skew: Option<u32>,
    /// 0: the term is required.
    pub weight: u32,
}

/// A condition on one label as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpressionSubmission {
    /// The label.
    pub key: String,
    /// What is said of its value.
    pub operator: Given<LabelOperator>,
    /// What it is compared with.
    pub values: Vec<String>,
}

/// A demand for devices as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSubmission {
    /// Empty: `gpu`.
    pub kind: String,
    /// 1 to 64.
    pub count: u32,
    /// `None`: 1000.
    pub milli: Option<u32>,
    /// Empty: every model.
    pub models: Vec<String>,
    /// What else they have to be.
    pub terms: DeviceTerms,
}

/// What a replica asks of zones, as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneSubmission {
    /// How its resources lie in zones; `None`: anyhow.
    pub policy: Given<Option<ZonePolicy>>,
    /// Whose its CPUs are.
    pub cpu_mode: Given<AskedCpuMode>,
}

/// Whose the CPUs of a replica are, as clients say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedCpuMode {
    /// It shares CPUs with others.
    Shared,
    /// Whole cores are its own.
    Dedicated,
    /// It has what others leave of theirs.
    Reclaimed,
}

/// A toleration as a client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TolerationSubmission {
    /// Empty: every key.
    pub key: String,
    /// Compared unless `any_value`.
    pub value: String,
    /// Every value.
    pub any_value: bool,
    /// Absent: every effect.
    pub effect: Given<TaintEffect>,
    /// `None`: for ever.
    pub tolerated_s: Option<u32>,
}

/// What is asked for of the task groups of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChanges {
    /// Groups that it has not.
    pub added: Vec<GroupSubmission>,
    /// Groups that it has, by name, and how many replicas each is to have.
    pub sizes: Vec<(String, u32)>,
    /// Ordinals of running units that are released: they stop for good, and nothing comes instead.
    pub released: Vec<u32>,
}
