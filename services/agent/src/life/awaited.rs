//! Running units whose command comes later.

use godel_domain::running_units::Phase;

use super::{Action, Key, NodeLife, Work};
use crate::runtime::process::Program;

/// Why a running unit does not get its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAwaiting {
    /// It is not here in this incarnation, or not yet.
    NotHere,
    /// It has its command already, is leaving, or needs none.
    NoMore,
}

impl NodeLife {
    /// Whether a running unit waits for its command.
    pub fn is_awaiting(&self, key: Key, incarnation: u32) -> bool {
        let run = self.runs.get(&key).filter(|run| run.incarnation == incarnation && !run.stopping);
        run.is_some_and(|run| run.phase == Phase::Starting && matches!(run.orders.work, Work::Awaited { .. }))
    }

    /// The command of a running unit has come: `complete` makes it of what is known of its program.
    ///
    /// # Errors
    /// It does not wait for a command.
    pub fn give_command(
        &mut self,
        key: Key,
        incarnation: u32,
        complete: impl FnOnce(Program) -> Program,
        out: &mut Vec<Action>,
    ) -> Result<(), NotAwaiting> {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        let run = run.ok_or(NotAwaiting::NotHere)?;
        if run.waiting && run.phase == Phase::Starting {
            // Something has to end first.
            return Err(NotAwaiting::NotHere);
        }
        let Work::Awaited { program: Some(program), .. } = &run.orders.work else {
            return Err(NotAwaiting::NoMore);
        };
        if run.phase != Phase::Starting || run.stopping {
            return Err(NotAwaiting::NoMore);
        }
        run.orders.work = Work::Program(Box::new(complete((**program).clone())));
        out.push(Action::Start(key, incarnation));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::{Backoff, Orders};

    #[test]
    fn a_command_comes_once_and_only_to_who_waits() {
        let key = Key { unit: 1, ordinal: 0 };
        let awaited = |program| Orders { work: Work::Awaited { within_ms: 9, program }, ..Orders::default() };
        let mut life = NodeLife::new(Backoff::default());
        let mut out = Vec::new();
        let complete = |program: Program| Program { command: vec!["true".to_owned()], ..program };
        let none = life.give_command(key, 0, complete, &mut out);
        assert_eq!((none, out.len()), (Err(NotAwaiting::NotHere), 0));
        life.assign(key, 0, awaited(Some(Box::default())), &mut out);
        assert!(life.is_awaiting(key, 0) && !life.is_awaiting(key, 1));
        assert_eq!(life.give_command(key, 1, complete, &mut out), Err(NotAwaiting::NotHere));
        out.clear();
        assert_eq!(life.give_command(key, 0, complete, &mut out), Ok(()));
        assert_eq!(out, [Action::Start(key, 0)]);
        assert!(!life.is_awaiting(key, 0), "it has its command");
        let Some(Work::Program(program)) = life.work(key, 0) else { panic!("no program") };
        assert_eq!(program.command, ["true"]);
        assert_eq!(life.give_command(key, 0, complete, &mut out), Err(NotAwaiting::NoMore));

        let other = Key { unit: 2, ordinal: 0 };
        life.assign(other, 0, awaited(None), &mut out);
        assert_eq!(life.give_command(other, 0, complete, &mut out), Err(NotAwaiting::NoMore), "simulated");
        let third = Key { unit: 3, ordinal: 0 };
        life.assign(third, 0, awaited(Some(Box::default())), &mut out);
        life.stop(third, 0, 0, &mut out);
        assert_eq!(life.give_command(third, 0, complete, &mut out), Err(NotAwaiting::NoMore), "leaving");
    }
}
