//! What the adapter reads of YARN's own configuration: who may do what, and which queues users go to.
//!
//! Read once, at the start, from the folder that `yarn.conf_dir` names. Groups are those of this machine, as they are at each
//! question.

use std::path::Path;

use godel_core_yarn::{AppAccess, AppAcls, HadoopConfiguration, QueueMappings, YarnAcls};
use godel_core_yarn_leader::AdapterRules;
use godel_hadoop::yarn::{ApplicationAccessTypeProto, ApplicationAclMapProto};

use crate::hadoop::groups;

/// Files of YARN's configuration, in the order in which they are read.
const FILES: [&str; 3] = ["core-site.xml", "yarn-site.xml", "capacity-scheduler.xml"];

/// Reads the files of a folder; without one everybody may do everything, and goes to the queue that is named.
///
/// # Errors
/// A file cannot be read, or says something that cannot be.
pub(crate) fn load(folder: Option<&Path>) -> Result<AdapterRules, String> {
    let Some(folder) = folder else { return Ok(AdapterRules::default()) };
    let wrong = |why: String| format!("yarn.conf_dir: {why}");
    if !folder.join(FILES[2]).exists() {
        return Err(wrong(format!("{} has no {}", folder.display(), FILES[2])));
    }
    let mut configuration = HadoopConfiguration::default();
    for file in FILES.map(|name| folder.join(name)).iter().filter(|file| file.exists()) {
        let text = std::fs::read_to_string(file)
            .map_err(|error| wrong(format!("{} cannot be read: {error}", file.display())))?;
        let name = file.display().to_string();
        configuration.read(&name, &text).map_err(|bad| wrong(bad.to_string()))?;
    }
    let mappings = QueueMappings::read(&configuration).map_err(wrong)?;
    Ok(AdapterRules { acls: YarnAcls::read(&configuration), mappings })
}

/// The groups of a user, the primary one first; none of a user whom this machine does not know.
pub(crate) fn groups_of(user: &str) -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    groups::of_user(user, &read("/etc/passwd"), &read("/etc/group")).unwrap_or_default()
}

/// The part of a launch context that says who may do what.
#[derive(Clone, PartialEq, prost::Message)]
struct LaunchAcls {
    #[prost(message, repeated, tag = "6")]
    lists: Vec<ApplicationAclMapProto>,
}

/// What an application allows others, by the launch context of its master. One that cannot be read allows nothing.
pub(crate) fn acls_of_launch(launch: &[u8]) -> AppAcls {
    let read: LaunchAcls = prost::Message::decode(launch).unwrap_or_default();
    AppAcls::new(read.lists.iter().map(|list| {
        let access = match list.access_type() {
            ApplicationAccessTypeProto::AppaccessViewApp => AppAccess::View,
            ApplicationAccessTypeProto::AppaccessModifyApp => AppAccess::Modify,
        };
        (access, list.acl())
    }))
}

#[cfg(test)]
mod tests {
    use godel_core_yarn::{AskedApp, YarnUser};
    use godel_core_yarn_leader::GroupQuestions;
    use godel_hadoop::yarn::ContainerLaunchContextProto;
    use prost::Message as _;

    use super::*;

    fn property(name: &str, value: &str) -> String {
        format!("<property><name>{name}</name><value>{value}</value></property>")
    }

    #[test]
    fn rules_are_read_from_the_files_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let load = || super::load(Some(folder.path()));
        assert!(load().unwrap_err().contains("has no capacity-scheduler.xml"));
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), format!("<configuration>{text}</configuration>"))
                .unwrap();
        };
        write("yarn-site.xml", &(property("yarn.acl.enable", "true") + &property("yarn.admin.acl", "boss")));
        let mappings = "yarn.scheduler.capacity.queue-mappings";
        let closed = property("yarn.scheduler.capacity.root.acl_submit_applications", " ");
        write("capacity-scheduler.xml", &(property(mappings, "u:ann:prod") + &closed));
        let rules = load().unwrap();
        let ann = YarnUser::believed("ann", &[]);
        assert!(rules.acls.is_enabled() && !rules.acls.is_admin(ann));
        let ann = YarnUser::believed("ann", &[]);
        assert_eq!(rules.mappings.place(ann, "default", |_| true).as_deref(), Some("prod"));
        write("capacity-scheduler.xml", &property(mappings, "ann:prod"));
        let said = load().unwrap_err();
        assert!(said.starts_with("yarn.conf_dir: `ann:prod` is no rule"), "{said}");
        let open = super::load(None).unwrap();
        assert!(!open.acls.is_enabled() && open.mappings.is_empty());
        assert_eq!(open.group_questions(), GroupQuestions::default());
    }

    #[test]
    fn lists_of_an_application_are_in_its_launch_context() {
        let list = |access: ApplicationAccessTypeProto, acl: &str| ApplicationAclMapProto {
            access_type: Some(access.into()),
            acl: Some(acl.to_owned()),
        };
        let launch = ContainerLaunchContextProto {
            command: vec!["run".to_owned()],
            application_ac_ls: vec![list(ApplicationAccessTypeProto::AppaccessViewApp, "eve")],
            ..ContainerLaunchContextProto::default()
        };
        let acls = acls_of_launch(&launch.encode_to_vec());
        assert_eq!(acls, AppAcls::new([(AppAccess::View, "eve")]));
        assert_eq!(acls_of_launch(b"\xff\xff"), AppAcls::default());
        let app = AskedApp { user: "ann", queue: "root.a", acls: &acls };
        let open = YarnAcls::default();
        assert!(open.may_with(YarnUser::believed("bob", &[]), app, AppAccess::Modify));
    }
}
