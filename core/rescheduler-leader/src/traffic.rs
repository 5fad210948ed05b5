//! Which units talk to one another: what a file says, and what was reported since the leader began.

use std::collections::BTreeMap;

/// A unit by namespace and name.
pub type UnitName = (String, String);

/// Traffic by pair, the lesser name first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    pairs: BTreeMap<(UnitName, UnitName), f64>,
}

/// A unit as `namespace/name`; without `/` it is in `default`.
///
/// # Errors
/// One of both is empty.
pub fn unit_name(text: &str) -> Result<UnitName, String> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() {
        return Err(format!("`{text}` is no unit; write `namespace/name`"));
    }
    Ok((namespace.to_owned(), name.to_owned()))
}

impl Traffic {
    /// Takes the traffic of a pair; 0 forgets it. False: there are too many pairs already.
    pub fn set(&mut self, one: UnitName, other: UnitName, weight: f64, n_max: usize) -> bool {
        let pair = if one <= other { (one, other) } else { (other, one) };
        if weight <= 0.0 {
            self.pairs.remove(&pair);
            return true;
        }
        if self.pairs.len() >= n_max && !self.pairs.contains_key(&pair) {
            return false;
        }
        self.pairs.insert(pair, weight);
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(UnitName, UnitName), f64)> {
        self.pairs.iter().map(|(pair, weight)| (pair, *weight))
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Reads a file: a pair per line with its weight, as `default/web default/cache 120`. Empty lines and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// The first line that is wrong, with its number.
    pub fn parse(text: &str, n_max: usize) -> Result<Self, String> {
        let mut traffic = Self::default();
        for (at, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first().is_none_or(|word| word.starts_with('#')) {
                continue;
            }
            let wrong = |why: &str| format!("line {at}: {why}");
            let [from, to, weight] = words.as_slice() else {
                return Err(wrong("two units and a weight are expected"));
            };
            let weight: f64 = weight.parse().map_err(|_| wrong("the weight is no number"))?;
            if !is_weight(weight) {
                return Err(wrong("the weight is below 0, or not finite"));
            }
            let (from, to) = (unit_name(from), unit_name(to));
            let (from, to) = (from.map_err(|why| wrong(&why))?, to.map_err(|why| wrong(&why))?);
            if !traffic.set(from, to, weight, n_max) {
                return Err(wrong(&format!("more than {n_max} pairs")));
            }
        }
        Ok(traffic)
    }

    /// Puts what a file says below what was reported.
    pub(crate) fn merged(&self, reported: &Self) -> Self {
        let mut merged = self.clone();
        merged.pairs.extend(reported.pairs.iter().map(|(pair, weight)| (pair.clone(), *weight)));
        merged
    }
}

/// What is known of traffic: what was reported stands above what a file says.
#[derive(Clone, Debug, Default)]
pub struct KnownTraffic {
    read: Traffic,
    reported: Traffic,
}

impl KnownTraffic {
    /// Takes what a file says, in place of what one said before.
    pub fn replace_read(&mut self, traffic: Traffic) {
        self.read = traffic;
    }

    /// Takes the traffic of a pair of units as somebody reports it. False: there are more than `n_max` pairs.
    pub fn report(&mut self, from: UnitName, to: UnitName, weight: f64, n_max: usize) -> bool {
        self.reported.set(from, to, weight, n_max)
    }

    /// Returns of how many pairs of units the traffic is known.
    pub fn n_pairs(&self) -> usize {
        self.merged().len()
    }

    pub(crate) fn merged(&self) -> Traffic {
        self.read.merged(&self.reported)
    }
}

/// Whether a number is a weight.
pub fn is_weight(weight: f64) -> bool {
    weight.is_finite() && weight >= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_pair_per_line() {
        let text = "# from the mesh\n\ndefault/web cache 1.5\nb/y a/x 2\ncache default/web 7\n";
        let traffic = Traffic::parse(text, 10).unwrap();
        assert_eq!(traffic.len(), 2, "either order is one pair");
        let name = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let pairs: Vec<_> = traffic.iter().map(|(pair, weight)| (pair.clone(), weight)).collect();
        assert_eq!(
            pairs,
            [
                ((name("a", "x"), name("b", "y")), 2.0),
                ((name("default", "cache"), name("default", "web")), 7.0)
            ]
        );
        for (text, said) in [
            ("a b\n", "line 1: two units"),
            ("\na b many\n", "line 2: the weight is no number"),
            ("a b -1\n", "line 1: the weight is below 0"),
            ("a /b 1\n", "line 1: `/b` is no unit"),
            ("a b 1\na c 1\na d 1", "line 3: more than 2 pairs"),
        ] {
            assert!(Traffic::parse(text, 2).unwrap_err().contains(said), "{text}");
        }
    }

    #[test]
    fn what_is_reported_comes_before_the_file() {
        let file = Traffic::parse("a b 1\nc d 1\n", 10).unwrap();
        let mut reported = Traffic::parse("b a 5\n", 10).unwrap();
        assert_eq!(file.merged(&reported), Traffic::parse("a b 5\nc d 1", 10).unwrap());
        let (a, b) = (unit_name("a").unwrap(), unit_name("b").unwrap());
        assert!(reported.set(a, b, 0.0, 0));
        assert_eq!(reported.len(), 0);
    }
}
