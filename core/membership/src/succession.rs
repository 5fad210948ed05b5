//! When a state that follows takes the place of the one that leads.
//!
//! A leader answers as one for [`HOLD_MS`] after the store has last confirmed that it holds it, and not longer. Who takes over waits for [`SILENT_MS`]
//! without a sign of the leader, which is more: so no two states answer as leaders. A leader that is known to be gone is not waited for. Times are those
//! of a clock that goes on while the machine is suspended.

/// For how long a leader answers as one after the question was sent by which its hold on the store was confirmed, milliseconds.
pub const HOLD_MS: u64 = 600;
/// A leader of which nothing was heard for so long is taken for gone, milliseconds.
pub const SILENT_MS: u64 = 700;
/// What keeps the store has answered within this time, or nobody takes over, milliseconds: who cannot reach it cannot tell whether the leader can.
pub const STORE_SILENT_MS: u64 = 400;
/// A process that did not run for so long was paused, milliseconds: it has not listened either.
pub const PAUSED_MS: u64 = 200;

/// What a state knows of the one that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderSign {
    /// Nobody holds the store: nobody ever has, or its last leader has given it back.
    Vacant,
    /// The address of the leader refuses connections: its process has ended.
    Refused,
    /// Neither is known; the leader may be there.
    None,
}

/// Why a state takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// Nobody holds the store.
    Vacant,
    /// The process of the leader has ended.
    Gone,
    /// Nothing was heard of the leader.
    Silent,
}

impl Succession {
    /// In words, for the log.
    pub fn words(self) -> &'static str {
        match self {
            Self::Vacant => "nobody leads",
            Self::Gone => "the process of the leader has ended",
            Self::Silent => "nothing is heard of the leader",
        }
    }
}

/// The time since a state last heard of the leader, without the time in which it was paused itself.
#[derive(Clone, Copy, Debug)]
pub struct LeaderSilence {
    heard_ms: u64,
    ticked_ms: u64,
}

impl LeaderSilence {
    /// The leader counts as heard of now.
    pub fn new(now_ms: u64) -> Self {
        Self { heard_ms: now_ms, ticked_ms: now_ms }
    }

    /// The leader has said that it leads.
    pub fn hear(&mut self, now_ms: u64) {
        self.tick(now_ms);
        self.heard_ms = now_ms;
    }

    /// This process runs; to be called more often than every [`PAUSED_MS`]. Where it was not, silence begins anew.
    pub fn tick(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.ticked_ms) >= PAUSED_MS {
            self.heard_ms = now_ms;
        }
        self.ticked_ms = now_ms;
    }

    /// Whether this state takes over now, what keeps the store having answered `store_silent_ms` ago, and why.
    pub fn judge(&mut self, sign: LeaderSign, store_silent_ms: u64, now_ms: u64) -> Option<Succession> {
        self.tick(now_ms);
        if store_silent_ms > STORE_SILENT_MS {
            return None;
        }
        match sign {
            LeaderSign::Vacant => Some(Succession::Vacant),
            LeaderSign::Refused => Some(Succession::Gone),
            LeaderSign::None => {
                let is_silent = now_ms.saturating_sub(self.heard_ms) >= SILENT_MS;
                is_silent.then_some(Succession::Silent)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks every 50 ms from `from_ms` on, before `to_ms`.
    fn tick(silence: &mut LeaderSilence, from_ms: u64, to_ms: u64) {
        (from_ms..to_ms).step_by(50).for_each(|now_ms| silence.tick(now_ms));
    }

    #[test]
    fn a_leader_is_waited_for_longer_than_it_answers() {
        const { assert!(SILENT_MS > HOLD_MS) };
        let mut silence = LeaderSilence::new(1_000);
        tick(&mut silence, 1_000, 1_500);
        silence.hear(1_500);
        tick(&mut silence, 1_550, 2_150);
        assert_eq!(silence.judge(LeaderSign::None, 0, 2_199), None);
        assert_eq!(silence.judge(LeaderSign::None, 0, 2_200), Some(Succession::Silent));
    }

    #[test]
    fn a_leader_that_has_ended_is_not_waited_for() {
        let mut silence = LeaderSilence::new(0);
        assert_eq!(silence.judge(LeaderSign::Refused, 0, 1), Some(Succession::Gone));
        assert_eq!(silence.judge(LeaderSign::Vacant, 0, 1), Some(Succession::Vacant));
    }

    #[test]
    fn who_cannot_reach_the_store_does_not_judge_the_leader() {
        let mut silence = LeaderSilence::new(0);
        tick(&mut silence, 0, 5_000);
        for sign in [LeaderSign::None, LeaderSign::Refused, LeaderSign::Vacant] {
            assert_eq!(silence.judge(sign, STORE_SILENT_MS + 1, 5_000), None, "{sign:?}");
        }
        assert_eq!(silence.judge(LeaderSign::None, STORE_SILENT_MS, 5_000), Some(Succession::Silent));
    }

    #[test]
    fn who_was_paused_has_not_listened() {
        let mut silence = LeaderSilence::new(0);
        tick(&mut silence, 0, 500);
        // Neither the pause nor the time before it counts.
        assert_eq!(silence.judge(LeaderSign::None, 0, 20_000), None);
        tick(&mut silence, 20_000, 20_650);
        assert_eq!(silence.judge(LeaderSign::None, 0, 20_699), None);
        assert_eq!(silence.judge(LeaderSign::None, 0, 20_700), Some(Succession::Silent));
    }
}
