//! What becomes of writes and changes that are not taken.

use godel_domain::change_line::CallCause;

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
    played.with(|leader, at, out| leader.set_priority(id, BELIEVED, 7, "changer", at, out)).unwrap();
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

fn by(method: &str) -> AppCaller<'static> {
    AppCaller { cause: Some(CallCause::new("ann", method, "h:1")), ..BELIEVED }
}

#[test]
fn a_change_has_its_line_in_the_transaction_with_its_record() {
    let mut played = Played::leading();
    let attempt = played.running();
    let id = attempt.application;
    played.with(|leader, at, out| leader.set_timeout(id, by("timeout"), 900_000, at, out)).unwrap();
    assert_eq!(played.methods(), ["timeout"]);
    // What comes while that is under way has its line with the next one.
    played.with(|leader, at, out| leader.kill(id, by("kill"), "", at, out)).unwrap();
    assert_eq!(played.refuse_records(), [id]);
    assert_eq!(played.methods(), ["timeout", "kill"]);
    played.store();
    // It is over already: nothing is changed.
    let killed = played.with(|leader, at, out| leader.kill(id, by("again"), "", at, out));
    assert_eq!((killed, played.written()), (Ok(true), None));
}

#[test]
fn lines_of_a_refused_transaction_are_written_with_the_next_one() {
    let mut played = Played::leading();
    let id = played.running().application;
    let other = played.submit("other");
    played.store();
    played.with(|leader, at, out| leader.set_timeout(id, by("first"), 900_000, at, out)).unwrap();
    played.with(|leader, at, out| leader.set_timeout(id, by("second"), 900_001, at, out)).unwrap();
    played.with(|leader, at, out| leader.kill(other, by("kill"), "", at, out)).unwrap();
    assert_eq!(played.methods(), ["first"]);
    assert_eq!(played.refuse_records(), [id]);
    let mut lines: Vec<String> = Vec::new();
    while played.orders.iter().any(|order| matches!(order, YarnOrder::Write(..))) {
        lines.extend(played.methods().into_iter().map(str::to_owned));
        played.take_records();
    }
    // What was refused alone goes behind all others.
    assert_eq!(lines, ["kill", "first", "second"]);
}

#[test]
fn what_the_dispatcher_has_to_take_has_its_line_when_it_has() {
    let mut played = Played::leading();
    let id = played.placed();
    played.with(|leader, at, out| leader.set_priority(id, by("priority"), 7, "changer", at, out)).unwrap();
    assert_eq!(played.written(), None);
    let (ticket, _) = played.call().unwrap();
    played.accept(ticket);
    played.commit(Vec::new());
    assert_eq!(played.answer("changer"), Some(Ok(())));
    assert_eq!(played.methods(), ["priority"]);
    played.store();
    // It has that priority already.
    played.with(|leader, at, out| leader.set_priority(id, by("priority"), 7, "same", at, out)).unwrap();
    let (ticket, _) = played.call().unwrap();
    played.accept(ticket);
    played.commit(Vec::new());
    assert_eq!((played.answer("same"), played.written()), (Some(Ok(())), None));
    played.with(|leader, at, out| leader.move_to(id, by("move"), "default", "mover", at, out)).unwrap();
    let (ticket, _) = played.call().unwrap();
    played.refuse(ticket, UnitCallRefusal::Other, "full");
    assert_eq!((played.answer("mover").is_some(), played.written()), (true, None));
}

#[test]
fn an_application_is_changed_again_once_the_store_has_taken_earlier_changes() {
    let mut played = Played::leading();
    let id = played.running().application;
    let mut end_ms = 900_000;
    let mut change = |played: &mut Played| {
        end_ms += 1;
        played.with(|leader, at, out| leader.set_timeout(id, by("timeout"), end_ms, at, out))
    };
    change(&mut played).unwrap();
    let n_taken = (0..100).take_while(|_| change(&mut played).is_ok()).count();
    assert_eq!(n_taken, 16, "one is under way");
    assert!(matches!(change(&mut played), Err(ManagerRefusal::Unavailable(_))));
    assert_eq!(played.take_records(), [id]);
    assert_eq!(played.methods().len(), 16);
    assert_eq!(change(&mut played), Ok(()));
}
