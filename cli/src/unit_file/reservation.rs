//! Documents of reservations.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use godel_proto::v1;
use serde::{Deserialize, Deserializer};

use super::{Gpu, Requests, Scalar, Text, manifest::Kind, texts};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reservation {
    #[serde(rename = "kind")]
    _kind: Kind,
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    selector: BTreeMap<String, Text>,
    slots: u32,
    #[serde(default)]
    requests: Requests,
    #[serde(default)]
    gpu: Option<Gpu>,
    #[serde(default)]
    node_selector: BTreeMap<String, Text>,
    #[serde(default, deserialize_with = "time")]
    expires: i64,
    #[serde(default)]
    description: String,
}

/// A time of day, in Unix milliseconds.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let read = |text: &str| {
        let since = humantime::parse_rfc3339_weak(text).ok();
        let since = since.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let ms = since.and_then(|since| i64::try_from(since.as_millis()).ok()).filter(|ms| *ms > 0);
        ms.ok_or_else(|| format!("`{text}` is no time such as `2030-01-31T12:00:00Z`"))
    };
    deserializer.deserialize_any(Scalar("a time", read))
}

impl Reservation {
    pub(super) fn into_api(self) -> v1::Reservation {
        let requests = v1::Resources { amounts: self.requests.0.into_iter().collect() };
        let devices = self.gpu.map(Gpu::into_api);
        v1::Reservation {
            name: self.name,
            namespace: self.namespace,
            selector: texts(self.selector),
            slots: self.slots,
            demand: Some(v1::Demand { requests: Some(requests), devices }),
            node_selector: texts(self.node_selector),
            expires_ms: self.expires,
            description: self.description,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::unit_file::{Document, parse_manifest};

    #[test]
    fn documents_are_read_and_mistakes_told() {
        let text = "\
kind: reservation
name: spare
selector: {app: web}
slots: 4
requests: {cpu: 500m, memory: 1Gi}
gpu: {count: 2}
node_selector: {zone: a}
expires: 2030-01-31T12:00:00Z
---
{kind: reservation, name: none, selector: {app: web}, slots: 0, requests: {cpu: 1}}
";
        let documents = parse_manifest(text).unwrap();
        let [(_, Document::Reservation(spare)), (_, Document::Reservation(none))] = documents.as_slice()
        else {
            panic!("{documents:?}")
        };
        let demand = spare.demand.clone().unwrap_or_default();
        let amounts = demand.requests.unwrap_or_default().amounts;
        assert_eq!((amounts["cpu"], amounts["memory"]), (500, 1 << 30));
        assert_eq!((spare.slots, demand.devices.map(|devices| devices.count)), (4, Some(2)));
        assert_eq!((spare.expires_ms, none.expires_ms), (1_896_091_200_000, 0));
        for (text, expected) in [
            ("kind: reservation\nname: a\nslots: 1\nexpires: soon\n", "4:10: expires: `soon` is no time"),
            ("kind: reservation\nname: a\nslot: 1\n", "did you mean `slots`?"),
        ] {
            let found = parse_manifest(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}\nfound    {found}\nexpected {expected}");
        }
    }
}
