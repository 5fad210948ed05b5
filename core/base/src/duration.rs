//! Durations as people write them: `250ms`, `30s`, `1h 30m`, `7d`. Files, flags and configuration are read by the same
//! function, and what is printed reads back as the same duration.

use std::time::Duration;

/// Milliseconds of one day.
const DAY_MS: u64 = 24 * 3_600 * 1_000;
/// What `1y` is: 365 days and a quarter, milliseconds. Bounds of one year are this long.
pub const YEAR_MS: u64 = DAY_MS * 365 + DAY_MS / 4;

/// Text that is no duration, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// Not in the notation.
    #[error("`{text}` is no duration such as `30s`, `5m` or `1h 30m`: {why}")]
    Notation {
        /// As written.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A month is not always as long, and its letter is nearly that of a minute.
    #[error("`{text}`: `{unit}` would be months; write `m` for minutes, or days as `30d`")]
    Month {
        /// As written.
        text: String,
        /// The unit that was written.
        unit: String,
    },
    /// Something would be lost.
    #[error("`{text}` is finer than a millisecond")]
    Fine {
        /// As written.
        text: String,
    },
}

/// A duration, of nanoseconds if it is so written.
///
/// # Errors
/// It is none, or is written in months.
pub fn parse(text: &str) -> Result<Duration, BadDuration> {
    let units = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|unit| !unit.is_empty());
    for unit in units {
        if matches!(unit, "M" | "month" | "months") {
            return Err(BadDuration::Month { text: text.to_owned(), unit: unit.to_owned() });
        }
    }
    humantime::parse_duration(text).map_err(|error| {
        let why = match error {
            humantime::DurationError::Empty => "it is empty".to_owned(),
            humantime::DurationError::NumberExpected(_) => "it begins with a number".to_owned(),
            humantime::DurationError::InvalidCharacter(_) => "a character is out of place".to_owned(),
            humantime::DurationError::NumberOverflow => "it is too long".to_owned(),
            humantime::DurationError::UnknownUnit { unit, .. } if unit.is_empty() => {
                "the unit is missing: `ms`, `s`, `m`, `h`, `d`, `w` or `y`".to_owned()
            }
            humantime::DurationError::UnknownUnit { unit, .. } => {
                format!("`{unit}` is no unit: `ms`, `s`, `m`, `h`, `d`, `w` or `y`")
            }
        };
        BadDuration::Notation { text: text.to_owned(), why }
    })
}

/// A duration in whole milliseconds, as the API counts.
///
/// # Errors
/// As [`parse`], and what is finer than a millisecond.
pub fn parse_ms(text: &str) -> Result<u64, BadDuration> {
    let duration = parse(text)?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(BadDuration::Fine { text: text.to_owned() });
    }
    u64::try_from(duration.as_millis())
        .map_err(|_| BadDuration::Notation { text: text.to_owned(), why: "it is too long".to_owned() })
}

/// The same as a [`Duration`], for flags.
///
/// # Errors
/// As [`parse_ms`].
pub fn parse_whole(text: &str) -> Result<Duration, BadDuration> {
    parse_ms(text).map(Duration::from_millis)
}

/// Milliseconds as people write them: `1h 30m`, `250ms`, `0s`; years only where nothing is left over.
pub fn show_ms(ms: u64) -> String {
    show(Duration::from_millis(ms))
}

/// A duration as people write it.
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    let year = u128::from(YEAR_MS);
    let nanos = u128::from(duration.subsec_nanos() % 1_000_000);
    if ms > 0 && ms.is_multiple_of(year) && nanos == 0 {
        return format!("{}y", ms / year);
    }
    let units = [("d", u128::from(DAY_MS)), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, size) in units {
        if rest >= size {
            parts.push(format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    match nanos {
        0 => {}
        whole if whole % 1_000 == 0 => parts.push(format!("{}us", whole / 1_000)),
        nanos => parts.push(format!("{nanos}ns")),
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("1000us", 1),
            ("0s", 0),
            ("0", 0),
            ("7d", 7 * DAY_MS),
            ("2w", 14 * DAY_MS),
            ("1y", YEAR_MS),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for (text, expected) in [
            ("1M", "`1M`: `M` would be months; write `m` for minutes, or days as `30d`"),
            ("2 months", "`months` would be months"),
            ("900us", "`900us` is finer than a millisecond"),
            ("1s 1ns", "is finer than a millisecond"),
            ("soon", "`soon` is no duration such as `30s`, `5m` or `1h 30m`: it begins with a number"),
            ("5", "the unit is missing"),
            ("5 parsecs", "`parsecs` is no unit"),
            ("", "it is empty"),
            ("-5s", "no duration"),
            ("99999999999999999999y", "no duration"),
        ] {
            let found = parse_ms(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}: {found}");
        }
        assert_eq!(parse("900us"), Ok(Duration::from_micros(900)));
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(ms in any::<u64>().prop_map(|ms| ms >> 20), small in 0u64..100_000, years in 0u64..9) {
            for ms in [ms, small, years * YEAR_MS] {
                prop_assert_eq!(parse_ms(&show_ms(ms)), Ok(ms), "{}", show_ms(ms));
            }
        }

        #[test]
        fn finer_ones_read_back_too(nanos in 0u64..10_000_000_000) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&show(duration)), Ok(duration));
        }
    }
}
