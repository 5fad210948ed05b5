//! Which resource stands in which column of a row.

use std::collections::BTreeSet;

use godel_base::resources::N_NAMES_MAX;

use super::{QueueMaximum, ResourceIdx};

/// Most resources told apart: what a cluster may have, and as many kinds of devices. One that comes later is not
/// counted, and no queue may name it.
pub(super) const N_RESOURCES_MAX: usize = 2 * N_NAMES_MAX;
/// What follows the name of a resource where it is that of what application masters take. No resource has a blank in its name.
const OF_MASTERS: &str = " of application masters";

/// The resources that are known, in the order in which they were named. The first are running units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    names: Vec<String>,
    /// By column, that of the same resource as far as application masters take it.
    of_masters: Vec<Option<ResourceIdx>>,
    n_of_masters: usize,
}

impl Columns {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The column of a resource. There are few: looking through them beats hashing.
    pub(super) fn find(&self, name: &str) -> Option<ResourceIdx> {
        let at = self.names.iter().skip(1).position(|known| known == name)?;
        u8::try_from(at + 1).ok().map(ResourceIdx)
    }

    /// The column of what application masters take of a resource.
    pub(super) fn of_masters(&self, resource: ResourceIdx) -> Option<ResourceIdx> {
        self.of_masters.get(resource.idx()).copied().flatten()
    }

    /// Application masters take it beside the same amount of the resource itself.
    pub(super) fn is_of_masters(&self, idx: usize) -> bool {
        self.n_of_masters > 0 && self.of_masters.iter().flatten().any(|column| column.idx() == idx)
    }

    pub(super) fn push(&mut self, name: &str) -> ResourceIdx {
        self.names.push(name.to_owned());
        self.of_masters.push(None);
        ResourceIdx(u8::try_from(self.names.len() - 1).expect("names are fewer than 256"))
    }

    /// One more column, for what application masters take of a resource.
    pub(super) fn push_of_masters(&mut self, resource: ResourceIdx) -> ResourceIdx {
        let column = self.push(&format!("{}{OF_MASTERS}", self.name(resource)));
        self.n_of_masters += 1;
        self.of_masters[resource.idx()] = Some(column);
        column
    }

    /// As shown: `cpu`, or `running units`.
    pub(crate) fn name(&self, resource: ResourceIdx) -> &str {
        self.names.get(resource.idx()).map_or("?", String::as_str)
    }

    /// Whether no further resource is told apart.
    pub(super) fn is_full(&self) -> bool {
        self.n_resources() >= N_RESOURCES_MAX
    }

    /// Whether a resource is known, or there is place for it beside others that are new.
    pub(crate) fn has_place_for<'a>(&self, name: &'a str, new: &mut BTreeSet<&'a str>) -> bool {
        self.find(name).is_some() || new.contains(name) || {
            new.insert(name);
            self.n_resources() + new.len() <= N_RESOURCES_MAX
        }
    }

    /// Columns but for those of application masters: there are no more of these.
    fn n_resources(&self) -> usize {
        self.names.len() - self.n_of_masters
    }

    /// The resource of a maximum, and whether only what application masters take of it counts.
    pub(crate) fn resource_of(&self, limit: QueueMaximum) -> (&str, bool) {
        let name = self.name(limit.resource);
        name.strip_suffix(OF_MASTERS).map_or((name, false), |name| (name, true))
    }

    /// A maximum that keeps no room for those that wait, and for which nobody has to leave: of an owner, or of masters.
    pub(crate) fn is_quiet(&self, limit: QueueMaximum) -> bool {
        limit.owner.is_some() || self.resource_of(limit).1
    }

    /// What there is some of in a row, by name: running units apart, and of each resource once.
    pub(super) fn named<'a>(&'a self, row: &'a [i128]) -> impl Iterator<Item = (&'a str, i128)> + 'a {
        let amounts = self.names.iter().map(String::as_str).zip(row.iter().copied()).skip(1);
        amounts.filter(|(name, amount)| *amount > 0 && !name.ends_with(OF_MASTERS))
    }
}
