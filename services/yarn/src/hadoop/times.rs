//! Times of day as YARN writes them: `2026-11-27T20:15:30.123+0000`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time, in UTC. Times before 1970 are shown as its beginning.
pub(super) fn shown(ms: i64) -> String {
    // More than that is past the year 9999, which no calendar here writes.
    const LAST_MS: u64 = 253_402_300_799_999;
    let ms = u64::try_from(ms).unwrap_or(0).min(LAST_MS);
    let at: SystemTime = UNIX_EPOCH + Duration::from_millis(ms);
    let text = humantime::format_rfc3339_millis(at).to_string();
    format!("{}+0000", text.trim_end_matches('Z'))
}

/// Reads a time with its offset from UTC, Unix milliseconds; `None`: it is none.
pub(super) fn read(text: &str) -> Option<i64> {
    let (local, offset_min) = match text.strip_suffix('Z') {
        Some(local) => (local, 0),
        None => {
            let at = text.len().checked_sub(5)?;
            let (local, offset) = (text.get(..at)?, text.get(at..)?);
            (local, offset_minutes(offset)?)
        }
    };
    let at = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let ms = i64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()?;
    ms.checked_sub(offset_min * 60_000)
}

/// Minutes of `+0130`.
fn offset_minutes(text: &str) -> Option<i64> {
    let sign = match text.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let digits = text.get(1..).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (hours, minutes): (i64, i64) = (digits.get(..2)?.parse().ok()?, digits.get(2..)?.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_written_as_yarn_does() {
        assert_eq!(shown(1_000_000_000_123), "2001-09-09T01:46:40.123+0000");
        assert_eq!(shown(-5), "1970-01-01T00:00:00.000+0000");
        assert_eq!(read("2001-09-09T03:46:40.123+0200"), Some(1_000_000_000_123));
        assert_eq!(read("2001-09-08T20:16:40.123-0530"), Some(1_000_000_000_123));
        assert_eq!(read("2001-09-09T01:46:40.123Z"), Some(1_000_000_000_123));
        for broken in ["", "UNLIMITED", "2001-09-09T01:46:40.123", "2001-09-09T01:46:40.123+02:00", "ä+0000"]
        {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text: String, ms in 0i64..253_402_300_799_999) {
            let _any = read(&text);
            prop_assert_eq!(read(&shown(ms)), Some(ms));
        }
    }
}
