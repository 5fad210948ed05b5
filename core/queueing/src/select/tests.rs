//! A dispatcher in small: units come, are handed out whole, and end.

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::{
    demand::{Demand, Pool},
    queue_spec::{QueuePolicy, QueueSpec},
    unit::{TaskGroup, UnitSpec, WorkloadClass},
};
use godel_testkit::{BuildDemand as _, BuildUnit as _};

use super::*;
use crate::{Account, Config, Need};

mod choices;
mod model;
mod owners;
mod policies;
mod shares;
mod waits;

const NOW: Millis = Millis(1_000);

/// A unit to submit.
#[derive(Clone, Debug)]
struct Job {
    queue: &'static str,
    owner: &'static str,
    cpu: i64,
    memory: i64,
    gpu_milli: u32,
    replicas: u32,
    min_member: u32,
    priority: i32,
    pool: Pool,
    created_ms: i64,
    again: bool,
    /// Its running units are application masters.
    is_yarn: bool,
}

const JOB: Job = Job {
    queue: "default",
    owner: "",
    cpu: 1,
    memory: 0,
    gpu_milli: 0,
    replicas: 1,
    min_member: 1,
    priority: 0,
    pool: Pool::Guaranteed,
    created_ms: 0,
    again: false,
    is_yarn: false,
};

impl Job {
    fn demand(&self) -> Demand {
        godel_testkit::demand(self.cpu).memory(self.memory).gpus(1, self.gpu_milli, &[])
    }

    fn spec(&self, id: u64) -> UnitSpec {
        godel_testkit::unit(format!("unit-{id}"))
            .owner(self.owner)
            .class(if self.is_yarn { WorkloadClass::Yarn } else { WorkloadClass::Batch })
            .main_group(self.replicas, self.demand())
            .min_member(self.min_member)
            .queue(self.queue)
            .priority(self.priority)
            .pool(self.pool)
            .spec
    }
}

/// What a test says of a queue.
#[derive(Clone, Debug, Default)]
struct Quotas<'a> {
    min: &'a [(&'a str, i64)],
    max: &'a [(&'a str, i64)],
    weight: u32,
    policy: QueuePolicy,
    max_running_units: u32,
    owner_weights: &'a [(&'a str, u32)],
    max_per_owner: &'a [(&'a str, i64)],
    am_share_milli: u32,
}

struct World {
    queues: Queues,
    jobs: BTreeMap<UnitId, (Job, Account, Waiting)>,
    last_id: u64,
}

impl World {
    fn new(config: Config) -> Self {
        let mut queues = Queues::new(config);
        queues.set_total([("cpu", 1 << 20), ("memory", 1 << 30), ("gpu", 1 << 20)]);
        Self { queues, jobs: BTreeMap::new(), last_id: 0 }
    }

    fn put(&mut self, path: &str, quotas: &Quotas<'_>) {
        let named = |pairs: &[(&str, i64)]| pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        self.queues.put(Arc::new(QueueSpec {
            min: named(quotas.min),
            max: named(quotas.max),
            weight: quotas.weight.max(1),
            policy: quotas.policy,
            max_running_units: quotas.max_running_units,
            owner_weights: quotas.owner_weights.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            max_per_owner: named(quotas.max_per_owner),
            am_share_milli: quotas.am_share_milli,
            ..QueueSpec::new(path)
        }));
    }

    fn submit(&mut self, job: Job) -> UnitId {
        self.last_id += 1;
        self.submit_as(job, self.last_id)
    }

    fn submit_as(&mut self, job: Job, id: u64) -> UnitId {
        let account = self.queues.enroll(&job.spec(id));
        let need = account.need(None);
        self.wait(job, account, need, id)
    }

    /// One that found no place on any node.
    fn submit_to_room(&mut self, job: Job, room: crate::RoomIdx) -> UnitId {
        let unit = self.submit(job);
        let waiting = &mut self.jobs.get_mut(&unit).unwrap().2;
        self.queues.remove(waiting);
        waiting.room = room;
        self.queues.push(*waiting);
        unit
    }

    fn wait(&mut self, job: Job, account: Account, need: Need, id: u64) -> UnitId {
        let waiting = Waiting {
            unit: UnitId(id),
            queue: account.queue,
            owner: account.owner,
            payer: account.payer,
            band: Band::of(job.pool, job.priority),
            priority: job.priority,
            again: job.again,
            created_ms: job.created_ms,
            need,
            running_units: job.replicas,
            room: crate::RoomIdx::NONE,
            held_by: None,
        };
        self.queues.push(waiting);
        assert!(self.queues.contains(&waiting));
        self.jobs.insert(UnitId(id), (job, account, waiting));
        UnitId(id)
    }

    fn hand_out(&mut self, now: Millis) -> Option<UnitId> {
        let waiting = self.queues.next(now)?;
        let (job, account, pushed) = &self.jobs[&waiting.unit];
        assert_eq!(waiting, *pushed);
        assert!(!self.queues.contains(&waiting));
        self.queues.charge(account, 0, job.replicas);
        self.queues.served(&waiting);
        Some(waiting.unit)
    }

    fn hand_out_all(&mut self, now: Millis) -> Vec<u64> {
        std::iter::from_fn(|| self.hand_out(now)).map(|unit| unit.0).collect()
    }

    /// Of a unit that was handed out.
    fn end(&mut self, unit: UnitId) {
        let (job, account, _) = self.jobs.remove(&unit).unwrap();
        self.queues.discharge(&account, 0, job.replicas);
        self.queues.forget_unit(&account);
    }

    /// Of a unit that waits.
    fn cancel(&mut self, unit: UnitId) {
        let (_, account, waiting) = self.jobs.remove(&unit).unwrap();
        assert_eq!(self.queues.remove(&waiting), Some(waiting));
        self.queues.forget_unit(&account);
    }

    fn why(&self, unit: UnitId, now: Millis) -> Option<String> {
        self.queues.pending_reason(&self.jobs[&unit].2, now).map(|why| why.to_string())
    }

    fn used(&self, path: &str, name: &str) -> i128 {
        let quota = self.queues.quota();
        quota.tree().find(path).map_or(0, |queue| quota.usage().used(queue, name))
    }
}
