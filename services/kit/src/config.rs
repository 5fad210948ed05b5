//! One loader for every service: documented defaults < file (TOML or YAML) < environment < flags.
//!
//! A section is a struct declared with [`section!`](crate::section): fields, documentation and defaults stand
//! in one place, and the configuration reference is generated from them. Unknown keys are refused with a
//! suggestion. Nothing else in godel reads the environment.

mod duration;
mod loader;
mod places;
mod reference;
mod sections;

#[cfg(test)]
mod tests;

pub use duration::HumanDuration;
pub use loader::{BadKey, ConfigError, Loader, effective, env};
pub use reference::{ReferenceEntry, reference, reference_markdown};
pub use sections::{
    ClientConfig, IdentityConfig, LeaseConfig, LogFormat, ServerConfig, TelemetryConfig, TxnConfig,
};

use serde::{Serialize, de::DeserializeOwned};

/// A part of the configuration: a struct with a documented default for each key.
pub trait Section: Default + Serialize + DeserializeOwned {
    /// Appends `(key, documentation)` of every leaf, each key with `prefix` before it.
    fn docs(prefix: &str, out: &mut Vec<(String, String)>);
}

/// Declares a configuration section: a struct with serde, `Default` and [`Section`].
///
/// Leaves come first, each with its default; nested sections follow after `sections`, with a default only
/// where it differs from the section's own. What no file can say, and the process sets itself, comes last after `given`.
///
/// ```
/// use godel_kit::config::{HumanDuration, ServerConfig};
///
/// godel_kit::section! {
///     /// The tea service.
///     pub struct TeaConfig {
///         /// How long a cup draws.
///         pub draw: HumanDuration = HumanDuration::from_secs(180),
///         /// Cups at once.
///         pub cups: usize = 4,
///     }
///     sections {
///         /// Where it serves.
///         pub server: ServerConfig = ServerConfig::on_port(7799),
///     }
/// }
/// assert_eq!(TeaConfig::default().cups, 4);
/// ```
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident {
            $($(#[doc = $leaf_doc:literal])* pub $leaf:ident : $leaf_type:ty = $leaf_default:expr,)*
        }
        $(sections {
            $($(#[doc = $sub_doc:literal])* pub $sub:ident : $sub_type:ty $(= $sub_default:expr)?,)*
        })?
        $(given {
            $($(#[doc = $given_doc:literal])* pub $given:ident : $given_type:ty,)*
        })?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, $crate::config::macros::Serialize, $crate::config::macros::Deserialize)]
        #[serde(deny_unknown_fields, default, crate = "godel_kit::config::macros::serde")]
        $vis struct $name {
            $($(#[doc = $leaf_doc])* pub $leaf: $leaf_type,)*
            $($($(#[doc = $sub_doc])* pub $sub: $sub_type,)*)?
            $($($(#[doc = $given_doc])* #[serde(skip)] pub $given: $given_type,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($leaf: $leaf_default,)*
                    $($($sub: $crate::section!(@default $($sub_default)?),)*)?
                    $($($given: Default::default(),)*)?
                }
            }
        }

        impl $crate::config::Section for $name {
            fn docs(prefix: &str, out: &mut Vec<(String, String)>) {
                $(out.push((format!("{prefix}{}", stringify!($leaf)), concat!($($leaf_doc, "\n"),*).to_owned()));)*
                $($(<$sub_type as $crate::config::Section>::docs(
                    &format!("{prefix}{}.", stringify!($sub)),
                    out,
                );)*)?
                let _ = (prefix, out);
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// What [`section!`](crate::section) needs from serde, so that its users need not depend on it.
#[doc(hidden)]
pub mod macros {
    pub use serde::{self, Deserialize, Serialize};
}
