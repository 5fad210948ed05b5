//! What a job asks for, has and gives back, phase by phase. It knows no clock: times are given to it.
//!
//! What is asked for is a number, as YARN has it: containers that have a place, and of which the master has not heard, are not in it. So a master
//! that asks again for one that was taken from it may get more than it needs. As MapReduce does, it says after each answer how many it needs now, and gives
//! back what is too much.

use std::time::Duration;

use godel_proto::v1;

use crate::yarn_load::{master::ask, trace::JobPhase};

/// What is due so soon is given back with what is due now.
const SLACK: Duration = Duration::from_millis(2);

/// See the module.
pub(super) struct JobWork {
    phases: Vec<JobPhase>,
    speed: u32,
    /// Most containers that are asked for at a time.
    asks_max: u32,
    /// Containers of this phase that had come when it was last said how many are asked for.
    n_come_at_ask: u32,
    /// The phase that is played.
    at: usize,
    /// Containers of this phase that came and were not taken again.
    n_come: u32,
    /// Containers of this phase whose time is over.
    n_over: u32,
    /// What runs, and until when.
    running: Vec<(Duration, String)>,
    /// Came without being needed, and is given back at once.
    surplus: Vec<String>,
    /// Something was asked for again in this phase: what had a place already, and its master had not heard of, was not counted.
    is_unsure: bool,
    n_again: u64,
}

impl JobWork {
    /// Nothing is done yet; times are divided by `speed`, and so many containers are asked for at a time.
    pub(super) fn new(phases: Vec<JobPhase>, speed: u32, asks_max: u32) -> Self {
        Self {
            phases,
            speed: speed.max(1),
            asks_max: asks_max.max(1),
            n_come_at_ask: 0,
            at: 0,
            n_come: 0,
            n_over: 0,
            running: Vec::new(),
            surplus: Vec::new(),
            is_unsure: false,
            n_again: 0,
        }
    }

    /// What the present phase still asks for.
    pub(super) fn ask(&mut self) -> v1::YarnAsk {
        self.n_come_at_ask = self.n_come;
        let priority = self.phases.get(self.at).map_or(0, |phase| phase.priority);
        ask(priority, self.n_left(self.n_come).min(self.asks_max))
    }

    /// Containers of this phase that are to come once so many have.
    fn n_left(&self, n_come: u32) -> u32 {
        self.phases.get(self.at).map_or(0, |phase| phase.n.saturating_sub(n_come))
    }

    /// Not all that it needs was asked for, and half of what was has come. What has a place by now and is not heard of is not counted.
    fn asks_for_more(&mut self) -> bool {
        let is_due = self.n_left(self.n_come_at_ask) > self.asks_max
            && self.n_come.saturating_sub(self.n_come_at_ask) >= self.asks_max.div_ceil(2);
        self.is_unsure |= is_due && self.n_left(self.n_come) <= self.asks_max;
        is_due
    }

    /// Containers whose time is over now, and those that are not needed, to be given back.
    pub(super) fn release(&mut self, now: Duration) -> Vec<String> {
        let (over, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|(due, _)| *due <= now + SLACK);
        self.running = running;
        self.n_over += u32::try_from(over.len()).unwrap_or(u32::MAX);
        let surplus = std::mem::take(&mut self.surplus);
        over.into_iter().map(|(_, id)| id).chain(surplus).collect()
    }

    /// What the next phase asks for, if the present one is over.
    pub(super) fn next_phase(&mut self) -> Option<v1::YarnAsk> {
        let phase = self.phases.get(self.at)?;
        if self.n_over < phase.n {
            return None;
        }
        (self.at, self.n_come, self.n_over, self.is_unsure) = (self.at + 1, 0, 0, false);
        self.n_come_at_ask = 0;
        (self.at < self.phases.len()).then(|| self.ask())
    }

    /// Nothing is left to be done.
    pub(super) fn is_over(&self) -> bool {
        self.phases.get(self.at).is_none()
    }

    /// What has come and what was taken. What is to be asked for from now on, if that is to be said.
    pub(super) fn take(&mut self, answer: v1::AllocateResponse, now: Duration) -> Option<v1::YarnAsk> {
        let (n_before, has_come) = (self.n_again, !answer.allocated.is_empty());
        for container in answer.allocated {
            let is_needed = |phase: &&JobPhase| self.n_come < phase.n && phase.priority == container.priority;
            match self.phases.get(self.at).filter(is_needed) {
                Some(phase) => {
                    let due = now + phase.life(self.n_come) / self.speed;
                    self.running.push((due, container.container_id));
                    self.n_come += 1;
                }
                None => self.surplus.push(container.container_id),
            }
        }
        for ended in answer.completed {
            let n_running = self.running.len();
            self.running.retain(|(_, id)| *id != ended.container_id);
            // Those that were given back are not there any more.
            if self.running.len() < n_running {
                self.n_come -= 1;
                self.n_again += 1;
            }
        }
        self.is_unsure |= self.n_again > n_before;
        let asks_for_more = self.asks_for_more();
        (self.n_again > n_before || self.is_unsure && has_come || asks_for_more).then(|| self.ask())
    }

    /// Until the time of the next container is over.
    pub(super) fn until_due(&self, now: Duration) -> Option<Duration> {
        self.running.iter().map(|(due, _)| due.saturating_sub(now)).min()
    }

    /// Containers that were taken and asked for again.
    pub(super) fn n_again(&self) -> u64 {
        self.n_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yarn_load::trace;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn answer(allocated: &[&str], completed: &[&str]) -> v1::AllocateResponse {
        let allocated = allocated.iter().map(|id| v1::YarnAllocatedContainer {
            container_id: (*id).to_owned(),
            priority: if *id == "c" { 10 } else { 20 },
            ..v1::YarnAllocatedContainer::default()
        });
        let completed = completed.iter().map(|id| v1::YarnCompletedContainer {
            container_id: (*id).to_owned(),
            ..v1::YarnCompletedContainer::default()
        });
        v1::AllocateResponse {
            allocated: allocated.collect(),
            completed: completed.collect(),
            ..v1::AllocateResponse::default()
        }
    }

    /// Two maps of 12 s and a reduce of 10 s and a bit, a hundred times as fast.
    fn work() -> JobWork {
        let mut jobs = trace::read(&format!("job1\t0\t0\t{}\t1\t0", 256 << 20)).unwrap();
        JobWork::new(jobs.remove(0).phases, 100, u32::MAX)
    }

    #[test]
    fn reduces_follow_the_last_map() {
        let mut work = work();
        assert_eq!((work.ask().containers, work.until_due(ms(0))), (Some(2), None));
        assert_eq!(work.take(answer(&["a"], &[]), ms(0)), None);
        assert_eq!((work.ask().containers, work.until_due(ms(20))), (Some(1), Some(ms(100))));
        assert_eq!(work.take(answer(&["b"], &[]), ms(60)), None);
        assert_eq!((work.release(ms(100)), work.release(ms(119))), (vec![], vec!["a".to_owned()]));
        assert!(work.next_phase().is_none());
        assert_eq!(work.release(ms(180)), ["b"]);
        let ask = work.next_phase().unwrap();
        assert_eq!((ask.containers, ask.priority, work.is_over()), (Some(1), Some(10), false));
        // That they have ended is no news.
        assert_eq!(work.take(answer(&["c"], &["a", "b"]), ms(190)), None);
        assert_eq!((work.release(ms(300)), work.n_again()), (vec!["c".to_owned()], 0));
        assert_eq!((work.next_phase(), work.is_over()), (None, true));
    }

    #[test]
    fn what_is_taken_is_asked_for_again() {
        let mut work = work();
        assert_eq!(work.take(answer(&["a"], &[]), ms(0)), None);
        let again = work.take(answer(&[], &["a"]), ms(50)).unwrap();
        assert_eq!((again.containers, work.n_again()), (Some(2), 1));
        // One had a place when that was said: three come in all, and it says each time what it needs.
        let needed = work.take(answer(&["b"], &[]), ms(60)).unwrap();
        assert_eq!(needed.containers, Some(1));
        assert_eq!(work.take(answer(&["d", "e"], &[]), ms(70)).unwrap().containers, Some(0));
        assert_eq!(work.release(ms(70)), ["e"]);
        assert_eq!(work.release(ms(200)), ["b", "d"]);
        assert!(work.next_phase().is_some());
        // A map that comes late is no reduce.
        assert_eq!(work.take(answer(&["f", "c"], &["e"]), ms(210)), None);
        assert_eq!(work.release(ms(210)), ["f"]);
    }

    #[test]
    fn so_many_are_asked_for_at_a_time() {
        let mut jobs = trace::read(&format!("job1\t0\t0\t{}\t0\t0", 5 * (128u64 << 20))).unwrap();
        let mut work = JobWork::new(jobs.remove(0).phases, 100, 2);
        let asked = |ask: Option<v1::YarnAsk>| ask.and_then(|ask| ask.containers);
        assert_eq!(work.ask().containers, Some(2));
        // One more may have a place already: two beside that.
        assert_eq!(asked(work.take(answer(&["a"], &[]), ms(0))), Some(2));
        assert_eq!(asked(work.take(answer(&["b"], &[]), ms(0))), Some(2));
        // That is all that is left: it says after each answer how many it needs now.
        assert_eq!(asked(work.take(answer(&["d"], &[]), ms(0))), Some(2));
        assert_eq!(asked(work.take(answer(&["e"], &[]), ms(0))), Some(1));
        assert_eq!(asked(work.take(answer(&["f", "g"], &[]), ms(0))), Some(0));
        assert_eq!((work.release(ms(0)), work.is_over()), (vec!["g".to_owned()], false));
    }
}
