//! YAML as trees of text, lists and maps with their places: nothing is taken for a number here, so that text stays as it
//! was written.
//!
//! Document after document, and a document that is no YAML does not hide what is wrong with those behind it. Anchors,
//! aliases and merge keys (`<<`) work as YAML says, within [`NODES_MAX`]. Of a key that stands twice both places are told.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::Mistake;

/// Values of one document, those that aliases repeat counted each time: far more than any unit has, far fewer than a file
/// that is made to fill the memory.
const NODES_MAX: usize = 200_000;
/// Depth of lists and maps in each other.
const DEPTH_MAX: usize = 64;

/// Where something stands in a file, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Place {
    fn of(span: &Span) -> Self {
        Self { line: span.start.line(), column: span.start.col() + 1 }
    }

    pub(super) fn mistake(self, message: impl Into<String>) -> Mistake {
        Mistake { line: self.line, column: self.column, message: message.into() }
    }
}

/// A value, and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) at: Place,
    pub(super) value: YamlValue,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum YamlValue {
    /// As written, without quotes.
    Text(String),
    /// Nothing, `~` or `null`.
    Nothing,
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: Place,
    pub(super) value: Node,
    /// A plain `<<`, whose value is merged into the map that it stands in.
    is_merge: bool,
}

impl YamlValue {
    /// What it is, in words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Nothing => "nothing",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    fn size(&self) -> usize {
        1 + match self {
            Self::Text(_) | Self::Nothing => 0,
            Self::List(items) => items.iter().map(|item| item.value.size()).sum(),
            Self::Map(entries) => entries.iter().map(|entry| entry.value.value.size()).sum(),
        }
    }
}

/// A document: its value, `None` if it has nothing but comments, and what is wrong with it as YAML.
#[derive(Debug, Default)]
pub(super) struct YamlTree {
    pub(super) root: Option<Node>,
    pub(super) mistakes: Vec<Mistake>,
}

/// The documents of a text, one after the other.
pub(super) struct Documents<'a> {
    parser: Parser<'a, StrInput<'a>>,
    is_over: bool,
}

impl<'a> Documents<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let mut options = Options::default();
        options.set_emit_comments(false);
        options.flow_nesting_limit = DEPTH_MAX;
        options.block_nesting_limit = DEPTH_MAX;
        Self { parser: Parser::new_from_str_with_options(text, options), is_over: false }
    }

    /// Goes on behind a document that cannot be read.
    fn skip(&mut self) {
        self.is_over = !self.parser.proceed_next_document().unwrap_or(false);
    }
}

impl Iterator for Documents<'_> {
    type Item = YamlTree;

    fn next(&mut self) -> Option<YamlTree> {
        let mut builder = YamlBuilder::default();
        while !self.is_over {
            match self.parser.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => self.is_over = true,
                Some(Ok((Event::DocumentEnd, _))) => return Some(builder.tree),
                Some(Ok((event, span))) => {
                    if let Err(mistake) = builder.take(event, &span) {
                        builder.tree.mistakes.push(mistake);
                        builder.tree.root = None;
                        self.skip();
                        return Some(builder.tree);
                    }
                }
                Some(Err(error)) => {
                    builder.tree.mistakes.push(broken(&error));
                    builder.tree.root = None;
                    self.skip();
                    return Some(builder.tree);
                }
            }
        }
        None
    }
}

/// What the parser says, in our words where its own take knowledge of YAML.
fn broken(error: &ScanError) -> Mistake {
    let at = Place { line: error.marker().line(), column: error.marker().col() + 1 };
    let message = match error.kind() {
        ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation => {
            "YAML requires spaces here, found a tab".to_owned()
        }
        ErrorKind::RecursionLimitExceeded => {
            format!("lists and maps are nested more than {DEPTH_MAX} deep")
        }
        ErrorKind::UnknownAnchor => "the alias has no anchor before it".to_owned(),
        ErrorKind::ExpectedFlowMappingSeparator => "`,` or `}` is missing".to_owned(),
        ErrorKind::ExpectedFlowSequenceSeparator => "`,` or `]` is missing".to_owned(),
        ErrorKind::UnexpectedEofFlowMapping => "`}` is missing at the end".to_owned(),
        ErrorKind::UnexpectedEofFlowSequence => "`]` is missing at the end".to_owned(),
        ErrorKind::UnclosedFlowCollection { open } => format!("the `{open}` is not closed"),
        ErrorKind::UnclosedQuotedScalar => "a quotation mark is not closed".to_owned(),
        _ => error.info(),
    };
    at.mistake(message)
}

enum YamlFrame {
    List { at: Place, anchor: usize, items: Vec<Node> },
    Map { at: Place, anchor: usize, entries: Vec<Entry>, key: Option<(Option<String>, Place, bool)> },
}

#[derive(Default)]
struct YamlBuilder {
    tree: YamlTree,
    frames: Vec<YamlFrame>,
    anchors: HashMap<usize, Node>,
    n_nodes: usize,
}

impl YamlBuilder {
    /// # Errors
    /// The document cannot be read on.
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Mistake> {
        let at = Place::of(span);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain && tag.is_none();
                self.tag(tag.as_deref(), &["str"], span);
                let nothing = is_plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let is_merge = is_plain && text == "<<";
                let value = if nothing { YamlValue::Nothing } else { YamlValue::Text(text.into_owned()) };
                self.done(Node { at, value }, anchor, is_merge)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), &["seq"], span);
                self.open(YamlFrame::List { at, anchor, items: Vec::new() }, at)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), &["map"], span);
                self.open(YamlFrame::Map { at, anchor, entries: Vec::new(), key: None }, at)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.frames.pop() {
                Some(YamlFrame::List { at, anchor, items }) => {
                    self.done(Node { at, value: YamlValue::List(items) }, anchor, false)
                }
                Some(YamlFrame::Map { at, anchor, entries, .. }) => {
                    let entries = self.settle(entries);
                    self.done(Node { at, value: YamlValue::Map(entries) }, anchor, false)
                }
                None => Ok(()),
            },
            Event::Alias(id) => {
                let Some(known) = self.anchors.get(&id).cloned() else {
                    return Err(at.mistake("an alias is inside of its own anchor"));
                };
                // Mistakes are told where the alias stands.
                self.done(Node { at, value: known.value }, 0, false)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, frame: YamlFrame, at: Place) -> Result<(), Mistake> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(at.mistake(format!("lists and maps are nested more than {DEPTH_MAX} deep")));
        }
        self.frames.push(frame);
        Ok(())
    }

    fn tag(&mut self, tag: Option<&Tag>, known: &[&str], span: &Span) {
        if let Some(tag) = tag
            && !known.iter().any(|known| tag.is_yaml_core_schema_tag(known))
        {
            let message = format!("unknown tag `{tag}`; write the value without it");
            self.tree.mistakes.push(Place::of(span).mistake(message));
        }
    }

    /// A value is complete.
    fn done(&mut self, node: Node, anchor: usize, is_merge: bool) -> Result<(), Mistake> {
        let copies = if anchor > 0 { 2 } else { 1 };
        // What is inside has been counted, but for copies.
        let is_leaf = matches!(node.value, YamlValue::Text(_) | YamlValue::Nothing);
        self.n_nodes += if is_leaf { copies } else { node.value.size() * copies };
        if self.n_nodes > NODES_MAX {
            let message = format!("anchors and aliases make more than {NODES_MAX} values of this document");
            return Err(node.at.mistake(message));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.frames.last_mut() {
            None => {
                let is_nothing = node.value == YamlValue::Nothing;
                self.tree.root = (!is_nothing).then_some(node);
            }
            Some(YamlFrame::List { items, .. }) => items.push(node),
            Some(YamlFrame::Map { entries, key, .. }) => match key.take() {
                None => {
                    let at = node.at;
                    let text = match node.value {
                        YamlValue::Text(text) => Some(text),
                        other => {
                            let what = other.kind();
                            self.tree.mistakes.push(at.mistake(format!("a key must be text, not {what}")));
                            None
                        }
                    };
                    *key = Some((text, at, is_merge));
                }
                Some((Some(key), at, is_merge)) => entries.push(Entry { key, at, value: node, is_merge }),
                Some((None, ..)) => {}
            },
        }
        Ok(())
    }

    /// The entries of a complete map: each key once, what is merged behind them.
    fn settle(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut seen: HashMap<&str, Place> = HashMap::with_capacity(entries.len());
        let mut twice = Vec::new();
        for (idx, entry) in entries.iter().enumerate() {
            if let Some(first) = seen.get(entry.key.as_str()) {
                let Place { line, column } = *first;
                let message = format!(
                    "duplicate key `{}`, first in line {line}, column {column}",
                    entry.key.escape_debug()
                );
                self.tree.mistakes.push(entry.at.mistake(message));
                twice.push(idx);
            } else {
                seen.insert(&entry.key, entry.at);
            }
        }
        let mut entries: Vec<Entry> = entries
            .into_iter()
            .enumerate()
            .filter(|(idx, _)| !twice.contains(idx))
            .map(|(_, entry)| entry)
            .collect();
        if let Some(idx) = entries.iter().position(|entry| entry.is_merge) {
            let merge = entries.remove(idx);
            let maps = match merge.value.value {
                YamlValue::Map(_) => vec![merge.value],
                YamlValue::List(items) => items,
                YamlValue::Text(_) | YamlValue::Nothing => Vec::new(),
            };
            if maps.is_empty() || maps.iter().any(|map| !matches!(map.value, YamlValue::Map(_))) {
                let message = "`<<` requires a map, or a list of maps, as `<<: *base`";
                self.tree.mistakes.push(merge.at.mistake(message));
                return entries;
            }
            for map in maps {
                let YamlValue::Map(merged) = map.value else { continue };
                for entry in merged {
                    if !entries.iter().any(|own| own.key == entry.key) {
                        entries.push(entry);
                    }
                }
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees(text: &str) -> Vec<YamlTree> {
        Documents::of(text).collect()
    }

    /// Short enough to compare.
    fn short(node: &Node) -> String {
        match &node.value {
            YamlValue::Text(text) => text.clone(),
            YamlValue::Nothing => "()".to_owned(),
            YamlValue::List(items) => format!("[{}]", items.iter().map(short).collect::<Vec<_>>().join(" ")),
            YamlValue::Map(entries) => {
                let entries = entries.iter().map(|entry| format!("{}={}", entry.key, short(&entry.value)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(" "))
            }
        }
    }

    fn only(text: &str) -> String {
        let mut trees = trees(text);
        assert_eq!(trees.len(), 1, "{text}");
        let tree = trees.remove(0);
        assert_eq!(tree.mistakes, [], "{text}");
        short(&tree.root.unwrap())
    }

    fn wrong(text: &str) -> Vec<String> {
        trees(text).into_iter().flat_map(|tree| tree.mistakes).map(|mistake| mistake.to_string()).collect()
    }

    #[test]
    fn text_stays_as_it_is_written() {
        let text = "a: 1.10\nb: 1234567e8\nc: 0x1F\nd: True\ne: 1_000\nf: '1.0'\ng: 0o17\nh: 123456789012345678901234567890123456789012\n7: 007\n";
        let expected = "{a=1.10 b=1234567e8 c=0x1F d=True e=1_000 f=1.0 g=0o17 h=123456789012345678901234567890123456789012 7=007}";
        assert_eq!(only(text), expected);
        assert_eq!(only("[~, null, '', 'null', \"~\", !!str null]"), "[() ()  null ~ null]");
        assert_eq!(only("a: |\n  two\n  lines\nb: >-\n  one\n  line\n"), "{a=two\nlines\n b=one line}");
    }

    #[test]
    fn anchors_aliases_and_merge_keys_work_as_yaml_says() {
        assert_eq!(only("a: &x [1, 2]\nb: *x\n"), "{a=[1 2] b=[1 2]}");
        let text = "base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\none: {<<: *base, b: own}\nboth: {<<: [*base, *more], d: 5}\n";
        let expected = "{base={a=1 b=2} more={b=3 c=4} one={b=own a=1} both={d=5 a=1 b=2 c=4}}";
        assert_eq!(only(text), expected);
        assert_eq!(only("{'<<': text}"), "{<<=text}");
        assert_eq!(wrong("a: {<<: text}\n"), ["1:5: `<<` requires a map, or a list of maps, as `<<: *base`"]);
    }

    #[test]
    fn a_yaml_error_names_its_line_and_hides_no_other_error() {
        let text = "a: 1\na: 2\n---\nb: [1\n---\nc: {d: 1, d: 2}\n---\n# nothing\n---\ne: 1\n";
        let found = trees(text);
        let roots: Vec<bool> = found.iter().map(|tree| tree.root.is_some()).collect();
        assert_eq!(roots, [true, false, true, false, true]);
        let told = wrong(text);
        assert_eq!(told[0], "2:1: duplicate key `a`, first in line 1, column 1");
        assert!(told[1].starts_with("5:1: ") || told[1].starts_with("4:4: "), "{told:?}");
        assert_eq!(told[2], "6:11: duplicate key `d`, first in line 6, column 5");
        assert_eq!(told.len(), 3);
        for (text, expected) in [
            ("a:\n\t- b\n", "YAML requires spaces here, found a tab"),
            ("a: *nothing\n", "the alias has no anchor before it"),
            ("a: &x [*x]\n", "an alias is inside of its own anchor"),
            ("a: !!int 5\n", "; write the value without it"),
            ("a: !mine 5\n", "; write the value without it"),
            ("? [a, b]\n: c\n", "a key must be text, not a list"),
            ("~: c\n", "a key must be text, not nothing"),
            ("a: 'open\n", "a quotation mark is not closed"),
        ] {
            let found = wrong(text);
            assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn files_that_are_made_to_fill_the_memory_are_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let names = vec![format!("*a{}", n - 1); 10].join(", ");
            text.push_str(&format!("a{n}: &a{n} [{names}]\n"));
        }
        let found = wrong(&text);
        assert!(found.len() == 1 && found[0].contains("make more than 200000 values"), "{found:?}");
        for deep in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
            let found = wrong(&deep);
            assert!(found.len() == 1 && found[0].contains("more than 64 deep"), "{found:?}");
        }
    }

    #[test]
    fn an_empty_text_has_no_document() {
        for (text, n_roots) in
            [("", 0), ("# nothing\n", 0), ("---\n", 0), ("\u{feff}a: 1\n", 1), ("a: 1\n...\n", 1)]
        {
            assert_eq!(trees(text).iter().filter(|tree| tree.root.is_some()).count(), n_roots, "{text:?}");
            assert_eq!(wrong(text), Vec::<String>::new(), "{text:?}");
        }
    }
}
