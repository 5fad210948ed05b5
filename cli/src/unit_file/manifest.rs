//! Files of several kinds: each document says with `kind:` what it is, a unit where it does not.

use serde::Deserialize;
use serde_yaml_ng::Deserializer;

use super::{Mistake, Unit, budget, mistake, queue, reservation};
use godel_proto::v1;

/// What a document says.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// A scheduling unit.
    Unit(Box<v1::UnitSpec>),
    /// A queue.
    Queue(Box<v1::Queue>),
    /// A priority class.
    PriorityClass(v1::PriorityClass),
    /// A disruption budget.
    Budget(Box<v1::DisruptionBudget>),
    /// A reservation.
    Reservation(Box<v1::Reservation>),
}

/// The word behind `kind:`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    #[default]
    Unit,
    Queue,
    PriorityClass,
    DisruptionBudget,
    Reservation,
}

/// Whatever else stands there is read once the kind is known.
#[derive(Deserialize)]
struct Probe {
    #[serde(default)]
    kind: Kind,
}

/// Every document of a file with its position in it, from 1.
///
/// # Errors
/// The first mistake.
pub fn parse_manifest(text: &str) -> Result<Vec<(usize, Document)>, Mistake> {
    let mut documents = Vec::new();
    let each = Deserializer::from_str(text).zip(Deserializer::from_str(text));
    for (position, (probe, document)) in (1..).zip(each) {
        // A document of comments only is none.
        let Some(Probe { kind }) = Option::<Probe>::deserialize(probe).map_err(|error| mistake(&error))?
        else {
            continue;
        };
        let document = match kind {
            Kind::Unit => Unit::deserialize(document).map(|unit| Document::Unit(Box::new(unit.into_spec()))),
            Kind::Queue => {
                queue::Queue::deserialize(document).map(|queue| Document::Queue(Box::new(queue.into_api())))
            }
            Kind::PriorityClass => queue::PriorityClass::deserialize(document)
                .map(|class| Document::PriorityClass(class.into_api())),
            Kind::DisruptionBudget => budget::Budget::deserialize(document)
                .and_then(budget::Budget::into_api)
                .map(|budget| Document::Budget(Box::new(budget))),
            Kind::Reservation => reservation::Reservation::deserialize(document)
                .map(|spec| Document::Reservation(Box::new(spec.into_api()))),
        };
        documents.push((position, document.map_err(|error| mistake(&error))?));
    }
    Ok(documents)
}
