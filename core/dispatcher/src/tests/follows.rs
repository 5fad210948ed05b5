//! Which records the dispatcher follows.

use godel_base::{ids::Revision, time::Millis};
use godel_domain::txn::Receipt;
use godel_testkit::check_follows;

use crate::{Config, Dispatcher, FOLLOWS};

#[test]
fn the_dispatcher_follows_what_it_declares() {
    let created = Receipt { revision: Revision(1), time_ms: 1 };
    let new = || Dispatcher::new(Config::default());
    check_follows(FOLLOWS, new, |dispatcher, change| {
        dispatcher.on_change(change, Revision(1), created, Millis(1));
    });
}
