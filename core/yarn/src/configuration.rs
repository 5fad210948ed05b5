//! Configuration files of Hadoop, read as Hadoop reads them: `<configuration>` with `<property>` elements, a later file over
//! an earlier one unless that says `final`, and `${name}` replaced by the value of another property.
//!
//! Files that a file includes (`<xi:include>`) are not read; the error says so, since their properties would be missing.

use std::collections::{BTreeMap, btree_map::Entry};

use quick_xml::{Reader, events::Event};

/// Replacements of `${name}` in one value, as in Hadoop.
const N_REPLACED_MAX: usize = 20;
/// Largest file and largest value with everything replaced.
const LEN_MAX: usize = 4 << 20;

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfiguration {
    /// Not well-formed.
    #[error("{file} is not valid XML: {why}")]
    NotXml {
        /// As given.
        file: String,
        /// What the reader says.
        why: String,
    },
    /// Well-formed, and something else.
    #[error("{file} is no configuration file of Hadoop: its outermost element must be `configuration`")]
    NotConfiguration {
        /// As given.
        file: String,
    },
    /// It stands on other files.
    #[error(
        "{file} includes other files (`xi:include`), which are not followed: put their properties into it"
    )]
    Includes {
        /// As given.
        file: String,
    },
    /// More than any configuration has.
    #[error("{file} has more than {LEN_MAX} bytes")]
    Long {
        /// As given.
        file: String,
    },
}

#[derive(Clone, Debug)]
struct Value {
    text: String,
    file: String,
    is_final: bool,
}

/// Properties of one or several files.
#[derive(Clone, Debug, Default)]
pub struct HadoopConfiguration {
    values: BTreeMap<String, Value>,
}

/// One `<property>` while it is read.
#[derive(Default)]
struct Element {
    name: String,
    value: String,
    is_final: String,
}

impl HadoopConfiguration {
    /// Reads one more file, whose values replace those that are not final.
    ///
    /// # Errors
    /// The file is no configuration; nothing of it is taken then.
    pub fn read(&mut self, file: &str, text: &str) -> Result<(), BadConfiguration> {
        if text.len() > LEN_MAX {
            return Err(BadConfiguration::Long { file: file.to_owned() });
        }
        for Element { name, value, is_final } in elements(file, text)? {
            let name = name.trim().to_owned();
            if name.is_empty() {
                continue;
            }
            let new = Value { text: value, file: file.to_owned(), is_final: is_final.trim() == "true" };
            match self.values.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(new)),
                // Within one file the last value counts, also over a final one.
                Entry::Occupied(mut entry) if !entry.get().is_final || entry.get().file == file => {
                    entry.insert(new);
                }
                Entry::Occupied(_) => {}
            }
        }
        Ok(())
    }

    /// The value of a property without spaces around it, with `${name}` replaced where that name is known.
    pub fn get(&self, name: &str) -> Option<String> {
        let mut text = self.values.get(name)?.text.trim().to_owned();
        let mut from = 0;
        for _ in 0..N_REPLACED_MAX {
            let Some(start) = text[from..].find("${").map(|at| from + at) else { break };
            let Some(end) = text[start..].find('}').map(|at| start + at) else { break };
            match self.values.get(&text[start + 2..end]) {
                Some(value) if text.len() + value.text.len() <= LEN_MAX => {
                    text.replace_range(start..=end, value.text.trim());
                }
                // What the environment or Java knows stays as it is written.
                _ => from = end,
            }
        }
        Some(text)
    }

    /// The value of a property as it is written, for lists in which a space at the start means something.
    pub(crate) fn get_untrimmed(&self, name: &str) -> Option<String> {
        self.values.get(name).map(|value| value.text.clone())
    }

    /// Whether a property is `true`; `default` if it is not set.
    pub fn is_true(&self, name: &str, default: bool) -> bool {
        self.get(name).map_or(default, |value| value.eq_ignore_ascii_case("true"))
    }

    /// Every name, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Whether no property was read.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

fn elements(file: &str, text: &str) -> Result<Vec<Element>, BadConfiguration> {
    let not_xml = |why: &dyn std::fmt::Display| BadConfiguration::NotXml {
        file: file.to_owned(),
        why: why.to_string(),
    };
    let mut reader = Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    let mut elements = Vec::new();
    let mut current = Element::default();
    let mut is_configuration = false;
    loop {
        match reader.read_event().map_err(|error| not_xml(&error))? {
            Event::Start(start) => {
                let name = start.local_name().as_ref().to_owned();
                match (path.len(), name.as_str()) {
                    (0, "configuration") => is_configuration = true,
                    (0, _) => return Err(BadConfiguration::NotConfiguration { file: file.to_owned() }),
                    (_, "include") => return Err(BadConfiguration::Includes { file: file.to_owned() }),
                    (_, "property") => current = Element::default(),
                    _ => {}
                }
                path.push(name);
            }
            Event::Empty(empty) => match (path.len(), empty.local_name().as_ref()) {
                (0, "configuration") => is_configuration = true,
                (1.., "include") => return Err(BadConfiguration::Includes { file: file.to_owned() }),
                _ => {}
            },
            Event::End(_) => {
                if path.pop().is_some_and(|name| name == "property") {
                    elements.push(std::mem::take(&mut current));
                }
            }
            Event::Text(text) => append(&mut current, &path, &text),
            Event::CData(text) => append(&mut current, &path, &text),
            Event::GeneralRef(reference) => {
                let char = reference.resolve_char_ref().map_err(|error| not_xml(&error))?;
                match (char, quick_xml::escape::resolve_predefined_entity(&reference)) {
                    (Some(char), _) => append(&mut current, &path, char.encode_utf8(&mut [0; 4])),
                    (None, Some(text)) => append(&mut current, &path, text),
                    (None, None) => {
                        let name = &*reference;
                        return Err(not_xml(&format!("the entity `{name}` is not known")));
                    }
                }
            }
            Event::Eof if !path.is_empty() => return Err(not_xml(&"it ends within an element")),
            Event::Eof if !is_configuration => {
                return Err(BadConfiguration::NotConfiguration { file: file.to_owned() });
            }
            Event::Eof => return Ok(elements),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

/// Adds text to the part of the property that it stands in.
fn append(current: &mut Element, path: &[String], text: &str) {
    let [.., property, part] = path else { return };
    match (property.as_str(), part.as_str()) {
        ("property", "name") => current.name.push_str(text),
        ("property", "value") => current.value.push_str(text),
        ("property", "final") => current.is_final.push_str(text),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Result<HadoopConfiguration, BadConfiguration> {
        let mut configuration = HadoopConfiguration::default();
        for (idx, text) in texts.iter().enumerate() {
            configuration.read(&format!("{idx}.xml"), text)?;
        }
        Ok(configuration)
    }

    #[test]
    fn values_are_read_as_hadoop_reads_them() {
        let first = "<?xml version=\"1.0\"?><?xml-stylesheet type=\"text/xsl\" href=\"configuration.xsl\"?>
            <!-- licence --><configuration>
            <property><name> a </name><value> 1 &lt;&#50; </value><description>x <b>y</b></description></property>
            <property><name>b</name><value><![CDATA[<b>]]></value><final>true</final></property>
            <property><name>c</name><value>first</value></property>
            <property><name/><value>nobody</value></property>
            </configuration>";
        let second = "<configuration><property><name>b</name><value>late</value></property>
            <property><name>c</name><value>${a}-${b}-${user.home}-${c2}</value></property>
            <property><name>c2</name><value>${a}</value></property>
            <property><name>loop</name><value>x${loop}</value></property></configuration>";
        let read = read(&[first, second]).unwrap();
        assert_eq!(read.names().collect::<Vec<_>>(), ["a", "b", "c", "c2", "loop"]);
        assert_eq!(read.get("a").unwrap(), "1 <2");
        assert_eq!(read.get("b").unwrap(), "<b>");
        assert_eq!(read.get("c").unwrap(), "1 <2-<b>-${user.home}-1 <2");
        assert_eq!(read.get("loop").unwrap().matches('x').count(), 1 + N_REPLACED_MAX);
        assert_eq!(read.get("none"), None);
        assert!(self::read(&["<configuration/>"]).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for (text, part) in [
            ("<configuration><property></configuration>", "is not valid XML"),
            ("<configuration><property>", "ends within an element"),
            ("<configuration>&undefined;</configuration>", "`undefined` is not known"),
            ("<allocations/>", "outermost element must be `configuration`"),
            ("", "outermost element must be `configuration`"),
            ("<allocations></allocations>", "outermost element must be `configuration`"),
            (
                "<configuration xmlns:xi=\"http://www.w3.org/2001/XInclude\"><xi:include href=\"x\"/></configuration>",
                "includes other files",
            ),
        ] {
            let said = read(&[text]).unwrap_err().to_string();
            assert!(said.starts_with("0.xml ") && said.contains(part), "{text}: {said}");
        }
        let long = " ".repeat(LEN_MAX + 1);
        assert!(matches!(read(&[&long]), Err(BadConfiguration::Long { .. })));
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_much(text in "[<>/a-c&;!\\[\\]$\\{\\}\"-]{0,80}") {
            // Whatever the answer is, there is one.
            let whole = format!("<configuration><property><name>a</name><value>{text}</value></property></configuration>");
            for text in [text, whole] {
                if let Ok(read) = read(&[&text]) {
                    assert!(read.get("a").is_none_or(|value| value.len() <= LEN_MAX));
                }
            }
        }
    }
}
