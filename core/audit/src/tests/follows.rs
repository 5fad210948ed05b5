//! Which records an audit judges by.

use godel_base::ids::Revision;
use godel_domain::records::RecordKind;
use godel_testkit::check_follows;

use crate::{World, follows};

#[test]
fn an_audit_follows_what_it_declares() {
    // Of these it asks only whether they can be read.
    let is_only_read = |kind: &RecordKind| {
        use RecordKind::{
            Change, Identity, MoveRate, Movement, PersonToken, Principal, TrustRoots, YarnApplication,
            YarnKeys,
        };
        matches!(kind, YarnKeys | YarnApplication | Movement | MoveRate | TrustRoots | Identity)
            || matches!(kind, Principal | PersonToken | Change)
    };
    let judged: Vec<RecordKind> = follows().filter(|kind| !is_only_read(kind)).collect();
    check_follows(&judged, World::default, |world, change| {
        let commit =
            godel_domain::change::Commit { revision: Revision(1), time_ms: 1, changes: vec![change.clone()] };
        world.apply(&commit, |_, _| {});
    });
}
