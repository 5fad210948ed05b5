//! Messages of the API to domain types and back, and encoded operations to what they change.
//!
//! [`from_proto`] validates once and names the field; [`to_proto`] takes the domain type apart without `..`, so that a new
//! field breaks the build here. The store and every service read records by these functions alone.
//!
//! # Modules
//!
//! - `from_proto`: messages to domain types; errors name the path of the invalid field.
//! - `hidden`: answers without the names of units that their reader may not see.
//! - `ops`: encoded operations and the columns of running units.
//! - `records`: how the records of each kind are read, written and checked.
//! - `to_proto`: domain types to messages.
//! - `zones`: zones of nodes, what is asked of them and what is given of them, and what is known of devices besides.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

pub mod from_proto;
pub mod hidden;
pub mod ops;
mod records;
pub mod to_proto;
mod zones;

#[cfg(test)]
mod tests;

/// Largest transaction, all its operations and preconditions together. A message has 1 MiB at most: what is
/// left of it frames a request, a commit on a watch or a record in a list, which are a lease's name of 253
/// bytes, a page token with a key of as many, and a few numbers.
pub const TXN_BYTES_MAX: usize = (1 << 20) - 1024;

/// A field that cannot be what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {description}")]
pub struct BadField {
    /// Path of the field, as `task_groups[0].replicas`.
    pub path: String,
    /// What is wrong with it.
    pub description: String,
}

impl BadField {
    /// A wrong field.
    pub fn new(path: impl Into<String>, description: impl Into<String>) -> Self {
        Self { path: path.into(), description: description.into() }
    }

    /// The same field seen from the message that contains it: `parent.path`.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
        self.path = if self.path.is_empty() { parent.to_owned() } else { format!("{parent}.{}", self.path) };
        self
    }
}

impl From<BadField> for Status {
    fn from(bad: BadField) -> Self {
        invalid_argument([bad])
    }
}

/// INVALID_ARGUMENT that names every wrong field at once.
pub fn invalid_argument(violations: impl IntoIterator<Item = BadField>) -> Status {
    let violations: Vec<FieldViolation> =
        violations.into_iter().map(|bad| FieldViolation::new(bad.path, bad.description)).collect();
    let message = match violations.as_slice() {
        [] => "invalid argument".to_owned(),
        [one] => format!("{}: {}", one.field, one.description),
        [first, rest @ ..] => format!("{}: {} (and {} more)", first.field, first.description, rest.len()),
    };
    Status::with_error_details(Code::InvalidArgument, message, ErrorDetails::with_bad_request(violations))
}
