//! Reads the layers, refuses unknown keys, and says which layer a bad value came from.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Section, places::KeyPlaces, reference::env_name};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read or is not TOML or YAML.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<config::ConfigError>,
    },
    /// A key that no section has.
    #[error("unknown key `{key}` in {origin}{}", suggestion.as_ref().map(|key| format!(": did you mean `{key}`?")).unwrap_or_default())]
    UnknownKey {
        /// Dotted path.
        key: String,
        /// The layer it stands in.
        origin: String,
        /// The known key that is nearest.
        suggestion: Option<String>,
    },
    /// A value of the wrong type or out of range.
    #[error("invalid value in {origin}")]
    Value {
        /// The layer it stands in; of a file with the line of the key.
        origin: String,
        /// What is wrong.
        #[source]
        source: Box<config::ConfigError>,
    },
    /// A value that does not go with the others.
    #[error("invalid value in {origin}")]
    Check {
        /// The layer it stands in; of a file with the line of the key.
        origin: String,
        /// What is wrong.
        #[source]
        source: BadKey,
    },
}

/// What is wrong with a key of a configuration that has been read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {reason}")]
pub struct BadKey {
    /// Dotted path.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// Collects the layers of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    files: Vec<PathBuf>,
    env: Vec<(String, String)>,
    /// Names of variables that are of godel, and of no section.
    undivided: Vec<String>,
    flags: Vec<(String, String)>,
}

/// One variable of the process environment, for what is not configuration (`GODEL_ADDR`).
pub fn env(name: &str) -> Option<String> {
    std::env::vars_os().find(|(key, _)| key == name)?.1.into_string().ok()
}

impl Loader {
    /// Defaults only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, TOML or YAML by its extension; later files win.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.files.push(path.into());
        self
    }

    /// Adds the environment of this process.
    #[must_use]
    pub fn process_env(self) -> Self {
        let vars = std::env::vars_os();
        self.env_vars(
            vars.filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    /// Adds variables: those that look like `GODEL_<SECTION>__<KEY>` count. Of all others those are refused that name a key
    /// but for an underscore.
    #[must_use]
    pub fn env_vars(mut self, vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = vars.into_iter().filter(|(name, _)| name.starts_with("GODEL_"));
        let (ours, undivided): (Vec<_>, Vec<_>) = ours.partition(|(name, _)| name.contains("__"));
        self.env.extend(ours);
        self.undivided.extend(undivided.into_iter().map(|(name, _)| name));
        self
    }

    /// Sets a key as a flag does; flags win over everything, later ones over earlier ones.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.flags.push((key.into(), value.to_string()));
        self
    }

    /// Reads all layers, and has the result checked as a whole.
    ///
    /// # Errors
    /// A file is unreadable, a key is unknown, or a value is wrong, by itself or beside others.
    pub fn load_checked<T: Section>(
        &self,
        check: impl FnOnce(&T) -> Result<(), BadKey>,
    ) -> Result<T, ConfigError> {
        let config = self.load()?;
        match check(&config) {
            Ok(()) => Ok(config),
            Err(source) => Err(ConfigError::Check { origin: self.origin_of(&source.key), source }),
        }
    }

    /// The last layer that has a key.
    fn origin_of(&self, key: &str) -> String {
        let is_set = |(name, _): &&(String, String)| name == key;
        if let Some((name, _)) = self.flags.iter().rev().find(is_set) {
            return flag_origin(name);
        }
        if let Some((name, _)) = self.env.iter().rev().find(|(name, _)| env_key(name) == key) {
            return env_origin(name);
        }
        let files = self.files.iter().rev().map(|path| (path, KeyPlaces::of(path)));
        let found = files.into_iter().find(|(_, places)| places.has(key));
        found.map_or_else(|| "the layers together".to_owned(), |(path, places)| at_line(path, &places, key))
    }

    /// Reads all layers.
    ///
    /// # Errors
    /// A file is unreadable, a key is unknown, or a value is wrong.
    pub fn load<T: Section>(&self) -> Result<T, ConfigError> {
        let known = KnownKeys::of::<T>();
        let defaults = config::Config::try_from(&T::default());
        let defaults = defaults.map_err(value_error(&|_| "the defaults".to_owned()))?;
        let mut merged = config::Config::builder().add_source(defaults.clone());
        for path in &self.files {
            let in_file = |key: &str| at_line(path, &KeyPlaces::of(path), key);
            let unreadable = |source| ConfigError::File { path: path.clone(), source: Box::new(source) };
            let source = config::File::from(path.as_path());
            let layer = config::Config::builder().add_source(source).build().map_err(unreadable)?;
            known.check(&layer.clone().try_deserialize().map_err(unreadable)?, "", &in_file)?;
            // By itself first, so that a wrong value is blamed on its layer.
            let alone = config::Config::builder().add_source(defaults.clone()).add_source(layer.clone());
            finish::<T>(alone, &in_file)?;
            merged = merged.add_source(layer);
        }
        known.check_underscores(&self.undivided)?;
        let vars = self.env.iter().map(|(name, text)| (env_key(name), text, env_origin(name)));
        let flags = self.flags.iter().map(|(key, text)| (key.clone(), text, flag_origin(key)));
        for (key, text, origin) in vars.chain(flags) {
            let in_layer = |_: &str| origin.clone();
            known.check_key(&key, &in_layer)?;
            let value = known.parse(&key, text);
            let alone = config::Config::builder().add_source(defaults.clone());
            let alone = alone.set_override(&key, value.clone()).map_err(value_error(&in_layer))?;
            finish::<T>(alone, &in_layer)?;
            merged = merged.set_override(&key, value).map_err(value_error(&in_layer))?;
        }
        finish(merged, &|_| "the layers together".to_owned())
    }
}

/// Says in which layer a key stands.
type ValueOrigin<'a> = &'a dyn Fn(&str) -> String;

fn env_key(name: &str) -> String {
    name.trim_start_matches("GODEL_").replace("__", ".").to_lowercase()
}

fn env_origin(name: &str) -> String {
    format!("the environment ({name})")
}

fn flag_origin(key: &str) -> String {
    format!("the flags ({key})")
}

/// A file, and the line of a key in it or of what is nearest above it.
fn at_line(path: &Path, places: &KeyPlaces, key: &str) -> String {
    let path = path.display();
    places.line(key).map_or_else(|| path.to_string(), |line| format!("{path}:{line}"))
}

/// How alike two keys must be, from 0 to 1, for one to be suggested for the other.
const NEAR: f64 = 0.6;

type Builder = config::ConfigBuilder<config::builder::DefaultState>;

fn finish<T: Section>(builder: Builder, origin: ValueOrigin<'_>) -> Result<T, ConfigError> {
    builder.build().and_then(config::Config::try_deserialize).map_err(value_error(origin))
}

fn value_error(origin: ValueOrigin<'_>) -> impl FnOnce(config::ConfigError) -> ConfigError {
    move |source| ConfigError::Value { origin: origin(&key_of(&source)), source: Box::new(source) }
}

/// The key that an error is about, as files have it: behind an index of a list its source leaves out the dot.
fn key_of(error: &config::ConfigError) -> String {
    let mut key = String::new();
    for part in said_key(error).split_inclusive(']') {
        let is_below = key.ends_with(']') && !part.starts_with(['.', '[']);
        key.push_str(if is_below { "." } else { "" });
        key.push_str(part);
    }
    key
}

/// The key that an error is about: what it says of one below its own key, in backticks before a colon or as an unknown field,
/// belongs to it.
fn said_key(error: &config::ConfigError) -> String {
    match error {
        config::ConfigError::NotFound(key) => key.clone(),
        config::ConfigError::Type { key, .. } => key.clone().unwrap_or_default(),
        config::ConfigError::At { error, key, .. } => {
            let key = key.clone().unwrap_or_default();
            let message = error.to_string();
            let quoted = message.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
            let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
            quoted.or(unknown).map_or_else(|| key.clone(), |(below, _)| format!("{key}.{below}"))
        }
        _ => String::new(),
    }
}

/// A configuration as `key = value` lines, to print at the start.
pub fn effective<T: Section>(config: &T) -> Vec<(String, String)> {
    let value = serde_json::to_value(config).unwrap_or(Value::Null);
    let mut docs = Vec::new();
    T::docs("", &mut docs);
    docs.into_iter()
        .map(|(key, _)| {
            let leaf = key.split('.').try_fold(&value, |value, part| value.get(part));
            let text = leaf.map(ToString::to_string).unwrap_or_default();
            (key, text)
        })
        .collect()
}

/// The keys that there are.
struct KnownKeys {
    leaves: Vec<String>,
    defaults: Value,
}

impl KnownKeys {
    fn of<T: Section>() -> Self {
        let mut docs = Vec::new();
        T::docs("", &mut docs);
        let defaults = serde_json::to_value(T::default()).unwrap_or(Value::Null);
        Self { leaves: docs.into_iter().map(|(key, _)| key).collect(), defaults }
    }

    /// Checks every key below `prefix`.
    fn check(&self, value: &Value, prefix: &str, origin: ValueOrigin<'_>) -> Result<(), ConfigError> {
        let Value::Object(fields) = value else {
            return self.check_key(prefix, origin);
        };
        for (name, value) in fields {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let section = format!("{key}.");
            if self.leaves.iter().any(|leaf| leaf.starts_with(&section)) && value.is_object() {
                self.check(value, &key, origin)?;
            } else {
                self.check_key(&key, origin)?;
            }
        }
        Ok(())
    }

    /// Refuses variables that name a key, but divide its parts by one underscore: nobody would notice that they do nothing.
    fn check_underscores(&self, names: &[String]) -> Result<(), ConfigError> {
        for name in names {
            let meant = self.leaves.iter().map(|leaf| env_name(leaf));
            let meant =
                meant.filter(|meant| meant.contains("__")).find(|meant| meant.replace("__", "_") == *name);
            if let Some(meant) = meant {
                let (key, origin) = (name.clone(), "the environment".to_owned());
                return Err(ConfigError::UnknownKey { key, origin, suggestion: Some(meant) });
            }
        }
        Ok(())
    }

    /// A leaf, or something inside a leaf that is a map.
    fn check_key(&self, key: &str, origin: ValueOrigin<'_>) -> Result<(), ConfigError> {
        let known = self.leaves.iter().any(|leaf| {
            leaf == key || key.strip_prefix(leaf.as_str()).is_some_and(|rest| rest.starts_with('.'))
        });
        if known {
            return Ok(());
        }
        Err(ConfigError::UnknownKey {
            key: key.to_owned(),
            origin: origin(key),
            suggestion: self.nearest(key),
        })
    }

    fn nearest(&self, key: &str) -> Option<String> {
        // The last part alone says what was meant: a section in common is no likeness, and people forget sections.
        let tail = |key: &str| key.rsplit('.').next().unwrap_or_default().replace('-', "_");
        let meant = tail(key);
        let likeness = |leaf: &str| strsim::normalized_damerau_levenshtein(&meant, &tail(leaf));
        let score = |leaf: &str| (likeness(leaf), strsim::jaro_winkler(key, leaf));
        let best = self.leaves.iter().max_by(|a, b| {
            let ((a, a_whole), (b, b_whole)) = (score(a), score(b));
            a.total_cmp(&b).then(a_whole.total_cmp(&b_whole))
        })?;
        (likeness(best) > NEAR).then(|| best.clone())
    }

    /// Text of an environment variable or flag as a value of the key's type: lists are split at commas.
    fn parse(&self, key: &str, text: &str) -> config::Value {
        let default = key.split('.').try_fold(&self.defaults, |value, part| value.get(part));
        let origin = env_name(key);
        if let Some(Value::Array(_)) = default {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            let items: Vec<config::Value> =
                items.map(|item| config::Value::new(Some(&origin), item)).collect();
            return config::Value::new(Some(&origin), items);
        }
        config::Value::new(Some(&origin), text)
    }
}
