//! Units that change their queue while some of them is on nodes: whether the queue has room for that, and what else rests on it.

use std::{fmt, sync::Arc};

use godel_base::{
    ids::{Revision, UnitId},
    quantity,
};
use godel_domain::queue_spec::QueueSpec;
use godel_queueing::{MoveLack, QueueIdx, QueueTree};

use super::{queues::Queueing, unit_entry::UnitEntry, units::Units};

/// A queue has no room for what runs of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoomToMove {
    /// The unit, as `namespace/name`.
    pub unit: String,
    /// The queue whose maximum it is: the one that the unit was to have, or one above it.
    pub queue: String,
    /// The owner of the unit, if the maximum is what the queue lets one owner take.
    pub owner: Option<Box<str>>,
    /// Of what.
    pub resource: String,
    /// Only what application masters take of it counts.
    pub of_masters: bool,
    /// What runs of the unit takes.
    pub asked: i64,
    /// What is used there, with what schedulers have in hand.
    pub used: i64,
    /// The maximum.
    pub max: i64,
}

impl fmt::Display for NoRoomToMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, queue, owner, resource, of_masters, asked, used, max } = self;
        let shown = |amount: i64| quantity::show_queued(resource, amount);
        let (asked, used, max) = (shown(*asked), shown(*used), shown(*max));
        if let Some(owner) = owner {
            return write!(
                f,
                "what runs of unit {unit} takes {asked} of {resource}, and owner `{owner}` uses {used} of at most {max} that one \
                 owner may take in queue {queue}: wait until some of that is free, raise max_per_owner of {queue}, or scale \
                 the unit down first"
            );
        }
        if *of_masters {
            return write!(
                f,
                "the application master of unit {unit} takes {asked} of {resource}, and those in queue {queue} use {used} of \
                 at most {max}: wait until one of them ends, or raise am_share of {queue}"
            );
        }
        write!(
            f,
            "what runs of unit {unit} takes {asked} of {resource}, and queue {queue} uses {used} of at most {max}: wait until \
             some of that is free, raise the maximum of {queue}, or scale the unit down first"
        )
    }
}

/// A queue that a unit comes to count in, with a maximum: bindings judged before the move do not count the unit there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnteredQueue {
    /// Its record, which is written again as it is, so that what rests on its revision is judged again.
    pub spec: Arc<QueueSpec>,
    /// Revision of its record: a precondition.
    pub revision: Revision,
}

impl Queueing {
    /// Whether all that is on nodes of a unit may count in another queue, and the queues with a maximum that it enters by that.
    /// What schedulers have in hand counts as used.
    ///
    /// # Errors
    /// The first maximum that has no room.
    pub(super) fn enter(
        &self,
        unit: UnitId,
        to: &str,
        units: &Units,
    ) -> Result<Vec<EnteredQueue>, NoRoomToMove> {
        let (quota, entry) = (self.quota(), units.get(unit));
        let Some((entry, to)) = entry.zip(quota.tree().find(to)) else { return Ok(Vec::new()) };
        let from = entry.account.queue;
        if let Some(lack) =
            quota.usage().lacking_to_move(entry.account.payer, to, &entry.live_needs(), quota.tree())
        {
            let MoveLack { queue, owner, resource, of_masters, asked, used, max } = lack;
            let (unit, queue) = (named(entry), quota.tree().path(queue).to_owned());
            let owner = owner.map(String::into_boxed_str);
            return Err(NoRoomToMove { unit, queue, owner, resource, of_masters, asked, used, max });
        }
        Ok(entered(quota.tree(), from, to).filter_map(|level| self.with_maximum(level)).collect())
    }

    fn with_maximum(&self, queue: QueueIdx) -> Option<EnteredQueue> {
        let spec = self.quota().tree().record(queue)?;
        let has_maximum = spec.has_limits();
        let revision = self.records.queues.get(&spec.name)?.revision;
        has_maximum.then(|| EnteredQueue { spec: Arc::clone(spec), revision })
    }
}

/// A queue and those above it that another one is not below.
fn entered(tree: &QueueTree, from: QueueIdx, to: QueueIdx) -> impl Iterator<Item = QueueIdx> + '_ {
    tree.upwards(to).filter(move |level| !tree.upwards(from).any(|other| other == *level))
}

fn named(entry: &UnitEntry) -> String {
    format!("{}/{}", entry.record.spec.namespace, entry.record.spec.name)
}
