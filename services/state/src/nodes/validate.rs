//! Checks of what administrators and agents say of nodes: every wrong field at once.

use std::{collections::HashMap, net::SocketAddr};

use godel_base::resources::N_NAMES_MAX;
use godel_domain::names::{self, BadName};
use godel_proto::v1;
use godel_wire::{BadField, from_proto};

/// Most labels, attributes or taints of a node.
pub(super) const N_LABELS_MAX: usize = 64;
/// Most bytes of what an agent says of its trouble.
const N_TROUBLE_BYTES_MAX: usize = 1_024;

/// A registration that can be stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeRegistration {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: HashMap<String, String>,
    pub(crate) owner: String,
    /// Its `node_id` and `ready` are not the agent's to say.
    pub(crate) report: v1::NodeReport,
    pub(crate) taints: Vec<v1::Taint>,
    /// Of the start of the agent; 0: not given.
    pub(crate) instance: u64,
    /// Where it comes from; empty: not known.
    pub(crate) address: String,
}

/// A registration from the wire.
pub(crate) fn registration(
    request: v1::RegisterNodeRequest,
    peer: Option<SocketAddr>,
) -> Result<NodeRegistration, Vec<BadField>> {
    let mut bad = Vec::new();
    let meta = request.meta.unwrap_or_default();
    name("meta.name", &meta.name, &mut bad);
    uid("meta.uid", &meta.uid, &mut bad);
    if !meta.namespace.is_empty() && meta.namespace != "default" {
        bad.push(BadField::new("meta.namespace", "nodes are in namespace default"));
    }
    rule("meta.owner", names::text(&meta.owner, names::NAME_LEN_MAX), &mut bad);
    labels("meta.labels", &meta.labels, &mut bad);
    match &request.report {
        Some(pb) => report(pb, "report", &mut bad),
        None => bad.push(BadField::new("report", "is required")),
    }
    taints("taints", &request.taints, &mut bad);
    if !bad.is_empty() {
        return Err(bad);
    }
    Ok(NodeRegistration {
        name: meta.name,
        uid: meta.uid,
        labels: meta.labels,
        owner: meta.owner,
        report: request.report.unwrap_or_default(),
        taints: request.taints,
        instance: request.instance,
        address: peer.map(|peer| peer.to_string()).unwrap_or_default(),
    })
}

/// An inventory from an agent.
pub(crate) fn report(pb: &v1::NodeReport, path: &str, bad: &mut Vec<BadField>) {
    if let Err(wrong) = from_proto::node_report(pb.clone()) {
        bad.push(wrong.under(path));
    } else if let Some(Err(wrong)) = pb.capacity.as_ref().map(usage) {
        bad.push(wrong.under(&format!("{path}.capacity")));
    }
    for (idx, device) in pb.devices.iter().enumerate() {
        rule(&format!("{path}.devices[{idx}].kind"), names::resource(&device.kind), bad);
        let model = names::text(&device.model, names::NAMESPACE_LEN_MAX);
        rule(&format!("{path}.devices[{idx}].model"), model, bad);
        let link = device.details.as_ref().map_or("", |details| &details.link);
        let link = names::text(link, names::NAMESPACE_LEN_MAX);
        rule(&format!("{path}.devices[{idx}].details.link"), link, bad);
        if !pb.zones.is_empty() && device.numa_zone as usize >= pb.zones.len() {
            let wrong = format!("{} is the index of none of {} zones", device.numa_zone, pb.zones.len());
            bad.push(BadField::new(format!("{path}.devices[{idx}].numa_zone"), wrong));
        }
    }
    for (idx, zone) in pb.zones.iter().enumerate() {
        let kind = names::text(&zone.kind, names::NAMESPACE_LEN_MAX);
        rule(&format!("{path}.zones[{idx}].kind"), kind, bad);
        if let Some(Err(wrong)) = zone.capacity.as_ref().map(usage) {
            bad.push(wrong.under(&format!("{path}.zones[{idx}].capacity")));
        }
    }
    for (idx, profile) in pb.profiles.iter().enumerate() {
        for (leaf, text) in [("kind", &profile.kind), ("model", &profile.model), ("name", &profile.name)] {
            let text = names::text(text, names::NAMESPACE_LEN_MAX);
            rule(&format!("{path}.profiles[{idx}].{leaf}"), text, bad);
        }
    }
    for (leaf, words) in [("trouble", &pb.trouble), ("images_trouble", &pb.images_trouble)] {
        if words.len() > N_TROUBLE_BYTES_MAX {
            let wrong = format!("{} bytes, at most {N_TROUBLE_BYTES_MAX}", words.len());
            bad.push(BadField::new(format!("{path}.{leaf}"), wrong));
        }
    }
    rule(&format!("{path}.address"), names::text(&pb.address, names::NAMESPACE_LEN_MAX), bad);
    labels(&format!("{path}.attributes"), &pb.attributes, bad);
}

/// Amounts as an agent measures them, checked without a copy: heartbeats are frequent.
pub(crate) fn usage(pb: &v1::Resources) -> Result<(), BadField> {
    let wrong = |(name, amount): &(&String, &i64)| names::resource(name).is_err() || **amount < 0;
    if pb.amounts.len() > N_NAMES_MAX {
        return Err(BadField::new("amounts", format!("{} names, at most {N_NAMES_MAX}", pb.amounts.len())));
    }
    match pb.amounts.iter().find(wrong) {
        Some((name, amount)) => {
            let path = format!("amounts[{name:?}]");
            Err(match names::resource(name) {
                Err(wrong) => BadField::new(path, wrong.to_string()),
                Ok(()) => BadField::new(path, format!("{amount} is negative")),
            })
        }
        None => Ok(()),
    }
}

/// A change of a node record from the wire.
pub(crate) fn update(request: &v1::UpdateNodeRequest) -> Vec<BadField> {
    let mut bad = Vec::new();
    if request.name.is_empty() {
        bad.push(BadField::new("name", "is required"));
    }
    labels("set_labels", &request.set_labels, &mut bad);
    taints("set_taints", &request.set_taints, &mut bad);
    for (idx, label) in request.remove_labels.iter().enumerate() {
        if request.set_labels.contains_key(label) {
            bad.push(BadField::new(format!("remove_labels[{idx}]"), "is set in the same request"));
        }
    }
    if request.undrain && request.drain.is_some() {
        bad.push(BadField::new("undrain", "the same request also asks for a drain"));
    }
    bad
}

/// A notice from the wire.
pub(crate) fn notice(request: &v1::GiveNoticeRequest) -> Vec<BadField> {
    let mut bad = Vec::new();
    if request.name.is_empty() {
        bad.push(BadField::new("name", "is required"));
    }
    if request.reason.is_empty() {
        bad.push(BadField::new("reason", "is required"));
    }
    rule("reason", names::text(&request.reason, names::NAME_LEN_MAX), &mut bad);
    if request.deadline_in_ms.is_none() {
        bad.push(BadField::new("deadline_in_ms", "is required"));
    }
    bad
}

/// What a change is made on beside the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTime {
    /// Unix milliseconds.
    pub(crate) wall_ms: i64,
    /// Running units bound to the node.
    pub(crate) n_live: u32,
}

/// Makes a checked change. Fails when the node would have too many labels or taints, or be drained and open.
pub(crate) fn apply_update(
    spec: &mut v1::NodeSpec,
    request: &v1::UpdateNodeRequest,
    now: RequestTime,
) -> Result<(), BadField> {
    if let Some(order) = &request.drain {
        spec.drain = Some(drain(spec.drain, order, now));
    } else if request.undrain {
        spec.drain = None;
        spec.notice = None;
    }
    if let Some(cordoned) = request.cordoned {
        if !cordoned && spec.drain.is_some() {
            return Err(BadField::new(
                "cordoned",
                "the node is drained: end the drain with `godel node undrain`",
            ));
        }
        spec.cordoned = cordoned;
        if !cordoned {
            spec.quarantine = None;
        }
    }
    let labels = &mut spec.meta.get_or_insert_default().labels;
    for label in &request.remove_labels {
        labels.remove(label);
    }
    labels.extend(request.set_labels.iter().map(|(key, value)| (key.clone(), value.clone())));
    let replaced = |old: &v1::Taint| {
        request.set_taints.iter().any(|new| new.key == old.key && new.effect == old.effect)
            || request.remove_taints.contains(&old.key)
    };
    let before: Vec<v1::Taint> = spec.taints.extract_if(.., |old| replaced(old)).collect();
    spec.taints.extend(request.set_taints.iter().map(|new| stamped(new, &before, now.wall_ms)));
    if labels.len() > N_LABELS_MAX {
        return Err(BadField::new("set_labels", format!("the node would have more than {N_LABELS_MAX}")));
    }
    if spec.taints.len() > N_LABELS_MAX {
        return Err(BadField::new("set_taints", format!("the node would have more than {N_LABELS_MAX}")));
    }
    Ok(())
}

/// Writes a checked notice. What runs there leaves by its deadline: a drain that was asked for before keeps its own, if that is earlier.
pub(crate) fn apply_notice(spec: &mut v1::NodeSpec, request: &v1::GiveNoticeRequest, now: RequestTime) {
    let deadline_in_ms = request.deadline_in_ms.unwrap_or(0);
    let asked = spec.drain.filter(|drain| spec.notice.is_none() && drain.deadline_ms != 0);
    let mut ordered = drain(spec.drain, &v1::DrainOrder { deadline_in_ms: Some(deadline_in_ms) }, now);
    let since_ms = spec.notice.as_ref().map_or(now.wall_ms, |notice| notice.since_ms);
    let reason = request.reason.clone();
    spec.notice = Some(v1::NodeNotice { since_ms, deadline_ms: ordered.deadline_ms, reason });
    if let Some(asked) = asked {
        ordered.deadline_ms = ordered.deadline_ms.min(asked.deadline_ms);
    }
    spec.drain = Some(ordered);
}

/// A taint with the time since when the node has it with this value.
fn stamped(new: &v1::Taint, before: &[v1::Taint], wall_ms: i64) -> v1::Taint {
    let same = |old: &&v1::Taint| (&old.key, &old.value, old.effect) == (&new.key, &new.value, new.effect);
    let added_time_ms = before.iter().find(same).map_or(wall_ms, |old| old.added_time_ms);
    v1::Taint { added_time_ms, ..new.clone() }
}

/// Taints of a new node.
pub(crate) fn stamp(taints: &mut [v1::Taint], wall_ms: i64) {
    taints.iter_mut().for_each(|taint| taint.added_time_ms = wall_ms);
}

/// A drain as ordered; of one that is under way only the deadline changes.
fn drain(before: Option<v1::NodeDrain>, order: &v1::DrainOrder, now: RequestTime) -> v1::NodeDrain {
    let new = v1::NodeDrain { since_ms: now.wall_ms, deadline_ms: 0, running_units: now.n_live };
    let before = before.unwrap_or(new);
    let after = |ms: u64| now.wall_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX));
    v1::NodeDrain { deadline_ms: order.deadline_in_ms.map_or(before.deadline_ms, after), ..before }
}

fn name(path: &str, name: &str, bad: &mut Vec<BadField>) {
    if name.is_empty() {
        bad.push(BadField::new(path, "is required"));
    } else {
        rule(path, names::name(name, names::NAME_LEN_MAX), bad);
    }
}

/// Notes what the rule of names says.
fn rule(path: &str, checked: Result<(), BadName>, bad: &mut Vec<BadField>) {
    if let Err(wrong) = checked {
        bad.push(BadField::new(path, wrong.to_string()));
    }
}

fn uid(path: &str, uid: &str, bad: &mut Vec<BadField>) {
    if uid.is_empty() {
        bad.push(BadField::new(path, "is required"));
    } else if uid.len() != 36 || uuid::Uuid::try_parse(uid).is_err() {
        bad.push(BadField::new(path, "must be a hyphenated UUID"));
    }
}

fn labels(path: &str, labels: &HashMap<String, String>, bad: &mut Vec<BadField>) {
    if labels.len() > N_LABELS_MAX {
        bad.push(BadField::new(path, format!("{} pairs, at most {N_LABELS_MAX}", labels.len())));
    }
    let mut sorted: Vec<(&String, &String)> = labels.iter().collect();
    sorted.sort_unstable();
    for (key, value) in sorted.into_iter().take(N_LABELS_MAX) {
        let checked = names::label_key(key).and_then(|()| names::text(value, names::NAME_LEN_MAX));
        rule(&format!("{path}[{key:?}]"), checked, bad);
    }
}

fn taints(path: &str, taints: &[v1::Taint], bad: &mut Vec<BadField>) {
    if taints.len() > N_LABELS_MAX {
        bad.push(BadField::new(path, format!("{} taints, at most {N_LABELS_MAX}", taints.len())));
    }
    for (idx, taint) in taints.iter().enumerate() {
        let at = format!("{path}[{idx}]");
        // A key that is missing is told below.
        let key = if taint.key.is_empty() { Ok(()) } else { names::label_key(&taint.key) };
        rule(&at, key.and_then(|()| names::text(&taint.value, names::NAME_LEN_MAX)), bad);
        if let Err(wrong) = from_proto::taint(taint.clone()) {
            bad.push(wrong.under(&at));
        }
        if taints[..idx].iter().any(|other| other.key == taint.key && other.effect == taint.effect) {
            bad.push(BadField::new(at, "stands twice"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: RequestTime = RequestTime { wall_ms: 1_000, n_live: 7 };
    const UID: &str = "0190b0a4-0000-7000-8000-000000000001";

    fn request() -> v1::RegisterNodeRequest {
        let meta = v1::ObjectMeta { name: "n1".to_owned(), uid: UID.to_owned(), ..v1::ObjectMeta::default() };
        v1::RegisterNodeRequest {
            meta: Some(meta),
            report: Some(v1::NodeReport::default()),
            ..v1::RegisterNodeRequest::default()
        }
    }

    fn wrong_fields(change: impl FnOnce(&mut v1::RegisterNodeRequest, &mut v1::ObjectMeta)) -> Vec<String> {
        let mut request = request();
        let mut meta = request.meta.take().unwrap();
        change(&mut request, &mut meta);
        request.meta = Some(meta);
        registration(request, None)
            .map_or_else(|bad| bad.into_iter().map(|one| one.path).collect(), |_| Vec::new())
    }

    fn taint(key: &str, value: &str, effect: v1::TaintEffect) -> v1::Taint {
        v1::Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.into(), added_time_ms: 0 }
    }

    #[test]
    fn every_wrong_field_is_named() {
        assert_eq!(wrong_fields(|_, _| ()), [""; 0]);
        let missing = registration(v1::RegisterNodeRequest::default(), None).unwrap_err();
        let missing: Vec<String> = missing.into_iter().map(|one| one.path).collect();
        assert_eq!(missing, ["meta.name", "meta.uid", "report"]);
        assert_eq!(wrong_fields(|_, meta| meta.name = "N1".to_owned()), ["meta.name"]);
        assert_eq!(wrong_fields(|_, meta| meta.name = "a".repeat(254)), ["meta.name"]);
        assert_eq!(wrong_fields(|_, meta| meta.uid = "x".repeat(36)), ["meta.uid"]);
        assert_eq!(wrong_fields(|_, meta| meta.namespace = "prod".to_owned()), ["meta.namespace"]);
        assert_eq!(wrong_fields(|_, meta| meta.owner = "o".repeat(254)), ["meta.owner"]);
        let empty = |_: &mut v1::RegisterNodeRequest, meta: &mut v1::ObjectMeta| {
            meta.labels.insert(String::new(), String::new());
        };
        assert_eq!(wrong_fields(empty), ["meta.labels[\"\"]"]);
        let control = |request: &mut v1::RegisterNodeRequest, meta: &mut v1::ObjectMeta| {
            meta.labels.insert("zone".to_owned(), "a\n".to_owned());
            meta.owner = "o\u{7f}".to_owned();
            let amounts = [("c\tpu".to_owned(), 1)].into();
            request.report.as_mut().unwrap().capacity = Some(v1::Resources { amounts });
        };
        assert_eq!(
            wrong_fields(control),
            ["meta.owner", "meta.labels[\"zone\"]", "report.capacity.amounts[\"c\\tpu\"]"]
        );
        let devices = |request: &mut v1::RegisterNodeRequest, _: &mut v1::ObjectMeta| {
            request.report.as_mut().unwrap().devices = vec![v1::Device::default(); 65];
        };
        assert_eq!(wrong_fields(devices)[..2], ["report.devices", "report.devices[0].kind"]);
        let negative = |request: &mut v1::RegisterNodeRequest, _: &mut v1::ObjectMeta| {
            let amounts = [("cpu".to_owned(), -1)].into();
            request.report.as_mut().unwrap().capacity = Some(v1::Resources { amounts });
        };
        assert_eq!(wrong_fields(negative), ["report.capacity.amounts[cpu]"]);
        let zones = |request: &mut v1::RegisterNodeRequest, _: &mut v1::ObjectMeta| {
            let report = request.report.as_mut().unwrap();
            let amounts = [("c\tpu".to_owned(), 1)].into();
            let capacity = Some(v1::Resources { amounts });
            report.zones = vec![v1::Zone { kind: "n\n".to_owned(), capacity, ..v1::Zone::default() }];
            let details = Some(v1::DeviceDetails { link: "\n".to_owned(), ..v1::DeviceDetails::default() });
            let (kind, model) = ("gpu".to_owned(), String::new());
            report.devices =
                vec![v1::Device { kind: kind.clone(), model: model.clone(), numa_zone: 1, details }];
            report.profiles = vec![v1::DeviceProfile { kind, model, name: "\n".to_owned(), shapes: vec![1] }];
        };
        assert_eq!(
            wrong_fields(zones),
            [
                "report.devices[0].details.link",
                "report.devices[0].numa_zone",
                "report.zones[0].kind",
                "report.zones[0].capacity.amounts[\"c\\tpu\"]",
                "report.profiles[0].name",
            ]
        );
        let bad_taints = |request: &mut v1::RegisterNodeRequest, _: &mut v1::ObjectMeta| {
            let good = taint("k", "", v1::TaintEffect::NoSchedule);
            request.taints = vec![good.clone(), taint("k", "", v1::TaintEffect::Unspecified), good];
        };
        assert_eq!(wrong_fields(bad_taints), ["taints[1].effect", "taints[2]"]);
    }

    #[test]
    fn updates_set_replace_and_remove() {
        let mut spec = v1::NodeSpec {
            taints: vec![
                taint("a", "1", v1::TaintEffect::NoSchedule),
                taint("a", "2", v1::TaintEffect::PreferNoSchedule),
                taint("b", "", v1::TaintEffect::NoSchedule),
            ],
            ..v1::NodeSpec::default()
        };
        let request = v1::UpdateNodeRequest {
            name: "n".to_owned(),
            cordoned: Some(true),
            set_labels: [("x".to_owned(), "1".to_owned())].into(),
            remove_labels: vec!["y".to_owned()],
            set_taints: vec![taint("a", "9", v1::TaintEffect::NoSchedule)],
            remove_taints: vec!["b".to_owned()],
            ..v1::UpdateNodeRequest::default()
        };
        assert_eq!(update(&request), []);
        apply_update(&mut spec, &request, NOW).unwrap();
        let values: Vec<&str> = spec.taints.iter().map(|taint| taint.value.as_str()).collect();
        assert_eq!((spec.cordoned, &values[..]), (true, &["2", "9"][..]));
        assert_eq!(spec.meta.as_ref().unwrap().labels["x"], "1");
        assert_eq!((spec.taints[0].added_time_ms, spec.taints[1].added_time_ms), (0, NOW.wall_ms));
        // The same again keeps its time; another value is a new taint.
        for (value, expected) in [("9", NOW.wall_ms), ("10", 9_000)] {
            let set_taints = vec![taint("a", value, v1::TaintEffect::NoSchedule)];
            let again = v1::UpdateNodeRequest { set_taints, ..v1::UpdateNodeRequest::default() };
            apply_update(&mut spec, &again, RequestTime { wall_ms: 9_000, ..NOW }).unwrap();
            assert_eq!(spec.taints[1].added_time_ms, expected, "{value}");
        }
        let before = spec.clone();
        apply_update(&mut spec, &v1::UpdateNodeRequest::default(), NOW).unwrap();
        assert_eq!(spec, before, "nothing asked, nothing changed");
        let both = v1::UpdateNodeRequest { remove_labels: vec!["x".to_owned()], ..request };
        assert_eq!(update(&both)[0].path, "remove_labels[0]");
    }

    #[test]
    fn a_drain_begins_once_and_its_deadline_may_change() {
        let mut spec = v1::NodeSpec::default();
        let order = |deadline_in_ms| v1::UpdateNodeRequest {
            name: "n".to_owned(),
            drain: Some(v1::DrainOrder { deadline_in_ms }),
            ..v1::UpdateNodeRequest::default()
        };
        let later = RequestTime { wall_ms: 5_000, n_live: 3 };
        let mut drain = |request: &v1::UpdateNodeRequest, now| {
            let done = apply_update(&mut spec, request, now).map_err(|bad| bad.path);
            done.map(|()| spec.drain.map(|drain| (drain.since_ms, drain.deadline_ms, drain.running_units)))
        };
        assert_eq!(drain(&order(None), NOW), Ok(Some((1_000, 0, 7))));
        assert_eq!(drain(&order(Some(600)), later), Ok(Some((1_000, 5_600, 7))));
        assert_eq!(drain(&order(None), later), Ok(Some((1_000, 5_600, 7))), "as before");
        assert_eq!(drain(&order(Some(0)), later), Ok(Some((1_000, 5_000, 7))), "at once");
        assert_eq!(drain(&order(Some(u64::MAX)), later), Ok(Some((1_000, i64::MAX, 7))));
        let open = v1::UpdateNodeRequest { cordoned: Some(false), ..v1::UpdateNodeRequest::default() };
        assert_eq!(drain(&open, later), Err("cordoned".to_owned()));
        let undrain = v1::UpdateNodeRequest { undrain: true, ..open };
        assert_eq!(drain(&undrain, later), Ok(None));
        assert_eq!(update(&v1::UpdateNodeRequest { undrain: true, ..order(None) })[0].path, "undrain");
    }

    #[test]
    fn a_notice_drains_by_the_earlier_of_two_deadlines() {
        let give = |reason: &str, deadline_in_ms| v1::GiveNoticeRequest {
            name: "n".to_owned(),
            reason: reason.to_owned(),
            deadline_in_ms,
        };
        let wrong = |request: &v1::GiveNoticeRequest| {
            notice(request).into_iter().map(|bad| bad.path).collect::<Vec<_>>()
        };
        assert_eq!(wrong(&v1::GiveNoticeRequest::default()), ["name", "reason", "deadline_in_ms"]);
        assert_eq!(wrong(&give("a\nb", Some(0))), ["reason"]);
        assert!(wrong(&give("spot", Some(0))).is_empty());
        let later = RequestTime { wall_ms: 5_000, n_live: 3 };
        // The drain that was asked for, the notices, and the deadlines of notice and drain.
        for (asked_ms, notices, expected) in [
            (None, &[(NOW, 600)][..], (1_000, 1_600, 1_600)),
            (Some(0), &[(NOW, 600)], (1_000, 1_600, 1_600)),
            (Some(1_200), &[(NOW, 600)], (1_000, 1_600, 1_200)),
            (Some(9_000), &[(NOW, 600)], (1_000, 1_600, 1_600)),
            // Another one changes the deadline, to a later one as well.
            (None, &[(NOW, 600), (later, 700)], (1_000, 5_700, 5_700)),
        ] {
            let drain =
                asked_ms.map(|deadline_ms| v1::NodeDrain { since_ms: 900, deadline_ms, running_units: 7 });
            let mut spec = v1::NodeSpec { drain, ..v1::NodeSpec::default() };
            for (now, deadline_in_ms) in notices {
                apply_notice(&mut spec, &give("spot", Some(*deadline_in_ms)), *now);
            }
            let (notice, drain) = (spec.notice.clone().unwrap(), spec.drain.unwrap());
            assert_eq!((notice.since_ms, notice.deadline_ms, drain.deadline_ms), expected, "{asked_ms:?}");
            let end = v1::UpdateNodeRequest { undrain: true, ..v1::UpdateNodeRequest::default() };
            apply_update(&mut spec, &end, later).unwrap();
            assert!(spec.notice.is_none() && spec.drain.is_none());
        }
    }
}
