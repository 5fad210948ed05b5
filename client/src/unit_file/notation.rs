//! How messages stand in files: each message says its keys once, in the order in which a file has them, and is read and written
//! by them.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, mem,
};

use godel_base::duration;

use super::{
    read::{Fields, inside, number, scalar, unknown_word},
    yaml::YamlValue,
    yaml_out::Yaml,
};

/// A message that stands in a file, as a map with keys of its own.
pub(super) trait InFile: Clone + Default + PartialEq {
    /// Reads or writes every key. What a file does not say stays as it is.
    fn visit(&mut self, file: &mut impl Notation);
}

/// A map of a file that is read, or that is written.
pub(super) trait Notation {
    /// Whether it is read: what can be written in several ways is asked for in all of them, and written in one.
    fn is_read(&self) -> bool;

    /// Whether the key stands there, whatever its value.
    fn has(&self, key: &str) -> bool;

    /// Notes that a key is missing, unless it stands there.
    fn require(&mut self, key: &'static str);

    /// Notes a mistake in what stands at a path from here on.
    fn note(&mut self, path: &str, what: &str);

    /// A scalar, what to make of it, and how it is written.
    fn scalar<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        value: &mut Option<T>,
        read: impl FnOnce(&str) -> Result<T, E>,
        show: impl FnOnce(&T) -> Yaml,
    );

    /// Scalars, one after the other.
    fn scalars<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        values: &mut Vec<T>,
        read: impl Fn(&str) -> Result<T, E>,
        show: impl Fn(&T) -> Yaml,
    );

    /// Scalars by key.
    fn by_key<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        values: &mut BTreeMap<String, T>,
        read: impl Fn(&str, &str) -> Result<T, E>,
        show: impl Fn(&str, &T) -> Yaml,
    );

    /// A message inside, and what it is before it is read; none without a value.
    fn inside<M: InFile>(&mut self, key: &'static str, message: &mut Option<M>);

    /// The same; a message that says nothing is none.
    fn inside_unless_empty<M: InFile>(&mut self, key: &'static str, message: &mut Option<M>) {
        let says_something = |message: &M| *message != M::default();
        *message = message.take().filter(says_something);
        self.inside(key, message);
        *message = message.take().filter(says_something);
    }

    /// Messages one after the other, and what each is before it is read.
    fn messages<M: InFile>(&mut self, key: &'static str, messages: &mut Vec<M>, before: &M);

    /// Whether one text stands there, and neither a list nor a map.
    fn has_text(&self, key: &str) -> bool;

    /// Whether a list stands there.
    fn has_list(&self, key: &str) -> bool;

    /// Text, as it is written; empty is none.
    fn text(&mut self, key: &'static str, text: &mut String) {
        let mut given = Some(mem::take(text)).filter(|text| !text.is_empty());
        self.scalar(key, &mut given, own, |text| Yaml::text_of(text));
        *text = given.unwrap_or_default();
    }

    /// Text that has to be there.
    fn required_text(&mut self, key: &'static str, text: &mut String) {
        self.text(key, text);
        self.require(key);
    }

    /// Texts, one after the other.
    fn texts(&mut self, key: &'static str, texts: &mut Vec<String>) {
        self.scalars(key, texts, own, |text| Yaml::text_of(text));
    }

    /// Texts, one after the other, or one text alone.
    fn texts_or_text(&mut self, key: &'static str, texts: &mut Vec<String>) {
        if self.has_text(key) {
            let mut one = String::new();
            self.text(key, &mut one);
            texts.push(one);
        } else {
            self.texts(key, texts);
        }
    }

    /// Texts by key.
    fn texts_by_key(&mut self, key: &'static str, texts: &mut HashMap<String, String>) {
        let mut sorted: BTreeMap<_, _> = mem::take(texts).into_iter().collect();
        self.by_key(key, &mut sorted, |_, text| own(text), |_, text| Yaml::text_of(text));
        texts.extend(sorted);
    }

    /// A whole number that can be absent.
    fn optional<N: TryFrom<i128> + fmt::Display>(&mut self, key: &'static str, value: &mut Option<N>) {
        self.scalar(key, value, number, |value| Yaml::plain(value));
    }

    /// A whole number that is always written.
    fn number<N: TryFrom<i128> + fmt::Display + Copy>(&mut self, key: &'static str, value: &mut N) {
        let mut given = Some(*value);
        self.optional(key, &mut given);
        *value = given.unwrap_or(*value);
    }

    /// A whole number; 0 is none.
    fn above_zero<N: TryFrom<i128> + fmt::Display + Copy + Default + PartialEq>(
        &mut self,
        key: &'static str,
        value: &mut N,
    ) {
        let mut given = Some(*value).filter(|value| *value != N::default());
        self.optional(key, &mut given);
        *value = given.unwrap_or_default();
    }

    /// A truth value.
    fn boolean(&mut self, key: &'static str, value: &mut Option<bool>) {
        let read = |text: &str| match text {
            "true" | "True" | "TRUE" => Ok(true),
            "false" | "False" | "FALSE" => Ok(false),
            other => Err(format!("`{other}` is neither `true` nor `false`")),
        };
        self.scalar(key, value, read, |value| Yaml::plain(value));
    }

    /// A duration in milliseconds that can be absent.
    fn duration(&mut self, key: &'static str, ms: &mut Option<u64>) {
        self.scalar(key, ms, duration::parse_ms, |ms| Yaml::plain(duration::show_ms(*ms)));
    }

    /// A duration in milliseconds; 0 is none. What is too long for the field is too long for its rule as well.
    fn duration_above_zero<N: TryFrom<u64> + Into<u64> + Copy>(
        &mut self,
        key: &'static str,
        ms: &mut N,
        most: N,
    ) {
        let mut given = Some((*ms).into()).filter(|ms| *ms > 0);
        self.duration(key, &mut given);
        *ms = N::try_from(given.unwrap_or_default()).unwrap_or(most);
    }

    /// One of some words, as the API counts them; 0 is none.
    fn word(&mut self, key: &'static str, value: &mut i32, words: &[(&'static str, i32)]) {
        let word = |value: i32| words.iter().find(|(_, known)| *known == value).map(|(word, _)| *word);
        let read = |text: &str| {
            let known = words.iter().find(|(word, _)| *word == text);
            known
                .map(|(_, number)| *number)
                .ok_or_else(|| unknown_word(text, words.iter().map(|(word, _)| *word)))
        };
        let mut given = Some(*value).filter(|value| word(*value).is_some());
        self.scalar(key, &mut given, read, |value| Yaml::plain(word(*value).unwrap_or_default()));
        *value = given.unwrap_or_default();
    }
}

/// A text as it stands there.
pub(super) fn own(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

impl Notation for Fields<'_, '_> {
    fn is_read(&self) -> bool {
        true
    }

    fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    fn require(&mut self, key: &'static str) {
        if !self.has(key) {
            let path = self.path_of(key);
            self.report.add(self.at, &path, "the key is missing");
        }
    }

    fn note(&mut self, path: &str, what: &str) {
        let path = self.path_of(path);
        self.report.rule(&path, what);
    }

    fn scalar<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        value: &mut Option<T>,
        read: impl FnOnce(&str) -> Result<T, E>,
        _show: impl FnOnce(&T) -> Yaml,
    ) {
        let node = self.node(key);
        *value = node.and_then(|node| scalar(node, &self.path_of(key), self.report, read)).or(value.take());
    }

    fn scalars<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        values: &mut Vec<T>,
        read: impl Fn(&str) -> Result<T, E>,
        _show: impl Fn(&T) -> Yaml,
    ) {
        for (item, path) in self.list(key) {
            values.extend(scalar(item, &path, self.report, &read));
        }
    }

    fn by_key<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        values: &mut BTreeMap<String, T>,
        read: impl Fn(&str, &str) -> Result<T, E>,
        _show: impl Fn(&str, &T) -> Yaml,
    ) {
        values.append(&mut self.map(key, read));
    }

    fn inside<M: InFile>(&mut self, key: &'static str, message: &mut Option<M>) {
        if !self.has(key) {
            return;
        }
        let before = message.take().unwrap_or_default();
        *message = self.node(key).and_then(|node| {
            let mut read = before;
            let is_map = inside(node, self.path_of(key), self.report, |fields| read.visit(fields)).is_some();
            is_map.then_some(read)
        });
    }

    fn messages<M: InFile>(&mut self, key: &'static str, messages: &mut Vec<M>, before: &M) {
        for (node, path) in self.list(key) {
            let mut read = before.clone();
            let is_map = inside(node, path, self.report, |fields| read.visit(fields)).is_some();
            messages.extend(is_map.then_some(read));
        }
    }

    fn has_text(&self, key: &str) -> bool {
        matches!(self.value(key), Some(YamlValue::Text(_)))
    }

    fn has_list(&self, key: &str) -> bool {
        matches!(self.value(key), Some(YamlValue::List(_)))
    }
}

impl Notation for Yaml {
    fn is_read(&self) -> bool {
        false
    }

    fn has(&self, _key: &str) -> bool {
        false
    }

    fn require(&mut self, _key: &'static str) {}

    fn note(&mut self, _path: &str, _what: &str) {}

    fn scalar<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        value: &mut Option<T>,
        _read: impl FnOnce(&str) -> Result<T, E>,
        show: impl FnOnce(&T) -> Yaml,
    ) {
        self.put(key, value.as_ref().map(show));
    }

    fn scalars<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        values: &mut Vec<T>,
        _read: impl Fn(&str) -> Result<T, E>,
        show: impl Fn(&T) -> Yaml,
    ) {
        self.some(key, Yaml::List(values.iter().map(show).collect()));
    }

    fn by_key<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        values: &mut BTreeMap<String, T>,
        _read: impl Fn(&str, &str) -> Result<T, E>,
        show: impl Fn(&str, &T) -> Yaml,
    ) {
        let entries = values.iter().map(|(name, value)| (name.clone(), show(name, value)));
        self.some(key, Yaml::Map(entries.collect()));
    }

    fn inside<M: InFile>(&mut self, key: &'static str, message: &mut Option<M>) {
        self.put(key, message.as_mut().map(written));
    }

    fn messages<M: InFile>(&mut self, key: &'static str, messages: &mut Vec<M>, _before: &M) {
        self.some(key, Yaml::List(messages.iter_mut().map(written).collect()));
    }

    fn has_text(&self, _key: &str) -> bool {
        false
    }

    fn has_list(&self, _key: &str) -> bool {
        false
    }
}

/// A message as a map of a file.
pub(super) fn written<M: InFile>(message: &mut M) -> Yaml {
    let mut map = Yaml::map();
    message.visit(&mut map);
    map
}
