//! What agents are told of a unit, decoded once and kept while the unit is in use.
//!
//! A cache by unit, bounded; it owns no truth and is empty after a start.

use std::sync::Arc;

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{allocation::Allocation, defaults, demand::Demand, running_units::EvictionReason};
use godel_proto::v1;
use godel_store::{Key as RecordKey, State, Store};
use godel_wire::{from_proto, to_proto};
use parking_lot::Mutex;
use prost::Message as _;
use rustc_hash::FxHashMap;

/// Units kept decoded: a few KiB each.
const N_UNITS_MAX: usize = 4_096;

/// A unit as its agents need it.
#[derive(Debug)]
pub(crate) struct UnitTemplate {
    /// Of the UnitRecord.
    revision: Revision,
    /// `namespace/name`.
    pub(crate) unit_name: String,
    restart_policy: i32,
    pool: i32,
    max_restarts: u32,
    stop_after_disconnect_ms: u32,
    groups: Vec<Option<GroupTemplate>>,
    uid: String,
    principal: String,
    owner: String,
    /// Replicas wanted, over all groups.
    replicas: u32,
    /// Their ordinals, half-open, in any order.
    ordinals: Vec<(u32, u32)>,
    /// Its commands are told where all of them are.
    pub(crate) wants_peers: bool,
}

#[derive(Debug)]
struct GroupTemplate {
    name: String,
    demand: v1::Demand,
    run: v1::RunSpec,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct UnitTemplates {
    /// Of the units that stop without contact.
    stop_after_disconnect_ms: u32,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    by_unit: FxHashMap<u64, (u64, Arc<UnitTemplate>)>,
    tick: u64,
}

/// A unit's record and the demands of its bound groups, as the store has them.
struct TemplateSource {
    revision: Revision,
    value: Bytes,
    /// Encoded records of the task groups that were added, in no order.
    added: Vec<Bytes>,
    demands: Vec<Option<Arc<Demand>>>,
}

/// Where a live running unit is.
struct Place {
    key: RunningUnitId,
    unit_idx: usize,
    group: usize,
    allocation: Allocation,
    restarts: u32,
    eviction: Option<EvictionReason>,
}

impl UnitTemplates {
    /// An empty one. Units that stop without contact are told to do so after `stop_after_disconnect_ms`.
    pub(crate) fn new(stop_after_disconnect_ms: u32) -> Self {
        Self { stop_after_disconnect_ms, cache: Mutex::default() }
    }

    /// Assignments of those of `keys` that are live on `node` and not told to leave: one for all that stand together
    /// and differ by their ordinal alone.
    pub(crate) fn assignments(
        &self,
        store: &Store,
        node: NodeId,
        keys: &[RunningUnitId],
    ) -> Vec<v1::Assignment> {
        let (places, units) =
            self.places(store, keys, |row| row.node == node && row.phase.is_live() && row.eviction.is_none());
        let alike = places.chunk_by(Place::is_like);
        let assignments = alike.filter_map(|places| units[places[0].unit_idx].assignment(places));
        let mut assignments: Vec<v1::Assignment> = assignments.collect();
        if assignments.iter().any(|assignment| !assignment.owner.is_empty()) {
            store.read(|state| {
                for assignment in &mut assignments {
                    assignment.owner_groups = groups_of(state, &assignment.owner);
                }
            });
        }
        assignments
    }

    /// Stops of all `keys`, with the grace and the notice of their units; of an unknown unit at once.
    pub(crate) fn stops(&self, store: &Store, keys: &[RunningUnitId]) -> Vec<v1::StopRequest> {
        let (places, units) = self.places(store, keys, |_| true);
        let mut times = FxHashMap::default();
        for place in places {
            let group = units[place.unit_idx].groups.get(place.group).and_then(Option::as_ref);
            let Some(run) = group.map(|group| &group.run) else { continue };
            times.insert(place.key, (run.stop_grace_ms, notice_ms(run, place.eviction)));
        }
        keys.iter()
            .map(|key| {
                let (grace_ms, notice_ms) = times.get(key).copied().unwrap_or_default();
                v1::StopRequest {
                    unit_id: key.unit.0,
                    ordinal: key.replica.ordinal,
                    incarnation: key.replica.incarnation,
                    grace_ms,
                    notice_ms,
                }
            })
            .collect()
    }

    /// What agents are told of a unit, if it exists.
    pub(crate) fn of_unit(&self, store: &Store, unit: u64) -> Option<Arc<UnitTemplate>> {
        let source = store.read(|state| source(state, unit))?;
        Some(self.get(unit, &source))
    }

    /// `namespace/name` of each of `units` that exists.
    pub(crate) fn unit_names(&self, store: &Store, units: &[u64]) -> FxHashMap<u64, String> {
        let sources: Vec<(u64, TemplateSource)> = store
            .read(|state| units.iter().filter_map(|unit| Some((*unit, source(state, *unit)?))).collect());
        sources.iter().map(|(unit, source)| (*unit, self.get(*unit, source).unit_name.clone())).collect()
    }

    fn places(
        &self,
        store: &Store,
        keys: &[RunningUnitId],
        wanted: impl Fn(&godel_domain::running_units::RunningUnit) -> bool,
    ) -> (Vec<Place>, Vec<Arc<UnitTemplate>>) {
        let (places, sources) = store.read(|state| {
            let mut sources: Vec<(u64, TemplateSource)> = Vec::new();
            let mut places = Vec::with_capacity(keys.len());
            for run in keys.chunk_by(|a, b| a.unit == b.unit) {
                let unit = run[0].unit.0;
                let (Some(rows), Some(source)) = (state.rows().get(UnitId(unit)), source(state, unit)) else {
                    continue;
                };
                sources.push((unit, source));
                for key in run {
                    let row = rows.row(key.replica.ordinal);
                    if row.incarnation == key.replica.incarnation && wanted(&row) {
                        places.push(Place {
                            key: *key,
                            unit_idx: sources.len() - 1,
                            group: usize::from(row.group),
                            allocation: row.allocation,
                            restarts: row.restarts,
                            eviction: row.eviction,
                        });
                    }
                }
            }
            (places, sources)
        });
        let units = sources.iter().map(|(unit, source)| self.get(*unit, source)).collect();
        (places, units)
    }

    fn get(&self, unit: u64, source: &TemplateSource) -> Arc<UnitTemplate> {
        let mut cache = self.cache.lock();
        cache.tick += 1;
        let tick = cache.tick;
        if let Some((used, template)) = cache.by_unit.get_mut(&unit)
            && template.is_of(source)
        {
            *used = tick;
            return Arc::clone(template);
        }
        let template = Arc::new(UnitTemplate::new(source, self.stop_after_disconnect_ms));
        if cache.by_unit.len() >= N_UNITS_MAX {
            let oldest = tick.saturating_sub(N_UNITS_MAX as u64 / 2);
            cache.by_unit.retain(|_, (used, _)| *used > oldest);
        }
        cache.by_unit.insert(unit, (tick, Arc::clone(&template)));
        template
    }
}

impl Place {
    /// The same but for the ordinal.
    fn is_like(&self, other: &Self) -> bool {
        let of = |place: &Self| {
            let Self { key, unit_idx, group, allocation, restarts, eviction: _ } = *place;
            (key.unit, key.replica.incarnation, unit_idx, group, allocation, restarts)
        };
        of(self) == of(other)
    }
}

impl UnitTemplate {
    fn new(source: &TemplateSource, stop_after_disconnect_ms: u32) -> Self {
        // The dispatcher, the one writer, has validated it; a record that does not decode runs nothing.
        let v1::UnitRecord { spec, status, .. } =
            v1::UnitRecord::decode(source.value.clone()).unwrap_or_default();
        let (mut spec, mut status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let decode = |value: &Bytes| v1::TaskGroupRecord::decode(value.clone()).unwrap_or_default();
        let mut added: Vec<_> = source.added.iter().map(decode).collect();
        added.sort_unstable_by_key(|group| group.task_group);
        for v1::TaskGroupRecord { group, ordinals, .. } in added {
            spec.task_groups.push(group.unwrap_or_default());
            status.ordinals.push(ordinals.unwrap_or_default());
        }
        let meta = spec.meta.unwrap_or_default();
        let class = from_proto::workload_class(spec.workload_class).ok().flatten();
        let stops = class
            .is_some_and(|class| defaults::stops_without_contact(class, spec.min_member.unwrap_or_default()));
        let replicas = spec.task_groups.iter().map(|group| group.replicas).fold(0, u32::saturating_add);
        let principal = status.principal;
        let ranges = status.ordinals.into_iter().flat_map(|group| group.ranges);
        let has_ports = |group: &v1::TaskGroup| {
            let demand = group.template.as_ref().and_then(|template| template.demand.as_ref());
            demand.is_some_and(|demand| !demand.host_ports.is_empty())
        };
        let wants_peers = spec.min_member.unwrap_or_default() > 1 || spec.task_groups.iter().any(has_ports);
        let mut groups = spec.task_groups.into_iter();
        let groups = source.demands.iter().map(|demand| {
            let group = groups.next().unwrap_or_default();
            let run = group.template.unwrap_or_default().run.unwrap_or_default();
            let demand = demand.as_ref()?;
            Some(GroupTemplate { name: group.name, demand: to_proto::demand(demand), run })
        });
        Self {
            revision: source.revision,
            groups: groups.collect(),
            unit_name: format!("{}/{}", meta.namespace, meta.name),
            restart_policy: spec.restart_policy,
            pool: spec.pool,
            max_restarts: spec.max_restarts.unwrap_or_default(),
            stop_after_disconnect_ms: if stops { stop_after_disconnect_ms } else { 0 },
            uid: meta.uid,
            principal,
            owner: meta.owner,
            replicas,
            ordinals: ranges.map(|range| (range.start, range.end)).collect(),
            wants_peers,
        }
    }

    /// Ordinals that are wanted, ascending.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = u32> {
        let mut ranges = self.ordinals.clone();
        ranges.sort_unstable();
        ranges.into_iter().flat_map(|(start, end)| start..end)
    }

    /// The host ports of a replica of a group, as they stand in the list of peers.
    pub(crate) fn ports(&self, group: usize) -> String {
        let group = self.groups.get(group).and_then(Option::as_ref);
        let ports = group.map_or(&[][..], |group| &group.demand.host_ports);
        ports.iter().map(|one| one.port.to_string()).collect::<Vec<_>>().join("+")
    }

    /// A unit of groups with these host ports.
    #[cfg(test)]
    pub(crate) fn of_ports(groups: &[&[u32]]) -> Self {
        let port = |port: &u32| v1::HostPort { port: *port, ..v1::HostPort::default() };
        let group = |ports: &&[u32]| {
            let host_ports = ports.iter().map(port).collect();
            let demand = v1::Demand { host_ports, ..v1::Demand::default() };
            Some(GroupTemplate { name: String::new(), demand, run: v1::RunSpec::default() })
        };
        let source = TemplateSource {
            revision: Revision(0),
            value: Bytes::new(),
            added: Vec::new(),
            demands: Vec::new(),
        };
        Self { groups: groups.iter().map(group).collect(), ..Self::new(&source, 0) }
    }

    /// How many wanted replicas have lower ordinals.
    fn rank(&self, ordinal: u32) -> u32 {
        let below = |(start, end): &(u32, u32)| (*end).min(ordinal).saturating_sub(*start);
        self.ordinals.iter().map(below).fold(0, u32::saturating_add)
    }

    /// Ranks of places; empty if they are their ordinals.
    fn ranks(&self, places: &[Place]) -> Vec<u32> {
        let ordinals = || places.iter().map(|place| place.key.replica.ordinal);
        if ordinals().all(|ordinal| self.rank(ordinal) == ordinal) {
            return Vec::new();
        }
        ordinals().map(|ordinal| self.rank(ordinal)).collect()
    }

    /// Of places that are alike.
    fn assignment(&self, places: &[Place]) -> Option<v1::Assignment> {
        let (place, more) = places.split_first()?;
        let group = self.groups.get(place.group)?.as_ref()?;
        // What is simulated needs to know nothing of itself, and there may be much of it.
        let is_command = !(group.run.command.is_empty() && group.run.image.is_empty());
        let of_command = |text: &String| if is_command { text.clone() } else { String::new() };
        // A command may come later: that of a YARN container.
        let runs = is_command || group.run.await_command_ms.is_some();
        Some(v1::Assignment {
            unit_id: place.key.unit.0,
            ordinal: place.key.replica.ordinal,
            incarnation: place.key.replica.incarnation,
            demand: Some(group.demand.clone()),
            device_mask: place.allocation.devices.0,
            zone_mask: place.allocation.zones.zones.0,
            core_mask: place.allocation.zones.cores.0,
            run: Some(group.run.clone()),
            unit_name: self.unit_name.clone(),
            restart_policy: self.restart_policy,
            max_restarts: self.max_restarts,
            restarts: place.restarts,
            stop_after_disconnect_ms: self.stop_after_disconnect_ms,
            more_ordinals: more.iter().map(|place| place.key.replica.ordinal).collect(),
            pool: self.pool,
            unit_uid: of_command(&self.uid),
            task_group: of_command(&group.name),
            replicas: if is_command { self.replicas } else { 0 },
            ranks: if is_command { self.ranks(places) } else { Vec::new() },
            // Where others are is looked up once more is known than one node.
            peers: String::new(),
            peers_missing: String::new(),
            principal: if runs { self.principal.clone() } else { String::new() },
            owner: if runs { self.owner.clone() } else { String::new() },
            // They may change while the unit does not.
            owner_groups: Vec::new(),
        })
    }

    /// Made of this record, and with every group that is bound since.
    fn is_of(&self, source: &TemplateSource) -> bool {
        self.revision == source.revision
            && self.groups.len() == source.demands.len()
            && self.groups.iter().zip(&source.demands).all(|(known, now)| known.is_some() == now.is_some())
    }
}

/// The notice that a running unit gets: only of an eviction for the sake of others that is not urgent.
fn notice_ms(run: &v1::RunSpec, eviction: Option<EvictionReason>) -> u32 {
    match eviction {
        Some(EvictionReason::Preempted | EvictionReason::Rescheduled) => run.eviction_notice_ms,
        Some(_) | None => 0,
    }
}

/// Groups of the principal of that name; none if there is no such principal.
fn groups_of(state: &State, owner: &str) -> Vec<String> {
    let record = state.record(v1::Kind::Principal, &RecordKey::Name(owner.to_owned()));
    let principal = record.and_then(|record| v1::Principal::decode(record.value.clone()).ok());
    principal.map(|principal| principal.groups).unwrap_or_default()
}

fn source(state: &State, unit: u64) -> Option<TemplateSource> {
    let record = state.record(v1::Kind::Unit, &RecordKey::Id(unit))?;
    let groups = state.rows().get(UnitId(unit)).map(|rows| &rows.groups[..]).unwrap_or_default();
    Some(TemplateSource {
        revision: record.revision,
        value: record.value.clone(),
        added: state.task_groups(UnitId(unit)).map(|group| group.value.clone()).collect(),
        demands: groups.iter().map(|group| group.as_ref().map(|group| Arc::clone(&group.demand))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_given_for_the_sake_of_others_only() {
        let run = v1::RunSpec { eviction_notice_ms: 7, ..v1::RunSpec::default() };
        let noticed: Vec<EvictionReason> =
            EvictionReason::ALL.into_iter().filter(|reason| notice_ms(&run, Some(*reason)) == 7).collect();
        assert_eq!(noticed, [EvictionReason::Preempted, EvictionReason::Rescheduled]);
        assert_eq!(notice_ms(&run, None), 0);
    }

    #[test]
    fn ranks_are_counted_over_the_ordinals_that_are_wanted() {
        let range = |start, end| v1::OrdinalRange { start, end };
        let group = |name: &str, replicas, (command, image): (&[&str], &str)| v1::TaskGroup {
            min_member: None,
            topology: None,
            name: name.to_owned(),
            replicas,
            template: Some(v1::Template {
                run: Some(v1::RunSpec {
                    command: command.iter().map(|word| (*word).to_owned()).collect(),
                    image: image.to_owned(),
                    ..v1::RunSpec::default()
                }),
                ..v1::Template::default()
            }),
        };
        let template = |runs: (&[&str], &str), ranges: [Vec<v1::OrdinalRange>; 2]| {
            let spec = v1::UnitSpec {
                meta: Some(v1::ObjectMeta {
                    uid: "u-1".to_owned(),
                    owner: "ann".to_owned(),
                    ..v1::ObjectMeta::default()
                }),
                task_groups: vec![group("ps", 2, runs), group("worker", 3, runs)],
                ..v1::UnitSpec::default()
            };
            let ordinals = ranges.into_iter().map(|ranges| v1::OrdinalRanges { ranges }).collect();
            let principal = "person/admin".to_owned();
            let status = Some(v1::UnitStatus { ordinals, principal, ..v1::UnitStatus::default() });
            let record = v1::UnitRecord { unit_id: 1, spec: Some(spec), status };
            let demands = vec![Some(Arc::new(Demand::default())); 2];
            let value = record.encode_to_vec().into();
            let source = TemplateSource { revision: Revision(1), value, added: Vec::new(), demands };
            UnitTemplate::new(&source, 0)
        };
        let places = |ordinals: &[u32]| -> Vec<Place> {
            let place = |ordinal: &u32| Place {
                key: RunningUnitId::new(UnitId(1), *ordinal, 0),
                unit_idx: 0,
                group: 1,
                allocation: Allocation::default(),
                restarts: 0,
                eviction: None,
            };
            ordinals.iter().map(place).collect()
        };
        let whole = template((&["a"], ""), [vec![range(0, 2)], vec![range(2, 5)]]);
        let said = whole.assignment(&places(&[2, 4])).unwrap();
        assert_eq!((said.task_group.as_str(), said.unit_uid.as_str(), said.replicas), ("worker", "u-1", 5));
        assert!(said.ranks.is_empty(), "they are the ordinals");
        assert_eq!((said.principal.as_str(), said.owner.as_str()), ("person/admin", "ann"));
        // 1, 3 and 4 were stopped, and others came instead.
        let gaps = template(
            (&["a"], ""),
            [vec![range(0, 1), range(6, 7)], vec![range(2, 3), range(5, 6), range(7, 8)]],
        );
        assert_eq!(gaps.assignment(&places(&[2, 5, 7])).unwrap().ranks, [1, 2, 4]);
        let image = template((&[], "web:1"), [vec![range(0, 1)], vec![range(2, 3)]]);
        assert_eq!(image.assignment(&places(&[2])).unwrap().unit_uid, "u-1", "its image says what runs");
        let simulated = template((&[], ""), [vec![range(0, 1)], vec![range(2, 3)]]);
        let said = simulated.assignment(&places(&[2])).unwrap();
        assert_eq!((said.unit_uid.len(), said.replicas, said.ranks.len()), (0, 0, 0), "nobody reads it");
        assert_eq!((said.principal, said.owner), (String::new(), String::new()));
    }
}
