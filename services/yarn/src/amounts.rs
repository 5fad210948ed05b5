//! Amounts as YARN and as godel count them: memory in MiB and in bytes, CPUs whole and in thousandths, `yarn.io/gpu` and `gpu`.

use std::collections::BTreeMap;

use godel_domain::resources::{CPU, MEMORY};

use crate::reports::YarnAmount;

const MIB: i64 = 1 << 20;
const MILLI: i64 = 1_000;
/// What YARN writes before kinds of devices.
const DEVICE_PREFIX: &str = "yarn.io/";
/// Kinds of devices that YARN's clients ask for; godel counts devices in thousandths.
pub(crate) const DEVICE_KINDS: [&str; 2] = ["gpu", "fpga"];

/// What a master asks for, as godel counts it.
pub fn to_godel(amount: &YarnAmount) -> BTreeMap<String, i64> {
    let YarnAmount { memory_mb, vcores, others } = amount;
    let mut amounts = BTreeMap::from([
        (CPU.to_owned(), vcores.saturating_mul(MILLI)),
        (MEMORY.to_owned(), memory_mb.saturating_mul(MIB)),
    ]);
    for (name, n) in others {
        match name.strip_prefix(DEVICE_PREFIX).filter(|kind| DEVICE_KINDS.contains(kind)) {
            Some(kind) => amounts.insert(kind.to_owned(), n.saturating_mul(MILLI)),
            None => amounts.insert(name.clone(), *n),
        };
    }
    amounts.retain(|_, n| *n > 0);
    amounts
}

/// What godel counts, as YARN does. What is less than a whole one is left out.
pub fn to_yarn<'a>(amounts: impl IntoIterator<Item = (&'a str, i64)>) -> YarnAmount {
    let mut amount = YarnAmount::default();
    for (name, n) in amounts {
        match name {
            CPU => amount.vcores = n / MILLI,
            MEMORY => amount.memory_mb = n / MIB,
            kind if DEVICE_KINDS.contains(&kind) => {
                amount.others.insert(format!("{DEVICE_PREFIX}{kind}"), n / MILLI);
            }
            other => drop(amount.others.insert(other.to_owned(), n)),
        }
    }
    amount
}

/// The same of a map.
pub fn of_map(amounts: &BTreeMap<String, i64>) -> YarnAmount {
    to_yarn(amounts.iter().map(|(name, n)| (name.as_str(), *n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_go_there_and_back() {
        let others = [("yarn.io/gpu".to_owned(), 2), ("licences".to_owned(), 3)].into();
        let amount = YarnAmount { memory_mb: 1_024, vcores: 2, others };
        let godel = to_godel(&amount);
        let counted: Vec<(&str, i64)> = godel.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(counted, [("cpu", 2_000), ("gpu", 2_000), ("licences", 3), ("memory", 1 << 30)]);
        assert_eq!(of_map(&godel), amount);
        assert_eq!(to_yarn([("cpu", 1_999), ("memory", MIB - 1)]).vcores, 1, "whole ones count");
    }
}
