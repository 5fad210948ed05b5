//! Forms of every operation that can be read and make no sense: state refuses each by the path of its field, and what a store holds already
//! stays readable.
#![allow(clippy::too_many_lines, reason = "tables")]

use godel_proto::{
    kinds::KINDS,
    v1::{self, op::Op},
};
use prost_reflect::DescriptorPool;

use super::*;

/// An odd form, and the path by which it is refused.
type Odd = (&'static str, Op);

/// Longer than any name.
fn long() -> String {
    "x".repeat(300)
}

/// A line of the change log.
pub(super) fn change() -> Op {
    let call = v1::CallCause {
        principal: "ann".to_owned(),
        method: "/godel.v1.UnitService/CancelUnit".to_owned(),
        objects: vec!["unit/team-a/web".to_owned(), "unit/team-a/db".to_owned()],
        more_objects: 1,
        namespace: "team-a".to_owned(),
        address: "10.0.0.1:7".to_owned(),
    };
    let refused = "namespace".to_owned();
    Op::PutChange(v1::ChangeRecord {
        change_id: 7,
        call: Some(call),
        refused,
        calls: 3,
        first_ms: 5,
        more_calls: 2,
    })
}

/// Samples of an operation, each changed in one way.
macro_rules! odd {
    ($variant:ident: $($path:literal => |$it:ident| $change:expr;)*) => {
        [$({
            let sample = samples().into_iter().find_map(|op| match op {
                Op::$variant(it) => Some(it),
                _ => None,
            });
            let mut $it = sample.expect("every operation has a sample");
            $change;
            ($path, Op::$variant($it))
        }),*]
    };
}

mod units;

fn amounts(name: &str, amount: i64) -> Option<v1::Resources> {
    Some(v1::Resources { amounts: [(name.to_owned(), amount)].into() })
}

fn percent(percent: u32) -> v1::BudgetAmount {
    v1::BudgetAmount { amount: Some(v1::budget_amount::Amount::Percent(percent)) }
}

fn victim(unit_id: u64) -> v1::Victim {
    v1::Victim { unit_id, ordinal: 1, incarnation: 0 }
}

fn nodes() -> Vec<Odd> {
    let mut odd_forms = odd! { PutNodeSpec:
        "put_node_spec.node_id" => |it| it.node_id = 0;
        "put_node_spec.meta.name" => |it| it.meta.as_mut().unwrap().name.clear();
        "put_node_spec.meta.name" => |it| it.meta.as_mut().unwrap().name = long();
        "put_node_spec.meta.labels[\"\"]" => |it| it.meta.as_mut().unwrap().labels = [(String::new(), String::new())].into();
        "put_node_spec.taints[0].key" => |it| it.taints[0].key.clear();
        "put_node_spec.taints[0].effect" => |it| it.taints[0].effect = 0;
        "put_node_spec.taints[1]" => |it| it.taints.push(it.taints[0].clone());
        "put_node_spec.drain.deadline_ms" => |it| it.drain = Some(v1::NodeDrain { since_ms: 9, deadline_ms: 8, ..v1::NodeDrain::default() });
        "put_node_spec.quarantine.until_ms" => |it| it.quarantine = Some(v1::NodeQuarantine { since_ms: 9, until_ms: 8, ..v1::NodeQuarantine::default() });
        "put_node_spec.notice.deadline_ms" => |it| it.notice = Some(v1::NodeNotice { since_ms: 9, deadline_ms: 8, ..v1::NodeNotice::default() });
        "put_node_spec.drain.since_ms" => |it| it.drain = Some(v1::NodeDrain { since_ms: -1, ..v1::NodeDrain::default() });
    }
    .to_vec();
    odd_forms.extend(odd! { PutNodeReport:
        "put_node_report.node_id" => |it| it.node_id = 0;
        "put_node_report.capacity.amounts[cpu]" => |it| it.capacity = amounts("cpu", -1);
        "put_node_report.capacity.amounts" => |it| it.capacity = amounts("", 1);
        "put_node_report.devices[0].kind" => |it| it.devices[0].kind.clear();
        "put_node_report.attributes[\"\"]" => |it| it.attributes = [(String::new(), String::new())].into();
        "put_node_report.address" => |it| it.address = long();
        "put_node_report.runtime" => |it| it.runtime = 99;
    });
    odd_forms.extend(odd! { PutNodeAllocatable:
        "put_node_allocatable.node_id" => |it| it.node_id = 0;
        "put_node_allocatable.allocatable.amounts[cpu]" => |it| it.allocatable = amounts("cpu", -1);
        "put_node_allocatable.allocatable.amounts" => |it| it.allocatable = amounts(&long(), 1);
    });
    odd_forms.extend(odd! { PutNodeUsage:
        "put_node_usage.node_id" => |it| it.node_id = 0;
        "put_node_usage.reserved.amounts[cpu]" => |it| it.reserved = amounts("cpu", -1);
        "put_node_usage.as_of_ms" => |it| it.as_of_ms = -1;
        "put_node_usage.load.p50.cpu" => |it| {
            let (p50, p95) = (v1::LoadAmounts { cpu: 5, ..v1::LoadAmounts::default() }, v1::LoadAmounts::default());
            it.load = Some(v1::NodeLoad { p50: Some(p50), p95: Some(p95) });
        };
        "put_node_usage.load.p95.memory" => |it| {
            let p95 = v1::LoadAmounts { memory: -5, ..v1::LoadAmounts::default() };
            it.load = Some(v1::NodeLoad { p50: None, p95: Some(p95) });
        };
    });
    odd_forms
}

fn of_units() -> Vec<Odd> {
    let mut odd_forms = odd! { PutTaskGroup:
        "put_task_group.unit_id" => |it| it.unit_id = 0;
        "put_task_group.task_group" => |it| it.task_group = 1_024;
        "put_task_group.group" => |it| it.group = None;
        "put_task_group.group.name" => |it| it.group.as_mut().unwrap().name.clear();
        "put_task_group.group.replicas" => |it| it.group.as_mut().unwrap().replicas = 3;
        "put_task_group.group.min_member" => |it| it.group.as_mut().unwrap().min_member = Some(3);
        "put_task_group.ordinals.ranges[0]" => |it| it.ordinals.as_mut().unwrap().ranges[0].end = u32::MAX;
    }
    .to_vec();
    odd_forms.extend(odd! { PutUnitHistory:
        "put_unit_history.unit_id" => |it| it.unit_id = 0;
        "put_unit_history.namespace" => |it| it.namespace.clear();
        "put_unit_history.name" => |it| it.name.clear();
        "put_unit_history.name" => |it| it.name = long();
        "put_unit_history.phase" => |it| it.phase = v1::UnitPhase::Running.into();
        "put_unit_history.ended_time_ms" => |it| it.ended_time_ms = -1;
        "put_unit_history.replicas" => |it| it.failed = 1;
        "put_unit_history.runs.phases" => |it| it.runs.as_mut().unwrap().phases.clear();
        "put_unit_history.runs.ordinals[1]" => |it| it.runs.as_mut().unwrap().ordinals = vec![1, 1];
        "put_unit_history.runs.node_ids[1]" => |it| it.runs.as_mut().unwrap().node_ids[1] = 0;
        "put_unit_history.runs.bound_times_ms[0]" => |it| it.runs.as_mut().unwrap().bound_times_ms[0] = -1;
        "put_unit_history.runs.ordinals" => |it| {
            let n = 1_001;
            let ordinals = (0..n).collect();
            let (zeros, ones, times) = (vec![0; 1_001], vec![1; 1_001], vec![1; 1_001]);
            it.runs = Some(v1::RunHistoryColumns {
                ordinals,
                incarnations: zeros.clone(),
                phases: vec![v1::RunPhase::Succeeded.into(); 1_001],
                node_ids: ones,
                exit_codes: vec![0; 1_001],
                restarts: zeros,
                bound_times_ms: times.clone(),
                ended_times_ms: times,
            });
        };
    });
    odd_forms.extend(odd! { PutHold:
        "put_hold.hold_id" => |it| it.hold_id = 0;
        "put_hold.node_id" => |it| it.node_id = 0;
        "put_hold.unit_id" => |it| it.unit_id = 0;
        "put_hold.task_group" => |it| it.task_group = 1_024;
        "put_hold.ordinals" => |it| {
            it.ordinals.clear();
            it.incarnations.clear();
            it.device_masks.clear();
        };
        "put_hold.ordinals[1]" => |it| it.ordinals = vec![1, 1];
        "put_hold.incarnations" => |it| it.incarnations.push(1);
        "put_hold.expires_ms" => |it| it.expires_ms = -1;
        "put_hold.pool" => |it| it.pool = 99;
        "put_hold.victims[0].unit_id" => |it| it.victims = vec![victim(0)];
        "put_hold.victims[0].unit_id" => |it| it.victims = vec![victim(7)];
        "put_hold.queue_victims[1]" => |it| it.queue_victims = vec![victim(8); 2];
        "put_hold.taken_from" => |it| it.taken_from = (1..18).collect();
        "put_hold.taken_from[1]" => |it| it.taken_from = vec![3, 3];
        "put_hold.victims" => |it| it.turn = Some(v1::GangTurn::default());
        "put_hold.slot" => |it| {
            (it.turn, it.slot) = (Some(v1::GangTurn::default()), Some(v1::ReservationSlot::default()));
        };
        "put_hold.slot.reservation" => |it| {
            (it.victims, it.queue_victims, it.unit_id) = (Vec::new(), Vec::new(), 0);
            it.slot = Some(v1::ReservationSlot::default());
        };
        "put_hold.unit_id" => |it| {
            (it.victims, it.queue_victims) = (Vec::new(), Vec::new());
            it.slot = Some(v1::ReservationSlot { reservation: "r".to_owned(), occupant: None });
        };
        "put_hold.movement.movement" => |it| {
            (it.victims, it.queue_victims) = (Vec::new(), Vec::new());
            it.movement = Some(v1::MovementTarget { movement: String::new(), from: Some(victim(7)) });
        };
        "put_hold.movement.from.unit_id" => |it| {
            (it.victims, it.queue_victims) = (Vec::new(), Vec::new());
            it.movement = Some(v1::MovementTarget { movement: "pack-1".to_owned(), from: Some(victim(8)) });
        };
    });
    odd_forms
}

fn of_people() -> Vec<Odd> {
    let mut odd_forms = odd! { PutQueue:
        "put_queue.meta.name" => |it| it.meta.as_mut().unwrap().name.clear();
        "put_queue.meta.name" => |it| it.meta.as_mut().unwrap().name = "a..b".to_owned();
        "put_queue.meta.name" => |it| it.meta.as_mut().unwrap().name = long();
        "put_queue.meta.namespace" => |it| it.meta.as_mut().unwrap().namespace = "x".to_owned();
        "put_queue.min[\"cpu\"]" => |it| it.min = amounts("cpu", -1);
        "put_queue.min.amounts[\"cpu\"]" => |it| it.min = amounts("cpu", 6);
        "put_queue.max.amounts[\"\"]" => |it| it.max = amounts("", 6);
        "put_queue.weight" => |it| it.weight = Some(0);
        "put_queue.weight" => |it| it.weight = Some(u32::MAX);
        "put_queue.policy" => |it| it.policy = 99;
        "put_queue.max_running_units" => |it| it.max_running_units = Some(0);
        "put_queue.owner_weights[\"n\"]" => |it| it.owner_weights = [("n".to_owned(), 0)].into();
        "put_queue.owner_weights[\"\"]" => |it| it.owner_weights = [(String::new(), 1)].into();
        "put_queue.submit_owners[0]" => |it| it.submit_owners = vec![String::new()];
        "put_queue.submit_owners[1]" => |it| it.submit_owners = vec!["n".to_owned(); 2];
        "put_queue.am_share_milli" => |it| it.am_share_milli = Some(1_001);
    }
    .to_vec();
    odd_forms.extend(odd! { PutPriorityClass:
        "put_priority_class.name" => |it| it.name.clear();
        "put_priority_class.name" => |it| it.name = long();
        "put_priority_class.value" => |it| it.value = i32::MAX;
        "put_priority_class.description" => |it| it.description = "x".repeat(1_025);
    });
    odd_forms.extend(odd! { PutDisruptionBudget:
        "put_disruption_budget.name" => |it| it.name.clear();
        "put_disruption_budget.name" => |it| it.name = long();
        "put_disruption_budget.unit" => |it| it.unit = "web".to_owned();
        "put_disruption_budget.unit" => |it| it.selector.clear();
        "put_disruption_budget.max_unavailable" => |it| it.limit = Some(v1::disruption_budget::Limit::MaxUnavailable(percent(101)));
        "put_disruption_budget.min_available" => |it| it.limit = Some(v1::disruption_budget::Limit::MinAvailable(v1::BudgetAmount::default()));
        "put_disruption_budget.description" => |it| it.description = "x".repeat(1_025);
    });
    odd_forms.extend(odd! { PutReservation:
        "put_reservation.name" => |it| it.name.clear();
        "put_reservation.selector" => |it| it.selector.clear();
        "put_reservation.slots" => |it| it.slots = u32::MAX;
        "put_reservation.demand" => |it| it.demand = None;
        "put_reservation.demand.requests.amounts[cpu]" => |it| it.demand.as_mut().unwrap().requests = amounts("cpu", -1);
        "put_reservation.expires_ms" => |it| it.expires_ms = Some(0);
        "put_reservation.node_selector[\"\"]" => |it| it.node_selector = [(String::new(), String::new())].into();
    });
    odd_forms.extend(odd! { PutPause:
        "put_pause.scope" => |it| it.scope = "nobody".to_owned();
        "put_pause.scope" => |it| it.scope.clear();
        "put_pause.since_ms" => |it| it.since_ms = -1;
        "put_pause.reason" => |it| it.reason = "x".repeat(1_025);
    });
    odd_forms
}

fn of_services() -> Vec<Odd> {
    let mut odd_forms = odd! { PutLease:
        "put_lease.lease" => |it| it.lease.clear();
        "put_lease.lease" => |it| it.lease = long();
        "put_lease.epoch" => |it| it.epoch = 0;
        "put_lease.ttl_ms" => |it| it.ttl_ms = 0;
    }
    .to_vec();
    odd_forms.extend(odd! { PutPartition:
        "put_partition.name" => |it| it.name = "other".to_owned();
        "put_partition.mode" => |it| it.mode = 0;
        "put_partition.mode" => |it| it.mode = 99;
        "put_partition.schedulers[0]" => |it| it.schedulers[0].clear();
        "put_partition.schedulers[1]" => |it| it.schedulers = vec!["s1".to_owned(); 2];
        "put_partition.node_ids[0]" => |it| it.node_ids[0] = 0;
        "put_partition.node_ids[1]" => |it| it.node_ids = vec![1, 1];
        "put_partition.slots[0]" => |it| it.slots[0] = 1;
        "put_partition.change_time_ms" => |it| it.change_time_ms = -1;
    });
    odd_forms.extend(odd! { PutPartitionBlock:
        "put_partition_block.block_id" => |it| it.block_id = 0;
        "put_partition_block.block_id" => |it| it.block_id = u32::MAX;
        "put_partition_block.slots" => |it| it.slots = vec![0; 65];
    });
    odd_forms.extend(odd! { PutMovement:
        "put_movement.name" => |it| it.name.clear();
        "put_movement.name" => |it| it.name = "x".repeat(81);
        "put_movement.policy" => |it| it.policy = "x".repeat(81);
        "put_movement.phase" => |it| it.phase = 0;
        "put_movement.ending" => |it| it.ending = v1::MovementPhase::Running.into();
        "put_movement.ended_ms" => |it| it.ended_ms = 5;
        "put_movement.ended_ms" => |it| (it.phase, it.created_ms, it.ended_ms) = (v1::MovementPhase::Done.into(), 9, 8);
        "put_movement.objective_after" => |it| it.objective_after = f64::NAN;
        "put_movement.batch" => |it| it.batch = 1;
        "put_movement.moves[0].unit_id" => |it| it.moves[0].unit_id = 0;
        "put_movement.moves[0].to_node_id" => |it| it.moves[0].to_node_id = 1;
        "put_movement.moves[0].surge_ordinal" => |it| it.moves[0].surge_ordinal = Some(0);
        "put_movement.moves[0].batch" => |it| it.moves[0].batch = 1;
        "put_movement.moves[0].changed_ms" => |it| it.moves[0].changed_ms = -1;
        "put_movement.moves[0].reason.numbers[0].value" => |it| {
            let numbers = vec![v1::MovementNumber { name: "load".to_owned(), value: f64::INFINITY }];
            it.moves[0].reason = Some(v1::MovementReason { numbers, ..v1::MovementReason::default() });
        };
    });
    odd_forms.extend(odd! { PutMoveRate:
        "put_move_rate.unit_id" => |it| it.unit_id = 0;
        "put_move_rate.times_ms" => |it| it.times_ms = vec![2, 1];
        "put_move_rate.times_ms[0]" => |it| it.times_ms = vec![-1, 1];
        "put_move_rate.times_ms" => |it| it.times_ms = vec![1; 1_025];
    });
    odd_forms.extend(odd! { PutYarnKeys:
        "put_yarn_keys.name" => |it| it.name.clear();
        "put_yarn_keys.name" => |it| it.name = long();
        "put_yarn_keys.keys" => |it| it.keys.clear();
        "put_yarn_keys.keys.key_id" => |it| it.keys.push(it.keys[0].clone());
        "put_yarn_keys.keys.key_id" => |it| it.keys[0].key_id = 0;
        "put_yarn_keys.keys.secret" => |it| it.keys[0].secret = vec![1];
        "put_yarn_keys.keys[0].from_ms" => |it| it.keys[0].from_ms = -1;
    });
    odd_forms
}

fn of_identities() -> Vec<Odd> {
    let mut odd_forms = odd! { PutTrustRoots:
        "put_trust_roots.name" => |it| it.name.clear();
        "put_trust_roots.name" => |it| it.name = "other".to_owned();
        "put_trust_roots.cluster" => |it| it.cluster.clear();
        "put_trust_roots.cluster" => |it| it.cluster = "Godel 1".to_owned();
        "put_trust_roots.cluster" => |it| it.cluster = "x".repeat(64);
        "put_trust_roots.roots" => |it| it.roots.clear();
        "put_trust_roots.roots" => |it| it.roots[0].is_leaving = true;
        "put_trust_roots.roots" => |it| it.roots = vec![it.roots[0].clone(); 9];
        "put_trust_roots.roots[1]" => |it| it.roots.push(it.roots[0].clone());
        "put_trust_roots.roots[0].certificate" => |it| it.roots[0].certificate.clear();
        "put_trust_roots.roots[0].signs_from_ms" => |it| it.roots[0].signs_from_ms = 4;
        "put_trust_roots.person_keys" => |it| it.person_keys.clear();
        "put_trust_roots.person_keys[0].key_id" => |it| it.person_keys[0].key_id.clear();
        "put_trust_roots.person_keys[0].public_key" => |it| it.person_keys[0].public_key = vec![7; 31];
        "put_trust_roots.person_keys" => |it| it.person_keys[0].ends_ms = 7;
        "put_trust_roots.person_keys[0].ends_ms" => |it| it.person_keys[0].ends_ms = -7;
        "put_trust_roots.person_keys[1]" => |it| it.person_keys.push(it.person_keys[0].clone());
    }
    .to_vec();
    odd_forms.extend(odd! { PutSealedSigner:
        "put_sealed_signer.name" => |it| it.name = "default".to_owned();
        "put_sealed_signer.name" => |it| it.name = "0B".repeat(32);
        "put_sealed_signer.key_id" => |it| it.key_id.clear();
        "put_sealed_signer.sealed" => |it| it.sealed.clear();
        "put_sealed_signer.sealed" => |it| it.sealed = vec![7; (64 << 10) + 1];
    });
    odd_forms.extend(odd! { PutIdentity:
        "put_identity.identity" => |it| it.identity.clear();
        "put_identity.identity" => |it| it.identity = "agent".to_owned();
        "put_identity.identity" => |it| it.identity = "agent/".to_owned();
        "put_identity.identity" => |it| it.identity = "agent/n1/x".to_owned();
        "put_identity.issued_ms" => |it| it.issued_ms = 4_000;
        "put_identity.ends_ms" => |it| it.ends_ms = 4_999;
        "put_identity.refused_before_ms" => |it| it.refused_before_ms = -1;
        "put_identity.pool" => |it| it.pool = long();
        "put_identity.root_fingerprint" => |it| it.root_fingerprint.clear();
        "put_identity.join_token" => |it| it.join_token = long();
        "put_identity.join_key_sha256" => |it| it.join_key_sha256.clear();
        "put_identity.join_key_sha256" => |it| it.join_token.clear();
    });
    odd_forms.extend(odd! { PutJoinToken:
        "put_join_token.token_id" => |it| it.token_id.clear();
        "put_join_token.secret_sha256" => |it| it.secret_sha256 = vec![7; 33];
        "put_join_token.role" => |it| it.role.clear();
        "put_join_token.names" => |it| it.names = long();
        "put_join_token.pool" => |it| it.pool = long();
        "put_join_token.expires_ms" => |it| it.expires_ms = 0;
        "put_join_token.expires_ms" => |it| it.expires_ms = 4;
    });
    odd_forms.extend(odd! { PutPrincipal:
        "put_principal.name" => |it| it.name.clear();
        "put_principal.role" => |it| it.role.clear();
        "put_principal.role" => |it| it.role = "king".to_owned();
        "put_principal.groups[0]" => |it| it.groups[0].clear();
        "put_principal.namespaces[1]" => |it| it.namespaces[1] = it.namespaces[0].clone();
        "put_principal.namespaces[0]" => |it| it.namespaces[0] = long();
        "put_principal.queues[0]" => |it| it.queues[0] = long();
        "put_principal.default_namespace" => |it| it.default_namespace = long();
        "put_principal.created_ms" => |it| it.created_ms = -1;
        "put_principal.tokens_refused_before_ms" => |it| it.tokens_refused_before_ms = -1;
    });
    odd_forms.extend(odd! { PutPersonToken:
        "put_person_token.token_id" => |it| it.token_id.clear();
        "put_person_token.principal" => |it| it.principal.clear();
        "put_person_token.ends_ms" => |it| it.ends_ms = 0;
        "put_person_token.ends_ms" => |it| it.ends_ms = 4_999;
    });
    odd_forms.extend(odd! { PutChange:
        "put_change.change_id" => |it| it.change_id = 0;
        "put_change.call" => |it| it.call = None;
        "put_change.call.principal" => |it| it.call.as_mut().unwrap().principal.clear();
        "put_change.call.method" => |it| it.call.as_mut().unwrap().method = long();
        "put_change.call.objects[1]" => |it| it.call.as_mut().unwrap().objects[1] = long() + &long();
        "put_change.call.objects" => |it| it.call.as_mut().unwrap().objects = vec![long(); 9];
        "put_change.call.namespace" => |it| it.call.as_mut().unwrap().namespace = long();
        "put_change.call.address" => |it| it.call.as_mut().unwrap().address = "a\nb".to_owned();
        "put_change.refused" => |it| it.refused = long();
        "put_change.calls" => |it| it.calls = 0;
        "put_change.first_ms" => |it| it.first_ms = -1;
    });
    odd_forms
}

fn of_yarn() -> Vec<Odd> {
    let attempt = |start_ms, finish_ms| v1::YarnAttemptRecord {
        start_ms,
        finish_ms,
        ..v1::YarnAttemptRecord::default()
    };
    let ids = |first_ordinal, count| v1::YarnAllocationRequest {
        first_ordinal,
        count,
        ..v1::YarnAllocationRequest::default()
    };
    odd! { PutYarnApplication:
        "put_yarn_application.application" => |it| it.application.clear();
        "put_yarn_application.application" => |it| it.application = "application_1".to_owned();
        "put_yarn_application.application" => |it| it.application = "application_-1_0001".to_owned();
        "put_yarn_application.version" => |it| it.version = 0;
        "put_yarn_application.name" => |it| it.name = "x".repeat(1_001);
        "put_yarn_application.user" => |it| it.user = long();
        "put_yarn_application.queue" => |it| it.queue = "x".repeat(513);
        "put_yarn_application.type" => |it| it.r#type = long();
        "put_yarn_application.label" => |it| it.label = long();
        "put_yarn_application.diagnostics" => |it| it.diagnostics = "x".repeat((64 << 10) + 1);
        "put_yarn_application.master.capability.amounts[\"cpu\"]" => |it| {
            it.master = Some(v1::YarnAskGroup { capability: [("cpu".to_owned(), -1)].into(), ..v1::YarnAskGroup::default() });
        };
        "put_yarn_application.tags" => |it| it.tags = vec!["t".to_owned(); 33];
        "put_yarn_application.tags[0]" => |it| it.tags = vec!["t".repeat(101)];
        "put_yarn_application.end" => |it| it.end = 99;
        "put_yarn_application.start_ms" => |it| it.start_ms = -1;
        "put_yarn_application.finish_ms" => |it| (it.start_ms, it.finish_ms, it.end) = (9, Some(8), 3);
        "put_yarn_application.finish_ms" => |it| it.finish_ms = Some(8);
        "put_yarn_application.memory_mb_seconds" => |it| it.memory_mb_seconds = -1;
        "put_yarn_application.vcore_seconds" => |it| it.vcore_seconds = -1;
        "put_yarn_application.next_ordinal" => |it| it.next_ordinal = u32::MAX;
        "put_yarn_application.next_opportunistic_ordinal" => |it| it.next_opportunistic_ordinal = u32::MAX;
        "put_yarn_application.attempts[0].finish_ms" => |it| it.attempts = vec![attempt(9, 8)];
        "put_yarn_application.attempts[0].start_ms" => |it| it.attempts = vec![attempt(-1, 0)];
        "put_yarn_application.attempts[0].unstarted" => |it| it.attempts = vec![v1::YarnAttemptRecord { unstarted: 99, ..attempt(1, 0) }];
        "put_yarn_application.attempts[0].registration.rpc_port" => |it| {
            let registration = Some(v1::YarnRegistration { rpc_port: 65_536, ..v1::YarnRegistration::default() });
            it.attempts = vec![v1::YarnAttemptRecord { registration, ..attempt(1, 0) }];
        };
        "put_yarn_application.failed" => |it| it.failed = vec![v1::YarnFailedAttempt::default()];
        "put_yarn_application.allocation_requests[0].count" => |it| it.allocation_requests = vec![ids(1, 0)];
        "put_yarn_application.allocation_requests[0].first_ordinal" => |it| it.allocation_requests = vec![ids(1 << 31, 1)];
    }
    .to_vec()
}

fn of_rows() -> Vec<Odd> {
    let mut odd_forms = odd! { Bind:
        "bind.ordinals" => |it| (it.ordinals, it.incarnations, it.node_ids, it.device_masks) = Default::default();
        "bind.ordinals[1]" => |it| it.ordinals = vec![1, 1];
        "bind.node_ids[0]" => |it| it.node_ids[0] = 0;
        "bind.node_ids[1]" => |it| it.node_ids[1] = u32::MAX;
        "bind.standing.end" => |it| it.standing.as_mut().unwrap().end = 99;
        "bind.standing.min_run_ms" => |it| it.standing.as_mut().unwrap().min_run_ms = u64::MAX;
        "bind.standing.queue" => |it| it.standing.as_mut().unwrap().queue = long();
    }
    .to_vec();
    odd_forms.extend(odd! { Evict:
        "evict.ordinals" => |it| it.ordinals.clear();
        "evict.ordinals[1]" => |it| it.ordinals = vec![1, 1];
        "evict.preemptor_id" => |it| it.preemptor_id = it.unit_id;
        "evict.by" => |it| it.by = long();
    });
    odd_forms.extend(odd! { RunStatus:
        "run_status.ordinals" => |it| it.ordinals.clear();
        "run_status.ordinals[1]" => |it| it.ordinals = vec![1, 1];
        "run_status.reasons[0]" => |it| it.reasons[0] = 99;
        "run_status.started_times_ms[1]" => |it| it.started_times_ms[1] = -1;
        "run_status.ended_times_ms[0]" => |it| it.ended_times_ms[0] = i64::MIN;
    });
    odd_forms.extend(odd! { Requeue:
        "requeue.ordinals" => |it| it.ordinals.clear();
        "requeue.ordinals[1]" => |it| it.ordinals = vec![1, 1];
        "requeue.incarnations[0]" => |it| it.incarnations[0] = 0;
    });
    odd_forms.extend(odd! { ChangeTerms:
        "change_terms.standing.end" => |it| it.standing.as_mut().unwrap().end = -1;
        "change_terms.standing.queue" => |it| it.standing.as_mut().unwrap().queue = long();
        "change_terms.group_minima" => |it| it.group_minima = vec![0; 1_025];
    });
    odd_forms.extend(odd! { Compact:
        "compact.ordinals" => |it| (it.ordinals, it.task_groups) = (Vec::new(), Vec::new());
        "compact.ordinals[1]" => |it| it.ordinals = vec![1, 1];
        "compact.task_groups[1]" => |it| it.task_groups = vec![1, 1];
    });
    odd_forms.extend(odd! { Delete:
        "delete.kind" => |it| it.kind = 0;
        "delete.kind" => |it| it.kind = 99;
        "delete.key.name" => |it| it.key = None;
    });
    odd_forms
}

fn all() -> Vec<Odd> {
    [
        nodes(),
        units::units(),
        units::templates(),
        of_units(),
        of_people(),
        of_services(),
        of_yarn(),
        of_identities(),
        of_rows(),
    ]
    .concat()
}

#[test]
fn what_makes_no_sense_is_refused_by_its_path_whatever_it_is() {
    for sample in samples() {
        assert_eq!(readable(&txn([sample])), Ok(()));
    }
    let mut taken = Vec::new();
    for (path, op) in all() {
        match readable(&txn([op.clone()])) {
            Ok(()) => taken.push(format!("{path}: taken")),
            Err(refusal) if refusal.message.starts_with(&format!("ops[0].{path}: ")) => {}
            Err(refusal) => taken.push(format!("{path}: {}", refusal.message)),
        }
    }
    assert_eq!(taken, [""; 0]);
}

#[test]
fn every_operation_has_odd_forms() {
    let fields: Vec<u32> =
        all().into_iter().filter_map(|(_, op)| raw::op_field(&raw::encode_op(op))).collect();
    let pool = DescriptorPool::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    let ops = pool.get_message_by_name("godel.v1.Op").unwrap();
    let missing: Vec<String> = ops
        .fields()
        .filter(|field| fields.iter().filter(|known| **known == field.number()).count() < 3)
        .map(|field| field.name().to_owned())
        .collect();
    assert_eq!(missing, [""; 0], "say which forms of these make no sense");
    // A record that is written whole is put by the field that has the number of its kind.
    let is_there = |kind: v1::Kind| fields.contains(&u32::try_from(i32::from(kind)).unwrap());
    let missing: Vec<&str> = KINDS
        .iter()
        .filter(|entry| entry.is_whole() && !is_there(entry.kind))
        .map(|entry| entry.name)
        .collect();
    assert_eq!(missing, [""; 0], "kinds of records without odd forms");
}

/// What an older version has taken is listed, watched and loaded as ever.
#[test]
fn what_a_store_holds_already_stays_readable() {
    let readers = |op: &Op| from_proto::op(&raw::encode_op(op.clone())).is_ok();
    let n_readable = all().iter().filter(|(_, op)| readers(op)).count();
    assert!(n_readable > 120, "{n_readable} of {} are refused in new commits alone", all().len());
    let older: Vec<Op> = odd! { PutYarnApplication:
        "" => |it| (it.version, it.finish_ms) = (0, Some(8));
    }
    .into_iter()
    .map(|(_, op)| op)
    .chain(odd! { PutPartition: "" => |it| it.mode = 0; }.map(|(_, op)| op))
    .collect();
    for op in older {
        assert!(readable(&txn([op.clone()])).is_err());
        let (field, payload) = raw::op_payload(&raw::encode_op(op)).unwrap();
        let kind = v1::Kind::try_from(i32::try_from(field).unwrap()).unwrap();
        assert_eq!(from_proto::check_value(kind, &payload), Ok(()));
    }
}

#[test]
fn the_calls_behind_a_transaction_are_checked() {
    let Op::PutChange(line) = change() else { panic!("another operation") };
    let done = v1::ChangeRecord { change_id: 0, refused: String::new(), ..line.clone() };
    let with = |changes| raw::TxnRequest { changes, ..txn([queue(1)]) };
    assert_eq!(readable(&with(vec![done.clone()])), Ok(()));
    for (line, path) in [
        (line, "changes[1].refused: "),
        (v1::ChangeRecord { calls: 0, ..done.clone() }, "changes[1].calls: "),
        (v1::ChangeRecord { call: None, ..done.clone() }, "changes[1].call: "),
    ] {
        let refusal = readable(&with(vec![done.clone(), line])).unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::Invalid);
        assert!(refusal.message.starts_with(path), "{}", refusal.message);
    }
}
