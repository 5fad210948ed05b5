//! Words that follow a number: `1 unit`, `3 units`.

/// `1 unit`, `3 units`, `2 priority classes`.
pub fn count(n: impl TryInto<u64>, one: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {}", plural(n, one))
}

/// A word for one thing as it is for so many of them.
pub fn plural(n: u64, one: &str) -> String {
    let many = |stem: &str, ending: &str| format!("{stem}{ending}");
    match (n, one.strip_suffix('y')) {
        (1, _) => one.to_owned(),
        (_, Some(stem)) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => many(stem, "ies"),
        _ if one.ends_with(['s', 'x']) || one.ends_with("ch") || one.ends_with("sh") => many(one, "es"),
        _ => many(one, "s"),
    }
}

/// One word for one thing, another one for none or several: `is` and `are`, `has` and `have`.
pub fn one_or<'a>(n: impl TryInto<u64>, one: &'a str, several: &'a str) -> &'a str {
    if n.try_into().is_ok_and(|n| n == 1) { one } else { several }
}

/// `is` or `are`.
pub fn are(n: impl TryInto<u64>) -> &'static str {
    one_or(n, "is", "are")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_their_number() {
        let words = [
            (0, "unit"),
            (1, "unit"),
            (2, "queue"),
            (1, "entry"),
            (3, "entry"),
            (2, "day"),
            (2, "priority class"),
        ];
        assert_eq!(
            words.map(|(n, one)| count(n, one)),
            ["0 units", "1 unit", "2 queues", "1 entry", "3 entries", "2 days", "2 priority classes"]
        );
        assert_eq!([are(0), are(1), are(2)], ["are", "is", "are"]);
        assert_eq!((one_or(1u32, "has", "have"), one_or(7i64, "has", "have")), ("has", "have"));
    }
}
