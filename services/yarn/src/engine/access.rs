//! Who may do what, asked by every face: the rules are those of `core/yarn`, the applications and queues those of the adapter.

use godel_core_yarn::{
    AppAccess, AskedApp, QueueAccess, YarnUser, adapter::AppSubmission, ids::YarnApplicationId,
};

use super::{
    Manager,
    queues::{godel_path, yarn_name},
    shared::Inner,
};
use crate::{
    manager::ManagerRefusal,
    reports::{AppReport, QueueReport},
};

impl Manager {
    /// The queue of godel that a submission goes to: the one that a rule names for its user, or the one asked for.
    ///
    /// # Errors
    /// There is no such queue, or the user may not submit to it.
    pub(super) fn admit(
        &self,
        inner: &Inner,
        id: YarnApplicationId,
        submission: &AppSubmission,
        groups: &[String],
    ) -> Result<String, ManagerRefusal> {
        let context = &self.shared.context;
        let (rules, root) = (&context.rules, &context.config.root_queue);
        let user = YarnUser { name: &submission.user, groups };
        let exists = |name: &str| godel_path(&inner.picture.queues, root, name).is_some();
        let placed = rules.mappings.place(user, &submission.queue, exists);
        let asked = placed.as_deref().unwrap_or(&submission.queue);
        let path = self.queue(inner, asked)?;
        if !rules.acls.may_submit(user, &yarn_name(root, &path)) {
            let queue = yarn_name(root, &path);
            let said = format!("User {} does not have permission to submit {id} to queue {queue}", user.name);
            return Err(ManagerRefusal::NotAllowed(said));
        }
        Ok(path)
    }

    /// The groups of a user, for [`Self::admit`].
    pub(super) fn groups(&self, user: &str) -> Vec<String> {
        self.shared.context.rules.groups(user)
    }

    /// Whether a user may do something with an application.
    ///
    /// # Errors
    /// The user may not, or there is no such application.
    pub(super) fn allowed(
        &self,
        id: YarnApplicationId,
        user: &str,
        access: AppAccess,
    ) -> Result<(), ManagerRefusal> {
        let context = &self.shared.context;
        if !context.rules.acls.is_enabled() {
            return Ok(());
        }
        let groups = self.groups(user);
        let inner = self.shared.inner.lock();
        let (application, entry) = inner.application(id)?;
        let submission = application.submission();
        let queue = yarn_name(&context.config.root_queue, &submission.queue);
        let app = AskedApp { user: &submission.user, queue: &queue, acls: &entry.acls };
        if context.rules.acls.may_with(YarnUser { name: user, groups: &groups }, app, access) {
            return Ok(());
        }
        let said = format!("User {user} cannot perform operation {} on {id}", access.name());
        Err(ManagerRefusal::NotAllowed(said))
    }

    /// Whether a user may have an application of a queue moved to another one, which it must be able to submit to.
    pub(super) fn allowed_target(
        &self,
        id: YarnApplicationId,
        user: &str,
        path: &str,
    ) -> Result<(), ManagerRefusal> {
        let context = &self.shared.context;
        let queue = yarn_name(&context.config.root_queue, path);
        let groups = self.groups(user);
        if context.rules.acls.may_submit(YarnUser { name: user, groups: &groups }, &queue) {
            return Ok(());
        }
        Err(ManagerRefusal::NotAllowed(format!(
            "User {user} cannot submit applications to target queue or the target queue doesn't exist: {queue} while moving {id}"
        )))
    }

    /// Takes from reports what a user may not see. An application that is gone meanwhile shows nothing.
    pub(super) fn hide_from(&self, user: &str, apps: &mut [AppReport]) {
        let context = &self.shared.context;
        if !context.rules.acls.is_enabled() {
            return;
        }
        let groups = self.groups(user);
        let caller = YarnUser { name: user, groups: &groups };
        let inner = self.shared.inner.lock();
        for report in apps {
            let sees = inner.entries.get(&report.id).is_some_and(|entry| {
                let app = AskedApp { user: &report.user, queue: &report.queue, acls: &entry.acls };
                context.rules.acls.may_with(caller, app, AppAccess::View)
            });
            if !sees {
                report.hide_details();
            }
        }
    }

    /// Whether a user may do something with a queue: by YARN's lists, and where godel's queue names its submitters by these, too.
    pub(super) fn may_with_queue(&self, user: &str, queue: &QueueReport, access: QueueAccess) -> bool {
        let acls = &self.shared.context.rules.acls;
        let groups = self.groups(user);
        acls.may(YarnUser { name: user, groups: &groups }, &queue.path, access)
            && (access == QueueAccess::Administer || queue.lets_submit(user))
    }

    /// Whether a user administers the cluster.
    pub(super) fn is_admin(&self, user: &str) -> bool {
        let groups = self.groups(user);
        self.shared.context.rules.acls.is_admin(YarnUser { name: user, groups: &groups })
    }
}
