//! Any record and any change of rows, for the property tests.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{NodeId, UnitId},
    resources::Resources,
};
use godel_domain::{
    allocation::{CoreSet, DeviceSet, GivenZones, ZoneSet},
    demand::{Demand, DeviceRequest, DeviceTerms, Pool},
    host_port::{HostPort, Protocol},
    label_expression::{LabelExpression, LabelOperator},
    node::{
        Device, DeviceDetails, DeviceProfile, NodeReport, NodeRuntime, NodeSpec, Taint, TaintEffect,
        Toleration,
    },
    node_affinity::{NodeAffinity, PreferredNodes},
    node_load::{LoadAmounts, MaxLoad, NodeLoad},
    queue_spec::{PriorityClass, QueuePolicy, QueueSpec},
    run_end::{RunEnd, RunEndReason},
    running_units::{
        Bind, Compaction, End, Evict, EvictionReason, Phase, PreemptionTerms, Requeue, RunChange, Statuses,
        UnitTerms,
    },
    surge::Surge,
    unit::{
        CompactedRuns, OnBelowMin, OnEviction, OnFailure, RestartPolicy, RunSpec, SubmittedSize, TaskGroup,
        Template, UnitEnd, UnitRecord, Volume, WorkloadClass,
    },
    unit_affinity::{SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};
use godel_testkit::BuildUnit as _;
use proptest::{collection::vec, option, prelude::*, sample::select};
use smallvec::SmallVec;

fn text() -> impl Strategy<Value = String> {
    "[a-z]{1,6}"
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map(text(), text(), 0..3)
}

fn resources() -> impl Strategy<Value = Resources> {
    vec((text(), 0i64..1_000_000), 0..4).prop_map(|amounts| Resources::new(amounts).unwrap())
}

fn demand() -> impl Strategy<Value = Demand> {
    let devices = prop_oneof![(1u32..=64, Just(1000u32)), (Just(1u32), 1u32..1000)];
    let devices = vec((devices, vec(text(), 0..3), device_terms()), 0..3).prop_map(|devices| {
        let of_kind = |(kind, ((count, milli), models, terms)): (&str, _)| DeviceRequest {
            kind: kind.to_owned(),
            count,
            milli,
            models,
            terms,
        };
        ["gpu", "nic"].into_iter().zip(devices).map(of_kind).collect()
    });
    let protocol = select(vec![Protocol::Tcp, Protocol::Udp]);
    let port = (1u16.., protocol).prop_map(|(port, protocol)| HostPort { port, protocol });
    (resources(), devices, vec(port, 0..3), option::of(zone_request()))
        .prop_map(|(requests, devices, host_ports, zones)| Demand { requests, devices, host_ports, zones })
}

fn zone_request() -> impl Strategy<Value = ZoneRequest> {
    let cpu_mode = select(vec![CpuMode::Shared, CpuMode::Dedicated]);
    (select(ZonePolicy::ALL.to_vec()), cpu_mode)
        .prop_map(|(policy, cpu_mode)| ZoneRequest { policy, cpu_mode })
}

fn device_terms() -> impl Strategy<Value = Option<Box<DeviceTerms>>> {
    let terms =
        (text(), 1u32..9, 0i64..9, text(), text()).prop_map(|(link, gbps, memory, same_zone_as, profile)| {
            Box::new(DeviceTerms { link, gbps, memory, same_zone_as, profile })
        });
    option::of(terms)
}

/// Zones of which each lies in the one before, the last one being assigned.
fn zones() -> impl Strategy<Value = Vec<Zone>> {
    vec((text(), 1u8..3, vec(any::<u32>(), 0..4)), 0..3).prop_map(|zones| {
        let n = zones.len();
        let zone = |(at, (kind, threads_per_core, mut cpus)): (usize, (String, u8, Vec<u32>))| {
            cpus.sort_unstable();
            cpus.dedup();
            let amounts = (at + 1 == n).then_some(("cpu", 5));
            Zone {
                kind: format!("z{kind}"),
                parent: at.checked_sub(1).and_then(|parent| u8::try_from(parent).ok()),
                capacity: Resources::new(amounts).unwrap(),
                cpus,
                threads_per_core,
            }
        };
        zones.into_iter().enumerate().map(zone).collect()
    })
}

fn profiles() -> impl Strategy<Value = Vec<DeviceProfile>> {
    let profile = (text(), text(), vec(1u64.., 1..3)).prop_map(|(kind, model, shapes)| DeviceProfile {
        kind: format!("k{kind}"),
        name: format!("n{model}"),
        model,
        shapes,
    });
    vec(profile, 0..2)
}

fn effect() -> impl Strategy<Value = TaintEffect> {
    select(vec![TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule, TaintEffect::NoExecute])
}

pub(super) fn node_spec() -> impl Strategy<Value = NodeSpec> {
    let taint = (text(), text(), effect(), any::<i64>()).prop_map(|(key, value, effect, added_ms)| Taint {
        key,
        value,
        effect,
        added_ms,
    });
    let drain = (1i64..9, option::of(1i64..9), 0u32..9).prop_map(|(since_ms, deadline_ms, running_units)| {
        godel_domain::node::Drain { since_ms, deadline_ms, running_units }
    });
    let quarantine = (1i64..9, 1i64..9, text()).prop_map(|(since_ms, until_ms, reason)| {
        godel_domain::node::Quarantine { since_ms, until_ms, reason }
    });
    let notice = (1i64..9, 1i64..9, text()).prop_map(|(since_ms, deadline_ms, reason)| {
        godel_domain::node::Notice { since_ms, deadline_ms, reason }
    });
    let expired = option::of(1i64..9);
    let closed = (any::<bool>(), option::of(drain), option::of(quarantine), option::of(notice), expired);
    (1u32..99, text(), text(), labels(), vec(taint, 0..3), closed).prop_map(
        |(id, name, uid, labels, taints, (cordoned, drain, quarantine, notice, expired))| NodeSpec {
            id: NodeId(id),
            name,
            uid,
            labels,
            cordoned,
            taints,
            drain,
            quarantine,
            notice,
            identity_expired_since_ms: expired,
        },
    )
}

pub(super) fn node_report() -> impl Strategy<Value = NodeReport> {
    let details = (0i64..9, 1u32..9, text(), any::<u32>()).prop_map(|(memory, gbps, link, link_group)| {
        Box::new(DeviceDetails { memory, gbps, link, link_group })
    });
    let device = (text(), text(), 0u32..4, option::of(details))
        .prop_map(|(kind, model, numa_zone, details)| Device { kind, model, numa_zone, details });
    let parts = (vec(device, 0..5), zones(), profiles());
    let runtime = select(vec![
        NodeRuntime::Unknown,
        NodeRuntime::Simulated,
        NodeRuntime::Processes,
        NodeRuntime::Containers,
    ]);
    (1u32..99, resources(), parts, any::<bool>(), labels(), (any::<u32>(), runtime, text())).prop_map(
        |(
            id,
            capacity,
            (devices, zones, profiles),
            ready,
            attributes,
            (max_running_units, runtime, trouble),
        )| {
            NodeReport {
                id: NodeId(id),
                capacity,
                devices,
                zones,
                profiles,
                ready,
                attributes,
                max_running_units,
                runtime,
                trouble,
            }
        },
    )
}

pub(super) fn node_load() -> impl Strategy<Value = NodeLoad> {
    let amounts =
        || (0i64.., 0i64.., 0i64..3).prop_map(|(cpu, memory, network)| LoadAmounts { cpu, memory, network });
    (amounts(), amounts()).prop_map(|(p50, p95)| NodeLoad { p50, p95 })
}

fn max_load() -> impl Strategy<Value = MaxLoad> {
    (option::of(any::<u32>()), option::of(0u32..2)).prop_map(|(cpu, memory)| MaxLoad { cpu, memory })
}

fn template() -> impl Strategy<Value = Template> {
    let toleration = (text(), option::of(text()), option::of(effect()), option::of(any::<u32>()))
        .prop_map(|(key, value, effect, tolerated_s)| Toleration { key, value, effect, tolerated_s });
    let times =
        (option::of(0u64..3), any::<u32>(), any::<u32>(), option::of(any::<u64>()), option::of(0u64..3));
    let image = option::of("[a-z]{1,5}:[0-9]");
    let place = (option::of("/[a-z]{1,5}"), option::of("[a-z]{1,5}"), option::of(0u32..0o1000), image);
    let volume = (text(), any::<u64>(), option::of("/[a-z]{1,5}")).prop_map(|(name, bytes, path)| Volume {
        name,
        bytes,
        path,
    });
    let run = (vec(text(), 0..3), labels(), any::<i32>(), times, place, vec(volume, 0..3)).prop_map(
        |(command, env, simulated_exit_code, times, (working_directory, user, umask, image), volumes)| {
            let (
                simulated_duration_ms,
                stop_grace_ms,
                eviction_notice_ms,
                checkpoint_every_ms,
                await_command_ms,
            ) = times;
            RunSpec {
                command,
                env,
                simulated_duration_ms,
                simulated_exit_code,
                stop_grace_ms,
                eviction_notice_ms,
                checkpoint_every_ms,
                await_command_ms,
                working_directory,
                user,
                umask,
                image,
                volumes,
            }
        },
    );
    (demand(), labels(), vec(toleration, 0..3), node_affinity(), max_load(), run).prop_map(
        |(demand, node_selector, tolerations, node_affinity, max_load, run)| Template {
            demand,
            node_selector,
            tolerations,
            node_affinity,
            max_load,
            run,
        },
    )
}

fn conditions() -> impl Strategy<Value = Vec<LabelExpression>> {
    let operator = select(vec![
        LabelOperator::In,
        LabelOperator::NotIn,
        LabelOperator::Exists,
        LabelOperator::DoesNotExist,
        LabelOperator::Gt,
        LabelOperator::Lt,
    ]);
    let expression = (text(), operator, vec(text(), 0..3))
        .prop_map(|(key, operator, values)| LabelExpression { key, operator, values });
    vec(expression, 0..3)
}

fn node_affinity() -> impl Strategy<Value = NodeAffinity> {
    let preferred = (any::<u32>(), conditions()).prop_map(|(weight, term)| PreferredNodes { weight, term });
    (vec(conditions(), 0..3), vec(preferred, 0..3))
        .prop_map(|(required, preferred)| NodeAffinity { required, preferred })
}

fn unit_topology() -> impl Strategy<Value = UnitTopology> {
    let segments = option::of((0u32..9, text()))
        .prop_map(|segments| segments.map(|(size, within)| Segments { size, within }));
    let key = || prop_oneof![Just(String::new()), text()];
    (key(), vec(text(), 0..3), key(), segments).prop_map(|(required, preferred, homogeneous, segments)| {
        UnitTopology { required, preferred, homogeneous, segments }
    })
}

/// Every second one is empty, and every third number is 0.
fn unit_affinity() -> impl Strategy<Value = UnitAffinity> {
    let term = || {
        let parts = (conditions(), text(), 0u32..3);
        parts.prop_map(|(units, topology, weight)| UnitTerm { units, topology, weight })
    };
    let spread = (conditions(), text(), 0u32..3, 0u32..3)
        .prop_map(|(units, topology, max_skew, weight)| SpreadTerm { units, topology, max_skew, weight });
    let terms = (vec(term(), 0..3), vec(term(), 0..3), vec(spread, 0..3))
        .prop_map(|(near, apart, spread)| UnitAffinity { near, apart, spread });
    option::of(terms).prop_map(Option::unwrap_or_default)
}

pub(super) fn unit_record() -> impl Strategy<Value = UnitRecord> {
    let group = (text(), 1u32..9, template(), 0u32..9, unit_topology());
    let group = group.prop_map(|(name, replicas, template, start, topology)| {
        let min_member = start % 3;
        let topology = Some(Box::new(topology)).filter(|topology| start % 2 == 0 && !topology.is_empty());
        let ordinals = vec![(start, start + 1), (start + 5, start + 9)];
        (TaskGroup { name, replicas, min_member, template, topology }, ordinals)
    });
    let choices = (
        select(vec![
            WorkloadClass::Service,
            WorkloadClass::Stateful,
            WorkloadClass::Batch,
            WorkloadClass::Gang,
            WorkloadClass::Stream,
            WorkloadClass::Training,
            WorkloadClass::Yarn,
            WorkloadClass::Daemon,
        ]),
        select(vec![Pool::Guaranteed, Pool::BestEffort]),
        select(vec![RestartPolicy::Never, RestartPolicy::OnFailure, RestartPolicy::Always]),
        text(),
        select(vec![OnEviction::Requeue, OnEviction::Fail]),
        select(vec![OnBelowMin::Keep, OnBelowMin::Restart, OnBelowMin::Stop]),
        option::of(select(vec![UnitEnd::BelowMin, UnitEnd::Deadline, UnitEnd::Failure])),
    );
    let numbers = (1u64..99, 1u32..9, any::<i32>(), any::<u64>(), any::<bool>(), any::<u32>());
    let texts = (text(), text(), text(), text(), text(), "[a-z]{0,6}");
    let terms = (unit_affinity(), unit_topology());
    (texts, labels(), vec(group, 1..3), choices, numbers, terms).prop_map(
        |(texts, labels, groups, choices, numbers, (affinity, topology))| {
            let (namespace, name, uid, owner, queue, priority_class) = texts;
            let (task_groups, ordinals): (Vec<_>, SmallVec<[_; 1]>) = groups.into_iter().unzip();
            let (class, pool, restart_policy, profile, on_eviction, on_below_min, ended) = choices;
            let (id, min_member, priority, ttl_after_finished_ms, cancelled, max_restarts) = numbers;
            let on_failure = match id % 3 {
                0 => OnFailure::Keep,
                1 => OnFailure::Restart,
                _ => OnFailure::Stop,
            };
            let group_minima = if id % 2 == 0 { vec![0, 300] } else { Vec::new() };
            let submitted =
                SubmittedSize { min_member: min_member - 1, replicas: vec![7, 0, 300], group_minima };
            godel_testkit::unit(name)
                .id(UnitId(id))
                .namespace(namespace)
                .uid(uid)
                .labels(labels)
                .owner(owner)
                .class(class)
                .task_groups(task_groups)
                .edit(|unit| unit.status.ordinals = ordinals)
                .edit(|unit| unit.status.next_incarnations = vec![(min_member, max_restarts)])
                .edit(|unit| unit.status.compacted = compacted(max_restarts, ttl_after_finished_ms))
                .edit(|unit| unit.status.surges = surges(min_member, max_restarts, ttl_after_finished_ms))
                .principal(["", "person/admin", "yarn/y1"][min_member as usize % 3].to_owned())
                .max_surge(max_restarts / 3)
                .movable([None, Some(false), Some(true)][max_restarts as usize % 3])
                .min_member(min_member)
                .queue(queue)
                .priority(priority)
                .priority_class(priority_class)
                .pool(pool)
                .restart_policy(restart_policy)
                .profile(profile)
                .ttl_after_finished_ms(ttl_after_finished_ms)
                .scheduling_timeout_ms(ttl_after_finished_ms / 3)
                .active_deadline_ms(ttl_after_finished_ms / 5)
                .max_restarts(max_restarts)
                .on_eviction(on_eviction)
                .on_below_min(on_below_min)
                .on_failure(on_failure)
                .preemptible(max_restarts % 2 == 0)
                .min_run_ms(ttl_after_finished_ms / 2)
                .affinity(affinity)
                .topology(topology)
                .cancelled(cancelled)
                .suspended(priority % 2 == 0)
                .submitted((min_member % 2 == 0).then(|| Box::new(submitted)))
                .whole_restarts(max_restarts / 2)
                .restarting(ttl_after_finished_ms % 2 == 0)
                .keeps_succeeded(max_restarts % 3 == 0)
                .retried_ms(i64::from(min_member % 3))
                .updated(min_member % 5 == 0)
                .ended(ended)
        },
    )
}

pub(super) fn queue() -> impl Strategy<Value = QueueSpec> {
    let amounts = || proptest::collection::btree_map(text(), 0i64..9, 0..3);
    let texts = (text(), text(), text(), vec(text(), 0..3));
    let owner_weights = proptest::collection::btree_map(text(), 0u32..9, 0..3);
    let numbers =
        (1u32..=1_000_000, select(QueuePolicy::ALL.to_vec()), any::<u32>(), 0u32..=1_000, owner_weights);
    let limits = (amounts(), amounts(), amounts());
    (texts, labels(), limits, numbers).prop_map(|(texts, labels, limits, numbers)| {
        let (name, uid, owner, submit_owners) = texts;
        let (min, max, max_per_owner) = limits;
        let (weight, policy, max_running_units, am_share_milli, owner_weights) = numbers;
        QueueSpec {
            name,
            uid,
            labels,
            owner,
            min,
            max,
            weight,
            policy,
            submit_owners,
            max_running_units,
            owner_weights,
            max_per_owner,
            am_share_milli,
        }
    })
}

pub(super) fn priority_class() -> impl Strategy<Value = PriorityClass> {
    (text(), any::<i32>(), any::<bool>(), text()).prop_map(|(name, value, preemptible, description)| {
        PriorityClass { name, value, preemptible, description }
    })
}

pub(super) fn row_change() -> impl Strategy<Value = RunChange> {
    let bind = (0u16..3, demand(), vec((1u32..9, any::<u64>()), 1..5)).prop_map(|(group, demand, places)| {
        RunChange::Bind(Bind {
            group,
            demand: Arc::new(demand),
            pool: Pool::Guaranteed,
            ordinals: (0..u32::try_from(places.len()).unwrap()).collect(),
            incarnations: vec![],
            nodes: places.iter().map(|(node, _)| NodeId(*node)).collect(),
            devices: places.iter().map(|(_, mask)| DeviceSet(*mask)).collect(),
            zones: places
                .iter()
                .map(|(node, mask)| GivenZones { zones: ZoneSet(mask >> node), cores: CoreSet(mask & 6) })
                .collect(),
            standing: places.first().map(|(node, _)| Arc::new(terms(*node))),
        })
    });
    let reason = select(vec![
        EvictionReason::Cancelled,
        EvictionReason::ScaledIn,
        EvictionReason::Preempted,
        EvictionReason::NodeLost,
        EvictionReason::Drained,
        EvictionReason::Squeezed,
        EvictionReason::Rescheduled,
        EvictionReason::Suspended,
        EvictionReason::Deadline,
        EvictionReason::BelowMin,
        EvictionReason::Failure,
        EvictionReason::Tainted,
    ]);
    let evict = (vec(0u32..9, 0..4), reason, text()).prop_map(|(ordinals, reason, by)| {
        RunChange::Evict(Evict {
            incarnations: vec![1; ordinals.len()],
            ordinals,
            reason,
            by,
            preemptor: UnitId(0),
        })
    });
    let phase = select(vec![
        Phase::Bound,
        Phase::Starting,
        Phase::Running,
        Phase::Succeeded,
        Phase::Failed,
        Phase::Stopped,
    ]);
    let end = (option::of(select(RunEndReason::ALL.to_vec())), 0i64..9, 0i64..9)
        .prop_map(|(reason, started_ms, ended_ms)| RunEnd { reason, started_ms, ended_ms });
    let statuses = vec((0u32..9, phase, any::<i32>(), end), 0..4).prop_map(|rows| {
        // A column of nothing but defaults is no column.
        let mut ends: Vec<RunEnd> = rows.iter().map(|row| row.3).collect();
        if ends.iter().all(|end| *end == RunEnd::default()) {
            ends.clear();
        }
        RunChange::Statuses(Statuses {
            ordinals: rows.iter().map(|row| row.0).collect(),
            incarnations: vec![],
            phases: rows.iter().map(|row| row.1).collect(),
            exit_codes: rows.iter().map(|row| row.2).collect(),
            restarts: vec![],
            ends,
        })
    });
    let requeue = (vec(0u32..9, 0..4), any::<bool>()).prop_map(|(ordinals, anew)| {
        RunChange::Requeue(Requeue { incarnations: vec![2; ordinals.len()], ordinals, anew })
    });
    let terms = ((1u32..9), vec(0u32..3, 0..3)).prop_map(|(n, group_minima)| {
        let others = Arc::new(PreemptionTerms { group_min_member: 0, ..terms(n) });
        RunChange::Terms(Arc::new(UnitTerms { others, group_minima }))
    });
    let compaction = vec(0u32..9, 0..4).prop_map(|ordinals| {
        let incarnations = vec![3; ordinals.len()];
        RunChange::Compact(Compaction { ordinals, incarnations, groups: vec![1, 4] })
    });
    prop_oneof![bind, evict, statuses, requeue, terms, compaction]
}

fn compacted(n: u32, run_ms: u64) -> Option<Box<CompactedRuns>> {
    (n > 0).then(|| {
        let (failed, used) = (u64::from(n), [("cpu".to_owned(), run_ms)].into());
        Box::new(CompactedRuns { replicas: 9, succeeded: 2, failed, starts: 12, run_ms, used, bound_ms: 7 })
    })
}

fn surges(n: u32, replaces: u32, expires_ms: u64) -> Vec<Surge> {
    let one = |idx: u32| Surge {
        ordinal: n.saturating_add(idx),
        replaces,
        movement: format!("m-{idx}"),
        expires_ms: expires_ms.cast_signed(),
    };
    (0..n % 3).map(one).collect()
}

fn terms(n: u32) -> PreemptionTerms {
    PreemptionTerms {
        priority: -3,
        preemptible: true,
        min_run_ms: 7,
        min_member: n,
        group_min_member: n / 2,
        queue: (n > 1).then(|| Arc::from(format!("a.q{n}"))),
        end: End::Never,
        has_master: n.is_multiple_of(2),
    }
}
