//! The inventory file: what cannot be discovered of a machine, or is to be other than it was found.

use std::{collections::BTreeMap, io, ops::Range, path::Path};

use godel_base::{
    quantity,
    resources::{MEMORY, Resources},
};
use godel_domain::{
    demand::N_DEVICES_MAX,
    names::{self, NAME_LEN_MAX, NAMESPACE_LEN_MAX},
    node::{Device, DeviceDetails},
    zone::Zone,
};
use godel_wire::from_proto;
use serde::Deserialize;
use toml::{Spanned, Value};

use super::{Located, tree};
use crate::inventory::NodeDef;

/// What is wrong with an inventory file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("the inventory file {path} cannot be read")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It says something that is not allowed.
    #[error("{path}:{line}: {what}")]
    Line {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
        /// What is wrong, and what is allowed.
        what: String,
    },
}

/// What an inventory file says.
#[derive(Debug, Default)]
pub(super) struct Fixed {
    /// Attributes of the node; they win over those that are found.
    pub(super) attributes: BTreeMap<String, String>,
    /// Amounts of the node; they win over those that are found.
    pub(super) capacity: Vec<(String, i64)>,
    /// Kinds of devices of which those that are found do not count.
    pub(super) replaced: Vec<String>,
    /// Devices beside those that are found.
    pub(super) devices: Vec<Located>,
    /// Zones instead of those that are found, with the kernel's numbers of their NUMA nodes.
    pub(super) zones: Option<Vec<(Zone, Option<u32>)>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    attributes: BTreeMap<String, Spanned<String>>,
    capacity: BTreeMap<String, Spanned<Value>>,
    replace_devices: Vec<Spanned<String>>,
    devices: Vec<Spanned<DeviceEntry>>,
    zones: Option<Vec<Spanned<ZoneEntry>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    kind: Spanned<String>,
    #[serde(default)]
    model: Option<Spanned<String>>,
    #[serde(default)]
    count: Option<Spanned<usize>>,
    #[serde(default)]
    numa: Option<u32>,
    #[serde(default)]
    memory: Option<Spanned<Value>>,
    #[serde(default)]
    gbps: u32,
    #[serde(default)]
    link: Option<Spanned<String>>,
    #[serde(default)]
    link_group: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ZoneEntry {
    kind: Spanned<String>,
    #[serde(default)]
    parent: Option<u8>,
    #[serde(default)]
    cpus: Option<Spanned<String>>,
    #[serde(default)]
    threads_per_core: Option<Spanned<u8>>,
    #[serde(default)]
    numa: Option<u32>,
    #[serde(default)]
    capacity: BTreeMap<String, Spanned<Value>>,
}

/// Reads an inventory file.
///
/// # Errors
/// It cannot be read, or a line says something that is not allowed.
pub(super) fn read(path: &Path) -> Result<Fixed, Error> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: shown.clone(), source })?;
    parse(&text).map_err(|(at, what)| {
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        Error::Line { path: shown, line, what }
    })
}

/// Where something is wrong, in bytes from the beginning, and what.
type Wrong = (usize, String);

fn parse(text: &str) -> Result<Fixed, Wrong> {
    let file: File = toml::from_str(text)
        .map_err(|error| (error.span().map_or(0, |Range { start, .. }| start), error.message().to_owned()))?;
    let mut fixed = Fixed::default();
    for (key, value) in file.attributes {
        let checked = names::label_key(&key).and_then(|()| names::text(value.as_ref(), NAME_LEN_MAX));
        checked.map_err(|wrong| (value.span().start, format!("attribute `{key}`: {wrong}")))?;
        fixed.attributes.insert(key, value.into_inner());
    }
    fixed.capacity = amounts(file.capacity)?;
    for kind in file.replace_devices {
        fixed.replaced.push(device_kind(kind)?);
    }
    for entry in file.devices {
        let at = entry.span().start;
        fixed.devices.append(&mut devices(entry.into_inner())?);
        if fixed.devices.len() > N_DEVICES_MAX {
            return Err((at, format!("more than {N_DEVICES_MAX} devices")));
        }
    }
    fixed.zones = file.zones.map(zones).transpose()?;
    Ok(fixed)
}

fn devices(entry: DeviceEntry) -> Result<Vec<Located>, Wrong> {
    let DeviceEntry { kind, model, count, numa, memory, gbps, link, link_group } = entry;
    let kind = device_kind(kind)?;
    let (model, link) = (short(model, "model")?, short(link, "link")?);
    let memory = memory.map(|value| amount(MEMORY, value)).transpose()?.unwrap_or(0);
    let n = match count {
        None => 1,
        Some(count) if (1..=N_DEVICES_MAX).contains(count.as_ref()) => count.into_inner(),
        Some(count) => {
            let what = format!("count: {} is not from 1 to {N_DEVICES_MAX}", count.as_ref());
            return Err((count.span().start, what));
        }
    };
    let device = Located::new(&kind, &model, DeviceDetails { memory, gbps, link, link_group }, numa);
    Ok(vec![device; n])
}

fn device_kind(kind: Spanned<String>) -> Result<String, Wrong> {
    names::device_kind(kind.as_ref())
        .map_err(|wrong| (kind.span().start, format!("kind `{}`: {wrong}", kind.as_ref())))?;
    Ok(kind.into_inner())
}

fn short(text: Option<Spanned<String>>, key: &str) -> Result<String, Wrong> {
    let Some(text) = text else { return Ok(String::new()) };
    names::text(text.as_ref(), NAMESPACE_LEN_MAX)
        .map_err(|wrong| (text.span().start, format!("{key}: {wrong}")))?;
    Ok(text.into_inner())
}

fn amounts(given: BTreeMap<String, Spanned<Value>>) -> Result<Vec<(String, i64)>, Wrong> {
    let checked = |(name, value): (String, Spanned<Value>)| {
        names::asked(&name).map_err(|wrong| (value.span().start, format!("resource `{name}`: {wrong}")))?;
        let amount = amount(&name, value)?;
        Ok((name, amount))
    };
    given.into_iter().map(checked).collect()
}

fn amount(name: &str, value: Spanned<Value>) -> Result<i64, Wrong> {
    let at = value.span().start;
    let text = match value.into_inner() {
        Value::String(text) => text,
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        other => return Err((at, format!("{name}: a {} is no quantity, as `64Gi` or 8", other.type_str()))),
    };
    quantity::parse(name, &text).map_err(|wrong| (at, format!("{name}: {wrong}")))
}

/// Reads zones and checks them as state does.
fn zones(entries: Vec<Spanned<ZoneEntry>>) -> Result<Vec<(Zone, Option<u32>)>, Wrong> {
    let mut zones = Vec::new();
    let mut places = Vec::new();
    for entry in entries {
        places.push(entry.span().start);
        let ZoneEntry { kind, parent, cpus, threads_per_core, numa, capacity } = entry.into_inner();
        let at = kind.span().start;
        let kind = short(Some(kind), "kind")?;
        if kind.is_empty() {
            return Err((at, "kind: must not be empty; `socket`, `numa`, `l3` or another word".to_owned()));
        }
        let threads_per_core = match threads_per_core {
            Some(n) if *n.as_ref() == 0 => {
                return Err((n.span().start, "threads_per_core: must be at least 1".to_owned()));
            }
            threads => threads.map_or(1, Spanned::into_inner),
        };
        let cpus = cpus.map(in_order).transpose()?.unwrap_or_default();
        let capacity = Resources::new(amounts(capacity)?).unwrap_or_default();
        zones.push((Zone { kind, parent, capacity, cpus, threads_per_core }, numa));
    }
    let all = NodeDef { zones: zones.iter().map(|(zone, _)| zone.clone()).collect(), ..NodeDef::default() };
    match from_proto::node_report(all.report()) {
        Ok(_) => Ok(zones),
        Err(wrong) => {
            let idx = wrong.path.strip_prefix("zones[").and_then(|rest| rest.split(']').next()?.parse().ok());
            let at = idx.and_then(|idx: usize| places.get(idx).copied()).or(places.first().copied());
            Err((at.unwrap_or(0), wrong.to_string()))
        }
    }
}

/// Reads a list of CPUs in the order in which it stands: those of one core stand one after another.
fn in_order(list: Spanned<String>) -> Result<Vec<u32>, Wrong> {
    let mut cpus = Vec::new();
    for part in list.as_ref().split(',') {
        let wrong = || {
            let what = format!(
                "cpus: `{}` is no list of CPUs, as `0-3,8` (those of one core one after another, as `0,48,1,49`)",
                list.as_ref()
            );
            (list.span().start, what)
        };
        cpus.extend(tree::numbers(part).filter(|part| !part.is_empty()).ok_or_else(wrong)?);
    }
    Ok(cpus)
}

/// Whether a device is of one of some kinds.
pub(super) fn is_of(device: &Device, kinds: &[String]) -> bool {
    kinds.contains(&device.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_adds_and_replaces() {
        let fixed = parse(
            "replace_devices = ['nic']\n\
             [attributes]\nrack = 'r1'\n\
             [capacity]\nmemory = '64Gi'\nlicence = 3\n\
             [[devices]]\nkind = 'fpga'\nmodel = 'U250'\ncount = 2\nnuma = 1\nmemory = '64Gi'\n\
             [[zones]]\nkind = 'numa'\ncpus = '0,2,1,3'\nthreads_per_core = 2\nnuma = 1\ncapacity = {cpu = 4}\n",
        );
        let fixed = fixed.unwrap();
        assert_eq!((fixed.replaced[0].as_str(), fixed.attributes["rack"].as_str()), ("nic", "r1"));
        assert_eq!(fixed.capacity, [("licence".to_owned(), 3), ("memory".to_owned(), 64 << 30)]);
        assert_eq!((fixed.devices.len(), fixed.devices[1].numa), (2, Some(1)));
        assert_eq!(fixed.devices[0].device.known().memory, 64 << 30);
        let (zone, numa) = &fixed.zones.unwrap()[0];
        assert_eq!((&zone.cpus[..], zone.cores().len(), *numa), (&[0, 2, 1, 3][..], 2, Some(1)));
        assert_eq!(zone.capacity.get("cpu"), 4_000);
        assert!(parse("zones = []").unwrap().zones.unwrap().is_empty(), "no zones, whatever is found");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let zone = "[[zones]]\nkind = 'numa'\ncpus = '0'\ncapacity = {cpu = 1}\n";
        for (text, line, expected) in [
            ("\nracks = 1\n", 2, "unknown field `racks`, expected one of `attributes`, `capacity`"),
            ("[[devices]]\nmodel = 'x'\n", 1, "missing field `kind`"),
            ("[[devices]]\nkind = 'cpu'\n", 2, "kind `cpu`: is no kind of device"),
            ("[[devices]]\nkind = 'fpga'\ncount = 65\n", 3, "count: 65 is not from 1 to 64"),
            ("[capacity]\n\nmem = '1Gi'\n", 3, "resource `mem`: did you mean `memory`?"),
            ("[capacity]\nmemory = 'lots'\n", 2, "memory: `lots` is no memory quantity"),
            ("[capacity]\nmemory = true\n", 2, "memory: a boolean is no quantity"),
            ("[attributes]\n'a b' = 'x'\n", 2, "attribute `a b`: ` ` is not allowed"),
            ("[[zones]]\nkind = 'numa'\ncpus = 'all'\n", 3, "cpus: `all` is no list of CPUs, as `0-3,8`"),
            ("[[zones]]\nkind = 'numa'\nparent = 3\n", 1, "3 is no earlier zone"),
            (&format!("{zone}{zone}"), 1, "CPU 0 is in two zones that are assigned"),
            ("a = [", 1, ""),
        ] {
            let (at, what) = parse(text).unwrap_err();
            let found = text[..at].matches('\n').count() + 1;
            assert!(what.contains(expected), "{text}: {what}");
            assert_eq!(found, line, "{text}: {what}");
        }
    }
}
