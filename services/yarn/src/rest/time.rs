//! Points in time as YARN writes them: `2026-11-27T20:15:00.000+0000`.

const MS_PER_DAY: i64 = 86_400_000;
/// Days from 0000-03-01 to 1970-01-01, and in 400 years.
const EPOCH_DAYS: i64 = 719_468;
const ERA_DAYS: i64 = 146_097;

/// A point in time, Unix milliseconds, in UTC.
pub(super) fn show(unix_ms: i64) -> String {
    let (days, ms) = (unix_ms.div_euclid(MS_PER_DAY), unix_ms.rem_euclid(MS_PER_DAY));
    let (year, month, day) = date(days);
    let (hour, minute, second, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60, ms % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}+0000")
}

/// The same back, from any time zone: `+0530`, `+05:30` or `Z`; milliseconds may be left out.
pub(super) fn read(text: &str) -> Option<i64> {
    let (date, time) = text.trim().split_once('T')?;
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let (clock, zone_ms) = zone(time)?;
    let (clock, ms) = match clock.split_once('.') {
        Some((clock, ms)) => (clock, digits(ms, 3)?),
        None => (clock, 0),
    };
    let mut times = clock.split(':');
    let (hour, minute, second) =
        (digits(times.next()?, 2)?, digits(times.next()?, 2)?, digits(times.next()?, 2)?);
    let is_whole = parts.next().is_none() && times.next().is_none();
    let is_clock = hour < 24 && minute < 60 && second < 60;
    let days = days(year, month, day);
    // A day that its month does not have is another one.
    let is_day = self::date(days) == (year, month, day);
    let time_ms = ((hour * 60 + minute) * 60 + second) * 1_000 + ms;
    (is_whole && is_clock && is_day).then(|| days * MS_PER_DAY + time_ms - zone_ms)
}

/// The time without its zone, and how far that is ahead, milliseconds.
fn zone(time: &str) -> Option<(&str, i64)> {
    if let Some(clock) = time.strip_suffix('Z') {
        return Some((clock, 0));
    }
    let at = time.rfind(['+', '-'])?;
    let (clock, zone) = (time.get(..at)?, time.get(at + 1..)?);
    let (hours, minutes) = match zone.split_once(':') {
        Some(both) => both,
        None => (zone.get(..2)?, zone.get(2..)?),
    };
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    let ahead = (hours * 60 + minutes) * 60_000;
    let ahead = if time.get(at..=at)? == "-" { -ahead } else { ahead };
    (hours < 24 && minutes < 60).then_some((clock, ahead))
}

/// So many digits as a number.
fn digits(text: &str, n: usize) -> Option<i64> {
    (text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// The date of a day since the epoch, in the Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAYS;
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Counted from March.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The day since the epoch of a date; of one that there is not some other day.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * ERA_DAYS + day_of_era - EPOCH_DAYS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_those_of_yarn() {
        assert_eq!(show(0), "1970-01-01T00:00:00.000+0000");
        assert_eq!(show(1_709_164_800_123), "2024-02-29T00:00:00.123+0000");
        let same =
            ["2016-12-05T22:51:00.104+0530", "2016-12-05T17:21:00.104Z", "2016-12-05T12:21:00.104-05:00"];
        for text in same {
            assert_eq!(read(text), Some(1_480_958_460_104), "{text}");
        }
        assert_eq!(read("1970-01-01T00:00:01+0000"), Some(1_000));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2016-12-05",
            "2016-12-05T22:51:00",
            "2016-13-05T22:51:00Z",
            "2015-02-29T00:00:00Z",
            "2016-12-05T24:00:00Z",
            "2016-12-05T22:51:00.1Z",
            "2016-12-05T22:51:00+5",
            "2016-12-05T22:51:00+é",
            "tomorrowT",
            "UNLIMITED",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn times_read_back(ms in 0..253_402_300_799_999i64) {
            prop_assert_eq!(read(&show(ms)), Some(ms));
        }

        #[test]
        fn no_text_makes_it_fail(text in "\\PC*") {
            let _ = read(&text);
        }
    }
}
