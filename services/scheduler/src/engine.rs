//! The one task that owns the scheduler's state: drains what has come, decides a bounded lot, sends.
//!
//! It decides only while it is registered, has read the records, and the binder has answered and takes what
//! is sent: back-pressure stops it instead of filling queues.

use std::{collections::BTreeMap, future::pending, time::Duration};

use godel_base::{
    ids::{Epoch, NodeId, Revision, StoreId, UnitId},
    time::Millis,
};
use godel_core_scheduler::Scheduler;
use godel_crash::CrashPoints;
use godel_domain::{
    change::Commit,
    unit_report::{ReportState, UnitReport},
};
use godel_kit::{
    client::Directory,
    clock::SharedClock,
    informer::{FollowEvent, Informer},
    lease::{Fence, Leadership},
    service, status,
};
use godel_proto::{
    raw,
    v1::{self, attach_request, attach_response, decide_request, decide_response},
};
use godel_wire::{from_proto, to_proto};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    convert,
    link::{Decide, DispatcherLink, Link, LinkEvent},
    messages,
    metrics::SchedulerMetrics,
    rpc::{PlanRequest, Shown},
    specs::Specs,
};

/// Events of one source taken in one go before a step.
const N_DRAIN: usize = 256;
/// Messages for the dispatcher that may wait while steps go on.
const N_REPORTS_QUEUED: usize = 64;
/// Pause after a step that neither decided nor reported although units are ready: something else has to
/// happen first, which wakes the loop earlier.
const IDLE_MS: u64 = 20;
/// Counters are shown at most so often.
const SHOW_MS: u64 = 100;

/// See the module.
pub(crate) struct Engine {
    pub(crate) core: Scheduler,
    /// What `core` was made with.
    pub(crate) decides: godel_core_scheduler::Config,
    pub(crate) seed: u64,
    pub(crate) name: String,
    pub(crate) held_max: u32,
    pub(crate) step_budget: usize,
    pub(crate) reconnect_max: Duration,
    pub(crate) directory: Directory,
    pub(crate) follower: Informer,
    pub(crate) specs: Specs,
    pub(crate) membership: watch::Receiver<Leadership>,
    pub(crate) plans: mpsc::Receiver<PlanRequest>,
    pub(crate) shown: watch::Sender<Shown>,
    pub(crate) clock: SharedClock,
    pub(crate) crash: CrashPoints,
    pub(crate) metrics: SchedulerMetrics,
}

/// One registration and the streams under it.
struct LinkSession {
    fence: Fence,
    attach: Link<DispatcherLink>,
    decide: Link<Decide>,
    /// Credits that the dispatcher has left, as far as we know.
    granted: u32,
    /// Ends the links.
    _stop: tokio_util::sync::DropGuard,
}

/// What changes while the engine runs.
#[derive(Default)]
struct Run {
    session: Option<LinkSession>,
    /// Reports of units that are parked, to be told to the next dispatcher too.
    parked: BTreeMap<UnitId, UnitReport>,
    /// The store that is read; 0 before the first list.
    store: StoreId,
    revision: Revision,
    synced: bool,
    /// No step before this without an event.
    idle_until: Option<Millis>,
    /// When counters were shown, and whether something happened since.
    shown_at: Millis,
    is_unshown: bool,
}

/// What woke the loop.
enum SchedulerEvent {
    Stop,
    Membership(bool),
    LeaseLost,
    Decide(LinkEvent<Decide>),
    Attach(LinkEvent<DispatcherLink>),
    Follow(Option<FollowEvent>),
    Spec(Option<FollowEvent>),
    Plan(PlanRequest),
    Writable,
    Timer,
}

impl Engine {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the registration's task is gone.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), service::Error> {
        let mut run = Run::default();
        self.on_membership(&mut run);
        loop {
            let wake = self.next_wake(&run);
            let event = self.next_event(&mut run, wake, &stop).await;
            if !matches!(event, SchedulerEvent::Timer | SchedulerEvent::Writable) {
                run.idle_until = None;
            }
            match event {
                SchedulerEvent::Stop => return Ok(()),
                SchedulerEvent::Membership(true) => self.on_membership(&mut run),
                SchedulerEvent::Membership(false) if stop.is_cancelled() => return Ok(()),
                SchedulerEvent::Membership(false) => return Err(service::Error::Lease),
                SchedulerEvent::LeaseLost => self.end_session(&mut run),
                SchedulerEvent::Decide(event) => self.on_decide(&mut run, event),
                SchedulerEvent::Attach(event) => self.on_attach(&mut run, event),
                SchedulerEvent::Follow(Some(event)) => self.on_follow(&mut run, event),
                SchedulerEvent::Spec(Some(event)) => self.on_spec(event),
                SchedulerEvent::Spec(None) if stop.is_cancelled() => return Ok(()),
                SchedulerEvent::Spec(None) => return Err(service::Error::Informer),
                SchedulerEvent::Follow(None) if stop.is_cancelled() => return Ok(()),
                SchedulerEvent::Follow(None) => return Err(service::Error::Informer),
                SchedulerEvent::Plan(request) => self.on_plan(request),
                SchedulerEvent::Writable | SchedulerEvent::Timer => {}
            }
            self.drain(&mut run);
            self.specs.follow(self.core.selection().filter(|_| run.synced), &stop);
            self.step(&mut run);
            self.tell_credits(&mut run);
            self.show(&mut run);
        }
    }

    /// Milliseconds until there is something to do without an event; `None`: nothing before one.
    fn next_wake(&self, run: &Run) -> Option<u64> {
        let wake = self.core.next_wake().filter(|_| self.may_step(run));
        let step = wake.map(|wake| wake.max(run.idle_until.unwrap_or_default()));
        let show = run.is_unshown.then(|| run.shown_at.plus(SHOW_MS));
        let now = self.clock.now();
        step.into_iter().chain(show).min().map(|next| next.since(now))
    }

    fn may_step(&self, run: &Run) -> bool {
        let Some(session) = &run.session else { return false };
        // Reports wait for a slow dispatcher only up to a point: a step would add more of them.
        let reports_flow = session.attach.n_queued() < N_REPORTS_QUEUED;
        run.synced && session.fence.is_valid() && session.decide.is_free() && reports_flow
    }

    async fn next_event(
        &mut self,
        run: &mut Run,
        wake: Option<u64>,
        stop: &CancellationToken,
    ) -> SchedulerEvent {
        let timer = async {
            match wake {
                Some(0) => tokio::task::yield_now().await,
                Some(ms) => sleep(Duration::from_millis(ms)).await,
                None => pending().await,
            }
        };
        let Some(session) = &mut run.session else {
            return tokio::select! {
                biased;
                () = stop.cancelled() => SchedulerEvent::Stop,
                changed = self.membership.changed() => SchedulerEvent::Membership(changed.is_ok()),
                event = self.follower.next() => SchedulerEvent::Follow(event),
                event = self.specs.next() => SchedulerEvent::Spec(event),
                Some(request) = self.plans.recv() => SchedulerEvent::Plan(request),
                () = timer => SchedulerEvent::Timer,
            };
        };
        let fence = session.fence.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => SchedulerEvent::Stop,
            changed = self.membership.changed() => SchedulerEvent::Membership(changed.is_ok()),
            () = fence.lost() => SchedulerEvent::LeaseLost,
            event = next_of(&mut session.decide) => event.map_or(SchedulerEvent::Writable, SchedulerEvent::Decide),
            event = next_of(&mut session.attach) => event.map_or(SchedulerEvent::Writable, SchedulerEvent::Attach),
            event = self.follower.next() => SchedulerEvent::Follow(event),
            event = self.specs.next() => SchedulerEvent::Spec(event),
            Some(request) = self.plans.recv() => SchedulerEvent::Plan(request),
            () = timer => SchedulerEvent::Timer,
        }
    }

    fn on_membership(&mut self, run: &mut Run) {
        let membership = self.membership.borrow_and_update().clone();
        match membership {
            Leadership::Leader { epoch, fence, .. } => {
                if run.session.as_ref().is_some_and(|session| session.fence.is_grant(&fence)) {
                    return;
                }
                if !run.store.may_be(fence.store()) {
                    // What is held and decided here is of another store: no stream before this one is read.
                    self.end_session(run);
                    return;
                }
                tracing::info!(name = self.name, epoch = epoch.0, "registered");
                let stop = CancellationToken::new();
                run.session = Some(LinkSession {
                    fence,
                    attach: Link::spawn(&self.directory, self.reconnect_max, stop.clone()),
                    decide: Link::spawn(&self.directory, self.reconnect_max, stop.clone()),
                    granted: 0,
                    _stop: stop.drop_guard(),
                });
            }
            Leadership::Standby { .. } => self.end_session(run),
        }
    }

    /// The lease is lost: no more decisions. Its units are given to others; the next registration attaches
    /// with what is held then, and the dispatcher revokes what is no longer ours.
    fn end_session(&mut self, run: &mut Run) {
        if let Some(session) = run.session.take() {
            tracing::warn!(name = self.name, epoch = session.fence.epoch().0, "registration lost");
        }
    }

    /// The records that follow are of `store`. Units, decisions and reports of another one mean nothing there: this is a
    /// new scheduler.
    fn change_store(&mut self, run: &mut Run, store: StoreId) {
        if run.store != StoreId(0) {
            let (name, before) = (self.name.as_str(), run.store.0);
            tracing::warn!(
                name,
                before,
                store = store.0,
                "the store is another one, everything is forgotten"
            );
            self.end_session(run);
            run.parked.clear();
            self.core = Scheduler::new(self.decides.clone(), self.seed);
            self.specs = Specs::new(self.directory.clone());
        }
        run.store = store;
        self.on_membership(run);
    }

    fn on_decide(&mut self, run: &mut Run, event: LinkEvent<Decide>) {
        let Some(session) = &mut run.session else { return };
        match event {
            LinkEvent::Opening(line) => {
                self.metrics.reconnects.inc();
                let (epoch, store_id) = (session.fence.epoch().0, session.fence.store().0);
                let open = v1::DecideOpen { scheduler: self.name.clone(), epoch, store_id };
                let open = v1::DecideRequest { message: Some(decide_request::Message::Open(open)) };
                let undecided = self.core.undecided();
                self.metrics.decisions.inc_by(undecided.len() as u64);
                let again = messages::decisions(undecided.iter().map(to_proto::decision));
                session.decide.open(line, std::iter::once(open).chain(again));
            }
            LinkEvent::Message(v1::DecideResponse { message }) => match message {
                Some(decide_response::Message::Welcome(welcome)) => {
                    tracing::debug!(binder_epoch = welcome.epoch, "binder answers");
                    session.decide.welcome();
                }
                Some(decide_response::Message::Outcomes(outcomes)) => {
                    let now = self.clock.now();
                    for pb in outcomes.outcomes {
                        self.core.on_outcome(&from_proto::outcome(pb), now);
                    }
                    self.crash.hit("scheduler.after-outcome");
                }
                None => tracing::warn!("the binder sent an empty message"),
            },
            LinkEvent::Closed => session.decide.close(),
        }
    }

    fn on_attach(&mut self, run: &mut Run, event: LinkEvent<DispatcherLink>) {
        let Some(session) = &mut run.session else { return };
        match event {
            LinkEvent::Opening(line) => {
                self.metrics.reconnects.inc();
                let (epoch, store_id) = (session.fence.epoch().0, session.fence.store().0);
                self.core.on_attach();
                let credits = self.core.credits();
                session.granted = credits;
                let inventory = self.core.inventory();
                run.parked.retain(|unit, _| inventory.binary_search_by_key(unit, |(held, _)| *held).is_ok());
                let open = messages::open(&self.name, epoch, store_id, credits, inventory);
                let parked = messages::reports(run.parked.values().map(convert::report));
                session.attach.open(line, open.into_iter().chain(parked));
            }
            LinkEvent::Message(v1::AttachResponse { message }) => match message {
                Some(attach_response::Message::Welcome(welcome)) => {
                    tracing::debug!(dispatcher_epoch = welcome.epoch, "dispatcher answers");
                    session.attach.welcome();
                }
                Some(attach_response::Message::Assign(assignments)) => {
                    for pb in assignments.units {
                        self.on_assign(run, pb);
                    }
                }
                Some(attach_response::Message::Revoke(revocations)) => {
                    for unit in revocations.unit_ids.into_iter().map(UnitId) {
                        run.parked.remove(&unit);
                        self.core.on_revoke(unit);
                    }
                }
                None => tracing::warn!("the dispatcher sent an empty message"),
            },
            LinkEvent::Closed => session.attach.close(),
        }
    }

    fn on_assign(&mut self, run: &mut Run, pb: raw::UnitAssignment) {
        let (unit_id, spec_revision) = (raw::unit_id(&pb.record).unwrap_or_default(), pb.spec_revision);
        match convert::assignment(pb) {
            Ok(assignment) => {
                let n_running_units = u32::try_from(assignment.ordinals.len()).unwrap_or(u32::MAX);
                if let Some(session) = &mut run.session {
                    session.granted = session.granted.saturating_sub(n_running_units);
                }
                run.parked.remove(&assignment.record.id);
                self.core.on_assign(&assignment, self.clock.now());
            }
            Err(bad) => {
                tracing::error!(
                    unit_id,
                    field = bad.path,
                    problem = bad.description,
                    "assignment not understood"
                );
                let report = v1::UnitReport {
                    unit_id,
                    spec_revision,
                    state: v1::UnitReportState::Returned.into(),
                    ..v1::UnitReport::default()
                };
                if let Some(session) = &mut run.session {
                    messages::reports([report]).into_iter().for_each(|message| session.attach.send(message));
                }
            }
        }
    }

    fn on_follow(&mut self, run: &mut Run, event: FollowEvent) {
        let now = self.clock.now();
        match event {
            FollowEvent::Reset { store } => {
                run.synced = false;
                run.revision = Revision(0);
                self.core.on_reset();
                if store != run.store {
                    self.change_store(run, store);
                }
            }
            FollowEvent::Loaded(records) => {
                for record in records {
                    self.core.load(&record.change, record.revision, record.create_time_ms, now);
                }
            }
            FollowEvent::Synced { revision } => {
                run.synced = true;
                run.revision = revision;
                self.core.on_listed(revision);
            }
            FollowEvent::Committed(commit) => {
                self.core.apply(&commit, now);
                run.revision = commit.revision;
            }
        }
    }

    /// Records of units, for the budgets that select them. What was read so far is told by the other follower.
    fn on_spec(&mut self, event: FollowEvent) {
        let now = self.clock.now();
        match event {
            FollowEvent::Loaded(records) => {
                for record in records {
                    self.core.load(&record.change, record.revision, record.create_time_ms, now);
                }
            }
            FollowEvent::Committed(Commit { revision, time_ms, changes }) => {
                for change in &changes {
                    self.core.load(change, revision, time_ms, now);
                }
            }
            // Whoever is selected stays so until its record says otherwise, or goes.
            FollowEvent::Reset { .. } | FollowEvent::Synced { .. } => {}
        }
    }

    fn on_plan(&mut self, request: PlanRequest) {
        let answer = match self.core.welcome(&request.spec, &request.names) {
            Err(wrong) => Err(status::unwelcome(wrong)),
            Ok(()) => {
                let plan = self.core.plan(&request.spec);
                let name = |node: &NodeId| {
                    self.core
                        .cluster()
                        .nodes()
                        .spec(*node)
                        .map_or_else(|| node.to_string(), |spec| spec.name.clone())
                };
                let nodes = plan.nodes.iter().map(name).collect();
                Ok(convert::plan(plan, nodes))
            }
        };
        // The caller may have gone.
        let _ = request.reply.send(answer);
    }

    /// Takes what else has come, so that the next step knows it.
    fn drain(&mut self, run: &mut Run) {
        for _ in 0..N_DRAIN {
            let Some(event) = run.session.as_mut().and_then(|session| session.decide.try_next()) else {
                break;
            };
            self.on_decide(run, event);
        }
        for _ in 0..N_DRAIN {
            let Some(event) = run.session.as_mut().and_then(|session| session.attach.try_next()) else {
                break;
            };
            self.on_attach(run, event);
        }
        for _ in 0..N_DRAIN {
            let Some(event) = self.follower.try_next() else { break };
            self.on_follow(run, event);
        }
        for _ in 0..N_DRAIN {
            let Some(event) = self.specs.try_next() else { break };
            self.on_spec(event);
        }
        if let Some(session) = &mut run.session {
            session.decide.pump();
            session.attach.pump();
        }
    }

    /// Decides a bounded lot and sends it.
    fn step(&mut self, run: &mut Run) {
        let now = self.clock.now();
        if !self.may_step(run) || self.core.next_wake().is_none_or(|wake| wake > now) {
            return;
        }
        let Some(session) = &mut run.session else { return };
        if run.idle_until.is_some_and(|until| until > now) {
            return;
        }
        self.core.on_wall(self.clock.wall_ms());
        let step = self.core.step(now, self.step_budget);
        if step.decisions.is_empty() && step.reports.is_empty() && step.rooms.is_empty() {
            run.idle_until = Some(now.plus(IDLE_MS));
            return;
        }
        if !step.decisions.is_empty() {
            self.crash.hit("scheduler.before-decide");
            self.metrics.decisions.inc_by(step.decisions.len() as u64);
            for message in messages::decisions(step.decisions.iter().map(to_proto::decision)) {
                session.decide.send(message);
            }
        }
        for message in messages::reports(step.reports.iter().map(convert::report)) {
            session.attach.send(message);
        }
        for message in messages::rooms(step.rooms.iter().map(convert::room)) {
            session.attach.send(message);
        }
        for report in step.reports {
            match report.state {
                ReportState::Parked => {
                    run.parked.insert(report.unit, report);
                }
                ReportState::Woken | ReportState::Returned | ReportState::QueueFull | ReportState::Done => {
                    run.parked.remove(&report.unit);
                }
            }
        }
    }

    /// Tells the dispatcher how much more we take when it differs notably from what it knows: by an eighth of
    /// what we hold at most, so that a message goes with tens of thousands of running units, not with each.
    fn tell_credits(&mut self, run: &mut Run) {
        let Some(session) = run.session.as_mut().filter(|session| session.attach.is_free()) else { return };
        let credits = self.core.credits();
        let notable = (self.held_max / 8).max(1);
        if credits.abs_diff(session.granted) >= notable || (session.granted == 0 && credits > 0) {
            session.granted = credits;
            session
                .attach
                .send(v1::AttachRequest { message: Some(attach_request::Message::Credits(credits)) });
        }
    }

    /// Counting takes a look at every node, so it is done now and then only.
    fn show(&mut self, run: &mut Run) {
        let now = self.clock.now();
        if now.since(run.shown_at) < SHOW_MS {
            run.is_unshown = true;
            return;
        }
        run.is_unshown = false;
        run.shown_at = now;
        let epoch = run.session.as_ref().map_or(Epoch(0), |session| session.fence.epoch());
        let stats = self.core.stats();
        let before = self.shown.send_replace(Shown { stats, epoch, revision: run.revision });
        self.metrics.follow(&before.stats, &stats, run.revision.0);
    }
}

/// The next event of a link, or `None` when it takes queued messages again.
async fn next_of<P: crate::link::Protocol>(link: &mut Link<P>) -> Option<LinkEvent<P>> {
    if link.n_queued() > 0 {
        let line = link.line();
        tokio::select! {
            event = link.next() => Some(event),
            () = crate::link::writable(line) => None,
        }
    } else {
        Some(link.next().await)
    }
}
