//! What each verb does.

mod admin;
mod agent;
mod apply;
mod backup;
mod budget;
mod changes;
pub(crate) mod context;
mod doctor;
mod each;
mod health;
mod history;
mod identity;
mod node;
mod offline;
mod people;
mod queue;
mod records;
mod reschedule;
mod reservation;
mod run;
mod status;
mod top;
mod topology;
mod trace;
mod unit;
mod wait;
mod yarn;

use std::{ffi::OsString, os::unix::process::CommandExt as _};

use crate::args::{
    Agent, AgentVerb, Args, PartitionChoice, PartitionVerb, SchedulerVerb, Verb, backup::Backup,
    context::ContextVerb,
};
use clap::ValueEnum as _;
use godel_audit::InvariantVerdict;
use godel_client::{
    audit,
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, Paint},
    process,
    views::SchedulerView,
};

/// Runs a verb.
///
/// # Errors
/// What went wrong, with the exit code of the process.
pub async fn run(args: Args) -> Result<(), Failure> {
    let Args { address, context, output, log, verb } = args;
    // Services and agents have configurations, and no context.
    let of_service = || address.clone().unwrap_or_else(|| context::DEFAULT_ADDRESS.to_owned());
    match verb {
        Verb::Up(up) => return run::up(up, log, output).await,
        Verb::Demo(demo) => return run::demo(demo, log).await,
        Verb::Serve(serve) => return run::serve(serve, log, &of_service()).await,
        Verb::Agent(Agent { verb: Some(AgentVerb::Topology(wanted)), .. }) => {
            return topology::run(&wanted, log, output);
        }
        Verb::Agent(Agent { verb: Some(AgentVerb::Leave(wanted)), .. }) => {
            let reach = agent::Reach { address, context: context.as_deref() };
            return agent::leave(wanted, log, reach, output).await;
        }
        Verb::Agent(Agent { verb: Some(AgentVerb::Notice(wanted)), .. }) => {
            let reach = agent::Reach { address, context: context.as_deref() };
            return agent::notice(wanted, log, reach, output).await;
        }
        // `main` does it, without a runtime.
        Verb::Agent(Agent { verb: Some(AgentVerb::Keep { .. }), .. }) => return Ok(()),
        Verb::Agent(agent) => return run::agent(agent, log, &of_service()).await,
        Verb::State(state) => return offline::state(state, output).await,
        Verb::Backup(verb) if !matches!(verb, Backup::Create(_)) => {
            return backup::run_offline(verb, output).await;
        }
        Verb::Config(config) => return offline::config(&config),
        Verb::Ca(verb @ crate::args::identity::Ca::New { .. }) => return identity::new_ca(verb).await,
        Verb::Context(verb) => return context::run(verb, output).await,
        Verb::Login(wanted) => return context::run(ContextVerb::Login(wanted), output).await,
        Verb::Completion { shell } => return offline::completion(shell),
        Verb::Bench { words } => return bench(output, log, &words),
        _ => {}
    }
    let _guard = process::quiet_telemetry(log)?;
    if let Verb::Doctor(wanted) = verb {
        return doctor::run(wanted, address, context.as_deref(), output).await;
    }
    let access = context::access(address, context.as_deref()).await?;
    match verb {
        Verb::Node(node) => node::run(&Client::new(&access)?, node, output).await,
        Verb::Unit(unit) => unit::run(&access, unit, output).await,
        Verb::History(wanted) => history::run(&Client::new(&access)?, wanted, output).await,
        Verb::Top(top) => top::run(&Client::new(&access)?, top, output).await,
        Verb::Queue(wanted) => queue::run(&Client::new(&access)?, wanted, output).await,
        Verb::Budget(wanted) => budget::run(&Client::new(&access)?, wanted, output).await,
        Verb::Reservation(wanted) => reservation::run(&Client::new(&access)?, wanted, output).await,
        Verb::PriorityClass(class) => queue::run_class(&Client::new(&access)?, class, output).await,
        Verb::Reschedule(verb) => reschedule::run(&Client::new(&access)?, verb, output).await,
        Verb::Yarn(verb) => yarn::run(&access, verb, output).await,
        Verb::Apply(files) => apply::run(&access, &files, output).await,
        Verb::Scheduler(SchedulerVerb::List) => schedulers(&Client::new(&access)?, output).await,
        Verb::Partition(PartitionVerb::Set { mode }) => partition(&Client::new(&access)?, mode, output).await,
        Verb::JoinToken(wanted) => identity::join_token(&Client::new(&access)?, wanted, output).await,
        Verb::Identity(verb) => identity::run(&Client::new(&access)?, verb, output).await,
        Verb::Token(verb) => people::token(&Client::new(&access)?, verb, output).await,
        Verb::Principal(verb) => people::principal(&Client::new(&access)?, verb, output).await,
        Verb::Whoami => people::whoami(&Client::new(&access)?, output).await,
        Verb::Auth(verb) => people::auth(&Client::new(&access)?, verb, output).await,
        Verb::Changes(wanted) => changes::run(&Client::new(&access)?, wanted, output).await,
        Verb::Ca(verb) => identity::ca(&Client::new(&access)?, verb, output).await,
        Verb::Backup(Backup::Create(wanted)) => backup::create(&Client::new(&access)?, wanted, output).await,
        Verb::Admin(verb) => admin::run(&Client::new(&access)?, verb, output).await,
        Verb::Health(wanted) => health::run(&wanted).await,
        Verb::Status => status::run(&Client::new(&access)?, output).await,
        Verb::Audit(wanted) => {
            let mut ledger = Vec::new();
            for path in &wanted.ledger {
                ledger.extend(audit::read_ledger(path)?);
            }
            let ledger = (!wanted.ledger.is_empty()).then_some(ledger);
            let patience = wanted.patience;
            let of_run = audit::Wanted { ledger, patience, look_here: Some(run::processes_here) };
            let findings = audit::run(&Client::new(&access)?, of_run).await?;
            output::show(output, &findings.view(), || findings.text(Paint::stdout()))?;
            audit_ended(&findings, wanted.strict)
        }
        Verb::Trace(crate::args::Trace::Replay(replay)) => trace::replay(&access, replay, output).await,
        Verb::Up(_)
        | Verb::Demo(_)
        | Verb::Serve(_)
        | Verb::Agent(_)
        | Verb::State(_)
        | Verb::Backup(_)
        | Verb::Config(_)
        | Verb::Context(_)
        | Verb::Login(_)
        | Verb::Doctor(_)
        | Verb::Completion { .. }
        | Verb::Bench { .. } => Ok(()),
    }
}

/// How a process ends that has audited.
fn audit_ended(findings: &audit::AuditFindings, is_strict: bool) -> Result<(), Failure> {
    match findings.verdict() {
        InvariantVerdict::Ok => Ok(()),
        InvariantVerdict::Failed => Err(Failure::failed("the audit failed")),
        InvariantVerdict::NotJudged(which) => {
            let code = if is_strict { Code::Failed } else { Code::NotJudged };
            Err(Failure::new(code, format!("the audit could not judge all of {which}")))
        }
    }
}

/// Becomes `godel-bench`, which is built beside this program.
fn bench(output: Format, log: Option<String>, words: &[OsString]) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program cannot be found: {error}")))?
        .with_file_name("godel-bench");
    let format = output.to_possible_value().map(|value| value.get_name().to_owned());
    let format = format.filter(|_| output != Format::default()).map(|name| ["--output".to_owned(), name]);
    let error = std::process::Command::new(&program)
        .args(format.into_iter().flatten())
        .args(log.into_iter().flat_map(|filter| ["--log".to_owned(), filter]))
        .args(words)
        .exec();
    Err(Failure::failed(format!(
        "{} cannot be started: {error}; `make build` builds it beside godel",
        program.display()
    )))
}

/// What `describe` found of each thing that was named, in order.
type DescribedNames<V> = Vec<(String, Result<V, Failure>)>;

/// Looks at each thing that is named, whatever became of the others.
async fn describe_each<V>(
    names: &[String],
    mut look: impl AsyncFnMut(String) -> Result<V, Failure>,
) -> DescribedNames<V> {
    let mut described = Vec::with_capacity(names.len());
    for name in names {
        described.push((name.clone(), look(name.clone()).await));
    }
    described
}

/// Prints what was found: one thing as it is, several below each other, or as JSON in an array; fails in the end if one
/// was not found.
fn print_described<V: serde::Serialize>(
    format: Format,
    kind: &str,
    described: DescribedNames<V>,
    text: impl Fn(&V) -> String,
) -> Result<(), Failure> {
    let n_named = described.len();
    let (mut views, mut failures) = (Vec::new(), Vec::new());
    for (name, found) in described {
        match found {
            Ok(view) => views.push(view),
            Err(failure) if n_named == 1 => return Err(failure),
            Err(failure) => {
                output::say(format!("{kind} {}: {}", output::shown(&name), failure.message));
                failures.push(failure);
            }
        }
    }
    match format {
        Format::Json | Format::Yaml => match views.as_slice() {
            [view] if n_named == 1 => output::print_value(format, view)?,
            several => output::print_value(format, &several)?,
        },
        Format::Table | Format::Wide => {
            let texts: Vec<String> = views.iter().map(text).collect();
            output::print(&texts.join("\n"))?;
        }
    }
    match Code::worst(failures.iter().map(|failure| failure.code)) {
        None => Ok(()),
        Some(code) => {
            let said = format!("{} of {} failed", failures.len(), output::count(n_named, kind));
            Err(each::several(code, said, &failures))
        }
    }
}

async fn schedulers(client: &Client, format: Format) -> Result<(), Failure> {
    let answer = client.schedulers().await?;
    output::print_views::<SchedulerView, _>(format, &answer.schedulers, "schedulers")
}

async fn partition(client: &Client, choice: PartitionChoice, format: Format) -> Result<(), Failure> {
    use godel_proto::v1::{PartitionMode, SetPartitionModeRequest};
    let mode = match choice {
        PartitionChoice::Auto => PartitionMode::Unspecified,
        PartitionChoice::Global => PartitionMode::Global,
        PartitionChoice::Preferred => PartitionMode::Preferred,
        PartitionChoice::Strict => PartitionMode::Strict,
    };
    let request = SetPartitionModeRequest { mode: mode.into(), automatic: choice == PartitionChoice::Auto };
    let names: Vec<_> =
        choice.to_possible_value().map(|mode| mode.get_name().to_owned()).into_iter().collect();
    let set = each::each(format, "partition mode", &names, async |_| {
        let call = client.dispatch(async |mut dispatch| dispatch.set_partition_mode(request).await);
        Ok(each::Done::at("set", call.await?.revision))
    });
    set.await.map(drop)
}

#[cfg(test)]
mod tests {
    use godel_audit::{Invariant, InvariantReport, World};

    use super::*;

    #[test]
    fn an_audit_ends_as_its_verdict_says() {
        let report = |n_violations, not_judged: &[&str]| InvariantReport {
            invariant: Invariant::I8,
            checked: String::new(),
            violations: Vec::new(),
            n_violations,
            not_judged: not_judged.iter().map(|why| (*why).to_owned()).collect(),
        };
        let ended = |report, is_strict| {
            let findings = audit::AuditFindings {
                revision: 1,
                reports: vec![report],
                unreadable: Vec::new(),
                world: World::default(),
            };
            audit_ended(&findings, is_strict).map_err(|failure| failure.code)
        };
        for is_strict in [false, true] {
            assert_eq!(ended(report(0, &[]), is_strict), Ok(()));
            assert_eq!(ended(report(1, &["why"]), is_strict), Err(Code::Failed));
        }
        assert_eq!(ended(report(0, &["why"]), false), Err(Code::NotJudged));
        assert_eq!(ended(report(0, &["why"]), true), Err(Code::Failed));
    }
}
