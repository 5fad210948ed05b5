//! Who owns a reservation.

use std::collections::BTreeMap;

use godel_domain::reservation_spec::{self, ReservationSpec};

use crate::budget::UnitIdentity;

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
        let marks: Vec<u64> = reservation_spec::marks(namespace, &labels(&pairs)).collect();
        assert_eq!(spec.is_marked(&marks), expected, "{namespace} {pairs:?}");
        let identity = UnitIdentity::new(namespace, "unit", pairs.iter().copied());
        assert_eq!(identity.is_labelled(&spec.namespace, &spec.selector), expected);
    }
    assert!(!ReservationSpec::default().is_marked(&[]), "nobody owns what selects nobody");
}
