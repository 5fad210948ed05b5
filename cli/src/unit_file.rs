//! Unit files, and files of queues, priority classes, disruption budgets and reservations: YAML, several documents in one
//! file, as `docs/unit-file.md`, `docs/queues.md`, `docs/budgets.md` and `docs/reservations.md` say.
//!
//! Every mistake is told with its file, line and column; an unknown key with the known one that is nearest.

mod budget;
mod check;
mod manifest;
mod queue;
mod reservation;

use std::{collections::BTreeMap, fmt, time::Duration};

use godel_core::quantity;
use godel_proto::v1;
use serde::{Deserialize, Deserializer, de};

pub use check::{check, is_same};
pub use manifest::{Document, parse_manifest};
pub use queue::{parse_amount, show_amount};

/// A mistake in a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// From 1; 0 when unknown.
    pub line: usize,
    /// From 1.
    pub column: usize,
    /// What is wrong, with a suggestion where there is one.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.line, self.column)?;
        }
        f.write_str(&self.message)
    }
}

/// A unit of a file, and where its document begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// As it will be submitted; the dispatcher fills the defaults in.
    pub spec: v1::UnitSpec,
    /// Position of the document in the file, from 1.
    pub document: usize,
}

/// Reads every unit of a file that has nothing else.
///
/// # Errors
/// The first mistake.
pub fn parse(text: &str) -> Result<Vec<Loaded>, Mistake> {
    let mut units = Vec::new();
    for (document, what) in parse_manifest(text)? {
        let Document::Unit(spec) = what else {
            let message = format!("document {document} is no unit: `godel apply -f` takes it");
            return Err(Mistake { line: 0, column: 0, message });
        };
        units.push(Loaded { spec: *spec, document });
    }
    if units.is_empty() {
        return Err(Mistake { line: 0, column: 0, message: "the file has no unit".to_owned() });
    }
    Ok(units)
}

/// What the YAML reader says, with its position told apart and unknown words explained.
pub fn mistake(error: &serde_yaml_ng::Error) -> Mistake {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    let text = error.to_string();
    // The position is told apart from the text.
    let text = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    Mistake { line, column, message: suggest(text) }
}

/// Replaces serde's list of all known names by the nearest one.
fn suggest(text: &str) -> String {
    for (marker, word) in [("unknown field `", "key"), ("unknown variant `", "value")] {
        let Some(start) = text.find(marker) else { continue };
        let path = &text[..start];
        let rest = &text[start + marker.len()..];
        let Some((unknown, rest)) = rest.split_once('`') else { continue };
        let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        let nearest = nearest(unknown, &known);
        let tail = nearest.map_or_else(
            || format!("known are {}", known.join(", ")),
            |nearest| format!("did you mean `{nearest}`?"),
        );
        return format!("{path}unknown {word} `{unknown}`: {tail}");
    }
    text.to_owned()
}

/// The known word nearest to an unknown one, if it is near at all.
pub fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let score = |word: &str| strsim::jaro_winkler(&unknown.to_lowercase(), word);
    let best = known.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) > 0.75).then_some(best)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unit {
    #[serde(default, rename = "kind")]
    _kind: manifest::Kind,
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, Text>,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    class: Class,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    priority_class: String,
    #[serde(default)]
    pool: Pool,
    #[serde(default)]
    min_member: u32,
    #[serde(default)]
    restart_policy: Restart,
    #[serde(default)]
    scoring: Scoring,
    #[serde(default)]
    ttl_after_finished: Option<HumanTime>,
    #[serde(default)]
    max_restarts: u32,
    #[serde(default)]
    on_eviction: OnEviction,
    #[serde(default)]
    on_below_min: OnBelowMin,
    #[serde(default)]
    preemptible: Option<bool>,
    #[serde(default)]
    min_run: Option<HumanTime>,
    #[serde(default)]
    scheduling_timeout: Option<HumanTime>,
    #[serde(default)]
    active_deadline: Option<HumanTime>,
    #[serde(default)]
    replicas: Option<u32>,
    #[serde(default)]
    template: Option<Template>,
    #[serde(default)]
    task_groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(default)]
    name: String,
    #[serde(default = "one")]
    replicas: u32,
    template: Template,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Template {
    #[serde(default)]
    requests: Requests,
    #[serde(default)]
    gpu: Option<Gpu>,
    #[serde(default)]
    node_selector: BTreeMap<String, Text>,
    #[serde(default)]
    tolerations: Vec<Toleration>,
    #[serde(default)]
    command: Vec<Text>,
    #[serde(default)]
    env: BTreeMap<String, Text>,
    #[serde(default)]
    stop_grace: Option<HumanTime>,
    #[serde(default)]
    simulated: Option<Simulated>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    #[serde(default = "one")]
    count: u32,
    #[serde(default = "whole")]
    milli: u32,
    #[serde(default)]
    models: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Toleration {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: Option<Text>,
    #[serde(default)]
    effect: Effect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Simulated {
    #[serde(default)]
    duration: Option<HumanTime>,
    #[serde(default)]
    exit_code: i32,
}

fn one() -> u32 {
    1
}

fn whole() -> u32 {
    godel_core::demand::MILLI_WHOLE
}

/// Words of the file for numbers of the API; the default is always `UNSPECIFIED`.
macro_rules! words {
    ($name:ident: $($word:literal => $number:expr,)*) => {
        #[derive(Clone, Copy, Default)]
        struct $name(i32);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Word;
                impl de::Visitor<'_> for Word {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a word")
                    }

                    // Refused in here, a word is told with its line and column.
                    fn visit_str<E: de::Error>(self, word: &str) -> Result<$name, E> {
                        match word {
                            $($word => Ok($name(i32::from($number))),)*
                            _ => Err(E::unknown_variant(word, &[$($word),*])),
                        }
                    }
                }
                deserializer.deserialize_str(Word)
            }
        }
    };
}

use words;

words!(Class:
    "service" => v1::WorkloadClass::Service,
    "stateful" => v1::WorkloadClass::Stateful,
    "batch" => v1::WorkloadClass::Batch,
    "gang" => v1::WorkloadClass::Gang,
    "stream" => v1::WorkloadClass::Stream,
    "training" => v1::WorkloadClass::Training,
    "yarn" => v1::WorkloadClass::Yarn,
    "daemon" => v1::WorkloadClass::Daemon,
);
words!(Pool:
    "guaranteed" => v1::Pool::Guaranteed,
    "best-effort" => v1::Pool::BestEffort,
);
words!(Restart:
    "never" => v1::RestartPolicy::Never,
    "on-failure" => v1::RestartPolicy::OnFailure,
    "always" => v1::RestartPolicy::Always,
);
words!(OnEviction:
    "requeue" => v1::OnEviction::Requeue,
    "fail" => v1::OnEviction::Fail,
);
words!(OnBelowMin:
    "keep" => v1::OnBelowMin::Keep,
    "restart" => v1::OnBelowMin::Restart,
    "stop" => v1::OnBelowMin::Stop,
);
words!(Scoring:
    "least-allocated" => v1::ScoringProfile::LeastAllocated,
    "most-allocated" => v1::ScoringProfile::MostAllocated,
);
words!(Effect:
    "no-schedule" => v1::TaintEffect::NoSchedule,
    "prefer-no-schedule" => v1::TaintEffect::PreferNoSchedule,
);

/// Text, also where YAML sees a number or a truth value (`version: 1.10` is a trap otherwise left to quotes).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("text", |text: &str| Ok(Text(text.to_owned()))))
    }
}

/// `10s`, `5m`, `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanTime(pub Duration);

impl<'de> Deserialize<'de> for HumanTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("a duration such as `30s`", |text: &str| {
            humantime::parse_duration(text)
                .map(HumanTime)
                .map_err(|error| format!("`{text}` is no duration such as `30s`, `5m` or `1h`: {error}"))
        }))
    }
}

impl HumanTime {
    fn ms<N: TryFrom<u128>>(&self, max: N) -> N {
        N::try_from(self.0.as_millis()).unwrap_or(max)
    }
}

/// A scalar as it was written, and what to make of it. Refused in here, it is told with its line and column.
pub struct Scalar<F>(pub &'static str, pub F);

impl<T, F: Fn(&str) -> Result<T, String>> de::Visitor<'_> for Scalar<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
        (self.1)(value).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }
}

/// Quantities by resource, each read in its own notation.
#[derive(Default)]
struct Requests(BTreeMap<String, i64>);

impl<'de> Deserialize<'de> for Requests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> de::Visitor<'de> for Map {
            type Value = Requests;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("quantities by resource, as `cpu: 500m`")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Requests, A::Error> {
                let mut amounts = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "gpu" {
                        return Err(de::Error::custom("`gpu` stands beside `requests`: `gpu: {count: 1}`"));
                    }
                    let amount = map.next_value_seed(Amount(&name))?;
                    if amounts.insert(name.clone(), amount).is_some() {
                        return Err(de::Error::custom(format!("`{name}` stands twice")));
                    }
                }
                Ok(Requests(amounts))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

struct Amount<'a>(&'a str);

impl<'de> de::DeserializeSeed<'de> for Amount<'_> {
    type Value = i64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<i64, D::Error> {
        deserializer.deserialize_any(Scalar("a quantity", |text: &str| {
            quantity::parse(self.0, text).map_err(|error| error.to_string())
        }))
    }
}

impl Unit {
    fn into_spec(self) -> v1::UnitSpec {
        let mut groups: Vec<v1::TaskGroup> = self.task_groups.into_iter().map(Group::into_api).collect();
        // The short form: one group without a name.
        if self.template.is_some() || self.replicas.is_some() {
            let template = self.template.map(Template::into_api);
            let short =
                v1::TaskGroup { replicas: self.replicas.unwrap_or(1), template, ..v1::TaskGroup::default() };
            groups.insert(0, short);
        }
        v1::UnitSpec {
            meta: Some(v1::ObjectMeta {
                namespace: self.namespace,
                name: self.name,
                uid: self.uid,
                labels: texts(self.labels),
                owner: self.owner,
                ..v1::ObjectMeta::default()
            }),
            workload_class: self.class.0,
            task_groups: groups,
            min_member: self.min_member,
            queue: self.queue,
            priority: self.priority,
            priority_class: self.priority_class,
            pool: self.pool.0,
            restart_policy: self.restart_policy.0,
            scoring_profile: self.scoring.0,
            ttl_after_finished_ms: self.ttl_after_finished.map_or(0, |time| time.ms(u64::MAX)),
            max_restarts: self.max_restarts,
            on_eviction: self.on_eviction.0,
            on_below_min: self.on_below_min.0,
            preemptible: self.preemptible,
            min_run_ms: self.min_run.map_or(0, |time| time.ms(u64::MAX)),
            scheduling_timeout_ms: self.scheduling_timeout.map_or(0, |time| time.ms(u64::MAX)),
            active_deadline_ms: self.active_deadline.map_or(0, |time| time.ms(u64::MAX)),
            ..v1::UnitSpec::default()
        }
    }
}

impl Group {
    fn into_api(self) -> v1::TaskGroup {
        v1::TaskGroup {
            name: self.name,
            replicas: self.replicas,
            template: Some(self.template.into_api()),
            ordinals: Vec::new(),
        }
    }
}

impl Template {
    fn into_api(self) -> v1::Template {
        let devices = self.gpu.map(Gpu::into_api);
        let requests = v1::Resources { amounts: self.requests.0.into_iter().collect() };
        let simulated = self.simulated.unwrap_or(Simulated { duration: None, exit_code: 0 });
        v1::Template {
            demand: Some(v1::Demand { requests: Some(requests), devices }),
            node_selector: texts(self.node_selector),
            tolerations: self.tolerations.into_iter().map(Toleration::into_api).collect(),
            run: Some(v1::RunSpec {
                command: self.command.into_iter().map(|text| text.0).collect(),
                env: texts(self.env),
                simulated_duration_ms: simulated.duration.map_or(0, |time| time.ms(u64::MAX)),
                simulated_exit_code: simulated.exit_code,
                stop_grace_ms: self.stop_grace.map_or(0, |time| time.ms(u32::MAX)),
            }),
        }
    }
}

impl Gpu {
    fn into_api(self) -> v1::DeviceRequest {
        let Self { count, milli, models } = self;
        v1::DeviceRequest { kind: "gpu".to_owned(), count, milli_per_device: milli, models }
    }
}

impl Toleration {
    fn into_api(self) -> v1::Toleration {
        v1::Toleration {
            key: self.key,
            any_value: self.value.is_none(),
            value: self.value.unwrap_or_default().0,
            effect: self.effect.0,
        }
    }
}

fn texts<M: FromIterator<(String, String)>>(map: BTreeMap<String, Text>) -> M {
    map.into_iter().map(|(key, value)| (key, value.0)).collect()
}

#[cfg(test)]
mod tests;
