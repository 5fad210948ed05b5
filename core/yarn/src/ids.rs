//! Ids of applications, their attempts and their containers, parsed and printed as YARN does.

use std::{fmt, str::FromStr};

/// Text that is no such id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}")]
pub struct BadYarnId {
    /// As given.
    pub text: String,
    /// `application id (application_1700000000000_0001)`.
    pub what: &'static str,
}

/// `application_1700000000000_0001`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct YarnApplicationId {
    /// When the first adapter of the cluster started, Unix milliseconds.
    pub cluster_timestamp: i64,
    /// From 1.
    pub number: u32,
}

/// `appattempt_1700000000000_0001_000001`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct YarnAttemptId {
    /// Whose attempt it is.
    pub application: YarnApplicationId,
    /// From 1.
    pub number: u32,
}

/// `container_1700000000000_0001_01_000001`, with `e17_` before the timestamp from the 17th epoch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct YarnContainerId {
    /// Whose container it is.
    pub attempt: YarnAttemptId,
    /// How often the adapter has been restarted; not shown if it is 0.
    pub epoch: u32,
    /// Within the attempt, less than 2^40; 1 is the application master.
    pub number: u64,
}

/// Bits of a container's number on the wire; the epoch stands above them.
const NUMBER_BITS: u32 = 40;

impl YarnContainerId {
    /// The 64 bits that stand for epoch and number on the wire.
    pub fn bits(self) -> i64 {
        let bits = u64::from(self.epoch) << NUMBER_BITS | (self.number & ((1 << NUMBER_BITS) - 1));
        bits.cast_signed()
    }

    /// The same back.
    pub fn from_bits(attempt: YarnAttemptId, bits: i64) -> Self {
        let bits = bits.cast_unsigned();
        let epoch = u32::try_from(bits >> NUMBER_BITS).unwrap_or(u32::MAX);
        Self { attempt, epoch, number: bits & ((1 << NUMBER_BITS) - 1) }
    }
}

impl fmt::Display for YarnApplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "application_{}_{:04}", self.cluster_timestamp, self.number)
    }
}

impl fmt::Display for YarnAttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let YarnApplicationId { cluster_timestamp, number } = self.application;
        write!(f, "appattempt_{cluster_timestamp}_{number:04}_{:06}", self.number)
    }
}

impl fmt::Display for YarnContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let YarnApplicationId { cluster_timestamp, number } = self.attempt.application;
        f.write_str("container_")?;
        if self.epoch > 0 {
            write!(f, "e{:02}_", self.epoch)?;
        }
        write!(f, "{cluster_timestamp}_{number:04}_{:02}_{:06}", self.attempt.number, self.number)
    }
}

/// Numbers between `_`, all of them digits.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split('_');
    for number in &mut numbers {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

fn application(cluster_timestamp: u64, number: u64) -> Option<YarnApplicationId> {
    Some(YarnApplicationId {
        cluster_timestamp: i64::try_from(cluster_timestamp).ok()?,
        number: u32::try_from(number).ok()?,
    })
}

impl FromStr for YarnApplicationId {
    type Err = BadYarnId;

    fn from_str(text: &str) -> Result<Self, BadYarnId> {
        let parsed = text.strip_prefix("application_").and_then(numbers);
        let parsed = parsed.and_then(|[timestamp, number]| application(timestamp, number));
        let what = "application id (application_1700000000000_0001)";
        parsed.ok_or_else(|| BadYarnId { text: text.to_owned(), what })
    }
}

impl FromStr for YarnAttemptId {
    type Err = BadYarnId;

    fn from_str(text: &str) -> Result<Self, BadYarnId> {
        let parsed = text.strip_prefix("appattempt_").and_then(numbers);
        let parsed = parsed.and_then(|[timestamp, number, attempt]| {
            let application = application(timestamp, number)?;
            Some(Self { application, number: u32::try_from(attempt).ok()? })
        });
        let what = "attempt id (appattempt_1700000000000_0001_000001)";
        parsed.ok_or_else(|| BadYarnId { text: text.to_owned(), what })
    }
}

impl FromStr for YarnContainerId {
    type Err = BadYarnId;

    fn from_str(text: &str) -> Result<Self, BadYarnId> {
        let parse = || {
            let rest = text.strip_prefix("container_")?;
            let (epoch, rest) = match rest.strip_prefix('e') {
                Some(rest) => {
                    let (epoch, rest) = rest.split_once('_')?;
                    let [epoch] = numbers(epoch)?;
                    (u32::try_from(epoch).ok().filter(|epoch| *epoch < 1 << (64 - NUMBER_BITS))?, rest)
                }
                None => (0, rest),
            };
            let [timestamp, number, attempt, container] = numbers(rest)?;
            let attempt = YarnAttemptId {
                application: application(timestamp, number)?,
                number: u32::try_from(attempt).ok()?,
            };
            (container < 1 << NUMBER_BITS).then_some(Self { attempt, epoch, number: container })
        };
        let what = "container id (container_1700000000000_0001_01_000001)";
        parse().ok_or_else(|| BadYarnId { text: text.to_owned(), what })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_printed_as_yarn_does() {
        let application = YarnApplicationId { cluster_timestamp: 1_700_000_000_000, number: 7 };
        let attempt = YarnAttemptId { application, number: 2 };
        let container = |epoch, number| YarnContainerId { attempt, epoch, number }.to_string();
        assert_eq!(application.to_string(), "application_1700000000000_0007");
        assert_eq!(attempt.to_string(), "appattempt_1700000000000_0007_000002");
        assert_eq!(container(0, 1), "container_1700000000000_0007_02_000001");
        assert_eq!(container(3, 1_234_567), "container_e03_1700000000000_0007_02_1234567");
        assert_eq!(YarnContainerId { attempt, epoch: 3, number: 9 }.bits(), 3 << 40 | 9);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in
            ["", "application_", "application_1_x", "application_1_2_3", "application_-1_2", "application_1_"]
        {
            let said = text.parse::<YarnApplicationId>().unwrap_err().to_string();
            assert!(said.starts_with(&format!("`{text}` is no application id")), "{said}");
        }
        for text in
            ["container_1_2_3", "container_e_1_2_3_4", "container_e99999999_1_2_3_4", "appattempt_1_2_3"]
        {
            assert!(text.parse::<YarnContainerId>().is_err(), "{text}");
        }
        let too_large = format!("container_1_2_3_{}", 1u64 << 40);
        assert!(too_large.parse::<YarnContainerId>().is_err());
        assert!("appattempt_1_2".parse::<YarnAttemptId>().is_err());
    }

    proptest! {
        #[test]
        fn ids_read_back(timestamp in 0..i64::MAX, application: u32, attempt: u32, epoch in 0u32..1 << 24, number in 0u64..1 << 40) {
            let application = YarnApplicationId { cluster_timestamp: timestamp, number: application };
            let attempt = YarnAttemptId { application, number: attempt };
            let container = YarnContainerId { attempt, epoch, number };
            prop_assert_eq!(application.to_string().parse(), Ok(application));
            prop_assert_eq!(attempt.to_string().parse(), Ok(attempt));
            prop_assert_eq!(container.to_string().parse(), Ok(container));
            prop_assert_eq!(YarnContainerId::from_bits(attempt, container.bits()), container);
        }
    }
}
