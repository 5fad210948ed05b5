//! Whether a run may start, and as whom, where its agent judges that.

use std::fs;

use godel_core_agent::{
    AskedUser, LocalUser, LocalUserRefusal, LocalUserRow, UnitOwner, choose_user, judge_principal,
};
use godel_domain::run_end::RunEndReason;

use super::{
    administrators,
    command::{CannotStart, User, find_user, users},
    files::Run,
};
use crate::config::LocalUserConfig;

/// Puts the number of the user into a run as which it may start, and for a container that of the group.
///
/// # Errors
/// It may not run here, or not as the user that it names.
pub(super) fn choose(run: Run) -> Result<Run, CannotStart> {
    if !run.only_principal.is_empty() {
        judge_principal(&run.principal, &run.only_principal)
            .map_err(|why| CannotStart::new(RunEndReason::PrincipalNotPermitted, why.to_string()))?;
    }
    if run.users.is_empty() {
        return Ok(run);
    }
    let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let rows: Vec<LocalUserRow> = run.users.iter().map(LocalUserConfig::row).collect();
    let find = |wanted: &str| {
        let User { name, uid, gid, .. } = find_user(wanted, &known)?;
        Some(LocalUser { name, uid, gid })
    };
    let of_table: Vec<u32> = rows.iter().filter_map(|row| find(&row.user)).map(|user| user.uid).collect();
    // A number may have several names, each with its home.
    let homes = users(&known).filter(|user| of_table.contains(&user.uid)).map(|user| (user.uid, user.home));
    let administrators = administrators::gather(&run.cluster_paths, &homes.collect::<Vec<_>>());
    let asked = AskedUser { named: run.user.as_deref(), otherwise: run.otherwise_user.as_deref() };
    let owner = UnitOwner { name: &run.owner, groups: &run.owner_groups };
    let chosen = choose_user(asked, owner, &rows, &find, &administrators);
    let LocalUser { uid, gid, .. } = chosen.map_err(|refusal| {
        let reason = match refusal {
            LocalUserRefusal::NotThere { .. } => RunEndReason::NoUser,
            LocalUserRefusal::NotNamed { .. }
            | LocalUserRefusal::OtherGroup { .. }
            | LocalUserRefusal::OtherOwner { .. }
            | LocalUserRefusal::NoRow { .. }
            | LocalUserRefusal::Administers { .. } => RunEndReason::UserNotPermitted,
        };
        CannotStart::new(reason, refusal.to_string())
    })?;
    // Users in an image have other names.
    let user = if run.container.is_some() { format!("{uid}:{gid}") } else { uid.to_string() };
    Ok(Run { user: Some(user), ..run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_another_principal_does_not_start() {
        let run = |principal: &str, only_principal: &str| Run {
            principal: principal.to_owned(),
            only_principal: only_principal.to_owned(),
            ..Run::default()
        };
        for (principal, only) in [("person/admin", "person/admin"), ("", "person/admin"), ("yarn/y1", "")] {
            assert!(choose(run(principal, only)).is_ok(), "{principal} {only}");
        }
        let refused = choose(run("yarn/y1", "person/admin")).unwrap_err();
        assert_eq!(refused.reason, RunEndReason::PrincipalNotPermitted);
        assert_eq!(refused.exit_code, 127);
        assert!(refused.why.contains("set its `agent.principal`"), "{}", refused.why);
    }
}
