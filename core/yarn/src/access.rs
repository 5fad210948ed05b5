//! Who may do what, as YARN's access controls say: lists of users and groups (`alice,bob analysts`, `*` for everyone, a space
//! for nobody) of queues, of applications and of administrators.
//!
//! Where nobody is judged, users are who they say they are, as with YARN's simple authentication, and nothing is asked unless `yarn.acl.enable` is
//! true, but for who administers the cluster. Where callers are judged ([`YarnUser::principal`]), permissions say who may change an application: its
//! owner and those of its group, and operators. YARN's lists then let further principals change it, if they prove their names. Who may see it and where
//! users may submit, the lists say in both cases.

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::names;
use godel_identity::permission::{CallObject, Permission, PersonRole, Principal, allow};

use crate::{configuration::HadoopConfiguration, import::label, properties::PREFIX};

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

    /// Whether a user is in it, by name or by a group.
    fn lets(&self, user: YarnUser<'_>) -> bool {
        match self {
            Self::Everyone => true,
            Self::Only { users, groups } => {
                users.contains(user.name) || user.groups.iter().any(|group| groups.contains(group))
            }
        }
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

/// By which row of the permissions changes of an application are judged; they are all alike.
const CHANGE: &str = "hadoop/ApplicationClientProtocol/forceKillApplication";

/// Who calls, and the groups of that user.
#[derive(Clone, Copy, Debug)]
pub struct YarnUser<'a> {
    /// As YARN's lists and rules name it.
    pub name: &'a str,
    /// The owner of what it submits: its principal, or the name where nobody is judged.
    pub owner: &'a str,
    /// Those of its principal; of a name that is not proved, as the machine of the adapter knows.
    pub groups: &'a [String],
    /// What it may do; `None`: nobody is judged.
    pub principal: Option<&'a Principal>,
}

impl<'a> YarnUser<'a> {
    /// One who is believed, where nobody is judged.
    pub const fn believed(name: &'a str, groups: &'a [String]) -> Self {
        Self { name, owner: name, groups, principal: None }
    }

    /// A principal, proved or not.
    pub fn judged(principal: &'a Principal, groups: &'a [String]) -> Self {
        let owner = principal.name.as_str();
        Self { name: names::yarn_user(owner), owner, groups, principal: Some(principal) }
    }

    /// Groups that lists of godel's queues count: those of its principal. What a machine knows of a name that nobody has proved is not among them.
    pub fn proved_groups(self) -> &'a [String] {
        self.principal.map_or(&[], |principal| &principal.groups)
    }

    /// Whether lists of YARN that let somebody change something count for it: only names that are proved, where names are.
    fn counts_in_lists(self) -> bool {
        self.principal.is_none_or(|principal| !principal.is_yarn_simple())
    }
}

/// What somebody wants with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAccess {
    /// Submit applications to it.
    Submit,
    /// Change the applications of others in it.
    Administer,
}

/// What somebody wants with an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppAccess {
    /// See all of it.
    View,
    /// End it, move it, or change it otherwise.
    Modify,
}

impl AppAccess {
    /// As YARN's refusals name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "VIEW_APP",
            Self::Modify => "MODIFY_APP",
        }
    }
}

/// What an application itself allows others than its user: nothing unless it was submitted with lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppAcls {
    view: Option<AccessList>,
    modify: Option<AccessList>,
}

impl AppAcls {
    /// From the lists of a submission.
    pub fn new<'a>(lists: impl IntoIterator<Item = (AppAccess, &'a str)>) -> Self {
        let mut acls = Self::default();
        for (access, text) in lists {
            let list = match access {
                AppAccess::View => &mut acls.view,
                AppAccess::Modify => &mut acls.modify,
            };
            *list = Some(AccessList::parse(text));
        }
        acls
    }

    fn lets(&self, user: YarnUser<'_>, access: AppAccess) -> bool {
        let list = match access {
            AppAccess::View => &self.view,
            AppAccess::Modify => &self.modify,
        };
        list.as_ref().is_some_and(|list| list.lets(user))
    }
}

/// An application that somebody wants something with.
#[derive(Clone, Copy, Debug)]
pub struct AskedApp<'a> {
    /// Who submitted it.
    pub user: &'a str,
    /// Its queue, from `root`.
    pub queue: &'a str,
    /// Its own lists.
    pub acls: &'a AppAcls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct QueueAcls {
    submit: Option<AccessList>,
    administer: Option<AccessList>,
}

/// Who may do what in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YarnAcls {
    is_enabled: bool,
    admins: AccessList,
    /// By path from `root`, in the words of godel.
    queues: BTreeMap<String, QueueAcls>,
}

impl Default for YarnAcls {
    /// As YARN without any of these properties: everybody may do everything.
    fn default() -> Self {
        Self { is_enabled: false, admins: AccessList::Everyone, queues: BTreeMap::new() }
    }
}

impl YarnAcls {
    /// What a configuration says: `yarn.acl.enable`, `yarn.admin.acl` and the lists of queues.
    pub fn read(configuration: &HadoopConfiguration) -> Self {
        let admins = configuration.get_untrimmed("yarn.admin.acl");
        let mut acls = Self {
            is_enabled: configuration.is_true("yarn.acl.enable", false),
            admins: admins.map_or(AccessList::Everyone, |text| AccessList::parse(&text)),
            queues: BTreeMap::new(),
        };
        for name in configuration.names() {
            let Some((path, key)) = name.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('.')) else {
                continue;
            };
            let is_submit = key == "acl_submit_applications";
            if !is_submit && key != "acl_administer_queue" {
                continue;
            }
            let list = configuration.get_untrimmed(name).map(|text| AccessList::parse(&text));
            let of_queue = acls.queues.entry(in_words_of_godel(path)).or_default();
            *(if is_submit { &mut of_queue.submit } else { &mut of_queue.administer }) = list;
        }
        acls
    }

    /// Anything is asked of callers but for who administers the cluster.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether answers depend on groups of users.
    pub fn asks_groups(&self) -> bool {
        self.is_enabled || self.admins != AccessList::Everyone
    }

    /// Whether a user administers the cluster. Where callers are judged, operators do, and others that `yarn.admin.acl` names; by default, which lets
    /// everybody, nobody else.
    pub fn is_admin(&self, user: YarnUser<'_>) -> bool {
        match user.principal {
            None => self.admins.lets(user),
            Some(principal) => {
                principal.role >= PersonRole::Operator
                    || user.counts_in_lists() && self.admins != AccessList::Everyone && self.admins.lets(user)
            }
        }
    }

    /// Whether a user may do something with a queue, named from `root`: in the list of that queue or of one above it, or an
    /// administrator.
    pub fn may(&self, user: YarnUser<'_>, queue: &str, access: QueueAccess) -> bool {
        if !self.is_enabled || self.is_admin(user) {
            return true;
        }
        if access == QueueAccess::Administer && !user.counts_in_lists() {
            return false;
        }
        // Nobody who is judged administers what no list speaks of.
        let by_default = access == QueueAccess::Submit || user.principal.is_none();
        let path = in_words_of_godel(queue);
        let above = path.match_indices('.').map(|(end, _)| &path[..end]);
        above.chain([path.as_str()]).any(|level| {
            let list = self.queues.get(level).and_then(|of_queue| match access {
                QueueAccess::Submit => of_queue.submit.as_ref(),
                QueueAccess::Administer => of_queue.administer.as_ref(),
            });
            // What nobody wrote lets everybody at the top, and nobody below it.
            list.map_or(level == "root" && by_default, |list| list.lets(user))
        })
    }

    /// Whether a user may submit to a queue: whoever administers it may, too.
    pub fn may_submit(&self, user: YarnUser<'_>, queue: &str) -> bool {
        [QueueAccess::Submit, QueueAccess::Administer].into_iter().any(|access| self.may(user, queue, access))
    }

    /// Whether a user may do something with an application: its user, whom its own lists name, and whoever administers its queue
    /// or the cluster. Where callers are judged, it may be changed by whom permissions let, and seen by these, too.
    pub fn may_with(&self, user: YarnUser<'_>, app: AskedApp<'_>, access: AppAccess) -> bool {
        let is_permitted = |principal: &Principal| {
            let object = CallObject { owner: Some(app.user), ..CallObject::default() };
            allow(principal, CHANGE, &object) == Permission::Granted
        };
        let is_named = || app.acls.lets(user, access) || self.may(user, app.queue, QueueAccess::Administer);
        let is_own = user.owner == app.user;
        match (user.principal, access) {
            (None, _) => !self.is_enabled || is_own || is_named(),
            (Some(principal), AppAccess::View) => {
                !self.is_enabled || is_own || is_permitted(principal) || is_named()
            }
            (Some(principal), AppAccess::Modify) => {
                is_permitted(principal) || self.is_enabled && user.counts_in_lists() && is_named()
            }
        }
    }
}

/// A path from `root` with each name as imports write it.
fn in_words_of_godel(path: &str) -> String {
    path.split('.').map(label).collect::<Vec<_>>().join(".")
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

    fn acls(properties: &[(&str, &str)]) -> YarnAcls {
        let property = |(name, value): &(&str, &str)| {
            let name = name.replace("root", &format!("{PREFIX}root"));
            format!("<property><name>{name}</name><value>{value}</value></property>")
        };
        let text = properties.iter().map(property).collect::<String>();
        let mut configuration = HadoopConfiguration::default();
        configuration.read("site", &format!("<configuration>{text}</configuration>")).unwrap();
        YarnAcls::read(&configuration)
    }

    const TREE: [(&str, &str); 6] = [
        ("yarn.acl.enable", "true"),
        ("yarn.admin.acl", "boss"),
        ("root.acl_submit_applications", " "),
        ("root.acl_administer_queue", " "),
        ("root.Prod_A.acl_submit_applications", "ann ops"),
        ("root.Prod_A.etl.acl_administer_queue", "bob"),
    ];

    fn as_user<'a>(name: &'a str, groups: &'a [String]) -> YarnUser<'a> {
        YarnUser::believed(name, groups)
    }

    #[test]
    fn queues_let_whom_they_or_those_above_name() {
        let acls = acls(&TREE);
        let ops = ["staff".to_owned(), "ops".to_owned()];
        for (name, groups, queue, submits, administers) in [
            ("ann", &[][..], "root.prod-a", true, false),
            ("ann", &[], "root.prod-a.etl", true, false),
            ("ann", &[], "root.dev", false, false),
            ("eve", &ops[..], "root.prod-a.etl", true, false),
            ("eve", &[], "root.prod-a.etl", false, false),
            ("bob", &[], "root.prod-a", false, false),
            ("bob", &[], "root.prod-a.etl", true, true),
            ("bob", &[], "root.Prod_A.etl", true, true),
            ("boss", &[], "root.dev", true, true),
        ] {
            let user = as_user(name, groups);
            assert_eq!(acls.may_submit(user, queue), submits, "{name} in {queue}");
            assert_eq!(acls.may(user, queue, QueueAccess::Administer), administers, "{name} in {queue}");
        }
    }

    #[test]
    fn nobody_is_asked_unless_it_is_switched_on() {
        let anyone = as_user("eve", &[]);
        let nothing = AppAcls::default();
        let app = AskedApp { user: "ann", queue: "root.prod-a", acls: &nothing };
        for (open, is_admin) in [(YarnAcls::default(), true), (acls(&TREE[1..]), false)] {
            assert!(open.may_submit(anyone, "root.prod-a") && open.may_with(anyone, app, AppAccess::Modify));
            assert_eq!(open.is_admin(anyone), is_admin);
        }
        // As in YARN: `root` lets everybody where it says nothing, and everybody is an administrator.
        let bare = acls(&[("yarn.acl.enable", "true"), ("yarn.admin.acl", " ")]);
        assert!(bare.may_submit(anyone, "root.any") && bare.may(anyone, "root.any", QueueAccess::Administer));
        assert!(acls(&TREE[..1]).may_submit(anyone, "root.any"));
    }

    #[test]
    fn permissions_say_who_changes_an_application_and_lists_who_else() {
        let (acls, open) = (acls(&TREE), YarnAcls::default());
        let bare = YarnAcls { is_enabled: true, ..YarnAcls::default() };
        let lists = AppAcls::new([(AppAccess::View, "eve readers"), (AppAccess::Modify, "eve fixers")]);
        let app = |user| AskedApp { user, queue: "root.prod-a.etl", acls: &lists };
        let proved = |name: &str, role, groups: &[&str]| Principal {
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Principal::new(name, role)
        };
        let user = PersonRole::User;
        let simple = Principal::yarn_simple;
        // Whether one sees and changes an application: with lists, without, and with YARN's defaults, which name everybody.
        for (principal, owner, listed, unlisted, by_default) in [
            (proved("ann", user, &[]), "ann", (true, true), (true, true), (true, true)),
            (proved("kim", user, &["ann"]), "ann", (true, true), (true, true), (true, true)),
            (proved("kim", user, &[]), "ann", (false, false), (true, false), (false, false)),
            // The lists of the application name her, those of its queue him, and those of the cluster the next one.
            (proved("eve", user, &[]), "ann", (true, true), (true, false), (true, true)),
            (proved("bob", user, &[]), "ann", (true, true), (true, false), (false, false)),
            (proved("boss", user, &[]), "ann", (true, true), (true, false), (false, false)),
            (proved("vic", PersonRole::Viewer, &[]), "vic", (true, false), (true, false), (true, false)),
            (proved("olga", PersonRole::Operator, &[]), "ann", (true, true), (true, true), (true, true)),
            // Who only says so changes what was submitted so.
            (simple("ann"), "yarn-simple:ann", (true, true), (true, true), (true, true)),
            (simple("ann"), "ann", (false, false), (true, false), (false, false)),
            (simple("eve"), "ann", (true, false), (true, false), (true, false)),
            (simple("bob"), "ann", (false, false), (true, false), (false, false)),
            (simple("boss"), "ann", (false, false), (true, false), (false, false)),
        ] {
            for (acls, expected) in [(&acls, listed), (&open, unlisted), (&bare, by_default)] {
                let user = YarnUser::judged(&principal, &principal.groups);
                let may = |access| acls.may_with(user, app(owner), access);
                let found = (may(AppAccess::View), may(AppAccess::Modify));
                assert_eq!(found, expected, "{} of {owner}", principal.name);
            }
        }
        let judged = |principal: &Principal| bare.is_admin(YarnUser::judged(principal, &[]));
        assert!(judged(&proved("olga", PersonRole::Operator, &[])));
        assert!(!judged(&proved("ann", user, &[])) && !judged(&simple("ann")));
    }

    #[test]
    fn an_application_lets_its_user_its_lists_and_administrators() {
        let acls = acls(&TREE);
        let lists = AppAcls::new([(AppAccess::View, "eve readers"), (AppAccess::Modify, " fixers")]);
        let app = AskedApp { user: "ann", queue: "root.prod-a.etl", acls: &lists };
        let readers = ["readers".to_owned()];
        let fixers = ["fixers".to_owned()];
        for (name, groups, views, modifies) in [
            ("ann", &[][..], true, true),
            ("eve", &[], true, false),
            ("kim", &readers[..], true, false),
            ("kim", &fixers[..], false, true),
            ("bob", &[], true, true),
            ("boss", &[], true, true),
            ("kim", &[], false, false),
        ] {
            let user = as_user(name, groups);
            let may = |access| acls.may_with(user, app, access);
            assert_eq!(
                (may(AppAccess::View), may(AppAccess::Modify)),
                (views, modifies),
                "{name} {groups:?}"
            );
        }
    }
}
