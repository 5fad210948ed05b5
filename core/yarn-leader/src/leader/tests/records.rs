//! What becomes of writes and changes that are not taken.

use super::*;
use crate::CHANGE_LIMIT_MS;

impl Played {
    fn tick(&mut self) {
        self.with(|leader, at, out| leader.tick(at, &mut || [7; YARN_SECRET_LEN], out));
    }

    /// The applications of the next transaction, which the store refuses; what was to be paused is over then.
    fn refuse_records(&mut self) -> Vec<YarnApplicationId> {
        let (ticket, writes) = self.written().unwrap();
        let refused = Err(RecordsFailure::Refused);
        self.with(|leader, at, out| leader.work().on_written(ticket, refused, at, out));
        let pause = self.paused().unwrap();
        self.with(|leader, at, out| leader.work().on_paused(pause, at, out));
        ids(&writes)
    }

    /// The same for one that the store takes.
    fn take_records(&mut self) -> Vec<YarnApplicationId> {
        let (ticket, writes) = self.written().unwrap();
        self.with(|leader, at, out| leader.work().on_written(ticket, Ok(()), at, out));
        ids(&writes)
    }
}

fn ids(writes: &[YarnWrite]) -> Vec<YarnApplicationId> {
    let id = |write: &YarnWrite| match write {
        YarnWrite::Application(record, _) => Some(record.id),
        YarnWrite::ApplicationGone(_) | YarnWrite::Keys(_) => None,
    };
    writes.iter().filter_map(id).collect()
}

#[test]
fn a_record_that_is_refused_alone_goes_behind_all_others() {
    let mut played = Played::leading();
    let bad = played.submit("bad");
    let good = [played.submit("one"), played.submit("two")];
    assert_eq!(played.refuse_records(), [bad]);
    assert_eq!(played.take_records(), good);
    let third = played.submit("three");
    assert_eq!(played.refuse_records(), [bad]);
    assert_eq!(played.take_records(), [third]);
    assert_eq!((played.answer("three"), played.answer("bad")), (Some(Ok(())), None));
    assert_eq!(played.take_records(), [bad]);
    assert_eq!(played.answer("bad"), Some(Ok(())));
    assert_eq!(played.written(), None);
}

#[test]
fn the_record_that_is_refused_is_found_among_others() {
    let mut played = Played::leading();
    let first = played.submit("first");
    let all = ["a", "b", "c", "d"].map(|caller| played.submit(caller));
    assert_eq!(played.take_records(), [first]);
    // The third of them is refused.
    assert_eq!(played.refuse_records(), all);
    assert_eq!(played.take_records(), all[..2]);
    assert_eq!(played.refuse_records(), all[2..]);
    assert_eq!(played.refuse_records(), [all[2]]);
    assert_eq!(played.take_records(), [all[3]]);
    assert_eq!(played.answer("d"), Some(Ok(())));
}

#[test]
fn keys_wait_for_no_record() {
    let mut played = Played::leading();
    let bad = played.submit("bad");
    played.tick();
    assert_eq!(played.refuse_records(), [bad]);
    let (_, writes) = played.written().unwrap();
    assert!(writes.iter().all(|write| matches!(write, YarnWrite::Keys(_))), "{writes:?}");
}

#[test]
fn who_has_lost_track_of_records_leads_again_after_a_tick() {
    let mut played = Played::leading();
    played.submit("client");
    let (ticket, _) = played.written().unwrap();
    let lost = Err(RecordsFailure::LeaseLost);
    played.with(|leader, at, out| leader.work().on_written(ticket, lost, at, out));
    assert_eq!(played.answer("client"), Some(Err(ManagerRefusal::Standby(None))));
    assert!(!played.leader.may_lead(Revision(1)));
    played.tick();
    assert!(played.leader.may_lead(Revision(1)));
}

#[test]
fn a_change_that_is_not_taken_in_time_is_given_up() {
    let mut played = Played::leading();
    let id = played.placed();
    played.with(|leader, at, out| leader.set_priority(id, USER, 7, "changer", at, out)).unwrap();
    let (ticket, _) = played.call().unwrap();
    played.now_ms += CHANGE_LIMIT_MS - 1;
    played.tick();
    assert_eq!(played.answer("changer"), None);
    played.now_ms += 1;
    played.tick();
    assert!(matches!(played.answer("changer"), Some(Err(ManagerRefusal::Unavailable(_)))));
    played.accept(ticket);
    played.commit(Vec::new());
    assert_eq!((played.answer("changer"), played.call()), (None, None), "nobody waits for it");
    assert_eq!(played.leader.shown(0).application(id).unwrap().priority, 0);
}
