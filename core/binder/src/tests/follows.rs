//! Which records the binder follows.

use godel_base::ids::Revision;
use godel_testkit::check_follows;

use crate::{Binder, FOLLOWS};

#[test]
fn the_binder_follows_what_it_declares() {
    check_follows(FOLLOWS, Binder::new, |binder, change| binder.on_change(change.clone(), Revision(1), 1));
}
