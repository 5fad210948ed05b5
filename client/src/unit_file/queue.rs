//! Documents of queues and priority classes.

use std::collections::BTreeMap;

use godel_base::quantity::{self, BadQuantity};
use godel_domain::queue_spec::{parse_share, show_share};
use godel_proto::v1;

use super::{
    notation::{InFile, Notation, written},
    read::number,
    words,
    yaml_out::Yaml,
};

/// An amount of a queue as people write it: `4`, `8Gi`, two GPUs as `2`.
///
/// # Errors
/// It is no quantity of that resource.
pub fn parse_amount(name: &str, text: &str) -> Result<i64, BadQuantity> {
    quantity::parse_queued(name, text)
}

/// The same back; parts of GPUs as `0.5`.
pub fn show_amount(name: &str, amount: i64) -> String {
    quantity::show_queued(name, amount)
}

/// Queues as a file that reads back as the same queues. Metadata that the store keeps is left out.
pub fn queues_to_file(queues: &[v1::Queue]) -> String {
    let documents = queues.iter().map(|queue| written(&mut queue.clone()).document());
    documents.collect::<Vec<_>>().join("---\n")
}

impl InFile for v1::Queue {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self {
            meta,
            min,
            max,
            weight,
            policy,
            submit_owners,
            max_running_units,
            owner_weights,
            max_per_owner,
            am_share_milli,
        } = self;
        let meta = meta.get_or_insert_default();
        file.text("kind", &mut "queue".to_owned());
        file.required_text("name", &mut meta.name);
        file.texts_by_key("labels", &mut meta.labels);
        file.text("owner", &mut meta.owner);
        amounts("min", min, file);
        amounts("max", max, file);
        amounts("max_per_owner", max_per_owner, file);
        file.scalar("am_share", am_share_milli, parse_share, |milli| Yaml::plain(show_share(*milli)));
        file.optional("weight", weight);
        file.word("policy", policy, &words::POLICY);
        file.texts("submit_owners", submit_owners);
        file.optional("max_running_units", max_running_units);
        let mut weights: BTreeMap<String, u32> = owner_weights.drain().collect();
        file.by_key("owner_weights", &mut weights, |_, text| number(text), |_, weight| Yaml::plain(weight));
        owner_weights.extend(weights);
    }
}

impl InFile for v1::PriorityClass {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { name, value, preemptible, description } = self;
        file.text("kind", &mut "priority-class".to_owned());
        file.required_text("name", name);
        file.number("value", value);
        file.require("value");
        let mut given = Some(*preemptible);
        file.boolean("preemptible", &mut given);
        *preemptible = given.unwrap_or_default();
        file.text("description", description);
    }
}

fn amounts(key: &'static str, resources: &mut Option<v1::Resources>, file: &mut impl Notation) {
    let mut amounts = resources.take().unwrap_or_default().amounts;
    file.by_key(key, &mut amounts, parse_amount, |name, amount| Yaml::plain(show_amount(name, *amount)));
    *resources = (!amounts.is_empty()).then_some(v1::Resources { amounts });
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
max: {cpu: 4500m, gpu: 2.5, fpga: 3}
weight: 3
policy: fair-share
submit_owners: [alice]
max_running_units: 9
owner_weights: {alice: 3, 007: 2}
max_per_owner: {cpu: 2, gpu: 0.5}
am_share: 0.1
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
        assert_eq!((max["cpu"], max["gpu"], max["fpga"]), (4_500, 2_500, 3));
        assert_eq!((queue.weight, queue.max_running_units), (Some(3), Some(9)));
        assert_eq!(queue.policy(), v1::QueuePolicy::FairShare);
        assert_eq!(queue.owner_weights, [("alice".to_owned(), 3), ("007".to_owned(), 2)].into());
        let per_owner = &queue.max_per_owner.as_ref().unwrap().amounts;
        assert_eq!((per_owner["cpu"], per_owner["gpu"], queue.am_share_milli), (2_000, 500, Some(100)));
        assert_eq!((class.value, class.preemptible), (-5, false));
        assert_eq!(unit.priority_class, "gold");
    }

    #[test]
    fn queues_are_written_as_they_read_back() {
        let text = "\
kind: queue
name: prod
labels:
  team: a
owner: ann
min:
  cpu: 4
  gpu: \"0.5\"
  memory: 8Gi
max:
  cpu: 4.5
max_per_owner:
  cpu: 2
am_share: 0.25
weight: 3
policy: fair-share
submit_owners:
  - alice
max_running_units: 9
owner_weights:
  \"007\": 2
---
kind: queue
name: dev
";
        let queues = |text: &str| -> Vec<v1::Queue> {
            let documents = parse_manifest(text).unwrap().into_iter();
            let queue = |document| match document {
                Document::Queue(queue) => *queue,
                other => panic!("{other:?}"),
            };
            documents.map(|(_, document)| queue(document)).collect()
        };
        let read = queues(text);
        let written = queues_to_file(&read);
        assert_eq!(queues(&written), read, "{written}");
        assert_eq!(written, text.replace("\"0.5\"", "0.5"));
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
            ("kind: queue\nname: a\nowner_weights: {ann: x}\n", "3:22: owner_weights.ann: `x` "),
            ("kind: queue\nname: a\nam_share: 10%\n", "3:11: am_share: `10%` is no share: a number from"),
            ("name: a\n---\nkind: priority-class\nname: b\n", "3:1: value: the key is missing"),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
