//! `godel unit wait`.

use std::time::Duration;

use godel_proto::v1::{self, UnitPhase};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::StreamExt as _;

use crate::{
    client::Client,
    exit::{Code, Failure},
    unit_file::nearest,
    views::{self, PHASES},
};

/// Soft phases are not in the watch: the unit is looked at this often anyway.
const POLL: Duration = Duration::from_millis(300);

/// What to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// One of these phases.
    Phase(Vec<UnitPhase>),
    /// Every replica has or had a node.
    Bound,
    /// Every replica has ended.
    Finished,
    /// Its record is gone.
    Deleted,
}

/// A phase by its name.
pub(super) fn phase(word: &str) -> Result<UnitPhase, Failure> {
    views::parse_phase(word).filter(|phase| *phase != UnitPhase::Unspecified).ok_or_else(|| {
        let hint = nearest(word, &PHASES).map_or_else(
            || format!("phases are {}", PHASES.join(", ")),
            |phase| format!("did you mean `{phase}`?"),
        );
        Failure::usage(format!("`{word}` is no phase")).hint(hint)
    })
}

impl Condition {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        match text.strip_prefix("phase=") {
            Some(words) => words.split(',').map(phase).collect::<Result<_, _>>().map(Self::Phase),
            None => match text {
                "bound" => Ok(Self::Bound),
                "finished" => Ok(Self::Finished),
                "deleted" => Ok(Self::Deleted),
                _ => Err(Failure::usage(format!("`{text}` is no condition"))
                    .hint("conditions are phase=NAME[,NAME], bound, finished and deleted")),
            },
        }
    }

    /// Whether a unit is as wished; an error if it never will be.
    fn holds(&self, unit: &v1::Unit) -> Result<bool, Failure> {
        let counts = unit.counts.unwrap_or_default();
        let over = matches!(unit.phase(), UnitPhase::Completed | UnitPhase::Failed | UnitPhase::Cancelled);
        let is_empty = matches!(unit.phase(), UnitPhase::Cancelled | UnitPhase::Suspended);
        let holds = match self {
            Self::Phase(phases) => phases.contains(&unit.phase()),
            Self::Bound => counts.pending == 0 && counts.replicas > 0 && !is_empty,
            Self::Finished => over && counts.bound == 0,
            Self::Deleted => false,
        };
        let hopeless = over && !holds && matches!(self, Self::Phase(_) | Self::Bound);
        if hopeless {
            return Err(Failure::failed(format!(
                "it is {}: the condition will not hold",
                views::phase(unit.phase())
            )));
        }
        Ok(holds)
    }
}

/// Where a unit stands, for who waited in vain.
fn standing(unit: &v1::Unit) -> String {
    let counts = unit.counts.unwrap_or_default();
    let pending = match counts.pending {
        0 => String::new(),
        n => format!(", {n} of {} replicas wait for a node", counts.replicas),
    };
    format!("it is {}{pending}", views::phase(unit.phase()))
}

/// Waits until a condition holds.
pub(super) async fn until(
    client: &Client,
    namespace: &str,
    name: &str,
    condition: &Condition,
    timeout: Duration,
) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    let mut last = "no answer came".to_owned();
    let waiting = async {
        let mut changes = None;
        loop {
            match client.get_unit(namespace, name).await {
                Ok(answer) => {
                    let unit = answer.unit.unwrap_or_default();
                    if condition.holds(&unit).map_err(|failure| failure.during(name))? {
                        return Ok(());
                    }
                    last = standing(&unit);
                }
                Err(failure) if failure.code == Code::NotFound && *condition == Condition::Deleted => {
                    return Ok(());
                }
                // A restart of the server is waited for as well.
                Err(failure) if failure.code == Code::Unreachable => last = failure.message,
                Err(failure) => return Err(failure),
            }
            if changes.is_none() {
                let opened = client.units(|mut units| {
                    let request = v1::WatchUnitsRequest {
                        namespace: namespace.to_owned(),
                        name: name.to_owned(),
                        ..v1::WatchUnitsRequest::default()
                    };
                    async move { units.watch_units(request).await }
                });
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
            let shown = humantime::format_duration(timeout);
            Err(Failure::new(Code::Timeout, format!("{name}: not within {shown}: {last}"))
                .hint(format!("see why with `godel unit describe {name}`")))
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

    #[test]
    fn conditions_hold_or_never_will() {
        let holds = |text: &str, unit: &v1::Unit| Condition::parse(text).unwrap().holds(unit).map_err(|_| ());
        let running = unit(UnitPhase::Running, 0, 2);
        let partly = unit(UnitPhase::Scheduled, 1, 1);
        let over = unit(UnitPhase::Completed, 0, 0);
        let cancelled = unit(UnitPhase::Cancelled, 0, 1);
        for (text, unit, expected) in [
            ("phase=Running", &running, Ok(true)),
            ("phase=running,completed", &over, Ok(true)),
            ("phase=Running", &partly, Ok(false)),
            ("phase=Running", &over, Err(())),
            ("bound", &running, Ok(true)),
            ("bound", &partly, Ok(false)),
            ("bound", &over, Ok(true)),
            ("bound", &cancelled, Err(())),
            ("finished", &over, Ok(true)),
            ("finished", &cancelled, Ok(false)),
            ("finished", &running, Ok(false)),
            ("deleted", &over, Ok(false)),
        ] {
            assert_eq!(holds(text, unit), expected, "{text} {:?}", unit.phase());
        }
    }

    #[test]
    fn it_is_told_what_still_waits() {
        assert_eq!(
            standing(&unit(UnitPhase::Running, 1, 1)),
            "it is Running, 1 of 2 replicas wait for a node"
        );
        assert_eq!(standing(&unit(UnitPhase::Running, 0, 2)), "it is Running");
    }

    #[test]
    fn unknown_conditions_are_told() {
        assert!(
            Condition::parse("phase=runing").unwrap_err().to_string().contains("did you mean `running`?")
        );
        assert!(Condition::parse("ready").unwrap_err().to_string().contains("conditions are"));
    }
}
