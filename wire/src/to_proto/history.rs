//! What is kept of units that are deleted.

use godel_domain::{lifecycle::UnitPhase, unit_history::UnitHistory};
use godel_proto::v1;

use super::{phase, unit_end, workload_class};

/// What is kept of a unit.
pub fn unit_history(history: &UnitHistory) -> v1::UnitHistory {
    let UnitHistory {
        id,
        namespace,
        name,
        uid,
        owner,
        queue,
        class,
        phase: ended_in,
        ended,
        created_ms,
        bound_ms,
        ended_ms,
        replicas,
        succeeded,
        failed,
        run_ms,
        used,
        runs,
        starts,
        principal,
    } = history;
    let columns = || v1::RunHistoryColumns {
        ordinals: runs.iter().map(|run| run.ordinal).collect(),
        incarnations: runs.iter().map(|run| run.incarnation).collect(),
        phases: runs.iter().map(|run| phase(run.phase).into()).collect(),
        node_ids: runs.iter().map(|run| run.node.0).collect(),
        exit_codes: runs.iter().map(|run| run.exit_code).collect(),
        restarts: runs.iter().map(|run| run.restarts).collect(),
        bound_times_ms: runs.iter().map(|run| run.bound_ms).collect(),
        ended_times_ms: runs.iter().map(|run| run.ended_ms).collect(),
    };
    v1::UnitHistory {
        unit_id: id.0,
        namespace: namespace.clone(),
        name: name.clone(),
        uid: uid.clone(),
        owner: owner.clone(),
        queue: queue.clone(),
        workload_class: workload_class(*class).into(),
        phase: match ended_in {
            UnitPhase::Completed => v1::UnitPhase::Completed,
            UnitPhase::Cancelled => v1::UnitPhase::Cancelled,
            // Nothing else ends a unit.
            _ => v1::UnitPhase::Failed,
        }
        .into(),
        ended: unit_end(*ended).into(),
        create_time_ms: *created_ms,
        bound_time_ms: *bound_ms,
        ended_time_ms: *ended_ms,
        replicas: *replicas,
        succeeded: *succeeded,
        failed: *failed,
        run_ms: *run_ms,
        resource_seconds: used.iter().map(|(name, amount)| (name.clone(), *amount)).collect(),
        runs: (!runs.is_empty()).then(columns),
        is_kept: false,
        starts: *starts,
        principal: principal.clone(),
    }
}
