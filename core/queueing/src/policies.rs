//! The one list of the orders by which units are served: inside a queue, and between sibling queues.
//!
//! A queue names the order of its units (`policy`); the order between siblings is one for the whole tree, because the audit judges
//! every commit by it. An order is an entry of a list here: everything else, the docs included, finds it by its name.

use std::fmt::Write as _;

use godel_domain::queue_spec::QueuePolicy;

use super::{order::Waiting, usage::Usage};

/// Whose turn it is among owners, the smallest first: dominant share, and among equal ones running units.
pub(super) type OwnerRank = (u64, u64);

/// Running units are told apart to a millionth of one by weight.
const ONE: u64 = 1_000_000;
/// Milliseconds waited that weigh as much as one of priority.
const AGEING_MS: i64 = 60_000;

/// What an owner uses of a queue, as an order by owners sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerUse<'a> {
    pub(super) usage: &'a Usage,
    /// By resource; the first one is running units.
    pub(super) used: &'a [i128],
    /// At least 1.
    pub(super) weight: u64,
}

impl OwnerUse<'_> {
    fn share(&self) -> u64 {
        self.usage.dominant_share(self.used)
    }

    fn n_running_units(&self) -> u64 {
        u64::try_from(self.used.first().copied().unwrap_or(0)).unwrap_or(0)
    }
}

/// An order of the units of one queue.
#[derive(Debug)]
pub struct SortPolicy {
    /// The word by which queues choose it is its name.
    pub policy: QueuePolicy,
    /// What is served first, for the docs.
    pub doc: &'static str,
    /// When to choose it, for the docs.
    pub reason: &'static str,
    /// Place of a unit among those of one owner, or of the queue where owners do not take turns: the smallest first, then those
    /// that were handed out before, then the oldest.
    pub(super) key: fn(&Waiting) -> i64,
    /// Whose turn it is; `None`: owners do not take turns.
    pub(super) rank: Option<fn(&OwnerUse<'_>) -> OwnerRank>,
}

/// Every order of the units of one queue, as [`QueuePolicy::ALL`] has them.
pub static SORT_POLICIES: [SortPolicy; QueuePolicy::ALL.len()] = [
    SortPolicy {
        policy: QueuePolicy::Fifo,
        doc: "a unit that was handed out before, then the oldest unit",
        reason: "one team whose units are alike: nobody is overtaken, and the wait can be foreseen",
        key: by_age,
        rank: None,
    },
    SortPolicy {
        policy: QueuePolicy::Priority,
        doc: "the unit with the highest priority; the priority increases by 1 for each 60 s of waiting",
        reason: "the default: what matters more goes first, and ageing lets nothing starve",
        key: by_priority,
        rank: None,
    },
    SortPolicy {
        policy: QueuePolicy::Drf,
        doc: "the owner with the smallest dominant share: the largest, over all resources, of the requests of its running units \
              as a part of the cluster",
        reason: "several owners of one queue who need different resources: none of them gains by asking for more (Ghodsi et \
                 al. 2011)",
        key: by_priority,
        rank: Some(by_share),
    },
    SortPolicy {
        policy: QueuePolicy::FairShare,
        doc: "the owner with the smallest dominant share divided by its weight in `owner_weights`; on a tie, the owner with \
              fewer running units per weight",
        reason: "owners who are entitled to unequal parts: max-min fair by weight, for work without shares as well",
        key: by_priority,
        rank: Some(by_weighted_share),
    },
];

/// An order between sibling queues.
#[derive(Debug)]
pub struct SiblingOrder {
    /// As the docs name it.
    pub name: &'static str,
    /// What is served first, for the docs.
    pub doc: &'static str,
    /// Why, for the docs.
    pub reason: &'static str,
}

/// Every order between sibling queues: [`Usage::share_key`].
pub static SIBLING_ORDERS: [SiblingOrder; 1] = [SiblingOrder {
    name: "guarantee-then-share",
    doc: "queues below their guarantee, then the queue with the smallest dominant share divided by its `weight`, where half of one of \
          its running units counts as well",
    reason: "what is guaranteed is there at once, and beyond guarantees the tree is max-min fair level by level (Bhattacharya et al. \
             2013); with that half few places are shared out by weight without an advantage for small or large queues",
}];

/// Returns the order of a policy.
pub fn sort_policy(policy: QueuePolicy) -> &'static SortPolicy {
    // In the order of its declaration, as a test says.
    &SORT_POLICIES[policy as usize]
}

fn by_age(_: &Waiting) -> i64 {
    0
}

/// The rank of a unit with priority is the moment at which one without would have come to stand where it stands: all grow older
/// together, so ageing never moves two against each other and needs no new keys.
fn by_priority(waiting: &Waiting) -> i64 {
    waiting.created_ms.saturating_sub(i64::from(waiting.priority) * AGEING_MS)
}

fn by_share(owner: &OwnerUse<'_>) -> OwnerRank {
    (owner.share(), 0)
}

/// What takes no share of the cluster counts by the piece.
fn by_weighted_share(owner: &OwnerUse<'_>) -> OwnerRank {
    (owner.share() / owner.weight, owner.n_running_units().saturating_mul(ONE) / owner.weight)
}

/// Returns all orders with their reasons, as Markdown.
pub fn render() -> String {
    let mut out =
        "## Inside a queue\n\n| policy | served first | choose it for |\n|---|---|---|\n".to_owned();
    for SortPolicy { policy, doc, reason, .. } in &SORT_POLICIES {
        let default = if *policy == QueuePolicy::default() { " (default)" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{policy}`{default} | {doc} | {reason} |");
    }
    out += "\n## Between sibling queues\n\n| order | served first | why |\n|---|---|---|\n";
    for SiblingOrder { name, doc, reason } in &SIBLING_ORDERS {
        let _ = writeln!(out, "| `{name}` | {doc} | {reason} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_its_entry() {
        for (policy, entry) in QueuePolicy::ALL.into_iter().zip(&SORT_POLICIES) {
            assert_eq!(sort_policy(policy).policy, policy);
            assert_eq!(entry.policy, policy);
            assert_eq!(entry.rank.is_some(), policy.is_by_owner(), "{policy}");
            assert!(render().contains(&format!("| `{policy}`")), "{policy}");
        }
    }
}
