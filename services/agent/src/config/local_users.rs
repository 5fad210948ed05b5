//! Rows of the table of local users, as configuration says them: `"ann"`, or `{ user = "ann", administers = true }`.

use std::fmt;

use godel_core_agent::LocalUserRow;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A local user as which units may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LocalUserConfig {
    /// Name or number of the user.
    pub user: String,
    /// Units may run as this user though whoever runs as it administers the cluster: root, and users who run services of it or
    /// own its keys and tokens (`agent.cluster_paths`, `~/.config/godel`).
    pub administers: bool,
}

impl LocalUserConfig {
    pub(crate) fn of(LocalUserRow { user, administers }: LocalUserRow) -> Self {
        Self { user, administers }
    }

    pub(crate) fn row(&self) -> LocalUserRow {
        LocalUserRow { user: self.user.clone(), administers: self.administers }
    }
}

/// Flags and the environment have names alone.
impl<'de> Deserialize<'de> for LocalUserConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Row)
    }
}

struct Row;

impl<'de> Visitor<'de> for Row {
    type Value = LocalUserConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a user, or a table with `user` and `administers`")
    }

    fn visit_str<E: de::Error>(self, user: &str) -> Result<LocalUserConfig, E> {
        Ok(LocalUserConfig { user: user.to_owned(), administers: false })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LocalUserConfig, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            user: String,
            #[serde(default)]
            administers: bool,
        }
        let Fields { user, administers } = Fields::deserialize(MapAccessDeserializer::new(map))?;
        Ok(LocalUserConfig { user, administers })
    }
}

#[cfg(test)]
mod tests {
    use godel_kit::config::Loader;

    use super::*;
    use crate::Config;

    #[test]
    fn users_are_named_or_described() {
        let row = |user: &str, administers| LocalUserConfig { user: user.to_owned(), administers };
        let flags = Loader::new().set("users", "godel-unit, ann").load::<Config>().unwrap();
        assert_eq!(flags.users, [row("godel-unit", false), row("ann", false)]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.toml");
        let of_file = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Loader::new().file(&file).load::<Config>().map(|config| config.users)
        };
        let both = of_file("users = [\"ann\", { user = \"root\", administers = true }]").unwrap();
        assert_eq!(both, [row("ann", false), row("root", true)]);
        assert_eq!(of_file("[[users]]\nuser = \"4711\"\n").unwrap(), [row("4711", false)]);
        assert!(of_file("users = [{ user = \"ann\", admin = true }]").is_err());
    }
}
