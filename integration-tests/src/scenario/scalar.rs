//! Scalars of stories, read with serde. The documents behind a story are read by `godel apply`'s own reader.

use std::{fmt, time::Duration};

use godel_client::unit_file::{Mistake, nearest, parse_duration};
use serde::{Deserialize, Deserializer, de};

/// What the YAML reader says, with its position told apart and unknown words explained.
pub(super) fn mistake(error: &serde_yaml_ng::Error) -> Mistake {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    let text = error.to_string();
    // The position is told apart from the text.
    let text = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    Mistake { line, column, message: suggest(text) }
}

/// Replaces serde's list of all known names by the nearest one.
fn suggest(text: &str) -> String {
    for (marker, word) in [("unknown field `", "key"), ("unknown variant `", "value")] {
        let Some(start) = text.find(marker) else { continue };
        let path = &text[..start];
        let rest = &text[start + marker.len()..];
        let Some((unknown, rest)) = rest.split_once('`') else { continue };
        let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        let nearest = nearest(unknown, &known);
        let tail = nearest.map_or_else(
            || format!("known are {}", known.join(", ")),
            |nearest| format!("did you mean `{nearest}`?"),
        );
        return format!("{path}unknown {word} `{unknown}`: {tail}");
    }
    text.to_owned()
}

/// Text, also where YAML sees a number or a truth value (`version: 1.10` is a trap otherwise left to quotes).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text(pub(super) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("text", |text: &str| Ok(Text(text.to_owned()))))
    }
}

/// `10s`, `5m`, `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HumanTime(pub(super) Duration);

impl<'de> Deserialize<'de> for HumanTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("a duration such as `30s`", |text: &str| {
            parse_duration(text).map(HumanTime).map_err(|error| error.to_string())
        }))
    }
}

/// A scalar as it was written, and what to make of it. Refused in here, it is told with its line and column.
pub(super) struct Scalar<F>(pub(super) &'static str, pub(super) F);

impl<T, F: Fn(&str) -> Result<T, String>> de::Visitor<'_> for Scalar<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
        (self.1)(value).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }
}
