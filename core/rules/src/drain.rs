//! Drained nodes: how many running units of one unit may go at a time.
//!
//! Until the deadline a drain takes no more of a unit than it can do without; what cannot be spared waits until
//! those that went run elsewhere.

use std::{fmt, sync::Arc};

use godel_base::ids::ReplicaId;
use godel_domain::{
    budget_spec::BudgetSpec,
    running_units::{Phase, RunningUnit, RunningUnits},
    unit::{UnitRecord, UnitSpec, WorkloadClass},
};

use crate::budget::Budget;

/// A unit as far as a drain is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Wanted.
    pub replicas: u32,
    /// Wanted, running and not told to leave, or over by themselves.
    pub available: u32,
}

impl Standing {
    /// From the rows.
    pub fn of(record: &UnitRecord, rows: &RunningUnits) -> Self {
        let is_there =
            |(ordinal, row): &(u32, &RunningUnit)| is_available(row) && record.group_of(*ordinal).is_some();
        let counts = rows.rows.iter().filter(is_there);
        Self {
            replicas: record.spec.replicas(),
            available: u32::try_from(counts.count()).unwrap_or(u32::MAX),
        }
    }
}

/// Why running units stay for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainBlock {
    /// Of a unit that serves, one replica at most is to be missing.
    Unavailable {
        /// What there is.
        standing: Standing,
    },
    /// Fewer than `min_member` would be left.
    MinMember {
        /// What there is.
        standing: Standing,
        /// What is needed.
        min_member: u32,
    },
    /// Fewer of a task group than its own `min_member` would be left.
    GroupMinimum {
        /// Its name.
        task_group: String,
        /// What there is of it.
        standing: Standing,
        /// What is needed.
        min_member: u32,
    },
    /// A disruption budget allows none of them to leave, or not a whole gang.
    Budget {
        /// Its record.
        budget: Arc<BudgetSpec>,
        /// Running now, of all that it selects.
        available: u64,
        /// Of so many that are to run.
        expected: u64,
    },
    /// What says whether they may leave cannot be read.
    Unreadable,
}

impl DrainBlock {
    /// By a budget as it stands.
    pub fn by(budget: &Budget) -> Self {
        let Budget { spec, used, .. } = budget;
        Self::Budget { budget: Arc::clone(spec), available: used.available, expected: used.expected }
    }
}

impl fmt::Display for DrainBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { standing: Standing { replicas, available } } => {
                write!(f, "{available} of {replicas} replicas are available, one may be missing at a time")
            }
            Self::MinMember { standing: Standing { replicas, available }, min_member } => {
                write!(f, "{available} of {replicas} replicas are available, min_member is {min_member}")
            }
            Self::GroupMinimum { task_group, standing: Standing { replicas, available }, min_member } => {
                write!(
                    f,
                    "{available} of {replicas} replicas of task group {task_group} are available, its min_member is {min_member}"
                )
            }
            Self::Unreadable => {
                f.write_str("a disruption budget, or a unit that it may select, cannot be read")
            }
            Self::Budget { budget, available, expected } => write!(
                f,
                "disruption budget {}: {available} of {expected} are available, {}",
                budget.name, budget.limit
            ),
        }
    }
}

/// How many of `n_running` running replicas on drained nodes may go now; replicas that do not run yet may always. An
/// answer of 0 says why.
///
/// A unit that serves loses one replica at a time. Any other one keeps `min_member`; one that needs every replica
/// goes as a whole, as there is no way to spare any. Replicas of a daemon are of use to their own nodes only, and go with them.
///
/// # Errors
/// None may go.
pub fn spare(spec: &UnitSpec, standing: Standing, n_running: u32) -> Result<u32, DrainBlock> {
    if standing.replicas <= 1 || is_whole(spec) || spec.is_daemon() {
        return Ok(n_running);
    }
    if serves(spec) {
        return if standing.available >= standing.replicas {
            Ok(n_running.min(1))
        } else {
            Err(DrainBlock::Unavailable { standing })
        };
    }
    match standing.available.saturating_sub(spec.min_member) {
        0 => Err(DrainBlock::MinMember { standing, min_member: spec.min_member }),
        n => Ok(n_running.min(n)),
    }
}

/// Returns those of `running` replicas on drained nodes that may go now: as many as [`spare`] says, and of each task group no more than it
/// can do without. A group that needs every replica is no obstacle, as there is no way to spare any. The master of an application
/// goes after the others of it that are on drained nodes.
///
/// # Errors
/// None may go.
pub fn spared(
    record: &UnitRecord,
    rows: &RunningUnits,
    mut running: Vec<ReplicaId>,
) -> Result<Vec<ReplicaId>, DrainBlock> {
    let spec = &record.spec;
    // An application ends with its master, which leaves once the others have been told to.
    if spec.is_of_masters(0) && running.iter().any(|replica| replica.ordinal != 0) {
        running.retain(|replica| replica.ordinal != 0);
    }
    let n_running = u32::try_from(running.len()).unwrap_or(u32::MAX);
    let n = spare(spec, Standing::of(record, rows), n_running)?;
    let mut block = None;
    if spec.has_group_minima() && !is_whole(spec) {
        let mut of_groups: Vec<Standing> = spec
            .task_groups
            .iter()
            .map(|group| Standing { replicas: group.replicas, available: 0 })
            .collect();
        for (ordinal, _) in rows.rows.iter().filter(|(_, row)| is_available(row)) {
            if let Some(group) = record.group_of(ordinal) {
                of_groups[group].available += 1;
            }
        }
        running.retain(|replica| {
            let Some(at) = record.group_of(replica.ordinal) else { return true };
            let (group, standing) = (&spec.task_groups[at], &mut of_groups[at]);
            if group.min_member == 0 || group.min_member >= group.replicas {
                return true;
            }
            let is_spare = standing.available > group.min_member;
            if is_spare {
                standing.available -= 1;
            } else if block.is_none() {
                let (task_group, standing) = (group.name.clone(), *standing);
                block = Some(DrainBlock::GroupMinimum { task_group, standing, min_member: group.min_member });
            }
            is_spare
        });
    }
    running.truncate(n as usize);
    match block {
        Some(block) if running.is_empty() => Err(block),
        _ => Ok(running),
    }
}

/// It runs and stays, or is over by itself.
fn is_available(row: &RunningUnit) -> bool {
    match row.phase {
        Phase::Running => row.eviction.is_none(),
        Phase::Succeeded | Phase::Failed => true,
        Phase::Pending | Phase::Bound | Phase::Starting | Phase::Stopped => false,
    }
}

fn serves(spec: &UnitSpec) -> bool {
    matches!(spec.class, WorkloadClass::Service | WorkloadClass::Stateful)
}

/// It needs every replica: what is on drained nodes leaves together.
pub fn is_whole(spec: &UnitSpec) -> bool {
    !serves(spec) && spec.min_member >= spec.replicas()
}

#[cfg(test)]
mod tests {
    use godel_base::ids::UnitId;
    use godel_domain::{
        running_units::EvictionReason,
        submission::{GroupSubmission, Submission},
    };
    use godel_testkit::BuildUnit as _;

    use super::*;
    use crate::admission::admit;

    fn unit(class: WorkloadClass, replicas: u32, min_member: u32) -> UnitRecord {
        let group = GroupSubmission { replicas, ..GroupSubmission::default() };
        let submission = Submission {
            name: "u".to_owned(),
            uid: "0190163d-8694-739b-aea5-000000000001".to_owned(),
            task_groups: vec![group],
            ..Submission::default()
        };
        UnitRecord::new(UnitId(1), admit(submission).unwrap().spec).class(class).min_member(min_member)
    }

    #[test]
    fn each_kind_of_unit_spares_what_it_can() {
        use WorkloadClass::{Batch, Daemon, Gang, Service, Stateful};
        // Class, replicas, min_member, available, running on drained nodes; may go, `None`: blocked.
        for (class, replicas, min_member, available, n_running, expected) in [
            (Service, 1, 1, 1, 1, Some(1)),
            (Service, 3, 1, 3, 3, Some(1)),
            (Service, 3, 1, 2, 2, None),
            (Service, 3, 3, 3, 2, Some(1)),
            (Stateful, 2, 2, 1, 1, None),
            (Gang, 4, 4, 4, 2, Some(2)),
            (Gang, 4, 4, 1, 1, Some(1)),
            (Gang, 8, 4, 8, 8, Some(4)),
            (Gang, 8, 4, 4, 2, None),
            (Daemon, 5, 1, 2, 2, Some(2)),
            (Batch, 5, 1, 5, 5, Some(4)),
            (Batch, 5, 1, 1, 1, None),
            (Batch, 5, 1, 5, 2, Some(2)),
        ] {
            let unit = unit(class, replicas, min_member);
            let given = spare(&unit.spec, Standing { replicas, available }, n_running);
            assert_eq!(given.ok(), expected, "{class:?} {replicas} {min_member} {available} {n_running}");
        }
    }

    #[test]
    fn the_master_of_an_application_goes_after_its_containers() {
        let record = unit(WorkloadClass::Yarn, 4, 1);
        let row = |phase| RunningUnit { phase, ..RunningUnit::default() };
        let going = |phases: [Phase; 4], drained: &[u32]| {
            let rows =
                RunningUnits { rows: phases.map(row).into_iter().collect(), ..RunningUnits::default() };
            let running = drained.iter().map(|ordinal| ReplicaId::new(*ordinal, 0)).collect();
            let going = spared(&record, &rows, running);
            going.map(|going| going.iter().map(|one| one.ordinal).collect::<Vec<_>>())
        };
        let running = [Phase::Running; 4];
        assert_eq!(going(running, &[0, 1, 2, 3]), Ok(vec![1, 2, 3]));
        assert_eq!(going(running, &[0, 2]), Ok(vec![2]));
        // Its containers are told to leave, or elsewhere.
        assert_eq!(going(running, &[0]), Ok(vec![0]));
        let alone = [Phase::Running, Phase::Stopped, Phase::Stopped, Phase::Pending];
        let standing = Standing { replicas: 4, available: 1 };
        assert_eq!(going(alone, &[0]), Err(DrainBlock::MinMember { standing, min_member: 1 }));
    }

    #[test]
    fn each_task_group_keeps_its_own_minimum() {
        let group = |name: &str, replicas, min_member| GroupSubmission {
            name: name.to_owned(),
            replicas,
            min_member: Some(min_member),
            ..GroupSubmission::default()
        };
        // A launcher that is needed, and of four workers two.
        let submission = Submission {
            name: "u".to_owned(),
            uid: "0190163d-8694-739b-aea5-000000000001".to_owned(),
            task_groups: vec![group("launcher", 1, 1), group("workers", 4, 2), group("others", 3, 1)],
            ..Submission::default()
        };
        let unit = UnitRecord::new(UnitId(1), admit(submission).unwrap().spec);
        // Workers that run, ordinals on drained nodes; who may go, or the group that keeps all.
        for (n_workers, drained, expected) in [
            (4, &[1, 2, 3][..], Ok(vec![1, 2])),
            (3, &[1, 2, 3], Ok(vec![1])),
            (2, &[1, 2], Err("workers")),
            (2, &[1, 2, 5], Ok(vec![5])),
            (4, &[0], Ok(vec![0])),
        ] {
            let row = |ordinal: u32| {
                let phase = match (1..5).contains(&ordinal) && ordinal > n_workers {
                    true => Phase::Pending,
                    false => Phase::Running,
                };
                RunningUnit { phase, ..RunningUnit::default() }
            };
            let rows = RunningUnits { rows: (0..8).map(row).collect(), ..RunningUnits::default() };
            let running = drained.iter().map(|ordinal| ReplicaId::new(*ordinal, 0)).collect();
            let going = spared(&unit, &rows, running)
                .map(|going| going.iter().map(|one| one.ordinal).collect::<Vec<_>>());
            let going = going.map_err(|block| match block {
                DrainBlock::GroupMinimum { task_group, .. } => task_group,
                other => panic!("{other}"),
            });
            assert_eq!(going, expected.map_err(str::to_owned), "{n_workers} {drained:?}");
        }
    }

    #[test]
    fn available_is_what_runs_and_what_is_done() {
        let unit = unit(WorkloadClass::Batch, 6, 1);
        let row = |phase, eviction| RunningUnit { phase, eviction, ..RunningUnit::default() };
        let rows = vec![
            row(Phase::Running, None),
            row(Phase::Running, Some(EvictionReason::Drained)),
            row(Phase::Starting, None),
            row(Phase::Succeeded, None),
            row(Phase::Stopped, None),
            row(Phase::Pending, None),
            row(Phase::Running, None),
        ];
        let standing = Standing::of(&unit, &RunningUnits { rows: rows.into(), ..RunningUnits::default() });
        assert_eq!(standing, Standing { replicas: 6, available: 2 }, "ordinal 6 is not wanted");
        let said = spare(&unit.spec, Standing { available: 1, ..standing }, 1).unwrap_err().to_string();
        assert_eq!(said, "1 of 6 replicas are available, min_member is 1");
    }
}
