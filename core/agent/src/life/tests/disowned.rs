//! What another agent speaks for now.

use super::*;

#[test]
fn what_is_disowned_ends_unsaid_and_before_what_comes() {
    let mut life = NodeLife::new(RestartBackoff::default());
    let mut out = Vec::new();
    for key in [A, B] {
        life.assign(key, 0, RunOrders { stop_grace_ms: 7, ..orders() }, &mut out);
    }
    life.started(A, 0, 0, Millis(1));
    life.started(B, 0, 0, Millis(1));
    life.ended(B, 0, how(3), None, Millis(2), &mut out);
    out.clear();
    life.disown(&mut out);
    let stop = AgentAction::Stop { key: A, incarnation: 0, grace_ms: 7, reason: RunEndReason::Told };
    assert!(
        matches!(out[..], [first, AgentAction::Forget(RunStatus { key: B, .. })] if first == stop),
        "{out:?}"
    );
    assert!(!life.reports().is_waiting() && life.open().is_empty(), "nothing of it is said");
    out.clear();
    life.assign(A, 0, orders(), &mut out);
    assert!(out.is_empty(), "the old one is here yet");
    life.ended(A, 0, how(143), None, Millis(3), &mut out);
    assert_eq!(out, [AgentAction::Start(A, 0)]);
    // Again: what waits is gone, and nothing is told twice.
    out.clear();
    life.disown(&mut out);
    assert_eq!(out, [AgentAction::Stop { key: A, incarnation: 0, grace_ms: 0, reason: RunEndReason::Told }]);
    out.clear();
    life.disown(&mut out);
    assert!(out.is_empty());
}
