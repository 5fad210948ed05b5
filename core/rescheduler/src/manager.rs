//! The policy manager: which policies run when, and what holds them back.
//!
//! It has the configuration in force, when each policy ran, and when replicas of units were moved. It makes no plan itself: whoever asks it for
//! the policy that is due makes the plan ([`crate::plan_policy`]) and tells what came of it. When policies ran is forgotten with the process;
//! when units were moved is kept as records.

use std::collections::BTreeMap;

use godel_base::{ids::UnitId, seed::mix, time::Millis};

use crate::{
    config::{ConfigFault, PolicyConfig, RescheduleConfig},
    eligibility::{MoveLog, QuietState},
    movement::RunCause,
    trigger::Trigger,
};

/// What is known of the runs of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyState {
    /// When it ran last, Unix milliseconds; 0: it has not.
    pub last_run_ms: u64,
    /// How often it ran.
    pub n_runs: u64,
    /// What its last run came to, as a sentence.
    pub last_result: String,
    /// Its last movement; empty: none.
    pub last_movement: String,
    /// Its periods count from here while it has not run, Unix milliseconds.
    since_ms: u64,
    /// Somebody asked for a run.
    asked: Option<RunCause>,
}

/// A policy that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuePolicy {
    /// Its name.
    pub name: String,
    /// What makes it run.
    pub cause: RunCause,
}

/// Decides which policies run when.
#[derive(Clone, Debug, Default)]
pub struct PolicyManager {
    config: RescheduleConfig,
    states: BTreeMap<String, PolicyState>,
    quiet: QuietState,
    quiet_until: Option<Millis>,
    log: MoveLog,
    seed: u64,
}

impl PolicyManager {
    /// Returns a manager without policies.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Puts a configuration in force. Policies that it has as before keep their state.
    ///
    /// # Errors
    /// Everything that is wrong with it; the one before stays in force.
    pub fn configure(&mut self, config: RescheduleConfig, now_ms: u64) -> Result<(), Vec<ConfigFault>> {
        let mut faults = config.faults();
        let n_known = self.config.policies.len();
        if config.policies.is_empty() && n_known > 0 {
            faults.push(ConfigFault::NoneLeft(n_known));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        self.states.retain(|name, _| config.policies.contains_key(name));
        for (name, policy) in &config.policies {
            let state = self.states.entry(name.clone()).or_default();
            if self.config.policies.get(name).map(|known| (&known.triggers, known.enabled))
                != Some((&policy.triggers, policy.enabled))
            {
                state.since_ms = now_ms;
            }
        }
        self.config = config;
        Ok(())
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &RescheduleConfig {
        &self.config
    }

    /// Returns what is known of the runs of a policy; `None`: there is no such policy.
    pub fn state(&self, policy: &str) -> Option<&PolicyState> {
        self.states.get(policy)
    }

    /// Returns when replicas of units were moved.
    pub fn log(&self) -> &MoveLog {
        &self.log
    }

    /// Forgets all moves before what records say of them is taken over.
    pub fn forget_all_moves(&mut self) {
        self.log = MoveLog::default();
    }

    /// Takes over what a record says of the moves of a unit.
    pub fn load_moves(&mut self, unit: UnitId, times_ms: impl IntoIterator<Item = u64>) {
        times_ms.into_iter().for_each(|time| self.log.note(unit, Millis(time)));
    }

    /// Takes note of a move of a unit.
    pub fn note_move(&mut self, unit: UnitId, now_ms: u64) {
        self.log.note(unit, Millis(now_ms));
    }

    /// Forgets moves that no rate looks at any more, and returns the units of which nothing is left.
    pub fn forget_moves(&mut self, now_ms: u64) -> Vec<UnitId> {
        let units =
            |log: &MoveLog| log.iter().map(|(unit, _)| unit).collect::<std::collections::BTreeSet<_>>();
        let before = units(&self.log);
        self.log.forget_before(Millis(now_ms.saturating_sub(self.config.rate.within_ms)));
        let after = units(&self.log);
        before.difference(&after).copied().collect()
    }

    /// Takes note of how many units wait. While they are too many, and for a time after, nothing runs by itself.
    pub fn observe(&mut self, n_pending: u64, now_ms: u64) {
        self.quiet_until = self.quiet.observe(n_pending, self.config.quiet, Millis(now_ms));
    }

    /// Returns until when nothing is moved, Unix milliseconds; `None`: nothing is held back.
    pub fn quiet_until_ms(&self) -> Option<u64> {
        self.quiet_until.map(|until| until.0)
    }

    /// The process got the signal: every policy that it is a trigger of is due.
    pub fn on_signal(&mut self) {
        for (name, policy) in &self.config.policies {
            if policy.enabled && policy.triggers.contains(&Trigger::Signal) {
                self.states.entry(name.clone()).or_default().asked = Some(RunCause::Signal);
            }
        }
    }

    /// Somebody asks for a run at the next occasion.
    ///
    /// # Errors
    /// There is no such policy, or it does not run on request, in words.
    pub fn ask(&mut self, name: &str, cause: RunCause) -> Result<(), RunRefusal> {
        self.may_be_asked(name)?;
        self.states.entry(name.to_owned()).or_default().asked = Some(cause);
        Ok(())
    }

    /// Whether somebody may ask for a run of a policy.
    ///
    /// # Errors
    /// There is no such policy, or it is not enabled, or has no such trigger.
    pub fn may_be_asked(&self, name: &str) -> Result<&PolicyConfig, RunRefusal> {
        let policy = self.config.policies.get(name).ok_or_else(|| RunRefusal::NoPolicy(name.to_owned()))?;
        if !policy.enabled {
            return Err(RunRefusal::Disabled(name.to_owned()));
        }
        if !policy.triggers.contains(&Trigger::Request) {
            return Err(RunRefusal::NotOnRequest(name.to_owned()));
        }
        Ok(policy)
    }

    /// Returns the policy that is due, the one that waits for longest first; `None`: none is, or something holds all back.
    pub fn due(&self, now_ms: u64) -> Option<DuePolicy> {
        if self.quiet_until.is_some() {
            return None;
        }
        let due = self.config.policies.iter().filter_map(|(name, policy)| {
            let (at_ms, cause) = self.next_of(name, policy)?;
            (at_ms <= now_ms).then(|| (at_ms, DuePolicy { name: name.clone(), cause }))
        });
        due.min_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name))).map(|(_, due)| due)
    }

    /// Returns when a policy runs next by itself, Unix milliseconds; `None`: when it is asked to.
    pub fn next_run_ms(&self, name: &str) -> Option<u64> {
        let policy = self.config.policies.get(name)?;
        self.next_of(name, policy).map(|(at_ms, _)| at_ms)
    }

    fn next_of(&self, name: &str, policy: &PolicyConfig) -> Option<(u64, RunCause)> {
        if !policy.enabled {
            return None;
        }
        let state = self.states.get(name)?;
        if let Some(cause) = state.asked {
            return Some((0, cause));
        }
        let seed = name.bytes().fold(self.seed, |seed, byte| mix(seed ^ u64::from(byte)));
        let since_ms = state.last_run_ms.max(state.since_ms);
        let causes = policy.triggers.iter().filter_map(|trigger| {
            let cause = match trigger {
                Trigger::Period { .. } => RunCause::Period,
                Trigger::Cron(_) => RunCause::Cron,
                Trigger::Signal | Trigger::Request => return None,
            };
            Some((trigger.next_due_ms(since_ms, state.n_runs, seed)?, cause))
        });
        causes.min()
    }

    /// Takes note of a run and what came of it; `movement` is empty if nothing is moved.
    pub fn note_run(&mut self, name: &str, result: String, movement: &str, now_ms: u64) {
        let Some(state) = self.states.get_mut(name) else { return };
        (state.last_run_ms, state.last_result, state.asked) = (now_ms, result, None);
        state.n_runs = state.n_runs.saturating_add(1);
        if !movement.is_empty() {
            movement.clone_into(&mut state.last_movement);
        }
    }
}

/// Why a policy does not run when somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunRefusal {
    /// There is none of this name.
    #[error("there is no policy `{0}`")]
    NoPolicy(String),
    /// It does not run at all.
    #[error("policy `{0}` is not enabled")]
    Disabled(String),
    /// Nobody may ask for it.
    #[error("policy `{0}` does not run on request: its triggers lack `request`")]
    NotOnRequest(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        binpack::Binpack,
        config::{PolicyScope, QuietTime, RescheduleKind},
    };

    fn policy(triggers: &[Trigger]) -> PolicyConfig {
        PolicyConfig {
            kind: RescheduleKind::Binpack(Binpack::default()),
            enabled: true,
            dry_run: false,
            triggers: triggers.to_vec(),
            scope: PolicyScope::default(),
            checked_by: ["b".to_owned()].into(),
            moved_max_percent: 10,
        }
    }

    fn config(a: &[Trigger], b: &[Trigger]) -> RescheduleConfig {
        let b = PolicyConfig { checked_by: std::collections::BTreeSet::new(), ..policy(b) };
        RescheduleConfig {
            policies: [("a".to_owned(), policy(a)), ("b".to_owned(), b)].into(),
            quiet: QuietTime { n_pending_max: 5, for_ms: 100 },
            ..RescheduleConfig::default()
        }
    }

    const SECOND: Trigger = Trigger::Period { every_ms: 1_000, jitter_ms: 0 };
    const MINUTE: Trigger = Trigger::Period { every_ms: 60_000, jitter_ms: 0 };

    fn due(manager: &PolicyManager, now_ms: u64) -> Option<(String, RunCause)> {
        manager.due(now_ms).map(|due| (due.name, due.cause))
    }

    #[test]
    fn a_period_counts_from_the_last_run() {
        let mut manager = PolicyManager::new(1);
        manager.configure(config(&[SECOND], &[MINUTE]), 500).unwrap();
        assert_eq!(due(&manager, 1_499), None);
        assert_eq!(due(&manager, 1_500), Some(("a".to_owned(), RunCause::Period)));
        manager.note_run("a", "nothing".to_owned(), "", 1_600);
        assert_eq!((due(&manager, 2_599), manager.next_run_ms("a")), (None, Some(2_600)));
        let state = manager.state("a").unwrap();
        assert_eq!((state.n_runs, state.last_result.as_str()), (1, "nothing"));
        // The one that has waited for longest goes first.
        assert_eq!(due(&manager, 100_000).unwrap().0, "a");
        manager.note_run("a", String::new(), "a-1", 100_000);
        assert_eq!(due(&manager, 100_000).unwrap().0, "b");
        assert_eq!(manager.state("a").unwrap().last_movement, "a-1");
    }

    #[test]
    fn signals_and_requests_reach_those_that_wait_for_them() {
        let mut manager = PolicyManager::new(1);
        manager.configure(config(&[Trigger::Signal], &[Trigger::Request]), 0).unwrap();
        assert_eq!(due(&manager, u64::MAX), None);
        manager.on_signal();
        assert_eq!(due(&manager, 1), Some(("a".to_owned(), RunCause::Signal)));
        manager.note_run("a", String::new(), "", 1);
        assert_eq!(due(&manager, 1), None);
        assert_eq!(manager.ask("a", RunCause::Http), Err(RunRefusal::NotOnRequest("a".to_owned())));
        assert_eq!(manager.ask("c", RunCause::Http), Err(RunRefusal::NoPolicy("c".to_owned())));
        manager.ask("b", RunCause::Http).unwrap();
        assert_eq!(due(&manager, 1), Some(("b".to_owned(), RunCause::Http)));
    }

    #[test]
    fn nothing_is_due_while_much_waits() {
        let mut manager = PolicyManager::new(1);
        manager.configure(config(&[SECOND], &[MINUTE]), 0).unwrap();
        manager.observe(6, 5_000);
        assert_eq!((due(&manager, 5_000), manager.quiet_until_ms()), (None, Some(5_100)));
        manager.observe(0, 5_100);
        assert_eq!(due(&manager, 5_100).unwrap().0, "a");
    }

    #[test]
    fn a_wrong_configuration_changes_nothing() {
        let mut manager = PolicyManager::new(1);
        manager.configure(config(&[SECOND], &[MINUTE]), 0).unwrap();
        let mut wrong = config(&[], &[MINUTE]);
        wrong.failed_max_percent = 101;
        assert_eq!(manager.configure(wrong, 1).unwrap_err().len(), 2);
        assert_eq!(manager.config(), &config(&[SECOND], &[MINUTE]));
        // What stays as it was keeps its time.
        manager.configure(config(&[SECOND], &[SECOND]), 900).unwrap();
        assert_eq!((manager.next_run_ms("a"), manager.next_run_ms("b")), (Some(1_000), Some(1_900)));
    }

    #[test]
    fn a_configuration_without_policies_leaves_those_in_force() {
        let mut manager = PolicyManager::new(1);
        manager.configure(RescheduleConfig::default(), 0).unwrap();
        manager.configure(config(&[SECOND], &[MINUTE]), 0).unwrap();
        let faults = manager.configure(RescheduleConfig::default(), 1).unwrap_err();
        assert_eq!(faults, [ConfigFault::NoneLeft(2)]);
        assert!(faults[0].to_string().contains("2 are in force, which stay"), "{}", faults[0]);
        assert_eq!(manager.config(), &config(&[SECOND], &[MINUTE]));
    }

    #[test]
    fn moves_are_forgotten_when_no_rate_looks_at_them() {
        let mut manager = PolicyManager::new(1);
        manager.configure(config(&[SECOND], &[MINUTE]), 0).unwrap();
        manager.load_moves(UnitId(1), [10, 20]);
        manager.note_move(UnitId(2), 3_600_000);
        assert_eq!(manager.forget_moves(3_600_015), []);
        assert_eq!(manager.forget_moves(3_600_021), [UnitId(1)]);
        assert_eq!(manager.log().iter().count(), 1);
    }
}
