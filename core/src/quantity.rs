//! Quantities as people write them, in Kubernetes' notation: `500m`, `2`, `1.5Gi`.

/// Text that is no quantity, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}: {why}")]
pub struct BadQuantity {
    /// As written.
    pub text: String,
    /// What it should be.
    pub what: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Suffixes and their factors; the longer of two that match stands first.
const SUFFIXES: [(&str, i128); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];
/// Digits after the decimal point that are read.
const N_FRACTION_DIGITS_MAX: usize = 9;

/// Milli-cores of a CPU quantity: `500m` is 500, `2` is 2,000, `0.5` is 500.
///
/// # Errors
/// Not a number, negative, finer than a milli-core, or too large.
pub fn parse_cpu_milli(text: &str) -> Result<i64, BadQuantity> {
    match text.strip_suffix('m') {
        Some(milli) => scaled(text, milli, 1, "CPU quantity (`500m`, `2`, `0.5`)"),
        None => scaled(text, text, 1000, "CPU quantity (`500m`, `2`, `0.5`)"),
    }
}

/// Bytes of a memory quantity: `1Gi`, `512Mi`, `1.5G`, `1048576`.
///
/// # Errors
/// Not a number, negative, a fraction of a byte, an unknown suffix, or too large.
pub fn parse_bytes(text: &str) -> Result<i64, BadQuantity> {
    with_suffix(text, "memory quantity (`512Mi`, `1Gi`, `1.5G`)")
}

/// Whole units of any other resource: `3`, `2k`.
///
/// # Errors
/// Not a number, negative, a fraction, an unknown suffix, or too large.
pub fn parse_count(text: &str) -> Result<i64, BadQuantity> {
    with_suffix(text, "whole number")
}

/// A quantity of the resource `name`, in the unit that `Resources` keeps it in.
///
/// # Errors
/// As the parser of that resource.
pub fn parse(name: &str, text: &str) -> Result<i64, BadQuantity> {
    match name {
        crate::resources::CPU => parse_cpu_milli(text),
        crate::resources::MEMORY => parse_bytes(text),
        _ => parse_count(text),
    }
}

/// Milli-cores as people read them: `500m`, `2`, `1.5`.
pub fn show_cpu(milli: i64) -> String {
    if milli % 1000 == 0 {
        (milli / 1000).to_string()
    } else if milli.abs() < 1000 {
        format!("{milli}m")
    } else {
        let text = format!("{}.{:03}", milli / 1000, (milli % 1000).abs());
        text.trim_end_matches('0').to_owned()
    }
}

/// Bytes as people read them: in the largest binary unit of which there is at least one, with one decimal.
pub fn show_bytes(bytes: i64) -> String {
    let wide = i128::from(bytes);
    let unit = SUFFIXES[..6].iter().rev().find(|(_, factor)| wide.abs() >= *factor);
    let Some((suffix, factor)) = unit else { return bytes.to_string() };
    let tenths = wide * 10 / factor;
    if tenths % 10 == 0 {
        format!("{}{suffix}", tenths / 10)
    } else {
        format!("{}.{}{suffix}", tenths / 10, tenths % 10)
    }
}

/// An amount of the resource `name` as people read it.
pub fn show(name: &str, amount: i64) -> String {
    match name {
        crate::resources::CPU => show_cpu(amount),
        crate::resources::MEMORY => show_bytes(amount),
        _ => amount.to_string(),
    }
}

fn with_suffix(text: &str, what: &'static str) -> Result<i64, BadQuantity> {
    for (suffix, factor) in SUFFIXES {
        if let Some(number) = text.strip_suffix(suffix) {
            return scaled(text, number, factor, what);
        }
    }
    scaled(text, text, 1, what)
}

/// `number × factor` as a whole number.
fn scaled(text: &str, number: &str, factor: i128, what: &'static str) -> Result<i64, BadQuantity> {
    let bad = |why| BadQuantity { text: text.to_owned(), what, why };
    if number.starts_with('-') {
        return Err(bad("it is negative"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return Err(bad("not a number with a known suffix"));
    }
    if fraction.len() > N_FRACTION_DIGITS_MAX || whole.len() > 19 {
        return Err(bad("too many digits"));
    }
    let scale = 10i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| bad("too many digits"))?;
    let product = digits * factor;
    if product % scale != 0 {
        return Err(bad("it is finer than the smallest unit"));
    }
    i64::try_from(product / scale).map_err(|_| bad("it is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (name, text, expected) in [
            ("cpu", "500m", Ok(500)),
            ("cpu", "2", Ok(2000)),
            ("cpu", "0.5", Ok(500)),
            ("cpu", "1.25", Ok(1250)),
            ("cpu", "0", Ok(0)),
            ("cpu", "0.0005", Err("it is finer than the smallest unit")),
            ("cpu", "2Gi", Err("not a number with a known suffix")),
            ("cpu", "-1", Err("it is negative")),
            ("cpu", "", Err("not a number with a known suffix")),
            ("cpu", ".", Err("not a number with a known suffix")),
            ("memory", "1Gi", Ok(1 << 30)),
            ("memory", "1.5Gi", Ok(3 << 29)),
            ("memory", "512Mi", Ok(512 << 20)),
            ("memory", "1k", Ok(1000)),
            ("memory", "1.5", Err("it is finer than the smallest unit")),
            ("memory", "8Ei", Err("it is too large")),
            ("memory", "7Ei", Ok(7 << 60)),
            ("memory", "1GB", Err("not a number with a known suffix")),
            ("memory", "12345678901234567890", Err("too many digits")),
            ("fpga", "3", Ok(3)),
            ("fpga", "2k", Ok(2000)),
            ("fpga", "1.5", Err("it is finer than the smallest unit")),
            ("fpga", "one", Err("not a number with a known suffix")),
        ] {
            assert_eq!(parse(name, text).map_err(|bad| bad.why), expected, "{name} {text}");
        }
    }

    #[test]
    fn quantities_are_shown_short() {
        for (name, amount, expected) in [
            ("cpu", 500, "500m"),
            ("cpu", 2000, "2"),
            ("cpu", 1500, "1.5"),
            ("memory", 1 << 30, "1Gi"),
            ("memory", 3 << 29, "1.5Gi"),
            ("memory", 900, "900"),
            ("fpga", 7, "7"),
        ] {
            assert_eq!(show(name, amount), expected);
        }
    }
}
