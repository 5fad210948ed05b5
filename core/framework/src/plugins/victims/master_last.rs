//! Victim rule `master-last`: an application master leaves once nobody else is enough.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct MasterLast;

impl Plugin for MasterLast {
    const NAME: &'static str = "master-last";
    const DOC: &'static str = "It is not the master of a YARN application (replica 0 of a unit of class yarn), whose containers end with it. \
                               A search that finds too little room without masters is repeated with them, and then as few of them leave as \
                               can be, whatever their rank.";
}

impl VictimRule for MasterLast {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        let is_master = || of.terms.is_some_and(|terms| terms.is_master(of.ordinal));
        if of.seeker.spares_masters && is_master() { Err(Spared::Last) } else { Ok(()) }
    }
}
