//! The one rule of names: what units, namespaces, queues, classes, nodes, schedulers, labels, resources and owners may be
//! called. Files, RPCs and registrations are checked by the functions here; `docs/api.md` states the rule.
//!
//! No name and no text for people has control characters.

use godel_base::{
    quantity,
    resources::{CPU, MEMORY, RUNNING_UNITS},
    seed::mix,
};

/// Longest namespace, task group, resource name or label of a path.
pub const NAMESPACE_LEN_MAX: usize = 63;
/// Longest name, label or owner.
pub const NAME_LEN_MAX: usize = 253;
/// Deepest queue path.
pub const QUEUE_DEPTH_MAX: usize = 8;

/// Longest name of an application of YARN, bytes: people and their programs choose it.
pub const APPLICATION_NAME_LEN_MAX: usize = 1_000;
/// Longest path of a queue as a client of YARN names it, bytes.
pub const APPLICATION_QUEUE_LEN_MAX: usize = 512;
/// Most tags of an application of YARN.
pub const N_TAGS_MAX: usize = 32;
/// Longest tag of an application of YARN, bytes.
pub const TAG_LEN_MAX: usize = 100;
/// Longest diagnostics of an application of YARN, bytes.
pub const DIAGNOSTICS_LEN_MAX: usize = 64 << 10;

/// What stands before the name of a user of YARN who has not proved it: such owners are never taken for the principal of that name, whose name has no `:`.
pub const YARN_SIMPLE: &str = "yarn-simple:";

/// The owner that a user of YARN is who has not proved the name.
pub fn yarn_simple(user: &str) -> String {
    format!("{YARN_SIMPLE}{user}")
}

/// What clients of YARN call the owner of an application.
pub fn yarn_user(owner: &str) -> &str {
    owner.strip_prefix(YARN_SIMPLE).unwrap_or(owner)
}

/// The application whose master runs in a unit of an adapter of YARN, by the name of that; `None` for others, as those of opportunistic containers.
pub fn yarn_application(unit: &str) -> Option<String> {
    let (cluster, number) = unit.strip_prefix("application-")?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(cluster) && is_number(number)).then(|| format!("application_{cluster}_{number}"))
}

/// Most labels, selector entries, tolerations, models: what one replica may reasonably name.
pub const ENTRIES_MAX: usize = 64;

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing there.
    #[error("empty")]
    Empty,
    /// Too many characters.
    #[error("{len} characters; at most {max}")]
    Long {
        /// Characters given.
        len: usize,
        /// Characters allowed.
        max: usize,
    },
    /// A character outside the alphabet of names.
    #[error("`{}` is not allowed: lower-case letters, digits, `-` and `.` are", .0.escape_debug())]
    Name(char),
    /// A character outside the alphabet of the labels of a path.
    #[error("`{}` is not allowed: lower-case letters, digits and `-` are", .0.escape_debug())]
    Label(char),
    /// First or last character.
    #[error("must begin and end with a letter or digit")]
    Ends,
    /// A character outside the alphabet of label keys.
    #[error("`{}` is not allowed: letters, digits, `-`, `_`, `.` and `/` are", .0.escape_debug())]
    Key(char),
    /// Nothing before, behind or between the slashes of a label key.
    #[error("a part of it is empty: `NAME` and `PREFIX/NAME` are allowed")]
    KeyPart,
    /// A control character.
    #[error("control characters are not allowed")]
    Control,
    /// An empty label or too deep.
    #[error("a queue path has 1 to {QUEUE_DEPTH_MAX} labels with `.` between them")]
    Path,
    /// A resource that is nearly a well-known one.
    #[error("did you mean `{0}`?")]
    Meant(&'static str),
    /// What every running unit takes one of.
    #[error("running units are counted by themselves; a node says `max_running_units`")]
    Count,
    /// A resource that is no device.
    #[error("is no kind of device")]
    NoDevice,
    /// What no program can be handed.
    #[error("a NUL character is not allowed")]
    Nul,
    /// A name that no environment variable has.
    #[error("not a name of an environment variable: no `=`, no control characters")]
    Variable,
}

/// A name of an object: lower-case letters, digits, `-` and `.`.
///
/// # Errors
/// The first thing wrong.
pub fn name(text: &str, max: usize) -> Result<(), BadName> {
    length(text, max)?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
        return Err(BadName::Name(bad));
    }
    if text.starts_with(['-', '.']) || text.ends_with(['-', '.']) { Err(BadName::Ends) } else { Ok(()) }
}

/// A label key: letters, digits, `-`, `_`, `.` and `/`, with something on both sides of each `/`.
///
/// # Errors
/// The first thing wrong.
pub fn label_key(text: &str) -> Result<(), BadName> {
    length(text, NAME_LEN_MAX)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    // Byte by byte: this is done for each resource of each submission.
    let (mut is_sound, mut before, mut has_empty_part) = (true, b'/', false);
    for byte in text.bytes() {
        is_sound &= allowed(char::from(byte));
        has_empty_part |= byte == b'/' && before == b'/';
        before = byte;
    }
    if let Some(bad) = text.chars().find(|c| !is_sound && !allowed(*c)) {
        return Err(BadName::Key(bad));
    }
    if has_empty_part || before == b'/' { Err(BadName::KeyPart) } else { Ok(()) }
}

/// A resource name: the alphabet of label keys, at most 63 characters, and not what counts running units.
///
/// # Errors
/// The first thing wrong.
pub fn resource(text: &str) -> Result<(), BadName> {
    if text == RUNNING_UNITS {
        return Err(BadName::Count);
    }
    length(text, NAMESPACE_LEN_MAX)?;
    label_key(text)
}

/// A resource that somebody asks for: a [`resource`] that is not nearly a well-known one, as `mem`.
///
/// # Errors
/// The first thing wrong.
pub fn asked(text: &str) -> Result<(), BadName> {
    resource(text)?;
    quantity::meant(text).map_or(Ok(()), |meant| Err(BadName::Meant(meant)))
}

/// A kind of device that somebody asks for: an [`asked`] name of nothing that is counted otherwise.
///
/// # Errors
/// The first thing wrong.
pub fn device_kind(text: &str) -> Result<(), BadName> {
    asked(text)?;
    if matches!(text, CPU | MEMORY) { Err(BadName::NoDevice) } else { Ok(()) }
}

/// A name of an environment variable.
///
/// # Errors
/// It is empty, or has `=` or control characters.
pub fn variable(text: &str) -> Result<(), BadName> {
    if text.is_empty() || text.chars().any(|c| c == '=' || c.is_control()) {
        return Err(BadName::Variable);
    }
    Ok(())
}

/// An argument or the value of an environment variable: handed on as it is, line breaks and all.
///
/// # Errors
/// It has a NUL.
pub fn argument(text: &str) -> Result<(), BadName> {
    if text.contains('\0') { Err(BadName::Nul) } else { Ok(()) }
}

/// Free text, may be empty.
///
/// # Errors
/// The first thing wrong.
pub fn text(text: &str, max: usize) -> Result<(), BadName> {
    if text.is_empty() {
        return Ok(());
    }
    length(text, max)?;
    if text.chars().any(char::is_control) { Err(BadName::Control) } else { Ok(()) }
}

/// A DNS-1123 label: lower-case letters, digits and `-`, at most 63 characters.
///
/// # Errors
/// The first thing wrong.
pub fn label(text: &str) -> Result<(), BadName> {
    length(text, NAMESPACE_LEN_MAX)?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
        return Err(BadName::Label(bad));
    }
    if text.starts_with('-') || text.ends_with('-') { Err(BadName::Ends) } else { Ok(()) }
}

/// A queue path: [`label`]s with `.` between them.
///
/// # Errors
/// The first thing wrong.
pub fn queue(path: &str) -> Result<(), BadName> {
    length(path, NAME_LEN_MAX)?;
    if path.split('.').count() > QUEUE_DEPTH_MAX || path.split('.').any(str::is_empty) {
        return Err(BadName::Path);
    }
    path.split('.').try_for_each(label)
}

/// The number of a hyphenated UUID; `None` if it is none.
pub fn uuid(text: &str) -> Option<u128> {
    let bytes: &[u8; 36] = text.as_bytes().try_into().ok()?;
    if [8, 13, 18, 23].iter().any(|idx| bytes[*idx] != b'-') {
        return None;
    }
    let (mut number, mut wrong) = (0u128, 0);
    for range in [0..8, 9..13, 14..18, 19..23, 24..36] {
        // In words of 64 bits, one group at a time: this is done for each submission.
        let (mut part, digits) = (0u64, range.len());
        for byte in &bytes[range] {
            let digit = HEX[usize::from(*byte)];
            wrong |= digit;
            part = part << 4 | u64::from(digit & 0xf);
        }
        number = number << (4 * digits) | u128::from(part);
    }
    (wrong & NO_DIGIT == 0).then_some(number)
}

/// In [`HEX`] for what is no digit.
const NO_DIGIT: u8 = 0x80;

/// Values of hexadecimal digits.
const HEX: [u8; 256] = {
    let mut table = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value as usize] as usize] = value;
        table[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    table
};

/// Letters and digits of generated names: no vowels, so that no words come out, and nothing that is taken for another.
const SUFFIX: &[u8; 27] = b"bcdfghjkmnpqrstvwxz23456789";
/// So many of them end a generated name: of a million names with one beginning two are the same once in 500,000 times.
pub const SUFFIX_LEN: usize = 8;

/// The name that begins with `prefix` and ends as the number of a UUID says: the same number always gives the same name,
/// with every version of godel.
pub fn generated(prefix: &str, uuid: u128) -> String {
    let low = u64::try_from(uuid & u128::from(u64::MAX)).unwrap_or_default();
    let high = u64::try_from(uuid >> 64).unwrap_or_default();
    let mut number = mix(mix(high) ^ low);
    let mut name = String::with_capacity(prefix.len() + SUFFIX_LEN);
    name.push_str(prefix);
    for _ in 0..SUFFIX_LEN {
        let idx = usize::try_from(number % SUFFIX.len() as u64).unwrap_or_default();
        name.push(char::from(SUFFIX[idx]));
        number /= SUFFIX.len() as u64;
    }
    name
}

/// First and last number of the UUIDs that begin with `prefix`; `None` if no UUID does.
pub fn uuid_range(prefix: &str) -> Option<(u128, u128)> {
    if prefix.is_empty() || prefix.len() > 36 {
        return None;
    }
    let (mut number, mut digits) = (0u128, 0u32);
    for (idx, c) in prefix.chars().enumerate() {
        if matches!(idx, 8 | 13 | 18 | 23) {
            if c != '-' {
                return None;
            }
        } else {
            number = number << 4 | u128::from(c.to_digit(16)?);
            digits += 1;
        }
    }
    let open = 4 * (32 - digits);
    let last = if open == 0 { number } else { number << open | (u128::MAX >> (128 - open)) };
    Some((if open == 128 { 0 } else { number << open }, last))
}

fn length(text: &str, max: usize) -> Result<(), BadName> {
    if text.is_empty() {
        return Err(BadName::Empty);
    }
    if text.len() > max {
        return Err(BadName::Long { len: text.chars().count().max(max + 1), max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_no_slip() {
        for good in ["cpu", "memory", "gpu", "fpga", "example.com/mem", "npu"] {
            assert_eq!(asked(good), Ok(()), "{good}");
        }
        assert_eq!(asked("mem"), Err(BadName::Meant("memory")));
        assert_eq!(asked("CPU").unwrap_err().to_string(), "did you mean `cpu`?");
        assert_eq!(asked("a b"), Err(BadName::Key(' ')));
    }

    #[test]
    fn control_characters_are_nowhere() {
        for bad in ["a\nb", "a\u{1b}[31m", "a\u{7f}", "a\u{85}b", "\0"] {
            assert!(name(bad, 63).is_err() && label(bad).is_err() && label_key(bad).is_err(), "{bad:?}");
            assert!(queue(bad).is_err() && resource(bad).is_err() && text(bad, 63).is_err(), "{bad:?}");
            assert!(variable(bad).is_err(), "{bad:?}");
            let told = name(bad, 63).unwrap_err().to_string();
            assert!(!told.contains(char::is_control), "{told:?}");
        }
        assert_eq!((argument("two\nlines"), argument("a\0")), (Ok(()), Err(BadName::Nul)));
        assert_eq!((variable("PATH"), variable("A=B")), (Ok(()), Err(BadName::Variable)));
    }

    #[test]
    fn names() {
        for good in ["a", "web-1", "a.b", "0"] {
            assert_eq!(name(good, 63), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", BadName::Empty),
            ("Web", BadName::Name('W')),
            ("a_b", BadName::Name('_')),
            ("-a", BadName::Ends),
            ("a.", BadName::Ends),
            ("ä", BadName::Name('ä')),
            ("abcd", BadName::Long { len: 4, max: 3 }),
        ] {
            let max = if matches!(why, BadName::Long { .. }) { 3 } else { 63 };
            assert_eq!(name(bad, max), Err(why), "{bad}");
        }
    }

    #[test]
    fn parts_of_label_keys_are_not_empty() {
        for good in ["zone", "example.com/zone", "a/b/c", "Zone_1"] {
            assert_eq!(label_key(good), Ok(()), "{good}");
        }
        for bad in ["/zone", "zone/", "a//b", "/"] {
            assert_eq!(label_key(bad), Err(BadName::KeyPart), "{bad}");
            assert_eq!(resource(bad), Err(BadName::KeyPart), "{bad}");
        }
    }

    #[test]
    fn queues() {
        let longest = [&"a".repeat(63), &"b".repeat(63), &"c".repeat(63), "d".repeat(61).as_str()].join(".");
        for good in ["default", "prod.search", "org.team-a.etl", "0.9", "a.b.c.d.e.f.g.h", &longest] {
            assert_eq!(queue(good), Ok(()), "{good}");
        }
        let (long_label, long) = (format!("a.{}", "b".repeat(64)), format!("{longest}d"));
        for (bad, why) in [
            ("", BadName::Empty),
            (".a", BadName::Path),
            ("a.", BadName::Path),
            ("a..b", BadName::Path),
            ("a.b.c.d.e.f.g.h.i", BadName::Path),
            ("a/b", BadName::Label('/')),
            ("a.B", BadName::Label('B')),
            ("a.ä", BadName::Label('ä')),
            ("a.-b", BadName::Ends),
            ("a-.b", BadName::Ends),
            (&long_label, BadName::Long { len: 64, max: 63 }),
            (&long, BadName::Long { len: 254, max: 253 }),
        ] {
            assert_eq!(queue(bad), Err(why), "{bad}");
        }
        assert_eq!(label("best-effort"), Ok(()));
        assert_eq!(label("a.b"), Err(BadName::Label('.')));
    }

    #[test]
    fn uuids() {
        let text = "0190163d-8694-739b-aea5-966c26f8ad91";
        let number = 0x0190_163d_8694_739b_aea5_966c_26f8_ad91;
        assert_eq!(uuid(text), Some(number));
        assert_eq!(uuid(&text.to_uppercase()), Some(number));
        for bad in [
            "",
            "0190163d8694739baea5966c26f8ad91",
            "0190163d-8694-739b-aea5-966c26f8ad9",
            "g190163d-8694-739b-aea5-966c26f8ad91",
        ] {
            assert_eq!(uuid(bad), None, "{bad}");
        }
        for end in 1..=text.len() {
            let (first, last) = uuid_range(&text[..end]).unwrap();
            assert!((first..=last).contains(&number), "{}", &text[..end]);
        }
        assert_eq!(uuid_range(text), Some((number, number)));
        assert_eq!(uuid_range("0190163d8"), None);
        assert_eq!(uuid_range("web"), None);
    }
}
