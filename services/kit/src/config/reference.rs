//! The configuration reference, generated from the sections.

use std::fmt::Write as _;

use serde_json::Value;

use super::Section;

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceEntry {
    /// Dotted path, as `server.listen`.
    pub key: String,
    /// As it stands in a file (JSON syntax; strings in quotes).
    pub default: Value,
    /// What it means.
    pub doc: String,
}

impl ReferenceEntry {
    /// The environment variable that sets it.
    pub fn env(&self) -> String {
        env_name(&self.key)
    }
}

/// The environment variable of a key: `GODEL_` and its parts in capitals, joined by `__`.
pub(super) fn env_name(key: &str) -> String {
    format!("GODEL_{}", key.replace('.', "__").to_uppercase())
}

/// Every key of `T` with its default and meaning, in the order of its declaration.
pub fn reference<T: Section>() -> Vec<ReferenceEntry> {
    let defaults = serde_json::to_value(T::default()).unwrap_or(Value::Null);
    let mut docs = Vec::new();
    T::docs("", &mut docs);
    docs.into_iter()
        .map(|(key, doc)| {
            let default = key.split('.').try_fold(&defaults, |value, part| value.get(part));
            let default = default.cloned().unwrap_or(Value::Null);
            let doc = doc.lines().map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned();
            ReferenceEntry { key, default, doc }
        })
        .collect()
}

/// [`reference()`] as a Markdown document body: one table per section.
pub fn reference_markdown<T: Section>() -> String {
    let mut text = String::new();
    let mut section = None;
    for entry in reference::<T>() {
        let (parent, name) = entry.key.rsplit_once('.').unwrap_or(("", &entry.key));
        if section.as_deref() != Some(parent) {
            let title = if parent.is_empty() { "top level".to_owned() } else { format!("`{parent}`") };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "\n## {title}\n\n| key | default | environment | meaning |\n|---|---|---|---|\n"
            );
            section = Some(parent.to_owned());
        }
        let doc = entry.doc.replace('|', "\\|");
        let _ = writeln!(text, "| `{name}` | `{}` | `{}` | {doc} |", entry.default, entry.env());
    }
    text.trim_start().to_owned()
}
