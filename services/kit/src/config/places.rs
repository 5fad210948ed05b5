//! Where the keys of a configuration file stand, so that errors name the line.

use std::path::Path;

use granit_parser::{Event, Options, Parser};
use toml::de::{DeTable, DeValue};

/// Depth of lists and maps in each other: more are not looked at.
const DEPTH_MAX: usize = 64;

/// The keys of one file with their lines, from 1; of the entries of lists as well, as `scores[1]`.
#[derive(Debug, Default)]
pub(super) struct KeyPlaces(Vec<(String, usize)>);

impl KeyPlaces {
    /// Of a file, TOML or YAML by its extension; none if it is neither, or cannot be read now.
    pub(super) fn of(path: &Path) -> Self {
        let Ok(text) = std::fs::read_to_string(path) else { return Self::default() };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => of_toml(&text),
            Some("yaml" | "yml") => of_yaml(&text),
            Some(_) | None => Self::default(),
        }
    }

    /// Whether a key stands there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    /// The line of a key, or of the nearest one above it.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        let mut key = key;
        loop {
            if let Some((_, line)) = self.0.iter().find(|(known, _)| known == key) {
                return Some(*line);
            }
            key = &key[..key.rfind(['.', '['])?];
        }
    }
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn of_toml(text: &str) -> KeyPlaces {
    let mut places = KeyPlaces::default();
    if let Ok(table) = DeTable::parse(text) {
        let line =
            |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|one| **one == b'\n').count();
        toml_table("", table.get_ref(), &line, &mut places);
    }
    places
}

fn toml_table(path: &str, table: &DeTable<'_>, line: &impl Fn(usize) -> usize, places: &mut KeyPlaces) {
    for (key, value) in table {
        let path = below(path, key.get_ref());
        places.0.push((path.clone(), line(key.span().start)));
        toml_value(&path, value.get_ref(), line, places);
    }
}

/// The parser bounds the depth.
fn toml_value(path: &str, value: &DeValue<'_>, line: &impl Fn(usize) -> usize, places: &mut KeyPlaces) {
    match value {
        DeValue::Table(table) => toml_table(path, table, line, places),
        DeValue::Array(items) => {
            for (idx, item) in items.iter().enumerate() {
                let path = format!("{path}[{idx}]");
                places.0.push((path.clone(), line(item.span().start)));
                toml_value(&path, item.get_ref(), line, places);
            }
        }
        _ => {}
    }
}

/// A list or map that is being read, and its own path.
enum TableFrame {
    List { path: String, n_items: usize },
    Map { path: String, key: Option<String> },
}

fn of_yaml(text: &str) -> KeyPlaces {
    let mut options = Options::default();
    options.flow_nesting_limit = DEPTH_MAX;
    options.block_nesting_limit = DEPTH_MAX;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let (mut places, mut frames) = (KeyPlaces::default(), Vec::new());
    // What comes after a mistake has no lines: the loader says what is wrong with the file.
    while let Some(Ok((event, span))) = parser.next_event() {
        let line = span.start.line();
        match event {
            Event::Scalar(text, ..) => drop(next_path(&mut frames, Some(&text), line, &mut places)),
            Event::Alias(_) => drop(next_path(&mut frames, None, line, &mut places)),
            Event::SequenceStart(..) => {
                let path = next_path(&mut frames, None, line, &mut places);
                frames.push(TableFrame::List { path, n_items: 0 });
            }
            Event::MappingStart(..) => {
                let path = next_path(&mut frames, None, line, &mut places);
                frames.push(TableFrame::Map { path, key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => drop(frames.pop()),
            Event::DocumentEnd => break,
            _ => {}
        }
    }
    places
}

/// The path of the node that begins here, which may be a key, with the text of a scalar.
fn next_path(frames: &mut [TableFrame], text: Option<&str>, line: usize, places: &mut KeyPlaces) -> String {
    match frames.last_mut() {
        None => String::new(),
        Some(TableFrame::List { path, n_items }) => {
            let path = format!("{path}[{n_items}]");
            *n_items += 1;
            places.0.push((path.clone(), line));
            path
        }
        Some(TableFrame::Map { path, key }) => match key.take() {
            Some(key) => below(path, &key),
            None => {
                let path = below(path, text.unwrap_or("?"));
                *key = Some(text.unwrap_or("?").to_owned());
                places.0.push((path.clone(), line));
                path
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_lines_in_both_formats() {
        let yaml = "\
# a comment
scheduler:
  profiles:
    gpu:
      scores:
        - {name: spread,
           weight: 0}
        - name: x
          args: &a {n: 1}
    other: {scores: [*a]}
";
        let toml = "\
# a comment
[scheduler]
surplus = 3
[scheduler.profiles.gpu]
scores = [
  {name = 'spread', weight = 0},
  {name = 'x'},
]
[[scheduler.lists]]
a.b = 1
[[scheduler.lists]]
text = '''
c = 1
'''
d = 2
";
        for (places, key, expected) in [
            (of_yaml(yaml), "scheduler", Some(2)),
            (of_yaml(yaml), "scheduler.profiles.gpu.scores[0]", Some(6)),
            (of_yaml(yaml), "scheduler.profiles.gpu.scores[0].weight", Some(7)),
            (of_yaml(yaml), "scheduler.profiles.gpu.scores[1].args.n", Some(9)),
            (of_yaml(yaml), "scheduler.profiles.gpu.scores[1].args.m", Some(9)),
            (of_yaml(yaml), "scheduler.profiles.other.scores[0]", Some(10)),
            (of_yaml(yaml), "binder", None),
            (of_toml(toml), "scheduler.surplus", Some(3)),
            (of_toml(toml), "scheduler.profiles.gpu", Some(4)),
            (of_toml(toml), "scheduler.profiles.gpu.scores[1].name", Some(7)),
            (of_toml(toml), "scheduler.profiles.gpu.filters", Some(4)),
            (of_toml(toml), "scheduler.lists[0].a.b", Some(10)),
            (of_toml(toml), "scheduler.lists[1].d", Some(15)),
            (of_toml("a = ["), "a", None),
            (of_yaml("a: [b"), "a", Some(1)),
        ] {
            assert_eq!(places.line(key), expected, "{key}");
        }
        assert!(of_yaml(yaml).has("scheduler.profiles.other") && !of_yaml(yaml).has("scheduler.profiles.x"));
    }
}
