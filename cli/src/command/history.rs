//! `godel history`: ended units, one by one or added up.

use std::collections::BTreeMap;

use godel_client::{
    client::Client,
    exit::Failure,
    history,
    output::{self, Format},
    views::{HistorySumView, HistoryView},
};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;

use super::wait;
use crate::args::{HistoryArgs, HistoryKey};

pub(super) async fn run(client: &Client, wanted: HistoryArgs, format: Format) -> Result<(), Failure> {
    let HistoryArgs { namespace, owner, queue, phase, since, limit, sum } = wanted;
    let phase = phase.map(|word| wait::phase(&word)).transpose()?;
    let since_ms = since.map_or(0, |since| {
        let since = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        SystemClock::new().wall_ms().saturating_sub(since)
    });
    let request = v1::ListUnitHistoryRequest {
        namespace: namespace.unwrap_or_default(),
        owner,
        queue,
        phase: phase.unwrap_or_default().into(),
        since_ms,
        ..v1::ListUnitHistoryRequest::default()
    };
    let n_max = if sum.is_some() { usize::MAX } else { limit };
    let (units, is_more) = history::list(client, request, n_max).await?;
    match sum {
        None => {
            output::print_views::<HistoryView, _>(format, &units, "ended units")?;
            if is_more {
                output::say(format!("the newest {}; --limit shows more", units.len()));
            }
            Ok(())
        }
        Some(key) => {
            output::print_list(format, &sums(&units, key), "ended units")?;
            if let Some(covered) = covered(&units, since_ms) {
                output::say(covered);
            }
            Ok(())
        }
    }
}

/// What sums cover, where they may lack units: only so many ended units are kept, the newest ones.
fn covered(units: &[v1::UnitHistory], since_ms: i64) -> Option<String> {
    let oldest_ms = units.iter().map(|unit| unit.ended_time_ms).min()?;
    let kept = output::count(units.len(), "ended unit");
    let from = output::time(oldest_ms.max(since_ms));
    Some(format!(
        "sums of the {kept} that the history still has, from {from} on: it keeps the newest ones only (`dispatcher.history_units_max`, `dispatcher.history_age`)"
    ))
}

/// Sums over units with one owner, or of one queue, in order of its name.
fn sums(units: &[v1::UnitHistory], key: HistoryKey) -> Vec<HistorySumView> {
    let mut sums: BTreeMap<&str, HistorySumView> = BTreeMap::new();
    for unit in units {
        let name = match key {
            HistoryKey::Owner => unit.owner.as_str(),
            HistoryKey::Queue => unit.queue.as_str(),
        };
        let view = HistorySumView { name: name.to_owned(), ..HistorySumView::default() };
        sums.entry(name).or_insert(view).add(unit);
    }
    sums.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_say_what_they_cover() {
        let unit = |ended_time_ms| v1::UnitHistory { ended_time_ms, ..v1::UnitHistory::default() };
        let said = covered(&[unit(1_790_000_000_000), unit(1_789_999_000_000)], 0).unwrap();
        let from = output::time(1_789_999_000_000);
        assert!(
            said.contains("the 2 ended units that the history still has") && said.contains(&from),
            "{said}"
        );
        assert_eq!(covered(&[], 0), None);
    }

    #[test]
    fn units_of_one_owner_are_added_up() {
        let unit = |owner: &str, queue: &str, phase: v1::UnitPhase, cpu: u64| v1::UnitHistory {
            owner: owner.to_owned(),
            queue: queue.to_owned(),
            phase: phase.into(),
            run_ms: cpu,
            resource_seconds: [("cpu".to_owned(), cpu)].into(),
            ..v1::UnitHistory::default()
        };
        let units = [
            unit("bob", "a", v1::UnitPhase::Failed, 5),
            unit("alice", "a", v1::UnitPhase::Completed, 1),
            unit("alice", "b", v1::UnitPhase::Cancelled, 2),
        ];
        let shown = |key| {
            let views = sums(&units, key).into_iter();
            views
                .map(|view| (view.name, view.units, view.failed, view.resource_seconds["cpu"]))
                .collect::<Vec<_>>()
        };
        let of = |name: &str, units, failed, cpu| (name.to_owned(), units, failed, cpu);
        assert_eq!(shown(HistoryKey::Owner), [of("alice", 2, 0, 3), of("bob", 1, 1, 5)]);
        assert_eq!(shown(HistoryKey::Queue), [of("a", 2, 1, 6), of("b", 1, 0, 2)]);
    }
}
