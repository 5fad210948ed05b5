//! `godel unit wait`: until a condition holds, or can hold no more; says how it came.

use std::time::Duration;

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, count, shown},
    unit_file::nearest,
    views::{self, PHASES},
};
use godel_domain::run_end::RunEndReason;
use godel_proto::v1::{self, UnitPhase};
use godel_wire::ops::run_end_reason_from_proto;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::StreamExt as _;

use crate::{
    args::split,
    command::each::{LIST_UNITS, several},
};

/// Soft phases are not in the watch: the unit is looked at this often anyway.
const POLL: Duration = Duration::from_millis(300);
/// After so long without a first answer it is said what is waited for.
const SILENT: Duration = Duration::from_secs(5);
/// Failed replicas that are told one by one.
const N_FAILED_SHOWN: usize = 3;

/// What to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitCondition {
    /// One of these phases.
    Phase(Vec<UnitPhase>),
    /// Every replica has or had a node.
    Bound,
    /// Every replica has ended, and none has failed.
    Finished,
    /// It has ended, however, and nothing of it is on a node.
    Over,
    /// Its record is gone.
    Deleted,
}

/// What a look at a unit says of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WaitLook {
    /// It holds: how, in words behind the unit's name.
    Holds(String),
    /// It may come.
    NotYet,
    /// It can come no more: why, in words behind the unit's name.
    Never(String),
}

/// How a wait for one unit ended, as JSON.
#[derive(Serialize)]
struct WaitedView {
    name: String,
    /// The condition came.
    holds: bool,
    /// How it came, or why it did not.
    said: String,
    /// That this one alone would have ended with.
    exit_code: u8,
}

/// A phase by its name.
pub(super) fn phase(word: &str) -> Result<UnitPhase, Failure> {
    views::parse_phase(word).filter(|phase| *phase != UnitPhase::Unspecified).ok_or_else(|| {
        let hint = nearest(word, &PHASES).map_or_else(
            || format!("phases are {}", PHASES.join(", ")),
            |phase| format!("did you mean `{phase}`?"),
        );
        Failure::usage(format!("unknown phase `{word}`")).hint(hint)
    })
}

impl WaitCondition {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        match text.strip_prefix("phase=") {
            Some(words) => words.split(',').map(phase).collect::<Result<_, _>>().map(Self::Phase),
            None => match text {
                "bound" => Ok(Self::Bound),
                "finished" => Ok(Self::Finished),
                "deleted" => Ok(Self::Deleted),
                _ => Err(Failure::usage(format!("unknown condition `{text}`"))
                    .hint("conditions are phase=NAME[,NAME], bound, finished and deleted")),
            },
        }
    }

    /// Whether a unit is as wished, may be, or can be no more.
    fn look(&self, answer: &v1::GetUnitResponse) -> WaitLook {
        let unit = answer.unit.clone().unwrap_or_default();
        let counts = unit.counts.unwrap_or_default();
        let (phase, word) = (unit.phase(), views::phase(unit.phase()));
        let is_terminal = matches!(phase, UnitPhase::Completed | UnitPhase::Failed | UnitPhase::Cancelled);
        let is_over = is_terminal && counts.bound == 0;
        let is_empty = matches!(phase, UnitPhase::Cancelled | UnitPhase::Suspended);
        match self {
            Self::Phase(phases) if phases.contains(&phase) => WaitLook::Holds(format!("is {word}")),
            Self::Phase(_) if is_terminal => WaitLook::Never(how_it_ended(answer)),
            Self::Phase(phases) if counts.failed > 0 && phases[..] == [UnitPhase::Completed] => {
                WaitLook::Never(format!("can no longer complete: {}", failed_text(answer)))
            }
            Self::Bound if counts.pending == 0 && counts.replicas > 0 && !is_empty => {
                WaitLook::Holds(format!("is bound, all {}", count(counts.replicas, "replica")))
            }
            Self::Bound if is_terminal => WaitLook::Never(how_it_ended(answer)),
            Self::Finished if is_over && phase == UnitPhase::Completed => {
                WaitLook::Holds(how_it_ended(answer))
            }
            Self::Finished if is_over => WaitLook::Never(how_it_ended(answer)),
            Self::Over if is_over => WaitLook::Holds(how_it_ended(answer)),
            Self::Phase(_) | Self::Bound | Self::Finished | Self::Over | Self::Deleted => WaitLook::NotYet,
        }
    }
}

fn n(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// `completed: 3 replicas succeeded`, `failed: 1 of 3 replicas failed (ordinal 2 on n1: exit code 3)`, `was cancelled`.
fn how_it_ended(answer: &v1::GetUnitResponse) -> String {
    let unit = answer.unit.clone().unwrap_or_default();
    let counts = unit.counts.unwrap_or_default();
    match unit.phase() {
        UnitPhase::Completed => format!("completed: {} succeeded", count(counts.succeeded, "replica")),
        UnitPhase::Failed => format!("failed: {}", failed_text(answer)),
        UnitPhase::Cancelled => "was cancelled".to_owned(),
        phase => format!("is {}", views::phase(phase)),
    }
}

/// Why a unit has failed: its replicas with their exit codes, or what the dispatcher ended it for.
fn failed_text(answer: &v1::GetUnitResponse) -> String {
    let unit = answer.unit.clone().unwrap_or_default();
    let counts = unit.counts.unwrap_or_default();
    let mut why: Vec<String> = Vec::new();
    match unit.status.unwrap_or_default().ended() {
        v1::UnitEnd::Unspecified => {}
        v1::UnitEnd::BelowMin => why.push("fewer than min_member were left".to_owned()),
        v1::UnitEnd::Failure => why.push("a replica failed for good".to_owned()),
        v1::UnitEnd::Deadline => why.push("its active_deadline passed".to_owned()),
    }
    if counts.failed > 0 {
        let failed = answer.running_units.iter().filter(|run| run.phase() == v1::RunPhase::Failed);
        let one = |run: &v1::RunningUnit| {
            let on = if run.node.is_empty() { String::new() } else { format!(" on {}", shown(&run.node)) };
            // That it ended with this exit code is said already.
            let reason = run_end_reason_from_proto(run.reason)
                .filter(|reason| *reason != RunEndReason::Exited)
                .map_or_else(String::new, |reason| format!(", {}", reason.name()));
            format!("ordinal {}{on}: exit code {}{reason}", run.ordinal, run.exit_code)
        };
        let mut told: Vec<String> = failed.take(N_FAILED_SHOWN).map(one).collect();
        if n(counts.failed) > told.len() && !told.is_empty() {
            told.push("…".to_owned());
        }
        let told = if told.is_empty() { String::new() } else { format!(" ({})", told.join(", ")) };
        why.push(format!("{} of {} failed{told}", counts.failed, count(counts.replicas, "replica")));
    }
    if why.is_empty() { "reason not known".to_owned() } else { why.join("; ") }
}

/// Where a unit stands, for who waited in vain.
fn standing(unit: &v1::Unit) -> String {
    let counts = unit.counts.unwrap_or_default();
    let pending = match counts.pending {
        0 => String::new(),
        n => {
            let wait = output::one_or(n, "waits", "wait");
            format!(", {n} of {} {wait} for a node", count(counts.replicas, "replica"))
        }
    };
    format!("it is {}{pending}", views::phase(unit.phase()))
}

/// `godel unit wait`: every unit at the same time, a line for each.
pub(super) async fn run(
    client: &Client,
    namespace: &str,
    names: &[String],
    condition: &WaitCondition,
    timeout: Duration,
    format: Format,
) -> Result<(), Failure> {
    let waits = names.iter().map(|name| {
        let (namespace, unit) = split(namespace, name);
        let (client, namespace, unit) = (client.clone(), namespace.to_owned(), unit.to_owned());
        let condition = condition.clone();
        let waiting = async move { until(&client, &namespace, &unit, &condition, timeout).await };
        (name, godel_kit::task::spawn("unit.wait", waiting))
    });
    let waits: Vec<_> = waits.collect();
    let (n_waits, mut failures, mut views) = (waits.len(), Vec::new(), Vec::new());
    for (name, waiting) in waits {
        let waited = waiting.await.unwrap_or_else(|error| Err(Failure::failed(error.to_string())));
        let (holds, said, code) = match &waited {
            Ok(said) => (true, said.clone(), 0),
            Err(failure) => (false, failure.message.clone(), failure.code.number()),
        };
        if matches!(format, Format::Table | Format::Wide) && (holds || n_waits > 1) {
            output::say(&said);
        }
        views.push(WaitedView { name: name.clone(), holds, said, exit_code: code });
        failures.extend(waited.err());
    }
    if matches!(format, Format::Json | Format::Yaml) {
        output::print_value(format, &views)?;
    }
    match Code::worst(failures.iter().map(|failure| failure.code)) {
        None => Ok(()),
        Some(_) if n_waits == 1 => Err(failures.remove(0)),
        Some(code) => {
            let said = format!("{} of {} do not meet the condition", failures.len(), count(n_waits, "unit"));
            Err(several(code, said, &failures))
        }
    }
}

/// The uid of the unit that is waited for. Nobody waits for one that was not named whole, though the server would read it.
fn whole(name: &str, answer: &v1::GetUnitResponse) -> Result<String, Failure> {
    let meta = answer.unit.as_ref().and_then(|unit| unit.spec.as_ref()?.meta.clone()).unwrap_or_default();
    if meta.name == name || meta.uid.eq_ignore_ascii_case(name) {
        return Ok(meta.uid);
    }
    let (name, namespace, near) = (shown(name), shown(&meta.namespace), shown(&meta.name));
    let said = format!("no unit `{name}` in namespace `{namespace}`; did you mean `{near}`?");
    Err(Failure::new(Code::NotFound, said))
}

/// Says what is waited for if a server from which nothing has come yet is silent.
async fn first_answer<T>(client: &Client, was_answered: bool, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    if was_answered {
        return call.await;
    }
    tokio::select! {
        answer = &mut call => answer,
        () = sleep(SILENT) => {
            output::say(format!("no answer from {} yet: still trying", client.address()));
            call.await
        }
    }
}

/// Waits until a condition holds; how it came, in a sentence.
pub(super) async fn until(
    client: &Client,
    namespace: &str,
    name: &str,
    condition: &WaitCondition,
    timeout: Duration,
) -> Result<String, Failure> {
    let deadline = Instant::now() + timeout;
    let mut last = "no answer came".to_owned();
    let shown_name = shown(name).into_owned();
    let waiting = async {
        let (mut changes, mut answered) = (None, false);
        // Once it is known which unit it is, that one is waited for, whatever comes under its name.
        let mut known: Option<String> = None;
        loop {
            let asked = known.as_deref().unwrap_or(name);
            let was_answered = answered;
            match first_answer(client, was_answered, client.get_unit(namespace, asked)).await {
                Err(failure) if !was_answered && failure.code == Code::Unreachable => return Err(failure),
                Ok(answer) => {
                    answered = true;
                    if known.is_none() {
                        known = Some(whole(name, &answer)?);
                    }
                    match condition.look(&answer) {
                        WaitLook::Holds(how) => return Ok(format!("unit {shown_name} {how}")),
                        WaitLook::Never(why) => {
                            let failure = Failure::failed(format!("unit {shown_name} {why}"));
                            return Err(
                                failure.hint(format!("see more with `godel unit describe {shown_name}`"))
                            );
                        }
                        WaitLook::NotYet => last = standing(&answer.unit.unwrap_or_default()),
                    }
                }
                Err(failure) if failure.code == Code::NotFound => match (condition, &known) {
                    (WaitCondition::Deleted, _) | (WaitCondition::Over, Some(_)) => {
                        return Ok(format!("unit {shown_name} is deleted"));
                    }
                    (_, None) => return Err(failure.hint(LIST_UNITS)),
                    (_, Some(_)) => {
                        let said =
                            format!("the record of unit {shown_name} was deleted: how it ended is not known");
                        return Err(Failure::new(Code::NotFound, said));
                    }
                },
                // A restart of a server that was there is waited for as well.
                Err(failure) if matches!(failure.code, Code::Unreachable | Code::Busy) => {
                    last = failure.message
                }
                Err(failure) => return Err(failure),
            }
            if changes.is_none() {
                let request = v1::WatchUnitsRequest {
                    namespace: namespace.to_owned(),
                    name: known.clone().unwrap_or_else(|| name.to_owned()),
                    ..v1::WatchUnitsRequest::default()
                };
                let opened = client.leading_units(async |mut units| units.watch_units(request).await);
                changes = opened.await.ok().map(tonic::Response::into_inner);
            }
            let changed = async {
                match &mut changes {
                    Some(stream) => stream.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = changed => {
                    if !matches!(change, Some(Ok(_))) {
                        changes = None;
                        sleep(POLL).await;
                    }
                }
                () = sleep(POLL) => {}
            }
        }
    };
    match timeout_at(deadline, waiting).await {
        Ok(ended) => ended,
        Err(_) => {
            let within = humantime::format_duration(timeout);
            Err(Failure::new(Code::Timeout, format!("unit {shown_name}: timeout after {within}: {last}"))
                .hint(format!("see why with `godel unit describe {shown_name}`")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(phase: UnitPhase, pending: u32, bound: u32) -> v1::Unit {
        let counts = v1::UnitCounts { replicas: 2, pending, bound, ..v1::UnitCounts::default() };
        v1::Unit { phase: phase.into(), counts: Some(counts), ..v1::Unit::default() }
    }

    fn answer(unit: v1::Unit) -> v1::GetUnitResponse {
        v1::GetUnitResponse { unit: Some(unit), ..v1::GetUnitResponse::default() }
    }

    #[test]
    fn conditions_hold_may_hold_or_never_will() {
        let running = unit(UnitPhase::Running, 0, 2);
        let partly = unit(UnitPhase::Scheduled, 1, 1);
        let over = unit(UnitPhase::Completed, 0, 0);
        let cancelled = unit(UnitPhase::Cancelled, 0, 1);
        let gone = unit(UnitPhase::Cancelled, 0, 0);
        for (text, unit, expected) in [
            ("phase=Running", &running, "yes"),
            ("phase=running,completed", &over, "yes"),
            ("phase=Running", &partly, "not yet"),
            ("phase=Running", &over, "never"),
            ("phase=queued", &gone, "never"),
            ("bound", &running, "yes"),
            ("bound", &partly, "not yet"),
            ("bound", &over, "yes"),
            ("bound", &cancelled, "never"),
            ("finished", &over, "yes"),
            ("finished", &cancelled, "not yet"),
            ("finished", &gone, "never"),
            ("finished", &running, "not yet"),
            ("deleted", &over, "not yet"),
        ] {
            let found = match WaitCondition::parse(text).unwrap().look(&answer(unit.clone())) {
                WaitLook::Holds(_) => "yes",
                WaitLook::NotYet => "not yet",
                WaitLook::Never(_) => "never",
            };
            assert_eq!(found, expected, "{text} {:?}", unit.phase());
        }
    }

    #[test]
    fn a_wait_for_the_end_says_how_it_was() {
        let finished = |answer: &v1::GetUnitResponse| WaitCondition::Finished.look(answer);
        let ended = |phase, succeeded, failed| {
            let counts = v1::UnitCounts { replicas: 3, succeeded, failed, ..v1::UnitCounts::default() };
            answer(v1::Unit { counts: Some(counts), ..unit(phase, 0, 0) })
        };
        let well = finished(&ended(UnitPhase::Completed, 3, 0));
        assert_eq!(well, WaitLook::Holds("completed: 3 replicas succeeded".to_owned()));
        let mut failed = ended(UnitPhase::Failed, 2, 1);
        failed.running_units = vec![v1::RunningUnit {
            ordinal: 1,
            phase: v1::RunPhase::Failed.into(),
            node: "n1".to_owned(),
            exit_code: 3,
            ..v1::RunningUnit::default()
        }];
        let expect = "failed: 1 of 3 replicas failed (ordinal 1 on n1: exit code 3)";
        assert_eq!(finished(&failed), WaitLook::Never(expect.to_owned()));
        failed.running_units[0].reason = v1::RunEndReason::OutOfMemory.into();
        let expect = "failed: 1 of 3 replicas failed (ordinal 1 on n1: exit code 3, out-of-memory)";
        assert_eq!(finished(&failed), WaitLook::Never(expect.to_owned()));
        // One that has failed for good keeps it from completing, before the others have ended.
        failed.unit.as_mut().unwrap().phase = UnitPhase::Running.into();
        let completed = WaitCondition::parse("phase=completed").unwrap();
        assert!(matches!(completed.look(&failed), WaitLook::Never(why) if why.contains("exit code 3")));
        let either = WaitCondition::parse("phase=completed,failed").unwrap();
        assert_eq!(either.look(&failed), WaitLook::NotYet);
        let mut late = ended(UnitPhase::Failed, 0, 0);
        let status = v1::UnitStatus { ended: v1::UnitEnd::Deadline.into(), ..v1::UnitStatus::default() };
        late.unit.as_mut().unwrap().status = Some(status);
        assert_eq!(finished(&late), WaitLook::Never("failed: its active_deadline passed".to_owned()));
        let cancelled = ended(UnitPhase::Cancelled, 0, 0);
        assert_eq!(finished(&cancelled), WaitLook::Never("was cancelled".to_owned()));
        assert_eq!(WaitCondition::Over.look(&cancelled), WaitLook::Holds("was cancelled".to_owned()));
    }

    #[test]
    fn nobody_waits_for_a_unit_that_was_not_named() {
        let meta = v1::ObjectMeta {
            namespace: "default".to_owned(),
            name: "web-prod".to_owned(),
            uid: "0190163d-8694-739b-aea5-0000000000aa".to_owned(),
            ..v1::ObjectMeta::default()
        };
        let spec = v1::UnitSpec { meta: Some(meta.clone()), ..v1::UnitSpec::default() };
        let answer = answer(v1::Unit { spec: Some(spec), ..v1::Unit::default() });
        assert_eq!(whole("web-prod", &answer), Ok(meta.uid.clone()));
        assert_eq!(whole(&meta.uid.to_uppercase(), &answer), Ok(meta.uid.clone()));
        for name in ["web", &meta.uid[..35]] {
            let failure = whole(name, &answer).unwrap_err();
            assert_eq!(failure.code, Code::NotFound);
            assert!(failure.message.ends_with("did you mean `web-prod`?"), "{failure}");
        }
    }

    #[test]
    fn it_is_told_what_still_waits() {
        assert_eq!(
            standing(&unit(UnitPhase::Running, 1, 1)),
            "it is Running, 1 of 2 replicas waits for a node"
        );
        assert_eq!(standing(&unit(UnitPhase::Running, 0, 2)), "it is Running");
    }

    #[test]
    fn unknown_conditions_are_told() {
        assert!(
            WaitCondition::parse("phase=runing").unwrap_err().to_string().contains("did you mean `running`?")
        );
        assert!(WaitCondition::parse("ready").unwrap_err().to_string().contains("conditions are"));
    }
}
