//! What the system says of this process, under the names that Prometheus gives it in every language.

use std::{fmt, fs};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// Reads `/proc` whenever somebody asks.
#[derive(Debug)]
struct ProcessCollector;

pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector));
}

/// What `/proc/self/stat` says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessStat {
    cpu_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

/// The name may hold spaces and brackets; the numbers follow after the last bracket.
fn stat(text: &str) -> Option<ProcessStat> {
    let (_, rest) = text.rsplit_once(')')?;
    // The first of them is the third field.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(ProcessStat {
        cpu_ticks: field(14)? + field(15)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
        resident_pages: field(24)?,
    })
}

/// When the machine was started, in seconds since 1970.
fn boot_time(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second().max(1) as f64
}

impl Collector for ProcessCollector {
    #[allow(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(stat) {
            gauge(
                "process_resident_memory_bytes",
                "Resident memory",
                stat.resident_pages as f64 * page_size() as f64,
            )?;
            gauge("process_virtual_memory_bytes", "Virtual memory", stat.virtual_bytes as f64)?;
            if let Some(boot) = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_time) {
                let help = "Start of the process, in seconds since 1970";
                gauge("process_start_time_seconds", help, boot as f64 + seconds(stat.start_ticks))?;
            }
            let cpu = ConstCounter::new(seconds(stat.cpu_ticks));
            let help = "User and system CPU time";
            cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;
        }
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open file descriptors", open.count() as f64)?;
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            gauge("process_max_fds", "Maximum number of file descriptors", limit as f64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_files_are_read() {
        let text = "42 (a ) b) S 1 42 42 0 -1 4194560 1 2 3 4 100 50 7 8 20 0 9 0 12345 1048576 256 18446744073709551615";
        let expected = ProcessStat {
            cpu_ticks: 150,
            start_ticks: 12_345,
            virtual_bytes: 1_048_576,
            resident_pages: 256,
        };
        assert_eq!(stat(text), Some(expected));
        assert_eq!(stat("42 (cut"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
    }
}
