//! Applications as messages of scheduling units: their task groups with their templates, and where their running units are wanted.
//!
//! A unit of class yarn has the group `master`, which is ordinal 0, and one group for each kind of containers.

use std::collections::{BTreeMap, BTreeSet};

use godel_core_yarn::{
    adapter::OPPORTUNISTIC,
    asks::{
        AskGroup,
        wishes::{AskWish, is_rack},
    },
    ids::YarnApplicationId,
};
use godel_core_yarn_leader::{
    AddedGroup, AvoidedNodes, DEFAULT_RACK, GroupGrowth, HOST_ATTRIBUTE, MASTER_GROUP, PORT_ATTRIBUTE,
    YarnUnitSubmission, unit_name_of,
};
use godel_proto::v1;

use crate::config::Config;

/// A label that no node has: what stands for a master that runs elsewhere finds no place.
const NOWHERE: &str = "godel.dev/yarn-unmanaged-master";
/// Kind of devices among the amounts of a capability.
const GPU: &str = "gpu";
/// Values of one condition on a label.
const N_VALUES_MAX: usize = 64;
/// Weights of hosts and racks that are preferred.
const WEIGHTS: (u32, u32) = (100, 50);
/// Weight of the preference of nodes on which no master of an application has failed, the greatest that there is.
const AVOIDED_WEIGHT: u32 = 100;

/// Uid of a unit of an application: the same whoever submits it, so that it is submitted once.
pub(crate) fn unit_uid(id: YarnApplicationId, is_opportunistic: bool) -> String {
    let YarnApplicationId { cluster_timestamp, number } = id;
    let time = cluster_timestamp.unsigned_abs();
    format!(
        "{:08x}-{:04x}-8{:03x}-8{:03x}-{:012x}",
        (time >> 28) & 0xffff_ffff,
        (time >> 12) & 0xffff,
        time & 0xfff,
        u32::from(is_opportunistic),
        number
    )
}

/// A unit of an application: its master, or a replica that finds no node and stands for it, is the only one.
pub(crate) fn unit_spec(config: &Config, submission: &YarnUnitSubmission) -> v1::UnitSpec {
    let YarnUnitSubmission { application, side, user, queue, priority, master } = submission;
    let is_opportunistic = *side == OPPORTUNISTIC;
    let template = match master {
        Some(group) => template(config, group, &AskWish::default(), true),
        None => v1::Template {
            node_selector: [(NOWHERE.to_owned(), "true".to_owned())].into(),
            run: Some(awaited(config, true)),
            ..v1::Template::default()
        },
    };
    let group = v1::TaskGroup {
        name: MASTER_GROUP.to_owned(),
        replicas: 1,
        template: Some(template),
        min_member: None,
        topology: None,
    };
    let mut spec = v1::UnitSpec {
        meta: Some(v1::ObjectMeta {
            namespace: config.namespace.clone(),
            name: unit_name_of(*application, *side),
            uid: unit_uid(*application, is_opportunistic),
            owner: user.clone(),
            ..v1::ObjectMeta::default()
        }),
        workload_class: v1::WorkloadClass::Yarn.into(),
        task_groups: vec![group],
        queue: queue.clone(),
        priority: Some(*priority),
        // Masters ask for others where they want them; the adapter for the next master.
        on_eviction: v1::OnEviction::Fail.into(),
        on_failure: v1::OnFailure::Keep.into(),
        restart_policy: v1::RestartPolicy::Never.into(),
        ttl_after_finished_ms: Some(config.unit_ttl_ms()),
        ..v1::UnitSpec::default()
    };
    if is_opportunistic {
        spec.pool = v1::Pool::BestEffort.into();
    }
    spec
}

/// Replicas that are to be added to a unit.
pub(crate) fn groups(config: &Config, growth: GroupGrowth) -> v1::TaskGroupChanges {
    let GroupGrowth { application, side, sizes, added } = growth;
    let size = |(task_group, replicas): (String, u32)| v1::TaskGroupSize { task_group, replicas };
    v1::TaskGroupChanges {
        namespace: config.namespace.clone(),
        name: unit_name_of(application, side),
        sizes: sizes.into_iter().map(size).collect(),
        added: added.into_iter().map(|added| task_group(config, added)).collect(),
        ..v1::TaskGroupChanges::default()
    }
}

/// A group of containers that a unit does not have yet.
fn task_group(config: &Config, added: AddedGroup) -> v1::TaskGroup {
    let AddedGroup { name, group, wish, replicas } = added;
    let template = Some(template(config, &group, &wish, false));
    v1::TaskGroup { name, replicas, template, min_member: None, topology: None }
}

/// What a master prefers that should go elsewhere than to these nodes.
pub(crate) fn preferred(avoided: &AvoidedNodes) -> Vec<v1::PreferredNodes> {
    let is_not = |(key, values): (&str, &BTreeSet<String>)| {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let term = says(key, v1::LabelOperator::NotIn, &values);
        let nodes = Some(v1::NodeTerm { all_of: vec![term] });
        (!values.is_empty()).then_some(v1::PreferredNodes { weight: AVOIDED_WEIGHT, nodes })
    };
    let both = [(HOST_ATTRIBUTE, &avoided.hosts), (PORT_ATTRIBUTE, &avoided.ports)];
    both.into_iter().filter_map(is_not).collect()
}

fn awaited(config: &Config, is_master: bool) -> v1::RunSpec {
    v1::RunSpec {
        await_command_ms: Some(config.await_ms(is_master).max(1)),
        eviction_notice_ms: config.notice_ms(),
        ..v1::RunSpec::default()
    }
}

fn template(config: &Config, group: &AskGroup, wish: &AskWish, is_master: bool) -> v1::Template {
    let mut amounts: BTreeMap<String, i64> = group.capability.clone();
    let n_gpus = amounts.remove(GPU).map_or(0, |milli| u32::try_from(milli / 1_000).unwrap_or(u32::MAX));
    let gpus = (n_gpus > 0).then(|| v1::DeviceRequest {
        kind: GPU.to_owned(),
        count: n_gpus,
        ..v1::DeviceRequest::default()
    });
    let mut node_selector = std::collections::HashMap::new();
    if !group.label.is_empty() {
        node_selector.insert(config.label_key.clone(), group.label.clone());
    }
    v1::Template {
        demand: Some(v1::Demand {
            requests: Some(v1::Resources { amounts }),
            devices: gpus.into_iter().collect(),
            ..v1::Demand::default()
        }),
        node_selector,
        node_affinity: Some(affinity(config, group.label.is_empty(), wish)),
        run: Some(awaited(config, is_master)),
        ..v1::Template::default()
    }
}

fn says(key: &str, operator: v1::LabelOperator, values: &[&str]) -> v1::LabelExpression {
    v1::LabelExpression {
        key: key.to_owned(),
        operator: operator.into(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    }
}

/// Conditions on a label with so many values that one has room for.
fn says_parts(
    key: &str,
    operator: v1::LabelOperator,
    values: &[&str],
) -> impl Iterator<Item = v1::LabelExpression> {
    values.chunks(N_VALUES_MAX).map(move |part| says(key, operator, part))
}

/// Conditions on the racks of nodes.
struct RackConditions<'a> {
    key: &'a str,
    /// Without their `/`.
    racks: Vec<&'a str>,
    /// Nodes that do not say their rack are in one of them.
    has_default: bool,
}

impl<'a> RackConditions<'a> {
    fn new(config: &'a Config, names: impl IntoIterator<Item = &'a String>) -> Self {
        let (mut racks, mut has_default) = (Vec::new(), false);
        for name in names {
            has_default |= name == DEFAULT_RACK;
            racks.push(name.trim_start_matches('/'));
        }
        Self { key: &config.rack_key, racks, has_default }
    }

    /// A node is in one of them if it meets any of these.
    fn inside(&self) -> impl Iterator<Item = v1::LabelExpression> {
        let named = says_parts(self.key, v1::LabelOperator::In, &self.racks);
        let without = self.has_default.then(|| says(self.key, v1::LabelOperator::DoesNotExist, &[]));
        named.chain(without)
    }

    /// A node is in none of them if it meets all of these.
    fn outside(&self) -> impl Iterator<Item = v1::LabelExpression> {
        let named = says_parts(self.key, v1::LabelOperator::NotIn, &self.racks);
        let with = self.has_default.then(|| says(self.key, v1::LabelOperator::Exists, &[]));
        named.chain(with)
    }
}

fn affinity(config: &Config, has_no_label: bool, wish: &AskWish) -> v1::NodeAffinity {
    use v1::LabelOperator as Is;
    let AskWish { label: _, hosts, racks, is_strict, closed_racks, refused } = wish;
    let mut every = vec![says(PORT_ATTRIBUTE, Is::Exists, &[])];
    if has_no_label {
        every.push(says(&config.label_key, Is::DoesNotExist, &[]));
    }
    let (refused_racks, refused_hosts): (Vec<&String>, Vec<&String>) =
        refused.iter().partition(|name| is_rack(name));
    every.extend(RackConditions::new(config, refused_racks).outside());
    let refused_hosts: Vec<&str> = refused_hosts.into_iter().map(String::as_str).collect();
    let not_refused: Vec<_> = says_parts(HOST_ATTRIBUTE, Is::NotIn, &refused_hosts).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let named: Vec<_> = says_parts(HOST_ATTRIBUTE, Is::In, &hosts).collect();
    let racks = RackConditions::new(config, racks);
    let with =
        |more: Vec<v1::LabelExpression>| v1::NodeTerm { all_of: every.iter().cloned().chain(more).collect() };
    // Hosts that are named are not refused: the list of those that are, which may be long, does not stand beside them.
    let of_named = named.iter().map(|one| with(vec![one.clone()]));
    let mut required = Vec::new();
    if *is_strict {
        let inside = racks.inside().map(|one| with(not_refused.iter().cloned().chain([one]).collect()));
        required.extend(of_named.chain(inside));
    } else {
        let closed = RackConditions::new(config, closed_racks);
        required.push(with(not_refused.iter().cloned().chain(closed.outside()).collect()));
        required.extend(of_named.filter(|_| !closed_racks.is_empty()));
    }
    let preferred = named.into_iter().map(|one| (WEIGHTS.0, one));
    let preferred = preferred.chain(racks.inside().map(|one| (WEIGHTS.1, one)));
    // Where only one condition allows a node, it prefers none to another.
    let preferred = preferred.filter(|_| !is_strict || !wish.racks.is_empty());
    let preferred = preferred
        .map(|(weight, one)| v1::PreferredNodes { weight, nodes: Some(v1::NodeTerm { all_of: vec![one] }) });
    v1::NodeAffinity { preferred: preferred.collect(), required }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_core_yarn::{adapter::MASTER, asks::ExecutionType};
    use godel_core_yarn_leader::{asked_of, group_name};
    use godel_domain::unit::TaskGroup;
    use godel_wire::from_proto;

    use super::*;

    fn group(priority: i32) -> AskGroup {
        AskGroup {
            priority,
            execution: ExecutionType::Opportunistic,
            capability: [
                ("cpu".to_owned(), 1_000),
                ("gpu".to_owned(), 2_000),
                ("memory".to_owned(), 1 << 30),
            ]
            .into(),
            label: "fast".to_owned(),
        }
    }

    #[test]
    fn units_have_uids_of_their_own() {
        let id: YarnApplicationId = "application_1700000000000_0042".parse().unwrap();
        let other = YarnApplicationId { number: 43, ..id };
        let later = YarnApplicationId { cluster_timestamp: id.cluster_timestamp + 1, ..id };
        let uids = [id, other, later].map(|id| [unit_uid(id, false), unit_uid(id, true)]);
        let uids: BTreeSet<String> = uids.into_iter().flatten().collect();
        assert_eq!(uids.len(), 6);
        assert!(uids.iter().all(|uid| uuid::Uuid::parse_str(uid).is_ok()), "{uids:?}");
    }

    #[test]
    fn masters_have_the_notice_of_containers() {
        let config = Config::default();
        let id: YarnApplicationId = "application_1_0001".parse().unwrap();
        let submission = YarnUnitSubmission {
            application: id,
            side: MASTER,
            user: "ann".to_owned(),
            queue: "default".to_owned(),
            priority: 0,
            master: Some(group(0)),
        };
        let spec = unit_spec(&config, &submission);
        let run = spec.task_groups[0].template.clone().unwrap().run.unwrap();
        assert_eq!(run.eviction_notice_ms, config.notice_ms());
        assert!(run.eviction_notice_ms > 0);
    }

    #[test]
    fn groups_say_what_was_asked_for() {
        let config = Config::default();
        for priority in [0, 20, -7] {
            let asked = group(priority);
            let name = group_name(&asked, &AskWish::default());
            let (group, wish) = (asked.clone(), Arc::new(AskWish::default()));
            let pb = task_group(&config, AddedGroup { name, group, wish, replicas: 3 });
            let template = from_proto::template(pb.template.unwrap()).unwrap();
            let stored = TaskGroup { name: pb.name, replicas: 3, min_member: 0, template, topology: None };
            assert_eq!(asked_of(&stored, &config.label_key), Some(asked));
            assert_eq!(asked_of(&TaskGroup { name: MASTER_GROUP.to_owned(), ..stored }, "l"), None);
        }
    }

    #[test]
    fn nodes_that_are_avoided_are_preferences_of_others() {
        let shown = |hosts: &[&str], ports: &[&str]| -> Vec<String> {
            let preferred = preferred(&AvoidedNodes { hosts: names(hosts), ports: names(ports) });
            let term = |of: v1::PreferredNodes| {
                let of = of.nodes.unwrap().all_of.remove(0);
                assert_eq!(of.operator(), v1::LabelOperator::NotIn);
                format!("{} {}", of.key.trim_start_matches("godel.dev/yarn-"), of.values.join(","))
            };
            preferred.into_iter().map(term).collect()
        };
        assert_eq!(shown(&["n1", "n3"], &[]), ["host n1,n3"]);
        assert_eq!(shown(&["n3"], &["1"]), ["host n3", "port 1"]);
        assert_eq!(shown(&[], &[]), [""; 0]);
    }

    /// Required and preferred conditions in words.
    fn shown(wish: &AskWish) -> (Vec<String>, Vec<String>) {
        let v1::NodeAffinity { required, preferred } = affinity(&Config::default(), true, wish);
        let words = ["?", "in", "not in", "exists", "absent"];
        let term = |term: &v1::NodeTerm| {
            let one = |of: &v1::LabelExpression| {
                let operator = words[usize::try_from(of.operator).unwrap()];
                format!("{} {operator} {}", of.key.trim_start_matches("godel.dev/yarn-"), of.values.join(","))
            };
            term.all_of.iter().map(one).map(|text| text.trim().to_owned()).collect::<Vec<_>>().join("; ")
        };
        let preferred = preferred
            .iter()
            .map(|of| format!("{}: {}", of.weight, of.nodes.as_ref().map(term).unwrap_or_default()));
        (required.iter().map(term).collect(), preferred.collect())
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn places_that_are_wanted_are_conditions_on_nodes() {
        let relaxed = AskWish { hosts: names(&["n1"]), racks: names(&["/r1"]), ..AskWish::default() };
        let refusing = AskWish { refused: Arc::new(names(&["n9", "/r9"])), ..relaxed.clone() };
        let (required, preferred) = shown(&refusing);
        assert_eq!(required, ["port exists; label absent; rack not in r9; host not in n9"]);
        assert_eq!(preferred, ["100: host in n1", "50: rack in r1"]);
        let strict = AskWish { is_strict: true, ..relaxed.clone() };
        let (required, preferred) = shown(&strict);
        assert_eq!(
            required,
            ["port exists; label absent; host in n1", "port exists; label absent; rack in r1"]
        );
        assert_eq!(preferred, ["100: host in n1", "50: rack in r1"]);
        let only = AskWish { racks: names(&[]), ..strict.clone() };
        assert_eq!(shown(&only), (vec!["port exists; label absent; host in n1".to_owned()], vec![]));
        let closed = AskWish { racks: names(&[]), closed_racks: names(&["/r1"]), ..relaxed.clone() };
        let (required, preferred) = shown(&closed);
        let expected = ["port exists; label absent; rack not in r1", "port exists; label absent; host in n1"];
        assert_eq!(required, expected);
        assert_eq!(preferred, ["100: host in n1"]);
        let wishes = [AskWish::default(), relaxed, refusing, strict, only, closed];
        let named: BTreeSet<String> = wishes.iter().map(|wish| group_name(&group(1), wish)).collect();
        assert_eq!(named.len(), wishes.len());
    }

    #[test]
    fn nodes_without_a_rack_are_in_the_default_one() {
        let wanted = AskWish { racks: names(&[DEFAULT_RACK]), is_strict: true, ..AskWish::default() };
        let (required, _) = shown(&wanted);
        let expected =
            ["port exists; label absent; rack in default-rack", "port exists; label absent; rack absent"];
        assert_eq!(required, expected);
        let refused = AskWish { refused: Arc::new(names(&[DEFAULT_RACK])), ..AskWish::default() };
        assert_eq!(shown(&refused).0, ["port exists; label absent; rack not in default-rack; rack exists"]);
    }

    #[test]
    fn long_lists_are_conditions_as_a_whole() {
        let many: BTreeSet<String> = (0..1_000).map(|idx| format!("host-{idx}")).collect();
        let n_values = |wish: &AskWish| -> Vec<usize> {
            let v1::NodeAffinity { required, .. } = affinity(&Config::default(), true, wish);
            required[0].all_of.iter().map(|one| one.values.len()).collect()
        };
        let refusing = AskWish { refused: Arc::new(many.clone()), ..AskWish::default() };
        // Each of the conditions, of which one has 64 values at most.
        assert_eq!(n_values(&refusing), [vec![0, 0], vec![64; 15], vec![40]].concat());
        let hosts: BTreeSet<String> = many.into_iter().take(130).collect();
        let strict = AskWish { hosts: hosts.clone(), is_strict: true, ..AskWish::default() };
        // Any of the terms.
        let v1::NodeAffinity { required, preferred } = affinity(&Config::default(), true, &strict);
        let named: Vec<&String> = required.iter().flat_map(|term| &term.all_of[2].values).collect();
        assert_eq!((required.len(), named), (3, hosts.iter().collect()));
        assert!(preferred.is_empty());
    }
}
