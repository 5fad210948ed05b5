//! The file of excluded nodes: hosts that take no containers, one a line, as `yarn.resourcemanager.nodes.exclude-path` has it.
//!
//! `yarn rmadmin -refreshNodes` has the file read again. Hosts that have come are taken out of service, and hosts that are gone from it come back
//! if it was this file that had taken them out since the adapter began.

use std::collections::BTreeSet;

use godel_core_yarn_leader::{YarnNodeReport, YarnNodeState};

/// Hosts of a file: separated by white space, with comments behind `#`.
///
/// # Errors
/// The file is an XML file, which Hadoop can read too.
pub(super) fn hosts(text: &str) -> Result<BTreeSet<String>, &'static str> {
    if text.trim_start().starts_with('<') {
        return Err("the file of excluded nodes is XML, which godel does not read: write one host a line");
    }
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(str::split_whitespace).map(str::to_owned).collect())
}

/// What is to be done so that the nodes fit the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Hosts that are taken out of service.
    pub(super) exclude: Vec<String>,
    /// Hosts that come back.
    pub(super) include: Vec<String>,
}

/// Compares the file with the nodes; `before` are the hosts that the file has taken out of service.
pub(super) fn compare(
    listed: &BTreeSet<String>,
    before: &BTreeSet<String>,
    nodes: &[YarnNodeReport],
) -> Changes {
    let is_out = |node: &&YarnNodeReport| {
        matches!(node.state, YarnNodeState::Decommissioning | YarnNodeState::Decommissioned)
    };
    let (out, other): (Vec<&YarnNodeReport>, Vec<&YarnNodeReport>) = nodes.iter().partition(is_out);
    let hosts = |nodes: Vec<&YarnNodeReport>, is_meant: &dyn Fn(&str) -> bool| {
        let hosts: BTreeSet<&str> = nodes.iter().map(|node| node.host.as_str()).collect();
        hosts.into_iter().filter(|host| is_meant(host)).map(str::to_owned).collect()
    };
    Changes {
        exclude: hosts(other, &|host| listed.contains(host)),
        include: hosts(out, &|host| !listed.contains(host) && before.contains(host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::samples::node;

    #[test]
    fn hosts_stand_between_comments() {
        let expected: BTreeSet<String> = ["n1", "n2", "n3"].map(str::to_owned).into();
        assert_eq!(hosts("# old ones\nn1 n2 # later\n\n\tn3\n"), Ok(expected));
        assert!(hosts("<?xml version=\"1.0\"?>").unwrap_err().contains("one host a line"));
    }

    #[test]
    fn only_what_the_file_took_out_comes_back() {
        let of = |host: &str, state| YarnNodeReport { state, ..node(host) };
        let nodes = [
            of("a", YarnNodeState::Running),
            of("b", YarnNodeState::Decommissioned),
            of("c", YarnNodeState::Decommissioning),
            of("d", YarnNodeState::Decommissioned),
        ];
        let set = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<BTreeSet<_>>();
        let changes = compare(&set(&["a", "b", "gone"]), &set(&["b", "c"]), &nodes);
        assert_eq!(changes, Changes { exclude: vec!["a".to_owned()], include: vec!["c".to_owned()] });
    }
}
