//! Names of queues: godel's paths and what YARN's clients call them.

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::queue_spec::{DEFAULT_QUEUE, QueueSpec};

/// What YARN calls the queue above all others.
pub(crate) const ROOT: &str = "root";

/// How YARN's clients see a queue of godel: its path from `root`.
pub(crate) fn yarn_name(root_queue: &str, path: &str) -> String {
    let below = if root_queue.is_empty() {
        Some(path)
    } else if path == root_queue {
        return ROOT.to_owned();
    } else {
        path.strip_prefix(root_queue).and_then(|rest| rest.strip_prefix('.'))
    };
    // One that is not below it has no other name than its own.
    below.map_or_else(|| path.to_owned(), |below| format!("{ROOT}.{below}"))
}

/// The queue of godel that a client means: by its path from `root` or the last part of it, as godel writes names; without a name the default one.
/// `None`: there is none, several have that name, or others are below it.
pub(crate) fn godel_path(
    queues: &BTreeMap<String, Arc<QueueSpec>>,
    root_queue: &str,
    name: &str,
) -> Option<String> {
    let is_leaf = |path: &str| {
        let below = |other: &String| other.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        !queues.keys().any(below)
    };
    let is_there = |path: &str| is_leaf(path) && (queues.contains_key(path) || path == DEFAULT_QUEUE);
    let name = if name.is_empty() { DEFAULT_QUEUE } else { name };
    // Imports write names so.
    let name = name.to_lowercase().replace('_', "-");
    let below = name.strip_prefix("root.").unwrap_or(&name);
    let path = if root_queue.is_empty() { below.to_owned() } else { format!("{root_queue}.{below}") };
    if is_there(&path) {
        return Some(path);
    }
    let mut named = queues.keys().filter(|path| {
        let is_below =
            root_queue.is_empty() || path.strip_prefix(root_queue).is_some_and(|rest| rest.starts_with('.'));
        is_below && is_leaf(path) && path.rsplit('.').next() == Some(below)
    });
    match (named.next(), named.next()) {
        (Some(path), None) => Some(path.clone()),
        (None, _) if is_there(below) && below == DEFAULT_QUEUE => Some(below.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_found_by_path_and_by_last_name() {
        let names =
            ["yarn", "yarn.prod", "yarn.prod.search", "yarn.dev", "yarn.dev.search", "yarn.dev.ads", "other"];
        let queues: BTreeMap<String, Arc<QueueSpec>> =
            names.map(|name| (name.to_owned(), Arc::new(QueueSpec::new(name)))).into();
        let found = |root, name| godel_path(&queues, root, name);
        for (root, name, expected) in [
            ("yarn", "root.prod.search", Some("yarn.prod.search")),
            ("yarn", "dev.ads", Some("yarn.dev.ads")),
            ("yarn", "ADS", Some("yarn.dev.ads")),
            ("yarn", "search", None),
            ("yarn", "root.prod", None),
            ("yarn", "other", None),
            ("yarn", "", Some("default")),
            ("", "root.yarn.dev.ads", Some("yarn.dev.ads")),
            ("", "other", Some("other")),
            ("", "root.default", Some("default")),
            ("", "none", None),
        ] {
            assert_eq!(found(root, name).as_deref(), expected, "{root} {name}");
        }
        assert_eq!(yarn_name("yarn", "yarn.dev.ads"), "root.dev.ads");
        assert_eq!(yarn_name("yarn", "yarn"), "root");
        assert_eq!(
            (yarn_name("", "a.b"), yarn_name("yarn", "default")),
            ("root.a.b".to_owned(), "default".to_owned())
        );
    }
}
