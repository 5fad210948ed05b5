//! What processes of this machine have used, as `/proc` says.

use std::{fs, time::Duration};

/// Clock ticks of `/proc/PID/stat` in a second: fixed by the kernel's interface on every architecture we run on.
const TICKS_PER_S: u64 = 100;

/// User and system time of a process since its start; `None` if it is not there.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Memory that a process holds now, in bytes.
pub fn rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "VmRSS:").map(|kib| kib << 10)
}

/// The most memory that a process ever held, in bytes.
pub fn rss_bytes_max(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "VmHWM:").map(|kib| kib << 10)
}

/// Forgets the most that this process ever held: it counts from now on.
pub fn reset_rss_max() {
    // Where the system does not allow it, the figure is of the whole life of the process.
    let _not_allowed = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that a process has sent to disks since its start, as the kernel accounts for them: pages that it made dirty,
/// the whole of a large folio of which it wrote a part, so possibly many times what reached the disk.
pub fn bytes_written(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?, "write_bytes:")
}

/// Processes that wanted to run over the last minute; 0 where the system does not say.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// User and system time in a line of `/proc/PID/stat`.
fn parse_stat(stat: &str) -> Option<Duration> {
    // The name in parentheses may hold anything; fields count from behind it: state is the first.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 1000 / TICKS_PER_S))
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_the_name() {
        let stat = "42 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(parse_stat(stat), Some(Duration::from_secs(2)));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn this_process_is_found() {
        let pid = std::process::id();
        assert!(cpu_time(pid).is_some() && bytes_written(pid).is_some());
        assert!(rss_bytes(pid).unwrap() > 1 << 20);
        assert!(rss_bytes_max(pid).unwrap() > 1 << 20);
        assert_eq!(field("VmPeak:\t 9 kB\nVmHWM:\t 12 kB\n", "VmHWM:"), Some(12));
    }
}
