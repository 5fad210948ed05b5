//! As whom units may run on a node: the table of local users, and the rule over it.
//!
//! A program that runs under the number of a person, of a service of the cluster or of root can read what is theirs: tokens, keys, sockets.
//! So an agent that runs as root starts programs as the users of its table alone; the first row is the default. A user whose number
//! is somebody's who administers the cluster needs a row that says so.

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalUserRow {
    /// Name or number of the user.
    pub user: String,
    /// Programs may run as this user though whoever runs as it administers the cluster.
    pub administers: bool,
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

/// Why a program may not run as a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalUserRefusal {
    /// The table has no rows.
    #[error("this node has no users for units: name some in `agent.users`, the default first")]
    NoTable,
    /// The table does not name the user.
    #[error("units may not run as `{user}` on this node: `agent.users` does not name that user")]
    NotNamed {
        /// Who is asked for.
        user: String,
    },
    /// The machine does not have the user.
    #[error("there is no user `{user}` on this node, though `agent.users` names it")]
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
        "units may not run as `{user}` on this node: whoever runs as user {uid} can read keys and tokens of the cluster; \
         choose another user, or say `administers` in its row of `agent.users`"
    )]
    Administers {
        /// Who is asked for.
        user: String,
        /// Its number.
        uid: u32,
    },
}

/// Chooses the user as which a program runs. `asked` is what its unit says: nothing, a name, a number, or either of them with the user's own group
/// (`name:group`), as images have it. `find` looks a name or a number up on the machine. `administers` says
/// whether a user runs services of the cluster there, or owns its keys or tokens; root always does.
///
/// # Errors
/// No row of the table allows it.
pub fn choose_user(
    asked: Option<&str>,
    table: &[LocalUserRow],
    find: &dyn Fn(&str) -> Option<LocalUser>,
    administers: &dyn Fn(&LocalUser) -> bool,
) -> Result<LocalUser, LocalUserRefusal> {
    let first = table.first().ok_or(LocalUserRefusal::NoTable)?;
    let there = |row: &LocalUserRow| {
        find(&row.user).ok_or_else(|| LocalUserRefusal::NotThere { user: row.user.clone() })
    };
    let (row, user) = match asked {
        None => (first, there(first)?),
        Some(asked) => {
            let (name, group) = match asked.split_once(':') {
                Some((name, group)) => (name, Some(group)),
                None => (asked, None),
            };
            let is_row = |row: &&LocalUserRow| {
                // A user has many spellings: its name, and its number with any zeros before it.
                row.user == name || find(&row.user).is_some_and(|user| is_spelled(&user, name))
            };
            let not_named = || LocalUserRefusal::NotNamed { user: asked.to_owned() };
            let row = table.iter().find(is_row).ok_or_else(not_named)?;
            let user = there(row)?;
            if group.is_some_and(|group| group.parse() != Ok(user.gid)) {
                return Err(LocalUserRefusal::OtherGroup { user: asked.to_owned() });
            }
            (row, user)
        }
    };
    if !row.administers && (user.uid == 0 || administers(&user)) {
        return Err(LocalUserRefusal::Administers { user: user.name, uid: user.uid });
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
        LocalUserRow { user: user.to_owned(), administers: false }
    }

    fn choose(asked: Option<&str>, table: &[LocalUserRow]) -> Result<u32, LocalUserRefusal> {
        choose_user(asked, table, &find, &|user| user.uid == 950).map(|user| user.uid)
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
        assert_eq!(choose(None, &[]), Err(LocalUserRefusal::NoTable));
        assert_eq!(choose(Some("root"), &[]), Err(LocalUserRefusal::NoTable));
        let gone = choose(None, &[row("gone")]);
        assert_eq!(gone, Err(LocalUserRefusal::NotThere { user: "gone".to_owned() }));
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
    }
}
