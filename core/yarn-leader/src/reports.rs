//! What is shown of applications, attempts, containers, nodes and queues.
//!
//! These are plain values in YARN's terms, from which each face makes its own messages.

use std::collections::BTreeMap;

use godel_core_yarn::{
    adapter::Registration,
    application::{FinalStatus, PublicAppState},
    asks::AskKey,
    attempt::AttemptState,
    container::PublicContainerState,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_domain::queue_spec::lets_submit;

/// An amount of resources as YARN counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct YarnAmount {
    /// Memory, MiB.
    pub memory_mb: i64,
    /// CPUs.
    pub vcores: i64,
    /// Other resources by YARN's name, such as `yarn.io/gpu`.
    pub others: BTreeMap<String, i64>,
}

/// Names of devices, which godel counts in thousandths: YARN's, godel's.
const RENAMED: [(&str, &str); 1] = [("yarn.io/gpu", "gpu")];

impl YarnAmount {
    /// The same as godel counts it: `memory` in bytes, `cpu` and devices in thousandths, other resources as they are. What is not
    /// above 0 is left out.
    pub fn to_capability(&self) -> BTreeMap<String, i64> {
        let Self { memory_mb, vcores, others } = self;
        let own = [
            ("memory".to_owned(), memory_mb.saturating_mul(1 << 20)),
            ("cpu".to_owned(), vcores.saturating_mul(1_000)),
        ];
        let others = others.iter().map(|(name, amount)| {
            let renamed = RENAMED.iter().find(|(yarn, _)| yarn == name);
            renamed.map_or((name.clone(), *amount), |(_, godel)| {
                ((*godel).to_owned(), amount.saturating_mul(1_000))
            })
        });
        own.into_iter().chain(others).filter(|(_, amount)| *amount > 0).collect()
    }

    /// The same back; parts of a MiB, a CPU or a device are rounded up.
    pub fn from_capability(capability: &BTreeMap<String, i64>) -> Self {
        let mut amount = Self::default();
        for (name, given) in capability {
            let per = |whole: i64| given / whole + i64::from(given % whole > 0);
            match name.as_str() {
                "memory" => amount.memory_mb = per(1 << 20),
                "cpu" => amount.vcores = per(1_000),
                _ => {
                    let renamed = RENAMED.iter().find(|(_, godel)| godel == name);
                    let (name, given) =
                        renamed.map_or((name.as_str(), *given), |(yarn, _)| (*yarn, per(1_000)));
                    amount.others.insert(name.to_owned(), given);
                }
            }
        }
        amount
    }
}

/// The name in YARN of a resource of godel beside memory and CPUs.
pub(crate) fn yarn_resource(name: &str) -> &str {
    RENAMED.iter().find(|(_, godel)| *godel == name).map_or(name, |(yarn, _)| yarn)
}

/// An application.
#[derive(Clone, Debug, PartialEq)]
pub struct AppReport {
    /// Its id.
    pub id: YarnApplicationId,
    /// For people.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Its queue, as YARN names it.
    pub queue: String,
    /// `SPARK`, `MAPREDUCE` and so on.
    pub kind: String,
    /// Words for filters.
    pub tags: Vec<String>,
    /// Higher wins.
    pub priority: i32,
    /// What everybody sees of its state.
    pub state: PublicAppState,
    /// How it ended.
    pub final_status: FinalStatus,
    /// What people are told of it.
    pub diagnostics: String,
    /// When it was submitted, Unix milliseconds.
    pub start_ms: i64,
    /// When its first master was started, Unix milliseconds; 0: not yet.
    pub launch_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub finish_ms: i64,
    /// Share that is done, 0 to 1, as its master says.
    pub progress: f32,
    /// Its current attempt.
    pub attempt: Option<YarnAttemptId>,
    /// The master of that attempt may register, or has.
    pub is_launched: bool,
    /// What the current master said of itself.
    pub registration: Option<Registration>,
    /// Node of the current master, with its port: `host:port`.
    pub master_node: Option<String>,
    /// Its master runs elsewhere.
    pub is_unmanaged: bool,
    /// Label expression of its containers, unless they are asked for with another one.
    pub label: String,
    /// Label expression of its master.
    pub master_label: String,
    /// What its containers have now.
    pub used: YarnAmount,
    /// How many containers have a place now.
    pub n_containers: u32,
    /// What it waits for.
    pub pending: YarnAmount,
    /// How many containers it waits for.
    pub n_pending: u32,
    /// Memory over time, MiB-seconds.
    pub memory_seconds: i64,
    /// CPUs over time, CPU-seconds.
    pub vcore_seconds: i64,
    /// When it is ended, Unix milliseconds.
    pub timeout_at_ms: Option<i64>,
}

impl AppReport {
    /// Leaves what YARN shows everybody: who, what, where and how far. Final status and diagnostics are for those who may see it.
    pub fn hide_details(&mut self) {
        "N/A".clone_into(&mut self.diagnostics);
        (self.final_status, self.progress) = (FinalStatus::Undefined, 0.0);
        (self.attempt, self.registration, self.master_node) = (None, None, None);
        (self.used, self.n_containers) = (YarnAmount::default(), 0);
        (self.pending, self.n_pending) = (YarnAmount::default(), 0);
        (self.memory_seconds, self.vcore_seconds) = (0, 0);
    }
}

/// An attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptReport {
    /// Its id.
    pub id: YarnAttemptId,
    /// Where it is.
    pub state: AttemptState,
    /// Container of its master, if it has a place.
    pub master: Option<YarnContainerId>,
    /// Node of its master, `host:port`.
    pub node: Option<String>,
    /// What its master said of itself.
    pub registration: Option<Registration>,
    /// What people are told of it.
    pub diagnostics: String,
    /// When it began, Unix milliseconds.
    pub start_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub finish_ms: i64,
}

/// A container that has a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerReport {
    /// Its id.
    pub id: YarnContainerId,
    /// For what it was asked; `None`: the master.
    pub key: Option<AskKey>,
    /// What it has.
    pub amount: YarnAmount,
    /// Its state.
    pub state: PublicContainerState,
    /// Its node, `host:port`.
    pub node: String,
    /// When it got its place, Unix milliseconds.
    pub start_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub finish_ms: i64,
    /// How it ended.
    pub exit: i32,
    /// What people are told of its end.
    pub diagnostics: String,
}

/// Where a node is, as YARN says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum YarnNodeState {
    /// Takes containers.
    Running,
    /// Takes nothing new, and what it has goes on for a while.
    Decommissioning,
    /// Takes nothing, and has nothing.
    Decommissioned,
    /// Nobody hears of it.
    Lost,
    /// Says that it is not well.
    Unhealthy,
}

/// A node that runs containers of YARN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YarnNodeReport {
    /// Its host.
    pub host: String,
    /// Port for containers.
    pub port: u16,
    /// Its rack, as `/rack`.
    pub rack: String,
    /// Where it is.
    pub state: YarnNodeState,
    /// What it has in all.
    pub total: YarnAmount,
    /// What of it is taken.
    pub used: YarnAmount,
    /// Containers of YARN on it.
    pub n_containers: u32,
    /// Label of its partition; empty: none.
    pub label: String,
    /// Attributes of the node.
    pub attributes: BTreeMap<String, String>,
    /// When it was heard of last, Unix milliseconds.
    pub heard_ms: i64,
    /// Why it is not well.
    pub health: String,
}

/// A queue, in YARN's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueReport {
    /// Its whole path as YARN names it, from `root`.
    pub path: String,
    /// Share of its parent that is guaranteed, 0 to 100.
    pub capacity: f32,
    /// Share of its parent that it may have at most, 0 to 100.
    pub maximum_capacity: f32,
    /// Share of the cluster that is guaranteed, 0 to 100.
    pub absolute_capacity: f32,
    /// Share of the cluster that it may have at most, 0 to 100.
    pub absolute_maximum_capacity: f32,
    /// Share of the cluster that it has now, 0 to 100.
    pub absolute_used_capacity: f32,
    /// Share of its guarantee that it has now; above 100 it borrows.
    pub used_capacity: f32,
    /// It takes applications.
    pub is_running: bool,
    /// What it has.
    pub used: YarnAmount,
    /// What it waits for.
    pub pending: YarnAmount,
    /// Containers in it and below.
    pub n_containers: u32,
    /// Containers that wait, in it and below.
    pub n_pending_containers: u32,
    /// Applications whose master has a place.
    pub n_active: u32,
    /// Applications whose master waits.
    pub n_pending: u32,
    /// Who may submit there; empty: everybody.
    pub submit_owners: Vec<String>,
    /// Whether queues are below it.
    pub is_leaf: bool,
}

impl QueueReport {
    /// Whether the queue's own list lets a user with these groups submit.
    pub fn lets_submit(&self, user: &str, groups: &[String]) -> bool {
        lets_submit(&self.submit_owners, user, groups)
    }
}

/// The cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterReport {
    /// When this adapter began to lead, Unix milliseconds: the first part of ids of new applications, as that of a ResourceManager.
    pub cluster_timestamp: i64,
    /// When this adapter began, Unix milliseconds.
    pub started_ms: i64,
    /// This adapter leads.
    pub is_active: bool,
    /// Applications by public state.
    pub applications: BTreeMap<PublicAppState, u64>,
    /// What all nodes have.
    pub total: YarnAmount,
    /// What is taken.
    pub used: YarnAmount,
    /// What applications wait for.
    pub pending: YarnAmount,
    /// Containers that have a place.
    pub n_containers: u64,
    /// Containers that wait.
    pub n_pending_containers: u64,
    /// Nodes by state.
    pub nodes: BTreeMap<YarnNodeState, u32>,
    /// The least that one container gets.
    pub minimum_allocation: YarnAmount,
    /// The most that one container may ask for.
    pub maximum_allocation: YarnAmount,
}

/// Which applications are shown. An empty set or `None` lets every one through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppFilter {
    /// Public states.
    pub states: Vec<PublicAppState>,
    /// Final statuses.
    pub final_statuses: Vec<FinalStatus>,
    /// Kinds, in any case of letters.
    pub kinds: Vec<String>,
    /// Any of these tags.
    pub tags: Vec<String>,
    /// Users.
    pub users: Vec<String>,
    /// Queues, by whole path or last name.
    pub queues: Vec<String>,
    /// Submitted within, Unix milliseconds, both ends counted.
    pub started_ms: Option<(i64, i64)>,
    /// Ended within, Unix milliseconds, both ends counted.
    pub finished_ms: Option<(i64, i64)>,
    /// This name.
    pub name: Option<String>,
    /// At most so many.
    pub limit: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_counted_as_godel_does_and_back() {
        let amount = YarnAmount {
            memory_mb: 1_536,
            vcores: 2,
            others: [("yarn.io/gpu".to_owned(), 1), ("fpga".to_owned(), 3)].into(),
        };
        let capability = amount.to_capability();
        let expected = [("cpu", 2_000), ("fpga", 3), ("gpu", 1_000), ("memory", 1_536 << 20)];
        assert_eq!(capability, expected.map(|(name, amount)| (name.to_owned(), amount)).into());
        assert_eq!(YarnAmount::from_capability(&capability), amount);
        let partial = YarnAmount::from_capability(&[("cpu".to_owned(), 1), ("memory".to_owned(), 1)].into());
        assert_eq!((partial.vcores, partial.memory_mb), (1, 1));
        let negative = YarnAmount { memory_mb: -1, vcores: i64::MAX, others: BTreeMap::new() };
        assert_eq!(negative.to_capability(), [("cpu".to_owned(), i64::MAX)].into());
    }
}
