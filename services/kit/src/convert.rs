//! Wire ↔ domain. [`from_proto`] validates once and names the field; [`to_proto`] takes the domain type apart
//! without `..`, so that a new field breaks the build here.

pub mod from_proto;
pub mod to_proto;

#[cfg(test)]
mod tests;

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

impl From<BadField> for tonic::Status {
    fn from(bad: BadField) -> Self {
        crate::status::invalid_argument([bad])
    }
}
