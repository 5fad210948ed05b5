//! Reads maps key by key: what is wrong is collected with its place and the user's own keys, and reading goes on.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use godel_base::{quantity, resources::MEMORY};

use super::{
    Mistake, nearest,
    yaml::{Entry, Node, Place, YamlValue},
};

/// What is wrong with a document, and where its values stand.
#[derive(Debug, Default)]
pub(super) struct MistakeReport {
    mistakes: Vec<(String, Mistake)>,
    places: HashMap<String, Place>,
    start: Place,
    /// Every key that was asked for, by its path.
    asked: Vec<String>,
}

impl MistakeReport {
    pub(super) fn new(start: Place) -> Self {
        Self { start, ..Self::default() }
    }

    /// Notes a mistake in what stands at `path`.
    pub(super) fn add(&mut self, at: Place, path: &str, message: impl fmt::Display) {
        let message =
            if path.is_empty() { message.to_string() } else { format!("{}: {message}", shown(path)) };
        self.mistakes.push((path.to_owned(), at.mistake(message)));
    }

    /// Notes what a rule says of `path`, unless something else is wrong with that already. `description` is said where
    /// the value stands, or what is nearest above it.
    pub(super) fn rule(&mut self, path: &str, description: &str) {
        let path = self.as_written(path);
        let is_known = |(known, _): &(String, Mistake)| {
            *known == path
                || known
                    .strip_prefix(path.as_str())
                    .is_some_and(|rest| path.is_empty() || rest.starts_with(['.', '[']))
        };
        if self.mistakes.iter().any(is_known) {
            return;
        }
        let at = self.nearest_place(&path);
        self.add(at, &path, description);
    }

    /// Rules name the first device request as `devices[0]`; a file may say it as `gpu`, or as `devices` without a list.
    fn as_written(&self, path: &str) -> String {
        const FIRST: &str = "devices[0]";
        let Some((above, below)) = path.split_once(FIRST) else { return path.to_owned() };
        let known = [FIRST, "gpu", "devices"].into_iter();
        let known = known.map(|key| format!("{above}{key}")).find(|known| self.places.contains_key(known));
        known.map_or_else(|| path.to_owned(), |known| known + below)
    }

    /// Whether something is wrong with a key of this name, anywhere.
    pub(super) fn has_wrong(&self, key: &str) -> bool {
        self.mistakes.iter().any(|(path, _)| path.rsplit('.').next() == Some(key))
    }

    fn nearest_place(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            if let Some(at) = self.places.get(path) {
                return *at;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.start,
            }
        }
    }

    pub(super) fn into_mistakes(self) -> Vec<Mistake> {
        self.mistakes.into_iter().map(|(_, mistake)| mistake).collect()
    }

    /// Paths of every key that was asked for.
    #[cfg(test)]
    pub(super) fn asked(&self) -> &[String] {
        &self.asked
    }
}

/// A path as people write it: `labels["app"]` as `labels.app`.
fn shown(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(start) = rest.find("[\"") {
        let Some(len) = rest[start..].find("\"]") else { break };
        let key = &rest[start + 2..start + len];
        let is_plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_/".contains(c));
        out.push_str(&rest[..start]);
        if is_plain {
            out.push('.');
            out.push_str(key);
        } else {
            out.push_str(&rest[start..start + len + 2]);
        }
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    out
}

/// The keys of one map. Each is asked for by name; what was not asked for is unknown in the end.
pub(super) struct Fields<'n, 'r> {
    path: String,
    pub(super) at: Place,
    entries: &'n [Entry],
    asked: Vec<&'static str>,
    pub(super) report: &'r mut MistakeReport,
}

impl<'n, 'r> Fields<'n, 'r> {
    /// Of a map; `None`, and a mistake, if the node is something else.
    pub(super) fn of(node: &'n Node, path: String, report: &'r mut MistakeReport) -> Option<Self> {
        let YamlValue::Map(entries) = &node.value else {
            let what = node.value.kind();
            report.add(node.at, &path, format!("expected keys with values, found {what}"));
            return None;
        };
        report.places.insert(path.clone(), node.at);
        Some(Self { path, at: node.at, entries, asked: Vec::new(), report })
    }

    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key, whatever it is.
    pub(super) fn value(&self, key: &str) -> Option<&'n YamlValue> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value.value)
    }

    /// Every key that was not asked for.
    pub(super) fn finish(self) {
        for entry in self.entries.iter().filter(|entry| !self.asked.contains(&entry.key.as_str())) {
            let key = &entry.key;
            let hint = nearest(key, &self.asked).map_or_else(
                || format!("known are {}", self.asked.join(", ")),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            // Its path is that of the map: the key has none.
            self.report.add(entry.at, &self.path, format!("unknown key `{}`: {hint}", key.escape_debug()));
        }
    }

    /// The value of a key; `None` if it does not stand there, or has no value, which is a mistake.
    pub(super) fn node(&mut self, key: &'static str) -> Option<&'n Node> {
        self.asked.push(key);
        let path = self.path_of(key);
        let entry = self.entries.iter().find(|entry| entry.key == key);
        if let Some(entry) = entry {
            self.report.places.insert(path.clone(), entry.value.at);
            if entry.value.value == YamlValue::Nothing {
                self.report.add(entry.at, &path, "the value is missing: give one, or omit the key");
                self.report.asked.push(path);
                return None;
            }
        }
        self.report.asked.push(path);
        entry.map(|entry| &entry.value)
    }

    /// Items of a list with their paths.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<(&'n Node, String)> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let path = self.path_of(key);
        let YamlValue::List(items) = &node.value else {
            let what = node.value.kind();
            self.report.add(node.at, &path, format!("expected a list, as `[a, b]`, found {what}"));
            return Vec::new();
        };
        let items = items.iter().enumerate().map(|(idx, item)| (item, format!("{path}[{idx}]")));
        let items: Vec<(&Node, String)> = items.collect();
        for (item, path) in &items {
            self.report.places.insert(path.clone(), item.at);
        }
        items
    }

    /// Scalars by key, and what to make of each.
    pub(super) fn map<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str, &str) -> Result<T, E>,
    ) -> BTreeMap<String, T> {
        let mut values = BTreeMap::new();
        let Some(node) = self.node(key) else { return values };
        let path = self.path_of(key);
        let YamlValue::Map(entries) = &node.value else {
            let what = node.value.kind();
            self.report.add(
                node.at,
                &path,
                format!("expected keys with values, as `{{a: b}}`, found {what}"),
            );
            return values;
        };
        for entry in entries {
            // As rules name it.
            let path = format!("{path}[{:?}]", entry.key);
            self.report.places.insert(path.clone(), entry.value.at);
            if entry.value.value == YamlValue::Nothing {
                let message = "the value is missing: give one, or `\"\"` for empty text";
                self.report.add(entry.at, &path, message);
            } else if let Some(value) =
                scalar(&entry.value, &path, self.report, |text| read(&entry.key, text))
            {
                values.insert(entry.key.clone(), value);
            }
        }
        values
    }
}

/// Reads a map with keys of its own, all of them.
pub(super) fn inside<'n, T>(
    node: &'n Node,
    path: String,
    report: &mut MistakeReport,
    read: impl FnOnce(&mut Fields<'n, '_>) -> T,
) -> Option<T> {
    let mut fields = Fields::of(node, path, report)?;
    let value = read(&mut fields);
    fields.finish();
    Some(value)
}

/// Reads a scalar.
pub(super) fn scalar<T, E: fmt::Display>(
    node: &Node,
    path: &str,
    report: &mut MistakeReport,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Option<T> {
    let text = match &node.value {
        YamlValue::Text(text) => text.as_str(),
        YamlValue::Nothing => {
            report.add(node.at, path, "the value is missing");
            return None;
        }
        other => {
            report.add(node.at, path, format!("expected a single value, found {}", other.kind()));
            return None;
        }
    };
    match read(text) {
        Ok(value) => Some(value),
        Err(wrong) => {
            // What is quoted may be anything.
            let wrong: String = wrong.to_string().chars().flat_map(escaped).collect();
            report.add(node.at, path, wrong);
            None
        }
    }
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    let (plain, escaped) = if c.is_control() { (None, Some(c.escape_debug())) } else { (Some(c), None) };
    plain.into_iter().chain(escaped.into_iter().flatten())
}

/// Reads access rights as all tools write them, in octal digits.
pub(super) fn octal(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let number = u32::from_str_radix(digits, 8).ok().filter(|_| !digits.starts_with('+'));
    number.ok_or_else(|| format!("`{text}` is not a number of octal digits, as `022`"))
}

/// Bytes, written as an amount of memory is.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let amount = quantity::parse(MEMORY, text).map_err(|error| error.to_string())?;
    u64::try_from(amount).map_err(|_| format!("`{text}` is negative"))
}

/// Reads a whole number.
pub(super) fn number<N: TryFrom<i128>>(text: &str) -> Result<N, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` is not a whole number"));
    }
    let number: i128 = text.parse().unwrap_or(i128::MAX);
    N::try_from(number).map_err(|_| {
        let what = if number < 0 { "too small" } else { "too large" };
        format!("`{text}` is {what}")
    })
}

/// What is said of a word that is none of those known.
pub(super) fn unknown_word(text: &str, words: impl Iterator<Item = &'static str>) -> String {
    let known: Vec<&str> = words.collect();
    let hint = nearest(text, &known).map_or_else(
        || format!("known are {}", known.join(", ")),
        |nearest| format!("did you mean `{nearest}`?"),
    );
    format!("unknown value `{text}`: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_as_people_write_them() {
        for (path, expected) in [
            ("name", "name"),
            ("labels[\"app\"]", "labels.app"),
            ("template.requests[\"cpu\"]", "template.requests.cpu"),
            ("labels[\"a b\"]", "labels[\"a b\"]"),
            ("labels[\"x.y/z\"]", "labels[\"x.y/z\"]"),
            ("task_groups[1].template.env[\"A\"]", "task_groups[1].template.env.A"),
        ] {
            assert_eq!(shown(path), expected);
        }
    }

    #[test]
    fn access_rights_are_octal() {
        assert_eq!((octal("022"), octal("0o77"), octal("7")), (Ok(0o22), Ok(0o77), Ok(7)));
        for text in ["", "0o", "9", "rw", "-1", "+7", "77777777777777"] {
            assert_eq!(octal(text), Err(format!("`{text}` is not a number of octal digits, as `022`")));
        }
    }

    #[test]
    fn numbers_are_whole_and_within_bounds() {
        assert_eq!((number::<u32>("7"), number::<i32>("-7"), number::<i32>("+7")), (Ok(7), Ok(-7), Ok(7)));
        for (text, expected) in [
            ("many", "`many` is not a whole number"),
            ("1.0", "`1.0` is not a whole number"),
            ("", "`` is not a whole number"),
            ("-", "`-` is not a whole number"),
            ("-1", "`-1` is too small"),
            ("4294967296", "`4294967296` is too large"),
            ("99999999999999999999999999999999999999999999", "too large"),
        ] {
            assert!(number::<u32>(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
