//! What administrators have paused: records that outlive every process.

use std::{collections::BTreeMap, fmt};

use crate::queue::spec::parent;

/// What is paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Nothing is handed out to schedulers.
    All,
    /// Nobody has to leave for others.
    Preemption,
    /// Nothing is handed out of this queue and those below it: its path.
    Queue(String),
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
}

/// Prefix of the scopes of queues.
const QUEUE: &str = "queue/";

impl Scope {
    /// From `all`, `preemption` or `queue/<path>`; `None` if it is none of them.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "all" => Some(Self::All),
            "preemption" => Some(Self::Preemption),
            other => other
                .strip_prefix(QUEUE)
                .filter(|path| !path.is_empty())
                .map(|path| Self::Queue(path.to_owned())),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Preemption => f.write_str("preemption"),
            Self::Queue(path) => write!(f, "{QUEUE}{path}"),
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

    /// What keeps the units of a queue from being handed out: the widest scope.
    pub fn keeping(&self, queue: &str) -> Option<&Pause> {
        if self.by_scope.is_empty() {
            return None;
        }
        let above = std::iter::successors(Some(queue), |path| parent(path));
        let of_queue = above.filter_map(|path| self.by_scope.get(&Scope::Queue(path.to_owned())));
        self.by_scope.get(&Scope::All).or_else(|| of_queue.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(scope: Scope) -> Pause {
        Pause { scope, since_ms: 7, reason: String::new() }
    }

    #[test]
    fn scopes_are_written_and_read() {
        for (text, scope) in [
            ("all", Scope::All),
            ("preemption", Scope::Preemption),
            ("queue/prod.search", Scope::Queue("prod.search".to_owned())),
        ] {
            assert_eq!((Scope::parse(text), scope.to_string().as_str()), (Some(scope), text));
        }
        for bad in ["", "everything", "queue/", "sub-cluster/a"] {
            assert_eq!(Scope::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_queue_is_kept_by_a_pause_of_all_of_itself_or_of_one_above() {
        let mut pauses = Pauses::default();
        let keeping =
            |pauses: &Pauses, queue: &str| pauses.keeping(queue).map(|pause| pause.scope.to_string());
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
}
