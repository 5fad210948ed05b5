//! Starting a command: its environment, directory, user and control group.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    io::{self, PipeReader},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use godel_domain::run_end::RunEndReason;
use godel_membership::agent_admission::AssignmentRefusal;
use rustix::{
    io::Errno,
    process::{Gid, Uid},
};

use super::{STOPPED, files::Run, launch};
use crate::cgroup::{Cgroup, enter};

/// Exit codes of what could not be started, as shells have them.
const NOT_EXECUTABLE: i32 = 126;
const NOT_STARTED: i32 = 127;
/// Where programs are looked for by a unit that does not say it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_UMASK: u32 = 0o022;
const ROOT: u32 = 0;
const NO_MOUNTS: &str = "the agent of this node may not make mounts, so that no volume can be seen at its path: run the agent as root, or leave `path` \
                         out of the volumes, whose directories are in the environment";

/// Why a command was not started.
#[derive(Debug)]
pub(super) struct CannotStart {
    pub(super) reason: RunEndReason,
    pub(super) exit_code: i32,
    /// A sentence for people, without its full stop.
    pub(super) why: String,
    /// It is for the sake of the node that nothing of it has run.
    pub(super) refused: Option<AssignmentRefusal>,
}

impl CannotStart {
    pub(super) fn new(reason: RunEndReason, why: String) -> Self {
        let is_permission = reason == RunEndReason::CommandNotExecutable;
        let exit_code = if is_permission { NOT_EXECUTABLE } else { NOT_STARTED };
        Self { reason, exit_code, why, refused: None }
    }

    fn not_prepared(why: launch::NotPrepared) -> Self {
        match why {
            launch::NotPrepared::Failed(why) => Self::new(RunEndReason::CannotStart, why),
            launch::NotPrepared::Stopped(reason) => {
                let why = "it was told to stop before its resources were there".to_owned();
                Self { reason, exit_code: STOPPED, why, refused: None }
            }
        }
    }

    fn other(what: &str, error: &io::Error) -> Self {
        let refused = super::files::may_pass(error).then_some(AssignmentRefusal::Disk);
        Self { refused, ..Self::new(RunEndReason::CannotStart, format!("{what}: {error}")) }
    }
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: String,
    shell: String,
}

/// Starts the command of a run with its output in one pipe, in order as it is written.
/// `control` is the pipe by which the keeper is told to stop: that is heard while a container is prepared.
pub(super) fn start(
    run: &Run,
    group: Option<&dyn Cgroup>,
    control: &fs::File,
) -> Result<(Child, PipeReader), CannotStart> {
    let (program, arguments) = run.command.split_first().ok_or_else(|| {
        CannotStart::new(RunEndReason::CommandNotFound, "the unit has no command".to_owned())
    })?;
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = rustix::process::geteuid().as_raw();
    let user = user_of(run.user.as_deref(), own, &users)?;
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let credentials = (user.uid != own).then(|| enter::Credentials {
        uid: user.uid,
        gid: user.gid,
        groups: groups_of(&user, &groups),
    });
    if let Some(container) = &run.launch {
        launch::prepare(container, credentials.as_ref(), control).map_err(CannotStart::not_prepared)?;
    }
    let directory = run.directory.as_deref().unwrap_or("/");
    if !Path::new(directory).is_dir() {
        let why =
            format!("the working directory `{directory}` does not exist on this node, or is no directory");
        return Err(CannotStart::new(RunEndReason::NoDirectory, why));
    }
    let mounts = volumes(run, &user, own)?;

    let (output, input) = io::pipe().map_err(|error| CannotStart::other("no pipe can be made", &error))?;
    let errors = input.try_clone().map_err(|error| CannotStart::other("no pipe can be made", &error))?;
    if run.launch.is_some() && credentials.is_some() {
        // Its log directory leads to this pipe, which it opens again.
        rustix::fs::fchown(&input, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
            .map_err(|error| CannotStart::other("its output cannot be given to its user", &error.into()))?;
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(environment(run, &user))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(input)
        .stderr(errors)
        // A group of its own, so that a signal to it reaches what it starts.
        .process_group(0);
    let lists = group.map_or(Ok(Vec::new()), |group| group.open_lists());
    let mut lists = lists.map_err(|error| CannotStart::new(RunEndReason::CannotStart, error.to_string()))?;
    // Without one of these a bandwidth is not kept, which the agent sees.
    lists.extend(run.lists.iter().filter_map(|path| fs::File::options().write(true).open(path).ok()));
    enter::begin_as(&mut command, lists, mounts, credentials, run.umask.unwrap_or(DEFAULT_UMASK));
    match command.spawn() {
        Ok(child) => Ok((child, output)),
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) && has_paths(run) => {
            Err(CannotStart::new(RunEndReason::CannotStart, NO_MOUNTS.to_owned()))
        }
        Err(error) => Err(not_started(program, &error)),
    }
}

fn has_paths(run: &Run) -> bool {
    run.volumes.asked.iter().any(|volume| volume.path.is_some())
}

/// Makes the volumes of a run for its user. Returns what is to be seen where: a directory, and the path at which the program finds it.
fn volumes(run: &Run, user: &User, own: u32) -> Result<Vec<(CString, CString)>, CannotStart> {
    let cannot = |why: String| CannotStart::new(RunEndReason::CannotStart, why);
    run.volumes.prepare(run.key(), false).map_err(cannot)?;
    if user.uid != own {
        let given = run.volumes.give(run.key(), user.uid, user.gid);
        given.map_err(|error| CannotStart::other("its volumes cannot be given to its user", &error))?;
    }
    let mut mounts = Vec::new();
    for (dir, volume) in run.volumes.dirs(run.key()) {
        let Some(path) = &volume.path else { continue };
        if own != ROOT {
            return Err(cannot(NO_MOUNTS.to_owned()));
        }
        if !Path::new(path).is_dir() {
            let why = format!(
                "there is no directory `{path}` on this node at which the volume `{}` would be seen: make one, or leave `path` out of the volume",
                volume.name
            );
            return Err(CannotStart::new(RunEndReason::NoDirectory, why));
        }
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let (Ok(dir), Ok(path)) = (text(&dir), text(Path::new(path))) else {
            return Err(cannot("the path of a volume has a zero byte".to_owned()));
        };
        mounts.push((dir, path));
    }
    Ok(mounts)
}

fn not_started(program: &str, error: &io::Error) -> CannotStart {
    match error.kind() {
        io::ErrorKind::NotFound => CannotStart::new(
            RunEndReason::CommandNotFound,
            format!("there is no program `{program}` on this node, or not the interpreter that it names"),
        ),
        io::ErrorKind::PermissionDenied => CannotStart::new(
            RunEndReason::CommandNotExecutable,
            format!("the program `{program}` may not be executed"),
        ),
        _ => CannotStart::other(&format!("the program `{program}` cannot be started"), error),
    }
}

/// The whole environment of a command: what the unit and the agent say, and what follows from the user where they do not.
fn environment(run: &Run, user: &User) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOME".to_owned(), user.home.clone()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
        ("SHELL".to_owned(), user.shell.clone()),
    ]);
    env.extend(run.env.clone());
    env.insert("GODEL_RUN".to_owned(), run.mark.clone());
    env
}

/// The user that a command runs as: the one that is wanted, by name or number, or that of this process.
fn user_of(wanted: Option<&str>, own: u32, users: &str) -> Result<User, CannotStart> {
    let user = match wanted {
        None => by_number(own, users),
        Some(wanted) => find_user(wanted, users).ok_or_else(|| {
            let why = format!("there is no user `{wanted}` in /etc/passwd of this node");
            CannotStart::new(RunEndReason::NoUser, why)
        })?,
    };
    if user.uid != own && own != ROOT {
        let why = format!(
            "the agent of this node runs as user {own} and may not run commands as `{}`: run the agent as root, or \
             leave `user` out of the unit",
            user.name
        );
        return Err(CannotStart::new(RunEndReason::UserNotPermitted, why));
    }
    Ok(user)
}

/// The user of this name or number, among the lines of `/etc/passwd`. Any number is a user's.
pub(super) fn find_user(wanted: &str, lines: &str) -> Option<User> {
    match wanted.parse() {
        Ok(uid) => Some(by_number(uid, lines)),
        Err(_) => users(lines).find(|user| user.name == wanted),
    }
}

/// The users in the lines of `/etc/passwd`.
pub(super) fn users(lines: &str) -> impl Iterator<Item = User> {
    lines.lines().filter_map(user)
}

fn by_number(uid: u32, lines: &str) -> User {
    let known = users(lines).find(|user| user.uid == uid);
    known.unwrap_or_else(|| User {
        name: uid.to_string(),
        uid,
        gid: uid,
        home: "/".to_owned(),
        shell: "/bin/sh".to_owned(),
    })
}

/// A line of `/etc/passwd`.
fn user(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let _password = fields.next()?;
    let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let _comment = fields.next()?;
    let or =
        |text: Option<&str>, other: &str| text.filter(|text| !text.is_empty()).unwrap_or(other).to_owned();
    Some(User { name, uid, gid, home: or(fields.next(), "/"), shell: or(fields.next(), "/bin/sh") })
}

/// The groups of a user, its own first, from the lines of `/etc/group`.
fn groups_of(user: &User, groups: &str) -> Vec<u32> {
    let of_line = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let (gid, members) = (fields.next()?.parse::<u32>().ok()?, fields.next()?);
        members.split(',').any(|member| member == user.name).then_some(gid)
    };
    let mut found = vec![user.gid];
    found.extend(groups.lines().filter_map(of_line).filter(|gid| *gid != user.gid));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/bash\nanna:x:1000:1001:Anna,,,:/home/anna:\nbroken\nno:x:y:z\n";

    #[test]
    fn users_are_found_by_name_or_number() {
        let anna = User {
            name: "anna".to_owned(),
            uid: 1000,
            gid: 1001,
            home: "/home/anna".to_owned(),
            shell: "/bin/sh".to_owned(),
        };
        assert_eq!(user_of(Some("anna"), 0, USERS).unwrap(), anna);
        assert_eq!(user_of(Some("1000"), 0, USERS).unwrap(), anna);
        assert_eq!(user_of(None, 1000, USERS).unwrap(), anna);
        assert_eq!(user_of(Some("anna"), 1000, USERS).unwrap(), anna, "its own user needs no right");
        let unknown = user_of(Some("77"), 0, USERS).unwrap();
        assert_eq!((unknown.uid, unknown.gid, unknown.home.as_str()), (77, 77, "/"));
        let reason = |wanted, own| user_of(Some(wanted), own, USERS).unwrap_err().reason;
        assert_eq!(reason("eve", 0), RunEndReason::NoUser);
        assert_eq!(reason("broken", 0), RunEndReason::NoUser);
        assert_eq!(reason("root", 1000), RunEndReason::UserNotPermitted);
        let groups = "root:x:0:\nanna:x:1001:\ngpu:x:44:bob,anna\nwheel:x:10:anna2\nvideo:x:45:anna\n";
        assert_eq!(groups_of(&anna, groups), [1001, 44, 45]);
    }

    #[test]
    fn an_environment_is_what_the_unit_says_and_little_else() {
        let env =
            [("HOME", "/data"), ("WORD", "hello")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let run = Run { env: env.into(), mark: "m".to_owned(), ..Run::default() };
        let env = environment(&run, &user_of(Some("anna"), 0, USERS).unwrap());
        let shown: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = format!("PATH={PATH}");
        let expected =
            ["GODEL_RUN=m", "HOME=/data", "LOGNAME=anna", &path, "SHELL=/bin/sh", "USER=anna", "WORD=hello"];
        assert_eq!(shown, expected);
    }
}
