//! What everybody can read and nobody means: an empty name where there has to be one, a count of nothing, an end before its beginning, something
//! that stands twice or names itself, parts that contradict one another.
//!
//! No part of this version writes such a record, so one that comes is the mistake of whoever sends it: it is refused before it is committed, by the
//! path of its field. What a store holds already stays readable: nobody asks this of a record that is loaded.
//!
//! The rules of admission (`godel-rules`) judge what people ask for with all other records beside it. Here each operation is looked at alone, and
//! limits are those that admission has for good.

use std::collections::{BTreeSet, HashMap};

use godel_domain::{
    names::{self, NAME_LEN_MAX},
    queue_spec::{PRIORITY_MAX, WEIGHT_MAX},
    record_change::{DESCRIPTION_LEN_MAX, Report, Violation},
};
use godel_proto::v1::{self, op::Op};

use super::super::{BadField, Result, given_budget, given_reservation};

pub(crate) mod holds;
pub(crate) mod moves;
mod rows;
pub(crate) mod units;
pub(crate) mod yarn;

pub(super) use rows::bind;

/// Thousandths of a whole.
const MILLI_WHOLE: u32 = 1_000;

/// Checks an operation that its readers can read and that puts no record: those are checked by the table of records.
///
/// # Errors
/// The first thing that makes no sense, by its path from the record on.
pub(super) fn check(op: &Op) -> Result<()> {
    match op {
        Op::Bind(pb) => bind(&pb.clone().into()),
        Op::Evict(pb) => rows::evict(pb),
        Op::RunStatus(pb) => rows::statuses(pb),
        Op::Requeue(pb) => rows::requeue(pb),
        Op::ChangeTerms(pb) => rows::terms(pb),
        Op::Compact(pb) => rows::compaction(pb),
        _ => Ok(()),
    }
}

/// The reader of the record checks all that there is of it.
pub(crate) fn read_whole<T>(_: &T) -> Result<()> {
    Ok(())
}

pub(crate) fn node_allocatable(pb: &v1::NodeAllocatable) -> Result<()> {
    resources("allocatable", pb.allocatable.as_ref())
}

pub(crate) fn node_spec(pb: &v1::NodeSpec) -> Result<()> {
    let v1::NodeSpec {
        node_id: _,
        meta,
        cordoned: _,
        taints,
        drain,
        quarantine,
        notice,
        identity_expired_since_ms: _,
    } = pb;
    let v1::ObjectMeta { name, labels, .. } = &meta.clone().unwrap_or_default();
    required("meta.name", name)?;
    keys("meta.labels", labels)?;
    distinct("taints", taints.iter().map(|taint| (&taint.key, taint.effect)))?;
    if let Some(drain) = drain {
        until("drain.deadline_ms", drain.since_ms, drain.deadline_ms)?;
    }
    if let Some(quarantine) = quarantine {
        until("quarantine.until_ms", quarantine.since_ms, quarantine.until_ms)?;
    }
    if let Some(notice) = notice {
        until("notice.deadline_ms", notice.since_ms, notice.deadline_ms)?;
    }
    Ok(())
}

pub(crate) fn node_report(pb: &v1::NodeReport) -> Result<()> {
    if pb.node_id == 0 {
        return Err(BadField::new("node_id", "missing"));
    }
    resources("capacity", pb.capacity.as_ref())?;
    for (idx, device) in pb.devices.iter().enumerate() {
        required(&format!("devices[{idx}].kind"), &device.kind)?;
    }
    keys("attributes", &pb.attributes)?;
    words("address", &pb.address, NAME_LEN_MAX)
}

pub(crate) fn node_usage(pb: &v1::NodeUsage) -> Result<()> {
    let zones = pb.zone_loads.iter().enumerate();
    let zones = zones.map(|(idx, zone)| (format!("zone_loads[{idx}].load"), zone.load));
    resources("reserved", pb.reserved.as_ref())?;
    for (path, load) in std::iter::once(("load".to_owned(), pb.load)).chain(zones) {
        let v1::NodeLoad { p50, p95 } = load.unwrap_or_default();
        let (p50, p95) = (p50.unwrap_or_default(), p95.unwrap_or_default());
        let pairs = [
            ("cpu", p50.cpu, p95.cpu),
            ("memory", p50.memory, p95.memory),
            ("network", p50.network, p95.network),
        ];
        if let Some((name, half, most)) = pairs.into_iter().find(|(_, half, most)| half > most) {
            let why = format!("the median {half} is above the 95th percentile {most}");
            return Err(BadField::new(format!("{path}.p50.{name}"), why));
        }
    }
    Ok(())
}

pub(crate) fn lease(pb: &v1::LeaseRecord) -> Result<()> {
    let v1::LeaseRecord { lease: _, holder, address: _, epoch, ttl_ms } = pb;
    if *epoch == 0 {
        return Err(BadField::new("epoch", "0: the first grant of a lease has epoch 1"));
    }
    if *ttl_ms == 0 && !holder.is_empty() {
        return Err(BadField::new("ttl_ms", "0: its holder would lose it at once"));
    }
    Ok(())
}

pub(crate) fn partition(pb: &v1::Partition) -> Result<()> {
    /// The only one that there is.
    const NAME: &str = "default";
    if pb.name != NAME {
        return Err(BadField::new("name", format!("`{}` is not `{NAME}`", pb.name)));
    }
    if pb.mode() == v1::PartitionMode::Unspecified {
        return Err(BadField::new("mode", "missing"));
    }
    for (idx, name) in pb.schedulers.iter().enumerate() {
        required(&format!("schedulers[{idx}]"), name)?;
    }
    distinct("schedulers", pb.schedulers.iter())?;
    if let Some(idx) = pb.node_ids.iter().position(|id| *id == 0) {
        return Err(BadField::new(format!("node_ids[{idx}]"), "missing"));
    }
    distinct("node_ids", pb.node_ids.iter())
}

pub(crate) fn queue(pb: &v1::Queue) -> Result<()> {
    let meta = pb.meta.clone().unwrap_or_default();
    names::queue(&meta.name).map_err(|bad| BadField::new("meta.name", bad.to_string()))?;
    keys("meta.labels", &meta.labels)?;
    for (field, given) in [("min", &pb.min), ("max", &pb.max), ("max_per_owner", &pb.max_per_owner)] {
        resources(field, given.as_ref())?;
    }
    let max = pb.max.clone().unwrap_or_default().amounts;
    for (name, amount) in pb.min.iter().flat_map(|min| &min.amounts) {
        if max.get(name).is_some_and(|max| max < amount) {
            return Err(BadField::new(
                format!("min.amounts[{name:?}]"),
                format!("{amount} is above the maximum"),
            ));
        }
    }
    let weights =
        pb.owner_weights.iter().map(|(owner, weight)| (format!("owner_weights[{owner:?}]"), *weight));
    let weights = pb.weight.map(|weight| ("weight".to_owned(), weight)).into_iter().chain(weights);
    for (path, weight) in weights {
        within(&path, weight, 1, WEIGHT_MAX)?;
    }
    keys("owner_weights", &pb.owner_weights)?;
    within("am_share_milli", pb.am_share_milli.unwrap_or(MILLI_WHOLE), 1, MILLI_WHOLE)?;
    for (idx, owner) in pb.submit_owners.iter().enumerate() {
        required(&format!("submit_owners[{idx}]"), owner)?;
    }
    distinct("submit_owners", pb.submit_owners.iter())
}

pub(crate) fn priority_class(pb: &v1::PriorityClass) -> Result<()> {
    let v1::PriorityClass { name: _, value, preemptible: _, description } = pb;
    if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(value) {
        return Err(BadField::new("value", format!("{value} is not in -{PRIORITY_MAX} to {PRIORITY_MAX}")));
    }
    words("description", description, DESCRIPTION_LEN_MAX)
}

pub(crate) fn disruption_budget(pb: &v1::DisruptionBudget) -> Result<()> {
    let (spec, _read_before) = given_budget(pb.clone());
    first_wrong(|report| spec.check_fields(report))
}

pub(crate) fn reservation(pb: &v1::Reservation) -> Result<()> {
    let (spec, _read_before) = given_reservation(pb.clone());
    first_wrong(|report| spec.check_fields(report))
}

/// The first thing that is found wrong with a record by itself.
fn first_wrong(check: impl FnOnce(&mut Report)) -> Result<()> {
    let mut report = Report::default();
    check(&mut report);
    let first = report.finish().err().and_then(|violations| violations.into_iter().next());
    first.map_or(Ok(()), |Violation { field, description, .. }| Err(BadField::new(field, description)))
}

/// A name or an id that has to be there.
pub(crate) fn required(path: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(BadField::new(path, "missing"));
    }
    words(path, text, NAME_LEN_MAX)
}

/// Not longer than texts of its kind may be.
pub(crate) fn words(path: &str, text: &str, max: usize) -> Result<()> {
    // Some of those who ask people count characters, and some bytes.
    if text.len() <= max || text.chars().count() <= max {
        return Ok(());
    }
    Err(BadField::new(path, format!("{} characters; at most {max}", text.chars().count())))
}

/// Amounts by resource, each within what one record may ask for.
fn resources(path: &str, pb: Option<&v1::Resources>) -> Result<()> {
    let amounts = pb.iter().flat_map(|resources| &resources.amounts);
    for (name, amount) in amounts {
        let under = |why: String| BadField::new(format!("{path}.amounts[{name:?}]"), why);
        if name.is_empty() {
            return Err(under("a name is missing".to_owned()));
        }
        if *amount < 0 {
            return Err(under(format!("{amount} is negative")));
        }
    }
    Ok(())
}

/// No key is empty.
fn keys<V>(path: &str, map: &HashMap<String, V>) -> Result<()> {
    if map.contains_key("") {
        Err(BadField::new(format!("{path}[\"\"]"), "a key is missing"))
    } else {
        Ok(())
    }
}

/// Each stands once.
pub(crate) fn distinct<T: Ord>(path: &str, items: impl Iterator<Item = T>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for (idx, item) in items.enumerate() {
        if !seen.insert(item) {
            return Err(BadField::new(format!("{path}[{idx}]"), "stands twice"));
        }
    }
    Ok(())
}

/// At least one.
pub(crate) fn some<T>(path: &str, items: &[T]) -> Result<()> {
    if items.is_empty() { Err(BadField::new(path, "nothing: at least one is needed")) } else { Ok(()) }
}

/// In a range, both ends of which are allowed.
fn within<N: PartialOrd + std::fmt::Display>(path: &str, value: N, least: N, most: N) -> Result<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(BadField::new(path, format!("{value} is not in {least} to {most}")))
}

/// An end, by one clock, that is not before its beginning; 0: there is none.
pub(crate) fn until(path: &str, since_ms: i64, end_ms: i64) -> Result<()> {
    if end_ms == 0 || end_ms >= since_ms {
        return Ok(());
    }
    Err(BadField::new(path, format!("{end_ms} is before the beginning, {since_ms}")))
}
