//! Why a unit fits nowhere, asked of a full cluster.

use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_core_scheduler::{Config, PlanReport, Scheduler};
use godel_domain::{
    change::Change,
    unit::{UnitRecord, WorkloadClass},
};

use super::{
    Checksum, Done, Size, Work,
    world::{ScenarioNumbers, fill, plain, trace_nodes, trace_task, unit},
};

const NOW: Millis = Millis(1_000);

struct Explaining {
    core: Scheduler,
    units: Vec<UnitRecord>,
    reports: Vec<PlanReport>,
}

/// Half of the units are plain, the others have the trace's shapes.
pub(super) fn full(size: Size) -> Box<dyn Work> {
    let nodes = trace_nodes(size.pick(20_000, 1_000));
    let rows = fill(&nodes, |_| 0);
    let mut core = Scheduler::new(Config::default(), 1);
    for (revision, change) in (1..).zip(&nodes) {
        core.load(change, Revision(revision), 1, NOW);
    }
    core.load(&Change::RowsLoaded(UnitId(1 << 40), rows), Revision(1 << 40), 1, NOW);
    let mut numbers = ScenarioNumbers::new(3);
    let units = (1..=u64::from(size.pick(40, 10))).map(|id| {
        let group = if id % 2 == 0 { plain() } else { trace_task(&mut numbers) };
        unit(id, WorkloadClass::Service, 1, group)
    });
    let units = units.collect();
    Box::new(Explaining { core, units, reports: Vec::new() })
}

impl Work for Explaining {
    fn run(&mut self) {
        for unit in &self.units {
            self.reports.push(self.core.plan(&unit.spec));
        }
    }

    fn done(&self) -> Done {
        let mut checksum = Checksum::default();
        for refusals in self.reports.iter().filter_map(|report| report.refusals.as_ref()) {
            for reason in &refusals.reasons {
                checksum.add_text(&reason.reason);
                checksum.add(u64::from(reason.nodes));
            }
            checksum.add_text(&refusals.nearest_miss);
        }
        Done { n_ops: self.reports.len() as u64, checksum: checksum.0 }
    }
}
