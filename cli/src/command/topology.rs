//! `godel agent topology`.

use std::{collections::BTreeMap, path::Path};

use godel_agent::{NodeDef, detect};
use godel_base::quantity;
use godel_client::{
    exit::{Code, Failure},
    output::{self, Format, Paint, field, shown},
    process::quiet_telemetry,
    views::{self, ZoneView},
};
use godel_domain::node::Device;
use serde::Serialize;

use crate::{args::TopologyArgs, config};

/// Width of the titles of fields.
const WIDTH: usize = 10;

/// What this machine is, as JSON and YAML.
#[derive(Serialize)]
struct TopologyView {
    name: String,
    capacity: BTreeMap<String, i64>,
    attributes: BTreeMap<String, String>,
    zones: Vec<ZoneView>,
    devices: Vec<DeviceOfMachine>,
    warnings: Vec<String>,
}

/// A device of this machine.
#[derive(Serialize)]
struct DeviceOfMachine {
    index: usize,
    kind: String,
    model: String,
    zone: u32,
    memory: i64,
    gbps: u32,
    link: String,
    link_group: u32,
}

pub(super) fn run(wanted: &TopologyArgs, log: Option<String>, format: Format) -> Result<(), Failure> {
    let root = config::load(&wanted.layers, &[])?;
    let _guard = quiet_telemetry(log)?;
    let machine = wanted.root.as_deref().unwrap_or(Path::new("/"));
    let found = detect::machine(machine, wanted.name.as_deref(), &root.agent)
        .map_err(|error| Failure::chain(Code::Usage, &error))?;
    let view = view(&found.node, found.warnings);
    match format {
        Format::Table | Format::Wide => {
            output::print(&text(&view, Paint::stdout()))?;
            view.warnings.iter().for_each(|warning| output::say(format!("warning: {warning}")));
            Ok(())
        }
        Format::Json | Format::Yaml => output::print_value(format, &view),
    }
}

fn view(node: &NodeDef, warnings: Vec<String>) -> TopologyView {
    let device = |(index, device): (usize, &Device)| {
        let known = device.known();
        DeviceOfMachine {
            index,
            kind: device.kind.clone(),
            model: device.model.clone(),
            zone: device.numa_zone,
            memory: known.memory,
            gbps: known.gbps,
            link: known.link.clone(),
            link_group: known.link_group,
        }
    };
    TopologyView {
        name: node.name.clone(),
        capacity: node.capacity.iter().map(|(name, amount)| (name.to_owned(), amount)).collect(),
        attributes: node.attributes.clone(),
        zones: views::zones(&node.report(), &[], &[]),
        devices: node.devices.iter().enumerate().map(device).collect(),
        warnings,
    }
}

fn text(view: &TopologyView, paint: Paint) -> String {
    let amounts = |amounts: &BTreeMap<String, i64>| {
        let shown = amounts.iter().map(|(name, n)| format!("{} {}", shown(name), amount(name, *n)));
        shown.collect::<Vec<_>>().join("  ")
    };
    let mut text = field(WIDTH, "name", &view.name);
    text.push_str(&field(WIDTH, "capacity", &amounts(&view.capacity)));
    let attributes: Vec<String> =
        view.attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
    text.push_str(&field(WIDTH, "attributes", &attributes.join("  ")));
    let heading = if view.zones.is_empty() { "one whole, without zones" } else { "zones" };
    text.push_str(&format!("\n{}\n", paint.bold(heading)));
    for zone in &view.zones {
        let indent = "  ".repeat(zone.depth);
        let mut line = format!("{indent}{} {}", shown(&zone.kind), zone.index);
        if !zone.capacity.is_empty() {
            line.push_str(&format!("  {}", amounts(&zone.capacity)));
        }
        if zone.capacity.contains_key("cpu") {
            line.push_str(&format!("  cores {}", zone.cores));
        }
        if !zone.cpus.is_empty() {
            line.push_str(&format!("  CPUs {}", zone.cpus));
        }
        text.push_str(&format!("{line}\n"));
        for device in view.devices.iter().filter(|device| zone.devices.contains(&device.index)) {
            text.push_str(&format!("{indent}  {}\n", device_line(device)));
        }
    }
    for device in view.devices.iter().filter(|_| view.zones.is_empty()) {
        text.push_str(&format!("{}\n", device_line(device)));
    }
    text
}

/// Huge pages are kept in bytes, as Kubernetes writes them.
fn amount(name: &str, amount: i64) -> String {
    if name.starts_with("hugepages-") {
        quantity::show_bytes_about(amount)
    } else {
        quantity::show_about(name, amount)
    }
}

fn device_line(device: &DeviceOfMachine) -> String {
    let mut line = format!("{} {}", shown(&device.kind), device.index);
    if !device.model.is_empty() {
        line.push_str(&format!(" {}", shown(&device.model)));
    }
    if device.memory > 0 {
        line.push_str(&format!("  {}", quantity::show_bytes_about(device.memory)));
    }
    if device.gbps > 0 {
        line.push_str(&format!("  {}G", device.gbps));
    }
    if !device.link.is_empty() {
        line.push_str(&format!("  {} {}", shown(&device.link), device.link_group));
    }
    line
}
