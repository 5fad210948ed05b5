//! Bandwidths of running units: what each sends, receives and takes of the memory's bandwidth, and, where the kernel can, what it is
//! kept to.
//!
//! The network is the business of `network`: nftables finds the packets of a control group and counts them, and classes of the
//! queue of an interface keep them to a rate. Memory bandwidth is that of `resctrl`. Each of both says what it can on this
//! machine (`Care`); what it cannot is reckoned with by the scheduler alone. Members are those that run: whoever is not named
//! any more is forgotten, and what an earlier agent has left in the kernel is replaced.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use godel_base::{resources, time::Millis};
use serde::{Deserialize, Serialize};

use self::{
    commands::Commands,
    network::{Counted, Network},
    resctrl::Resctrl,
};
use crate::{cgroup::GroupRecord, detect::tree::Tree, inventory::NodeDef};

mod commands;
mod network;
mod resctrl;

/// Between looks at counters, milliseconds: each is a command that is started.
const PAUSE_MS: u64 = 5_000;

/// What a running unit asks for of bandwidths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BandwidthAsk {
    /// Bits per second that it may send; `None`: it asks for none.
    pub network: Option<i64>,
    /// Bytes per second between its CPUs and the memory; `None`: it asks for none.
    pub memory: Option<i64>,
    /// Its CPUs by number; empty: all.
    pub cpus: Vec<u32>,
    /// It gets what others leave.
    pub is_best_effort: bool,
}

/// What an agent does about a bandwidth, and why it does no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// Only the scheduler reckons with what is asked for.
    Accounted(String),
    /// What is used is measured.
    Measured(String),
    /// Who asks for some is kept to it. In words what is left out; empty: nothing.
    Kept(String),
}

impl Care {
    /// Why no more is done.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Accounted(why) | Self::Measured(why) | Self::Kept(why) => why,
        }
    }
}

/// A run whose bandwidths matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// As its directory is called: `UNIT-ORDINAL-INCARNATION.N`.
    pub(crate) name: String,
    pub(crate) group: GroupRecord,
    pub(crate) ask: BandwidthAsk,
}

/// Bandwidths of one run, over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Bits per second that it receives and sends; `None`: they are not counted.
    pub(crate) network: Option<(i64, i64)>,
    /// Bytes per second; `None`: they are not counted.
    pub(crate) memory: Option<i64>,
}

impl Rates {
    /// Both together, of what is counted.
    pub(crate) fn plus(self, other: Self) -> Self {
        let both = |one: Option<i64>, other: Option<i64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        let network = match (self.network, other.network) {
            (Some((received, sent)), Some((more_received, more_sent))) => {
                Some((received.saturating_add(more_received), sent.saturating_add(more_sent)))
            }
            (one, other) => one.or(other),
        };
        Self { network, memory: both(self.memory, other.memory) }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Bandwidths {
    network: Result<Network, Care>,
    memory: Result<Resctrl, Care>,
    counted: Option<(Millis, Counts)>,
    rates: BTreeMap<String, Rates>,
}

/// Counters that rise for ever, by run.
#[derive(Clone, Debug, Default)]
struct Counts {
    network: BTreeMap<String, Counted>,
    memory: BTreeMap<String, u64>,
}

/// Where and for whom bandwidths are cared for.
pub(crate) struct Setting<'a> {
    /// For files of commands that are started.
    pub(crate) dir: &'a Path,
    /// Distinguishes this agent from others of the machine.
    pub(crate) name: &'a str,
    /// Interfaces that carry the traffic of running units; empty: those that are hardware.
    pub(crate) interfaces: &'a [String],
    pub(crate) node: &'a NodeDef,
}

impl Bandwidths {
    /// Finds out what can be done on the machine below a root. `groups`: running units have control groups, or why they have none
    /// by which their traffic is known.
    pub(crate) fn open(tree: &Tree, groups: Result<(), String>, setting: &Setting<'_>) -> Self {
        let offered = |name| setting.node.capacity.get(name);
        let commands = Commands::new(setting.dir);
        let network = groups.map_err(Care::Accounted);
        let network = network.and_then(|()| {
            Network::open(tree, commands, setting.name, setting.interfaces, offered(resources::NETWORK))
                .map_err(Care::Accounted)
        });
        let memory = Resctrl::open(tree, setting.name, offered(resources::MEMORY_BANDWIDTH));
        Self { network, memory: memory.map_err(Care::Accounted), counted: None, rates: BTreeMap::new() }
    }

    /// Nothing is done, for one reason.
    pub(crate) fn off(why: &str) -> Self {
        let care = || Care::Accounted(why.to_owned());
        Self { network: Err(care()), memory: Err(care()), counted: None, rates: BTreeMap::new() }
    }

    /// What is done about the network and about memory.
    pub(crate) fn care(&self) -> (Care, Care) {
        let network = self.network.as_ref().map_or_else(Care::clone, Network::care);
        (network, self.memory.as_ref().map_or_else(Care::clone, Resctrl::care))
    }

    /// One more run is about to begin. Returns the files to which its first process writes itself, so that all that it starts
    /// belongs to it. What cannot be done for it is logged.
    pub(crate) fn join(&mut self, member: &Member) -> Vec<PathBuf> {
        if let Ok(network) = &mut self.network {
            network.join(member);
        }
        self.memory.as_mut().ok().and_then(|memory| memory.join(member)).into_iter().collect()
    }

    /// Takes care of exactly these runs, and returns their bandwidths by name.
    pub(crate) fn look(&mut self, members: &[Member], now: Millis) -> &BTreeMap<String, Rates> {
        let is_due = self.counted.as_ref().is_none_or(|(at, _)| now.since(*at) >= PAUSE_MS);
        // Counters are read before anybody is forgotten: with a table that is made anew they go on from there.
        let network = match &mut self.network {
            Ok(network) => network.keep_to(members, is_due),
            Err(_) => None,
        };
        if let Ok(memory) = &mut self.memory {
            memory.keep_to(members);
        }
        if is_due {
            let memory = self.memory.as_ref().map(Resctrl::counts).unwrap_or_default();
            self.count(Counts { network: network.unwrap_or_default(), memory }, now);
        }
        self.rates.retain(|name, _| members.iter().any(|member| member.name == *name));
        &self.rates
    }

    fn count(&mut self, counts: Counts, now: Millis) {
        let before = self.counted.replace((now, counts));
        let (Some((at, before)), Some((_, counts))) = (before, &self.counted) else { return };
        let pause_ms = now.since(at).max(1);
        let per_second = |more: u64, factor: u64| {
            i64::try_from(more.saturating_mul(factor * 1_000) / pause_ms).unwrap_or(i64::MAX)
        };
        let mut rates: BTreeMap<String, Rates> = BTreeMap::new();
        for (name, (received, sent)) in &counts.network {
            // One that has begun since began with nothing.
            let (received_before, sent_before) = before.network.get(name).copied().unwrap_or_default();
            let bits = |now: &u64, before: u64| per_second(now.saturating_sub(before), 8);
            rates.entry(name.clone()).or_default().network =
                Some((bits(received, received_before), bits(sent, sent_before)));
        }
        for (name, bytes) in &counts.memory {
            let bytes_before = before.memory.get(name).copied().unwrap_or(0);
            rates.entry(name.clone()).or_default().memory =
                Some(per_second(bytes.saturating_sub(bytes_before), 1));
        }
        self.rates = rates;
    }
}

/// Whether a process is in a group.
fn lives(group: &GroupRecord) -> bool {
    crate::cgroup::reopen(group).pids().is_ok_and(|pids| !pids.is_empty())
}

#[cfg(test)]
mod tests;
