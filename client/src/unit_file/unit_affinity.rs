//! Where replicas go in relation to running units: `affinity` of a unit, and the flags `--near`, `--apart` and `--spread`.

use godel_domain::label_expression::{parse, show};
use godel_proto::v1;
use godel_wire::{from_proto, to_proto::label_expression};

use super::{
    Submit,
    notation::{InFile, Notation},
    yaml_out::Yaml,
};

impl InFile for v1::UnitAffinity {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { near, apart, spread } = self;
        file.messages("near", near, &v1::UnitTerm::default());
        file.messages("apart", apart, &v1::UnitTerm::default());
        file.messages("spread", spread, &v1::SpreadTerm::default());
    }
}

impl InFile for v1::UnitTerm {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { units, topology, weight } = self;
        visit_term(units, topology, weight, file);
    }
}

impl InFile for v1::SpreadTerm {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { units, topology, max_skew, weight } = self;
        visit_term(units, topology, weight, file);
        file.optional("max_skew", max_skew);
    }
}

fn visit_term(
    units: &mut Vec<v1::LabelExpression>,
    topology: &mut String,
    weight: &mut u32,
    file: &mut impl Notation,
) {
    let mut given = Some(std::mem::take(units)).filter(|units| !units.is_empty());
    file.scalar("units", &mut given, conditions, |units| shown(units));
    *units = given.unwrap_or_default();
    file.required_text("topology", topology);
    file.above_zero("weight", weight);
}

/// Reads conditions on labels.
pub(super) fn conditions(text: &str) -> Result<Vec<v1::LabelExpression>, String> {
    let conditions = parse(text).map_err(|wrong| wrong.to_string())?;
    Ok(conditions.iter().map(label_expression).collect())
}

/// Conditions in the notation in which files write them.
pub(super) fn shown(conditions: &[v1::LabelExpression]) -> Yaml {
    let all: Vec<_> =
        conditions.iter().cloned().filter_map(|one| from_proto::label_expression(one).ok()).collect();
    Yaml::text_of(&show(&all))
}

/// Reads what the flags say: a term for each value.
///
/// # Errors
/// Each value that is wrong, with its flag.
pub(super) fn of_flags(submit: &Submit) -> Result<Option<v1::UnitAffinity>, Vec<String>> {
    let mut wrong = Vec::new();
    let affinity = v1::UnitAffinity {
        near: all("--near", &submit.near, unit_term_of_flag, &mut wrong),
        apart: all("--apart", &submit.apart, unit_term_of_flag, &mut wrong),
        spread: all("--spread", &submit.spread, spread_term_of_flag, &mut wrong),
    };
    if wrong.is_empty() {
        Ok((affinity != v1::UnitAffinity::default()).then_some(affinity))
    } else {
        Err(wrong)
    }
}

fn all<T>(
    flag: &str,
    texts: &[String],
    read: fn(&str) -> Result<T, String>,
    wrong: &mut Vec<String>,
) -> Vec<T> {
    let read = |text: &String| read(text).map_err(|error| wrong.push(format!("{flag}: {error}"))).ok();
    texts.iter().filter_map(read).collect()
}

/// `rack`, `rack:app = db`, `10@rack:app = db`.
fn unit_term_of_flag(text: &str) -> Result<v1::UnitTerm, String> {
    let (weight, topology, units) = parts(text)?;
    Ok(v1::UnitTerm { units, topology: topology_key(topology)?, weight })
}

/// The same, and `rack=2` for a `max_skew`.
fn spread_term_of_flag(text: &str) -> Result<v1::SpreadTerm, String> {
    let (weight, domains, units) = parts(text)?;
    let (topology, max_skew) = match domains.split_once('=') {
        Some((topology, max_skew)) => (topology, Some(number(max_skew, "max_skew", "`rack=2`")?)),
        None => (domains, None),
    };
    Ok(v1::SpreadTerm { units, topology: topology_key(topology)?, max_skew, weight })
}

/// Weight, domains and conditions: no topology key has an `@`, a `=` or a `:`, and the conditions come last.
fn parts(text: &str) -> Result<(u32, &str, Vec<v1::LabelExpression>), String> {
    let (before, units) = match text.split_once(':') {
        Some((before, units)) => (before, conditions(units)?),
        None => (text, Vec::new()),
    };
    let (weight, domains) = match before.split_once('@') {
        Some((weight, domains)) => (number(weight, "weight", "`10@rack`")?, domains),
        None => (0, before),
    };
    Ok((weight, domains, units))
}

fn topology_key(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("no topology key is given: expected one, as `rack` in `10@rack:app=db`".to_owned()),
        key => Ok(key.to_owned()),
    }
}

fn number(text: &str, what: &str, example: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("`{text}` is no {what}: expected a whole number, as in {example}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_says_weight_topology_skew_and_units_in_this_order() {
        let shown = |text: &str| {
            spread_term_of_flag(text).map(|term| {
                let units: Vec<String> =
                    term.units.iter().map(|one| format!("{} {}", one.key, one.values.join("|"))).collect();
                (term.weight, term.topology, term.max_skew, units.join(", "))
            })
        };
        let term = |weight, topology: &str, max_skew, units: &str| {
            Ok((weight, topology.to_owned(), max_skew, units.to_owned()))
        };
        for (text, expected) in [
            ("rack", term(0, "rack", None, "")),
            ("example.com/rack_1=2", term(0, "example.com/rack_1", Some(2), "")),
            ("10@rack", term(10, "rack", None, "")),
            (" 10 @ rack = 2 : app = db ", term(10, "rack", Some(2), "app db")),
            // What follows the first `:` is the conditions, whatever it has in it.
            ("node:app in (a, b), mail = x@y:z", term(0, "node", None, "app a|b, mail x@y:z")),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        for (text, expected) in [
            ("", "no topology key"),
            (":app = db", "no topology key"),
            ("10@", "no topology key"),
            ("many@rack", "`many` is no weight"),
            ("-1@rack", "`-1` is no weight"),
            ("=2", "no topology key"),
            ("rack=", "`` is no max_skew"),
            ("rack:", "is no condition on a label"),
            ("rack:app = ", ""),
        ] {
            let told = shown(text).err().unwrap_or_default();
            assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "{text}: {told}");
        }
        // Only a spread has a skew; in the others it is part of a key that no label has.
        assert_eq!(unit_term_of_flag("rack=2").unwrap().topology, "rack=2");
    }
}
