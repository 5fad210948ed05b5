//! Quantities of resources, read and printed in one place, in Kubernetes' notation: `500m`, `2`, `1.5Gi`, `129e6`.
//!
//! What is printed by [`show`] reads back as the same amount. [`show_about`] rounds, for columns of tables.

use crate::resources::{CPU, MEMORY};

/// Thousandths in one whole device.
pub const MILLI_WHOLE: u32 = 1000;

/// Devices of this kind are written in whole ones by queues and counted in thousandths.
pub const GPU: &str = "gpu";

/// Text that is no quantity, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}: {why}")]
pub struct BadQuantity {
    /// As written.
    pub text: String,
    /// What it should be.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
}

/// In which unit an amount is kept, and what is done with what is finer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// Milli-cores; finer is rounded up.
    Cpu,
    /// Bytes; finer is rounded up.
    Memory,
    /// Thousandths of devices; finer is refused.
    Devices,
    /// Whole ones; anything else is refused.
    Count,
}

impl Measure {
    fn of(name: &str) -> Self {
        match name {
            CPU => Self::Cpu,
            MEMORY => Self::Memory,
            _ => Self::Count,
        }
    }

    fn of_queue(name: &str) -> Self {
        if name == GPU { Self::Devices } else { Self::of(name) }
    }

    /// Units kept of one that is written.
    fn per_whole(self) -> i128 {
        match self {
            Self::Cpu => 1_000,
            Self::Devices => i128::from(MILLI_WHOLE),
            Self::Memory | Self::Count => 1,
        }
    }

    fn what(self, name: &str) -> String {
        match self {
            Self::Cpu => "CPU quantity (`500m`, `2`, `0.5`)".to_owned(),
            Self::Memory => "memory quantity (`512Mi`, `1Gi`, `1.5G`)".to_owned(),
            Self::Devices => "number of GPUs (`2`, `0.5`)".to_owned(),
            Self::Count => format!("number of {name} (`3`, `2k`)"),
        }
    }
}

/// Binary suffixes and their factors, the smallest first.
const BINARY: [(&str, i128); 6] =
    [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40), ("Pi", 1 << 50), ("Ei", 1 << 60)];
/// Decimal suffixes and their powers of ten.
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Digits that are read, leading zeros and zeros behind the last digit of a fraction left out.
const N_DIGITS_MAX: usize = 19;
/// Powers of ten beyond this are too large or too small for any amount.
const EXPONENT_MAX: i32 = 36;

/// A quantity of the resource `name`, in the unit that `Resources` keeps it in: milli-cores, bytes, whole ones.
///
/// A CPU quantity finer than a milli-core and a memory quantity finer than a byte are rounded up, as Kubernetes does.
///
/// # Errors
/// It is no number with a known suffix, is negative or too large, or a fraction of what comes in whole numbers.
pub fn parse(name: &str, text: &str) -> Result<i64, BadQuantity> {
    read(Measure::of(name), name, text)
}

/// A quantity of a queue, which counts GPUs in thousandths: two of them are `2`, half a one is `0.5`.
///
/// # Errors
/// As [`parse`].
pub fn parse_queued(name: &str, text: &str) -> Result<i64, BadQuantity> {
    read(Measure::of_queue(name), name, text)
}

/// The well-known resource that a name probably means that is nearly one: `mem`, `Memory`, `cpus`, `cores`, `gpus`.
///
/// It differs from it in case only, by a plural `s`, by one slip in a long word, is a beginning of `memory`, or is a
/// usual word for it. Names of devices that merely look alike (`npu`, `tpu`) mean themselves.
pub fn meant(name: &str) -> Option<&'static str> {
    if matches!(name, CPU | MEMORY | GPU) {
        return None;
    }
    let lower = name.to_lowercase();
    let word = lower.strip_suffix('s').filter(|word| !word.is_empty()).unwrap_or(&lower);
    let known = match word {
        "cpu" | "core" | "vcpu" | "pcu" | "cup" | "millicore" | "millicpu" => CPU,
        "gpu" | "pgu" => GPU,
        "ram" => MEMORY,
        word if word.len() >= 3 && MEMORY.starts_with(word) => MEMORY,
        word if is_one_slip(word, MEMORY) => MEMORY,
        _ => return None,
    };
    Some(known)
}

/// One letter left out, put in, replaced, or exchanged with its neighbour.
fn is_one_slip(word: &str, known: &str) -> bool {
    let (a, b) = (word.as_bytes(), known.as_bytes());
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (rest_a, rest_b) = (&a[same..], &b[same..]);
    match a.len().cmp(&b.len()) {
        std::cmp::Ordering::Less => a.len() + 1 == b.len() && rest_a == &rest_b[1..],
        std::cmp::Ordering::Greater => a.len() == b.len() + 1 && &rest_a[1..] == rest_b,
        std::cmp::Ordering::Equal => match (rest_a, rest_b) {
            ([], _) => true,
            ([x, y, tail_a @ ..], [u, v, tail_b @ ..]) if x == v && y == u && tail_a == tail_b => true,
            ([_, tail_a @ ..], [_, tail_b @ ..]) => tail_a == tail_b,
            _ => false,
        },
    }
}

/// An amount of the resource `name` as people write it, exactly: `500m`, `1.5`, `1536Mi` as `1.5Gi`.
pub fn show(name: &str, amount: i64) -> String {
    print(Measure::of(name), amount)
}

/// An amount of a queue as people write it; parts of GPUs as `0.5`.
pub fn show_queued(name: &str, amount: i64) -> String {
    print(Measure::of_queue(name), amount)
}

/// An amount of the resource `name` for a column of a table: memory in the largest binary unit of which there is at least
/// one, cut after one decimal.
pub fn show_about(name: &str, amount: i64) -> String {
    if name == MEMORY { show_bytes_about(amount) } else { show(name, amount) }
}

/// Whether a sum is not what it adds up to, but the most that can be counted.
pub fn is_saturated(sum: i64) -> bool {
    sum == i64::MAX
}

/// Stands for a sum that is beyond what can be counted.
pub const UNCOUNTED: &str = "too much to count";

/// A sum of amounts for a line or a column, with GPUs in whole ones. One that is beyond what can be counted says so.
pub fn show_sum(name: &str, sum: i64) -> String {
    match name {
        _ if is_saturated(sum) => UNCOUNTED.to_owned(),
        MEMORY => show_bytes_about(sum),
        _ => show_queued(name, sum),
    }
}

/// Milli-cores as people write them: `500m`, `2`, `1.5`.
pub fn show_cpu(milli: i64) -> String {
    print(Measure::Cpu, milli)
}

/// Thousandths of devices as people write them: `2`, `0.5`.
pub fn show_devices(milli: i64) -> String {
    print(Measure::Devices, milli)
}

/// Bytes for a column of a table, see [`show_about`].
pub fn show_bytes_about(bytes: i64) -> String {
    let wide = i128::from(bytes);
    let unit = BINARY.iter().rev().find(|(_, factor)| wide.abs() >= *factor);
    let Some((suffix, factor)) = unit else { return bytes.to_string() };
    let tenths = wide * 10 / factor;
    if tenths % 10 == 0 {
        format!("{}{suffix}", tenths / 10)
    } else {
        format!("{}.{}{suffix}", tenths / 10, (tenths % 10).abs())
    }
}

fn print(measure: Measure, amount: i64) -> String {
    match measure {
        Measure::Count => amount.to_string(),
        Measure::Cpu if amount % 1_000 != 0 && amount.abs() < 1_000 => format!("{amount}m"),
        Measure::Cpu | Measure::Devices => thousandths(i128::from(amount)),
        Measure::Memory => bytes(i128::from(amount)),
    }
}

/// `1500` as `1.5`.
fn thousandths(amount: i128) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    let (whole, part) = (amount.abs() / 1_000, amount.abs() % 1_000);
    if part == 0 {
        return format!("{sign}{whole}");
    }
    format!("{sign}{whole}.{part:03}").trim_end_matches('0').to_owned()
}

/// The shortest way to write so many bytes, of several the binary one.
fn bytes(amount: i128) -> String {
    let mut best = amount.to_string();
    let decimal = DECIMAL.iter().filter(|(_, power)| *power > 0);
    let decimal = decimal.map(|(suffix, power)| (*suffix, 10i128.pow(power.unsigned_abs())));
    for (suffix, factor) in BINARY.into_iter().chain(decimal) {
        if amount.abs() >= factor && amount * 1_000 % factor == 0 {
            let text = format!("{}{suffix}", thousandths(amount * 1_000 / factor));
            if text.len() < best.len() {
                best = text;
            }
        }
    }
    best
}

fn read(measure: Measure, name: &str, text: &str) -> Result<i64, BadQuantity> {
    let bad =
        |why: &str| BadQuantity { text: text.to_owned(), what: measure.what(name), why: why.to_owned() };
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(bad(if text.is_empty() {
            "it is empty"
        } else {
            "it is not a number with a known suffix"
        }));
    }
    let (power, factor) = scale(measure, suffix).map_err(|why| bad(&why))?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if is_negative {
        return Err(bad("it is negative"));
    }
    if digits.len() > N_DIGITS_MAX {
        return Err(bad("it has too many digits"));
    }
    let digits: i128 = digits.parse().map_err(|_| bad("it has too many digits"))?;
    let power = power - i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    if power > EXPONENT_MAX {
        return Err(bad("it is too large"));
    }
    let product = digits.checked_mul(factor * measure.per_whole());
    let (product, divisor) = if power >= 0 {
        let tens = 10i128.pow(power.unsigned_abs());
        (product.and_then(|product| product.checked_mul(tens)), 1)
    } else {
        // What is smaller than any unit stays so.
        (product, 10i128.pow(power.unsigned_abs().min(EXPONENT_MAX.unsigned_abs())))
    };
    let product = product.ok_or_else(|| bad("it is too large"))?;
    let is_whole = product % divisor == 0;
    if !is_whole && measure == Measure::Count {
        return Err(bad(&format!("{name} comes in whole numbers")));
    }
    if !is_whole && measure == Measure::Devices {
        return Err(bad("nothing is finer than a thousandth of one"));
    }
    i64::try_from(product / divisor + i128::from(!is_whole)).map_err(|_| bad("it is too large"))
}

/// Power of ten and factor of what stands behind the digits.
fn scale(measure: Measure, suffix: &str) -> Result<(i32, i128), String> {
    if suffix.is_empty() {
        return Ok((0, 1));
    }
    if let Some((_, factor)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        if measure == Measure::Cpu {
            return Err(format!("`{suffix}` is for memory"));
        }
        return Ok((0, *factor));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Ok((*power, 1));
    }
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']) {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let bound = 2 * EXPONENT_MAX;
            let power: i32 = digits.parse().unwrap_or(bound).min(bound);
            return Ok((if exponent.starts_with('-') { -power } else { power }, 1));
        }
    }
    let nearly = BINARY.iter().map(|(known, _)| *known).chain(DECIMAL.iter().map(|(known, _)| *known));
    let lower = suffix.trim_end_matches(['b', 'B']).to_lowercase();
    let meant: Vec<String> = nearly
        .filter(|known| {
            !known.is_empty() && known.to_lowercase() == lower && !matches!(*known, "n" | "u" | "m")
        })
        .map(|known| format!("`{known}`"))
        .collect();
    if meant.is_empty() {
        return Err("it is not a number with a known suffix".to_owned());
    }
    Err(format!("`{suffix}` is no suffix; did you mean {}?", meant.join(" or ")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is wrong with a text, or the amount.
    fn read_as(name: &str, text: &str) -> Result<i64, String> {
        parse(name, text).map_err(|bad| bad.why)
    }

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (name, text, expected) in [
            ("cpu", "500m", 500),
            ("cpu", "2", 2_000),
            ("cpu", "0.5", 500),
            ("cpu", ".5", 500),
            ("cpu", "0.1", 100),
            ("cpu", "1000.0m", 1_000),
            ("cpu", "1.000", 1_000),
            ("cpu", "1.25", 1_250),
            ("cpu", "0", 0),
            ("cpu", "1e-1", 100),
            ("cpu", "+1", 1_000),
            ("cpu", "2k", 2_000_000),
            ("cpu", "100n", 1),
            ("cpu", "1u", 1),
            ("cpu", "0.0005", 1),
            ("cpu", "1e-99", 1),
            ("cpu", "-0", 0),
            ("cpu", "-0.0", 0),
            ("cpu", "1E3", 1_000_000),
            ("memory", "128974848000m", 123 << 20),
            ("memory", "1288490188800m", 1_288_490_189),
            ("memory", "1.2Gi", 1_288_490_189),
            ("memory", "0.1Gi", 107_374_183),
            ("memory", "4.1Gi", 4_402_341_479),
            ("memory", "129e6", 129_000_000),
            ("memory", "129E6", 129_000_000),
            ("memory", "129e+6", 129_000_000),
            ("memory", "1Gi", 1 << 30),
            ("memory", "1.5Gi", 3 << 29),
            ("memory", "512Mi", 512 << 20),
            ("memory", "1k", 1_000),
            ("memory", "1Ki", 1_024),
            ("memory", "1.1G", 1_100_000_000),
            ("memory", "0.000001M", 1),
            ("memory", "1.5", 2),
            ("memory", "1Pi", 1 << 50),
            ("memory", "2Pi", 1 << 51),
            ("memory", "7Ei", 7 << 60),
            ("memory", "1E", 1_000_000_000_000_000_000),
            ("memory", "0E", 0),
            ("fpga", "3", 3),
            ("fpga", "2k", 2_000),
            ("fpga", "2000m", 2),
        ] {
            assert_eq!(parse(name, text), Ok(expected), "{name} {text}");
        }
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        let suffix = "it is not a number with a known suffix";
        for (name, text, expected) in [
            ("fpga", "500m", "fpga comes in whole numbers"),
            ("fpga", "1.5", "fpga comes in whole numbers"),
            ("fpga", "one", suffix),
            ("cpu", "2Gi", "`Gi` is for memory"),
            ("cpu", "-1", "it is negative"),
            ("cpu", "", "it is empty"),
            ("cpu", ".", suffix),
            ("cpu", "1.2.3", suffix),
            ("cpu", "1e3m", suffix),
            ("cpu", "1 ", suffix),
            ("cpu", "100%", suffix),
            ("cpu", ".inf", suffix),
            ("cpu", ".nan", suffix),
            ("cpu", "true", suffix),
            ("cpu", "null", suffix),
            ("cpu", "--1", suffix),
            ("memory", "1K", "`K` is no suffix; did you mean `k`?"),
            ("memory", "1KI", "`KI` is no suffix; did you mean `Ki`?"),
            ("memory", "1Kib", "`Kib` is no suffix; did you mean `Ki`?"),
            ("memory", "1GiB", "`GiB` is no suffix; did you mean `Gi`?"),
            ("memory", "1GB", "`GB` is no suffix; did you mean `G`?"),
            ("memory", "1g", "`g` is no suffix; did you mean `G`?"),
            ("memory", "50E", "it is too large"),
            ("memory", "8Ei", "it is too large"),
            ("memory", "1e99", "it is too large"),
            ("memory", "12345678901234567890", "it has too many digits"),
        ] {
            assert_eq!(read_as(name, text), Err(expected.to_owned()), "{name} {text}");
        }
        assert_eq!(
            parse("fpga", "500m").unwrap_err().to_string(),
            "`500m` is no number of fpga (`3`, `2k`): fpga comes in whole numbers"
        );
        assert_eq!(
            parse_queued("gpu", "0.0001").unwrap_err().why,
            "nothing is finer than a thousandth of one"
        );
        assert_eq!((parse_queued("gpu", "0.5"), parse_queued("gpu", "2")), (Ok(500), Ok(2_000)));
    }

    #[test]
    fn quantities_are_shown_short() {
        for (name, amount, expected) in [
            ("cpu", 500, "500m"),
            ("cpu", 2_000, "2"),
            ("cpu", 1_500, "1.5"),
            ("cpu", -500, "-500m"),
            ("cpu", -1_500, "-1.5"),
            ("memory", 1 << 30, "1Gi"),
            ("memory", 3 << 29, "1.5Gi"),
            ("memory", 123 << 20, "123Mi"),
            ("memory", 129_000_000, "129M"),
            ("memory", 1_288_490_189, "1288490189"),
            ("memory", 900, "900"),
            ("memory", 0, "0"),
            ("fpga", 7, "7"),
            ("fpga", 2_000, "2000"),
        ] {
            assert_eq!(show(name, amount), expected);
        }
        assert_eq!(show_about("memory", 1_288_490_189), "1.2Gi");
        assert_eq!(show_about("memory", 900), "900");
        assert_eq!((show_queued("gpu", 500), show_queued("gpu", 8_000)), ("0.5".to_owned(), "8".to_owned()));
    }

    #[test]
    fn names_near_a_well_known_one_mean_it() {
        for (name, expected) in [
            ("mem", Some("memory")),
            ("Memory", Some("memory")),
            ("memroy", Some("memory")),
            ("memery", Some("memory")),
            ("emory", Some("memory")),
            ("memoryy", Some("memory")),
            ("ram", Some("memory")),
            ("CPU", Some("cpu")),
            ("cpus", Some("cpu")),
            ("cores", Some("cpu")),
            ("gpus", Some("gpu")),
            ("GPU", Some("gpu")),
            ("cpu", None),
            ("memory", None),
            ("fpga", None),
            ("npu", None),
            ("tpu", None),
            ("nic", None),
            ("disk", None),
            ("me", None),
            ("example.com/memory", None),
            ("s", None),
            ("", None),
        ] {
            assert_eq!(meant(name), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(amount in 0i64..=i64::MAX, small in 0i64..100_000, shift in 0u32..50) {
            for amount in [amount, amount >> 13, small, small << (shift.min(40)), small * 1_000_000] {
                for name in [CPU, MEMORY, GPU, "fpga"] {
                    prop_assert_eq!(parse(name, &show(name, amount)), Ok(amount), "{} {}", name, show(name, amount));
                    let shown = show_queued(name, amount);
                    prop_assert_eq!(parse_queued(name, &shown), Ok(amount), "{} {}", name, shown);
                }
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+]?[0-9.eEmkKMGiTPnu ]{0,40}") {
            for name in [CPU, MEMORY, GPU, "fpga"] {
                let _ = (parse(name, &text), parse_queued(name, &text));
            }
        }
    }
}
