//! Single replicas that come at a steady rate and end, so that a share of the nodes' room stays taken.

use godel_client::exit::Failure;
use godel_proto::v1;

use super::{Maker, Plan, measured};
use crate::load::Load;

/// What each takes of a CPU, thousandths.
const CPU_MILLI: u64 = 500;

/// What is offered, and to which nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing {
    pub(crate) nodes: usize,
    /// CPUs of each node.
    pub(crate) node_cpu: u32,
    pub(crate) rate: u32,
    pub(crate) units: usize,
    /// Per cent of the nodes' room that are taken once as many end as come.
    pub(crate) fill: u32,
    pub(crate) seed: u64,
}

impl Passing {
    /// How long each has to run, milliseconds: as many are on the nodes as come in that time.
    ///
    /// # Errors
    /// That is no time at all.
    fn run_ms(&self) -> Result<u64, Failure> {
        let of_node = u64::from(self.node_cpu) * 1_000 / CPU_MILLI;
        let room = u64::try_from(self.nodes).unwrap_or(u64::MAX).saturating_mul(of_node);
        let run_ms =
            room.saturating_mul(u64::from(self.fill)).saturating_mul(10) / u64::from(self.rate.max(1));
        if run_ms == 0 {
            return Err(Failure::usage("a replica would end before it began").hint("use more --nodes"));
        }
        Ok(run_ms)
    }

    /// What to do.
    ///
    /// # Errors
    /// The nodes have too little room for such a rate.
    pub(crate) fn plan(&self) -> Result<Plan, Failure> {
        let mut maker = Maker::lasting(self.seed, self.run_ms()?);
        let mut load = Load::default();
        for _ in 0..self.units {
            load.push(&maker.unit(v1::WorkloadClass::Service, 1));
        }
        let memory_gib = u64::from(self.node_cpu) * 4;
        let shapes = vec![format!("{}x cpu={},memory={memory_gib}Gi", self.nodes, self.node_cpu)];
        Ok(Plan { shapes, steps: vec![measured(load)] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_run_as_fill_the_nodes() {
        let passing = Passing { nodes: 100, node_cpu: 4, rate: 2_000, units: 3, fill: 90, seed: 1 };
        // 720 of 800 places, 2,000 of which are taken anew each second.
        assert_eq!(passing.run_ms().unwrap(), 360);
        let plan = passing.plan().unwrap();
        assert_eq!(plan.shapes, ["100x cpu=4,memory=16Gi"]);
        let load = &plan.steps[0].load;
        assert_eq!((load.len(), load.n_replicas()), (3, 3));
        let unit = load.units().next().unwrap().unwrap();
        let run = unit.task_groups[0].template.as_ref().unwrap().run.as_ref().unwrap();
        assert_eq!(run.simulated_duration_ms, Some(360));
        assert!(Passing { nodes: 1, rate: 1_000_000, ..passing }.plan().is_err());
    }
}
