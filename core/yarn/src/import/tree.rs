//! The tree of queues that a configuration names, and how siblings share what is above them.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::resources::{CPU, MEMORY};
use godel_domain::{
    names::QUEUE_DEPTH_MAX,
    queue_spec::{WEIGHT_DEFAULT, WEIGHT_MAX},
};

use crate::{
    capacity::{Decimal, QueueAmounts, QueueCapacity, portion, weights},
    configuration::HadoopConfiguration,
    properties::PREFIX,
};

/// Largest number of queues of one import.
const N_QUEUES_MAX: usize = 10_000;
/// How far percentages of siblings may be from 100 together, as in YARN: half a thousandth of all.
const TOLERANCE: u64 = 50_000;

/// A queue as YARN names it.
#[derive(Clone, Debug)]
pub(super) struct YarnQueue {
    /// `root.prod.etl`.
    pub(super) path: String,
    /// In godel; `None`: `root`, where its children stand at the top.
    pub(super) name: Option<String>,
    /// Indices of those below it.
    pub(super) children: Vec<usize>,
}

/// All queues, each after the one above it; `root` is the first.
pub(super) struct YarnQueues {
    pub(super) queues: Vec<YarnQueue>,
    by_path: BTreeMap<String, usize>,
    pub(super) mistakes: Vec<String>,
}

impl YarnQueues {
    pub(super) fn read(configuration: &HadoopConfiguration, under: Option<&str>) -> Self {
        let root =
            YarnQueue { path: "root".to_owned(), name: under.map(str::to_owned), children: Vec::new() };
        let by_path = [(root.path.clone(), 0)].into();
        let mut tree = Self { queues: vec![root], by_path, mistakes: Vec::new() };
        let mut taken = BTreeSet::new();
        let mut idx = 0;
        while let Some(queue) = tree.queues.get(idx) {
            let (path, name) = (queue.path.clone(), queue.name.clone());
            let property = format!("{PREFIX}{path}.queues");
            let list = configuration.get(&property).unwrap_or_default();
            for child in list.split(',').map(str::trim).filter(|child| !child.is_empty()) {
                if path.matches('.').count() >= QUEUE_DEPTH_MAX || tree.queues.len() >= N_QUEUES_MAX {
                    tree.mistakes.push(format!(
                        "{property}: godel keeps at most {QUEUE_DEPTH_MAX} levels, and imports {N_QUEUES_MAX} queues at once"
                    ));
                    break;
                }
                let label = label(child);
                let name = name.as_ref().map_or_else(|| label.clone(), |above| format!("{above}.{label}"));
                if !taken.insert(name.clone()) {
                    tree.mistakes.push(format!(
                        "{property}: `{child}` is called `{name}` in godel, as another queue is"
                    ));
                    continue;
                }
                let new = tree.queues.len();
                tree.queues[idx].children.push(new);
                let path = format!("{path}.{child}");
                tree.by_path.insert(path.clone(), new);
                tree.queues.push(YarnQueue { path, name: Some(name), children: Vec::new() });
            }
            idx += 1;
        }
        tree
    }

    /// The queue that the rest of a property's name begins with, the longest path that fits, and what follows.
    pub(super) fn split<'n>(&self, rest: &'n str) -> Option<(&YarnQueue, &'n str)> {
        let mut ends = rest.rmatch_indices('.').map(|(end, _)| end);
        ends.find_map(|end| Some((&self.queues[*self.by_path.get(&rest[..end])?], &rest[end + 1..])))
    }
}

/// A name of YARN as a label of godel: lower case, `-` for what labels do not have.
pub(crate) fn label(name: &str) -> String {
    let as_allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let label: String = name.chars().map(as_allowed).collect();
    label.trim_matches('-').to_owned()
}

/// What siblings are guaranteed of `above`, and what they weigh. A queue without a capacity has none.
///
/// # Errors
/// What YARN refuses too.
pub(super) fn shares(
    read: &[Option<QueueCapacity>],
    above: &QueueAmounts,
) -> Result<Vec<(QueueAmounts, u32)>, String> {
    let (mut percents, mut weighed, mut absolute) = (0usize, 0usize, 0usize);
    for capacity in read.iter().flatten() {
        match capacity {
            QueueCapacity::Percent(Decimal(0)) => {}
            QueueCapacity::Percent(_) => percents += 1,
            QueueCapacity::Weight(_) => weighed += 1,
            QueueCapacity::Absolute(_) => absolute += 1,
        }
    }
    if [percents, weighed, absolute].iter().filter(|n| **n > 0).count() > 1 {
        return Err(
            "percentages, weights and amounts stand beside one another; YARN takes one kind among siblings"
                .to_owned(),
        );
    }
    let parts: Vec<u64> = read.iter().map(|capacity| part(capacity.as_ref())).collect();
    let sum = parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
    if absolute == 0 && weighed == 0 && !read.is_empty() && sum.abs_diff(Decimal::HUNDRED.0) > TOLERANCE {
        return Err(format!(
            "the capacities of its queues are {} per cent together, not 100",
            shown(Decimal(sum))
        ));
    }
    // Within the tolerance they may be more than all.
    let whole = Decimal(if weighed > 0 { sum } else { sum.max(Decimal::HUNDRED.0) });
    let weights = weights(&parts, WEIGHT_MAX);
    let share = |(idx, capacity): (usize, &Option<QueueCapacity>)| {
        let min = match capacity {
            Some(QueueCapacity::Absolute(amounts)) => amounts.clone(),
            Some(QueueCapacity::Percent(part) | QueueCapacity::Weight(part)) => portion(above, *part, whole),
            None => QueueAmounts::new(),
        };
        (min, weights.get(idx).copied().unwrap_or(WEIGHT_DEFAULT))
    };
    Ok(read.iter().enumerate().map(share).collect())
}

/// What a capacity counts beside those of its siblings; of amounts the memory, or the CPUs if there is none.
fn part(capacity: Option<&QueueCapacity>) -> u64 {
    match capacity {
        None => 0,
        Some(QueueCapacity::Percent(part) | QueueCapacity::Weight(part)) => part.0,
        Some(QueueCapacity::Absolute(amounts)) => {
            let amount = amounts.get(MEMORY).map(|bytes| bytes >> 20).or_else(|| amounts.get(CPU).copied());
            amount.and_then(|amount| u64::try_from(amount).ok()).unwrap_or(0)
        }
    }
}

fn shown(number: Decimal) -> String {
    let text = format!("{}.{:06}", number.0 / 1_000_000, number.0 % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
