//! The unit that a call names, or what its caller is told.

use godel_core_dispatcher::Unresolved;
use godel_domain::ids::UnitId;
use godel_kit::status;
use tonic::{Code, Status};

use super::DispatcherLeader;

impl DispatcherLeader<'_> {
    /// For whoever reads: prefixes do.
    pub(super) fn resolve(&self, namespace: &str, name: &str) -> Result<UnitId, Status> {
        self.core.resolve(namespace, name).map_err(|why| unresolved(namespace, name, &why))
    }

    /// For whoever changes something: nothing but a whole name or uid.
    pub(super) fn find(&self, namespace: &str, name: &str) -> Result<UnitId, Status> {
        self.core.find(namespace, name).map_err(|why| unresolved(namespace, name, &why))
    }
}

fn unresolved(namespace: &str, name: &str, why: &Unresolved) -> Status {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let info = |some: &[String]| {
        [("namespace", namespace.to_owned()), ("name", name.to_owned()), ("some", some.join(","))]
    };
    match why {
        Unresolved::NotFound(near) => {
            let near_names: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
            let hint = match near.len() {
                0 => String::new(),
                _ => format!("; did you mean {}?", near_names.join(", ")),
            };
            status::with_info(
                Code::NotFound,
                status::reason::UNKNOWN_NAME,
                format!("no unit `{name}` in namespace `{namespace}`{hint}"),
                info(near),
            )
        }
        Unresolved::Ambiguous(names) => status::with_info(
            Code::InvalidArgument,
            status::reason::AMBIGUOUS_NAME,
            format!("`{name}` may be any of several units: {}", names.join(", ")),
            info(names),
        ),
    }
}
