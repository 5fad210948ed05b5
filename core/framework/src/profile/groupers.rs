//! The groupers of a profile: in which groups of nodes the first replicas of a unit are tried.

use std::{fmt, sync::Arc};

use serde_json::Value;

use super::{GrouperSpec, ProfileError, ProfileFault};
use crate::{
    point::{AnyGrouper, GroupInput, GroupLevel, Split},
    registry::{GROUPERS, GrouperEntry},
};

/// The groupers of a profile, in the order of the registry.
#[derive(Clone)]
pub struct Groupers(Vec<Grouper>);

#[derive(Clone, Debug)]
struct Grouper {
    plugin: Arc<dyn AnyGrouper>,
    /// The profile has it. Of others only what units require counts, because the binder checks it.
    is_named: bool,
}

impl Groupers {
    /// Selects groupers; `None`: those by topology keys.
    ///
    /// # Errors
    /// The first key that is wrong: a name that the registry does not know or that is there already, or arguments that the plugin refuses.
    pub(super) fn new(specs: Option<&[GrouperSpec]>) -> Result<Self, ProfileError> {
        let (named, none) = (specs.unwrap_or_default(), Value::Null);
        check_names(named)?;
        let build = |entry: &GrouperEntry| {
            let at = named.iter().position(|spec| spec.name == entry.name);
            let is_named = at.is_some() || (specs.is_none() && entry.binds);
            if !is_named && !entry.binds {
                return None;
            }
            let args = at.map_or(&none, |at| &named[at].args);
            let plugin = entry.build(args).map_err(|wrong| {
                let field = wrong.field.map(|field| format!(".{field}")).unwrap_or_default();
                ProfileFault::Args(wrong.reason)
                    .at(format!("groupers[{}].args{field}", at.unwrap_or_default()))
            });
            Some(plugin.map(|plugin| Grouper { plugin, is_named }))
        };
        GROUPERS.iter().filter_map(build).collect::<Result<_, _>>().map(Self)
    }

    /// Whether one of them splits nodes for units without topology keys as well.
    pub fn is_for_all(&self) -> bool {
        self.0.iter().any(|grouper| grouper.plugin.is_for_all())
    }

    /// Returns the levels that are tried one after the other.
    pub fn levels(&self, of: &GroupInput<'_>) -> Vec<GroupLevel> {
        let mut levels: Vec<GroupLevel> = Vec::new();
        for Grouper { plugin, is_named } in &self.0 {
            let n_before = levels.len();
            plugin.add_levels(of, &mut levels);
            if !is_named {
                let added = levels.split_off(n_before.min(levels.len()));
                levels.extend(added.into_iter().filter(|level| level.is_binding));
            }
        }
        levels
    }

    /// Returns the groups of a level that a grouper makes, in the order in which they are tried.
    pub fn make_groups(&self, of: &GroupInput<'_>, level: &GroupLevel) -> Vec<Vec<u32>> {
        let Split::Made(by) = level.split else { return Vec::new() };
        let maker = self.0.iter().find(|grouper| grouper.plugin.name() == by);
        maker.map(|grouper| grouper.plugin.make_groups(of)).unwrap_or_default()
    }
}

impl fmt::Debug for Groupers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.0.iter().filter(|grouper| grouper.is_named);
        f.debug_list().entries(named.map(|grouper| &grouper.plugin)).finish()
    }
}

/// Refuses names that are unknown or there twice.
fn check_names(specs: &[GrouperSpec]) -> Result<(), ProfileError> {
    const KIND: &str = "grouper";
    for (idx, GrouperSpec { name, .. }) in specs.iter().enumerate() {
        let key = || format!("groupers[{idx}].name");
        if GROUPERS.iter().all(|grouper| grouper.name != name) {
            let allowed = GROUPERS.iter().map(|grouper| grouper.name).collect();
            return Err(ProfileFault::Unknown { kind: KIND, name: name.clone(), allowed }.at(key()));
        }
        if specs[..idx].iter().any(|other| other.name == *name) {
            return Err(ProfileFault::Duplicate { kind: KIND, name: name.clone() }.at(key()));
        }
    }
    Ok(())
}
