//! I1 of the best-effort pool: what guaranteed running units leave, at every binding, and not for long above it.

use super::*;
use godel_domain::{node::NodeUsage, records::Record};

fn offline() -> UnitRecord {
    spec(2, 2, 1, demand(1500, None)).pool(Pool::BestEffort)
}

/// Of node 1, which a gang of 2,000 of 4,000 was bound to at 50 ms.
fn usage(cpu: i64, as_of_ms: i64) -> Change {
    Change::Put(Record::NodeUsage(NodeUsage {
        id: NodeId(1),
        reserved: Resources::new([(CPU, cpu)]).unwrap(),
        as_of_ms,
        ..NodeUsage::default()
    }))
}

fn story(before: Vec<Change>) -> Story {
    let offline = offline();
    let (story, _) = Story::healthy();
    let story = story.then(vec![unit(&offline)]).then(before);
    story.then(vec![bind(&offline, &[(0, 1, 0)], 0)]).then(vec![bind(&offline, &[(1, 1, 0)], 0)])
}

#[test]
fn i1_names_a_best_effort_binding_above_what_is_left() {
    only(&story(vec![]).evidence(), Invariant::I1, "best-effort cpu 3000 of 2000 (revision 10)");
    // The use of a time before the binding says nothing of it.
    only(&story(vec![usage(500, 49)]).evidence(), Invariant::I1, "best-effort cpu 3000 of 1500");
    for report in check_all(&story(vec![usage(500, 50)]).evidence()) {
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn i1_gives_the_binder_time_to_squeeze_and_no_more() {
    let mut late = story(vec![usage(500, 50)]).then(vec![usage(2000, 60)]).then(vec![]).evidence();
    for report in check_all(&late) {
        assert!(report.holds(), "{report}");
    }
    late.history.commits.last_mut().unwrap().time_ms += 100_000;
    only(&late, Invariant::I1, "node n1: best-effort cpu 3000 of 2000 for 100010 ms");
    let leaving = story(vec![usage(500, 50)]).then(vec![usage(2000, 60)]);
    let mut squeezed = leaving.then(vec![evict(&offline(), 1, EvictionReason::Squeezed)]).evidence();
    squeezed.history.commits.last_mut().unwrap().time_ms += 100_000;
    for report in check_all(&squeezed) {
        assert!(report.holds(), "{report}");
    }
}
