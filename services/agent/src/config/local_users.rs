//! Rows of the table of local users, as configuration says them: `"ann"`, or `{ user = "ann", administers = true, owners = ["ann"], groups = ["etl"] }`.

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
    /// Owners whose units run as this user; `*` at the end of one stands for whatever follows.
    pub owners: Vec<String>,
    /// Groups whose units, and the units of whose members, run as this user. Without owners and groups the row is for everybody.
    pub groups: Vec<String>,
}

impl LocalUserConfig {
    pub(crate) fn of(LocalUserRow { user, administers, owners, groups }: LocalUserRow) -> Self {
        Self { user, administers, owners, groups }
    }

    pub(crate) fn row(&self) -> LocalUserRow {
        let Self { user, administers, owners, groups } = self.clone();
        LocalUserRow { user, administers, owners, groups }
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
        f.write_str("the name of a user, or a table with `user`, `administers`, `owners` and `groups`")
    }

    fn visit_str<E: de::Error>(self, user: &str) -> Result<LocalUserConfig, E> {
        Ok(LocalUserConfig { user: user.to_owned(), ..LocalUserConfig::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LocalUserConfig, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            user: String,
            #[serde(default)]
            administers: bool,
            #[serde(default)]
            owners: Vec<String>,
            #[serde(default)]
            groups: Vec<String>,
        }
        let Fields { user, administers, owners, groups } =
            Fields::deserialize(MapAccessDeserializer::new(map))?;
        Ok(LocalUserConfig { user, administers, owners, groups })
    }
}

#[cfg(test)]
mod tests {
    use godel_kit::config::Loader;

    use super::*;
    use crate::Config;

    #[test]
    fn users_are_named_or_described() {
        let row = |user: &str, administers| LocalUserConfig {
            user: user.to_owned(),
            administers,
            ..LocalUserConfig::default()
        };
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
        let mapped = of_file("users = [{ user = \"ann\", owners = [\"ann\"], groups = [\"etl\"] }]").unwrap();
        let (owners, groups) = (vec!["ann".to_owned()], vec!["etl".to_owned()]);
        assert_eq!(mapped, [LocalUserConfig { owners, groups, ..row("ann", false) }]);
        // A run keeps the table in a file, and reads it again.
        let kept = serde_json::to_string(&mapped).unwrap();
        assert_eq!(serde_json::from_str::<Vec<LocalUserConfig>>(&kept).unwrap(), mapped);
        assert!(of_file("users = [{ user = \"ann\", admin = true }]").is_err());
    }
}
