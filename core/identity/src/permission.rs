//! What a person may do: [`allow`] judges a principal by the table of [`crate::needs`] and by what the call is about.
//!
//! The least role of each method is in that table. Where a row has [`ObjectScope::Namespace`], a principal of role `user` is also bound to its namespaces
//! and queues, and to owners that are the principal itself or one of its groups; where it has [`ObjectScope::Sight`], the roles `viewer` and `user` see units of
//! their namespaces and their own only ([`Principal::sight`]). Judging allocates nothing.

mod render;

use std::{fmt, str::FromStr};

pub use godel_domain::budget_spec::NAMESPACE_DEFAULT;
use godel_domain::names;
use godel_domain::sight::Sight;

pub use self::render::render;
use crate::{
    caller::ADMIN,
    needs::{is_of_yarn, needs_of},
};

/// Among the namespaces of a principal: all of them.
pub const ALL_NAMESPACES: &str = "*";

/// What a principal may do; each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PersonRole {
    /// Reads, in its own namespaces where units are concerned.
    Viewer,
    /// Submits and changes units in its own namespaces and queues.
    User,
    /// Also drains, moves and pauses, in the whole cluster.
    Operator,
    /// Everything.
    Admin,
}

impl PersonRole {
    /// All roles, the least first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::User, Self::Operator, Self::Admin];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Not a role of persons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("role `{}` is unknown: viewer, user, operator and admin are roles of persons", .0.escape_debug())]
pub struct UnknownPersonRole(String);

impl FromStr for PersonRole {
    type Err = UnknownPersonRole;

    /// # Errors
    /// [`UnknownPersonRole`].
    fn from_str(text: &str) -> Result<Self, UnknownPersonRole> {
        let role = Self::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| UnknownPersonRole(text.chars().take(80).collect()))
    }
}

impl fmt::Display for PersonRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A person, or a program that acts as one, with its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// What tokens call it.
    pub name: String,
    /// What it may do.
    pub role: PersonRole,
    /// Groups that it is a member of: names that may own its units.
    pub groups: Vec<String>,
    /// Namespaces whose units a `viewer` or `user` sees, and a `user` changes, besides the default one; [`ALL_NAMESPACES`] is every one.
    pub namespaces: Vec<String>,
    /// Queues to which a `user` may submit, with those below them; none means every queue.
    pub queues: Vec<String>,
    /// The namespace of units and calls that name none; empty for [`NAMESPACE_DEFAULT`].
    pub default_namespace: String,
}

impl Principal {
    /// A principal of that role in the default namespace, without groups.
    pub fn new(name: &str, role: PersonRole) -> Self {
        Self {
            name: name.to_owned(),
            role,
            groups: Vec::new(),
            namespaces: Vec::new(),
            queues: Vec::new(),
            default_namespace: String::new(),
        }
    }

    /// The owner of state's socket.
    pub fn admin() -> Self {
        Self::new(ADMIN, PersonRole::Admin)
    }

    /// A user of YARN who has not proved the name: a `user` in all queues of YARN, for calls of its clients alone.
    pub fn yarn_simple(user: &str) -> Self {
        Self::new(&names::yarn_simple(user), PersonRole::User)
    }

    /// Whether it has proved nothing. No recorded principal has such a name.
    pub fn is_yarn_simple(&self) -> bool {
        self.name.starts_with(names::YARN_SIMPLE)
    }

    /// The namespace of units and calls that name none.
    pub fn default_namespace(&self) -> &str {
        if self.default_namespace.is_empty() { NAMESPACE_DEFAULT } else { &self.default_namespace }
    }

    /// Whether it may see units of a namespace. An empty one is the default one.
    pub fn may_see(&self, namespace: &str) -> bool {
        self.role >= PersonRole::Operator || self.owns_namespace(namespace)
    }

    /// The units that it may see, in all answers: as [`Self::may_see`] says of each, and those that it owns, as its applications of YARN, wherever they are.
    pub fn sight(&self) -> Sight {
        let sees_all = self.may_see(ALL_NAMESPACES);
        let own = || self.namespaces.iter().cloned().chain([self.default_namespace().to_owned()]);
        if sees_all { Sight::All } else { Sight::of(own()).with_units_of(&self.name) }
    }

    /// Whether a namespace is one of its own. An empty one is the default one.
    pub(crate) fn owns_namespace(&self, namespace: &str) -> bool {
        namespace.is_empty()
            || namespace == self.default_namespace()
            || self.namespaces.iter().any(|own| own == namespace || own == ALL_NAMESPACES)
    }

    /// Whether it may submit to a queue. An empty one is not judged.
    fn may_use_queue(&self, queue: &str) -> bool {
        let is_within = |own: &String| {
            queue.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        queue.is_empty() || self.queues.is_empty() || self.queues.iter().any(is_within)
    }

    /// Whether it may submit in the name of an owner. An empty one is the principal itself.
    fn may_own_as(&self, owner: &str) -> bool {
        owner.is_empty() || owner == self.name || self.groups.iter().any(|group| group == owner)
    }
}

/// What a principal may do, as text in which state tells other members of it. No name has a space or a comma.
#[derive(Clone, Copy, Debug)]
pub struct PrincipalTerms<'a>(pub &'a Principal);

/// As in a header: `role=user`, and then each list that is not empty, as ` groups=a,b`.
impl fmt::Display for PrincipalTerms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Principal { name: _, role, groups, namespaces, queues, default_namespace } = self.0;
        write!(f, "role={role}")?;
        for (key, list) in [("groups", groups), ("namespaces", namespaces), ("queues", queues)] {
            for (idx, word) in list.iter().enumerate() {
                if idx == 0 { write!(f, " {key}={word}") } else { write!(f, ",{word}") }?;
            }
        }
        if default_namespace.is_empty() { Ok(()) } else { write!(f, " default={default_namespace}") }
    }
}

impl PrincipalTerms<'_> {
    /// Reads what `Display` writes of the principal called `name`. Keys that are not known are skipped; `None`: there is no role.
    pub fn read(name: &str, text: &str) -> Option<Principal> {
        let mut principal = Principal::new(name, PersonRole::Viewer);
        let mut role = None;
        for part in text.split_ascii_whitespace() {
            let (key, value) = part.split_once('=')?;
            let list = || value.split(',').map(str::to_owned).collect();
            match key {
                "role" => role = Some(value.parse().ok()?),
                "groups" => principal.groups = list(),
                "namespaces" => principal.namespaces = list(),
                "queues" => principal.queues = list(),
                "default" => value.clone_into(&mut principal.default_namespace),
                _ => {}
            }
        }
        principal.role = role?;
        Some(principal)
    }
}

/// What a call is about, as far as the method says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallObject<'a> {
    /// The namespace of the unit.
    pub namespace: Option<&'a str>,
    /// The queue of the unit.
    pub queue: Option<&'a str>,
    /// The node. No role is bound to nodes.
    pub node: Option<&'a str>,
    /// The owner of the unit, or the principal that the call is about.
    pub owner: Option<&'a str>,
}

/// What a row of the table binds principals to besides their role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectScope {
    /// Nothing.
    Cluster,
    /// The role `user`: to its namespaces, queues and owners.
    Namespace,
    /// The roles `viewer` and `user`: to units of its namespaces, and to those that it owns. Answers leave the units of others out, or hide their names.
    Sight,
    /// Every role but `admin`: to what is the principal's own.
    Own,
    /// The role `user`: to applications of YARN of its own and of its groups, and to its queues.
    Application,
}

/// Whether a principal may make a call about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Permission {
    /// It may.
    Granted,
    /// No person may.
    NotForPersons,
    /// Its role may not; this is the least one that may.
    Role(PersonRole),
    /// The namespace is not one of its own.
    Namespace,
    /// The queue is not one of its own.
    Queue,
    /// The owner is neither the principal nor one of its groups.
    Owner,
    /// It is about another principal.
    OtherPrincipal,
    /// The name is not proved, and the call is none of YARN's clients.
    Unproven,
}

/// Whether `principal` may call `method`, as `/godel.v1.UnitService/SubmitUnit`, about `object`.
///
/// What an object leaves out is not judged: so state judges the method, and the member that decodes the call its object. Takes a binary
/// search over the table and one pass over the lists of the principal, and allocates nothing.
pub fn allow(principal: &Principal, method: &str, object: &CallObject<'_>) -> Permission {
    let Some((least, scope)) = needs_of(method).of_persons() else { return Permission::NotForPersons };
    if principal.is_yarn_simple() && !is_of_yarn(method) {
        return Permission::Unproven;
    }
    if principal.role < least {
        return Permission::Role(least);
    }
    match scope {
        ObjectScope::Namespace if principal.role == PersonRole::User => within(principal, object),
        ObjectScope::Application if principal.role == PersonRole::User => {
            within(principal, &CallObject { namespace: None, ..*object })
        }
        ObjectScope::Sight
            if object.owner != Some(&principal.name)
                && !object.namespace.is_none_or(|namespace| principal.may_see(namespace)) =>
        {
            Permission::Namespace
        }
        ObjectScope::Own if principal.role < PersonRole::Admin => match object.owner {
            Some(owner) if owner != principal.name => Permission::OtherPrincipal,
            Some(_) | None => Permission::Granted,
        },
        ObjectScope::Cluster
        | ObjectScope::Namespace
        | ObjectScope::Sight
        | ObjectScope::Own
        | ObjectScope::Application => Permission::Granted,
    }
}

fn within(principal: &Principal, object: &CallObject<'_>) -> Permission {
    let CallObject { namespace, queue, node: _, owner } = *object;
    if !namespace.is_none_or(|namespace| principal.owns_namespace(namespace)) {
        Permission::Namespace
    } else if !queue.is_none_or(|queue| principal.may_use_queue(queue)) {
        Permission::Queue
    } else if !owner.is_none_or(|owner| principal.may_own_as(owner)) {
        Permission::Owner
    } else {
        Permission::Granted
    }
}

/// Why a person may not make a call, and what would have to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.describe())]
pub struct PermissionRefusal {
    /// Of the call.
    pub method: String,
    /// Who called.
    pub principal: String,
    /// What it may do.
    pub role: PersonRole,
    /// What is missing; never [`Permission::Granted`].
    pub permission: Permission,
    /// The namespace, queue, owner or principal that is not its own.
    pub object: String,
}

impl PermissionRefusal {
    /// As [`allow`].
    ///
    /// # Errors
    /// Everything but [`Permission::Granted`].
    pub fn judge(principal: &Principal, method: &str, object: &CallObject<'_>) -> Result<(), Self> {
        let permission = allow(principal, method, object);
        let about = match permission {
            Permission::Granted => return Ok(()),
            Permission::NotForPersons | Permission::Role(_) | Permission::Unproven => None,
            Permission::Namespace => object.namespace,
            Permission::Queue => object.queue,
            Permission::Owner | Permission::OtherPrincipal => object.owner,
        };
        Err(Self {
            method: method.to_owned(),
            principal: principal.name.clone(),
            role: principal.role,
            permission,
            object: about.unwrap_or_default().to_owned(),
        })
    }

    fn describe(&self) -> String {
        let Self { method, principal, role, permission, object } = self;
        let who = format!("{principal} has role {role}");
        let proof = "an administrator makes a token (`godel token create NAME --yarn FILE`), and HADOOP_TOKEN_FILE_LOCATION names its file";
        let is_unproven = principal.starts_with(names::YARN_SIMPLE);
        match permission {
            Permission::Granted => String::new(),
            Permission::Unproven => {
                format!(
                    "{method} needs a token; {principal} has not proved its name, and may call the YARN adapter only"
                )
            }
            Permission::Role(least) if is_unproven => {
                format!("{method} needs role {least}; {principal} has not proved its name: {proof}")
            }
            Permission::Owner if is_unproven => format!(
                "{method} for an application of {object}: {principal} has not proved its name, and may change its own applications only; {proof}"
            ),
            Permission::Owner if is_of_yarn(method) => format!(
                "{method} for an application of {object}: {who}, and is neither {object} nor in a group of that name"
            ),
            Permission::NotForPersons => {
                format!("{method} needs {}; {principal} is a person", needs_of(method))
            }
            Permission::Role(least) => format!(
                "{method} needs role {least}; {who}: an administrator may change that (`godel principal set {principal} --role {least}`)"
            ),
            Permission::Namespace => format!(
                "{method} in namespace {object}: {who}, and the namespace is not one of its own; choose one that `godel whoami` shows, or ask an \
                 administrator (`godel principal set {principal} --namespace {object}`)"
            ),
            Permission::Queue => format!(
                "{method} to queue {object}: {who}, and the queue is not one of its own; choose one that `godel whoami` shows, or ask an \
                 administrator (`godel principal set {principal} --queue {object}`)"
            ),
            Permission::Owner => format!(
                "{method} for owner {object}: {who}, and is neither {object} nor in a group of that name; leave `owner` out, or choose a group that \
                 `godel whoami` shows"
            ),
            Permission::OtherPrincipal => {
                format!("{method} of principal {object}: {who}, and may ask this of itself only")
            }
        }
    }
}

#[cfg(test)]
mod tests;
