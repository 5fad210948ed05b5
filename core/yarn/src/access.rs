//! Lists of users and groups, as YARN's access controls are written: `alice,bob analysts`, `*` for everyone, a space for
//! nobody.

use std::collections::BTreeSet;

/// Who may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessList {
    /// Whoever asks.
    Everyone,
    /// These users, and the members of these groups.
    Only {
        /// By name.
        users: BTreeSet<String>,
        /// By name.
        groups: BTreeSet<String>,
    },
}

impl AccessList {
    /// Nobody at all.
    pub(crate) fn nobody() -> Self {
        Self::Only { users: BTreeSet::new(), groups: BTreeSet::new() }
    }

    /// From the text of a property, spaces at its start included: they leave out the users.
    pub(crate) fn parse(text: &str) -> Self {
        if text.trim() == "*" {
            return Self::Everyone;
        }
        let (users, groups) = text.split_once(' ').unwrap_or((text, ""));
        let names = |text: &str| -> BTreeSet<String> {
            text.split([',', ' ']).map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        Self::Only { users: names(users), groups: names(groups) }
    }

    /// Whoever is in either.
    pub(crate) fn union(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Everyone, _) | (_, Self::Everyone) => Self::Everyone,
            (Self::Only { users, groups }, Self::Only { users: more_users, groups: more_groups }) => {
                Self::Only {
                    users: users.union(more_users).cloned().collect(),
                    groups: groups.union(more_groups).cloned().collect(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(users: &[&str], groups: &[&str]) -> AccessList {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        AccessList::Only { users: set(users), groups: set(groups) }
    }

    #[test]
    fn lists_are_read_as_yarn_writes_them() {
        for (text, list) in [
            ("*", AccessList::Everyone),
            (" * ", AccessList::Everyone),
            (" ", AccessList::nobody()),
            ("", AccessList::nobody()),
            ("alice", only(&["alice"], &[])),
            ("alice,bob", only(&["alice", "bob"], &[])),
            ("alice,bob analysts,ops", only(&["alice", "bob"], &["analysts", "ops"])),
            (" analysts", only(&[], &["analysts"])),
        ] {
            assert_eq!(AccessList::parse(text), list, "{text:?}");
        }
    }

    #[test]
    fn a_union_has_whoever_is_in_either() {
        let (a, b) = (only(&["alice"], &["ops"]), only(&["bob"], &[]));
        assert_eq!(a.union(&b), only(&["alice", "bob"], &["ops"]));
        assert_eq!(b.union(&AccessList::Everyone), AccessList::Everyone);
        assert_eq!(AccessList::nobody().union(&b), b);
    }
}
