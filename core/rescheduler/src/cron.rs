//! Times as cron writes them: five fields, minute, hour, day of the month, month and day of the week, in UTC.
//!
//! A field is `*`, a number, a range `a-b`, any of these with a step `/n`, or several of them with commas. Days of the week are 0
//! to 7, 0 and 7 being Sunday. As in cron, a day suits if either of the two fields of days does, unless one of them is `*`.

use std::{fmt, str::FromStr};

/// Seconds of a minute, and of a day.
const MINUTE: i64 = 60;
const DAY: i64 = 86_400;
/// Days in which the next time must be: a day of February 29th that is also a month's last may be eight years away.
const N_DAYS_MAX: i64 = 366 * 9;

/// Times at which something is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronTable {
    text: String,
    /// A set of bits for each field.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether the fields of days say `*`.
    any_day: bool,
    any_weekday: bool,
}

/// Why a text is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCron {
    /// There are not five fields.
    #[error("`{text}` has {n} fields; minute, hour, day of the month, month and day of the week are five")]
    Fields {
        /// As written.
        text: String,
        /// How many.
        n: usize,
    },
    /// A field is not in the notation, or has a number that is out of its range.
    #[error(
        "`{field}` is no {name} from {least} to {most}, as `*`, `5`, `1-5`, `*/10` or several with commas"
    )]
    Field {
        /// As written.
        field: String,
        /// What it stands for.
        name: &'static str,
        /// The least number.
        least: u32,
        /// The greatest number.
        most: u32,
    },
    /// No day is ever in it, as February 30th.
    #[error("`{0}` is never due")]
    Never(String),
}

impl FromStr for CronTable {
    type Err = BadCron;

    fn from_str(text: &str) -> Result<Self, BadCron> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(BadCron::Fields { text: text.to_owned(), n: fields.len() });
        };
        let week = field(weekdays, "day of the week", 0, 7)?;
        let table = Self {
            text: fields.join(" "),
            minutes: field(minutes, "minute", 0, 59)?,
            hours: field(hours, "hour", 0, 23)?,
            days: field(days, "day of the month", 1, 31)?,
            months: field(months, "month", 1, 12)?,
            weekdays: week | week >> 7 & 1,
            any_day: *days == "*",
            any_weekday: *weekdays == "*",
        };
        match table.next_after(0) {
            Some(_) => Ok(table),
            None => Err(BadCron::Never(text.to_owned())),
        }
    }
}

impl fmt::Display for CronTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl CronTable {
    /// Returns the first due second after a time, both as Unix seconds; `None` if there is none within nine years.
    pub fn next_after(&self, unix_s: i64) -> Option<i64> {
        let from = unix_s.div_euclid(MINUTE) * MINUTE + MINUTE;
        let first = from.div_euclid(DAY);
        (first..first + N_DAYS_MAX).find_map(|day| {
            if !self.has_day(day) {
                return None;
            }
            let earliest = if day == first { from.rem_euclid(DAY) / MINUTE } else { 0 };
            let minute = (earliest..DAY / MINUTE)
                .find(|minute| has(self.hours, minute / 60) && has(self.minutes, minute % 60))?;
            Some(day * DAY + minute * MINUTE)
        })
    }

    fn has_day(&self, day: i64) -> bool {
        let (month, of_month) = month_and_day(day);
        // 1970-01-01 was a Thursday.
        let weekday = (day + 4).rem_euclid(7);
        let (suits_month, suits_week) = (has(self.days, of_month), has(self.weekdays, weekday));
        let suits = match (self.any_day, self.any_weekday) {
            (true, _) | (_, true) => suits_month && suits_week,
            (false, false) => suits_month || suits_week,
        };
        has(self.months, month) && suits
    }
}

fn has(set: u64, number: i64) -> bool {
    (0..64).contains(&number) && set >> number & 1 == 1
}

/// Returns the month and its day, both from 1, of a day counted from 1970-01-01: Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`.
fn month_and_day(day: i64) -> (i64, i64) {
    let of_era = (day + 719_468).rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (month, of_year - (153 * shifted + 2) / 5 + 1)
}

fn field(text: &str, name: &'static str, least: u32, most: u32) -> Result<u64, BadCron> {
    let bad = || BadCron::Field { field: text.to_owned(), name, least, most };
    let number = |text: &str| {
        let digits = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let mut set = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(number(step).filter(|step| *step > 0).ok_or_else(bad)?)),
            None => (part, None),
        };
        let (from, to) = match (range, range.split_once('-')) {
            ("*", _) => (least, most),
            (_, Some((from, to))) => (number(from).ok_or_else(bad)?, number(to).ok_or_else(bad)?),
            (_, None) => {
                let from = number(range).ok_or_else(bad)?;
                (from, if step.is_some() { most } else { from })
            }
        };
        if from < least || to > most || from > to {
            return Err(bad());
        }
        let step = usize::try_from(step.unwrap_or(1)).map_err(|_| bad())?;
        set |= (from..=to).step_by(step).fold(0u64, |set, number| set | 1 << number);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01 00:00 UTC, a Thursday.
    const NEW_YEAR: i64 = 1_767_225_600;

    fn next(text: &str, after: i64) -> i64 {
        text.parse::<CronTable>().unwrap().next_after(after).unwrap() - NEW_YEAR
    }

    #[test]
    fn the_next_time_is_the_first_that_suits_all_fields() {
        for (text, after, expected) in [
            ("* * * * *", 0, MINUTE),
            ("* * * * *", 59, MINUTE),
            ("*/15 * * * *", 0, 15 * MINUTE),
            ("0 3 * * *", 0, 3 * 3_600),
            ("0 0 * * *", 0, DAY),
            ("30 2 * * 1-5", 0, 2 * 3_600 + 30 * MINUTE),
            ("0 0 * * 0", 0, 3 * DAY),
            ("0 0 * * 7", 0, 3 * DAY),
            ("0 0 1 2 *", 0, 31 * DAY),
            ("0 0 29 2 *", 0, (365 + 365 + 31 + 28) * DAY),
            // Either field of days is enough when both say something.
            ("0 0 13 * 5", 0, DAY),
            ("5,10 1 * * *", 3_600 + 5 * MINUTE, 3_600 + 10 * MINUTE),
            ("50/5 * * * *", 0, 50 * MINUTE),
        ] {
            assert_eq!(next(text, NEW_YEAR + after), expected, "{text} after {after}");
        }
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_field() {
        for text in ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *"] {
            assert!(matches!(text.parse::<CronTable>(), Err(BadCron::Field { .. })), "{text}");
        }
        for text in ["a * * * *", "1- * * * *", "5-1 * * * *", "+1 * * * *", ", * * * *", "1//2 * * * *"] {
            assert!(matches!(text.parse::<CronTable>(), Err(BadCron::Field { .. })), "{text}");
        }
        assert_eq!("* *".parse::<CronTable>(), Err(BadCron::Fields { text: "* *".to_owned(), n: 2 }));
        assert_eq!("0 0 30 2 *".parse::<CronTable>(), Err(BadCron::Never("0 0 30 2 *".to_owned())));
    }

    mod properties {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            /// No minute between is due: the naive search minute by minute agrees.
            #[test]
            fn no_due_minute_is_skipped(minute in 0u32..60, hour in 0u32..24, step in 1u32..30, after in 0i64..4 * DAY) {
                let table: CronTable = format!("{minute}/{step} {hour} * * *").parse().unwrap();
                let is_due = |time: i64| {
                    let (of_hour, of_day) = (time / MINUTE % 60, time.rem_euclid(DAY) / 3_600);
                    of_day == i64::from(hour)
                        && of_hour >= i64::from(minute)
                        && (of_hour - i64::from(minute)) % i64::from(step) == 0
                };
                let first = (after / MINUTE + 1..).map(|at| at * MINUTE).find(|time| is_due(*time));
                prop_assert_eq!(table.next_after(after), first);
            }

            #[test]
            fn any_text_is_read_without_a_panic(text in "[0-9*/, -]{0,24}") {
                if let Ok(table) = text.parse::<CronTable>() {
                    prop_assert!(table.next_after(0).is_some());
                    prop_assert_eq!(table.to_string().parse::<CronTable>().unwrap(), table);
                }
            }
        }
    }
}
