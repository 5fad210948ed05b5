//! Submission, queue, hand-out and what comes back.

use std::sync::Arc;

use godel_base::{
    ids::{Epoch, NodeId, Revision},
    time::Millis,
};
use godel_core_dispatcher::{Action, Attach, Config, Dispatcher, NameClaim, SessionId};
use godel_domain::{
    assignment::Assignment,
    change::Lease,
    running_units::{Bind, RunChange},
    submission::Submission,
    txn::Receipt,
    unit::{UnitRecord, UnitSpec, WorkloadClass},
    unit_report::{ReportState, UnitReport},
};
use godel_rules::admission::admit;

use super::{
    Checksum, Done, Size, Work,
    world::{equal_nodes, plain, submission, unit},
};

/// Units that one transaction of submissions holds.
const N_TOGETHER: usize = 64;
const N_SCHEDULERS: u64 = 2;
const CREDITS: u32 = 200_000;
const NOW: Millis = Millis(1_000);
/// Enough to be feasible; nodes play no other part here.
const N_NODES: u32 = 100;

struct Dispatching {
    core: Dispatcher,
    revision: u64,
    units: Vec<Arc<UnitRecord>>,
    assigned: Vec<(SessionId, Assignment)>,
}

impl Dispatching {
    fn new(n_units: u32, replicas: u32) -> Self {
        let units = (1..=u64::from(n_units))
            .map(|id| Arc::new(unit(id, WorkloadClass::Service, replicas, plain())))
            .collect();
        let mut core = Dispatcher::new(Config::default());
        core.on_reset();
        let created = Receipt { revision: Revision(1), time_ms: 1 };
        for change in equal_nodes(N_NODES) {
            core.on_change(&change, Revision(1), created, NOW);
        }
        core.on_synced(Revision(1), NOW);
        for number in 1..=N_SCHEDULERS {
            let name = format!("s{number}");
            let lease = Lease {
                name: format!("scheduler/{name}"),
                holder: name.clone(),
                epoch: Epoch(1),
                ..Lease::default()
            };
            core.streams().on_lease(&lease, NOW);
            let session = SessionId(number);
            let attach = Attach { name, epoch: Epoch(1), session, inventory: Vec::new(), credits: CREDITS };
            core.streams().on_attached(attach, NOW).expect("the lease is in force");
        }
        Self { core, revision: 1, units, assigned: Vec::new() }
    }

    /// Reserved, committed and seen.
    fn submit(&mut self, units: &[Arc<UnitRecord>]) {
        for unit in units {
            let reserved =
                self.core.assignments_mut().reserve(&unit.spec.namespace, &unit.spec.name, &unit.spec.uid);
            debug_assert_eq!(reserved, NameClaim::New(unit.id));
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        for unit in units {
            self.core.on_unit(Arc::clone(unit), revision, Receipt { revision, time_ms: 1 }, NOW);
        }
        self.core.on_revision(revision);
    }

    /// The scheduler places all of it, says so, and has room again.
    fn place(&mut self, session: SessionId, one: &Assignment) {
        let unit = one.record.id;
        self.revision += 1;
        let bind = Bind {
            demand: Arc::default(),
            ordinals: one.ordinals.clone(),
            nodes: vec![NodeId(1); one.ordinals.len()],
            ..Bind::default()
        };
        self.core.on_rows(unit, &RunChange::Bind(bind), Revision(self.revision), 1, NOW);
        self.core.on_revision(Revision(self.revision));
        let report = UnitReport {
            unit,
            spec_revision: one.revision,
            state: ReportState::Done,
            refusals: None,
            need: 0,
            unplaced: None,
            lacking: Vec::new(),
            assigned: 0,
        };
        self.core.streams().on_report(session, report, NOW);
    }
}

impl Work for Dispatching {
    fn run(&mut self) {
        let units = std::mem::take(&mut self.units);
        for some in units.chunks(N_TOGETHER) {
            self.submit(some);
            let first = self.assigned.len();
            for action in self.core.step(NOW) {
                if let Action::Assign(session, assignment) = action {
                    self.assigned.push((session, assignment));
                }
            }
            let assigned = self.assigned.split_off(first);
            for (session, one) in &assigned {
                self.place(*session, one);
            }
            self.assigned.extend(assigned);
            for number in 1..=N_SCHEDULERS {
                self.core.streams().on_credits(SessionId(number), CREDITS);
            }
        }
        self.units = units;
    }

    fn done(&self) -> Done {
        let (mut n_ops, mut checksum) = (0, Checksum::default());
        for (session, one) in &self.assigned {
            n_ops += one.ordinals.len() as u64;
            for value in [one.record.id.0, session.0, one.ordinals.len() as u64] {
                checksum.add(value);
            }
        }
        Done { n_ops, checksum: checksum.0 }
    }
}

pub(super) fn service(size: Size) -> Box<dyn Work> {
    Box::new(Dispatching::new(size.pick(1_000, 50), 1_000))
}

pub(super) fn single(size: Size) -> Box<dyn Work> {
    Box::new(Dispatching::new(size.pick(50_000, 5_000), 1))
}

struct Admitting {
    submissions: Vec<Submission>,
    admitted: Vec<UnitSpec>,
}

pub(super) fn admission(size: Size) -> Box<dyn Work> {
    let units = 1..=u64::from(size.pick(50_000, 5_000));
    let submissions = units.map(|id| submission(id, WorkloadClass::Service, 1, plain())).collect();
    Box::new(Admitting { submissions, admitted: Vec::new() })
}

impl Work for Admitting {
    fn run(&mut self) {
        let submissions = std::mem::take(&mut self.submissions);
        self.admitted.extend(submissions.into_iter().filter_map(|one| admit(one).ok()).map(|one| one.spec));
    }

    fn done(&self) -> Done {
        let mut checksum = Checksum::default();
        for spec in &self.admitted {
            checksum.add_text(&spec.name);
            checksum.add(u64::from(spec.min_member));
        }
        Done { n_ops: self.admitted.len() as u64, checksum: checksum.0 }
    }
}
