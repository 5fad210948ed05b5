//! Units: one that is valid, and its changes as a chain of calls.

use std::collections::BTreeMap;

use godel_base::{ids::UnitId, resources::Resources};
use godel_domain::{
    demand::{Demand, Pool},
    unit::{
        OnBelowMin, OnEviction, OnFailure, RestartPolicy, SubmittedSize, TaskGroup, Template, UnitEnd,
        UnitRecord, UnitSpec, WorkloadClass,
    },
    unit_affinity::UnitAffinity,
    unit_topology::UnitTopology,
};

/// Returns a preemptible unit of class batch in the queue `default`, with a task group `main` of one replica that takes
/// nothing. Its id is 1, its uid is empty. [`BuildUnit`] changes it.
pub fn unit(name: impl Into<String>) -> UnitRecord {
    let spec = UnitSpec {
        namespace: "default".to_owned(),
        name: name.into(),
        uid: String::new(),
        labels: BTreeMap::new(),
        owner: String::new(),
        class: WorkloadClass::Batch,
        task_groups: vec![group("main", 1, Template::default())],
        min_member: 1,
        queue: "default".to_owned(),
        priority: 0,
        priority_class: String::new(),
        pool: Pool::Guaranteed,
        restart_policy: RestartPolicy::Never,
        profile: "least-allocated".to_owned(),
        ttl_after_finished_ms: 0,
        max_restarts: 0,
        on_eviction: OnEviction::Requeue,
        on_below_min: OnBelowMin::Keep,
        on_failure: OnFailure::Keep,
        scheduling_timeout_ms: 0,
        active_deadline_ms: 0,
        preemptible: true,
        min_run_ms: 0,
        affinity: UnitAffinity::default(),
        topology: UnitTopology::default(),
        max_surge: 0,
        movable: None,
    };
    UnitRecord::new(UnitId(1), spec)
}

/// Returns a task group without a minimum of its own.
pub fn group(name: &str, replicas: u32, template: Template) -> TaskGroup {
    TaskGroup { name: name.to_owned(), replicas, min_member: 0, template, topology: None }
}

macro_rules! build_unit {
    (
        texts { $($text:ident)* }
        spec { $($spec:ident: $spec_type:ty,)* }
        status { $($status:ident: $status_type:ty,)* }
    ) => {
        /// Changes of a unit as a chain of calls, each named after the field that it sets.
        pub trait BuildUnit: Sized {
            /// Changes anything.
            #[must_use]
            fn edit(self, change: impl FnOnce(&mut UnitRecord)) -> Self;

            /// Sets its id.
            #[must_use]
            fn id(self, id: UnitId) -> Self {
                self.edit(|unit| unit.id = id)
            }

            /// Sets its task groups, with ordinals from 0.
            #[must_use]
            fn task_groups(self, task_groups: Vec<TaskGroup>) -> Self {
                self.edit(|unit| {
                    unit.spec.task_groups = task_groups;
                    unit.status.ordinals = UnitRecord::new(unit.id, unit.spec.clone()).status.ordinals;
                })
            }

            /// Adds a task group, whose ordinals follow those of the others.
            #[must_use]
            fn group(self, group: TaskGroup) -> Self {
                self.edit(|unit| {
                    let start = unit.ranges().map(|(_, end)| end).max().unwrap_or(0);
                    unit.status.ordinals.push(vec![(start, start + group.replicas)]);
                    unit.spec.task_groups.push(group);
                })
            }

            /// Gives its first task group this number of replicas, and all groups ordinals from 0.
            #[must_use]
            fn replicas(self, replicas: u32) -> Self {
                self.edit(|unit| {
                    unit.spec.task_groups[0].replicas = replicas;
                    unit.status.ordinals = UnitRecord::new(unit.id, unit.spec.clone()).status.ordinals;
                })
            }

            /// Makes its first task group take this much CPU and nothing else, in milli-cores.
            #[must_use]
            fn cpu(self, milli: i64) -> Self {
                let requests = Resources::new([("cpu", milli)]).expect("not negative");
                self.edit(|unit| {
                    unit.spec.task_groups[0].template.demand = Demand { requests, devices: Vec::new(), host_ports: Vec::new(), zones: None };
                })
            }

            /// Makes it bind `min_member` replicas together, or none.
            #[must_use]
            fn gang(self, min_member: u32) -> Self {
                self.class(WorkloadClass::Gang).min_member(min_member)
            }

            /// Makes its only task group one of ordinals from 0, each of which takes `demand`.
            #[must_use]
            fn main_group(self, replicas: u32, demand: Demand) -> Self {
                let template = Template { demand, ..Template::default() };
                self.task_groups(vec![group("main", replicas, template)])
            }

            $(
                #[doc = concat!("Sets its `", stringify!($text), "`.")]
                #[must_use]
                fn $text(self, $text: impl Into<String>) -> Self {
                    self.edit(|unit| unit.spec.$text = $text.into())
                }
            )*
            $(
                #[doc = concat!("Sets its `", stringify!($spec), "`.")]
                #[must_use]
                fn $spec(self, $spec: $spec_type) -> Self {
                    self.edit(|unit| unit.spec.$spec = $spec)
                }
            )*
            $(
                #[doc = concat!("Sets its `", stringify!($status), "`.")]
                #[must_use]
                fn $status(self, $status: $status_type) -> Self {
                    self.edit(|unit| unit.status.$status = $status)
                }
            )*
        }
    };
}

build_unit! {
    texts { namespace name uid owner queue priority_class profile }
    spec {
        labels: BTreeMap<String, String>,
        class: WorkloadClass,
        min_member: u32,
        priority: i32,
        pool: Pool,
        restart_policy: RestartPolicy,
        ttl_after_finished_ms: u64,
        max_restarts: u32,
        on_eviction: OnEviction,
        on_below_min: OnBelowMin,
        on_failure: OnFailure,
        scheduling_timeout_ms: u64,
        active_deadline_ms: u64,
        preemptible: bool,
        min_run_ms: u64,
        affinity: UnitAffinity,
        topology: UnitTopology,
        max_surge: u32,
        movable: Option<bool>,
    }
    status {
        cancelled: bool,
        suspended: bool,
        ended: Option<UnitEnd>,
        whole_restarts: u32,
        restarting: bool,
        submitted: Option<Box<SubmittedSize>>,
        keeps_succeeded: bool,
        retried_ms: i64,
        updated: bool,
        principal: String,
    }
}

impl BuildUnit for UnitRecord {
    fn edit(mut self, change: impl FnOnce(&mut UnitRecord)) -> Self {
        change(&mut self);
        self
    }
}
