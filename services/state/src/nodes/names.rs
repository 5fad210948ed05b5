//! Nodes by name and uid, and by unique prefixes of them. Built from the NodeSpec records; no lock, no I/O.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use godel_base::ids::NodeId;
use rustc_hash::FxHashMap;

/// Names and uids of all nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeNames {
    by_name: BTreeMap<String, NodeId>,
    by_uid: BTreeMap<String, NodeId>,
    of: FxHashMap<NodeId, (String, String)>,
}

/// Why a name finds no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotFound {
    /// Nothing has it.
    #[error("no node `{asked}`{}", did_you_mean(.near))]
    Unknown {
        /// What was asked for.
        asked: String,
        /// Up to three whose names or uids begin with it, where a whole one has to be given.
        near: Vec<String>,
    },
    /// Several do.
    #[error("`{asked}` may be any of several nodes: {}", .some.join(", "))]
    Ambiguous {
        /// The prefix, or the name of one and the uid of another.
        asked: String,
        /// Up to three of them.
        some: Vec<String>,
    },
}

fn did_you_mean(near: &[String]) -> String {
    let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
}

impl NodeNames {
    /// A node has this name and uid (from now on).
    pub(crate) fn put(&mut self, node: NodeId, name: String, uid: String) {
        self.remove(node);
        self.by_name.insert(name.clone(), node);
        if !uid.is_empty() {
            self.by_uid.insert(uid.clone(), node);
        }
        self.of.insert(node, (name, uid));
    }

    /// A node is gone.
    pub(crate) fn remove(&mut self, node: NodeId) {
        if let Some((name, uid)) = self.of.remove(&node) {
            self.by_name.remove(&name);
            self.by_uid.remove(&uid);
        }
    }

    /// Node of exactly this name.
    pub(crate) fn by_name(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Node of exactly this uid.
    pub(crate) fn by_uid(&self, uid: &str) -> Option<NodeId> {
        self.by_uid.get(uid).copied()
    }

    /// Name and uid of a node.
    pub(crate) fn of(&self, node: NodeId) -> Option<(&str, &str)> {
        self.of.get(&node).map(|(name, uid)| (name.as_str(), uid.as_str()))
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }

    /// The node that `asked` names: its whole name, or its whole uid. Whatever changes a node takes nothing less.
    pub(crate) fn find(&self, asked: &str) -> Result<NodeId, NotFound> {
        self.whole(asked)?.ok_or_else(|| {
            let near = self.shown(&self.begin_with(asked));
            NotFound::Unknown { asked: asked.to_owned(), near }
        })
    }

    /// The node that `asked` stands for when it is only looked at: as [`Self::find`] says, or a prefix of name or uid
    /// that no other node shares.
    pub(crate) fn resolve(&self, asked: &str) -> Result<NodeId, NotFound> {
        if let Some(node) = self.whole(asked)? {
            return Ok(node);
        }
        let asked = asked.to_owned();
        match self.begin_with(&asked)[..] {
            [] => Err(NotFound::Unknown { asked, near: Vec::new() }),
            [node] => Ok(node),
            ref several => Err(NotFound::Ambiguous { asked, some: self.shown(several) }),
        }
    }

    fn whole(&self, asked: &str) -> Result<Option<NodeId>, NotFound> {
        match (self.by_name(asked), self.by_uid(asked)) {
            (Some(one), Some(other)) if one != other => {
                Err(NotFound::Ambiguous { asked: asked.to_owned(), some: self.shown(&[one, other]) })
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    /// The first nodes whose names or uids begin with `asked`.
    fn begin_with(&self, asked: &str) -> Vec<NodeId> {
        let mut found = Vec::new();
        for index in [&self.by_name, &self.by_uid].into_iter().filter(|_| !asked.is_empty()) {
            let from = index.range::<str, _>((std::ops::Bound::Included(asked), Unbounded));
            for (_, node) in from.take_while(|(name, _)| name.starts_with(asked)).take(4) {
                if !found.contains(node) {
                    found.push(*node);
                }
            }
        }
        found
    }

    fn shown(&self, nodes: &[NodeId]) -> Vec<String> {
        nodes.iter().take(3).filter_map(|node| self.of(*node)).map(|(name, _)| name.to_owned()).collect()
    }

    /// Nodes in order of name, those after `last` only.
    pub(crate) fn after(&self, last: &str) -> impl Iterator<Item = (&str, NodeId)> {
        let from = if last.is_empty() { Unbounded } else { Excluded(last) };
        self.by_name.range::<str, _>((from, Unbounded)).map(|(name, node)| (name.as_str(), *node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> NodeNames {
        let mut names = NodeNames::default();
        for (id, name, uid) in [(1, "n1", "aa-1"), (2, "n10", "ab-2"), (3, "web", "n1x"), (4, "aa", "cc")] {
            names.put(NodeId(id), name.to_owned(), uid.to_owned());
        }
        names
    }

    #[test]
    fn who_reads_may_say_a_unique_prefix() {
        let names = names();
        let unknown = |asked: &str| Err(NotFound::Unknown { asked: asked.to_owned(), near: Vec::new() });
        for (asked, expect) in [
            ("n1", Ok(NodeId(1))),
            ("n10", Ok(NodeId(2))),
            ("w", Ok(NodeId(3))),
            ("n1x", Ok(NodeId(3))),
            ("ab", Ok(NodeId(2))),
            ("aa", Ok(NodeId(4))),
            ("cc", Ok(NodeId(4))),
            ("", unknown("")),
            ("x", unknown("x")),
            ("n100", unknown("n100")),
        ] {
            assert_eq!(names.resolve(asked), expect, "{asked}");
        }
        let some = vec!["n1".to_owned(), "n10".to_owned(), "web".to_owned()];
        assert_eq!(names.resolve("n"), Err(NotFound::Ambiguous { asked: "n".to_owned(), some }));
    }

    #[test]
    fn who_changes_something_says_a_whole_name_or_uid() {
        let mut names = names();
        for (asked, node) in [("n1", 1), ("n10", 2), ("n1x", 3), ("aa", 4), ("cc", 4), ("ab-2", 2)] {
            assert_eq!(names.find(asked), Ok(NodeId(node)), "{asked}");
        }
        for (asked, near, said) in [
            ("", &[][..], "no node ``"),
            ("x", &[], "no node `x`"),
            ("w", &["web"], "no node `w`; did you mean `web`?"),
            ("n", &["n1", "n10", "web"], "no node `n`; did you mean `n1`, `n10`, `web`?"),
        ] {
            let near = near.iter().map(|name| (*name).to_owned()).collect();
            let refusal = NotFound::Unknown { asked: asked.to_owned(), near };
            assert_eq!(refusal.to_string(), said);
            assert_eq!(names.find(asked), Err(refusal), "{asked}");
        }
        names.put(NodeId(5), "ab-2".to_owned(), "zz".to_owned());
        let both =
            NotFound::Ambiguous { asked: "ab-2".to_owned(), some: vec!["ab-2".to_owned(), "n10".to_owned()] };
        assert_eq!(names.find("ab-2"), Err(both.clone()));
        assert_eq!(names.resolve("ab-2"), Err(both));
    }

    #[test]
    fn a_new_uid_replaces_the_old_and_a_removed_node_is_gone() {
        let mut names = names();
        names.put(NodeId(1), "n1".to_owned(), "zz".to_owned());
        assert_eq!((names.by_uid("aa-1"), names.by_uid("zz"), names.len()), (None, Some(NodeId(1)), 4));
        names.remove(NodeId(1));
        assert_eq!((names.by_name("n1"), names.of(NodeId(1))), (None, None));
        assert_eq!(names.after("aa").map(|(name, _)| name).collect::<Vec<_>>(), ["n10", "web"]);
        assert_eq!(names.after("").count(), 3);
    }
}
