//! Policies as a configuration writes them.

use std::collections::BTreeMap;

use godel_base::{quantity, quantity::MILLI_WHOLE, resources::Resources};
use godel_core_rescheduler::{
    Aim, Binpack, Colocation, Defragmentation, FailureDomainSpread, LoadBalance, PolicyConfig, PolicyScope,
    RescheduleKind, Trigger, TypicalDemand,
};
use godel_domain::demand::{Demand, DeviceRequest};
use godel_kit::config::HumanDuration;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::conditions;

/// Kinds of policies by name.
const KINDS: [&str; 5] = ["binpack", "colocation", "defragmentation", "load-balance", "spread"];

/// A policy as a configuration writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// What it does: `binpack`, `colocation`, `defragmentation`, `load-balance` or `spread`.
    pub kind: String,
    /// Whether it runs.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Whether it only says what it would do.
    #[serde(default)]
    pub dry_run: bool,
    /// It runs this long after its last run.
    #[serde(default)]
    pub every: Option<HumanDuration>,
    /// Up to this is added to each period by chance. Absent: a tenth of it.
    #[serde(default)]
    pub jitter: Option<HumanDuration>,
    /// It runs at these times, as cron writes them, in UTC.
    #[serde(default)]
    pub cron: Option<String>,
    /// It runs when the process gets the signal SIGUSR1.
    #[serde(default)]
    pub signal: bool,
    /// It runs when somebody calls for it.
    #[serde(default = "yes")]
    pub request: bool,
    /// Sub-clusters of the nodes that it uses. Empty: all.
    #[serde(default)]
    pub sub_clusters: Vec<String>,
    /// Conditions on labels of the nodes that it uses, all of which hold.
    #[serde(default)]
    pub node_labels: String,
    /// Queues of the units that it moves. Empty: all.
    #[serde(default)]
    pub queues: Vec<String>,
    /// Policies whose rules its moves keep.
    #[serde(default)]
    pub checked_by: Vec<String>,
    /// Most running units that one plan moves, percent of those in scope.
    #[serde(default = "ten")]
    pub moved_max_percent: u32,
    /// Arguments of the kind.
    #[serde(default = "nothing")]
    pub args: Value,
}

fn yes() -> bool {
    true
}

fn ten() -> u32 {
    10
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BinpackArgs {
    use_max: f64,
    ends_within: HumanDuration,
}

impl Default for BinpackArgs {
    fn default() -> Self {
        let Binpack { use_max, ends_within_ms } = Binpack::default();
        Self { use_max, ends_within: HumanDuration::from_millis(ends_within_ms) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LoadBalanceArgs {
    hot: f64,
    calm: f64,
}

impl Default for LoadBalanceArgs {
    fn default() -> Self {
        let LoadBalance { hot, calm } = LoadBalance::default();
        Self { hot, calm }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpreadArgs {
    #[serde(default)]
    level: Option<String>,
    domains: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ColocationArgs {
    remote_max: f64,
    steps_each: u64,
    heat: f64,
}

impl Default for ColocationArgs {
    fn default() -> Self {
        let Colocation { remote_max, n_steps_each, heat } = Colocation::default();
        Self { remote_max, steps_each: n_steps_each, heat }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DefragmentationArgs {
    requests: BTreeMap<String, Value>,
    devices: Vec<DeviceArgs>,
    copies: Option<u32>,
    level: Option<String>,
    enough: Option<u32>,
    moves_each_max: Option<usize>,
    rate_max: Option<f64>,
    steps_each: Option<u64>,
    typical: Vec<TypicalArgs>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceArgs {
    kind: String,
    #[serde(default = "one")]
    count: u32,
    #[serde(default = "whole")]
    milli: u32,
    #[serde(default)]
    models: Vec<String>,
}

fn one() -> u32 {
    1
}

fn whole() -> u32 {
    MILLI_WHOLE
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypicalArgs {
    #[serde(default)]
    requests: BTreeMap<String, Value>,
    #[serde(default)]
    devices: Vec<DeviceArgs>,
    #[serde(default = "weight")]
    weight: f64,
}

fn weight() -> f64 {
    1.0
}

/// Steps of the search of defragmentation for each running unit, unless the configuration says otherwise.
const RATE_STEPS_EACH: u64 = 2_000;

impl PolicySpec {
    /// Returns the policy.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(super) fn read(&self) -> Result<PolicyConfig, Vec<String>> {
        let mut faults = Vec::new();
        let mut triggers = Vec::new();
        if let Some(every) = self.every {
            let jitter_ms = self.jitter.map_or(every.ms() / 10, HumanDuration::ms);
            triggers.push(Trigger::Period { every_ms: every.ms(), jitter_ms });
        } else if self.jitter.is_some() {
            faults.push("`jitter` is set and `every` is not".to_owned());
        }
        if let Some(text) = &self.cron {
            match text.parse() {
                Ok(table) => triggers.push(Trigger::Cron(table)),
                Err(wrong) => faults.push(format!("`cron`: {wrong}")),
            }
        }
        if self.signal {
            triggers.push(Trigger::Signal);
        }
        if self.request {
            triggers.push(Trigger::Request);
        }
        let node_labels = conditions(&self.node_labels)
            .map_err(|wrong| faults.push(format!("`node_labels`: {wrong}")))
            .unwrap_or_default();
        let kind = self.kind().map_err(|wrong| faults.push(wrong)).ok();
        match kind {
            Some(kind) if faults.is_empty() => Ok(PolicyConfig {
                kind,
                enabled: self.enabled,
                dry_run: self.dry_run,
                triggers,
                scope: PolicyScope {
                    sub_clusters: self.sub_clusters.iter().cloned().collect(),
                    node_labels,
                    queues: self.queues.iter().cloned().collect(),
                },
                checked_by: self.checked_by.iter().cloned().collect(),
                moved_max_percent: self.moved_max_percent,
            }),
            Some(_) | None => Err(faults),
        }
    }

    fn kind(&self) -> Result<RescheduleKind, String> {
        Ok(match self.kind.as_str() {
            "binpack" => {
                let BinpackArgs { use_max, ends_within } = self.args()?;
                RescheduleKind::Binpack(Binpack { use_max, ends_within_ms: ends_within.ms() })
            }
            "load-balance" => {
                let LoadBalanceArgs { hot, calm } = self.args()?;
                RescheduleKind::LoadBalance(LoadBalance { hot, calm })
            }
            "spread" => {
                let SpreadArgs { level, domains } = self.args()?;
                RescheduleKind::Spread(FailureDomainSpread { level, n_domains: domains })
            }
            "colocation" => {
                let ColocationArgs { remote_max, steps_each, heat } = self.args()?;
                RescheduleKind::Colocation(Colocation { remote_max, n_steps_each: steps_each, heat })
            }
            "defragmentation" => RescheduleKind::Defragmentation(self.args::<DefragmentationArgs>()?.read()?),
            unknown => {
                return Err(format!("there is no kind `{unknown}`; there are {}", KINDS.join(", ")));
            }
        })
    }

    fn args<T: DeserializeOwned>(&self) -> Result<T, String> {
        let args = if self.args.is_null() { nothing() } else { self.args.clone() };
        let read = serde_json::from_value(args.clone());
        // Flags and the environment say numbers as texts.
        let read = read.or_else(|wrong| serde_json::from_value(with_numbers(args)).map_err(|_| wrong));
        read.map_err(|wrong| format!("`args`: {wrong}"))
    }
}

/// Arguments whose texts that are numbers are numbers.
fn with_numbers(args: Value) -> Value {
    let Value::Object(fields) = args else { return args };
    let number = |value: Value| match &value {
        Value::String(text) => match serde_json::from_str(text) {
            Ok(number @ Value::Number(_)) => number,
            Ok(_) | Err(_) => value,
        },
        _ => value,
    };
    Value::Object(fields.into_iter().map(|(key, value)| (key, number(value))).collect())
}

impl DefragmentationArgs {
    fn read(self) -> Result<Defragmentation, String> {
        let has_room = !self.requests.is_empty() || !self.devices.is_empty();
        let aim = match (has_room, self.rate_max) {
            (true, None) => Aim::Room {
                demand: demand(&self.requests, &self.devices)?,
                n_copies: self.copies.unwrap_or(1).max(1),
                level: self.level,
                n_enough: self.enough,
                n_moves_each_max: self.moves_each_max,
            },
            (false, Some(rate_max)) if (0.0..=1.0).contains(&rate_max) => {
                Aim::Rate { n_steps_each: self.steps_each.unwrap_or(RATE_STEPS_EACH), rate_max }
            }
            (false, Some(rate_max)) => {
                return Err(format!("`args`: rate_max is {rate_max}, and must be from 0 to 1"));
            }
            (true, Some(_)) | (false, None) => {
                return Err(
                    "`args`: either `requests` or `devices` say what needs room, or `rate_max` is set"
                        .to_owned(),
                );
            }
        };
        let typical = self.typical.iter().map(|one| {
            Ok::<_, String>(TypicalDemand {
                demand: demand(&one.requests, &one.devices)?,
                weight: one.weight,
            })
        });
        Ok(Defragmentation { aim, typical: typical.collect::<Result<_, String>>()? })
    }
}

fn demand(requests: &BTreeMap<String, Value>, devices: &[DeviceArgs]) -> Result<Demand, String> {
    let mut amounts = Resources::default();
    for (name, value) in requests {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let amount =
            quantity::parse(name, &text).map_err(|wrong| format!("`args.requests.{name}`: {wrong}"))?;
        amounts.add_amount(name, amount);
    }
    let device = |one: &DeviceArgs| {
        let is_share = one.milli < MILLI_WHOLE;
        if one.kind.is_empty() || !(1..=64).contains(&one.count) || !(1..=MILLI_WHOLE).contains(&one.milli) {
            return Err(
                "`args.devices`: a device has a kind, a count from 1 to 64 and 1 to 1000 thousandths"
                    .to_owned(),
            );
        }
        if is_share && one.count > 1 {
            return Err("`args.devices`: shares are of one device".to_owned());
        }
        let (kind, models) = (one.kind.clone(), one.models.clone());
        Ok(DeviceRequest { kind, count: one.count, milli: one.milli, models, terms: None })
    };
    let devices = devices.iter().map(device).collect::<Result<_, _>>()?;
    Ok(Demand { requests: amounts, devices, host_ports: Vec::new(), zones: None })
}
