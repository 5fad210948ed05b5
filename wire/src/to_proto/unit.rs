//! Units field by field, each field once: as messages, and straight to bytes without a message in between.

use bytes::Bytes;
use godel_domain::{
    demand::{Demand, DeviceRequest, DeviceTerms},
    host_port::{HostPort, Protocol},
    label_expression::{LabelExpression, LabelOperator},
    node::Toleration,
    node_affinity::{NodeAffinity, PreferredNodes},
    node_load::MaxLoad,
    surge::Surge,
    task_group_record::TaskGroupRecord,
    unit::{
        CompactedRuns, RunSpec, SubmittedSize, TaskGroup, Template, UnitRecord, UnitSpec, UnitStatus, Volume,
    },
    unit_affinity::{SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
    zone::ZoneRequest,
};
use godel_proto::{
    fields::{self, FieldSink},
    v1,
};

/// An operation that puts a unit's own record, encoded for a transaction: task groups that were added have theirs.
pub fn put_unit(record: &UnitRecord) -> Bytes {
    if record.n_own_groups() < record.spec.task_groups.len() {
        fields::operation(fields::op::PUT_UNIT, |out| write_unit(out, &record.own())).into()
    } else {
        fields::operation(fields::op::PUT_UNIT, |out| write_unit(out, record)).into()
    }
}

/// A unit with all its task groups, as [`unit_record`] would be encoded.
pub fn encoded_unit(record: &UnitRecord) -> Bytes {
    fields::bytes(|out| write_unit(out, record)).into()
}

/// A unit as stored.
pub fn unit_record(record: &UnitRecord) -> v1::UnitRecord {
    fields::message(|out| write_unit(out, record))
}

/// A unit as submitted. Revisions and times of its metadata are left 0: the store keeps them.
pub fn unit_spec(spec: &UnitSpec) -> v1::UnitSpec {
    fields::message(|out| write_spec(out, spec))
}

/// What the control plane writes about a unit.
pub fn unit_status(status: &UnitStatus) -> v1::UnitStatus {
    fields::message(|out| write_status(out, status))
}

/// A task group that was added to a unit, as stored.
pub fn task_group_record(record: &TaskGroupRecord) -> v1::TaskGroupRecord {
    let TaskGroupRecord { unit, idx, group, ordinals } = record;
    v1::TaskGroupRecord {
        unit_id: unit.0,
        task_group: u32::from(*idx),
        group: Some(fields::message(|out| write_group(out, group))),
        ordinals: Some(fields::message(|out| write_ordinals(out, ordinals))),
    }
}

/// What an agent runs.
pub fn run_spec(run: &RunSpec) -> v1::RunSpec {
    fields::message(|out| write_run(out, run))
}

/// What one running unit takes.
pub fn demand(demand: &Demand) -> v1::Demand {
    fields::message(|out| write_demand(out, demand))
}

/// A port.
pub fn host_port(port: HostPort) -> v1::HostPort {
    fields::message(|out| write_port(out, &port))
}

/// A toleration.
pub fn toleration(toleration: &Toleration) -> v1::Toleration {
    fields::message(|out| write_toleration(out, toleration))
}

/// A condition on one label.
pub fn label_expression(expression: &LabelExpression) -> v1::LabelExpression {
    fields::message(|out| write_expression(out, expression))
}

fn write_unit(out: &mut impl FieldSink<v1::UnitRecord>, record: &UnitRecord) {
    use fields::unit_record as field;
    let UnitRecord { id, spec, status } = record;
    out.number(field::UNIT_ID, id.0);
    out.message(field::SPEC, |out| write_spec(out, spec));
    out.message(field::STATUS, |out| write_status(out, status));
}

fn write_spec(out: &mut impl FieldSink<v1::UnitSpec>, spec: &UnitSpec) {
    use fields::{object_meta as meta, unit_spec as field};
    let UnitSpec {
        namespace,
        name,
        uid,
        labels,
        owner,
        class,
        task_groups,
        min_member,
        queue,
        priority,
        priority_class,
        pool,
        restart_policy,
        profile,
        ttl_after_finished_ms,
        max_restarts,
        on_eviction,
        on_below_min,
        on_failure,
        scheduling_timeout_ms,
        active_deadline_ms,
        preemptible,
        min_run_ms,
        affinity,
        topology,
        max_surge,
        movable,
    } = spec;
    out.message(field::META, |out| {
        out.text(meta::NAMESPACE, namespace);
        out.text(meta::NAME, name);
        out.text(meta::UID, uid);
        out.texts_by_key(meta::LABELS, labels);
        out.text(meta::OWNER, owner);
    });
    out.number(field::WORKLOAD_CLASS, super::workload_class(*class).into());
    out.messages(field::TASK_GROUPS, task_groups, write_group);
    out.optional(field::MIN_MEMBER, Some(*min_member));
    out.text(field::QUEUE, queue);
    // Its own, unless it has that of its class.
    let own_priority = (*priority != 0 || priority_class.is_empty()).then_some(*priority);
    out.optional(field::PRIORITY, own_priority);
    out.text(field::PRIORITY_CLASS, priority_class);
    out.number(field::POOL, super::pool(*pool).into());
    out.number(field::RESTART_POLICY, super::restart_policy(*restart_policy).into());
    out.text(field::PROFILE, profile);
    out.optional(field::TTL_AFTER_FINISHED_MS, Some(*ttl_after_finished_ms));
    out.optional(field::MAX_RESTARTS, Some(*max_restarts));
    out.optional(field::PREEMPTIBLE, Some(*preemptible));
    out.number(field::MIN_RUN_MS, *min_run_ms);
    out.number(field::ON_EVICTION, super::on_eviction(*on_eviction).into());
    out.number(field::ON_BELOW_MIN, super::on_below_min(*on_below_min).into());
    out.number(field::ON_FAILURE, super::on_failure(*on_failure).into());
    out.optional(field::SCHEDULING_TIMEOUT_MS, above_zero(*scheduling_timeout_ms));
    out.optional(field::ACTIVE_DEADLINE_MS, above_zero(*active_deadline_ms));
    if !affinity.is_empty() {
        out.message(field::AFFINITY, |out| write_unit_affinity(out, affinity));
    }
    if !topology.is_empty() {
        out.message(field::TOPOLOGY, |out| write_topology(out, topology));
    }
    out.number(field::MAX_SURGE, *max_surge);
    out.optional(field::MOVABLE, *movable);
}

/// Domain types say 0 where the API leaves a field out.
pub(super) fn above_zero<N: Default + PartialEq>(number: N) -> Option<N> {
    (number != N::default()).then_some(number)
}

fn write_status(out: &mut impl FieldSink<v1::UnitStatus>, status: &UnitStatus) {
    use fields::{
        compacted_runs as runs, next_incarnation as next, submitted_size as size, unit_status as field,
    };
    let UnitStatus {
        ordinals,
        cancelled,
        suspended,
        ended,
        whole_restarts,
        restarting,
        submitted,
        keeps_succeeded,
        retried_ms,
        updated,
        own_groups,
        next_incarnations,
        compacted,
        surges,
        principal,
    } = status;
    out.messages(field::ORDINALS, ordinals, |out, ranges| write_ordinals(out, ranges));
    out.number(field::CANCELLED, *cancelled);
    out.number(field::SUSPENDED, *suspended);
    out.number(field::ENDED, super::unit_end(*ended).into());
    out.number(field::WHOLE_RESTARTS, *whole_restarts);
    out.number(field::RESTARTING, *restarting);
    if let Some(SubmittedSize { min_member, replicas, group_minima }) = submitted.as_deref() {
        out.message(field::SUBMITTED, |out| {
            out.number(size::MIN_MEMBER, *min_member);
            out.numbers(size::REPLICAS, replicas);
            out.numbers(size::GROUP_MINIMA, group_minima);
        });
    }
    out.number(field::KEEPS_SUCCEEDED, *keeps_succeeded);
    out.number(field::RETRIED_TIME_MS, *retried_ms);
    out.number(field::UPDATED, *updated);
    out.number(field::OWN_GROUPS, u32::from(*own_groups));
    out.messages(field::NEXT_INCARNATIONS, next_incarnations, |out, (ordinal, incarnation)| {
        out.number(next::ORDINAL, *ordinal);
        out.number(next::INCARNATION, *incarnation);
    });
    if let Some(compacted) = compacted.as_deref() {
        let CompactedRuns { replicas, succeeded, failed, starts, run_ms, used, bound_ms } = compacted;
        out.message(field::COMPACTED, |out| {
            out.number(runs::REPLICAS, *replicas);
            out.number(runs::SUCCEEDED, *succeeded);
            out.number(runs::FAILED, *failed);
            out.number(runs::STARTS, *starts);
            out.number(runs::RUN_MS, *run_ms);
            let used = used.iter().map(|(name, amount)| (name.as_str(), *amount));
            out.numbers_by_key(runs::RESOURCE_SECONDS, used);
            out.number(runs::BOUND_TIME_MS, *bound_ms);
        });
    }
    out.messages(field::SURGES, surges, write_surge);
    out.text(field::PRINCIPAL, principal);
}

fn write_surge(out: &mut impl FieldSink<v1::Surge>, surge: &Surge) {
    use fields::surge as field;
    let Surge { ordinal, replaces, movement, expires_ms } = surge;
    out.number(field::ORDINAL, *ordinal);
    out.number(field::REPLACES, *replaces);
    out.text(field::MOVEMENT, movement);
    out.number(field::EXPIRES_MS, *expires_ms);
}

fn write_ordinals(out: &mut impl FieldSink<v1::OrdinalRanges>, ranges: &[(u32, u32)]) {
    use fields::{ordinal_range as range, ordinal_ranges as field};
    out.messages(field::RANGES, ranges, |out, (start, end)| {
        out.number(range::START, *start);
        out.number(range::END, *end);
    });
}

fn write_group(out: &mut impl FieldSink<v1::TaskGroup>, group: &TaskGroup) {
    use fields::task_group as field;
    let TaskGroup { name, replicas, min_member, template, topology } = group;
    out.text(field::NAME, name);
    out.number(field::REPLICAS, *replicas);
    out.message(field::TEMPLATE, |out| write_template(out, template));
    out.optional(field::MIN_MEMBER, above_zero(*min_member));
    if let Some(topology) = topology {
        out.message(field::TOPOLOGY, |out| write_topology(out, topology));
    }
}

fn write_template(out: &mut impl FieldSink<v1::Template>, template: &Template) {
    use fields::{max_load as load, template as field};
    let Template { demand, node_selector, tolerations, node_affinity, max_load, run } = template;
    out.message(field::DEMAND, |out| write_demand(out, demand));
    out.texts_by_key(field::NODE_SELECTOR, node_selector);
    out.messages(field::TOLERATIONS, tolerations, write_toleration);
    out.message(field::RUN, |out| write_run(out, run));
    if !node_affinity.is_empty() {
        out.message(field::NODE_AFFINITY, |out| write_node_affinity(out, node_affinity));
    }
    if !max_load.is_any() {
        let MaxLoad { cpu, memory } = *max_load;
        out.message(field::MAX_LOAD, |out| {
            out.optional(load::CPU, cpu);
            out.optional(load::MEMORY, memory);
        });
    }
}

fn write_run(out: &mut impl FieldSink<v1::RunSpec>, run: &RunSpec) {
    use fields::run_spec as field;
    let RunSpec {
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
    } = run;
    out.texts(field::COMMAND, command);
    out.texts_by_key(field::ENV, env);
    out.optional(field::SIMULATED_DURATION_MS, *simulated_duration_ms);
    out.number(field::SIMULATED_EXIT_CODE, *simulated_exit_code);
    out.number(field::STOP_GRACE_MS, *stop_grace_ms);
    out.optional(field::AWAIT_COMMAND_MS, *await_command_ms);
    out.text(field::WORKING_DIRECTORY, working_directory.as_deref().unwrap_or_default());
    out.text(field::USER, user.as_deref().unwrap_or_default());
    out.optional(field::UMASK, *umask);
    out.text(field::IMAGE, image.as_deref().unwrap_or_default());
    out.messages(field::VOLUMES, volumes, write_volume);
    out.number(field::EVICTION_NOTICE_MS, *eviction_notice_ms);
    out.optional(field::CHECKPOINT_EVERY_MS, *checkpoint_every_ms);
}

fn write_volume(out: &mut impl FieldSink<v1::Volume>, volume: &Volume) {
    use fields::volume as field;
    let Volume { name, bytes, path } = volume;
    out.text(field::NAME, name);
    out.number(field::BYTES, *bytes);
    out.text(field::PATH, path.as_deref().unwrap_or_default());
}

fn write_toleration(out: &mut impl FieldSink<v1::Toleration>, toleration: &Toleration) {
    use fields::toleration as field;
    let Toleration { key, value, effect, tolerated_s } = toleration;
    out.text(field::KEY, key);
    out.text(field::VALUE, value.as_deref().unwrap_or_default());
    out.number(field::ANY_VALUE, value.is_none());
    out.number(field::EFFECT, super::taint_effect(*effect).into());
    out.optional(field::TOLERATED_SECONDS, *tolerated_s);
}

fn write_demand(out: &mut impl FieldSink<v1::Demand>, demand: &Demand) {
    use fields::{demand as field, resources, zone_request};
    let Demand { requests, devices, host_ports, zones } = demand;
    out.message(field::REQUESTS, |out| out.numbers_by_key(resources::AMOUNTS, requests.iter()));
    out.messages(field::DEVICES, devices, write_device);
    out.messages(field::HOST_PORTS, host_ports, write_port);
    if let Some(ZoneRequest { policy, cpu_mode }) = *zones {
        out.message(field::ZONES, |out| {
            out.number(zone_request::POLICY, crate::zones::policy_to_proto(policy).into());
            out.number(zone_request::CPU_MODE, crate::zones::cpu_mode_to_proto(cpu_mode).into());
        });
    }
}

fn write_device(out: &mut impl FieldSink<v1::DeviceRequest>, request: &DeviceRequest) {
    use fields::{device_request as field, device_terms};
    let DeviceRequest { kind, count, milli, models, terms } = request;
    out.text(field::KIND, kind);
    out.number(field::COUNT, *count);
    out.optional(field::MILLI_PER_DEVICE, Some(*milli));
    out.texts(field::MODELS, models);
    if let Some(DeviceTerms { link, gbps, memory, same_zone_as, profile }) = terms.as_deref() {
        out.message(field::TERMS, |out| {
            out.text(device_terms::LINK, link);
            out.number(device_terms::GBPS, *gbps);
            out.number(device_terms::MEMORY, *memory);
            out.text(device_terms::SAME_ZONE_AS, same_zone_as);
            out.text(device_terms::PROFILE, profile);
        });
    }
}

fn write_port(out: &mut impl FieldSink<v1::HostPort>, port: &HostPort) {
    let HostPort { port, protocol } = *port;
    let protocol = match protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
    };
    out.number(fields::host_port::PORT, port.into());
    out.number(fields::host_port::PROTOCOL, protocol.into());
}

fn write_node_affinity(out: &mut impl FieldSink<v1::NodeAffinity>, affinity: &NodeAffinity) {
    use fields::{node_affinity as field, preferred_nodes as preference};
    let NodeAffinity { required, preferred } = affinity;
    out.messages(field::REQUIRED, required, |out, term| write_term(out, term));
    out.messages(field::PREFERRED, preferred, |out, PreferredNodes { weight, term }| {
        out.number(preference::WEIGHT, *weight);
        out.message(preference::NODES, |out| write_term(out, term));
    });
}

fn write_term(out: &mut impl FieldSink<v1::NodeTerm>, term: &[LabelExpression]) {
    out.messages(fields::node_term::ALL_OF, term, write_expression);
}

fn write_expression(out: &mut impl FieldSink<v1::LabelExpression>, expression: &LabelExpression) {
    use fields::label_expression as field;
    let LabelExpression { key, operator, values } = expression;
    out.text(field::KEY, key);
    out.number(field::OPERATOR, label_operator(*operator).into());
    out.texts(field::VALUES, values);
}

/// What an expression says of a value.
pub fn label_operator(operator: LabelOperator) -> v1::LabelOperator {
    match operator {
        LabelOperator::In => v1::LabelOperator::In,
        LabelOperator::NotIn => v1::LabelOperator::NotIn,
        LabelOperator::Exists => v1::LabelOperator::Exists,
        LabelOperator::DoesNotExist => v1::LabelOperator::DoesNotExist,
        LabelOperator::Gt => v1::LabelOperator::Gt,
        LabelOperator::Lt => v1::LabelOperator::Lt,
    }
}

fn write_unit_affinity(out: &mut impl FieldSink<v1::UnitAffinity>, affinity: &UnitAffinity) {
    use fields::unit_affinity as field;
    let UnitAffinity { near, apart, spread } = affinity;
    out.messages(field::NEAR, near, write_unit_term);
    out.messages(field::APART, apart, write_unit_term);
    out.messages(field::SPREAD, spread, write_spread_term);
}

fn write_unit_term(out: &mut impl FieldSink<v1::UnitTerm>, term: &UnitTerm) {
    use fields::unit_term as field;
    let UnitTerm { units, topology, weight } = term;
    out.messages(field::UNITS, units, write_expression);
    out.text(field::TOPOLOGY, topology);
    out.number(field::WEIGHT, *weight);
}

fn write_spread_term(out: &mut impl FieldSink<v1::SpreadTerm>, term: &SpreadTerm) {
    use fields::spread_term as field;
    let SpreadTerm { units, topology, max_skew, weight } = term;
    out.messages(field::UNITS, units, write_expression);
    out.text(field::TOPOLOGY, topology);
    out.optional(field::MAX_SKEW, Some(*max_skew));
    out.number(field::WEIGHT, *weight);
}

fn write_topology(out: &mut impl FieldSink<v1::UnitTopology>, topology: &UnitTopology) {
    use fields::{segments as inside, unit_topology as field};
    let UnitTopology { required, preferred, homogeneous, segments } = topology;
    out.text(field::REQUIRED, required);
    out.texts(field::PREFERRED, preferred);
    out.text(field::HOMOGENEOUS, homogeneous);
    if let Some(Segments { size, within }) = segments {
        out.message(field::SEGMENTS, |out| {
            out.number(inside::SIZE, *size);
            out.text(inside::WITHIN, within);
        });
    }
}
