//! Which queue an application goes to by who submits it: `yarn.scheduler.capacity.queue-mappings`, as YARN applies it.
//!
//! `u:USER:QUEUE` and `g:GROUP:QUEUE` in the order in which they are written, the first that concerns the user decides. `%user`,
//! `%primary_group` and `%secondary_group` stand for the name and the groups of the user.

use crate::{access::YarnUser, configuration::HadoopConfiguration, properties::PREFIX};

/// The queue of whoever names none.
const DEFAULT: &str = "default";
/// Rules of one configuration.
const N_RULES_MAX: usize = 10_000;

/// Rules, and whether they decide for applications that name a queue, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueMappings {
    rules: Vec<MappingRule>,
    overrides: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MappingRule {
    who: Submitters,
    /// Queue that the one named `leaf` is below; none: it is found by its own name.
    parent: Option<QueueWord>,
    leaf: QueueWord,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Submitters {
    Everyone,
    User(String),
    Group(String),
}

/// A part of the name of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
enum QueueWord {
    Named(String),
    User,
    PrimaryGroup,
    SecondaryGroup,
}

impl QueueMappings {
    /// The rules of a configuration.
    ///
    /// # Errors
    /// A rule is none, in words.
    pub fn read(configuration: &HadoopConfiguration) -> Result<Self, String> {
        let text = configuration.get(&format!("{PREFIX}queue-mappings")).unwrap_or_default();
        let overrides = configuration.is_true(&format!("{PREFIX}queue-mappings-override.enable"), false);
        Ok(Self { rules: parse(&text)?, overrides })
    }

    /// There are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Some rule asks for the groups of the user.
    pub fn asks_groups(&self) -> bool {
        let of_group = |word: &QueueWord| matches!(word, QueueWord::PrimaryGroup | QueueWord::SecondaryGroup);
        self.rules.iter().any(|rule| {
            matches!(rule.who, Submitters::Group(_))
                || of_group(&rule.leaf)
                || rule.parent.as_ref().is_some_and(of_group)
        })
    }

    /// The queue that the rules give an application of a user who asked for `asked`, as YARN names queues; `None`: the one asked
    /// for. Of its groups the primary one is the first; `exists` knows queues by path or last name.
    pub fn place(&self, user: YarnUser<'_>, asked: &str, exists: impl Fn(&str) -> bool) -> Option<String> {
        let asked = asked.strip_prefix("root.").unwrap_or(asked);
        if !self.overrides && !asked.is_empty() && asked != DEFAULT {
            return None;
        }
        let concerns = |rule: &&MappingRule| match &rule.who {
            Submitters::Everyone => true,
            Submitters::User(name) => name == user.name,
            Submitters::Group(name) => user.groups.contains(name),
        };
        let rule = self.rules.iter().find(concerns)?;
        let spell = |word: &QueueWord| match word {
            QueueWord::Named(name) => Some(name.clone()),
            QueueWord::User => Some(user.name.to_owned()),
            QueueWord::PrimaryGroup => user.groups.first().cloned(),
            QueueWord::SecondaryGroup => user.groups.iter().skip(1).find(|group| exists(group)).cloned(),
        };
        let leaf = spell(&rule.leaf)?;
        match &rule.parent {
            None => Some(leaf),
            Some(parent) => {
                let parent = spell(parent)?;
                Some(format!("{parent}.{leaf}"))
            }
        }
    }
}

fn parse(text: &str) -> Result<Vec<MappingRule>, String> {
    let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    let rules: Vec<&str> = rules.collect();
    if rules.len() > N_RULES_MAX {
        return Err(format!("{} rules; at most {N_RULES_MAX}", rules.len()));
    }
    rules.into_iter().map(rule).collect()
}

fn rule(text: &str) -> Result<MappingRule, String> {
    let wrong = |why: &str| {
        format!("`{text}` is no rule for queues, as `u:ann:prod`, `g:dev:lab` or `u:%user:%user`: {why}")
    };
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    let [kind, who, queue] = parts.as_slice() else { return Err(wrong("it has not three parts")) };
    if who.is_empty() || queue.is_empty() {
        return Err(wrong("a part is empty"));
    }
    let who = match (*kind, *who) {
        ("u", "%user") => Submitters::Everyone,
        ("u", name) => Submitters::User(name.to_owned()),
        ("g", name) => Submitters::Group(name.to_owned()),
        _ => return Err(wrong("it begins with neither `u` nor `g`")),
    };
    // A path without words is the name of one queue, and is not taken apart.
    let (parent, leaf) = match queue.rsplit_once('.').filter(|_| queue.contains('%')) {
        Some((parent, leaf)) => (Some(word(parent).map_err(|why| wrong(&why))?), leaf),
        None => (None, *queue),
    };
    Ok(MappingRule { who, parent, leaf: word(leaf).map_err(|why| wrong(&why))? })
}

fn word(text: &str) -> Result<QueueWord, String> {
    match text {
        "%user" => Ok(QueueWord::User),
        "%primary_group" => Ok(QueueWord::PrimaryGroup),
        "%secondary_group" => Ok(QueueWord::SecondaryGroup),
        _ if text.contains('%') => Err(format!("`{text}` is not known")),
        _ if text.split('.').any(str::is_empty) => Err("the queue has no name".to_owned()),
        name => Ok(QueueWord::Named(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(rules: &str, overrides: bool) -> QueueMappings {
        QueueMappings { rules: parse(rules).unwrap(), overrides }
    }

    fn place(rules: &str, user: &str, groups: &[&str], asked: &str) -> Option<String> {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        let exists = |queue: &str| ["dev", "ops", "lab"].contains(&queue);
        mappings(rules, false).place(YarnUser::believed(user, &groups), asked, exists)
    }

    #[test]
    fn the_first_rule_that_concerns_a_user_decides() {
        let ops = &["staff", "other", "ops"][..];
        for (rules, groups, expected) in [
            ("u:ann:prod", &[][..], Some("prod")),
            ("u:ann:root.prod.etl, u:ann:dev", &[], Some("root.prod.etl")),
            ("u:bob:prod", &[], None),
            ("u:bob:prod,g:ops:lab", ops, Some("lab")),
            ("g:staff:%user", ops, Some("ann")),
            ("g:nobody:lab", ops, None),
            ("u:%user:%user", &[], Some("ann")),
            ("u:%user:%primary_group", ops, Some("staff")),
            ("u:%user:%primary_group", &[], None),
            ("u:%user:%secondary_group", ops, Some("ops")),
            ("u:%user:%secondary_group", &["ops"], None),
            ("u:%user:%primary_group.%user", ops, Some("staff.ann")),
            ("u:%user:%secondary_group.%user", ops, Some("ops.ann")),
            ("u:%user:root.users.%user", &[], Some("root.users.ann")),
            ("u:ann:%primary_group", ops, Some("staff")),
            // The first one counts even if it names no queue for the user.
            ("u:%user:%secondary_group,u:ann:prod", &["ops"], None),
            ("", ops, None),
        ] {
            assert_eq!(place(rules, "ann", groups, "default").as_deref(), expected, "{rules}");
        }
    }

    #[test]
    fn a_queue_that_is_named_stays_unless_rules_override_it() {
        let rules = "u:ann:prod";
        for asked in ["default", "root.default", ""] {
            assert_eq!(place(rules, "ann", &[], asked).as_deref(), Some("prod"), "{asked}");
        }
        assert_eq!(place(rules, "ann", &[], "dev"), None);
        let overriding = mappings(rules, true);
        let place = |name| overriding.place(YarnUser::believed(name, &[]), "dev", |_| true);
        assert_eq!((place("ann").as_deref(), place("bob")), (Some("prod"), None));
    }

    #[test]
    fn rules_ask_for_groups_only_if_they_name_some() {
        for (rules, asks) in [
            ("u:ann:prod,u:%user:%user", false),
            ("g:ops:lab", true),
            ("u:%user:%primary_group.%user", true),
            ("u:%user:%secondary_group", true),
        ] {
            assert_eq!(mappings(rules, false).asks_groups(), asks, "{rules}");
        }
    }

    #[test]
    fn what_is_no_rule_is_told() {
        for (rules, part) in [
            ("u:ann", "three parts"),
            ("u:ann:a:b", "three parts"),
            ("x:ann:prod", "neither `u` nor `g`"),
            ("u::prod", "a part is empty"),
            ("u:ann:%queue", "`%queue` is not known"),
            ("u:ann:%primary_group.x%", "`x%` is not known"),
            ("u:ann:prod.", "no name"),
        ] {
            let said = parse(rules).unwrap_err();
            assert!(said.contains(part), "{rules}: {said}");
        }
    }
}
