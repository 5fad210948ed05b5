//! Documents of reservations.

use std::time::UNIX_EPOCH;

use godel_proto::v1;

use super::{
    notation::{InFile, Notation},
    unit::{devices_in_zones, requests},
    yaml_out::Yaml,
};

impl InFile for v1::Reservation {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { name, namespace, selector, slots, demand, node_selector, expires_ms, description } = self;
        file.text("kind", &mut "reservation".to_owned());
        file.required_text("name", name);
        file.text("namespace", namespace);
        file.texts_by_key("selector", selector);
        file.above_zero("slots", slots);
        file.require("slots");
        let demand = demand.get_or_insert_default();
        requests(demand.requests.get_or_insert_default(), file);
        devices_in_zones(&mut demand.devices, &mut demand.zones, file);
        file.texts_by_key("node_selector", node_selector);
        file.scalar("expires", expires_ms, time, |ms| Yaml::plain(ms));
        file.text("description", description);
    }
}

/// A time of day, in Unix milliseconds.
///
/// # Errors
/// It is none.
pub fn time(text: &str) -> Result<i64, String> {
    let since = humantime::parse_rfc3339_weak(text).ok();
    let since = since.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let ms = since.and_then(|since| i64::try_from(since.as_millis()).ok()).filter(|ms| *ms > 0);
    ms.ok_or_else(|| format!("`{text}` is not a time such as `2030-01-31T12:00:00Z`"))
}

#[cfg(test)]
mod tests {
    use godel_proto::v1;

    use crate::unit_file::{Document, parse_manifest};

    #[test]
    fn documents_are_read_and_mistakes_told() {
        let text = "\
kind: reservation
name: spare
selector: {app: web}
slots: 4
requests: {cpu: 500m, memory: 1Gi}
devices: {kind: gpu, count: 2}
node_selector: {zone: a}
expires: 2030-01-31T12:00:00Z
---
{kind: reservation, name: none, selector: {app: web}, slots: 0, requests: {cpu: 1}}
---
kind: reservation
name: zoned
selector: {app: web}
slots: 1
requests: {cpu: 8}
topology: {policy: single-zone, cpu_mode: dedicated, devices: [{kind: gpu, count: 2, link: nvlink}]}
";
        let documents = parse_manifest(text).unwrap();
        let [
            (_, Document::Reservation(spare)),
            (_, Document::Reservation(none)),
            (_, Document::Reservation(zoned)),
        ] = documents.as_slice()
        else {
            panic!("{documents:?}")
        };
        let asked = zoned.demand.clone().unwrap_or_default();
        let zones = asked.zones.unwrap_or_default();
        assert_eq!((zones.policy(), zones.cpu_mode()), (v1::ZonePolicy::SingleZone, v1::CpuMode::Dedicated));
        let terms = asked.devices[0].terms.clone().unwrap_or_default();
        assert_eq!((asked.devices[0].count, terms.link.as_str()), (2, "nvlink"));
        let demand = spare.demand.clone().unwrap_or_default();
        let amounts = demand.requests.unwrap_or_default().amounts;
        assert_eq!((amounts["cpu"], amounts["memory"]), (500, 1 << 30));
        assert_eq!((spare.slots, demand.devices[0].count, demand.devices.len()), (4, 2, 1));
        assert_eq!((spare.expires_ms, none.expires_ms), (Some(1_896_091_200_000), None));
        for (text, expected) in [
            ("kind: reservation\nname: a\nslots: 1\nexpires: soon\n", "4:10: expires: `soon` is not a time"),
            ("kind: reservation\nname: a\nslot: 1\n", "did you mean `slots`?"),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
