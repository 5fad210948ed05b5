//! What a slot has all of, and who owns it.

use std::collections::BTreeMap;

use super::*;
use crate::{budget::Identity, demand::DeviceRequest, resources::Resources};

fn demand(cpu: i64, gpus: u32, milli: u32) -> Demand {
    let models = Vec::new();
    let gpu = DeviceRequest { kind: "gpu".to_owned(), count: gpus, milli, models };
    Demand { requests: Resources::new([("cpu", cpu)]).unwrap(), devices: (gpus > 0).then_some(gpu) }
}

#[test]
fn a_slot_covers_what_is_no_more_in_anything() {
    let slot = demand(1_000, 2, 1_000);
    for (asked, expected) in [
        (demand(1_000, 2, 1_000), true),
        (demand(0, 1, 1_000), true),
        (demand(1_000, 0, 0), true),
        (demand(1_001, 0, 0), false),
        (demand(1, 3, 1_000), false),
        (demand(1, 1, 500), false),
        (Demand { requests: Resources::new([("disk", 1)]).unwrap(), devices: None }, false),
    ] {
        assert_eq!(covers(&slot, &asked), expected, "{asked:?}");
    }
    assert!(!covers(&demand(1_000, 0, 0), &demand(1, 1, 1_000)));
}

#[test]
fn owners_have_all_labels_in_its_namespace() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let spec = ReservationSpec {
        namespace: "prod".to_owned(),
        selector: labels(&[("app", "web"), ("tier", "a")]),
        ..ReservationSpec::default()
    };
    let cases = [
        ("prod", vec![("app", "web"), ("tier", "a"), ("x", "y")], true),
        ("prod", vec![("app", "web")], false),
        ("prod", vec![("app", "web"), ("tier", "b")], false),
        ("default", vec![("app", "web"), ("tier", "a")], false),
        ("prod", vec![], false),
    ];
    for (namespace, pairs, expected) in cases {
        let marks: Vec<u64> = spec::marks(namespace, &labels(&pairs)).collect();
        assert_eq!(spec.is_marked(&marks), expected, "{namespace} {pairs:?}");
        let identity = Identity::new(namespace, "unit", pairs.iter().copied());
        assert_eq!(identity.is_labelled(&spec.namespace, &spec.selector), expected);
    }
    assert!(!ReservationSpec::default().is_marked(&[]), "nobody owns what selects nobody");
}
