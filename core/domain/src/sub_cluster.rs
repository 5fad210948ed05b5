//! Sub-clusters: parts of a cluster with workflows, pauses and a profile of their own.
//!
//! A label says of which one a node is; without it a node is of none. A unit is of the one that the node selectors of all its
//! task groups demand; one that demands none may use every node. Nothing of it is stored with units: whoever asks knows the
//! key of the label. Should two parts know different ones the filters still place everything where it may be, and the binder
//! has the last word on turns.

use std::collections::BTreeMap;

use crate::unit::UnitSpec;

/// Label of nodes whose value names their sub-cluster, unless configured otherwise.
pub const KEY: &str = "godel.dev/sub-cluster";

/// Two task groups of a unit that are not of one sub-cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "task group `{}` demands {}, `{}` {}: let all of them demand the same `{key}`, or none of them",
    one.0, shown(one.1.as_deref()), other.0, shown(other.1.as_deref())
)]
pub struct Disagreement {
    key: String,
    one: (String, Option<String>),
    other: (String, Option<String>),
}

fn shown(sub_cluster: Option<&str>) -> String {
    sub_cluster.map_or_else(|| "no sub-cluster".to_owned(), |name| format!("sub-cluster `{name}`"))
}

/// The sub-cluster that a node selector demands.
pub fn demanded<'a>(selector: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    selector.get(key).map(String::as_str).filter(|name| !name.is_empty())
}

/// What all node selectors of a unit demand alike.
pub fn of_all<'a>(
    selectors: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
    key: &str,
) -> Option<&'a str> {
    let mut all = selectors.into_iter().map(|selector| demanded(selector, key));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

/// The sub-cluster of a unit.
pub fn of<'a>(spec: &'a UnitSpec, key: &str) -> Option<&'a str> {
    of_all(spec.task_groups.iter().map(|group| &group.template.node_selector), key)
}

/// Whether all task groups of a unit demand the same sub-cluster, or none.
///
/// # Errors
/// The first two that do not.
pub fn check(spec: &UnitSpec, key: &str) -> Result<(), Disagreement> {
    agree(spec.task_groups.iter().map(|group| (group.name.as_str(), &group.template.node_selector)), key)
}

fn agree<'a>(
    groups: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
    key: &str,
) -> Result<(), Disagreement> {
    let mut groups = groups.into_iter().map(|(name, selector)| (name, demanded(selector, key)));
    let Some(one) = groups.next() else { return Ok(()) };
    let own = |(name, demanded): (&str, Option<&str>)| (name.to_owned(), demanded.map(str::to_owned));
    match groups.find(|other| other.1 != one.1) {
        Some(other) => Err(Disagreement { key: key.to_owned(), one: own(one), other: own(other) }),
        None => Ok(()),
    }
}

/// Whether units of two sub-clusters may want the same nodes: one of none may want any.
pub fn overlap(a: Option<&str>, b: Option<&str>) -> bool {
    a.is_none() || b.is_none() || a == b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(value: Option<&str>) -> BTreeMap<String, String> {
        value.map(|value| (KEY.to_owned(), value.to_owned())).into_iter().collect()
    }

    #[test]
    fn a_unit_is_of_the_sub_cluster_that_all_its_groups_demand() {
        for (groups, expected) in [
            (&[Some("a")][..], Some("a")),
            (&[Some("a"), Some("a")], Some("a")),
            (&[Some("a"), Some("b")], None),
            (&[Some("a"), None], None),
            (&[None, Some("a")], None),
            (&[None], None),
            (&[Some("")], None),
            (&[], None),
        ] {
            let selectors: Vec<_> = groups.iter().map(|value| selector(*value)).collect();
            assert_eq!(of_all(&selectors, KEY), expected, "{groups:?}");
            assert_eq!(of_all(&selectors, ""), None, "without a key there are none");
        }
    }

    #[test]
    fn groups_that_disagree_are_named() {
        let check = |groups: &[Option<&str>]| {
            let selectors: Vec<_> = groups.iter().map(|value| selector(*value)).collect();
            agree(["g0", "g1", "g2"].into_iter().zip(&selectors), KEY)
        };
        for fine in [&[None, None][..], &[Some("a"), Some("a")], &[Some("a")]] {
            assert_eq!(check(fine), Ok(()), "{fine:?}");
        }
        for (groups, said) in [
            (&[Some("a"), Some("a"), Some("b")][..], "`g0` demands sub-cluster `a`, `g2` sub-cluster `b`"),
            (&[None, Some("b")], "`g0` demands no sub-cluster, `g1` sub-cluster `b`"),
        ] {
            let wrong = check(groups).unwrap_err().to_string();
            assert!(wrong.contains(said), "{wrong}");
            assert!(wrong.contains(KEY), "{wrong}");
        }
    }

    #[test]
    fn without_a_sub_cluster_any_node_may_be_wanted() {
        for (a, b, expected) in [
            (None, None, true),
            (None, Some("a"), true),
            (Some("a"), None, true),
            (Some("a"), Some("a"), true),
            (Some("a"), Some("b"), false),
        ] {
            assert_eq!(overlap(a, b), expected);
        }
    }
}
