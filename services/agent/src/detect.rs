//! What this machine is, from `/proc`.

use std::{collections::BTreeMap, io};

use godel_domain::{
    names::{self, BadName, NAME_LEN_MAX},
    resources::{CPU, MEMORY, Resources},
};

use crate::inventory::NodeDef;

/// Why this machine could not be described.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of `/proc` cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// Which.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The node cannot be called so.
    #[error("`{name}` cannot be a node's name: {wrong}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong.
        wrong: BadName,
    },
    /// The node cannot be called as its host is.
    #[error("the host name `{host}` cannot be a node's name: {wrong}; give the node another one with --name")]
    HostName {
        /// As the kernel says.
        host: String,
        /// What is wrong.
        wrong: BadName,
    },
    /// `/proc/meminfo` has no total.
    #[error("/proc/meminfo has no MemTotal")]
    NoMemTotal,
}

/// This machine as a node. `name` replaces the host name, which is taken in lower case. GPUs are not looked for.
///
/// # Errors
/// `/proc` cannot be read, or the node cannot be called so.
pub fn this_machine(name: Option<&str>) -> Result<NodeDef, Error> {
    let n_cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = mem_total(&read("/proc/meminfo")?).ok_or(Error::NoMemTotal)?;
    let host = read("/proc/sys/kernel/hostname")?.trim().to_owned();
    let cpu_milli = i64::try_from(n_cpus).unwrap_or(i64::MAX / 1000).saturating_mul(1000);
    let capacity = Resources::new([(CPU, cpu_milli), (MEMORY, memory)]).unwrap_or_default();
    let mut node = NodeDef::new(node_name(name, &host)?, capacity);
    node.attributes = BTreeMap::from([
        ("arch".to_owned(), std::env::consts::ARCH.to_owned()),
        ("hostname".to_owned(), host),
        ("os".to_owned(), std::env::consts::OS.to_owned()),
    ]);
    Ok(node)
}

/// Host names do not tell upper from lower case, names of nodes have no upper case.
fn node_name(name: Option<&str>, host: &str) -> Result<String, Error> {
    let wanted = name.map_or_else(|| host.to_ascii_lowercase(), str::to_owned);
    match names::name(&wanted, NAME_LEN_MAX) {
        Ok(()) => Ok(wanted),
        Err(wrong) if name.is_some() => Err(Error::Name { name: wanted, wrong }),
        Err(wrong) => Err(Error::HostName { host: host.to_owned(), wrong }),
    }
}

fn read(path: &'static str) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path, source })
}

/// Bytes in the `MemTotal` line of `/proc/meminfo`.
fn mem_total(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_total_is_found() {
        assert_eq!(mem_total("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_total("MemTotal: lots\n"), None);
        assert_eq!(mem_total(""), None);
    }

    #[test]
    fn host_names_become_lower_case_or_are_refused_with_advice() {
        let name = |name, host| node_name(name, host).map_err(|error| error.to_string());
        assert_eq!(name(None, "GPU-Node-01.example"), Ok("gpu-node-01.example".to_owned()));
        assert_eq!(name(Some("n1"), "GPU-Node_01"), Ok("n1".to_owned()));
        let rule = "is not allowed: lower-case letters, digits, `-` and `.` are";
        assert_eq!(
            name(None, "GPU-Node_01"),
            Err(format!(
                "the host name `GPU-Node_01` cannot be a node's name: `_` {rule}; give the node another one with --name"
            ))
        );
        assert_eq!(name(Some("N1"), "n1"), Err(format!("`N1` cannot be a node's name: `N` {rule}")));
        assert!(name(None, "").is_err());
    }

    #[test]
    fn this_machine_has_cpus_and_memory() {
        let node = this_machine(Some("me")).unwrap();
        assert!(node.capacity.get(CPU) >= 1000 && node.capacity.get(MEMORY) > 1 << 20);
        assert_eq!(node.name, "me");
    }
}
