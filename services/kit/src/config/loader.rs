//! Reads the layers, refuses unknown keys, and says which layer a bad value came from.

use std::path::PathBuf;

use serde_json::Value;

use super::{Section, reference::env_name};

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
        /// The layer it stands in.
        origin: String,
        /// What is wrong.
        #[source]
        source: Box<config::ConfigError>,
    },
}

/// Collects the layers of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    files: Vec<PathBuf>,
    env: Vec<(String, String)>,
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

    /// Adds variables: those that look like `GODEL_<SECTION>__<KEY>` count, all others are ignored.
    #[must_use]
    pub fn env_vars(mut self, vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = vars.into_iter().filter(|(key, _)| key.starts_with("GODEL_") && key.contains("__"));
        self.env.extend(ours);
        self
    }

    /// Sets a key as a flag does; flags win over everything, later ones over earlier ones.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.flags.push((key.into(), value.to_string()));
        self
    }

    /// Reads all layers.
    ///
    /// # Errors
    /// A file is unreadable, a key is unknown, or a value is wrong.
    pub fn load<T: Section>(&self) -> Result<T, ConfigError> {
        let known = Known::of::<T>();
        let defaults = config::Config::try_from(&T::default()).map_err(value_error("the defaults"))?;
        let mut merged = config::Config::builder().add_source(defaults.clone());
        for path in &self.files {
            let origin = path.display().to_string();
            let unreadable = |source| ConfigError::File { path: path.clone(), source: Box::new(source) };
            let source = config::File::from(path.as_path());
            let layer = config::Config::builder().add_source(source).build().map_err(unreadable)?;
            known.check(&layer.clone().try_deserialize().map_err(unreadable)?, "", &origin)?;
            // By itself first, so that a wrong value is blamed on its layer.
            let alone = config::Config::builder().add_source(defaults.clone()).add_source(layer.clone());
            finish::<T>(alone, &origin)?;
            merged = merged.add_source(layer);
        }
        let vars = self.env.iter().map(|(name, text)| {
            let key = name.trim_start_matches("GODEL_").replace("__", ".").to_lowercase();
            (key, text, format!("the environment ({name})"))
        });
        let flags = self.flags.iter().map(|(key, text)| (key.clone(), text, format!("the flags ({key})")));
        for (key, text, origin) in vars.chain(flags) {
            known.check_key(&key, &origin)?;
            let value = known.parse(&key, text);
            let alone = config::Config::builder().add_source(defaults.clone());
            let alone = alone.set_override(&key, value.clone()).map_err(value_error(&origin))?;
            finish::<T>(alone, &origin)?;
            merged = merged.set_override(&key, value).map_err(value_error(&origin))?;
        }
        finish(merged, "the layers together")
    }
}

/// How alike two keys must be, from 0 to 1, for one to be suggested for the other.
const NEAR: f64 = 0.6;

type Builder = config::ConfigBuilder<config::builder::DefaultState>;

fn finish<T: Section>(builder: Builder, origin: &str) -> Result<T, ConfigError> {
    builder.build().and_then(config::Config::try_deserialize).map_err(value_error(origin))
}

fn value_error(origin: &str) -> impl FnOnce(config::ConfigError) -> ConfigError {
    let origin = origin.to_owned();
    move |source| ConfigError::Value { origin, source: Box::new(source) }
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
struct Known {
    leaves: Vec<String>,
    defaults: Value,
}

impl Known {
    fn of<T: Section>() -> Self {
        let mut docs = Vec::new();
        T::docs("", &mut docs);
        let defaults = serde_json::to_value(T::default()).unwrap_or(Value::Null);
        Self { leaves: docs.into_iter().map(|(key, _)| key).collect(), defaults }
    }

    /// Checks every key below `prefix`.
    fn check(&self, value: &Value, prefix: &str, origin: &str) -> Result<(), ConfigError> {
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

    /// A leaf, or something inside a leaf that is a map.
    fn check_key(&self, key: &str, origin: &str) -> Result<(), ConfigError> {
        let known = self.leaves.iter().any(|leaf| {
            leaf == key || key.strip_prefix(leaf.as_str()).is_some_and(|rest| rest.starts_with('.'))
        });
        if known {
            return Ok(());
        }
        Err(ConfigError::UnknownKey {
            key: key.to_owned(),
            origin: origin.to_owned(),
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
