//! Conditions on labels, as Kubernetes has them (`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`), and the text in which
//! people write them: `zone in (a, b), !virtual, cores > 64`.

use std::fmt;

use crate::names;

/// What an expression says of the value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelOperator {
    /// The label is there, with one of the values.
    In,
    /// The label is not there, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The label is a whole number above the value.
    Gt,
    /// The label is a whole number below the value.
    Lt,
}

impl LabelOperator {
    /// Every operator.
    pub const ALL: [Self; 6] = [Self::In, Self::NotIn, Self::Exists, Self::DoesNotExist, Self::Gt, Self::Lt];
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelExpression {
    /// The label.
    pub key: String,
    /// What is said of its value.
    pub operator: LabelOperator,
    /// One or more for `In` and `NotIn`, one whole number for `Gt` and `Lt`, none for the others.
    pub values: Vec<String>,
}

/// Why a text is no selector, or an expression no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExpression {
    /// The text ends too early, or goes on where it should end.
    #[error(
        "`{0}` is no condition on a label; examples: `zone = a`, `zone != a`, `zone in (a, b)`, `zone notin (a)`, `gpu`, \
         `!gpu`, `cores > 64`"
    )]
    Syntax(String),
    /// The key is no label.
    #[error("label `{key}`: {wrong}")]
    Key {
        /// As given.
        key: String,
        /// What is wrong with it.
        wrong: names::BadName,
    },
    /// `In` and `NotIn` name values.
    #[error("label `{0}`: no value is given")]
    NoValue(String),
    /// `Exists` and `DoesNotExist` name none.
    #[error("label `{0}`: this operator takes no value")]
    Value(String),
    /// `Gt` and `Lt` compare numbers.
    #[error("label `{key}`: `{value}` is not a whole number")]
    Number {
        /// The label.
        key: String,
        /// As given.
        value: String,
    },
    /// A value is too long or has control characters.
    #[error("label `{key}`: value: {wrong}")]
    Text {
        /// The label.
        key: String,
        /// What is wrong with it.
        wrong: names::BadName,
    },
}

impl LabelExpression {
    /// Returns the condition that a label has one value.
    pub fn is(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), operator: LabelOperator::In, values: vec![value.into()] }
    }

    /// Whether a value of the label meets the condition; `None`: the label is not there.
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let among = |value: &str| self.values.iter().any(|one| one == value);
        let bound = || self.values.first().and_then(|bound| bound.parse::<i64>().ok());
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self.operator {
            LabelOperator::In => value.is_some_and(among),
            LabelOperator::NotIn => !value.is_some_and(among),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
            LabelOperator::Gt => number().zip(bound()).is_some_and(|(number, bound)| number > bound),
            LabelOperator::Lt => number().zip(bound()).is_some_and(|(number, bound)| number < bound),
        }
    }

    /// Returns the one value that the label must have, if the condition says that and nothing else.
    pub fn only_value(&self) -> Option<&str> {
        match (self.operator, self.values.as_slice()) {
            (LabelOperator::In, [value]) => Some(value),
            _ => None,
        }
    }

    /// Checks the key, and that the values suit the operator.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn check(&self) -> Result<(), BadExpression> {
        let key = || self.key.clone();
        names::label_key(&self.key).map_err(|wrong| BadExpression::Key { key: key(), wrong })?;
        for value in &self.values {
            names::text(value, names::NAME_LEN_MAX)
                .map_err(|wrong| BadExpression::Text { key: key(), wrong })?;
        }
        match (self.operator, self.values.as_slice()) {
            (LabelOperator::In | LabelOperator::NotIn | LabelOperator::Gt | LabelOperator::Lt, []) => {
                Err(BadExpression::NoValue(key()))
            }
            (LabelOperator::Exists | LabelOperator::DoesNotExist, [_, ..]) => {
                Err(BadExpression::Value(key()))
            }
            (LabelOperator::Gt | LabelOperator::Lt, values) => match values {
                [value] if value.parse::<i64>().is_ok() => Ok(()),
                values => Err(BadExpression::Number { key: key(), value: values.join(", ") }),
            },
            _ => Ok(()),
        }
    }
}

impl fmt::Display for LabelExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        match (operator, values.as_slice()) {
            (LabelOperator::In, [value]) => write!(f, "{key} = {value}"),
            (LabelOperator::NotIn, [value]) => write!(f, "{key} != {value}"),
            (LabelOperator::In, values) => write!(f, "{key} in ({})", values.join(", ")),
            (LabelOperator::NotIn, values) => write!(f, "{key} notin ({})", values.join(", ")),
            (LabelOperator::Exists, _) => f.write_str(key),
            (LabelOperator::DoesNotExist, _) => write!(f, "!{key}"),
            (LabelOperator::Gt, values) => write!(f, "{key} > {}", values.join(", ")),
            (LabelOperator::Lt, values) => write!(f, "{key} < {}", values.join(", ")),
        }
    }
}

/// Returns conditions as text that [`parse`] reads.
pub fn show(conditions: &[LabelExpression]) -> String {
    conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Reads conditions that must all hold, separated by commas: `zone = a` (or `==`), `zone != a`, `zone in (a, b)`,
/// `zone notin (a, b)`, `gpu` (the label is there), `!gpu` (it is not), `cores > 64`, `cores < 8`. The notation is that of
/// Kubernetes' label selectors.
///
/// # Errors
/// The first condition that cannot be read or makes no sense.
pub fn parse(text: &str) -> Result<Vec<LabelExpression>, BadExpression> {
    let conditions = split(text)?;
    conditions.into_iter().map(|condition| parse_one(condition.trim())).collect()
}

/// The conditions of a text: commas within parentheses belong to one of them.
fn split(text: &str) -> Result<Vec<&str>, BadExpression> {
    let (mut parts, mut start, mut is_open) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '(' if is_open => return Err(BadExpression::Syntax(text.to_owned())),
            ')' if !is_open => return Err(BadExpression::Syntax(text.to_owned())),
            '(' | ')' => is_open = c == '(',
            ',' if !is_open => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if is_open {
        return Err(BadExpression::Syntax(text.to_owned()));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

fn parse_one(text: &str) -> Result<LabelExpression, BadExpression> {
    let syntax = || BadExpression::Syntax(text.to_owned());
    let expression = |key: &str, operator, values: Vec<String>| {
        let expression = LabelExpression { key: key.trim().to_owned(), operator, values };
        if expression.key.is_empty() {
            return Err(syntax());
        }
        expression.check().map(|()| expression)
    };
    if let Some(list) = text.strip_suffix(')') {
        let (head, list) = list.split_once('(').ok_or_else(syntax)?;
        let (key, word) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(syntax)?;
        let operator = match word {
            "in" => LabelOperator::In,
            "notin" => LabelOperator::NotIn,
            _ => return Err(syntax()),
        };
        return expression(key, operator, list.split(',').map(|one| one.trim().to_owned()).collect());
    }
    if let Some(key) = text.strip_prefix('!') {
        return expression(key, LabelOperator::DoesNotExist, Vec::new());
    }
    let Some(at) = text.find(['=', '!', '<', '>']) else {
        return expression(text, LabelOperator::Exists, Vec::new());
    };
    let (key, rest) = text.split_at(at);
    let signs = [
        ("==", LabelOperator::In),
        ("=", LabelOperator::In),
        ("!=", LabelOperator::NotIn),
        (">", LabelOperator::Gt),
        ("<", LabelOperator::Lt),
    ];
    let sign = signs.into_iter().find_map(|(sign, operator)| Some((operator, rest.strip_prefix(sign)?)));
    let (operator, value) = sign.ok_or_else(syntax)?;
    expression(key, operator, vec![value.trim().to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> LabelExpression {
        let [expression] = parse(text).unwrap().try_into().unwrap();
        expression
    }

    #[test]
    fn every_operator_is_read_written_and_judged() {
        // Text, as it is written, values that are accepted, values that are not; "-" stands for no label.
        let table = [
            ("zone=a", "zone = a", "a", "b,-"),
            ("zone == a", "zone = a", "a", "b,-"),
            ("zone!=a", "zone != a", "b,-", "a"),
            ("zone in (a,b)", "zone in (a, b)", "a,b", "c,-"),
            ("zone  in  ( a )", "zone = a", "a", "b"),
            ("zone notin (a,b)", "zone notin (a, b)", "c,-", "a,b"),
            ("gpu", "gpu", "x", "-"),
            ("!gpu", "!gpu", "-", "x"),
            ("cores > 64", "cores > 64", "65,100", "64,3,-,many"),
            ("cores<8", "cores < 8", "7,-3", "8,-,9"),
            ("zone=", "zone = ", "", "a"),
        ];
        for (text, shown, accepted, refused) in table {
            let expression = one(text);
            assert_eq!(expression.to_string(), shown);
            assert_eq!(one(shown), expression);
            let values = |list: &'static str| list.split(',').map(|one| (one != "-").then_some(one));
            assert!(values(accepted).all(|value| expression.accepts(value)), "{text}: {accepted}");
            assert!(!values(refused).any(|value| expression.accepts(value)), "{text}: {refused}");
        }
    }

    #[test]
    fn several_conditions_are_separated_by_commas() {
        let all = parse("zone in (a, b), !virtual,cores > 64").unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(parse(&show(&all)).unwrap(), all);
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        let wrong = [
            "",
            "a,,b",
            "=x",
            "zone in a",
            "zone in (a",
            "zone in (a))",
            "zone in ((a))",
            "zone of (a)",
            "a b=c",
            "cores > many",
            "cores >",
            "!a=b",
            "zone !a",
            "in (a)",
        ];
        for text in wrong {
            assert!(parse(text).is_err(), "{text}");
        }
        let expression = |operator, values: &[&str]| LabelExpression {
            key: "zone".to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        assert!(expression(LabelOperator::In, &[]).check().is_err());
        assert!(expression(LabelOperator::Exists, &["a"]).check().is_err());
        assert!(expression(LabelOperator::Gt, &["1", "2"]).check().is_err());
    }

    #[test]
    fn one_value_alone_is_an_equality() {
        assert_eq!(one("zone=a").only_value(), Some("a"));
        assert_eq!(one("zone in (a,b)").only_value(), None);
        assert_eq!(one("zone!=a").only_value(), None);
        assert_eq!(LabelExpression::is("zone", "a"), one("zone=a"));
    }
}
