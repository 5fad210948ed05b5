//! Units that a caller may see, and what is shown in place of the names of others.

use std::borrow::Cow;

use crate::{
    budget_spec::NAMESPACE_DEFAULT,
    names::{self, NAME_LEN_MAX, NAMESPACE_LEN_MAX},
};

/// What stands in answers for the name of a unit that the caller may not see.
pub const HIDDEN: &str = "(hidden)";

/// Which units a caller may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// Those of every namespace.
    #[default]
    All,
    /// Those of some namespaces, and those of one owner.
    Partial(PartialSight),
}

/// A sight that is not of all units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialSight {
    /// Of these all units are seen, in order of name.
    namespaces: Vec<String>,
    /// Whose units are seen in every namespace; empty: nobody's.
    owner: String,
    /// Only units of this namespace are meant; empty: of all.
    within: String,
}

impl Sight {
    /// Units of these namespaces.
    pub fn of(namespaces: impl IntoIterator<Item = String>) -> Self {
        let mut namespaces: Vec<String> = namespaces.into_iter().collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        Self::Partial(PartialSight { namespaces, ..PartialSight::default() })
    }

    /// The same, and the units of an owner wherever they are.
    #[must_use]
    pub fn with_units_of(self, owner: &str) -> Self {
        match self {
            Self::All => Self::All,
            Self::Partial(some) => Self::Partial(PartialSight { owner: owner.to_owned(), ..some }),
        }
    }

    /// Whether all units of a namespace are seen. An empty one is the default one.
    pub fn sees(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Partial(some) => some.sees(or_default(namespace)),
        }
    }

    /// Whether a unit of that namespace and owner is seen.
    pub fn sees_unit_of(&self, namespace: &str, owner: &str) -> bool {
        match self {
            Self::All => true,
            Self::Partial(some) => {
                let namespace = or_default(namespace);
                some.sees(namespace)
                    || !owner.is_empty()
                        && some.owner == owner
                        && (some.within.is_empty() || some.within == namespace)
            }
        }
    }

    /// Whether all units are seen.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// What is seen of one namespace; empty: of all that are seen.
    #[must_use]
    pub fn within(self, namespace: &str) -> Self {
        if namespace.is_empty() {
            return self;
        }
        match self {
            Self::Partial(some) if !some.sees(namespace) => {
                let (namespaces, within) = (Vec::new(), namespace.to_owned());
                Self::Partial(PartialSight { namespaces, within, ..some })
            }
            Self::All | Self::Partial(_) => Self::of([namespace.to_owned()]),
        }
    }

    /// Namespaces that have all that is seen; `None`: every one may have some.
    pub fn namespaces(&self) -> Option<&[String]> {
        match self {
            Self::All => None,
            Self::Partial(PartialSight { namespaces, owner, within }) => {
                match (owner.is_empty(), within.is_empty()) {
                    (true, _) => Some(namespaces),
                    (false, true) => None,
                    (false, false) => Some(std::slice::from_ref(within)),
                }
            }
        }
    }

    /// Whether a unit is seen, by its name as `namespace/name`. What has another form, as `unit 17`, names nothing.
    pub fn sees_name(&self, name: &str) -> bool {
        self.is_all() || name.split_once('/').is_none_or(|(namespace, _)| self.sees(namespace))
    }

    /// Whether a name as `namespace/name` is that of a unit that is seen; other forms are not.
    pub fn sees_unit(&self, name: &str) -> bool {
        self.is_all() || name.split_once('/').is_some_and(|(namespace, _)| self.sees(namespace))
    }

    /// Hides the name of a unit, as `namespace/name`, unless it is seen.
    pub fn hide_name(&self, name: &mut String) {
        if !self.sees_name(name) {
            HIDDEN.clone_into(name);
        }
    }

    /// A sentence without the names of units that are not seen: each word of the form `namespace/name`, also with more behind a further `/`, is hidden
    /// unless its namespace is seen. Label keys have the same form and are hidden too, so this is for sentences that name units.
    pub fn hide_in<'a>(&self, sentence: &'a str) -> Cow<'a, str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.' | '_');
        let is_hidden = |word: &str| {
            let mut parts = word.trim_end_matches(['.', '/']).splitn(3, '/');
            let (Some(namespace), Some(name)) = (parts.next(), parts.next()) else { return false };
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            names::name(namespace, NAMESPACE_LEN_MAX).is_ok()
                && names::name(name, NAME_LEN_MAX).is_ok()
                && !(is_number(namespace) && is_number(name))
                && !self.sees(namespace)
        };
        if self.is_all() || !sentence.contains('/') {
            return Cow::Borrowed(sentence);
        }
        let (mut shown, mut rest) = (String::with_capacity(sentence.len()), sentence);
        while !rest.is_empty() {
            let word_len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(word_len);
            if is_hidden(word) {
                shown.push_str(HIDDEN);
                shown.push_str(&word[word.trim_end_matches(['.', '/']).len()..]);
            } else {
                shown.push_str(word);
            }
            let gap_len = behind.find(is_word).unwrap_or(behind.len());
            let (gap, next) = behind.split_at(gap_len);
            shown.push_str(gap);
            rest = next;
        }
        Cow::Owned(shown)
    }

    /// As [`Self::hide_in`], in place.
    pub fn hide_within(&self, sentence: &mut String) {
        if let Cow::Owned(shown) = self.hide_in(sentence) {
            *sentence = shown;
        }
    }
}

impl PartialSight {
    fn sees(&self, namespace: &str) -> bool {
        self.namespaces.binary_search_by(|one| one.as_str().cmp(namespace)).is_ok()
    }
}

fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { NAMESPACE_DEFAULT } else { namespace }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team_a() -> Sight {
        Sight::of(["team-a", "default", "team-a"].map(str::to_owned))
    }

    #[test]
    fn units_are_seen_by_their_namespaces() {
        assert_eq!(team_a().namespaces().unwrap(), ["default", "team-a"]);
        for (namespace, is_seen) in
            [("", true), ("default", true), ("team-a", true), ("team", false), ("team-b", false)]
        {
            assert_eq!(team_a().sees(namespace), is_seen, "{namespace}");
            assert!(Sight::All.sees(namespace));
        }
        assert!(!Sight::of([]).sees(""));
    }

    #[test]
    fn a_namespace_narrows_what_is_seen() {
        let one = |namespace: &str| Sight::of([namespace.to_owned()]);
        assert_eq!(Sight::All.within(""), Sight::All);
        assert_eq!(Sight::All.within("x"), one("x"));
        assert_eq!(team_a().within(""), team_a());
        assert_eq!(team_a().within("team-a"), one("team-a"));
        assert_eq!(team_a().within("team-b").namespaces(), Some(&[][..]));
        assert!(!team_a().within("team-b").sees_unit_of("team-b", ""));
    }

    #[test]
    fn units_of_an_owner_are_seen_wherever_they_are() {
        let ann = || team_a().with_units_of("ann");
        for (namespace, owner, is_seen) in [
            ("yarn", "ann", true),
            ("yarn", "bob", false),
            ("yarn", "", false),
            ("yarn", "yarn-simple:ann", false),
            ("team-a", "bob", true),
            ("", "bob", true),
        ] {
            assert_eq!(ann().sees_unit_of(namespace, owner), is_seen, "{namespace} {owner}");
            let within = ann().within(namespace);
            assert_eq!(within.sees_unit_of(namespace, owner), is_seen, "{namespace} {owner}");
            assert!(namespace.is_empty() || !within.sees_unit_of("other", owner), "{namespace} {owner}");
            assert!(Sight::All.sees_unit_of(namespace, owner));
        }
        assert!(!team_a().sees_unit_of("yarn", "") && !team_a().sees_unit_of("yarn", "ann"));
        // Names are hidden by their namespaces: they say no owner.
        assert!(!ann().sees("yarn") && !ann().sees_unit("yarn/application-1-0001"));
        assert_eq!((ann().namespaces(), Sight::All.namespaces()), (None, None));
        assert_eq!(ann().within("yarn").namespaces().unwrap(), ["yarn"]);
        assert_eq!(ann().within("team-a").namespaces().unwrap(), ["team-a"]);
        assert_eq!(Sight::All.with_units_of("ann"), Sight::All);
    }

    #[test]
    fn names_of_other_namespaces_are_hidden() {
        for (name, expected) in [
            ("team-a/web", "team-a/web"),
            ("default/web", "default/web"),
            ("team-b/web", HIDDEN),
            ("unit 17, which is gone", "unit 17, which is gone"),
            ("", ""),
        ] {
            let mut shown = name.to_owned();
            team_a().hide_name(&mut shown);
            assert_eq!(shown, expected);
            assert_eq!(team_a().sees_unit(name), name.contains('/') && expected != HIDDEN);
            let mut shown = name.to_owned();
            Sight::All.hide_name(&mut shown);
            assert_eq!(shown, name);
        }
    }

    #[test]
    fn sentences_keep_all_but_the_names() {
        for (sentence, expected) in [
            ("waits again, as team-b/db took over the room", "waits again, as (hidden) took over the room"),
            ("unit team-b/db.", "unit (hidden)."),
            ("`team-b/db` talks to `team-a/web`, `x/y`", "`(hidden)` talks to `team-a/web`, `(hidden)`"),
            ("replica team-b/db/3 leaves", "replica (hidden) leaves"),
            ("(team-b/db)", "((hidden))"),
            ("3/4 nodes at 0.5/1.0, /var/log/x and n1", "3/4 nodes at 0.5/1.0, /var/log/x and n1"),
            ("größer als team-b/ö und team-b/öl", "größer als team-b/ö und team-b/öl"),
            ("unit 17 leaves node n1", "unit 17 leaves node n1"),
            ("", ""),
        ] {
            assert_eq!(team_a().hide_in(sentence), expected);
            assert_eq!(Sight::All.hide_in(sentence), sentence);
        }
        let mut sentence = "team-b/a team-c/b".to_owned();
        team_a().hide_within(&mut sentence);
        assert_eq!(sentence, "(hidden) (hidden)");
    }
}
