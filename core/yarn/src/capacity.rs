//! What a queue of the CapacityScheduler gets, as a percentage, a weight or an amount.

use std::collections::BTreeMap;

use godel_base::{
    quantity,
    resources::{CPU, MEMORY},
};

/// Amounts as queues have them, by resource.
pub(crate) type QueueAmounts = BTreeMap<String, i64>;

/// Parts of one in a [`Decimal`].
const PARTS: u64 = 1_000_000;
/// Bytes of a megabyte as YARN counts them.
const MIB: i64 = 1 << 20;

/// A number of millionths; finer is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decimal(pub(crate) u64);

impl Decimal {
    /// All of something, in per cent.
    pub(crate) const HUNDRED: Self = Self(100 * PARTS);

    /// From `33.3`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let digits: String = fraction.chars().chain("000000".chars()).take(6).collect();
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        whole.checked_mul(PARTS)?.checked_add(digits.parse().ok()?).map(Self)
    }

    /// Whole ones, if it has no fraction.
    pub(crate) fn whole(self) -> Option<u64> {
        self.0.is_multiple_of(PARTS).then_some(self.0 / PARTS)
    }
}

/// What one queue gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueCapacity {
    /// Of what the queue above has.
    Percent(Decimal),
    /// Beside its siblings' weights.
    Weight(Decimal),
    /// As it is.
    Absolute(QueueAmounts),
}

impl QueueCapacity {
    /// From the value of a property: `50`, `2.5w`, `[memory=10240,vcores=12]`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no percentage (`50`), weight (`2w`) or amount (`[memory=1024,vcores=2]`)")
        };
        let text = text.trim();
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(wrong)?;
            return absolute(inner).map(Self::Absolute);
        }
        if let Some(weight) = text.strip_suffix(['w', 'W']) {
            return Decimal::parse(weight.trim()).map(Self::Weight).ok_or_else(wrong);
        }
        let percent = Decimal::parse(text.strip_suffix('%').unwrap_or(text)).ok_or_else(wrong)?;
        if percent > Decimal::HUNDRED {
            return Err(format!("`{text}` is more than 100 per cent"));
        }
        Ok(Self::Percent(percent))
    }
}

fn absolute(text: &str) -> Result<QueueAmounts, String> {
    let mut amounts = QueueAmounts::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is no `resource=amount`"))?;
        let (name, value) = (name.trim(), value.trim());
        if value.ends_with(['%', 'w']) {
            return Err(format!("`{part}`: a percentage or weight of one resource is not known"));
        }
        let (name, amount) = match name {
            "memory" | "memory-mb" => (MEMORY, memory(value)),
            "vcores" => (CPU, quantity::parse_queued(CPU, value).map_err(|bad| bad.to_string())),
            // YARN's names of devices have the vendor's domain before them.
            other => {
                let name = other.rsplit_once('/').map_or(other, |(_, name)| name);
                (name, quantity::parse_queued(name, value).map_err(|bad| bad.to_string()))
            }
        };
        amounts.insert(name.to_owned(), amount?);
    }
    Ok(amounts)
}

/// Megabytes, unless a suffix says otherwise.
fn memory(text: &str) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(megabytes @ 0..) => {
            megabytes.checked_mul(MIB).ok_or_else(|| format!("`{text}` megabytes are too many"))
        }
        _ => quantity::parse_queued(MEMORY, text).map_err(|bad| bad.to_string()),
    }
}

/// `part / whole` of every amount, rounded down.
pub(crate) fn portion(of: &QueueAmounts, part: Decimal, whole: Decimal) -> QueueAmounts {
    let scale = |amount: i64| {
        let scaled = i128::from(amount) * i128::from(part.0) / i128::from(whole.0.max(1));
        i64::try_from(scaled).unwrap_or(i64::MAX)
    };
    of.iter().map(|(name, amount)| (name.clone(), scale(*amount))).collect()
}

/// `cpu 4, memory 8Gi`.
pub(crate) fn show(amounts: &QueueAmounts) -> String {
    let shown =
        amounts.iter().map(|(name, amount)| format!("{name} {}", quantity::show_queued(name, *amount)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Weights of at least 1 and at most `max` in the proportions of `parts`, as small as they are exact.
pub(crate) fn weights(parts: &[u64], max: u32) -> Vec<u32> {
    let mut parts = parts.to_vec();
    while parts.iter().any(|part| *part > 0) && parts.iter().all(|part| part.is_multiple_of(10)) {
        parts.iter_mut().for_each(|part| *part /= 10);
    }
    let largest = parts.iter().copied().max().unwrap_or(0).max(1);
    let fit = |part: u64| {
        let scaled = if largest <= u64::from(max) {
            u128::from(part)
        } else {
            u128::from(part) * u128::from(max) / u128::from(largest)
        };
        u32::try_from(scaled).unwrap_or(max).max(1)
    };
    parts.into_iter().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_read() {
        let absolute = |pairs: &[(&str, i64)]| {
            Ok(QueueCapacity::Absolute(pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()))
        };
        for (text, capacity) in [
            ("50", Ok(QueueCapacity::Percent(Decimal(50_000_000)))),
            (" 33.3333339 ", Ok(QueueCapacity::Percent(Decimal(33_333_333)))),
            (".5", Ok(QueueCapacity::Percent(Decimal(500_000)))),
            ("100.0%", Ok(QueueCapacity::Percent(Decimal::HUNDRED))),
            ("2.5w", Ok(QueueCapacity::Weight(Decimal(2_500_000)))),
            ("[memory=10240,vcores=12]", absolute(&[("cpu", 12_000), ("memory", 10_240 << 20)])),
            ("[memory-mb=1, yarn.io/gpu=2]", absolute(&[("gpu", 2_000), ("memory", 1 << 20)])),
            ("[memory=10Gi]", absolute(&[("memory", 10 << 30)])),
            ("[]", absolute(&[])),
        ] {
            assert_eq!(QueueCapacity::parse(text), capacity, "{text}");
        }
        for (text, part) in [
            ("", "is no percentage"),
            (".", "is no percentage"),
            ("-1", "is no percentage"),
            ("ten", "is no percentage"),
            ("100.1", "more than 100"),
            ("[memory=1", "is no percentage"),
            ("[memory]", "is no `resource=amount`"),
            ("[memory=50%]", "of one resource"),
            ("[memory=many]", "is no memory quantity"),
            ("99999999999999999999w", "is no percentage"),
        ] {
            let said = QueueCapacity::parse(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn weights_keep_proportions() {
        for (parts, expected) in [
            (&[50_000_000, 30_000_000, 20_000_000][..], &[5, 3, 2][..]),
            (&[33_330_000, 66_670_000], &[3_333, 6_667]),
            (&[0, 0], &[1, 1]),
            (&[0, 100_000_000], &[1, 1]),
            (&[u64::MAX, u64::MAX / 2], &[1_000_000, 499_999]),
        ] {
            assert_eq!(weights(parts, 1_000_000), expected, "{parts:?}");
        }
    }
}
