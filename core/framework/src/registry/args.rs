//! Arguments of plugins as a profile gives them, read as the type that the plugin declares.

use serde_json::Value;

use crate::{args::PluginArgs, profile::did_you_mean};

/// Arguments that a plugin refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadArgs {
    /// The argument that is wrong; `None`: they do not go together.
    pub field: Option<String>,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl BadArgs {
    /// Arguments of which each could be right.
    pub(super) fn together(reason: String) -> Self {
        Self { field: None, reason }
    }
}

/// The arguments of a plugin; null stands for the defaults.
pub(super) fn parse_args<A: PluginArgs>(plugin: &str, args: &Value) -> Result<A, BadArgs> {
    match args {
        Value::Null => Ok(A::default()),
        given => serde_json::from_value(given.clone())
            .map_err(|wrong| bad_args::<A>(plugin, given, &wrong.to_string())),
    }
}

/// Which argument is wrong, and what it may be.
fn bad_args<A: PluginArgs>(plugin: &str, given: &Value, wrong: &str) -> BadArgs {
    let names: Vec<&str> = A::FIELDS.iter().map(|field| field.name).collect();
    let Some(given) = given.as_object() else {
        return BadArgs::together(format!("{wrong}: a map of arguments is expected"));
    };
    if let Some(unknown) = given.keys().find(|name| !names.contains(&name.as_str())) {
        let meant = did_you_mean(unknown, &names);
        let known =
            if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
        let reason = format!("`{plugin}` has no argument `{unknown}`{meant}; {known}");
        return BadArgs { field: Some(unknown.clone()), reason };
    }
    // Each by itself, so that the one that is wrong is known.
    let is_wrong = |name: &str| {
        let alone = given
            .get(name)
            .map(|value| Value::Object([(name.to_owned(), value.clone())].into_iter().collect()));
        alone.is_some_and(|alone| serde_json::from_value::<A>(alone).is_err())
    };
    match A::FIELDS.iter().find(|field| is_wrong(field.name)) {
        Some(field) => BadArgs {
            field: Some(field.name.to_owned()),
            reason: format!("{wrong}; allowed is: {}", field.kind),
        },
        None => BadArgs::together(wrong.to_owned()),
    }
}
