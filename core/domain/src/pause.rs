//! What administrators have paused: records that outlive every process.

use std::{collections::BTreeMap, fmt};

use crate::{names, queue_spec::parent};

/// What is paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Nothing is handed out to schedulers.
    All,
    /// Nobody has to leave for others.
    Preemption,
    /// Nothing is handed out of this queue and those below it: its path.
    Queue(String),
    /// Nothing is handed out of what is of this sub-cluster: its name.
    SubCluster(String),
}

/// A pause in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Of what.
    pub scope: Scope,
    /// Since when, Unix milliseconds.
    pub since_ms: i64,
    /// Why, in words; may be empty.
    pub reason: String,
    /// Of a sub-cluster: the label that node selectors demand it by, so that everybody judges alike. Else empty.
    pub sub_cluster_key: String,
}

/// Prefix of the scopes of queues.
const QUEUE: &str = "queue/";
/// Prefix of the scopes of sub-clusters.
const SUB_CLUSTER: &str = "sub-cluster/";

impl Scope {
    /// From `all`, `preemption`, `queue/<path>` or `sub-cluster/<name>`; `None` if it is none of them.
    pub fn parse(text: &str) -> Option<Self> {
        let after = |prefix| text.strip_prefix(prefix).filter(|rest| !rest.is_empty());
        match text {
            "all" => Some(Self::All),
            "preemption" => Some(Self::Preemption),
            _ => match after(QUEUE) {
                Some(path) => Some(Self::Queue(path.to_owned())),
                // As long as the value of a label may be.
                None => after(SUB_CLUSTER)
                    .filter(|name| names::text(name, names::NAME_LEN_MAX).is_ok())
                    .map(|name| Self::SubCluster(name.to_owned())),
            },
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Preemption => f.write_str("preemption"),
            Self::Queue(path) => write!(f, "{QUEUE}{path}"),
            Self::SubCluster(name) => write!(f, "{SUB_CLUSTER}{name}"),
        }
    }
}

/// Pauses in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    by_scope: BTreeMap<Scope, Pause>,
}

impl Pauses {
    /// In force from now on. Whether that is news.
    pub fn put(&mut self, pause: Pause) -> bool {
        self.by_scope.insert(pause.scope.clone(), pause).is_none()
    }

    /// Over. Whether it was in force.
    pub fn remove(&mut self, scope: &Scope) -> bool {
        self.by_scope.remove(scope).is_some()
    }

    /// The pause of exactly this.
    pub fn get(&self, scope: &Scope) -> Option<&Pause> {
        self.by_scope.get(scope)
    }

    /// In order of scope.
    pub fn iter(&self) -> impl Iterator<Item = &Pause> {
        self.by_scope.values()
    }

    /// What keeps units of a queue and a sub-cluster from being handed out: everything's pause, then the sub-cluster's, then
    /// that of the highest queue. `sub_cluster` says it by the label of nodes; it is asked only while one is paused.
    pub fn keeping<'a>(&self, queue: &str, sub_cluster: impl Fn(&str) -> Option<&'a str>) -> Option<&Pause> {
        if self.by_scope.is_empty() {
            return None;
        }
        if let Some(pause) = self.by_scope.get(&Scope::All) {
            return Some(pause);
        }
        let of_sub_cluster = self.by_scope.values().find(|pause| match &pause.scope {
            Scope::SubCluster(name) => sub_cluster(&pause.sub_cluster_key) == Some(name),
            Scope::All | Scope::Preemption | Scope::Queue(_) => false,
        });
        if of_sub_cluster.is_some() {
            return of_sub_cluster;
        }
        let above = std::iter::successors(Some(queue), |path| parent(path));
        above.filter_map(|path| self.by_scope.get(&Scope::Queue(path.to_owned()))).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(scope: Scope) -> Pause {
        Pause { scope, since_ms: 7, reason: String::new(), sub_cluster_key: String::new() }
    }

    #[test]
    fn scopes_are_written_and_read() {
        for (text, scope) in [
            ("all", Scope::All),
            ("preemption", Scope::Preemption),
            ("queue/prod.search", Scope::Queue("prod.search".to_owned())),
            ("sub-cluster/gpu/a", Scope::SubCluster("gpu/a".to_owned())),
        ] {
            assert_eq!((Scope::parse(text), scope.to_string().as_str()), (Some(scope), text));
        }
        let long = format!("sub-cluster/{}", "x".repeat(254));
        for bad in ["", "everything", "queue/", "sub-cluster/", "sub-cluster", "sub-cluster/a\n", &long] {
            assert_eq!(Scope::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_queue_is_kept_by_a_pause_of_all_of_itself_or_of_one_above() {
        let mut pauses = Pauses::default();
        let keeping = |pauses: &Pauses, queue: &str| {
            pauses.keeping(queue, |_| None).map(|pause| pause.scope.to_string())
        };
        assert!(pauses.put(pause(Scope::Preemption)) && !pauses.put(pause(Scope::Preemption)));
        assert_eq!(keeping(&pauses, "prod.search"), None);
        pauses.put(pause(Scope::Queue("prod".to_owned())));
        assert_eq!(keeping(&pauses, "prod.search").as_deref(), Some("queue/prod"));
        assert_eq!(
            (keeping(&pauses, "prod").as_deref(), keeping(&pauses, "production")),
            (Some("queue/prod"), None)
        );
        pauses.put(pause(Scope::All));
        assert_eq!(keeping(&pauses, "production").as_deref(), Some("all"));
        assert!(pauses.remove(&Scope::All) && !pauses.remove(&Scope::All));
        assert_eq!(keeping(&pauses, "production"), None);
        assert_eq!(pauses.iter().count(), 2);
    }

    #[test]
    fn a_sub_cluster_is_kept_whatever_the_queue() {
        let mut pauses = Pauses::default();
        let of = |name: &str| Pause {
            sub_cluster_key: "part".to_owned(),
            ..pause(Scope::SubCluster(name.to_owned()))
        };
        pauses.put(of("a"));
        pauses.put(pause(Scope::Queue("prod".to_owned())));
        let keeping = |pauses: &Pauses, queue: &str, of: Option<&str>| {
            let by = |key: &str| of.filter(|_| key == "part");
            pauses.keeping(queue, by).map(|pause| pause.scope.to_string())
        };
        assert_eq!(keeping(&pauses, "default", Some("a")).as_deref(), Some("sub-cluster/a"));
        assert_eq!(keeping(&pauses, "prod", Some("a")).as_deref(), Some("sub-cluster/a"));
        assert_eq!(keeping(&pauses, "prod", Some("b")).as_deref(), Some("queue/prod"));
        assert_eq!((keeping(&pauses, "default", Some("b")), keeping(&pauses, "default", None)), (None, None));
    }
}
