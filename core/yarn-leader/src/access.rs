//! Who may do what, asked by every face: the rules are those of `core/yarn`, the applications and queues those of the adapter.

use godel_core_yarn::{
    AppAccess, AskedApp, QueueAccess, QueueMappings, YarnAcls, YarnUser, adapter::AppSubmission,
    ids::YarnApplicationId,
};
use godel_identity::permission::{CallObject, PermissionRefusal};

use crate::{
    answers::{AppCaller, AppSubmitter, ManagerRefusal},
    queues::{godel_path, yarn_name},
    reports::{AppReport, QueueReport},
    shown::YarnShown,
    state::LeaderState,
};

/// Rules of one adapter: what YARN's own configuration says of who may do what, and which queues users go to.
#[derive(Debug, Default)]
pub struct AdapterRules {
    /// Who may do what.
    pub acls: YarnAcls,
    /// Which queues users go to.
    pub mappings: QueueMappings,
}

/// What depends on the groups of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupQuestions {
    /// What a user may do with applications and queues.
    pub access: bool,
    /// Whether an application of a user is taken, and into which queue.
    pub submission: bool,
    /// Whether a user administers the cluster.
    pub administration: bool,
}

impl AdapterRules {
    /// What of them asks for the groups of users.
    pub fn group_questions(&self) -> GroupQuestions {
        let access = self.acls.is_enabled();
        GroupQuestions {
            access,
            submission: access || self.mappings.asks_groups(),
            administration: self.acls.asks_groups(),
        }
    }
}

/// Rows of the permissions.
const SUBMIT: &str = "hadoop/ApplicationClientProtocol/submitApplication";
const MOVE: &str = "hadoop/ApplicationClientProtocol/moveApplicationAcrossQueues";
const CHANGE: &str = "hadoop/ApplicationClientProtocol/forceKillApplication";

/// Whether the permissions of a user let it use a queue of godel; where nobody is judged they do.
fn permit_queue(user: YarnUser<'_>, method: &str, queue: &str) -> Result<(), ManagerRefusal> {
    let Some(principal) = user.principal else { return Ok(()) };
    let object = CallObject { queue: Some(queue), owner: Some(user.owner), ..CallObject::default() };
    PermissionRefusal::judge(principal, method, &object)
        .map_err(|refusal| ManagerRefusal::Denied(refusal.to_string()))
}

impl LeaderState {
    /// Finds the queue of godel that a client means.
    pub(crate) fn queue(&self, name: &str) -> Result<String, ManagerRefusal> {
        let path = godel_path(&self.picture.queues, &self.config.root_queue, name);
        path.ok_or_else(|| ManagerRefusal::NoQueue(name.to_owned()))
    }

    /// The queue of godel that a submission goes to: the one that a rule names for its user, or the one asked for.
    ///
    /// # Errors
    /// There is no such queue, or the user may not submit to it.
    pub(crate) fn admit(
        &self,
        id: YarnApplicationId,
        submission: &AppSubmission,
        by: &AppSubmitter,
    ) -> Result<String, ManagerRefusal> {
        let root = &self.config.root_queue;
        let user = by.user(&submission.user);
        let exists = |name: &str| godel_path(&self.picture.queues, root, name).is_some();
        let placed = self.rules.mappings.place(user, &submission.queue, exists);
        let path = self.queue(placed.as_deref().unwrap_or(&submission.queue))?;
        if !self.rules.acls.may_submit(user, &yarn_name(root, &path)) {
            let queue = yarn_name(root, &path);
            let said = format!("User {} does not have permission to submit {id} to queue {queue}", user.name);
            return Err(ManagerRefusal::QueueNotAllowed(said));
        }
        permit_queue(user, SUBMIT, &path)?;
        Ok(path)
    }

    /// Whether a user may do something with an application.
    ///
    /// # Errors
    /// The user may not, or there is no such application.
    pub(crate) fn allowed(
        &self,
        id: YarnApplicationId,
        user: YarnUser<'_>,
        access: AppAccess,
    ) -> Result<(), ManagerRefusal> {
        if user.principal.is_none() && !self.rules.acls.is_enabled() {
            return Ok(());
        }
        let (application, entry) = self.application(id)?;
        let submission = application.submission();
        let queue = yarn_name(&self.config.root_queue, &submission.queue);
        let app = AskedApp { user: &submission.user, queue: &queue, acls: &entry.acls };
        if self.rules.acls.may_with(user, app, access) {
            return Ok(());
        }
        let mut said = format!("User {} cannot perform operation {} on {id}", user.name, access.name());
        let of_other = CallObject { owner: Some(&submission.user), ..CallObject::default() };
        let permitted =
            user.principal.map(|principal| PermissionRefusal::judge(principal, CHANGE, &of_other));
        if let Some(Err(refusal)) = permitted {
            said.push_str(&format!(": {refusal}"));
        }
        Err(ManagerRefusal::NotAllowed(said))
    }

    /// Whether a caller may change an application now.
    ///
    /// # Errors
    /// The user may not, there is no such application, or earlier changes of it are not recorded.
    pub(crate) fn allowed_change(
        &self,
        id: YarnApplicationId,
        by: &AppCaller<'_>,
    ) -> Result<(), ManagerRefusal> {
        self.allowed(id, by.user, AppAccess::Modify)?;
        if by.cause.is_some() { self.has_room_for_cause(id) } else { Ok(()) }
    }

    /// Whether a user may have an application of a queue moved to another one, which it must be able to submit to.
    pub(crate) fn allowed_target(
        &self,
        id: YarnApplicationId,
        user: YarnUser<'_>,
        path: &str,
    ) -> Result<(), ManagerRefusal> {
        let queue = yarn_name(&self.config.root_queue, path);
        if self.rules.acls.may_submit(user, &queue) {
            return permit_queue(user, MOVE, path);
        }
        Err(ManagerRefusal::QueueNotAllowed(format!(
            "User {} cannot submit applications to target queue or the target queue doesn't exist: {queue} while moving {id}",
            user.name
        )))
    }
}

/// Who may do what.
impl YarnShown<'_> {
    /// The rules that are asked.
    pub fn rules(&self) -> &AdapterRules {
        &self.state.rules
    }

    /// Whether YARN's access controls let a user do something with an application. Calls that change one ask this themselves.
    ///
    /// # Errors
    /// They do not, or there is no such application.
    pub fn allow(
        &self,
        id: YarnApplicationId,
        user: YarnUser<'_>,
        access: AppAccess,
    ) -> Result<(), ManagerRefusal> {
        self.state.application(id)?;
        self.state.allowed(id, user, access)
    }

    /// Leaves the reports of applications that a user may see.
    pub fn retain_viewable(&self, user: YarnUser<'_>, apps: &mut Vec<AppReport>) {
        apps.retain(|report| self.allow(report.id, user, AppAccess::View).is_ok());
    }

    /// Takes from reports what a user may not see. An application that is gone meanwhile shows nothing.
    pub fn hide(&self, user: YarnUser<'_>, apps: &mut [AppReport]) {
        let acls = &self.state.rules.acls;
        if !acls.is_enabled() {
            // Everybody sees everything.
            return;
        }
        for report in apps {
            let sees = self.state.entries.get(&report.id).is_some_and(|entry| {
                let app = AskedApp { user: &report.user, queue: &report.queue, acls: &entry.acls };
                acls.may_with(user, app, AppAccess::View)
            });
            if !sees {
                report.hide_details();
            }
        }
    }

    /// Whether a user may do something with a queue: by YARN's lists, and where godel's queue names its submitters by these, too.
    pub fn may_use(&self, user: YarnUser<'_>, queue: &QueueReport, access: QueueAccess) -> bool {
        self.rules().acls.may(user, &queue.path, access)
            && (access == QueueAccess::Administer || queue.lets_submit(user.owner, user.proved_groups()))
    }

    /// Whether a user administers the cluster.
    pub fn may_administer(&self, user: YarnUser<'_>) -> bool {
        self.rules().acls.is_admin(user)
    }
}

#[cfg(test)]
mod tests {
    use godel_core_yarn::HadoopConfiguration;

    use super::*;

    fn questions(of: &[(&str, &str)]) -> GroupQuestions {
        let property = |(name, value): &(&str, &str)| {
            format!("<property><name>{name}</name><value>{value}</value></property>")
        };
        let text: String = of.iter().map(property).collect();
        let mut configuration = HadoopConfiguration::default();
        configuration.read("site", &format!("<configuration>{text}</configuration>")).unwrap();
        let mappings = QueueMappings::read(&configuration).unwrap();
        AdapterRules { acls: YarnAcls::read(&configuration), mappings }.group_questions()
    }

    #[test]
    fn groups_are_asked_for_where_they_decide() {
        let none = GroupQuestions::default();
        let mapped = |rules| questions(&[("yarn.scheduler.capacity.queue-mappings", rules)]);
        assert_eq!(mapped("u:ann:prod"), none);
        assert_eq!(mapped("g:staff:prod"), GroupQuestions { submission: true, ..none });
        let admins = ("yarn.admin.acl", "boss staff");
        assert_eq!(questions(&[admins]), GroupQuestions { administration: true, ..none });
        let all = GroupQuestions { access: true, submission: true, administration: true };
        assert_eq!(questions(&[("yarn.acl.enable", "true")]), all);
    }
}
