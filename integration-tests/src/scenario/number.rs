//! Numbers as expectations say them: `3`, `>= 3`, `< 3`, `2..5`, `300 +- 2%`.

use std::fmt;

use super::scalar::Scalar;
use serde::{Deserialize, Deserializer};

/// A range of whole numbers, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    min: i64,
    max: i64,
    text: String,
}

impl Number {
    /// Whether it accepts `n`.
    pub(crate) fn has(&self, n: i64) -> bool {
        (self.min..=self.max).contains(&n)
    }

    /// That number alone.
    pub(crate) fn exactly(n: i64) -> Self {
        Self { min: n, max: n, text: n.to_string() }
    }

    /// 1 or more.
    pub(crate) fn some() -> Self {
        Self { min: 1, max: i64::MAX, text: ">= 1".to_owned() }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let whole = |part: &str| {
            part.trim().parse::<i64>().map_err(|_| {
                format!("`{text}` is no number as `3`, `>= 3`, `> 3`, `<= 3`, `< 3`, `2..5` or `300 +- 2%`")
            })
        };
        let (min, max) = if let Some(rest) = text.strip_prefix(">=") {
            (whole(rest)?, i64::MAX)
        } else if let Some(rest) = text.strip_prefix('>') {
            (whole(rest)?.saturating_add(1), i64::MAX)
        } else if let Some(rest) = text.strip_prefix("<=") {
            (i64::MIN, whole(rest)?)
        } else if let Some(rest) = text.strip_prefix('<') {
            (i64::MIN, whole(rest)?.saturating_sub(1))
        } else if let Some((from, to)) = text.split_once("..") {
            (whole(from)?, whole(to)?)
        } else if let Some((middle, percent)) = text.split_once("+-") {
            let middle = whole(middle)?;
            let slack = middle.saturating_mul(whole(percent.trim().trim_end_matches('%'))?) / 100;
            (middle - slack, middle + slack)
        } else {
            let n = whole(text)?;
            (n, n)
        };
        Ok(Self { min, max, text: text.to_owned() })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar("a number", |text: &str| Self::parse(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ranges() {
        for (text, inside, outside) in [
            ("3", vec![3], vec![2, 4]),
            (">= 3", vec![3, 9], vec![2]),
            ("> 3", vec![4], vec![3]),
            ("<= 3", vec![3, 0], vec![4]),
            ("< 3", vec![2], vec![3]),
            ("2..5", vec![2, 5], vec![1, 6]),
            ("300 +- 2%", vec![294, 306], vec![293, 307]),
            ("-1", vec![-1], vec![0]),
        ] {
            let number = Number::parse(text).unwrap();
            assert!(inside.iter().all(|n| number.has(*n)), "{text}");
            assert!(!outside.iter().any(|n| number.has(*n)), "{text}");
        }
        assert!(Number::parse("many").is_err());
        assert!(Number::parse("3 +- much").is_err());
    }
}
