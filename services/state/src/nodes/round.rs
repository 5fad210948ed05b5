//! One commit of node records: pure composition of jobs into operations, and what each job gets as its answer.

use bytes::Bytes;
use godel_base::{ids::NodeId, words};
use godel_domain::{
    change_line::CallCause,
    node::{NodeUsage, Quarantine, Taint, TaintEffect},
};
use godel_kit::status::{self, reason, with_info};
use godel_membership::{
    node_failures::SUSPECT,
    node_identity::{Rival, RivalKind},
};
use godel_proto::{raw, v1};
use godel_store::Role;
use godel_wire::{BadField, to_proto};
use rustc_hash::FxHashSet;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use super::validate::{self, NodeRegistration};

/// Operations of one commit end once they have so many bytes.
const ROUND_BYTES: usize = 256 * 1024;
/// What a line of the change log counts for: more than one about a node takes.
const CAUSE_BYTES: usize = 1_024;

/// The node's agent is there.
const NODE_CONNECTED: &str = "NODE_CONNECTED";

/// Where an answer goes.
pub(crate) type JobReply<T> = oneshot::Sender<Result<T, Status>>;

/// Something to be done to a node record.
#[derive(Debug)]
pub(crate) enum Job {
    /// Register a node, or find it again.
    Register(Box<NodeRegistration>, JobReply<v1::RegisterNodeResponse>),
    /// Change what administrators say.
    Update(Box<SpecChange>, Option<Box<CallCause>>, JobReply<v1::UpdateNodeResponse>),
    /// Remove the record; `leaves`: for good, and while its agent is connected too.
    Delete {
        name: String,
        leaves: bool,
        cause: Option<Box<CallCause>>,
        reply: JobReply<v1::DeleteNodeResponse>,
    },
    /// Remove the record of a node that is absent for too long.
    Forget(NodeId),
    /// Begin a quarantine, or end one that is over.
    Quarantine(NodeId, Option<Quarantine>),
    /// End a quarantine before it is over.
    Lift(NodeId),
    /// Record that the certificate of a node's agent has expired.
    ExpireIdentity(NodeId),
    /// Record that it has not, or no longer.
    RenewIdentity(NodeId),
    /// Give a node the taint of those on which units fail, or take it.
    Suspect(NodeId, Option<TaintEffect>),
}

/// A change of what administrators say of a node.
#[derive(Debug)]
pub(crate) enum SpecChange {
    /// Of whatever is named.
    Update(v1::UpdateNodeRequest),
    /// Its machine goes away.
    Notice(v1::GiveNoticeRequest),
}

impl SpecChange {
    fn name(&self) -> &str {
        match self {
            Self::Update(request) => &request.name,
            Self::Notice(request) => &request.name,
        }
    }
}

/// A node record as stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) revision: u64,
    pub(crate) spec: v1::NodeSpec,
    pub(crate) report: Option<v1::NodeReport>,
    /// Running units that hold room there.
    pub(crate) n_live: u32,
}

/// What a round needs to know of the nodes.
pub(crate) trait RoundNodes {
    /// Node of exactly this name.
    fn by_name(&self, name: &str) -> Option<NodeId>;
    /// Node of exactly this uid.
    fn by_uid(&self, uid: &str) -> Option<NodeId>;
    /// Node of this whole name or uid.
    fn find(&self, asked: &str) -> Result<NodeId, Status>;
    /// Its records.
    fn stored(&self, node: NodeId) -> Option<Stored>;
    /// Its session's lease is in force.
    fn is_alive(&self, node: NodeId) -> bool;
    /// An instance of its agent may speak for it: no other one has taken over that lives.
    fn may_speak(&self, node: NodeId, instance: u64) -> bool;
    /// The id that the next new node gets.
    fn next_id(&self) -> NodeId;
    /// Unix milliseconds.
    fn wall_ms(&self) -> i64;
}

/// Operations of one role and whom to answer.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// `None` while there is no operation.
    pub(crate) role: Option<Role>,
    pub(crate) ops: Vec<Bytes>,
    /// On whose behalf it is written.
    pub(crate) causes: Vec<CallCause>,
    bytes: usize,
    touched: FxHashSet<NodeId>,
    new_names: FxHashSet<String>,
    new_uids: FxHashSet<String>,
    n_new: u32,
    pub(crate) answers: Vec<JobAnswer>,
    /// Agents that were refused because another one speaks for their node.
    pub(crate) rivals: Vec<(NodeId, Rival)>,
    /// The node whose record goes for good.
    pub(crate) leaving: Option<NodeId>,
}

/// What a job gets when the round is durable.
#[derive(Debug)]
pub(crate) enum JobAnswer {
    Registered(NodeId, JobReply<v1::RegisterNodeResponse>),
    Updated(Box<v1::NodeSpec>, JobReply<v1::UpdateNodeResponse>),
    Deleted(String, JobReply<v1::DeleteNodeResponse>),
    Forgotten(NodeId),
    /// The name was taken over; the registration goes on.
    Again(Job),
}

impl Job {
    /// Answers with an error.
    pub(crate) fn fail(self, status: impl FnOnce() -> Status) {
        match self {
            Self::Register(_, reply) => answer(reply, Err(status())),
            Self::Update(_, _, reply) => answer(reply, Err(status())),
            Self::Delete { reply, .. } => answer(reply, Err(status())),
            // They are found again.
            Self::Quarantine(..) | Self::Lift(_) | Self::Suspect(..) | Self::Forget(_) => {}
            Self::ExpireIdentity(_) | Self::RenewIdentity(_) => {}
        }
    }
}

impl Round {
    /// Nothing to write and nobody to answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.answers.is_empty()
    }

    /// Takes a job into the round, or gives it back when it has to wait for the next.
    pub(crate) fn take(&mut self, job: Job, nodes: &impl RoundNodes) -> Result<(), Job> {
        if self.bytes >= ROUND_BYTES {
            return Err(job);
        }
        match job {
            Job::Register(registration, reply) => self.register(registration, reply, nodes),
            Job::Update(request, cause, reply) => self.update(request, cause, reply, nodes),
            Job::Delete { name, leaves, cause, reply } => self.delete(name, leaves, cause, reply, nodes),
            Job::Forget(node) => self.forget(node, nodes),
            Job::Quarantine(node, quarantine) => self.quarantine(node, quarantine, nodes),
            Job::Lift(node) => self.change_spec(node, Job::Lift(node), nodes, |spec| spec.quarantine = None),
            Job::ExpireIdentity(node) => {
                let now_ms = nodes.wall_ms();
                self.change_spec(node, Job::ExpireIdentity(node), nodes, |spec| {
                    spec.identity_expired_since_ms.get_or_insert(now_ms);
                })
            }
            Job::RenewIdentity(node) => self.change_spec(node, Job::RenewIdentity(node), nodes, |spec| {
                spec.identity_expired_since_ms = None;
            }),
            Job::Suspect(node, effect) => {
                let since_ms = nodes.wall_ms();
                self.change_spec(node, Job::Suspect(node, effect), nodes, |spec| {
                    suspect(spec, effect, since_ms)
                })
            }
        }
    }

    /// Takes a changed inventory or readiness into the round; `false` when it has to wait for the next.
    pub(crate) fn change_report(
        &mut self,
        node: NodeId,
        inventory: Option<&v1::NodeReport>,
        ready: bool,
        nodes: &impl RoundNodes,
    ) -> bool {
        if self.bytes >= ROUND_BYTES || !self.is_for(Role::Agent) || self.touched.contains(&node) {
            return false;
        }
        let Some(Stored { report: Some(report), .. }) = nodes.stored(node) else { return true };
        let now = v1::NodeReport { node_id: node.0, ready, ..inventory.unwrap_or(&report).clone() };
        if now != report {
            self.touched.insert(node);
            self.push(Role::Agent, v1::op::Op::PutNodeReport(now));
        }
        true
    }

    /// Takes a node's use into the round; `false` when it has to wait for the next.
    pub(crate) fn put_usage(&mut self, usage: &NodeUsage, is_registered: impl FnOnce() -> bool) -> bool {
        if self.bytes >= ROUND_BYTES || !self.is_for(Role::Agent) {
            return false;
        }
        if is_registered() {
            self.push(Role::Agent, v1::op::Op::PutNodeUsage(to_proto::node_usage(usage)));
        }
        true
    }

    fn register(
        &mut self,
        registration: Box<NodeRegistration>,
        reply: JobReply<v1::RegisterNodeResponse>,
        nodes: &impl RoundNodes,
    ) -> Result<(), Job> {
        let NodeRegistration { name, uid, .. } = &*registration;
        if self.new_names.contains(name) || self.new_uids.contains(uid) {
            return Err(Job::Register(registration, reply));
        }
        let Some(node) = nodes.by_name(name) else {
            if !self.is_for(Role::Agent) {
                return Err(Job::Register(registration, reply));
            }
            if let Some(other) = nodes.by_uid(uid) {
                answer(reply, Err(duplicate("uid", uid, other)));
                return Ok(());
            }
            return self.register_new(*registration, reply, nodes);
        };
        let Some(stored) = nodes.stored(node).filter(|_| !self.touched.contains(&node)) else {
            return Err(Job::Register(registration, reply));
        };
        if stored.spec.meta.as_ref().is_some_and(|meta| meta.uid == *uid) {
            if !nodes.may_speak(node, registration.instance) {
                self.rivals.push((node, rival(RivalKind::SameInstallation, &registration)));
                answer(reply, Err(displaced(name, node)));
                return Ok(());
            }
            let ready = stored.report.as_ref().is_some_and(|report| report.ready);
            if !self.change_report(node, Some(&registration.report), ready, nodes) {
                return Err(Job::Register(registration, reply));
            }
            self.answers.push(JobAnswer::Registered(node, reply));
            return Ok(());
        }
        if nodes.is_alive(node) {
            self.rivals.push((node, rival(RivalKind::OtherInstallation, &registration)));
            answer(reply, Err(taken(name, node)));
            return Ok(());
        }
        // What the installation before was given is not this one's. It may run there still, without contact, and is given to
        // others once the grace of the lost node is over; until then the name is not free.
        if stored.n_live > 0 {
            answer(reply, Err(not_free(name, stored.n_live)));
            return Ok(());
        }
        if let Some(other) = nodes.by_uid(uid) {
            answer(reply, Err(duplicate("uid", uid, other)));
            return Ok(());
        }
        if !self.is_for(Role::Admin) {
            return Err(Job::Register(registration, reply));
        }
        self.touched.insert(node);
        self.new_uids.insert(uid.clone());
        let mut spec = stored.spec;
        spec.meta.get_or_insert_default().uid.clone_from(uid);
        // The machine that was to go has gone; this one stays.
        if spec.notice.take().is_some() {
            spec.drain = None;
        }
        self.push(Role::Admin, v1::op::Op::PutNodeSpec(spec));
        self.answers.push(JobAnswer::Again(Job::Register(registration, reply)));
        Ok(())
    }

    fn register_new(
        &mut self,
        registration: NodeRegistration,
        reply: JobReply<v1::RegisterNodeResponse>,
        nodes: &impl RoundNodes,
    ) -> Result<(), Job> {
        let NodeRegistration { name, uid, labels, owner, report, mut taints, instance: _, address: _ } =
            registration;
        validate::stamp(&mut taints, nodes.wall_ms());
        let node = NodeId(nodes.next_id().0 + self.n_new);
        self.n_new += 1;
        self.new_names.insert(name.clone());
        self.new_uids.insert(uid.clone());
        self.touched.insert(node);
        let namespace = "default".to_owned();
        let meta = v1::ObjectMeta { namespace, name, uid, labels, owner, ..v1::ObjectMeta::default() };
        let spec = v1::NodeSpec { node_id: node.0, meta: Some(meta), taints, ..v1::NodeSpec::default() };
        self.push(Role::Agent, v1::op::Op::PutNodeSpec(spec));
        let report = v1::NodeReport { node_id: node.0, ready: false, ..report };
        self.push(Role::Agent, v1::op::Op::PutNodeReport(report));
        self.answers.push(JobAnswer::Registered(node, reply));
        Ok(())
    }

    fn update(
        &mut self,
        change: Box<SpecChange>,
        cause: Option<Box<CallCause>>,
        reply: JobReply<v1::UpdateNodeResponse>,
        nodes: &impl RoundNodes,
    ) -> Result<(), Job> {
        if !self.is_for(Role::Admin) {
            return Err(Job::Update(change, cause, reply));
        }
        let node = match nodes.find(change.name()) {
            Ok(node) => node,
            Err(status) => {
                answer(reply, Err(status));
                return Ok(());
            }
        };
        let Some(stored) = nodes.stored(node).filter(|_| !self.touched.contains(&node)) else {
            return Err(Job::Update(change, cause, reply));
        };
        match updated(&stored, &change, nodes.wall_ms()) {
            Ok(spec) if spec == stored.spec => {
                answer(
                    reply,
                    Ok(v1::UpdateNodeResponse {
                        spec: Some(spec),
                        revision: stored.revision,
                        changed: false,
                    }),
                );
            }
            Ok(spec) => {
                self.touched.insert(node);
                self.push(Role::Admin, v1::op::Op::PutNodeSpec(spec.clone()));
                self.take_cause(cause);
                self.answers.push(JobAnswer::Updated(Box::new(spec), reply));
            }
            Err(status) => answer(reply, Err(status)),
        }
        Ok(())
    }

    /// One that an administrator, or time, has ended meanwhile stays so; one that is quarantined stays so for as long as it
    /// was to.
    fn quarantine(
        &mut self,
        node: NodeId,
        quarantine: Option<Quarantine>,
        nodes: &impl RoundNodes,
    ) -> Result<(), Job> {
        if !self.is_for(Role::Admin) || self.touched.contains(&node) {
            return Err(Job::Quarantine(node, quarantine));
        }
        let Some(stored) = nodes.stored(node) else { return Ok(()) };
        let is_over = stored.spec.quarantine.as_ref().is_some_and(|known| known.until_ms <= nodes.wall_ms());
        let is_due = match &quarantine {
            Some(_) => stored.spec.quarantine.is_none() || is_over,
            None => is_over,
        };
        if is_due {
            self.touched.insert(node);
            let quarantine = quarantine.as_ref().map(to_proto::node_quarantine);
            self.push(Role::Admin, v1::op::Op::PutNodeSpec(v1::NodeSpec { quarantine, ..stored.spec }));
        }
        Ok(())
    }

    /// Changes a record in which nothing may be to change; `job` has to wait for the next round.
    fn change_spec(
        &mut self,
        node: NodeId,
        job: Job,
        nodes: &impl RoundNodes,
        change: impl FnOnce(&mut v1::NodeSpec),
    ) -> Result<(), Job> {
        if !self.is_for(Role::Admin) || self.touched.contains(&node) {
            return Err(job);
        }
        let Some(stored) = nodes.stored(node) else { return Ok(()) };
        let mut spec = stored.spec.clone();
        change(&mut spec);
        if spec != stored.spec {
            self.touched.insert(node);
            self.push(Role::Admin, v1::op::Op::PutNodeSpec(spec));
        }
        Ok(())
    }

    fn delete(
        &mut self,
        name: String,
        leaves: bool,
        cause: Option<Box<CallCause>>,
        reply: JobReply<v1::DeleteNodeResponse>,
        nodes: &impl RoundNodes,
    ) -> Result<(), Job> {
        // Alone: the store refuses it while running units are bound there, and that is for this job only.
        if !self.is_empty() {
            return Err(Job::Delete { name, leaves, cause, reply });
        }
        match nodes.find(&name) {
            // It would be back at once: its agent registers again.
            Ok(node) if nodes.is_alive(node) && !leaves => answer(reply, Err(connected(&name, node))),
            Ok(node) => {
                self.remove(node);
                self.take_cause(cause);
                self.leaving = leaves.then_some(node);
                self.answers.push(JobAnswer::Deleted(name, reply));
            }
            Err(status) => answer(reply, Err(status)),
        }
        Ok(())
    }

    fn take_cause(&mut self, cause: Option<Box<CallCause>>) {
        if let Some(cause) = cause {
            self.bytes += CAUSE_BYTES;
            self.causes.push(*cause);
        }
    }

    /// Alone, as a deletion that was asked for.
    fn forget(&mut self, node: NodeId, nodes: &impl RoundNodes) -> Result<(), Job> {
        if !self.is_empty() {
            return Err(Job::Forget(node));
        }
        let is_empty = nodes.stored(node).is_some_and(|stored| stored.n_live == 0);
        if is_empty && !nodes.is_alive(node) {
            self.remove(node);
            self.answers.push(JobAnswer::Forgotten(node));
        }
        Ok(())
    }

    fn remove(&mut self, node: NodeId) {
        self.role = Some(Role::Admin);
        self.ops.push(to_proto::delete(v1::Kind::NodeSpec, u64::from(node.0)));
        self.bytes = ROUND_BYTES;
    }

    fn is_for(&self, role: Role) -> bool {
        self.role.is_none_or(|present| present == role)
    }

    fn push(&mut self, role: Role, op: v1::op::Op) {
        let op = raw::encode_op(op);
        self.role = Some(role);
        self.bytes += op.len();
        self.ops.push(op);
    }
}

/// Gives a node the taint of those on which units fail, or takes it.
fn suspect(spec: &mut v1::NodeSpec, effect: Option<TaintEffect>, since_ms: i64) {
    spec.taints.retain(|taint| taint.key != SUSPECT);
    let has_room = spec.taints.len() < validate::N_LABELS_MAX;
    spec.taints.extend(effect.filter(|_| has_room).map(|effect| {
        let (key, value) = (SUSPECT.to_owned(), String::new());
        to_proto::taint(&Taint { key, value, effect, added_ms: since_ms })
    }));
}

/// Answers; who asked may have left.
pub(crate) fn answer<T>(reply: JobReply<T>, result: Result<T, Status>) {
    drop(reply.send(result));
}

fn updated(stored: &Stored, change: &SpecChange, wall_ms: i64) -> Result<v1::NodeSpec, Status> {
    let mut spec = stored.spec.clone();
    let now = validate::RequestTime { wall_ms, n_live: stored.n_live };
    let request = match change {
        SpecChange::Update(request) => request,
        SpecChange::Notice(request) => {
            validate::apply_notice(&mut spec, request, now);
            return Ok(spec);
        }
    };
    if request.expected_revision != 0 && request.expected_revision != stored.revision {
        let message =
            format!("the node is at revision {}, not {}", stored.revision, request.expected_revision);
        let metadata = [("revision", stored.revision.to_string())];
        return Err(with_info(Code::Aborted, reason::REVISION_MISMATCH, message, metadata));
    }
    validate::apply_update(&mut spec, request, now)
        .map_err(|bad: BadField| status::invalid_argument([bad]))?;
    Ok(spec)
}

fn connected(name: &str, node: NodeId) -> Status {
    let what = "is connected: stop its agent first, after `godel node drain` if running units are there; \
                an agent that died without signing off counts as connected until its lease expires";
    let message = format!("node {name} (id {node}) {what}");
    status::failed_precondition(NODE_CONNECTED, format!("node/{name}"), message)
}

fn rival(kind: RivalKind, registration: &NodeRegistration) -> Rival {
    Rival { kind, address: registration.address.clone(), uid: registration.uid.clone() }
}

/// Another installation speaks for the node.
fn taken(name: &str, node: NodeId) -> Status {
    let message = format!(
        "the name {name} belongs to node {node}, whose agent is connected with another uid: give this node another          name (`godel agent --name`), or stop the other agent and delete its record (`godel node delete {name}`);          an agent that died gives up the name when its lease and the grace of its running units are over"
    );
    let metadata = [("name", name.to_owned()), ("node_id", node.to_string())];
    with_info(Code::AlreadyExists, reason::DUPLICATE_NAME, message, metadata)
}

/// A newer agent with the same uid speaks for the node.
fn displaced(name: &str, node: NodeId) -> Status {
    let message = format!(
        "another agent with the uid of node {name} has taken over and is connected: two agents share one identity, as          from a copy of the state directory or of the whole machine; stop one of them, or give one another name          (`godel agent --name`), which makes a new identity"
    );
    let metadata = [("name", name.to_owned()), ("node_id", node.to_string())];
    with_info(Code::AlreadyExists, reason::NODE_DISPLACED, message, metadata)
}

/// Running units of the installation before are bound to the node.
fn not_free(name: &str, n_live: u32) -> Status {
    let units = words::count(n_live, "running unit");
    let message = format!(
        "{units} of another installation of node {name} must end first: it is lost, and they are evicted when its grace          is over (`state.node_grace`); then this installation takes the name. To keep both nodes, give this one another          name (`godel agent --name`)"
    );
    with_info(Code::FailedPrecondition, reason::NODE_IN_USE, message, [("name", name.to_owned())])
}

fn duplicate(field: &str, value: &str, node: NodeId) -> Status {
    let message = format!("{field} {value} belongs to node {node}");
    let metadata = [(field, value.to_owned()), ("node_id", node.to_string())];
    with_info(Code::AlreadyExists, reason::DUPLICATE_NAME, message, metadata)
}

#[cfg(test)]
mod tests;
