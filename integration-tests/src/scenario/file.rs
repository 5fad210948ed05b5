//! The format of scenario files, read strictly. `docs/scenarios.md` explains every key.
//!
//! The first document of a file is the story. The others are what `godel apply -f` takes, read by the same code.

use std::{collections::BTreeMap, fmt};

use godel_client::unit_file::{Document, Mistake, parse_form};
use godel_proto::v1;
use serde::Deserialize;

use super::{
    covers::Code,
    number::Number,
    scalar::{HumanTime, Text, mistake},
};
use crate::cluster::Layout;

mod forms;

/// A file.
#[derive(Debug)]
pub struct Scenario {
    pub(super) story: Story,
    pub(super) queues: Vec<v1::Queue>,
    pub(super) classes: Vec<v1::PriorityClass>,
    pub(super) budgets: Vec<v1::DisruptionBudget>,
    pub(super) reservations: Vec<v1::Reservation>,
    /// By name.
    pub(super) units: BTreeMap<String, v1::UnitSpec>,
    /// As they are written, for people.
    steps: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Story {
    #[serde(rename = "scenario")]
    _title: String,
    #[serde(default)]
    pub(super) covers: Vec<Code>,
    #[serde(default)]
    cluster: ClusterSize,
    /// By name: `agent-NAME` plays them.
    pub(super) nodes: BTreeMap<String, Nodes>,
    #[serde(default)]
    pub(super) warns: Vec<String>,
    #[serde(default)]
    pub(super) never: Vec<Never>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ClusterSize {
    dispatchers: usize,
    schedulers: usize,
    binders: usize,
    settings: BTreeMap<String, Text>,
    /// By name. The schedulers check them.
    profiles: BTreeMap<String, serde_yaml_ng::Value>,
}

impl Default for ClusterSize {
    fn default() -> Self {
        Self {
            dispatchers: 1,
            schedulers: 1,
            binders: 1,
            settings: BTreeMap::new(),
            profiles: BTreeMap::new(),
        }
    }
}

/// Simulated nodes of one agent process, or this machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nodes {
    #[serde(default = "one")]
    pub(super) count: usize,
    /// It is the node of this machine, which runs commands.
    #[serde(default)]
    pub(super) real: bool,
    #[serde(default = "no_cpu")]
    cpu: Text,
    #[serde(default = "memory")]
    memory: Text,
    #[serde(default)]
    gpu: Option<Text>,
    #[serde(default)]
    shape: Option<Text>,
    #[serde(default)]
    labels: BTreeMap<String, Text>,
    #[serde(default)]
    racks: usize,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) later: bool,
    #[serde(default)]
    settings: BTreeMap<String, Text>,
}

fn one() -> usize {
    1
}

fn no_cpu() -> Text {
    Text(String::new())
}

fn memory() -> Text {
    Text("64Gi".to_owned())
}

/// At most one action, and what must be seen after it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    #[serde(default)]
    pub(super) submit: Option<Submit>,
    #[serde(default)]
    pub(super) godel: Option<Words>,
    #[serde(default)]
    pub(super) exit: i32,
    #[serde(default)]
    pub(super) says: OneOrMore,
    #[serde(default)]
    pub(super) kill: Option<OneOrMore>,
    #[serde(default)]
    pub(super) stop: Option<OneOrMore>,
    #[serde(default)]
    pub(super) start: Option<OneOrMore>,
    #[serde(default)]
    pub(super) freeze: Option<OneOrMore>,
    #[serde(default)]
    pub(super) thaw: Option<OneOrMore>,
    #[serde(default)]
    pub(super) crash: Option<Crash>,
    #[serde(default, rename = "move")]
    pub(super) moves: Option<Move>,
    #[serde(default)]
    pub(super) expect: Option<Expect>,
    #[serde(default)]
    pub(super) within: Option<HumanTime>,
    #[serde(default)]
    pub(super) never: Vec<Never>,
}

/// A process is to abort at a named point.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Crash {
    pub(super) part: String,
    pub(super) at: String,
}

/// Replicas that a movement moves to one node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Move {
    pub(super) movement: String,
    pub(super) unit: String,
    pub(super) ordinals: Vec<u32>,
    /// Name of the node.
    pub(super) to: String,
    /// Of each replica: `moved`, or why not. None: all are moved.
    #[serde(default)]
    pub(super) answers: OneOrMore,
}

/// What must be seen, all of it at once.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Expect {
    pub(super) units: BTreeMap<String, UnitExpect>,
    pub(super) queues: BTreeMap<String, QueueExpect>,
    pub(super) nodes: BTreeMap<String, NodesExpect>,
    pub(super) dispatcher: DispatcherExpect,
    pub(super) partition: Option<Partition>,
    pub(super) holds: Option<Number>,
    pub(super) metrics: BTreeMap<String, Number>,
    pub(super) events: Vec<EventExpect>,
    pub(super) ended: OneOrMore,
    /// Texts that verbs of the command line print.
    pub(super) shows: BTreeMap<Words, OneOrMore>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UnitFields {
    pub(super) phase: Option<Phases>,
    pub(super) pending: Option<Number>,
    pub(super) bound: Option<Number>,
    pub(super) running: Option<Number>,
    pub(super) succeeded: Option<Number>,
    pub(super) failed: Option<Number>,
    pub(super) evicting: Option<Number>,
    pub(super) why: OneOrMore,
    pub(super) waits_for: Option<String>,
    pub(super) preempted_by: Option<OneOrMore>,
    pub(super) ordinals: Option<Text>,
    pub(super) incarnation: Option<Number>,
    pub(super) restarts: Option<Number>,
    pub(super) exit_code: Option<Number>,
    pub(super) on: BTreeMap<String, Number>,
}

impl UnitFields {
    /// Whether replicas must be looked at one by one.
    pub(super) fn has_replicas(&self) -> bool {
        self.ordinals.is_some()
            || self.incarnation.is_some()
            || self.restarts.is_some()
            || self.exit_code.is_some()
            || !self.on.is_empty()
    }
}

/// `running`, or `3`, or all of [`UnitFields`].
#[derive(Debug, Default)]
pub(super) struct UnitExpect(pub(super) UnitFields);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QueueExpect {
    pub(super) used: BTreeMap<String, Text>,
    pub(super) borrowed: BTreeMap<String, Text>,
    pub(super) pending: Option<Number>,
    pub(super) running: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NodesExpect {
    pub(super) count: Option<Number>,
    pub(super) ready: Option<Number>,
    pub(super) running: Option<Number>,
    pub(super) reported: Option<Number>,
    pub(super) cpu: Option<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DispatcherExpect {
    pub(super) queued_units: Option<Number>,
    pub(super) dispatched_units: Option<Number>,
    pub(super) parked_units: Option<Number>,
    pub(super) redispatched: Option<Number>,
    pub(super) nodes_not_ready: Option<Number>,
    pub(super) nodes_draining: Option<Number>,
    pub(super) evictions_paused: Option<bool>,
}

/// How many running units there are of a kind of event in the history.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventExpect {
    #[serde(default)]
    pub(super) bound: Option<Glob>,
    #[serde(default)]
    pub(super) evicted: Option<Glob>,
    #[serde(default)]
    pub(super) reason: Option<Reason>,
    #[serde(default)]
    pub(super) by: Option<Glob>,
    /// Only what was before the last binding of these.
    #[serde(default)]
    pub(super) before_last: Option<Glob>,
    #[serde(default = "Number::some")]
    pub(super) count: Number,
}

/// What must not be in the history.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Never {
    #[serde(default)]
    pub(super) bound: Option<Glob>,
    #[serde(default)]
    pub(super) evicted: Option<Glob>,
    #[serde(default)]
    pub(super) reason: Option<Reason>,
    /// With `placed`: whose.
    #[serde(default)]
    pub(super) unit: Option<Glob>,
    /// So many running units are bound and not told to leave.
    #[serde(default)]
    pub(super) placed: Option<Number>,
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bound, evicted, reason, unit, placed } = self;
        let mut words = event_words(bound.as_ref(), evicted.as_ref(), *reason);
        words.extend(unit.as_ref().zip(placed.as_ref()).map(|(unit, n)| format!("{n} of {} placed", unit.0)));
        f.write_str(&words.join(" "))
    }
}

impl fmt::Display for EventExpect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bound, evicted, reason, by, before_last, count: _ } = self;
        let mut words = event_words(bound.as_ref(), evicted.as_ref(), *reason);
        words.extend(by.as_ref().map(|by| format!("by {}", by.0)));
        words.extend(before_last.as_ref().map(|last| format!("before the last of {}", last.0)));
        f.write_str(&words.join(" "))
    }
}

fn event_words(bound: Option<&Glob>, evicted: Option<&Glob>, reason: Option<Reason>) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(bound.map(|unit| format!("{} bound", unit.0)));
    words.extend(evicted.map(|unit| format!("{} evicted", unit.0)));
    words.extend(reason.map(|reason| reason.0.as_str_name().to_owned()));
    words
}

/// A name, or the beginning of names before a `*`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Glob(pub(super) String);

impl Glob {
    pub(super) fn has(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.0,
        }
    }
}

/// Units and how many of each; `None`: one of that very name.
#[derive(Debug, Default)]
pub(super) struct Submit(pub(super) Vec<(String, Option<u32>)>);

/// Arguments of `godel`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Words(pub(super) Vec<String>);

/// A text or a list of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OneOrMore(pub(super) Vec<String>);

/// Any of these; absent units are in none.
#[derive(Clone, Debug)]
pub(super) struct Phases(pub(super) Vec<Option<v1::UnitPhase>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reason(pub(super) v1::EvictionReason);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partition(pub(super) v1::PartitionMode);

/// Reads a scenario.
///
/// # Errors
/// The first mistake, with its line and column.
pub fn parse(text: &str) -> Result<Scenario, Mistake> {
    let first =
        || serde_yaml_ng::Deserializer::from_str(text).next().ok_or_else(|| other("the file is empty"));
    let story = Story::deserialize(first()?).map_err(|error| mistake(&error))?;
    let written = serde_yaml_ng::Value::deserialize(first()?).map_err(|error| mistake(&error))?;
    let steps = written.get("steps").and_then(serde_yaml_ng::Value::as_sequence).into_iter().flatten();
    let steps = steps.map(|step| serde_yaml_ng::to_string(step).unwrap_or_default()).collect();
    let (queues, classes) = (vec![], vec![]);
    let (budgets, reservations) = (vec![], vec![]);
    let mut scenario =
        Scenario { story, queues, classes, budgets, reservations, units: BTreeMap::new(), steps };
    let documents = parse_form(&without_story(text));
    for (_, document) in
        documents.map_err(|mistakes| mistakes.0.into_iter().next().unwrap_or_else(|| other("a mistake")))?
    {
        match document {
            Document::Queue(queue) => scenario.queues.push(*queue),
            Document::PriorityClass(class) => scenario.classes.push(class),
            Document::Budget(budget) => scenario.budgets.push(*budget),
            Document::Reservation(spec) => scenario.reservations.push(*spec),
            Document::Unit(unit) => {
                let name = unit.meta.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
                if scenario.units.insert(name.clone(), *unit).is_some() {
                    return Err(other(format!("unit {name} stands twice")));
                }
            }
        }
    }
    scenario.check()?;
    Ok(scenario)
}

/// The text with the first document emptied, so that lines keep their numbers.
fn without_story(text: &str) -> String {
    let mut is_story = true;
    let mut rest = String::new();
    for line in text.lines() {
        is_story &= line.trim_end() != "---";
        rest.push_str(if is_story { "" } else { line });
        rest.push('\n');
    }
    rest
}

fn other(message: impl Into<String>) -> Mistake {
    Mistake { line: 0, column: 0, message: message.into() }
}

impl Scenario {
    /// What it covers.
    pub fn covers(&self) -> &[Code] {
        &self.story.covers
    }

    /// The cluster as it is started, without nodes.
    pub(super) fn layout(&self) -> Layout {
        let ClusterSize { dispatchers, schedulers, binders, settings, profiles } = &self.story.cluster;
        // What is not in the store is looked at again with each bookmark.
        let bookmarks = ("state.watch_bookmark_interval".to_owned(), "100ms".to_owned());
        let settings = settings.iter().map(|(key, value)| (key.clone(), value.0.clone()));
        // Where nobody dies no leader is lost, however slow the machine is.
        let is_harmed = |step: &Step| {
            [&step.kill, &step.stop, &step.freeze].into_iter().any(Option::is_some) || step.crash.is_some()
        };
        let leases: &[&str] = match self.story.steps.iter().any(is_harmed) {
            true => &[],
            false => &["dispatcher", "binder", "scheduler"],
        };
        let leases = leases.iter().map(|part| (format!("{part}.lease.ttl"), "30s".to_owned()));
        let config = BTreeMap::from([("scheduler", BTreeMap::from([("profiles", profiles)]))]);
        let config = serde_yaml_ng::to_string(&config).expect("what was read from YAML can be written");
        // Over TLS a rescheduler alone may ask for moves, and a scenario is a person.
        let is_plain = self.story.steps.iter().any(|step| step.moves.is_some());
        Layout {
            n_nodes: 0,
            is_plain,
            n_dispatchers: *dispatchers,
            n_schedulers: *schedulers,
            n_binders: *binders,
            settings: [bookmarks].into_iter().chain(leases).chain(settings).collect(),
            config_file: if profiles.is_empty() { String::new() } else { config },
            ..Layout::default()
        }
    }

    /// A step as it is written, numbered from 1.
    pub(super) fn place(&self, number: usize) -> String {
        let text = self.steps.get(number - 1).map_or("", String::as_str);
        format!("step {number}\n{}", text.trim_end())
    }

    fn check(&self) -> Result<(), Mistake> {
        let covers = &self.story.covers;
        if let Some((idx, code)) = covers.iter().enumerate().find(|(idx, code)| covers[..*idx].contains(code))
        {
            return Err(other(format!("covers[{idx}]: {code} stands twice")));
        }
        for (number, step) in (1..).zip(&self.story.steps) {
            let bad = |what: String| Err(other(format!("step {number}: {what}")));
            let parts = [&step.kill, &step.stop, &step.start, &step.freeze, &step.thaw];
            let n_actions = parts.into_iter().flatten().count()
                + usize::from(step.submit.is_some())
                + usize::from(step.godel.is_some())
                + usize::from(step.crash.is_some())
                + usize::from(step.moves.is_some());
            if n_actions > 1 {
                return bad("more than one action".to_owned());
            }
            if step.godel.is_none() && (step.exit != 0 || !step.says.0.is_empty()) {
                return bad("`exit` and `says` are of `godel`".to_owned());
            }
            let submitted = step.submit.iter().flat_map(|submit| &submit.0);
            if let Some((name, _)) = submitted.into_iter().find(|(name, _)| !self.units.contains_key(name)) {
                return bad(format!("no unit {name} behind the first `---`"));
            }
            let events = step.expect.iter().flat_map(|expect| &expect.events);
            if events.into_iter().any(|event| event.bound.is_some() == event.evicted.is_some()) {
                return bad("an event is either `bound` or `evicted`".to_owned());
            }
        }
        if let Some((group, _)) = self.story.nodes.iter().find(|(_, nodes)| !nodes.is_whole()) {
            return Err(other(format!(
                "nodes {group}: simulated nodes need `cpu`, and a `real` node is as large as this machine"
            )));
        }
        let nevers = self.story.steps.iter().flat_map(|step| &step.never).chain(&self.story.never);
        for never in nevers {
            let n_kinds = [&never.bound, &never.evicted, &never.unit].into_iter().flatten().count();
            if n_kinds != 1 || never.unit.is_some() != never.placed.is_some() {
                return Err(other("`never` has one of `bound`, `evicted`, and `unit` with `placed`"));
            }
        }
        Ok(())
    }
}

impl Nodes {
    /// As `godel agent --simulate` takes them.
    pub(super) fn shapes(&self, group: &str) -> Vec<String> {
        let name = self.name.as_deref().unwrap_or(group);
        let mut common = format!("cpu={},memory={}", self.cpu.0, self.memory.0);
        self.gpu.iter().for_each(|gpu| common.push_str(&format!(",gpu={}", gpu.0)));
        self.shape.iter().for_each(|more| common.push_str(&format!(",{}", more.0)));
        self.labels.iter().for_each(|(key, value)| common.push_str(&format!(",label.{key}={}", value.0)));
        if self.racks == 0 {
            return vec![format!("{}x {common},name={name}", self.count)];
        }
        let in_rack = |rack: usize| (self.count + self.racks - 1 - rack) / self.racks;
        (0..self.racks)
            .filter(|rack| in_rack(*rack) > 0)
            .map(|rack| format!("{}x {common},name={name}-r{rack},label.rack=r{rack}", in_rack(rack)))
            .collect()
    }

    /// Whether the keys that say what nodes have are there where they are needed, and only there.
    pub(super) fn is_whole(&self) -> bool {
        let has_cpu = !self.cpu.0.is_empty();
        let has_shape = has_cpu || self.count != 1 || self.gpu.is_some() || self.shape.is_some();
        if self.real { !has_shape && self.racks == 0 && self.labels.is_empty() } else { has_cpu }
    }

    /// Whether they are nodes of another group, as another agent plays them.
    pub(super) fn is_again(&self) -> bool {
        self.name.is_some()
    }

    /// As `--set` takes them.
    pub(super) fn settings(&self) -> Vec<String> {
        self.settings.iter().map(|(key, value)| format!("{key}={}", value.0)).collect()
    }
}
