//! The life of an application, as YARN's ResourceManager has it (RMApp).
//!
//! [`AppState::after`] is the whole table: a pair of state and event that it does not know is refused, and changes nothing. Events
//! about nodes, which change no state in YARN, are none here.

/// What everybody sees of an application's state (YarnApplicationState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublicAppState {
    /// Known, nothing more.
    New,
    /// Its record is being written.
    NewSaving,
    /// Recorded.
    Submitted,
    /// Taken by the scheduler.
    Accepted,
    /// Its master has registered.
    Running,
    /// Its master has said so.
    Finished,
    /// Rejected, or no attempt is left.
    Failed,
    /// Somebody ended it.
    Killed,
}

impl PublicAppState {
    /// Every one, in YARN's order.
    pub const ALL: [Self; 8] = [
        Self::New,
        Self::NewSaving,
        Self::Submitted,
        Self::Accepted,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Killed,
    ];

    /// As YARN writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::NewSaving => "NEW_SAVING",
            Self::Submitted => "SUBMITTED",
            Self::Accepted => "ACCEPTED",
            Self::Running => "RUNNING",
            Self::Finished => "FINISHED",
            Self::Failed => "FAILED",
            Self::Killed => "KILLED",
        }
    }
}

/// Where an application or an attempt is once its last record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndTarget {
    /// Its master has said goodbye and still runs.
    Finishing,
    /// Its master has said goodbye and ended.
    Finished,
    /// Rejected, ended without a goodbye, or never begun; an application also has no attempt left.
    Failed,
    /// Somebody ended it.
    Killed,
}

/// Where an application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AppState {
    /// Known, nothing more.
    New,
    /// Its record is being written.
    NewSaving,
    /// Recorded.
    Submitted,
    /// Taken by the scheduler: an attempt waits for its place or has not registered yet.
    Accepted,
    /// The master of the current attempt has registered.
    Running,
    /// Its last record is being written.
    FinalSaving {
        /// Where it is afterwards.
        target: EndTarget,
        /// What everybody sees until then.
        shown: PublicAppState,
    },
    /// Its master has said goodbye and still runs.
    Finishing,
    /// Over: its master has said so.
    Finished,
    /// Over: rejected, or no attempt is left.
    Failed,
    /// Somebody ends it: its attempt is being stopped.
    Killing {
        /// What everybody sees until then.
        shown: PublicAppState,
    },
    /// Over: somebody ended it.
    Killed,
}

/// What the record of an application says when the adapter has started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecoveredApp {
    /// It was recorded, and has no attempt yet.
    WithoutAttempt,
    /// It has attempts, of which the last one goes on or says how it ended.
    WithAttempts,
    /// It was over.
    Over(EndTarget),
}

/// What happens to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AppEvent {
    /// It was submitted.
    Start,
    /// The adapter has started again, and read its record.
    Recover(RecoveredApp),
    /// Its record is written.
    NewSaved,
    /// The scheduler takes it.
    Accepted,
    /// It may not be submitted, or not to this queue.
    Rejected,
    /// It goes to another queue.
    Move,
    /// The master of its attempt has registered.
    AttemptRegistered,
    /// The master of its attempt has said goodbye.
    AttemptUnregistered,
    /// Its attempt ended well.
    AttemptFinished,
    /// Its attempt failed.
    AttemptFailed {
        /// Another one may follow.
        may_retry: bool,
    },
    /// Its attempt was killed.
    AttemptKilled,
    /// Somebody ends it.
    Kill,
    /// Its last record is written.
    UpdateSaved,
}

/// What an application has done when its state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AppEffect {
    /// Write its record.
    SaveNew,
    /// Ask the scheduler to take it.
    AddToScheduler,
    /// Start its next attempt.
    StartAttempt,
    /// Go on with its attempts as they are recorded.
    RecoverAttempts,
    /// Stop its attempt.
    KillAttempt,
    /// Change its queue.
    ChangeQueue,
    /// Write its last record.
    SaveFinal,
    /// It is over: give back what it has.
    End,
}

impl AppState {
    /// Where an event leads to, and what is to be done. `None`: the event does not happen in this state.
    pub fn after(self, event: AppEvent) -> Option<(Self, &'static [AppEffect])> {
        use AppEffect as Do;
        use AppEvent as On;
        let shown = self.public();
        let saving = |target| (Self::FinalSaving { target, shown }, &[Do::SaveFinal][..]);
        let stays = (self, &[][..]);
        let next = match (self, event) {
            (Self::New, On::Start) => (Self::NewSaving, &[Do::SaveNew][..]),
            (Self::New, On::Recover(RecoveredApp::WithoutAttempt)) => {
                (Self::Submitted, &[Do::AddToScheduler][..])
            }
            (Self::New, On::Recover(RecoveredApp::WithAttempts)) => {
                (Self::Accepted, &[Do::RecoverAttempts][..])
            }
            (Self::New, On::Recover(RecoveredApp::Over(target))) => target.of_application(),
            (Self::New, On::Kill) => (Self::Killed, &[Do::End][..]),
            (Self::New | Self::NewSaving | Self::Submitted, On::Rejected) => saving(EndTarget::Failed),
            (Self::NewSaving, On::NewSaved) => (Self::Submitted, &[Do::AddToScheduler][..]),
            (Self::NewSaving | Self::Submitted, On::Kill) => saving(EndTarget::Killed),
            (Self::NewSaving | Self::Submitted | Self::Accepted | Self::Running, On::Move) => {
                (self, &[Do::ChangeQueue][..])
            }
            (Self::Submitted, On::Accepted) => (Self::Accepted, &[Do::StartAttempt][..]),
            (Self::Accepted, On::AttemptRegistered) => (Self::Running, &[][..]),
            (Self::Accepted, On::AttemptFinished) => saving(EndTarget::Finished),
            (Self::Accepted, On::AttemptKilled) => saving(EndTarget::Killed),
            (Self::Accepted | Self::Running, On::AttemptFailed { may_retry: true }) => {
                (Self::Accepted, &[Do::StartAttempt][..])
            }
            (Self::Accepted | Self::Running, On::AttemptFailed { may_retry: false }) => {
                saving(EndTarget::Failed)
            }
            (Self::Accepted | Self::Running, On::Kill) => (Self::Killing { shown }, &[Do::KillAttempt][..]),
            (Self::Running | Self::Killing { .. }, On::AttemptUnregistered) => saving(EndTarget::Finishing),
            // A master that nobody manages has no container that could end.
            (Self::Running | Self::Killing { .. } | Self::Finishing, On::AttemptFinished) => {
                (Self::Finished, &[Do::End][..])
            }
            (Self::FinalSaving { target, .. }, On::UpdateSaved) => target.of_application(),
            (Self::FinalSaving { target: EndTarget::Finishing, shown }, On::AttemptFinished) => {
                (Self::FinalSaving { target: EndTarget::Finished, shown }, &[][..])
            }
            (Self::FinalSaving { .. }, On::AttemptFinished | On::Kill | On::NewSaved | On::Move) => stays,
            (Self::Killing { .. }, On::AttemptKilled) => saving(EndTarget::Killed),
            // No other attempt follows; without one to follow it has failed before it was killed.
            (Self::Killing { .. }, On::AttemptFailed { may_retry: true }) => saving(EndTarget::Killed),
            (Self::Killing { .. }, On::AttemptFailed { may_retry: false }) => saving(EndTarget::Failed),
            (Self::Killing { .. }, On::AttemptRegistered | On::UpdateSaved | On::Kill | On::Move) => stays,
            (Self::Finishing | Self::Failed, On::Kill | On::Move) => stays,
            (Self::Finished, On::AttemptUnregistered | On::AttemptFinished | On::Kill | On::Move) => stays,
            (Self::Killed, On::Accepted | On::Rejected | On::Kill | On::Move) => stays,
            (Self::Killed, On::AttemptFinished | On::AttemptFailed { .. }) => stays,
            _ => return None,
        };
        Some(next)
    }

    /// What everybody sees.
    pub fn public(self) -> PublicAppState {
        match self {
            Self::New => PublicAppState::New,
            Self::NewSaving => PublicAppState::NewSaving,
            Self::Submitted => PublicAppState::Submitted,
            Self::Accepted => PublicAppState::Accepted,
            Self::Running => PublicAppState::Running,
            Self::FinalSaving { shown, .. } | Self::Killing { shown } => shown,
            Self::Finishing | Self::Finished => PublicAppState::Finished,
            Self::Failed => PublicAppState::Failed,
            Self::Killed => PublicAppState::Killed,
        }
    }

    /// Nothing more becomes of it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Killed)
    }
}

impl EndTarget {
    /// An application that is there.
    fn of_application(self) -> (AppState, &'static [AppEffect]) {
        match self {
            Self::Finishing => (AppState::Finishing, &[][..]),
            Self::Finished => (AppState::Finished, &[AppEffect::End][..]),
            Self::Failed => (AppState::Failed, &[AppEffect::End][..]),
            Self::Killed => (AppState::Killed, &[AppEffect::End][..]),
        }
    }
}

/// What an application says of its end, or what follows from its state (FinalApplicationStatus).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FinalStatus {
    /// It is not over.
    Undefined,
    /// It did what it should.
    Succeeded,
    /// It did not.
    Failed,
    /// Somebody ended it.
    Killed,
}

/// What is shown: what the master said, else what the state says.
pub fn final_status(said: Option<FinalStatus>, state: AppState) -> FinalStatus {
    match (said, state.public()) {
        (Some(said), _) => said,
        (None, PublicAppState::Failed) => FinalStatus::Failed,
        (None, PublicAppState::Killed) => FinalStatus::Killed,
        (None, _) => FinalStatus::Undefined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: PublicAppState = PublicAppState::Running;
    const STATES: [(&str, AppState); 15] = [
        ("New", AppState::New),
        ("NewSaving", AppState::NewSaving),
        ("Submitted", AppState::Submitted),
        ("Accepted", AppState::Accepted),
        ("Running", AppState::Running),
        ("Saving>Finishing", AppState::FinalSaving { target: EndTarget::Finishing, shown: SHOWN }),
        ("Saving>Finished", AppState::FinalSaving { target: EndTarget::Finished, shown: SHOWN }),
        ("Saving>Failed", AppState::FinalSaving { target: EndTarget::Failed, shown: SHOWN }),
        ("Saving>Killed", AppState::FinalSaving { target: EndTarget::Killed, shown: SHOWN }),
        ("Finishing", AppState::Finishing),
        ("Finished", AppState::Finished),
        ("Failed", AppState::Failed),
        ("Killing", AppState::Killing { shown: SHOWN }),
        ("Killed", AppState::Killed),
        ("Killing early", AppState::Killing { shown: PublicAppState::Accepted }),
    ];
    const EVENTS: [(&str, AppEvent); 16] = [
        ("start", AppEvent::Start),
        ("recover", AppEvent::Recover(RecoveredApp::WithoutAttempt)),
        ("recover-attempts", AppEvent::Recover(RecoveredApp::WithAttempts)),
        ("recover-killed", AppEvent::Recover(RecoveredApp::Over(EndTarget::Killed))),
        ("saved", AppEvent::NewSaved),
        ("accepted", AppEvent::Accepted),
        ("rejected", AppEvent::Rejected),
        ("move", AppEvent::Move),
        ("registered", AppEvent::AttemptRegistered),
        ("unregistered", AppEvent::AttemptUnregistered),
        ("finished", AppEvent::AttemptFinished),
        ("retry", AppEvent::AttemptFailed { may_retry: true }),
        ("failed", AppEvent::AttemptFailed { may_retry: false }),
        ("killed", AppEvent::AttemptKilled),
        ("kill", AppEvent::Kill),
        ("updated", AppEvent::UpdateSaved),
    ];

    /// Every pair that is allowed, as YARN's ResourceManager has them; `=` stays.
    const TABLE: &str = "\
New: start NewSaving, recover Submitted, recover-attempts Accepted, recover-killed Killed, rejected Saving>Failed, kill Killed
NewSaving: saved Submitted, rejected Saving>Failed, kill Saving>Killed, move =
Submitted: accepted Accepted, rejected Saving>Failed, kill Saving>Killed, move =
Accepted: registered Running, retry Accepted, failed Saving>Failed, finished Saving>Finished, killed Saving>Killed, kill Killing, move =
Running: unregistered Saving>Finishing, finished Finished, retry Accepted, failed Saving>Failed, kill Killing, move =
Saving>Finishing: updated Finishing, finished Saving>Finished, kill =, saved =, move =
Saving>Finished: updated Finished, finished =, kill =, saved =, move =
Saving>Failed: updated Failed, finished =, kill =, saved =, move =
Saving>Killed: updated Killed, finished =, kill =, saved =, move =
Finishing: finished Finished, kill =, move =
Finished: unregistered =, finished =, kill =, move =
Failed: kill =, move =
Killing: killed Saving>Killed, unregistered Saving>Finishing, finished Finished, retry Saving>Killed, failed Saving>Failed, registered =, updated =, kill =, move =
Killed: accepted =, rejected =, kill =, finished =, retry =, failed =, move =
Killing early: killed Saving>Killed, unregistered Saving>Finishing, finished Finished, retry Saving>Killed, failed Saving>Failed, registered =, updated =, kill =, move =
";

    /// A state as the table names it, whatever is shown meanwhile.
    fn name(state: AppState) -> &'static str {
        let is = |known: &&(&str, AppState)| match (known.1, state) {
            (AppState::FinalSaving { target: a, .. }, AppState::FinalSaving { target: b, .. }) => a == b,
            (AppState::Killing { .. }, AppState::Killing { .. }) => true,
            (a, b) => a == b,
        };
        STATES.iter().find(is).unwrap().0
    }

    #[test]
    fn every_pair_is_as_in_yarn() {
        let mut n_allowed = 0;
        for line in TABLE.lines() {
            let (from, cells) = line.split_once(": ").unwrap();
            let state = STATES.iter().find(|(name, _)| *name == from).unwrap().1;
            let cells: Vec<(&str, &str)> =
                cells.split(", ").map(|cell| cell.split_once(' ').unwrap()).collect();
            for (event_name, event) in EVENTS {
                let expected = cells.iter().find(|(name, _)| *name == event_name).map(|(_, to)| *to);
                let found = state.after(event);
                let shown =
                    found.map(|(to, _)| if to == state && expected == Some("=") { "=" } else { name(to) });
                assert_eq!(shown, expected, "{from} on {event_name}");
                if expected == Some("=") && event != AppEvent::Move {
                    assert_eq!(found, Some((state, &[][..])), "{from} on {event_name}");
                }
                n_allowed += usize::from(found.is_some());
            }
        }
        assert_eq!(TABLE.lines().count(), STATES.len());
        assert_eq!(n_allowed, TABLE.matches(", ").count() + STATES.len());
    }

    #[test]
    fn whoever_looks_sees_public_states() {
        let after = |state: AppState, event| state.after(event).unwrap().0;
        let killing = after(AppState::Accepted, AppEvent::Kill);
        assert_eq!(killing.public(), PublicAppState::Accepted);
        let saving = after(killing, AppEvent::AttemptKilled);
        assert_eq!(saving.public(), PublicAppState::Accepted);
        assert_eq!(after(saving, AppEvent::UpdateSaved).public(), PublicAppState::Killed);
        let finishing = after(after(AppState::Running, AppEvent::AttemptUnregistered), AppEvent::UpdateSaved);
        assert_eq!((finishing.public(), finishing.is_over()), (PublicAppState::Finished, false));
    }

    #[test]
    fn what_is_to_be_done_follows_the_state() {
        for (state, event, effects) in [
            (AppState::New, AppEvent::Start, &[AppEffect::SaveNew][..]),
            (AppState::NewSaving, AppEvent::NewSaved, &[AppEffect::AddToScheduler]),
            (AppState::Submitted, AppEvent::Accepted, &[AppEffect::StartAttempt]),
            (AppState::Running, AppEvent::AttemptFailed { may_retry: true }, &[AppEffect::StartAttempt]),
            (AppState::Running, AppEvent::AttemptFailed { may_retry: false }, &[AppEffect::SaveFinal]),
            (AppState::Running, AppEvent::Kill, &[AppEffect::KillAttempt]),
            (AppState::Running, AppEvent::Move, &[AppEffect::ChangeQueue]),
            (AppState::Running, AppEvent::AttemptFinished, &[AppEffect::End]),
            (AppState::Finishing, AppEvent::AttemptFinished, &[AppEffect::End]),
        ] {
            assert_eq!(state.after(event).unwrap().1, effects, "{state:?} {event:?}");
        }
    }

    #[test]
    fn the_master_says_how_it_ended() {
        assert_eq!(final_status(Some(FinalStatus::Failed), AppState::Finished), FinalStatus::Failed);
        assert_eq!(final_status(None, AppState::Killed), FinalStatus::Killed);
        assert_eq!(final_status(None, AppState::Failed), FinalStatus::Failed);
        assert_eq!(final_status(None, AppState::Running), FinalStatus::Undefined);
    }
}
