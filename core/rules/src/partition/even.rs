//! Even count: two schedulers' shares differ by one node at most. Even kind: nodes that joined together are mostly
//! alike, and have neighbouring ids, so neighbours go to different schedulers; a scheduler that owns no node of a kind
//! would have to place on others' nodes, and meet them there.

use godel_base::ids::NodeId;

use super::{OwnedNodes, Strategy, Traits};

#[derive(Debug)]
pub(super) struct EvenCount;

impl Strategy for EvenCount {
    fn assign(
        &self,
        _: &Traits<'_>,
        mut owned: Vec<OwnedNodes>,
        mut homeless: OwnedNodes,
    ) -> Vec<OwnedNodes> {
        let n_nodes = homeless.len() + owned.iter().map(Vec::len).sum::<usize>();
        // The largest shares keep the odd nodes: the fewest have to move.
        let (share, odd) = (n_nodes / owned.len(), n_nodes % owned.len());
        let mut by_size: Vec<usize> = (0..owned.len()).collect();
        by_size.sort_by_key(|slot| (std::cmp::Reverse(owned[*slot].len()), *slot));
        let mut quota = vec![share; owned.len()];
        for slot in &by_size[..odd] {
            quota[*slot] += 1;
        }
        for (own, quota) in owned.iter_mut().zip(&quota) {
            let surplus = own.len().saturating_sub(*quota);
            homeless.extend(take_evenly(own, surplus));
        }
        homeless.sort_unstable();
        let missing: Vec<usize> = quota.iter().zip(&owned).map(|(quota, own)| quota - own.len()).collect();
        for (node, slot) in homeless.into_iter().zip(turns(&missing)) {
            owned[slot].push(node);
        }
        owned
    }
}

/// Takes so many nodes out, at equal distances.
fn take_evenly(nodes: &mut Vec<NodeId>, n_taken: usize) -> Vec<NodeId> {
    let len = nodes.len();
    let mut idx = 0;
    let is_taken = |_: &mut NodeId| {
        idx += 1;
        idx * n_taken / len > (idx - 1) * n_taken / len
    };
    nodes.extract_if(.., is_taken).collect()
}

/// Slots in turn, each as often as `counts` says and as evenly as that goes: next is the slot that lags most behind its
/// share, the smaller one on ties.
fn turns(counts: &[usize]) -> impl Iterator<Item = usize> {
    let n_turns: usize = counts.iter().sum();
    let counts: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
    let mut given = vec![0u64; counts.len()];
    (1..=n_turns as u64).filter_map(move |turn| {
        // What it should have by now less what it has, both times the number of turns.
        let lag = |slot: &usize| (turn * counts[*slot]).saturating_sub(given[*slot] * n_turns as u64);
        let open = (0..counts.len()).filter(|slot| given[*slot] < counts[*slot]);
        let next = open.max_by_key(|slot| (lag(slot), std::cmp::Reverse(*slot)))?;
        given[next] += 1;
        Some(next)
    })
}
