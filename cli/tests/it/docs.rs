//! The generated documents match the code. `GODEL_BLESS=1` rewrites them.

use std::path::Path;

use crate::godel::run;

/// The document `name` must be `text`.
fn is_current(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("GODEL_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == text, "docs/{name} is not what the code says: run this test with GODEL_BLESS=1");
}

fn plugins() -> String {
    let mut by_class = "| class | profile | why |\n|---|---|---|\n".to_owned();
    for line in &godel_domain::defaults::TABLE {
        let class = godel_domain::defaults::class_name(line.class);
        by_class += &format!("| {class} | `{}` | {} |\n", line.profile, line.reason);
    }
    format!(
        "# Plugins and profiles\n\n\
         Generated from `core/framework` and `core::defaults`; do not edit. [plugin-author.md](plugin-author.md) \
         shows how to write a plugin.\n\n\
         ## Profiles\n\n\
         A profile selects and weighs the scores that nodes are rated by. Filters cannot be left out, because the binder checks \
         them. A unit is placed by the profile that it names (`profile` in its [file](unit-file.md)), else by that of its \
         [sub-cluster](sub-clusters.md), else by that of its workload class.\n\n\
         These profiles are built in:\n\n{}\n\
         The defaults by workload class:\n\n{by_class}\n\
         More profiles, and other choices, are in the configuration of the schedulers. Give every scheduler the same ones:\n\n\
         ```yaml\n\
         scheduler:\n  \
           profiles:\n    \
             gpu:\n      \
               scores:\n        \
                 - {{name: device-stranding, weight: 1000}}\n        \
                 - {{name: most-allocated, weight: 1, args: {{resources: {{cpu: 1, memory: 1, gpu: 3}}}}}}\n  \
           profile_of:\n    \
             class: {{training: gpu}}\n    \
             sub_cluster: {{gpu: gpu}}\n\
         ```\n\n\
         `weight` is 1 unless given, `args` are the defaults below. `filters` may list the filters by name. A configured profile \
         with the name of a built-in one replaces it. `preemption` is `best` (the default) or `fast`: [how far a unit looks for \
         victims](preemption.md). `candidate_sort` names the [costs](#candidate-costs) by which places with victims are compared first, \
         and `victim_rules` may list the [victim rules](#victim-rules). `groupers` lists the [groupers](#groupers) with their `args`. A profile that is not valid is refused at start, with file, line, key and what is allowed. A unit that names a profile which its scheduler does not have waits, and `godel unit describe` lists \
         the profiles that there are.\n\n{}",
        godel_framework::docs::render_profiles(),
        godel_framework::docs::render_plugins(),
    )
}

fn permissions() -> String {
    format!(
        "# Permissions\n\n\
         Generated from `core/identity/src/needs.rs`; do not edit. [identities.md](identities.md#people) shows how people get tokens.\n\n\
         ```sh\n\
         godel token create ann --role user --namespace team-a --file ann.token   # as administrator\n\
         godel login --token-file ann.token --state https://control-1:7700        # as ann\n\
         godel whoami                                                             # role, groups, namespaces, end of the token\n\
         godel auth can-i SubmitUnit namespace/team-b || echo 'not there'\n\
         ```\n\n\
         Each person, or program that acts as one, is a *principal* with one role. A role may do what those before it may:\n\n\
         | role | may |\n|---|---|\n\
         | `viewer` | read: nodes, queues and status of the cluster, units, logs, history and movements of its own namespaces, and the units that it owns elsewhere |\n\
         | `user` | submit, change and plan units in its own namespaces and queues |\n\
         | `operator` | see and change the units of every namespace, read raw records, drain, cordon, move and pause in the whole cluster, and change the applications of all users of YARN |\n\
         | `admin` | everything: identities, principals and tokens, queues, priority classes, budgets, reservations, backups |\n\n\
         The owner of state's unix socket is the principal `admin`, which has no record, cannot be changed, and gets a token for 12 h. Callers in plain text \
         have all permissions.\n\n\
         A row that is bound to `namespace` binds the role `user`. The namespace must be the principal's default one (`default` unless it has another) or one \
         of its namespaces; the queue, if the principal has queues, one of those or below one of those; the owner the principal or one of its groups. A unit \
         without an owner gets the principal as owner, and a call without a namespace means the default one. State judges the method, and the member that \
         decodes the call what it is about. A row that is bound to `sight` binds the roles `viewer` and `user` to the units of those namespaces and \
         to those that the principal owns in others, which it reads and does not change there: others are left out of lists, are answered as if they were not there, and are `(hidden)` where they are named beside something else. A namespace `*` of a \
         principal stands for all, as for a dashboard. A row that is bound to `itself` is about the principal that calls; `admin` may call it for all. \
         One that is bound to `own applications` binds the role `user` to applications of YARN of its own and of its groups, and to its queues; who shows the YARN \
         adapter no token is the `user` `yarn-simple:NAME` there, and nobody elsewhere.\n\n\
         *certificates* are the roles of processes that may call too; `none` means that the method needs neither a token nor a certificate, and `-` that no person may call.\n\
         [Threats](threats.md) says what each caller can do at most.\n\
         {}",
        godel_identity::permission::render()
    )
}

#[test]
fn generated_documents_are_current() {
    let reference = run(&["config", "reference"], &[]);
    is_current("configuration.md", &String::from_utf8_lossy(&reference.stdout));
    let lifecycle = format!(
        "# Life of a unit\n\n\
         Generated from `core::lifecycle`, `core::running_units` and `core::defaults`; do not edit.\n\n\
         The phase of a unit is derived from its record, its running units and the reports of schedulers; it is never stored. \
         The table lists all transitions.\n\n{}\n\
         ## Life of a running unit\n\n\
         The binder makes a running unit Bound. Then its agent reports. The table lists all reports of the current \
         incarnation that change the record; `restarts` compares the report's count with the recorded one. A running \
         unit that was evicted, or stopped after a loss of contact, becomes Pending as its next incarnation.\n\n{}\n\
         ## Defaults by workload class\n\n\
         Values that a submission omits are filled in from this table; the answer lists each default applied. \
         The profile is not filled in: a unit without one has the [profile](plugins.md) of its sub-cluster, else that of this \
         table or of the configuration of its scheduler. \
         *Without contact* is what the agent does after `stop_after_disconnect` (by default 5 s before the end of a \
         lost node's grace).\n\n{}",
        godel_domain::lifecycle::render_transitions(),
        godel_domain::running_units::render_transitions(),
        godel_domain::defaults::render(),
    );
    is_current("lifecycle.md", &lifecycle);
    is_current("plugins.md", &plugins());
    let policies = format!(
        "# Orders of queues\n\n\
         Generated from `core/queueing/src/policies.rs`; do not edit. [queues.md](queues.md#who-goes-first) describes how the orders \
         work together: the band comes first, then the tree of queues from the root down, then the policy of the queue.\n\n{}",
        godel_queueing::policies::render(),
    );
    is_current("queue-policies.md", &policies);
    is_current("permissions.md", &permissions());
}

fn in_repository(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

#[test]
fn examples_are_valid_units() {
    let files = std::fs::read_dir(in_repository("examples")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|name| name == "yaml")).collect();
    assert!(files.len() >= 7, "{files:?}");
    for file in files {
        let output = run(&["unit", "validate", "-f", file.to_str().unwrap()], &[]);
        assert!(output.status.success(), "{}: {output:?}", file.display());
    }
}

#[test]
fn the_configuration_for_machines_is_one_of_all_parts() {
    let file = in_repository("deploy/systemd/godel.toml");
    let root = godel_cli::config::load(&godel_cli::args::Layers { files: vec![file], set: Vec::new() }, &[])
        .unwrap();
    let servers = [
        &root.state.server,
        &root.dispatcher.server,
        &root.binder.server,
        &root.scheduler.server,
        &root.rescheduler.server,
        &root.yarn.server,
    ];
    for server in servers {
        assert!(!server.insecure && server.advertise == "host-name", "{server:?}");
    }
    let states = [
        &root.dispatcher.client,
        &root.binder.client,
        &root.scheduler.client,
        &root.rescheduler.client,
        &root.yarn.client,
        &root.agent.client,
    ];
    assert!(states.iter().all(|client| client.state == "https://control-1:7700"), "{states:?}");
}

#[test]
fn settings_of_machines_that_are_left_out_are_right() {
    let text = std::fs::read_to_string(in_repository("deploy/systemd/godel.toml")).unwrap();
    // What is left out stands behind `#`, and prose behind `# `.
    let is_left_out =
        |line: &str| line.strip_prefix('#').is_some_and(|rest| !rest.is_empty() && !rest.starts_with(' '));
    assert!(text.lines().filter(|line| is_left_out(line)).count() > 5);
    let taken_in: String = text
        .lines()
        .map(|line| if is_left_out(line) { &line[1..] } else { line }.to_owned() + "\n")
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("godel.toml");
    std::fs::write(&file, taken_in).unwrap();
    let root = godel_cli::config::load(&godel_cli::args::Layers { files: vec![file], set: Vec::new() }, &[])
        .unwrap();
    assert!(root.yarn.simple_auth && root.yarn.client_address.ip().is_unspecified());
    assert!(root.agent.yarn.enabled && root.agent.yarn.simple_auth && !root.agent.insecure);
    assert_eq!(root.rescheduler.policies.len(), 1);
    root.rescheduler.check().unwrap();
}

#[test]
fn configurations_of_the_rescheduler_are_sound() {
    for (file, n_policies) in [("examples/reschedule.toml", 4), ("deploy/reschedule.toml", 2)] {
        let layers = godel_cli::args::Layers { files: vec![in_repository(file)], set: Vec::new() };
        let root = godel_cli::config::load(&layers, &[]).unwrap();
        assert_eq!(root.rescheduler.policies.len(), n_policies, "{file}");
        root.rescheduler.check().unwrap_or_else(|wrong| panic!("{file}: {wrong}"));
    }
}
