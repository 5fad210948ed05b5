//! The zones of `godel node describe`.

use std::collections::BTreeMap;

use godel_base::quantity;
use godel_client::{
    output::{Paint, shown},
    views::{DeviceView, ZoneView},
};

/// Returns the zones as a tree, each with what is free, its devices, and who has a part of it.
pub(super) fn text(zones: &[ZoneView], devices: &[DeviceView], paint: Paint) -> String {
    if zones.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n", paint.bold("zones"));
    for zone in zones {
        let indent = "  ".repeat(zone.depth);
        let mut line = format!("{indent}{} {}", shown(&zone.kind), zone.index);
        for (name, amount) in &zone.capacity {
            let free = zone.free.get(name).copied().unwrap_or_default();
            let (free, all) = (quantity::show(name, free), quantity::show(name, *amount));
            line.push_str(&format!("  {} {free} free of {all}", shown(name)));
        }
        if zone.capacity.contains_key("cpu") && zone.cores > 0 {
            line.push_str(&format!("  cores {} free of {}", zone.free_cores, zone.cores));
        }
        if !zone.cpus.is_empty() {
            line.push_str(&format!("  CPUs {}", zone.cpus));
        }
        if let Some(load) = zone.load_text() {
            line.push_str(&format!("  {}", shown(&load)));
        }
        text.push_str(&format!("{line}\n"));
        for device in devices.iter().filter(|device| zone.devices.contains(&device.index)) {
            text.push_str(&format!("{indent}  {}\n", device_line(device)));
        }
        for part in &zone.running_units {
            let mut line = format!("{indent}  {}", shown(&part.running_unit));
            if !part.amounts.is_empty() {
                line.push_str(&format!("  {}", amounts(&part.amounts)));
            }
            if !part.dedicated_cpus.is_empty() {
                line.push_str(&format!("  dedicated CPUs {}", part.dedicated_cpus));
            }
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

fn device_line(device: &DeviceView) -> String {
    let mut line = format!("{} {}", shown(&device.kind), device.index);
    if !device.model.is_empty() {
        line.push_str(&format!(" {}", shown(&device.model)));
    }
    if device.gbps > 0 {
        line.push_str(&format!(" {}G", device.gbps));
    }
    if !device.link.is_empty() {
        line.push_str(&format!(" {} {}", shown(&device.link), device.link_group));
    }
    line.push_str(&format!("  {} free", quantity::show_devices(i64::from(device.free_milli))));
    line
}

fn amounts(amounts: &BTreeMap<String, i64>) -> String {
    let shown: Vec<String> = amounts
        .iter()
        .map(|(name, amount)| format!("{} {}", shown(name), quantity::show(name, *amount)))
        .collect();
    shown.join(", ")
}
