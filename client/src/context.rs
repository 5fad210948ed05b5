//! Contexts: the clusters that a person uses, and how each is reached.
//!
//! They stand in one file for each person: `$GODEL_CONTEXTS`, or else `godel/contexts.yaml` below `$XDG_CONFIG_HOME` or `~/.config`. One
//! context is the current one: commands go to its cluster unless they name another. The first context becomes the current one;
//! from then on only the person changes which it is, so that a second cluster or a test never takes commands over that were meant for
//! the first. The file holds tokens: it is made for its owner alone, and is not read while others can read it.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{File, OpenOptions, Permissions},
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use godel_identity::names::BadIdentity;
use godel_kit::{
    address::listed,
    clock::SystemClock,
    config::env,
    security::{BearerToken, ClientSecurity, TlsIdentity, wall_clock},
};
use godel_pki::{pem::read_certificates, roots::Trust};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::access::Access;

/// Variable that names the file.
pub const CONTEXTS_VARIABLE: &str = "GODEL_CONTEXTS";
/// Longest name of a context, characters.
const NAME_LEN_MAX: usize = 63;
/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Why contexts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The environment names no home.
    #[error("there is no place for contexts: set HOME, or name a file in {CONTEXTS_VARIABLE}")]
    NoHome,
    /// The file cannot be read or written.
    #[error("the contexts in {path} cannot be {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried: `read`, `written`.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What stands in the file is none.
    #[error("{path} is no file of contexts")]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its line.
        #[source]
        source: serde_yaml_ng::Error,
    },
    /// Others can read the file.
    #[error(
        "others can read the tokens in {path}: run `chmod 600 {path}`, and renew them if somebody may have read them"
    )]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// What stands in a context is no trust, or no token.
    #[error("the context of {address} is spoilt: {why}; make it anew with `godel context login`")]
    Spoilt {
        /// Where it leads.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// A context of another cluster.
    #[error(
        "context `{name}` is of another cluster: give this one another name, or `godel context delete {name}` first"
    )]
    Taken {
        /// Its name.
        name: String,
    },
    /// A context that is not there.
    #[error("there is no context `{name}`; `godel context list` shows those that there are")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// A name that a context must not have.
    #[error(
        "`{name}` is no name of a context: it takes 1 to {NAME_LEN_MAX} letters, digits, `-`, `_` and `.`"
    )]
    BadName {
        /// The name.
        name: String,
    },
}

/// How a cluster is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Address of state: `https://host:port`, or `http://host:port` in plain text; of several states with commas between them.
    pub address: String,
    /// Whom to believe there; without it only plain text is spoken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<ContextTrust>,
    /// What the person shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<ContextToken>,
}

/// Whom to believe to be a server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextTrust {
    /// Name of the cluster.
    pub cluster: String,
    /// Its roots, PEM.
    pub roots: String,
    /// When state was asked for them last, Unix milliseconds.
    #[serde(default)]
    pub asked_ms: i64,
}

/// The token of a person.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextToken {
    /// The token.
    pub token: String,
    /// Its end, Unix milliseconds.
    pub expires_ms: i64,
}

/// Says nothing of the token itself.
impl fmt::Debug for ContextToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextToken").field("expires_ms", &self.expires_ms).finish_non_exhaustive()
    }
}

impl Context {
    /// Whether an address stands in both.
    fn shares_address(&self, other: &Self) -> bool {
        listed(&self.address).any(|own| listed(&other.address).any(|address| address == own))
    }

    /// Whether `newer` is a context of the same cluster: one of that name with an address in common, or with a root in common.
    pub fn is_akin(&self, newer: &Self) -> bool {
        let (Some(own), Some(others)) = (&self.trust, &newer.trust) else { return true };
        let roots = |trust: &ContextTrust| read_certificates(&trust.roots).unwrap_or_default();
        let has_root_in_common = || {
            let known = roots(own);
            roots(others).iter().any(|root| known.contains(root))
        };
        own.cluster == others.cluster && (self.shares_address(newer) || has_root_in_common())
    }

    /// Whether both are of one cluster that has an identity.
    fn is_of_cluster(&self, other: &Self) -> bool {
        self.trust.is_some() && other.trust.is_some() && self.is_akin(other)
    }

    /// Whom it believes; `None` in plain text.
    ///
    /// # Errors
    /// What it trusts cannot be read.
    pub(crate) fn read_trust(&self) -> Result<Option<Trust>, ContextError> {
        let Some(ContextTrust { cluster, roots, .. }) = &self.trust else { return Ok(None) };
        let cluster = cluster.parse().map_err(|bad: BadIdentity| self.spoilt(&bad))?;
        Trust::read_pem(cluster, roots).map(Some).map_err(|bad| self.spoilt(&bad))
    }

    /// What it shows; `None`: nothing.
    ///
    /// # Errors
    /// Its token is none.
    pub(crate) fn read_token(&self) -> Result<Option<BearerToken>, ContextError> {
        let token = self.token.as_ref().map(|token| BearerToken::new(&token.token));
        token.transpose().map_err(|bad| self.spoilt(&bad))
    }

    /// How its cluster is reached, as long as its token and its roots count ([`crate::renewal`] keeps them).
    ///
    /// # Errors
    /// What it trusts cannot be read, or its token is none.
    pub fn access(&self) -> Result<Access, ContextError> {
        let Some(trust) = self.read_trust()? else { return Ok(Access::from(&self.address)) };
        let mut security =
            ClientSecurity::new(TlsIdentity::new(trust, None, wall_clock(SystemClock::shared())));
        if let Some(token) = self.read_token()? {
            security = security.with_token(watch::channel(token).1);
        }
        Ok(Access { address: self.address.clone(), security })
    }

    fn spoilt(&self, why: &dyn fmt::Display) -> ContextError {
        ContextError::Spoilt { address: self.address.clone(), why: why.to_string() }
    }
}

/// All contexts of a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// Name of the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    /// By name.
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// The file with the contexts of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextFile {
    path: PathBuf,
}

impl Contexts {
    /// Reads contexts as they are in a file of contexts, at most 4 MiB; `path` names the source in errors.
    ///
    /// # Errors
    /// The source cannot be read, is too large, or is no file of contexts.
    pub fn read_from(source: impl std::io::Read, path: &Path) -> Result<Self, ContextError> {
        let mut text = String::new();
        let mut source = source.take(FILE_BYTES_MAX + 1);
        let read = source.read_to_string(&mut text).and_then(|_| match source.limit() {
            0 => Err(std::io::ErrorKind::FileTooLarge.into()),
            _ => Ok(()),
        });
        read.map_err(|source| ContextError::File { path: path.to_owned(), what: "read", source })?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_yaml_ng::from_str(&text)
            .map_err(|source| ContextError::Broken { path: path.to_owned(), source })
    }

    /// Name of the current context.
    pub fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// All of them by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Context)> {
        self.contexts.iter().map(|(name, context)| (name.as_str(), context))
    }

    /// The context of this name, or the current one without a name, with its name; `None` if there is no current one.
    ///
    /// # Errors
    /// The context that is named, or that is the current one, is not there.
    pub fn find(&self, name: Option<&str>) -> Result<Option<(&str, &Context)>, ContextError> {
        let Some(name) = name.or(self.current()) else { return Ok(None) };
        match self.contexts.get_key_value(name) {
            Some((name, context)) => Ok(Some((name, context))),
            None => Err(ContextError::Unknown { name: name.to_owned() }),
        }
    }

    /// A context that leads to this address, or to each of these, the current one before others, with its name.
    pub fn leading_to(&self, addresses: &str) -> Option<(&str, &Context)> {
        let leads = |(_, context): &(&str, &Context)| {
            listed(addresses).all(|address| listed(&context.address).any(|own| own == address))
        };
        let current = self.find(None).ok().flatten().filter(leads);
        current.or_else(|| self.iter().find(leads))
    }

    /// Adds the context of a cluster and removes those of other clusters that led to the same address before and are no longer there. The new context
    /// becomes the current one if one of the removed ones was, or if there is no current one.
    ///
    /// # Errors
    /// No context may have this name.
    pub fn supersede(&mut self, name: &str, context: Context) -> Result<(), ContextError> {
        let is_stale = |known: &Context| known.shares_address(&context) && !known.is_of_cluster(&context);
        let stale = self.iter().filter(|(_, known)| is_stale(known)).map(|(name, _)| name.to_owned());
        let stale: Vec<String> = stale.collect();
        let was_current = stale.iter().any(|stale| self.current() == Some(stale));
        stale.iter().try_for_each(|stale| self.remove(stale))?;
        self.put(name, context)?;
        if was_current || self.current().is_none() { self.choose(name) } else { Ok(()) }
    }

    /// Removes all contexts of the cluster to which `gone` leads.
    pub fn forget(&mut self, gone: &Context) {
        self.contexts.retain(|_, known| !known.is_of_cluster(gone));
        self.current.take_if(|current| !self.contexts.contains_key(current));
    }

    /// Adds a context, or replaces the one of this name. The first one becomes the current one.
    ///
    /// # Errors
    /// No context may have this name.
    pub fn put(&mut self, name: &str, context: Context) -> Result<(), ContextError> {
        let may_have = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(may_have) {
            return Err(ContextError::BadName { name: name.to_owned() });
        }
        if self.contexts.is_empty() && self.current.is_none() {
            self.current = Some(name.to_owned());
        }
        self.contexts.insert(name.to_owned(), context);
        Ok(())
    }

    /// Replaces roots and token of a context by newer ones. Where it has others than `old` by now, or leads elsewhere, those stay.
    pub fn renew(&mut self, name: &str, old: &Context, new: &Context) {
        let context = self.contexts.get_mut(name).filter(|context| context.address == old.address);
        let Some(context) = context else { return };
        if context.token == old.token {
            context.token.clone_from(&new.token);
        }
        if context.trust == old.trust {
            context.trust.clone_from(&new.trust);
        }
    }

    /// Makes a context the current one.
    ///
    /// # Errors
    /// It is not there.
    pub fn choose(&mut self, name: &str) -> Result<(), ContextError> {
        self.find(Some(name))?;
        self.current = Some(name.to_owned());
        Ok(())
    }

    /// Forgets a context. Without the current one there is none until another is chosen.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove(&mut self, name: &str) -> Result<(), ContextError> {
        let unknown = || ContextError::Unknown { name: name.to_owned() };
        self.contexts.remove(name).ok_or_else(unknown)?;
        self.current.take_if(|current| current == name);
        Ok(())
    }
}

impl ContextFile {
    /// The file that the environment names.
    ///
    /// # Errors
    /// The environment names neither a file nor a home.
    pub fn of_environment() -> Result<Self, ContextError> {
        if let Some(path) = env(CONTEXTS_VARIABLE).filter(|path| !path.is_empty()) {
            return Ok(Self::new(path));
        }
        let set = |name: &str| env(name).filter(|dir| Path::new(dir).is_absolute()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
        Ok(Self::new(config.ok_or(ContextError::NoHome)?.join("godel/contexts.yaml")))
    }

    /// This file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands in it; nothing if it is not there.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or it is broken.
    pub fn read(&self) -> Result<Contexts, ContextError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(self.failed("read", error)),
        };
        let about = file.metadata().map_err(|error| self.failed("read", error))?;
        if about.permissions().mode() & 0o077 != 0 {
            return Err(ContextError::Open { path: self.path.clone() });
        }
        Contexts::read_from(file, &self.path)
    }

    /// Changes what stands in it; whoever else changes it at the same time waits. Where the change fails, the file stays as it is.
    ///
    /// # Errors
    /// As of [`ContextFile::read`] and of `change`, or it cannot be written.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Contexts) -> Result<(), ContextError>,
    ) -> Result<Contexts, ContextError> {
        let write = |error| self.failed("written", error);
        if let Some(dir) = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(write)?;
        }
        let beside = |end: &str| {
            let mut name = self.path.clone().into_os_string();
            name.push(end);
            PathBuf::from(name)
        };
        let lock = own_file(&beside(".lock")).map_err(write)?;
        lock.lock().map_err(write)?;
        let before = self.read()?;
        let mut contexts = before.clone();
        change(&mut contexts)?;
        if contexts == before {
            return Ok(contexts);
        }
        let text = serde_yaml_ng::to_string(&contexts)
            .map_err(|source| ContextError::Broken { path: self.path.clone(), source })?;
        let fresh = beside(".new");
        let written = own_file(&fresh).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.path)
        });
        written.map_err(write)?;
        Ok(contexts)
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> ContextError {
        ContextError::File { path: self.path.clone(), what, source }
    }
}

/// Opens a file for its owner alone, which is made if it is not there.
fn own_file(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Context {
        Context { address: address.to_owned(), ..Context::default() }
    }

    #[test]
    fn the_first_context_is_the_current_one_until_another_is_chosen() {
        let mut contexts = Contexts::default();
        assert_eq!(contexts.find(None).unwrap(), None);
        let one = |contexts: &Contexts, name: Option<&str>| {
            contexts.find(name).unwrap().map(|(_, context)| context.clone())
        };
        contexts.put("one", at("http://a:1")).unwrap();
        contexts.put("two", at("http://b:2")).unwrap();
        assert_eq!(one(&contexts, None), Some(at("http://a:1")));
        assert_eq!(one(&contexts, Some("two")), Some(at("http://b:2")));
        contexts.choose("two").unwrap();
        contexts.put("one", at("http://a:3")).unwrap();
        assert_eq!((contexts.current(), one(&contexts, None)), (Some("two"), Some(at("http://b:2"))));
        assert!(matches!(contexts.choose("three"), Err(ContextError::Unknown { name }) if name == "three"));
        contexts.remove("two").unwrap();
        assert_eq!(contexts.current(), None, "nobody has chosen the other one");
        contexts.put("three", at("http://c:4")).unwrap();
        assert_eq!(contexts.current(), None);
        assert!(contexts.remove("two").is_err());
        for name in ["", "a b", "ä", "../up", &"a".repeat(64)] {
            assert!(
                matches!(contexts.put(name, at("http://d:5")), Err(ContextError::BadName { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn a_login_replaces_a_context_of_its_own_cluster_alone() {
        let root = |byte: u8| godel_pki::pem::write_certificates([&vec![byte; 9].into()]);
        let context = |address: &str, cluster: &str, roots: String| Context {
            trust: Some(ContextTrust { cluster: cluster.to_owned(), roots, asked_ms: 0 }),
            ..at(address)
        };
        let known = context("https://a:1", "c", root(1));
        for (newer, is_akin) in [
            (context("https://a:1", "c", root(1)), true),
            (context("https://b:1", "c", root(1) + &root(2)), true),
            (context("https://a:1", "c", root(2)), true),
            (context("https://b:1,https://a:1", "c", root(2)), true),
            (context("https://b:1", "c", root(2)), false),
            (context("https://a:1", "d", root(1)), false),
        ] {
            assert_eq!(known.is_akin(&newer), is_akin, "{newer:?}");
        }
        assert!(at("http://a:1").is_akin(&known));
    }

    #[test]
    fn contexts_of_a_cluster_stay_until_another_one_has_its_address() {
        let context = |cluster: &str| Context {
            trust: Some(ContextTrust { cluster: cluster.to_owned(), roots: String::new(), asked_ms: 0 }),
            ..at("https://a:1")
        };
        let names =
            |contexts: &Contexts| contexts.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        let mut contexts = Contexts::default();
        contexts.put("me", context("old")).unwrap();
        contexts.put("plain", at("https://a:1")).unwrap();
        contexts.supersede("old", context("old")).unwrap();
        assert_eq!(
            (names(&contexts), contexts.current()),
            (vec!["me".to_owned(), "old".to_owned()], Some("me"))
        );
        contexts.put("far", at("https://b:1")).unwrap();
        contexts.supersede("new", context("new")).unwrap();
        assert_eq!(
            (names(&contexts), contexts.current()),
            (vec!["far".to_owned(), "new".to_owned()], Some("new"))
        );
        contexts.put("me", context("new")).unwrap();
        contexts.forget(&context("new"));
        assert_eq!((names(&contexts), contexts.current()), (vec!["far".to_owned()], None));
    }

    #[test]
    fn a_token_is_renewed_in_its_own_context_alone() {
        let token = |text: &str| ContextToken { token: text.to_owned(), expires_ms: 7 };
        let mut contexts = Contexts::default();
        for name in ["one", "two"] {
            contexts.put(name, Context { token: Some(token(name)), ..at("https://a:1") }).unwrap();
        }
        let names = |contexts: &Contexts| contexts.leading_to("https://a:1").map(|(name, _)| name.to_owned());
        assert_eq!(names(&contexts).as_deref(), Some("one"));
        contexts.choose("two").unwrap();
        assert_eq!(names(&contexts).as_deref(), Some("two"), "the current one goes first");
        let mut of_several = contexts.clone();
        of_several.put("three", at("https://c:1,https://d:1")).unwrap();
        for (given, found) in
            [("https://d:1", true), ("https://d:1,https://c:1", true), ("https://d:1,https://a:1", false)]
        {
            assert_eq!(of_several.leading_to(given).map(|(name, _)| name), found.then_some("three"));
        }
        let with = |text: &str| Context { token: Some(token(text)), ..at("https://a:1") };
        contexts.renew("two", &with("two"), &with("newer"));
        contexts.renew("one", &with("other"), &with("newer"));
        contexts.renew("one", &Context { address: "https://b:1".to_owned(), ..with("one") }, &with("newer"));
        let tokens: Vec<_> =
            contexts.iter().map(|(_, context)| context.token.clone().unwrap().token).collect();
        assert_eq!(tokens, ["one", "newer"]);
    }

    #[test]
    fn a_file_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = ContextFile::new(dir.path().join("godel/contexts.yaml"));
        assert_eq!(file.read().unwrap(), Contexts::default());
        let written = file.change(|contexts| contexts.put("one", at("http://a:1"))).unwrap();
        assert_eq!(file.read().unwrap(), written);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(file.path()), mode(file.path().parent().unwrap())), (0o600, 0o700));
        // A change that fails changes nothing.
        assert!(
            file.change(|contexts| contexts.put("two", at("http://b:2")).and(contexts.choose("three")))
                .is_err()
        );
        assert_eq!(file.read().unwrap(), written);
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o640)).unwrap();
        let said = file.read().unwrap_err().to_string();
        assert!(said.contains("chmod 600"), "{said}");
        assert!(file.change(|contexts| contexts.put("two", at("http://b:2"))).is_err());
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
        std::fs::write(file.path(), "contexts: [1]\n").unwrap();
        assert!(matches!(file.read(), Err(ContextError::Broken { .. })));
        // A part of a file may be a file, too, with fewer contexts.
        let longest =
            format!("contexts: {{}}\n#{}", " ".repeat(usize::try_from(FILE_BYTES_MAX).unwrap() - 14));
        assert_eq!(Contexts::read_from(longest.as_bytes(), file.path()).unwrap(), Contexts::default());
        let too_long = longest + " ";
        let refused = Contexts::read_from(too_long.as_bytes(), file.path());
        assert!(matches!(refused, Err(ContextError::File { .. })), "{refused:?}");
    }

    #[test]
    fn changes_at_the_same_time_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = ContextFile::new(dir.path().join("contexts.yaml"));
        std::thread::scope(|scope| {
            for idx in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    for turn in 0..10 {
                        let name = format!("c{idx}-{turn}");
                        file.change(|contexts| contexts.put(&name, at("http://a:1"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(file.read().unwrap().iter().count(), 80);
    }
}
