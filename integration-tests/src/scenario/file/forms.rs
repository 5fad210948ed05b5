//! What is written in a form of its own: words of the API's enums, and values that may be short or long.

use std::fmt;

use clap::Parser as _;
use godel_cli::args::Args;
use godel_proto::v1;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{OneOrMore, Partition, Phases, Reason, Submit, UnitExpect, UnitFields, Words};
use crate::scenario::{
    number::Number,
    scalar::{Scalar, Text},
};

/// Words of the API's enums as people write them: `NODE_LOST` is `node-lost`.
fn number_name(prefix: &str, word: &str) -> String {
    format!("{prefix}{}", word.to_uppercase().replace('-', "_"))
}

fn phase(word: &str) -> Result<Option<v1::UnitPhase>, String> {
    if word == "gone" {
        return Ok(None);
    }
    match v1::UnitPhase::from_str_name(&number_name("UNIT_PHASE_", word)) {
        Some(phase) => Ok(Some(phase)),
        None => Err(format!("`{word}` is no phase as `running`, and not `gone`")),
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("a reason of evictions", |word: &str| {
            let reason = v1::EvictionReason::from_str_name(&number_name("EVICTION_REASON_", word));
            reason.map(Self).ok_or_else(|| format!("`{word}` is no reason of evictions as `preempted`"))
        }))
    }
}

impl<'de> Deserialize<'de> for Partition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("a mode", |word: &str| {
            let mode = v1::PartitionMode::from_str_name(&number_name("PARTITION_MODE_", word));
            mode.map(Self).ok_or_else(|| format!("`{word}` is no mode as `global`"))
        }))
    }
}

impl<'de> Deserialize<'de> for Phases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = OneOrMore::deserialize(deserializer)?;
        words.0.iter().map(|word| phase(word)).collect::<Result<_, _>>().map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Line;
        impl<'de> de::Visitor<'de> for Line {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments of godel, as a line or a list of words")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<Words, E> {
                words(line.split_whitespace().map(str::to_owned).collect()).map_err(E::custom)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Words, A::Error> {
                let mut list = Vec::new();
                while let Some(Text(word)) = seq.next_element()? {
                    list.push(word);
                }
                words(list).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(Line)
    }
}

/// Refused here, a wrong verb is told before anything is started.
fn words(list: Vec<String>) -> Result<Words, String> {
    match Args::try_parse_from(["godel".to_owned()].iter().chain(&list)) {
        Ok(_) => Ok(Words(list)),
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> de::Visitor<'de> for List {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![text.to_owned()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<OneOrMore, A::Error> {
                let mut list = Vec::new();
                while let Some(Text(text)) = seq.next_element()? {
                    list.push(text);
                }
                Ok(OneOrMore(list))
            }
        }
        deserializer.deserialize_any(List)
    }
}

impl<'de> Deserialize<'de> for Submit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cast;
        impl<'de> de::Visitor<'de> for Cast {
            type Value = Submit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a unit, a list of units, or units with their number")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Submit, E> {
                Ok(Submit(vec![(name.to_owned(), None)]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Submit, A::Error> {
                let mut list = Vec::new();
                while let Some(Text(name)) = seq.next_element()? {
                    list.push((name, None));
                }
                Ok(Submit(list))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Submit, A::Error> {
                let mut list = Vec::new();
                while let Some((name, n)) = map.next_entry::<String, u32>()? {
                    list.push((name, Some(n)));
                }
                Ok(Submit(list))
            }
        }
        deserializer.deserialize_any(Cast)
    }
}

impl<'de> Deserialize<'de> for UnitExpect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Short;
        impl<'de> de::Visitor<'de> for Short {
            type Value = UnitExpect;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a phase, how many run, or a map")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<UnitExpect, E> {
                let phase = Some(Phases(vec![phase(word).map_err(E::custom)?]));
                Ok(UnitExpect(UnitFields { phase, ..UnitFields::default() }))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<UnitExpect, E> {
                let running = Some(Number::exactly(i64::try_from(n).map_err(E::custom)?));
                let evicting = Some(Number::exactly(0));
                Ok(UnitExpect(UnitFields { running, evicting, ..UnitFields::default() }))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<UnitExpect, A::Error> {
                UnitFields::deserialize(MapAccessDeserializer::new(map)).map(UnitExpect)
            }
        }
        deserializer.deserialize_any(Short)
    }
}
