//! Documents of queues and priority classes.

use std::{collections::BTreeMap, fmt};

use godel_core::{
    demand::MILLI_WHOLE,
    quantity::{self, BadQuantity},
};
use godel_proto::v1;
use serde::{Deserialize, Deserializer, de};

use super::{Scalar, Text, manifest::Kind, texts};

/// Devices of this kind are written in whole ones and counted in thousandths.
const GPU: &str = "gpu";

/// An amount of a queue as people write it: `4`, `8Gi`, two GPUs as `2`.
///
/// # Errors
/// It is no quantity of that resource.
pub fn parse_amount(name: &str, text: &str) -> Result<i64, BadQuantity> {
    if name == GPU { quantity::parse_cpu_milli(text) } else { quantity::parse(name, text) }
}

/// The same back; parts of GPUs as `0.5`.
pub fn show_amount(name: &str, amount: i64) -> String {
    if name != GPU {
        return quantity::show(name, amount);
    }
    let whole = amount / i64::from(MILLI_WHOLE);
    match amount % i64::from(MILLI_WHOLE) {
        0 => whole.to_string(),
        part => format!("{whole}.{part:03}").trim_end_matches('0').to_owned(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Queue {
    #[serde(rename = "kind")]
    _kind: Kind,
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, Text>,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    min: Amounts,
    #[serde(default)]
    max: Amounts,
    #[serde(default)]
    max_running_units: u32,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    submit_owners: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriorityClass {
    #[serde(rename = "kind")]
    _kind: Kind,
    name: String,
    value: i32,
    #[serde(default = "yes")]
    preemptible: bool,
    #[serde(default)]
    description: String,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

super::words!(Policy:
    "fifo" => v1::QueuePolicy::Fifo,
    "priority" => v1::QueuePolicy::Priority,
    "drf" => v1::QueuePolicy::Drf,
    "fair-share" => v1::QueuePolicy::FairShare,
);

/// Quantities by resource; devices by their kind.
#[derive(Default)]
struct Amounts(BTreeMap<String, i64>);

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> de::Visitor<'de> for Map {
            type Value = Amounts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("quantities by resource, as `cpu: 4` and `gpu: 2`")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Amounts, A::Error> {
                let mut amounts = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let amount = map.next_value_seed(Amount(&name))?;
                    if amounts.insert(name.clone(), amount).is_some() {
                        return Err(de::Error::custom(format!("`{name}` stands twice")));
                    }
                }
                Ok(Amounts(amounts))
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
            parse_amount(self.0, text).map_err(|error| error.to_string())
        }))
    }
}

impl Queue {
    pub(super) fn into_api(self) -> v1::Queue {
        let amounts = |amounts: Amounts| {
            (!amounts.0.is_empty()).then(|| v1::Resources { amounts: amounts.0.into_iter().collect() })
        };
        v1::Queue {
            meta: Some(v1::ObjectMeta {
                name: self.name,
                labels: texts(self.labels),
                owner: self.owner,
                ..v1::ObjectMeta::default()
            }),
            min: amounts(self.min),
            max: amounts(self.max),
            weight: self.weight,
            policy: self.policy.0,
            submit_owners: self.submit_owners,
            max_running_units: self.max_running_units,
        }
    }
}

impl PriorityClass {
    pub(super) fn into_api(self) -> v1::PriorityClass {
        let Self { name, value, preemptible, description, .. } = self;
        v1::PriorityClass { name, value, preemptible, description }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit_file::{Document, parse_manifest};

    #[test]
    fn amounts_are_shown_as_they_are_written() {
        for (name, text, amount) in [
            ("gpu", "8", 8_000),
            ("gpu", "0.5", 500),
            ("gpu", "1.25", 1_250),
            ("gpu", "0", 0),
            ("cpu", "500m", 500),
            ("memory", "8Gi", 8 << 30),
            ("fpga", "3", 3),
        ] {
            assert_eq!(
                (parse_amount(name, text).unwrap(), show_amount(name, amount).as_str()),
                (amount, text)
            );
        }
    }

    #[test]
    fn documents_say_what_they_are() {
        let text = "\
kind: queue
name: prod
min: {cpu: 4, memory: 8Gi, gpu: 2}
max: {cpu: 500m, gpu: 0.5, fpga: 3}
weight: 3
policy: fair-share
submit_owners: [alice]
max_running_units: 9
---
# nothing
---
{kind: priority-class, name: gold, value: -5, preemptible: false}
---
{kind: unit, name: web, priority_class: gold, template: {}}
---
{name: other, template: {}}
";
        let documents = parse_manifest(text).unwrap();
        let positions: Vec<usize> = documents.iter().map(|(position, _)| *position).collect();
        assert_eq!(positions, [1, 3, 4, 5]);
        let [(_, Document::Queue(queue)), (_, Document::PriorityClass(class)), (_, Document::Unit(unit)), _] =
            documents.as_slice()
        else {
            panic!("{documents:?}")
        };
        let (min, max) = (&queue.min.as_ref().unwrap().amounts, &queue.max.as_ref().unwrap().amounts);
        assert_eq!((min["cpu"], min["memory"], min["gpu"]), (4_000, 8 << 30, 2_000));
        assert_eq!((max["cpu"], max["gpu"], max["fpga"]), (500, 500, 3));
        assert_eq!((queue.weight, queue.max_running_units), (3, 9));
        assert_eq!(queue.policy(), v1::QueuePolicy::FairShare);
        assert_eq!((class.value, class.preemptible), (-5, false));
        assert_eq!(unit.priority_class, "gold");
    }

    #[test]
    fn mistakes_are_told_with_line_column_and_the_nearest_word() {
        for (text, expected) in [
            ("kind: quueue\nname: a\n", "1:7: kind: unknown value `quueue`: did you mean `queue`?"),
            ("kind: queue\nname: a\nwieght: 2\n", "3:1: unknown key `wieght`: did you mean `weight`?"),
            (
                "kind: queue\nname: a\npolicy: fiffo\n",
                "3:9: policy: unknown value `fiffo`: did you mean `fifo`?",
            ),
            ("kind: queue\nname: a\nmax:\n  gpu: many\n", "4:8: max.gpu: `many` is no"),
            ("name: a\n---\nkind: priority-class\nname: b\n", "missing field `value`"),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
