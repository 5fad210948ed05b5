//! Which records a scheduler follows.

use godel_base::{ids::Revision, time::Millis};
use godel_testkit::check_follows;

use crate::{Config, FOLLOWS, FOLLOWS_SELECTED, Scheduler};

#[test]
fn a_scheduler_follows_what_it_declares() {
    let follows = [FOLLOWS, FOLLOWS_SELECTED].concat();
    let new = || Scheduler::new(Config { name: "a".to_owned(), ..Config::default() }, 1);
    check_follows(&follows, new, |scheduler, change| scheduler.load(change, Revision(1), 1, Millis(1)));
}
