//! What must be seen, held against what is seen now.

use godel_client::unit_file::{parse_amount, show_amount};
use godel_proto::v1;

use super::{
    file::{
        DispatcherExpect, Expect, Glob, NodesExpect, OneOrMore, Partition, QueueExpect, Scenario, UnitFields,
        Words,
    },
    history::Informer,
    number::Number,
    scalar::Text,
    seen::{self, Seen},
};
use crate::cluster::{Cluster, shown};

/// One thing that is not as expected.
#[derive(Clone, Debug)]
pub(super) struct Mismatch {
    pub(super) what: String,
    pub(super) expected: String,
    pub(super) seen: String,
}

impl Mismatch {
    pub(super) fn new(what: impl Into<String>, expected: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { what: what.into(), expected: expected.into(), seen: seen.into() }
    }
}

/// Everything that is not as expected now. What cannot be read is not as expected either.
pub(super) async fn mismatches(
    expected: &Expect,
    cluster: &mut Cluster,
    scenario: &Scenario,
    follower: &Informer,
) -> Vec<Mismatch> {
    let mut found = Mismatches::default();
    for name in &expected.ended.0 {
        if cluster.is_running(name) {
            found.add(format!("process {name}"), "ended", "runs");
        }
    }
    let Seen { units, nodes } = match seen::look(&cluster.api).await {
        Ok(seen) => seen,
        Err(error) => {
            found.add("the cluster", "an answer", format!("{error:#}"));
            return found.0;
        }
    };
    follower.history().note_waiting(&units);
    for (name, wanted) in &expected.units {
        let matching: Vec<&v1::Unit> = units.iter().filter(|unit| is_named(unit, name)).collect();
        found.units(name, &wanted.0, &matching);
        if wanted.0.has_replicas() {
            match seen::replicas(&cluster.api, &matching).await {
                Ok(replicas) => found.replicas(name, &wanted.0, &replicas, &nodes),
                Err(error) => found.add(format!("unit {name}"), "an answer", format!("{error:#}")),
            }
        }
    }
    for (path, wanted) in &expected.queues {
        match seen::queue(&cluster.api, path).await {
            Ok(usage) => found.queue(path, wanted, &usage),
            Err(error) => found.add(format!("queue {path}"), "an answer", format!("{error:#}")),
        }
    }
    for (group, wanted) in &expected.nodes {
        let name = scenario.story.nodes.get(group).and_then(|nodes| nodes.name.as_deref()).unwrap_or(group);
        let own: Vec<&v1::Node> = nodes.iter().filter(|node| is_of_group(seen::name(node), name)).collect();
        let reported = match wanted.reported {
            None => Ok(0),
            Some(_) => seen::reported(&cluster.api, name).await,
        };
        match reported {
            Ok(reported) => found.nodes(group, wanted, &own, reported),
            Err(error) => found.add(format!("nodes {group}"), "an answer", format!("{error:#}")),
        }
    }
    match cluster.api.dispatcher_status().await {
        Ok(status) => {
            follower.history().traces.add_value(status.partition_mode().as_str_name());
            found.dispatcher(&expected.dispatcher, expected.partition, &status);
        }
        Err(error) => found.add("the dispatcher", "an answer", format!("{error:#}")),
    }
    if !expected.metrics.is_empty() {
        let metrics = seen::metrics(cluster).await;
        follower.history().note_rejected(&metrics);
        for (name, wanted) in &expected.metrics {
            match metrics.sums.get(name) {
                Some(n) => found.number(format!("metric {name}"), &Some(wanted.clone()), *n),
                None => found.add(format!("metric {name}"), wanted.to_string(), "there is none"),
            }
        }
    }
    let history = follower.history();
    found.number("holds", &expected.holds, count(history.n_holds()));
    for event in &expected.events {
        let (n, events) = history.count(event);
        if !event.count.has(count(n)) {
            found.add(format!("events: {event}"), event.count.to_string(), format!("{n}: {events}"));
        }
    }
    drop(history);
    // A process for each: only where all else is as expected.
    if found.0.is_empty() {
        for (words, texts) in &expected.shows {
            found.shows(words, texts, cluster);
        }
    }
    found.0
}

#[derive(Default)]
struct Mismatches(Vec<Mismatch>);

impl Mismatches {
    fn add(&mut self, what: impl Into<String>, expected: impl Into<String>, seen: impl Into<String>) {
        self.0.push(Mismatch::new(what, expected, seen));
    }

    fn shows(&mut self, words: &Words, texts: &OneOrMore, cluster: &Cluster) {
        let words: Vec<&str> = words.0.iter().map(String::as_str).collect();
        let output = cluster.godel(&words);
        let text = shown(&output);
        let verb = format!("godel {}", words.join(" "));
        match texts.0.iter().find(|expected| !text.contains(expected.as_str())) {
            Some(expected) => self.add(verb, format!("`{expected}` in what it prints"), text),
            None if !output.status.success() => self.add(verb, "success", text),
            None => {}
        }
    }

    fn number(&mut self, what: impl Into<String>, expected: &Option<Number>, seen: i64) {
        match expected {
            Some(expected) if !expected.has(seen) => self.add(what, expected.to_string(), seen.to_string()),
            _ => {}
        }
    }

    fn units(&mut self, name: &str, wanted: &UnitFields, units: &[&v1::Unit]) {
        let shown: Vec<String> = units.iter().take(5).map(|unit| seen::show(unit)).collect();
        let shown = shown.join("; ");
        if let Some(phases) = &wanted.phase {
            let is_there = |unit: &&v1::Unit| phases.0.contains(&Some(unit.phase()));
            let is_so = if units.is_empty() { phases.0.contains(&None) } else { units.iter().all(is_there) };
            if !is_so {
                let words: Vec<&str> =
                    phases.0.iter().map(|phase| phase.map_or("gone", |it| it.as_str_name())).collect();
                let seen = if units.is_empty() { "no such unit" } else { &shown };
                self.add(format!("unit {name}: phase"), words.join(" or "), seen);
            }
        }
        let sum = |of: fn(&v1::UnitCounts) -> u32| -> i64 {
            units.iter().filter_map(|unit| unit.counts.as_ref()).map(|counts| i64::from(of(counts))).sum()
        };
        for (field, wanted, n) in [
            ("pending", &wanted.pending, sum(|counts| counts.pending)),
            ("bound", &wanted.bound, sum(|counts| counts.bound)),
            ("running", &wanted.running, sum(|counts| counts.running)),
            ("succeeded", &wanted.succeeded, sum(|counts| counts.succeeded)),
            ("failed", &wanted.failed, sum(|counts| counts.failed)),
            ("evicting", &wanted.evicting, sum(|counts| counts.evicting)),
        ] {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| !wanted.has(n)) {
                self.add(format!("unit {name}: {field}"), wanted.to_string(), format!("{n} of {shown}"));
            }
        }
        for words in &wanted.why.0 {
            if units.is_empty() || !units.iter().all(|unit| seen::why(unit).contains(words)) {
                self.add(format!("unit {name}: why it waits"), words, &shown);
            }
        }
        if let Some(words) = &wanted.waits_for
            && !units.iter().all(|unit| unit.waits_for.contains(words))
        {
            self.add(format!("unit {name}: what it waits for"), words, &shown);
        }
        if let Some(wanted) = &wanted.preempted_by {
            let all = |unit: &v1::Unit| -> Vec<String> {
                let names = unit.preempted_by.iter();
                names.map(|name| name.trim_start_matches("default/").to_owned()).collect()
            };
            for unit in units.iter().filter(|unit| all(unit) != wanted.0) {
                self.add(
                    format!("unit {name}: preempted by"),
                    format!("{:?}", wanted.0),
                    format!("{:?}", all(unit)),
                );
            }
        }
    }

    fn replicas(&mut self, name: &str, wanted: &UnitFields, runs: &[v1::RunningUnit], nodes: &[v1::Node]) {
        type Of = fn(&v1::RunningUnit) -> i64;
        let fields: [(&str, &Option<Number>, Of); 3] = [
            ("incarnation", &wanted.incarnation, |run| i64::from(run.incarnation)),
            ("restarts", &wanted.restarts, |run| i64::from(run.restarts)),
            ("exit_code", &wanted.exit_code, |run| i64::from(run.exit_code)),
        ];
        for (field, wanted, of) in fields {
            let Some(wanted) = wanted else { continue };
            if runs.is_empty() || !runs.iter().all(|run| wanted.has(of(run))) {
                let all: Vec<i64> = runs.iter().map(of).collect();
                self.add(format!("unit {name}: {field} of each"), wanted.to_string(), format!("{all:?}"));
            }
        }
        let running: Vec<&v1::RunningUnit> =
            runs.iter().filter(|run| run.phase() == v1::RunPhase::Running && !run.evicting).collect();
        if let Some(Text(wanted)) = &wanted.ordinals {
            let ordinals = ranges(running.iter().map(|run| run.ordinal));
            if ordinals != *wanted {
                self.add(format!("unit {name}: ordinals that run"), wanted, ordinals);
            }
        }
        for (place, wanted) in &wanted.on {
            let is_there = |run: &&&v1::RunningUnit| match place.split_once('=') {
                None => is_of_group(&run.node, place),
                Some((key, value)) => nodes
                    .iter()
                    .any(|node| seen::name(node) == run.node && seen::label(node, key) == Some(value)),
            };
            let n = running.iter().filter(is_there).count();
            self.number(format!("unit {name}: running on {place}"), &Some(wanted.clone()), count(n));
        }
    }

    fn queue(&mut self, path: &str, wanted: &QueueExpect, usage: &v1::QueueUsage) {
        let amounts = [
            ("used", &wanted.used, &usage.used_with_children),
            ("borrowed", &wanted.borrowed, &usage.borrowed),
        ];
        for (field, wanted, seen) in amounts {
            for (resource, Text(amount)) in wanted {
                let n = seen.as_ref().and_then(|seen| seen.amounts.get(resource)).copied().unwrap_or(0);
                if parse_amount(resource, amount) != Ok(n) {
                    let what = format!("queue {path}: {field} {resource}");
                    self.add(what, amount, show_amount(resource, n));
                }
            }
        }
        for (field, wanted, n) in [
            ("pending", &wanted.pending, usage.pending_units),
            ("running", &wanted.running, usage.running_units),
        ] {
            self.number(format!("queue {path}: {field}"), wanted, i64::try_from(n).unwrap_or(i64::MAX));
        }
    }

    fn nodes(&mut self, group: &str, wanted: &NodesExpect, nodes: &[&v1::Node], reported: usize) {
        let is_ready = |node: &&&v1::Node| node.report.as_ref().is_some_and(|report| report.ready);
        let running: i64 = nodes.iter().map(|node| i64::from(node.running_units)).sum();
        for (field, wanted, n) in [
            ("count", &wanted.count, count(nodes.len())),
            ("ready", &wanted.ready, count(nodes.iter().filter(is_ready).count())),
            ("running", &wanted.running, running),
            ("reported", &wanted.reported, count(reported)),
        ] {
            self.number(format!("nodes {group}: {field}"), wanted, n);
        }
        if let Some(Text(wanted)) = &wanted.cpu {
            let cpu =
                |node: &&v1::Node| node.allocatable.as_ref().and_then(|all| all.amounts.get("cpu")).copied();
            let n: i64 = nodes.iter().filter_map(cpu).sum();
            if parse_amount("cpu", wanted) != Ok(n) {
                self.add(format!("nodes {group}: cpu"), wanted, show_amount("cpu", n));
            }
        }
    }

    fn dispatcher(
        &mut self,
        wanted: &DispatcherExpect,
        partition: Option<Partition>,
        status: &v1::GetDispatcherStatusResponse,
    ) {
        for (field, wanted, n) in [
            ("queued_units", &wanted.queued_units, status.queued_units),
            ("dispatched_units", &wanted.dispatched_units, status.dispatched_units),
            ("parked_units", &wanted.parked_units, status.parked_units),
            ("redispatched", &wanted.redispatched, status.redispatched),
            ("nodes_not_ready", &wanted.nodes_not_ready, status.nodes_not_ready),
            ("nodes_draining", &wanted.nodes_draining, status.nodes_draining),
        ] {
            self.number(format!("dispatcher: {field}"), wanted, i64::try_from(n).unwrap_or(i64::MAX));
        }
        if let Some(wanted) = wanted.evictions_paused.filter(|wanted| *wanted != status.evictions_paused) {
            self.add("dispatcher: evictions_paused", wanted.to_string(), (!wanted).to_string());
        }
        if let Some(wanted) = partition.filter(|wanted| wanted.0 != status.partition_mode()) {
            let seen = format!("{:?} ({})", status.partition_mode(), status.partition_reason);
            self.add("partition", format!("{:?}", wanted.0), seen);
        }
    }
}

fn is_named(unit: &v1::Unit, glob: &str) -> bool {
    let meta = unit.spec.as_ref().and_then(|spec| spec.meta.as_ref());
    Glob(glob.to_owned()).has(meta.map_or("", |meta| meta.name.as_str()))
}

/// Nodes of a group are named after it and numbered.
fn is_of_group(node: &str, group: &str) -> bool {
    node.strip_prefix(group).is_some_and(|rest| rest.starts_with('-'))
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// `0-4,50`.
fn ranges(ordinals: impl Iterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for ordinal in ordinals {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == ordinal => *last = ordinal,
            _ => ranges.push((ordinal, ordinal)),
        }
    }
    let show = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(show).collect::<Vec<_>>().join(",")
}
