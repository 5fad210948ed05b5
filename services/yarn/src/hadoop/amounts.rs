//! Amounts of resources as clients of YARN send and read them, and how YARN rounds what is asked for.

use std::fmt::Write as _;

use godel_core_yarn_leader::YarnAmount;
use godel_hadoop::{
    Exception,
    yarn::{ResourceInformationProto, ResourceProto, ResourceTypeInfoProto, ResourceTypesProto},
};

use super::refusal::INVALID_RESOURCE_REQUEST;

/// Names of YARN's resources.
const YARN_MEMORY: &str = "memory-mb";
const YARN_VCORES: &str = "vcores";
/// Resources beside memory and CPUs in one amount.
const N_OTHERS_MAX: usize = 32;

fn invalid(message: String) -> Exception {
    Exception::new(INVALID_RESOURCE_REQUEST, message)
}

/// How many of one a unit of YARN's stands for.
fn factor(units: &str) -> Option<i64> {
    Some(match units {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    })
}

/// Reads an amount. Clients of Hadoop 3 send memory and CPUs twice; the plain fields count.
///
/// # Errors
/// A resource has a unit that is not known, or is more than can be counted.
pub(super) fn read(pb: &ResourceProto) -> Result<YarnAmount, Exception> {
    if pb.resource_value_map.len() > N_OTHERS_MAX {
        return Err(invalid(format!(
            "Invalid resource request! It names {} resources, and at most {N_OTHERS_MAX} are taken",
            pb.resource_value_map.len()
        )));
    }
    let mut amount = YarnAmount {
        memory_mb: pb.memory.unwrap_or(0),
        vcores: pb.virtual_cores.unwrap_or(0).into(),
        ..YarnAmount::default()
    };
    for ResourceInformationProto { key, value, units } in &pb.resource_value_map {
        let value = value.unwrap_or(0);
        let units = units.as_deref().unwrap_or("");
        match key.as_str() {
            YARN_MEMORY if pb.memory.is_some() => {}
            YARN_VCORES if pb.virtual_cores.is_some() => {}
            YARN_MEMORY if matches!(units, "" | "Mi") => amount.memory_mb = value,
            YARN_VCORES if units.is_empty() => amount.vcores = value,
            name => {
                let counted = factor(units).and_then(|factor| value.checked_mul(factor));
                let counted = counted.ok_or_else(|| {
                    invalid(format!("Invalid resource request! {value}{units} of {name} cannot be counted"))
                })?;
                if counted != 0 {
                    amount.others.insert(name.to_owned(), counted);
                }
            }
        }
    }
    Ok(amount)
}

/// An amount for clients.
pub(super) fn pb(amount: &YarnAmount) -> ResourceProto {
    let YarnAmount { memory_mb, vcores, others } = amount;
    ResourceProto {
        memory: Some(*memory_mb),
        virtual_cores: Some(i32::try_from(*vcores).unwrap_or(i32::MAX)),
        resource_value_map: others
            .iter()
            .map(|(name, value)| ResourceInformationProto {
                key: name.clone(),
                value: Some(*value),
                units: Some(String::new()),
            })
            .collect(),
    }
}

/// An amount as YARN writes it.
fn shown(amount: &YarnAmount) -> String {
    let YarnAmount { memory_mb, vcores, others } = amount;
    let mut text = format!("<memory:{memory_mb}, vCores:{vcores}");
    for (name, value) in others {
        // Writing to a string does not fail.
        let _written = write!(text, ", {name}: {value}");
    }
    text + ">"
}

/// What a container gets for what is asked: rounded up to multiples of the least, as the CapacityScheduler does it.
///
/// # Errors
/// Something is below 0, or above what one container may have.
pub(super) fn normalised(
    asked: YarnAmount,
    minimum: &YarnAmount,
    maximum: &YarnAmount,
) -> Result<YarnAmount, Exception> {
    let parts = |amount: &YarnAmount| [(YARN_MEMORY, amount.memory_mb), (YARN_VCORES, amount.vcores)];
    let others = asked.others.iter().map(|(name, value)| (name.as_str(), *value));
    if let Some((name, _)) = parts(&asked).into_iter().chain(others).find(|(_, value)| *value < 0) {
        return Err(invalid(format!(
            "Invalid resource request! Cannot allocate containers as requested resource is less than 0! Requested resource type=[{name}], \
             Requested resource={}",
            shown(&asked)
        )));
    }
    let plain = parts(&asked).into_iter().zip(parts(maximum));
    let mut over = plain.filter(|((_, asked), (_, most))| asked > most).map(|((name, _), _)| name);
    let is_over = |(name, value): (&String, &i64)| maximum.others.get(name).is_some_and(|most| value > most);
    let other =
        asked.others.iter().find(|(name, value)| is_over((name, value))).map(|(name, _)| name.as_str());
    if let Some(name) = over.next().or(other) {
        return Err(invalid(format!(
            "Invalid resource request! Cannot allocate containers as requested resource is greater than maximum allowed allocation. \
             Requested resource type=[{name}], Requested resource={}, maximum allowed allocation={}",
            shown(&asked),
            shown(maximum)
        )));
    }
    let rounded = |asked: i64, least: i64, most: i64| {
        let step = least.max(1);
        let steps = asked.max(step).saturating_add(step - 1) / step;
        steps.saturating_mul(step).min(most)
    };
    Ok(YarnAmount {
        memory_mb: rounded(asked.memory_mb, minimum.memory_mb, maximum.memory_mb),
        vcores: rounded(asked.vcores, minimum.vcores, maximum.vcores),
        others: asked.others,
    })
}

/// Kinds of resources that the cluster counts: memory, CPUs, and those that a container may have beside them.
pub(super) fn types(maximum: &YarnAmount) -> Vec<ResourceTypeInfoProto> {
    let kind = |name: &str, units: &str| ResourceTypeInfoProto {
        name: name.to_owned(),
        units: Some(units.to_owned()),
        r#type: Some(ResourceTypesProto::Countable.into()),
    };
    let others = maximum.others.keys().map(|name| kind(name, ""));
    [kind(YARN_MEMORY, "Mi"), kind(YARN_VCORES, "")].into_iter().chain(others).collect()
}

/// Seconds of both counted resources by their names, for reports.
pub(super) fn seconds(memory: i64, vcores: i64) -> [(&'static str, i64); 2] {
    [(YARN_MEMORY, memory), (YARN_VCORES, vcores)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn plain(memory_mb: i64, vcores: i64) -> YarnAmount {
        YarnAmount { memory_mb, vcores, ..YarnAmount::default() }
    }

    fn gpus(n: i64) -> YarnAmount {
        YarnAmount { others: [("yarn.io/gpu".to_owned(), n)].into(), ..plain(1_024, 1) }
    }

    #[test]
    fn amounts_are_rounded_up_as_in_yarn() {
        let (least, most) = (plain(1_024, 1), plain(8_192, 4));
        let of = |memory, vcores| normalised(plain(memory, vcores), &least, &most).unwrap();
        assert_eq!(of(1, 0), plain(1_024, 1));
        assert_eq!(of(1_025, 2), plain(2_048, 2));
        assert_eq!(normalised(plain(7_900, 1), &plain(3_000, 1), &most), Ok(plain(8_192, 1)));
    }

    #[test]
    fn too_much_and_too_little_is_refused_in_yarns_words() {
        let (least, most) = (plain(1_024, 1), YarnAmount { others: gpus(2).others, ..plain(8_192, 4) });
        let refused = |asked: YarnAmount| normalised(asked, &least, &most).unwrap_err();
        assert_eq!(
            refused(plain(9_000, 1)).message,
            "Invalid resource request! Cannot allocate containers as requested resource is greater than maximum allowed allocation. Requested \
             resource type=[memory-mb], Requested resource=<memory:9000, vCores:1>, maximum allowed allocation=<memory:8192, vCores:4, \
             yarn.io/gpu: 2>"
        );
        assert!(refused(gpus(3)).message.contains("type=[yarn.io/gpu]"));
        assert!(refused(plain(1, -1)).message.contains("less than 0! Requested resource type=[vcores]"));
        assert_eq!(refused(plain(1, 5)).class, INVALID_RESOURCE_REQUEST);
        assert!(normalised(gpus(2), &least, &most).is_ok());
    }

    #[test]
    fn clients_of_hadoop_3_send_memory_twice() {
        let part = |key: &str, value, units: &str| ResourceInformationProto {
            key: key.to_owned(),
            value: Some(value),
            units: Some(units.to_owned()),
        };
        let mut sent = pb(&gpus(1));
        sent.resource_value_map.extend([
            part("memory-mb", 7, "Mi"),
            part("vcores", 7, ""),
            part("a/disk", 2, "k"),
        ]);
        let read_back = read(&sent).unwrap();
        assert_eq!((read_back.memory_mb, read_back.vcores), (1_024, 1));
        assert_eq!(
            read_back.others,
            BTreeMap::from([("a/disk".to_owned(), 2_000), ("yarn.io/gpu".to_owned(), 1)])
        );
        let only_map = ResourceProto {
            resource_value_map: vec![part("memory-mb", 7, "Mi"), part("vcores", 2, "")],
            ..ResourceProto::default()
        };
        assert_eq!(read(&only_map), Ok(plain(7, 2)));
        let odd = ResourceProto { resource_value_map: vec![part("x", 1, "furlong")], ..only_map };
        assert!(read(&odd).unwrap_err().message.contains("1furlong of x"));
    }

    proptest! {
        #[test]
        fn what_is_rounded_is_between_asked_and_most(asked in 0i64..=8_192, least in 0i64..4_096) {
            let got = normalised(plain(asked, 1), &plain(least, 1), &plain(8_192, 4)).unwrap().memory_mb;
            prop_assert!(got >= asked && got >= least.min(8_192) && got <= 8_192 && got > 0);
            prop_assert!(got == 8_192 || got - asked.max(least.max(1)) < least.max(1));
        }
    }
}
