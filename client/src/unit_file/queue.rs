//! Documents of queues and priority classes.

use std::collections::BTreeMap;

use godel_domain::quantity::{self, BadQuantity};
use godel_proto::v1;

use super::{read::Fields, words};

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

pub(super) fn queue(fields: &mut Fields<'_, '_>) -> v1::Queue {
    fields.text("kind");
    let name = fields.text("name");
    let name = fields.required("name", name);
    let meta = v1::ObjectMeta {
        name: name.unwrap_or_default(),
        labels: fields.text_map("labels"),
        owner: fields.text("owner").unwrap_or_default(),
        ..v1::ObjectMeta::default()
    };
    v1::Queue {
        meta: Some(meta),
        min: amounts(fields, "min"),
        max: amounts(fields, "max"),
        weight: fields.number("weight"),
        policy: fields.word("policy", &words::POLICY),
        submit_owners: fields.texts("submit_owners"),
        max_running_units: fields.number("max_running_units"),
        owner_weights: fields.numbers("owner_weights").into_iter().collect(),
    }
}

pub(super) fn priority_class(fields: &mut Fields<'_, '_>) -> v1::PriorityClass {
    fields.text("kind");
    let name = fields.text("name");
    let value = fields.number("value");
    v1::PriorityClass {
        name: fields.required("name", name).unwrap_or_default(),
        value: fields.required("value", value).unwrap_or_default(),
        preemptible: fields.boolean("preemptible").unwrap_or(true),
        description: fields.text("description").unwrap_or_default(),
    }
}

fn amounts(fields: &mut Fields<'_, '_>, key: &'static str) -> Option<v1::Resources> {
    let amounts: BTreeMap<String, i64> = fields.amounts(key, parse_amount);
    (!amounts.is_empty()).then(|| v1::Resources { amounts: amounts.into_iter().collect() })
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
            ("kind: queue\nname: a\nowner_weights: {ann: x}\n", "3:22: owner_weights.ann: `x` "),
            ("name: a\n---\nkind: priority-class\nname: b\n", "3:1: value: the key is missing"),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
