//! Where the replicas of a unit are, for those of its commands that talk to one another.

use godel_base::ids::{NodeId, UnitId};
use godel_proto::v1;

use super::{NodeSessions, templates::UnitTemplate};

/// Bytes of the list of a unit: the kernel takes 128 KiB of one variable, with its name.
const BYTES_MAX: usize = 96 << 10;
/// Replicas of a unit that has such a list: a host name and a port have room for a few bytes at least.
const N_REPLICAS_MAX: usize = 16_384;

/// A replica that has a node.
struct Peer {
    ordinal: u32,
    group: usize,
    node: NodeId,
}

/// Adds the list to assignments of commands whose units want it.
pub(super) fn fill(hub: &NodeSessions, assignments: &mut [v1::Assignment]) {
    let mut known: Option<(u64, Peers)> = None;
    for assignment in assignments {
        let is_command =
            assignment.run.as_ref().is_some_and(|run| !(run.command.is_empty() && run.image.is_empty()));
        if !is_command {
            continue;
        }
        let unit = assignment.unit_id;
        // Assignments of a unit come one after the other.
        let peers = match known.take() {
            Some((of, peers)) if of == unit => peers,
            _ => peers(hub, unit),
        };
        assignment.peers.clone_from(&peers.list);
        assignment.peers_missing.clone_from(&peers.missing);
        known = Some((unit, peers));
    }
}

/// The list of one unit; empty if it does not want one, or not all of its replicas have nodes.
fn peers(hub: &NodeSessions, unit: u64) -> Peers {
    let template = hub.templates.of_unit(&hub.store, unit).filter(|template| template.wants_peers);
    let Some(template) = template else { return Peers::default() };
    if template.wanted().take(N_REPLICAS_MAX + 1).count() > N_REPLICAS_MAX {
        return Peers::too_many();
    }
    let bound = hub.store.read(|state| {
        let rows = state.rows().get(UnitId(unit))?;
        let bound = template.wanted().map(|ordinal| {
            let row = rows.row(ordinal);
            let peer = Peer { ordinal, group: usize::from(row.group), node: row.node };
            row.phase.is_live().then_some(peer)
        });
        bound.collect::<Option<Vec<_>>>()
    });
    // No cell is locked while the store is read.
    let address = |node| hub.slot(node).map(|slot| slot.cell.lock().agent.address.to_string());
    bound.map(|bound| list(&template, &bound, address)).unwrap_or_default()
}

/// What the commands of a unit are told of one another. A list that is cut short would send them to a part of their peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Peers {
    list: String,
    /// Why there never is one.
    missing: String,
}

impl Peers {
    fn too_many() -> Self {
        let missing = format!("the unit has more than {N_REPLICAS_MAX} replicas");
        Self { list: String::new(), missing }
    }

    fn too_long() -> Self {
        let missing = format!("the list of all replicas has more than {} KiB", BYTES_MAX >> 10);
        Self { list: String::new(), missing }
    }
}

fn list(template: &UnitTemplate, bound: &[Peer], address: impl Fn(NodeId) -> Option<String>) -> Peers {
    let mut text = String::new();
    for Peer { ordinal, group, node } in bound {
        let Some(host) = address(*node).filter(|host| !host.is_empty()) else { return Peers::default() };
        // As in a URL: its colons are not those before ports.
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let ports = template.ports(*group);
        let (comma, colon) =
            (if text.is_empty() { "" } else { "," }, if ports.is_empty() { "" } else { ":" });
        text.push_str(&format!("{comma}{ordinal}={host}{colon}{ports}"));
        if text.len() > BYTES_MAX {
            return Peers::too_long();
        }
    }
    Peers { list: text, missing: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_every_replica_with_its_ports() {
        let template = UnitTemplate::of_ports(&[&[29_500], &[80, 443], &[]]);
        let peer = |ordinal, group, node| Peer { ordinal, group, node: NodeId(node) };
        let address = |node: NodeId| match node.0 {
            1 => Some("a.example".to_owned()),
            2 => Some("fe80::1".to_owned()),
            3 => Some(String::new()),
            _ => None,
        };
        let of = |bound: &[Peer]| list(&template, bound, address);
        let bound = [peer(0, 0, 1), peer(3, 1, 2), peer(4, 2, 1)];
        assert_eq!(of(&bound).list, "0=a.example:29500,3=[fe80::1]:80+443,4=a.example");
        let earlier = of(&[peer(0, 0, 1), peer(1, 0, 3)]);
        assert_eq!(earlier, Peers::default(), "an agent of an earlier version");
        assert_eq!(of(&[peer(0, 0, 9)]), Peers::default(), "its node is gone");
        let many: Vec<Peer> = (0..10_000).map(|ordinal| peer(ordinal, 0, 1)).collect();
        assert_eq!(
            of(&many),
            Peers::too_long(),
            "no variable is so long, and no part of the list is handed out"
        );
    }
}
