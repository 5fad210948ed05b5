//! Gangs that wait and ask for room by themselves: which of them is next, and whether moves can help it at all.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::UnitId;

/// Each request that came to nothing doubles the time to the next one of that gang, so often at most.
const N_DOUBLED_MAX: u32 = 5;

/// What keeps units waiting beside the nodes, as refusals name it: moves change nothing of that.
const BESIDE_NODES: [&str; 7] =
    ["queue", "preemption", "profile", "admission", "scheduling-timeout", "pause", "unreadable"];

/// Returns whether the nodes alone keep a unit out, from what refused it in its last try. Nothing that refused: nobody has tried.
pub fn lacks_room_alone<'a>(refused_by: impl IntoIterator<Item = &'a str>) -> bool {
    let mut refused_by = refused_by.into_iter().peekable();
    refused_by.peek().is_some() && refused_by.all(|refused| !BESIDE_NODES.contains(&refused))
}

/// When each waiting gang asks for room. How long it has waited is known since the leader began.
#[derive(Clone, Debug, Default)]
pub struct RoomRequests {
    of_gang: BTreeMap<UnitId, RoomRequest>,
}

#[derive(Clone, Copy, Debug)]
struct RoomRequest {
    since_ms: u64,
    next_ms: u64,
    n_asked: u32,
}

impl RoomRequests {
    /// Takes note of the gangs that wait now: a new one asks when it has waited for `after_ms`.
    pub fn observe(&mut self, waiting: &BTreeSet<UnitId>, after_ms: u64, now_ms: u64) {
        self.of_gang.retain(|gang, _| waiting.contains(gang));
        for gang in waiting {
            self.of_gang.entry(*gang).or_insert_with(|| RoomRequest {
                since_ms: now_ms,
                next_ms: now_ms.saturating_add(after_ms),
                n_asked: 0,
            });
        }
    }

    /// Returns the gang that asks now, the one that has waited for longest; `None`: none does.
    pub fn due(&self, now_ms: u64) -> Option<UnitId> {
        let due = self.of_gang.iter().filter(|(_, request)| request.next_ms <= now_ms);
        due.min_by_key(|(gang, request)| (request.since_ms, **gang)).map(|(gang, _)| *gang)
    }

    /// Takes note of a request. If the gang still waits, it asks again later, and each time after twice as long.
    pub fn note_asked(&mut self, gang: UnitId, after_ms: u64, now_ms: u64) {
        let Some(request) = self.of_gang.get_mut(&gang) else { return };
        request.n_asked = request.n_asked.saturating_add(1);
        let pause_ms = after_ms.saturating_mul(1 << request.n_asked.min(N_DOUBLED_MAX));
        request.next_ms = now_ms.saturating_add(pause_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER_MS: u64 = 100;

    fn gangs(ids: impl IntoIterator<Item = u64>) -> BTreeSet<UnitId> {
        ids.into_iter().map(UnitId).collect()
    }

    #[test]
    fn the_gang_that_has_waited_for_longest_asks_first_and_then_less_often() {
        let mut requests = RoomRequests::default();
        requests.observe(&gangs([7]), AFTER_MS, 1_000);
        requests.observe(&gangs([3, 7]), AFTER_MS, 1_050);
        assert_eq!(requests.due(1_099), None);
        assert_eq!(requests.due(1_100), Some(UnitId(7)));
        assert_eq!(requests.due(1_150), Some(UnitId(7)), "it has waited for longer than the other one");
        requests.note_asked(UnitId(7), AFTER_MS, 1_150);
        assert_eq!(requests.due(1_150), Some(UnitId(3)));
        requests.note_asked(UnitId(3), AFTER_MS, 1_150);
        assert_eq!((requests.due(1_349), requests.due(1_350)), (None, Some(UnitId(7))));
        for n in 2..20u32 {
            requests.note_asked(UnitId(7), AFTER_MS, 0);
            let pause_ms = AFTER_MS * (1 << n.min(N_DOUBLED_MAX));
            requests.of_gang.remove(&UnitId(3));
            assert_eq!((requests.due(pause_ms - 1), requests.due(pause_ms)), (None, Some(UnitId(7))));
        }
    }

    #[test]
    fn a_gang_that_waits_no_more_is_forgotten() {
        let mut requests = RoomRequests::default();
        requests.observe(&gangs([7]), AFTER_MS, 1_000);
        requests.observe(&gangs([]), AFTER_MS, 1_050);
        requests.note_asked(UnitId(7), AFTER_MS, 1_060);
        assert_eq!(requests.due(9_000), None);
        requests.observe(&gangs([7]), AFTER_MS, 2_000);
        assert_eq!((requests.due(2_099), requests.due(2_100)), (None, Some(UnitId(7))), "it waits anew");
    }

    #[test]
    fn moves_help_only_what_the_nodes_alone_keep_out() {
        for (refused_by, expected) in [
            (&[][..], false),
            (&["resources-fit"], true),
            (&["resources-fit", "device", "taints", "gang-turn"], true),
            (&["queue"], false),
            (&["resources-fit", "queue"], false),
            (&["pause"], false),
        ] {
            assert_eq!(lacks_room_alone(refused_by.iter().copied()), expected, "{refused_by:?}");
        }
    }
}
