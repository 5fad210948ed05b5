//! Trees of text, lists and maps, written as YAML that [`super::yaml`] reads back, and every other reader of YAML takes the
//! same way: text that looks like a number or like `true` stands in quotes.

use std::fmt;

/// A value to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Yaml {
    /// On one line, as it is to stand there.
    Line(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
}

impl Yaml {
    pub(super) fn map() -> Self {
        Self::Map(Vec::new())
    }

    /// A number, a word of ours, a quantity or a duration: nothing that needs quotes.
    pub(super) fn plain(value: impl fmt::Display) -> Self {
        Self::Line(value.to_string())
    }

    /// Text of somebody.
    pub(super) fn text_of(text: &str) -> Self {
        Self::Line(quoted(text))
    }

    /// Adds a key to a map, if there is a value.
    pub(super) fn put(&mut self, key: &str, value: Option<Self>) {
        if let (Self::Map(entries), Some(value)) = (self, value) {
            entries.push((key.to_owned(), value));
        }
    }

    /// Adds a map or a list that is not empty.
    pub(super) fn some(&mut self, key: &str, value: Self) {
        self.put(key, Some(value).filter(|value| !value.is_empty()));
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Line(_) => false,
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
        }
    }

    /// The value as a whole document.
    pub(super) fn document(&self) -> String {
        let mut out = String::new();
        self.write(0, &mut out);
        out
    }

    fn write(&self, depth: usize, out: &mut String) {
        let margin = "  ".repeat(depth);
        match self {
            Self::Line(text) => out.push_str(&format!("{margin}{text}\n")),
            Self::Map(entries) => {
                for (key, value) in entries {
                    let key = quoted(key);
                    match value {
                        Self::Line(text) => out.push_str(&format!("{margin}{key}: {text}\n")),
                        Self::List(items) if items.is_empty() => {
                            out.push_str(&format!("{margin}{key}: []\n"))
                        }
                        Self::Map(below) if below.is_empty() => {
                            out.push_str(&format!("{margin}{key}: {{}}\n"))
                        }
                        below => {
                            out.push_str(&format!("{margin}{key}:\n"));
                            below.write(depth + 1, out);
                        }
                    }
                }
            }
            Self::List(items) => {
                for item in items {
                    let mut text = String::new();
                    item.write(depth + 1, &mut text);
                    // The dash takes the place of the margin of the first line.
                    let first = text.get(margin.len() + 2..).unwrap_or_default();
                    out.push_str(&format!("{margin}- {first}"));
                }
            }
        }
    }
}

/// Text as it may stand in a block: plain where no reader takes it for something else, else in quotes.
fn quoted(text: &str) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "_./-+=@% ,()<>".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_');
    if begins && !text.ends_with(' ') && text.chars().all(is_inner) && !is_word_of_yaml(text) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // What YAML does not take as it is, and what nobody would see.
            c if c.is_control() || is_unseen(c) => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn is_unseen(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Words that some reader of YAML takes for a truth value, for nothing, or for a number.
fn is_word_of_yaml(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    matches!(
        lower.as_str(),
        "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "nan" | "inf"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::unit_file::yaml::{Documents, YamlValue};

    proptest! {
        /// Whatever somebody has put into a label: a reader finds it as it was.
        #[test]
        fn text_is_read_back_as_it_was(texts in prop::collection::vec(any::<String>(), 0..4)) {
            let mut tree = Yaml::map();
            tree.some("texts", Yaml::List(texts.iter().map(|text| Yaml::text_of(text)).collect()));
            for (idx, text) in texts.iter().enumerate() {
                tree.put(&format!("{text}{idx}"), Some(Yaml::text_of(text)));
            }
            tree.put("z", Some(Yaml::plain(1)));
            let written = tree.document();
            let read = Documents::of(&written).next().unwrap();
            prop_assert!(read.mistakes.is_empty(), "{written}{:?}", read.mistakes);
            let YamlValue::Map(entries) = read.root.unwrap().value else { panic!("{written}") };
            let entries: Vec<_> = entries.iter().filter(|entry| entry.key != "texts" && entry.key != "z").collect();
            prop_assert_eq!(entries.len(), texts.len());
            for (idx, (entry, text)) in entries.iter().zip(&texts).enumerate() {
                prop_assert_eq!(&entry.key, &format!("{text}{idx}"));
                prop_assert_eq!(&entry.value.value, &YamlValue::Text(text.clone()));
            }
        }
    }

    #[test]
    fn text_stands_in_quotes_where_a_reader_could_mistake_it() {
        for (text, expected) in [
            ("web", "web"),
            ("shop.prod/web-1", "shop.prod/web-1"),
            ("1.10", "\"1.10\""),
            ("True", "\"True\""),
            ("null", "\"null\""),
            ("", "\"\""),
            ("a: b", "\"a: b\""),
            ("!canary", "\"!canary\""),
            ("a\nb", "\"a\\nb\""),
            ("app = db, tier in (a, b)", "app = db, tier in (a, b)"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
