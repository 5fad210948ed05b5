//! The queues of a `capacity-scheduler.xml` as queues of godel.
//!
//! Percentages and weights become amounts of what YARN's queues have in all, once: a guarantee and a maximum of godel do not
//! follow the size of the cluster. Siblings weigh as their capacities do. `docs/yarn.md` says the same in a table.

mod keys;
mod tree;

use std::collections::BTreeMap;

use godel_base::resources::MEMORY;
use godel_domain::{
    names,
    queue_spec::{DEFAULT_QUEUE, QueueSpec},
};

pub(crate) use self::tree::label;
use self::tree::{YarnQueue, YarnQueues};
use crate::{
    access::AccessList,
    capacity::{Decimal, QueueAmounts, QueueCapacity, portion, show},
    configuration::HadoopConfiguration,
    findings::{Fidelity, PropertyFinding},
    properties::PREFIX,
};

/// The calculator that counts more than memory.
const DOMINANT: &str = "DominantResourceCalculator";
/// Owner of a queue to which nobody may submit: a list without entries would let everybody.
const NOBODY: &str = "nobody";

/// What an import depends on besides the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Path of the queue that stands for `root`; `None`: the queues below `root` are queues at the top.
    pub under: Option<String>,
    /// What `root` has: 100 per cent, by resource.
    pub total: BTreeMap<String, i64>,
}

/// Queues, and what became of each property that they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueImport {
    /// Every queue, those above others first. Empty if there are mistakes.
    pub queues: Vec<QueueSpec>,
    /// Every property of the CapacityScheduler in order of name.
    pub findings: Vec<PropertyFinding>,
    /// What YARN or godel would refuse, one sentence each.
    pub mistakes: Vec<String>,
}

impl QueueImport {
    /// Names in the lists of queues also those who do not prove that they have the names: `yarn-simple:NAME`.
    #[must_use]
    pub fn with_simple_users(mut self) -> Self {
        for queue in &mut self.queues {
            let named = queue.submit_owners.iter().filter(|owner| *owner != NOBODY);
            let simple: Vec<String> = named.map(|owner| names::yarn_simple(owner)).collect();
            queue.submit_owners.extend(simple);
            let weights: Vec<(String, u32)> = queue
                .owner_weights
                .iter()
                .map(|(owner, weight)| (names::yarn_simple(owner), *weight))
                .collect();
            queue.owner_weights.extend(weights);
        }
        self
    }
}

/// The queues that a configuration describes.
///
/// Costs follow the number of properties and queues.
#[must_use]
pub fn import_queues(configuration: &HadoopConfiguration, options: &ImportOptions) -> QueueImport {
    let mut tree = YarnQueues::read(configuration, options.under.as_deref());
    let mut import = QueueImport {
        queues: Vec::new(),
        findings: Vec::new(),
        mistakes: std::mem::take(&mut tree.mistakes),
    };
    if tree.queues.len() < 2 && import.mistakes.is_empty() {
        import.mistakes.push(format!("{PREFIX}root.queues names no queues: there is nothing to import"));
    }
    let mut work = ImportWork {
        configuration,
        by_name: BTreeMap::new(),
        total: counted(configuration, options.total.clone()),
        import,
    };
    let given: Vec<QueueGiven> = tree.queues.iter().map(|_| QueueGiven::default()).collect();
    let given = work.share_out(&tree, given);
    for (queue, given) in tree.queues.iter().zip(&given) {
        work.put(queue, given);
    }
    keys::report(&mut work, &tree);
    let mut import = work.import;
    import.findings.sort();
    if !import.mistakes.is_empty() {
        import.queues.clear();
    }
    import
}

/// What is shared out: only memory, unless the configuration counts all resources.
fn counted(configuration: &HadoopConfiguration, mut amounts: QueueAmounts) -> QueueAmounts {
    let calculator = configuration.get(&format!("{PREFIX}resource-calculator")).unwrap_or_default();
    amounts.retain(|name, _| name == MEMORY || calculator.ends_with(DOMINANT));
    amounts
}

/// What one queue is given.
#[derive(Clone, Debug, Default)]
struct QueueGiven {
    min: QueueAmounts,
    /// Most of everything, whether from here or from above.
    max: QueueAmounts,
    /// Those that this queue limits itself.
    own_max: QueueAmounts,
    weight: u32,
    /// Whose submissions are taken.
    access: Option<AccessList>,
}

struct ImportWork<'a> {
    configuration: &'a HadoopConfiguration,
    /// Where queues stand in the import.
    by_name: BTreeMap<String, usize>,
    total: QueueAmounts,
    import: QueueImport,
}

impl ImportWork<'_> {
    fn get(&self, path: &str, key: &str) -> Option<String> {
        self.configuration.get(&format!("{PREFIX}{path}.{key}"))
    }

    /// The queue of godel that a queue of YARN has become.
    fn spec(&self, queue: &YarnQueue) -> Option<&QueueSpec> {
        self.import.queues.get(*self.by_name.get(queue.name.as_deref()?)?)
    }

    fn mistake(&mut self, path: &str, key: &str, what: impl std::fmt::Display) {
        self.import.mistakes.push(format!("{PREFIX}{path}.{key}: {what}"));
    }

    fn note(&mut self, path: &str, key: &str, value: &str, fidelity: Fidelity, effect: impl Into<String>) {
        let property = format!("{PREFIX}{path}.{key}");
        self.import.findings.push(PropertyFinding {
            property,
            value: value.to_owned(),
            fidelity,
            effect: effect.into(),
        });
    }

    /// From `root` downwards, each queue after the one above it.
    fn share_out(&mut self, tree: &YarnQueues, mut given: Vec<QueueGiven>) -> Vec<QueueGiven> {
        let is_asked = self.configuration.is_true("yarn.acl.enable", false);
        for (idx, queue) in tree.queues.iter().enumerate() {
            if idx == 0 {
                let access =
                    is_asked.then(|| self.access(&queue.path, &AccessList::nobody(), &AccessList::Everyone));
                let (min, max) = (self.total.clone(), self.total.clone());
                given[0] = QueueGiven { min, max, own_max: QueueAmounts::new(), weight: 1, access };
                self.root_capacity();
            }
            let above = given[idx].clone();
            let shares = self.capacities(tree, queue, &above);
            for (child, (min, weight)) in queue.children.iter().zip(shares) {
                let path = &tree.queues[*child].path;
                let own_max = self.maximum(path, &above.max);
                let mut max = above.max.clone();
                max.extend(own_max.clone());
                for (name, amount) in &min {
                    if max.get(name).is_some_and(|max| max < amount) {
                        self.mistake(
                            path,
                            "capacity",
                            format!("it is above its maximum-capacity of {}", show(&max)),
                        );
                    }
                }
                let access =
                    above.access.as_ref().map(|above| self.access(path, above, &AccessList::nobody()));
                given[*child] = QueueGiven { min, max, own_max, weight, access };
            }
        }
        given
    }

    fn root_capacity(&mut self) {
        if let Some(text) = self.get("root", "capacity")
            && QueueCapacity::parse(&text) != Ok(QueueCapacity::Percent(Decimal::HUNDRED))
            && !text.starts_with('[')
        {
            self.mistake("root", "capacity", format!("`{text}`: the capacity of root is 100"));
        }
    }

    /// Whoever may submit here or administer, or may above.
    fn access(&self, path: &str, above: &AccessList, default: &AccessList) -> AccessList {
        // A space at the start has a meaning: it leaves out the users.
        let list = |key: &str| {
            let text = self.configuration.get_untrimmed(&format!("{PREFIX}{path}.{key}"));
            text.map_or_else(|| default.clone(), |text| AccessList::parse(&text))
        };
        list("acl_submit_applications").union(&list("acl_administer_queue")).union(above)
    }

    /// What the children of a queue are guaranteed, and what they weigh.
    fn capacities(
        &mut self,
        tree: &YarnQueues,
        queue: &YarnQueue,
        above: &QueueGiven,
    ) -> Vec<(QueueAmounts, u32)> {
        let mut read = Vec::with_capacity(queue.children.len());
        for child in &queue.children {
            let path = &tree.queues[*child].path;
            let capacity = match self.get(path, "capacity") {
                None => None,
                Some(text) => match QueueCapacity::parse(&text) {
                    Ok(QueueCapacity::Absolute(amounts)) => {
                        Some(QueueCapacity::Absolute(counted(self.configuration, amounts)))
                    }
                    Ok(capacity) => Some(capacity),
                    Err(what) => {
                        self.mistake(path, "capacity", what);
                        None
                    }
                },
            };
            read.push(capacity);
        }
        match tree::shares(&read, &above.min) {
            Ok(shares) => {
                if queue.name.is_some() {
                    self.within(&queue.path, &shares, above);
                }
                shares
            }
            Err(what) => {
                let may_be_nothing = self.get(&queue.path, "allow-zero-capacity-sum");
                let is_nothing = read
                    .iter()
                    .all(|capacity| matches!(capacity, None | Some(QueueCapacity::Percent(Decimal(0)))));
                if !(is_nothing && may_be_nothing.is_some_and(|text| text == "true")) {
                    self.mistake(&queue.path, "queues", what);
                }
                read.iter().map(|_| (QueueAmounts::new(), 1)).collect()
            }
        }
    }

    /// Amounts of children that are written as they are may be more than the queue above has.
    fn within(&mut self, path: &str, shares: &[(QueueAmounts, u32)], above: &QueueGiven) {
        for (name, amount) in above.min.iter().chain(&above.own_max) {
            let of = |(min, _): &(QueueAmounts, u32)| i128::from(min.get(name).copied().unwrap_or(0));
            let sum: i128 = shares.iter().map(of).sum();
            if sum > i128::from(*amount) {
                let has = show(&[(name.clone(), *amount)].into());
                self.mistake(path, "queues", format!("the queues below it are given more than its {has}"));
            }
        }
    }

    /// What a queue limits itself.
    fn maximum(&mut self, path: &str, above: &QueueAmounts) -> QueueAmounts {
        let Some(text) =
            self.get(path, "maximum-capacity").filter(|text| !matches!(text.as_str(), "" | "-1" | "-1.0"))
        else {
            return QueueAmounts::new();
        };
        match QueueCapacity::parse(&text) {
            Ok(QueueCapacity::Percent(Decimal::HUNDRED)) => QueueAmounts::new(),
            Ok(QueueCapacity::Percent(part)) => portion(above, part, Decimal::HUNDRED),
            Ok(QueueCapacity::Absolute(amounts)) => counted(self.configuration, amounts),
            Ok(QueueCapacity::Weight(_)) => {
                self.mistake(path, "maximum-capacity", format!("`{text}`: a maximum is no weight"));
                QueueAmounts::new()
            }
            Err(what) => {
                self.mistake(path, "maximum-capacity", what);
                QueueAmounts::new()
            }
        }
    }

    /// The queue as godel keeps it. `root` is one only below another path.
    fn put(&mut self, queue: &YarnQueue, given: &QueueGiven) {
        let Some(name) = &queue.name else { return };
        if let Err(wrong) = names::queue(name) {
            self.import
                .mistakes
                .push(format!("queue {} would be called `{name}` in godel: {wrong}", queue.path));
            return;
        }
        if name == DEFAULT_QUEUE && !queue.children.is_empty() {
            let what = "has queues below it, and godel's `default` cannot: import below a queue of its own (`--under yarn`)";
            self.import.mistakes.push(format!("queue {} {what}", queue.path));
        }
        let non_zero = |amounts: &QueueAmounts| {
            amounts.iter().filter(|(_, n)| **n > 0).map(|(r, n)| (r.clone(), *n)).collect()
        };
        let mut spec = QueueSpec::new(name.clone());
        spec.min = non_zero(&given.min);
        spec.max = given.own_max.clone();
        spec.weight = given.weight;
        if queue.children.is_empty() {
            spec.max_per_owner = keys::max_per_owner(self, &queue.path, &spec.min);
            if let Some(share) = keys::am_share(self, &queue.path) {
                spec.am_share_milli = share;
                if spec.max.is_empty() {
                    spec.max = non_zero(&given.max);
                }
            }
            spec.policy = keys::policy(self, &queue.path);
            spec.owner_weights = keys::owner_weights(self, &queue.path, spec.policy);
            spec.submit_owners = match &given.access {
                None | Some(AccessList::Everyone) => Vec::new(),
                Some(AccessList::Only { users, .. }) if users.is_empty() => vec![NOBODY.to_owned()],
                Some(AccessList::Only { users, .. }) => users.iter().cloned().collect(),
            };
        }
        self.by_name.insert(name.clone(), self.import.queues.len());
        self.import.queues.push(spec);
    }
}

#[cfg(test)]
mod tests;
