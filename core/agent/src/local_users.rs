//! As whom units may run on a node: the table of local users, and the rule over it.
//!
//! A program that runs under the number of a person, of a service of the cluster or of root can read what is theirs: tokens, keys, sockets.
//! So an agent that runs as root starts programs as the users of its table alone; the first row is the default. A row may be for some owners and groups
//! alone: their units run as its user unless they name another one, and no other units do. A user whose number is somebody's who administers the cluster
//! needs a row that says so.

use std::fmt;

/// The user of units where no table is configured: the image and the installation make it.
const DEFAULT_USER: &str = "godel-unit";

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalUserRow {
    /// Name or number of the user.
    pub user: String,
    /// Programs may run as this user though whoever runs as it administers the cluster.
    pub administers: bool,
    /// Owners whose units run as this user; `*` at the end of one stands for whatever follows.
    pub owners: Vec<String>,
    /// Groups whose members' units, and whose own units, run as this user. Without owners and groups it is for everybody.
    pub groups: Vec<String>,
}

/// How a row is for an owner, the loosest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RowFit {
    /// A `*` stands for the owner.
    Pattern,
    /// It names a group of the owner, or the owner is that group.
    Group,
    /// It names the owner.
    Owner,
}

impl LocalUserRow {
    /// A row for everybody, of a user who does not administer the cluster.
    pub fn open(user: &str) -> Self {
        Self { user: user.to_owned(), administers: false, owners: Vec::new(), groups: Vec::new() }
    }

    fn is_open(&self) -> bool {
        self.owners.is_empty() && self.groups.is_empty()
    }

    fn fit(&self, owner: UnitOwner<'_>) -> Option<RowFit> {
        let is_group = |group: &String| group == owner.name || owner.groups.contains(group);
        let is_like =
            |pattern: &String| pattern.strip_suffix('*').is_some_and(|begin| owner.name.starts_with(begin));
        if self.owners.iter().any(|named| named == owner.name) {
            Some(RowFit::Owner)
        } else if self.groups.iter().any(is_group) {
            Some(RowFit::Group)
        } else {
            self.owners.iter().any(is_like).then_some(RowFit::Pattern)
        }
    }
}

/// Whose unit a program is of.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitOwner<'a> {
    /// `meta.owner` of the unit.
    pub name: &'a str,
    /// Groups of the principal of that name.
    pub groups: &'a [String],
}

/// As whom a program is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedUser<'a> {
    /// What its unit says: a name, a number, or either of them with the user's own group (`name:group`), as images have it.
    pub named: Option<&'a str>,
    /// As whom it runs if no row is for its owner; `None`: the default of the table.
    pub otherwise: Option<&'a str>,
}

/// A user of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalUser {
    /// Its name; its number where it has no name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

/// A user as whom the cluster can be administered, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Administrator {
    /// Number of the user.
    pub uid: u32,
    /// How that is known.
    pub why: AdministersBy,
}

/// How it is known that whoever runs as a user administers the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdministersBy {
    /// The user owns this file or directory, which is the cluster's.
    Owns(String),
    /// This directory of the user holds contexts with their tokens.
    Contexts(String),
    /// This process, which is a service or an agent, runs as the user.
    Runs(u32),
}

/// As what follows the user in a sentence.
impl fmt::Display for AdministersBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owns(path) => write!(f, "owns {path}"),
            Self::Contexts(path) => write!(f, "keeps tokens in {path}"),
            Self::Runs(pid) => write!(f, "runs godel (process {pid})"),
        }
    }
}

/// Why a program may not run as a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalUserRefusal {
    /// The table does not name the user.
    #[error("units may not run as `{user}` on this node: `agent.users` does not name that user")]
    NotNamed {
        /// Who is asked for.
        user: String,
    },
    /// The row of the user is for others.
    #[error(
        "units of owner `{owner}` may not run as `{user}` on this node: the row of that user in `agent.users` is for other owners"
    )]
    OtherOwner {
        /// Who is asked for.
        user: String,
        /// Whose unit it is.
        owner: String,
    },
    /// No row is for the owner, and there is no default.
    #[error(
        "units of owner `{owner}` may not run on this node: `agent.users` has no row for that owner, and its first row is not for everybody"
    )]
    NoRow {
        /// Whose unit it is.
        owner: String,
    },
    /// The machine does not have the user.
    #[error(
        "there is no user `{user}` on this node: make it with `useradd --system --home-dir /nonexistent {user}`, or name another one in \
         `agent.users`, the default first"
    )]
    NotThere {
        /// Who is named.
        user: String,
    },
    /// A group is asked for that is not the user's own.
    #[error(
        "units run with the groups of their user on this node, not as `{user}`: leave the group out of `user`"
    )]
    OtherGroup {
        /// Who is asked for.
        user: String,
    },
    /// Whoever runs as the user administers the cluster.
    #[error(
        "units may not run as `{user}` on this node: whoever runs as user {uid} can read keys and tokens of the cluster{}; choose another user, \
         or say `administers` in its row of `agent.users`",
        .why.as_ref().map_or_else(String::new, |why| format!(", as that user {why}"))
    )]
    Administers {
        /// Who is asked for.
        user: String,
        /// Its number.
        uid: u32,
        /// How that is known; `None`: it is root.
        why: Option<AdministersBy>,
    },
}

/// The table by which units are judged; `None`: they may run as anybody. `configured` is that of the configuration. Without rows the
/// only one is `godel-unit` where the agent has an identity (`is_judged`); in plain text there is no table. `yarn_user`, as whom
/// YARN containers run, gets a row.
pub fn user_table(
    configured: &[LocalUserRow],
    yarn_user: Option<&str>,
    is_judged: bool,
) -> Option<Vec<LocalUserRow>> {
    if configured.is_empty() && !is_judged {
        return None;
    }
    let mut rows =
        if configured.is_empty() { vec![LocalUserRow::open(DEFAULT_USER)] } else { configured.to_vec() };
    rows.extend(yarn_user.filter(|user| !rows.iter().any(|row| row.user == *user)).map(LocalUserRow::open));
    Some(rows)
}

/// The user as which the container of a YARN application runs if no row of the table is for its owner; `None`: the default of the table, or the user of
/// the agent where there is no table. A name alone proves nothing. So with a table all containers run as `local_user`, unless users are not limited to it
/// (`limit_users`): then a submitter with a row for everybody runs as itself, but as nobody who administers the cluster. Without a table it does where
/// the machine has the user (`has`), and it is not root.
pub fn container_user<'a>(
    submitter: &'a str,
    table: Option<&[LocalUserRow]>,
    local_user: Option<&'a str>,
    limit_users: bool,
    has: &dyn Fn(&str) -> bool,
) -> Option<&'a str> {
    let runs_as_itself = match table {
        Some(rows) => {
            !limit_users && rows.iter().any(|row| row.user == submitter && row.is_open() && !row.administers)
        }
        None => submitter != "root" && !submitter.is_empty() && has(submitter),
    };
    if runs_as_itself { Some(submitter) } else { local_user }
}

/// Chooses the user as which a program of a unit of `owner` runs: as whom it names, if the row of that user is for everybody or for the owner, and
/// otherwise by the row that is for the owner: one that names it before one of a group, and that before one with a `*`. `find` looks a name or a number up on the machine. `administrators` are those of the cluster that are
/// known; root always is one.
///
/// # Errors
/// No row of the table allows it.
pub fn choose_user(
    asked: AskedUser<'_>,
    owner: UnitOwner<'_>,
    table: &[LocalUserRow],
    find: &dyn Fn(&str) -> Option<LocalUser>,
    administrators: &[Administrator],
) -> Result<LocalUser, LocalUserRefusal> {
    let there = |row: &LocalUserRow| {
        find(&row.user).ok_or_else(|| LocalUserRefusal::NotThere { user: row.user.clone() })
    };
    let fitting = table.iter().rev().filter_map(|row| Some((row.fit(owner)?, row)));
    let own = fitting.max_by_key(|(fit, _)| *fit).map(|(_, row)| row);
    let (row, user) = match (asked.named, own) {
        (None, Some(own)) => (own, there(own)?),
        (None, None) if asked.otherwise.is_none() => {
            let default = || LocalUserRefusal::NotThere { user: DEFAULT_USER.to_owned() };
            let first = table.first().ok_or_else(default)?;
            if !first.is_open() {
                return Err(LocalUserRefusal::NoRow { owner: owner.name.to_owned() });
            }
            (first, there(first)?)
        }
        (named, _) => {
            let asked = named.or(asked.otherwise).unwrap_or_default();
            let (name, group) = match asked.split_once(':') {
                Some((name, group)) => (name, Some(group)),
                None => (asked, None),
            };
            let is_row = |row: &&LocalUserRow| {
                // A user has many spellings: its name, and its number with any zeros before it.
                row.user == name || find(&row.user).is_some_and(|user| is_spelled(&user, name))
            };
            let not_named = || LocalUserRefusal::NotNamed { user: asked.to_owned() };
            let mut rows = table.iter().filter(is_row).peekable();
            rows.peek().ok_or_else(not_named)?;
            let row = rows.find(|row| row.is_open() || row.fit(owner).is_some());
            let row = row.ok_or_else(|| LocalUserRefusal::OtherOwner {
                user: asked.to_owned(),
                owner: owner.name.to_owned(),
            })?;
            let user = there(row)?;
            if group.is_some_and(|group| group.parse() != Ok(user.gid)) {
                return Err(LocalUserRefusal::OtherGroup { user: asked.to_owned() });
            }
            (row, user)
        }
    };
    let known = administrators.iter().find(|known| known.uid == user.uid);
    if !row.administers && (user.uid == 0 || known.is_some()) {
        // Of root nobody asks why.
        let why = known.filter(|_| user.uid != 0).map(|known| known.why.clone());
        return Err(LocalUserRefusal::Administers { user: user.name, uid: user.uid, why });
    }
    Ok(user)
}

fn is_spelled(user: &LocalUser, name: &str) -> bool {
    user.name == name || name.parse() == Ok(user.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: [(&str, u32, u32); 5] = [
        ("root", 0, 0),
        ("godel-unit", 900, 901),
        ("ann", 1_000, 1_000),
        ("godel", 950, 950),
        ("toor", 0, 0),
    ];

    fn find(wanted: &str) -> Option<LocalUser> {
        let of = |(name, uid, gid): &(&str, u32, u32)| LocalUser {
            name: (*name).to_owned(),
            uid: *uid,
            gid: *gid,
        };
        let known = USERS.iter().find(|(name, uid, _)| *name == wanted || wanted.parse() == Ok(*uid)).map(of);
        known.or_else(|| wanted.parse().ok().map(|uid| LocalUser { name: wanted.to_owned(), uid, gid: uid }))
    }

    fn row(user: &str) -> LocalUserRow {
        LocalUserRow::open(user)
    }

    fn choose(asked: Option<&str>, table: &[LocalUserRow]) -> Result<u32, LocalUserRefusal> {
        let services = Administrator { uid: 950, why: AdministersBy::Owns("/var/lib/godel".to_owned()) };
        let asked = AskedUser { named: asked, otherwise: None };
        choose_user(asked, UnitOwner::default(), table, &find, &[services]).map(|user| user.uid)
    }

    fn choose_of(
        (owner, groups): (&str, &[&str]),
        asked: AskedUser<'_>,
        table: &[LocalUserRow],
    ) -> Result<u32, LocalUserRefusal> {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        let owner = UnitOwner { name: owner, groups: &groups };
        choose_user(asked, owner, table, &find, &[]).map(|user| user.uid)
    }

    fn row_for(user: &str, owners: &str, groups: &str) -> LocalUserRow {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        LocalUserRow { owners: words(owners), groups: words(groups), ..row(user) }
    }

    #[test]
    fn owners_and_groups_have_users_of_their_own() {
        let table = [
            row("godel-unit"),
            row_for("ann", "ann yarn-simple:ann", ""),
            row_for("4711", "", "etl"),
            row_for("4712", "yarn-simple:*", "ml"),
            row("4713"),
        ];
        let named = |user| AskedUser { named: Some(user), otherwise: None };
        let otherwise = |user| AskedUser { named: None, otherwise: Some(user) };
        let none = AskedUser::default();
        for (owner, groups, asked, uid) in [
            ("ann", &["etl"][..], none, 1_000),
            ("yarn-simple:ann", &[], none, 1_000),
            ("bob", &["staff", "etl"], none, 4_711),
            ("etl", &[], none, 4_711),
            ("bob", &["ml"], none, 4_712),
            ("yarn-simple:bob", &[], none, 4_712),
            // A name that is not proved has no groups, and is in none by being called like one.
            ("yarn-simple:etl", &[], none, 4_712),
            ("eve", &[], none, 900),
            ("", &[], none, 900),
            // Its own row comes before what YARN says, and what the unit names before all.
            ("ann", &[], otherwise("4713"), 1_000),
            ("eve", &[], otherwise("4713"), 4_713),
            ("ann", &[], named("4713"), 4_713),
            ("ann", &[], named("ann"), 1_000),
            ("bob", &["etl"], named("4711"), 4_711),
        ] {
            assert_eq!(choose_of((owner, groups), asked, &table), Ok(uid), "{owner} {groups:?} {asked:?}");
        }
        for (owner, user) in
            [("eve", "ann"), ("eve", "1000"), ("ann", "4711"), ("", "ann"), ("yarn-simple:eve", "ann")]
        {
            let refused = LocalUserRefusal::OtherOwner { user: user.to_owned(), owner: owner.to_owned() };
            assert_eq!(choose_of((owner, &[]), named(user), &table), Err(refused), "{owner} as {user}");
        }
        // Where the first row is for some, there is no default.
        let strict = &table[1..];
        assert_eq!(choose_of(("ann", &[]), none, strict), Ok(1_000));
        let refused = LocalUserRefusal::NoRow { owner: "eve".to_owned() };
        assert_eq!(choose_of(("eve", &[]), none, strict), Err(refused));
        assert_eq!(choose_of(("eve", &[]), named("4713"), strict), Ok(4_713));
    }

    #[test]
    fn only_users_of_the_table_run_units_and_the_first_is_the_default() {
        let table = [row("godel-unit"), row("ann"), row("4711")];
        for (asked, uid) in [
            (None, 900),
            (Some("godel-unit"), 900),
            (Some("900"), 900),
            (Some("900:901"), 900),
            (Some("ann"), 1_000),
            (Some("01000"), 1_000),
            (Some("ann:1000"), 1_000),
            (Some("4711"), 4_711),
        ] {
            assert_eq!(choose(asked, &table), Ok(uid), "{asked:?}");
        }
        for asked in ["bob", "0", "root", "", "00", "4712", "-1", "root:0"] {
            let refused = LocalUserRefusal::NotNamed { user: asked.to_owned() };
            assert_eq!(choose(Some(asked), &table), Err(refused), "{asked}");
        }
        for asked in ["ann:0", "ann:root", "ann:", "ann:1000:0"] {
            let refused = LocalUserRefusal::OtherGroup { user: asked.to_owned() };
            assert_eq!(choose(Some(asked), &table), Err(refused), "{asked}");
        }
        let gone = choose(None, &[row("gone")]);
        assert_eq!(gone, Err(LocalUserRefusal::NotThere { user: "gone".to_owned() }));
        assert!(
            choose(None, &[]).is_err() && choose(Some("ann"), &[]).is_err(),
            "an empty table allows nobody"
        );
    }

    #[test]
    fn an_agent_with_an_identity_has_a_table_and_one_in_plain_text_if_it_is_configured() {
        let users = |configured: &[LocalUserRow], yarn, is_judged| {
            let rows = user_table(configured, yarn, is_judged);
            rows.map(|rows| rows.into_iter().map(|row| row.user).collect::<Vec<_>>().join(" "))
        };
        let (ann, both) = ([row("ann")], [row("ann"), row("yarn")]);
        for (configured, yarn, is_judged, expected) in [
            (&[][..], None, false, None),
            (&[], Some("yarn"), false, None),
            (&[], None, true, Some("godel-unit")),
            (&[], Some("yarn"), true, Some("godel-unit yarn")),
            (&[], Some("godel-unit"), true, Some("godel-unit")),
            (&ann, None, true, Some("ann")),
            (&ann, Some("yarn"), false, Some("ann yarn")),
            (&both, Some("yarn"), true, Some("ann yarn")),
        ] {
            assert_eq!(users(configured, yarn, is_judged).as_deref(), expected);
        }
        let implied = user_table(&[], Some("root"), true).unwrap();
        assert_eq!(choose(None, &implied), Ok(900));
        assert!(matches!(choose(Some("root"), &implied), Err(LocalUserRefusal::Administers { .. })));
        // A machine without the default says how it is made.
        let refused = choose_user(AskedUser::default(), UnitOwner::default(), &implied, &|_| None, &[]);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("useradd --system --home-dir /nonexistent godel-unit"), "{refused}");
    }

    #[test]
    fn containers_of_yarn_run_as_one_user_unless_told_otherwise() {
        let has = |user: &str| ["ann", "root", "yarn"].contains(&user);
        let of = |submitter, table: Option<&[LocalUserRow]>, local_user, limit_users| {
            container_user(submitter, table, local_user, limit_users, &has)
        };
        for (submitter, expected) in
            [("ann", Some("ann")), ("bob", Some("yarn")), ("root", Some("yarn")), ("", Some("yarn"))]
        {
            assert_eq!(
                of(submitter, None, Some("yarn"), true),
                expected,
                "as ever in plain text: {submitter}"
            );
        }
        let table = [
            row("godel-unit"),
            row("ann"),
            LocalUserRow { administers: true, ..row("root") },
            row_for("4711", "bob", ""),
        ];
        for (submitter, local_user, limit_users, expected) in [
            ("ann", None, true, None),
            ("ann", Some("yarn"), true, Some("yarn")),
            ("ann", Some("yarn"), false, Some("ann")),
            ("bob", Some("yarn"), false, Some("yarn")),
            ("bob", None, false, None),
            // Nobody proves to be root.
            ("root", Some("yarn"), false, Some("yarn")),
            ("0", None, false, None),
            // The row of its user is for others.
            ("4711", Some("yarn"), false, Some("yarn")),
        ] {
            assert_eq!(
                of(submitter, Some(&table), local_user, limit_users),
                expected,
                "{submitter} {limit_users}"
            );
        }
    }

    #[test]
    fn who_administers_the_cluster_needs_a_row_that_says_so() {
        let trusted = |user: &str| LocalUserRow { administers: true, ..row(user) };
        for (user, uid) in [("root", 0), ("toor", 0), ("0", 0), ("godel", 950), ("950", 950)] {
            let refused = choose(Some(user), &[row("ann"), row(user)]).unwrap_err();
            assert!(
                matches!(&refused, LocalUserRefusal::Administers { uid: said, .. } if *said == uid),
                "{user}: {refused}"
            );
            assert_eq!(choose(None, &[row(user)]), Err(refused), "also as the default");
            assert_eq!(choose(Some(user), &[row("ann"), trusted(user)]), Ok(uid), "{user}");
            // The row of another one says nothing about it.
            assert!(choose(Some(user), &[trusted("ann"), row(user)]).is_err(), "{user}");
        }
        let said = |user| choose(Some(user), &[row(user)]).unwrap_err().to_string();
        assert!(
            said("950").contains("of the cluster, as that user owns /var/lib/godel; choose"),
            "{}",
            said("950")
        );
        assert!(said("root").contains("of the cluster; choose"), "{}", said("root"));
    }
}
