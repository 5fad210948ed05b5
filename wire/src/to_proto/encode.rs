//! Units straight to bytes: each submission is encoded once, without a message in between.
//!
//! [`super::unit_record`] gives the same as a message; a property test holds the two together.

use std::collections::BTreeMap;

use bytes::Bytes;
use godel_domain::{
    demand::{Demand, DeviceRequest, DeviceTerms},
    label_expression::LabelExpression,
    node::Toleration,
    node_affinity::{NodeAffinity, PreferredNodes},
    node_load::MaxLoad,
    surge::Surge,
    unit::{
        CompactedRuns, RunSpec, SubmittedSize, TaskGroup, Template, UnitRecord, UnitSpec, UnitStatus, Volume,
    },
    unit_affinity::{SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
};
use godel_proto::v1;

/// Enough for most units.
const BYTES: usize = 256;
/// Field of `Op` that puts a unit.
const PUT_UNIT: u8 = 4;

/// An operation that puts a unit's own record, encoded for a transaction: task groups that were added have theirs.
pub fn put_unit(record: &UnitRecord) -> Bytes {
    let mut out = Writer(Vec::with_capacity(BYTES));
    if record.n_own_groups() < record.spec.task_groups.len() {
        out.message(PUT_UNIT, |out| unit(out, &record.own()));
    } else {
        out.message(PUT_UNIT, |out| unit(out, record));
    }
    out.0.into()
}

/// A unit with all its task groups, as [`super::unit_record`] would be encoded.
pub fn encoded_unit(record: &UnitRecord) -> Bytes {
    let mut out = Writer(Vec::with_capacity(BYTES));
    unit(&mut out, record);
    out.0.into()
}

fn unit(out: &mut Writer, record: &UnitRecord) {
    let UnitRecord { id, spec, status } = record;
    out.number(1, id.0);
    out.message(2, |out| unit_spec(out, spec));
    out.message(3, |out| unit_status(out, status));
}

fn unit_spec(out: &mut Writer, spec: &UnitSpec) {
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
        priority: _,
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
    out.message(1, |out| {
        out.text(1, namespace);
        out.text(2, name);
        out.text(3, uid);
        out.map(4, labels);
        out.text(5, owner);
    });
    out.signed(2, super::workload_class(*class).into());
    for group in task_groups {
        out.message(3, |out| task_group(out, group));
    }
    out.given(4, u64::from(*min_member));
    out.text(5, queue);
    if let Some(priority) = super::own_priority(spec) {
        out.given(6, i64::from(priority).cast_unsigned());
    }
    out.text(7, priority_class);
    out.signed(8, super::pool(*pool).into());
    out.signed(9, super::restart_policy(*restart_policy).into());
    out.text(10, profile);
    out.given(11, *ttl_after_finished_ms);
    out.given(12, u64::from(*max_restarts));
    out.flag(13, *preemptible);
    out.number(14, *min_run_ms);
    out.signed(15, super::on_eviction(*on_eviction).into());
    out.signed(16, super::on_below_min(*on_below_min).into());
    out.signed(17, super::on_failure(*on_failure).into());
    out.number(18, *scheduling_timeout_ms);
    out.number(19, *active_deadline_ms);
    if !affinity.is_empty() {
        out.message(20, |out| unit_affinity(out, affinity));
    }
    if !topology.is_empty() {
        out.message(21, |out| unit_topology(out, topology));
    }
    out.number(23, u64::from(*max_surge));
    if let Some(movable) = movable {
        out.given(24, u64::from(*movable));
    }
}

fn unit_status(out: &mut Writer, status: &UnitStatus) {
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
    } = status;
    for ranges in ordinals {
        out.message(1, |out| {
            for (start, end) in ranges {
                out.message(1, |out| {
                    out.number(1, u64::from(*start));
                    out.number(2, u64::from(*end));
                });
            }
        });
    }
    out.number(2, u64::from(*cancelled));
    out.number(3, u64::from(*suspended));
    out.signed(4, super::unit_end(*ended).into());
    out.number(5, u64::from(*whole_restarts));
    out.number(6, u64::from(*restarting));
    if let Some(size) = submitted {
        let SubmittedSize { min_member, replicas, group_minima } = size.as_ref();
        out.message(7, |out| {
            out.number(1, u64::from(*min_member));
            out.packed(2, replicas);
            out.packed(3, group_minima);
        });
    }
    out.number(8, u64::from(*keeps_succeeded));
    out.number(9, retried_ms.cast_unsigned());
    out.number(10, u64::from(*updated));
    out.number(11, u64::from(*own_groups));
    for (ordinal, incarnation) in next_incarnations {
        out.message(12, |out| {
            out.number(1, u64::from(*ordinal));
            out.number(2, u64::from(*incarnation));
        });
    }
    if let Some(compacted) = compacted {
        let CompactedRuns { replicas, succeeded, failed, starts, run_ms, used, bound_ms } =
            compacted.as_ref();
        out.message(13, |out| {
            out.number(1, *replicas);
            out.number(2, *succeeded);
            out.number(3, *failed);
            out.number(4, *starts);
            out.number(5, *run_ms);
            for (name, amount) in used {
                out.message(6, |out| {
                    out.text(1, name);
                    out.number(2, *amount);
                });
            }
            out.number(7, bound_ms.cast_unsigned());
        });
    }
    for Surge { ordinal, replaces, movement, expires_ms } in surges {
        out.message(14, |out| {
            out.number(1, u64::from(*ordinal));
            out.number(2, u64::from(*replaces));
            out.text(3, movement);
            out.number(4, expires_ms.cast_unsigned());
        });
    }
}

fn task_group(out: &mut Writer, group: &TaskGroup) {
    let TaskGroup { name, replicas, min_member, template, topology } = group;
    let Template { demand, node_selector, tolerations, node_affinity: nodes, max_load: load, run } = template;
    out.text(1, name);
    out.number(2, u64::from(*replicas));
    out.message(3, |out| {
        out.message(1, |out| takes(out, demand));
        out.map(2, node_selector);
        for one in tolerations {
            out.message(3, |out| toleration(out, one));
        }
        out.message(4, |out| run_spec(out, run));
        if !nodes.is_empty() {
            out.message(5, |out| node_affinity(out, nodes));
        }
        if !load.is_any() {
            out.message(6, |out| max_load(out, *load));
        }
    });
    if *min_member > 0 {
        out.given(4, u64::from(*min_member));
    }
    if let Some(topology) = topology {
        out.message(5, |out| unit_topology(out, topology));
    }
}

fn max_load(out: &mut Writer, MaxLoad { cpu, memory }: MaxLoad) {
    for (field, percent) in [(1, cpu), (2, memory)] {
        percent.into_iter().for_each(|percent| out.given(field, u64::from(percent)));
    }
}

fn node_affinity(out: &mut Writer, affinity: &NodeAffinity) {
    let NodeAffinity { required, preferred } = affinity;
    for term in required {
        out.message(1, |out| conditions(out, term));
    }
    for PreferredNodes { weight, term } in preferred {
        out.message(2, |out| {
            out.number(1, u64::from(*weight));
            out.message(2, |out| conditions(out, term));
        });
    }
}

/// The conditions of a term, which are its first field, of nodes as of units.
fn conditions(out: &mut Writer, conditions: &[LabelExpression]) {
    for LabelExpression { key, operator, values } in conditions {
        out.message(1, |out| {
            out.text(1, key);
            out.signed(2, super::label_operator(*operator).into());
            out.texts(3, values);
        });
    }
}

fn unit_topology(out: &mut Writer, topology: &UnitTopology) {
    let UnitTopology { required, preferred, homogeneous, segments } = topology;
    out.text(1, required);
    out.texts(2, preferred);
    out.text(3, homogeneous);
    if let Some(Segments { size, within }) = segments {
        out.message(4, |out| {
            out.number(1, u64::from(*size));
            out.text(2, within);
        });
    }
}

fn unit_affinity(out: &mut Writer, affinity: &UnitAffinity) {
    let UnitAffinity { near, apart, spread } = affinity;
    for (field, terms) in [(1, near), (2, apart)] {
        for UnitTerm { units, topology, weight } in terms {
            out.message(field, |out| {
                conditions(out, units);
                out.text(2, topology);
                out.number(3, u64::from(*weight));
            });
        }
    }
    for SpreadTerm { units, topology, max_skew, weight } in spread {
        out.message(3, |out| {
            conditions(out, units);
            out.text(2, topology);
            out.given(3, u64::from(*max_skew));
            out.number(4, u64::from(*weight));
        });
    }
}

fn takes(out: &mut Writer, demand: &Demand) {
    let Demand { requests, devices, host_ports, zones } = demand;
    out.message(1, |out| {
        for (name, amount) in requests.iter() {
            out.message(1, |out| {
                out.text(1, name);
                out.number(2, amount.cast_unsigned());
            });
        }
    });
    for DeviceRequest { kind, count, milli, models, terms } in devices {
        out.message(2, |out| {
            out.text(1, kind);
            out.number(2, u64::from(*count));
            out.given(3, u64::from(*milli));
            out.texts(4, models);
            if let Some(terms) = terms {
                out.message(5, |out| device_terms(out, terms));
            }
        });
    }
    for port in host_ports {
        let v1::HostPort { port, protocol } = super::host_port(*port);
        out.message(3, |out| {
            out.number(1, u64::from(port));
            out.signed(2, protocol);
        });
    }
    if let Some(zones) = zones {
        let v1::ZoneRequest { policy, cpu_mode } = crate::zones::request_to_proto(*zones);
        out.message(4, |out| {
            out.signed(1, policy);
            out.signed(2, cpu_mode);
        });
    }
}

fn device_terms(out: &mut Writer, terms: &DeviceTerms) {
    let DeviceTerms { link, gbps, memory, same_zone_as, profile } = terms;
    out.text(1, link);
    out.number(2, u64::from(*gbps));
    out.number(3, memory.cast_unsigned());
    out.text(4, same_zone_as);
    out.text(5, profile);
}

fn toleration(out: &mut Writer, toleration: &Toleration) {
    let Toleration { key, value, effect, tolerated_s } = toleration;
    out.text(1, key);
    out.text(2, value.as_deref().unwrap_or_default());
    out.number(3, u64::from(value.is_none()));
    out.signed(4, super::taint_effect(*effect).into());
    if let Some(seconds) = tolerated_s {
        out.given(5, u64::from(*seconds));
    }
}

fn run_spec(out: &mut Writer, run: &RunSpec) {
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
    out.texts(1, command);
    out.map(2, env);
    if let Some(ms) = simulated_duration_ms {
        out.given(3, *ms);
    }
    out.signed(4, *simulated_exit_code);
    out.number(5, u64::from(*stop_grace_ms));
    if let Some(ms) = await_command_ms {
        out.given(6, *ms);
    }
    out.text(7, working_directory.as_deref().unwrap_or_default());
    out.text(8, user.as_deref().unwrap_or_default());
    if let Some(umask) = umask {
        out.given(9, u64::from(*umask));
    }
    out.text(10, image.as_deref().unwrap_or_default());
    for Volume { name, bytes, path } in volumes {
        out.message(11, |out| {
            out.text(1, name);
            out.number(2, *bytes);
            out.text(3, path.as_deref().unwrap_or_default());
        });
    }
    out.number(12, u64::from(*eviction_notice_ms));
    if let Some(ms) = checkpoint_every_ms {
        out.given(13, *ms);
    }
}

/// Fields of the wire format; those with their default are left out, but for those that are `optional`.
struct Writer(Vec<u8>);

impl Writer {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// Fields from 16 on take two bytes.
    fn tag(&mut self, field: u8, wire_type: u8) {
        self.varint(u64::from(field) << 3 | u64::from(wire_type));
    }

    fn number(&mut self, field: u8, value: u64) {
        if value != 0 {
            self.tag(field, 0);
            self.varint(value);
        }
    }

    /// One that is there in any case.
    fn flag(&mut self, field: u8, value: bool) {
        self.varint(u64::from(field) << 3);
        self.varint(u64::from(value));
    }

    /// A number that is there in any case.
    fn given(&mut self, field: u8, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn packed(&mut self, field: u8, numbers: &[u32]) {
        if !numbers.is_empty() {
            self.message(field, |out| numbers.iter().for_each(|number| out.varint(u64::from(*number))));
        }
    }

    fn signed(&mut self, field: u8, value: i32) {
        self.number(field, i64::from(value).cast_unsigned());
    }

    fn text(&mut self, field: u8, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u8, texts: &[String]) {
        for text in texts {
            self.bytes(field, text.as_bytes());
        }
    }

    fn map(&mut self, field: u8, map: &BTreeMap<String, String>) {
        for (key, value) in map {
            self.message(field, |out| {
                out.text(1, key);
                out.text(2, value);
            });
        }
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// The length goes where it belongs once it is known: one byte is left for it, mostly enough.
    fn message(&mut self, field: u8, write: impl FnOnce(&mut Self)) {
        self.tag(field, 2);
        let start = self.0.len();
        self.0.push(0);
        write(self);
        let len = self.0.len() - start - 1;
        match u8::try_from(len) {
            Ok(len @ ..0x80) => self.0[start] = len,
            Ok(_) | Err(_) => {
                let end = self.0.len();
                self.varint(len as u64);
                let n_length = self.0.len() - end;
                self.0.remove(start);
                self.0[start..].rotate_right(n_length);
            }
        }
    }
}
