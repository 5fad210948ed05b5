//! Running units whose command comes later.

use godel_domain::running_units::Phase;

use super::NodeLife;
use crate::{AgentAction, AgentOutbox, RunKey, RunWork};

/// Why a running unit does not get its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAwaiting {
    /// It is not here in this incarnation, or not yet.
    NotHere,
    /// It has its command already, is leaving, or needs none.
    NoMore,
}

impl<P: Clone> NodeLife<P> {
    /// The command of a running unit has come: `complete` makes it of what is known of its program.
    ///
    /// # Errors
    /// It does not wait for a command.
    pub fn give_command(
        &mut self,
        key: RunKey,
        incarnation: u32,
        complete: impl FnOnce(P) -> P,
        out: &mut AgentOutbox,
    ) -> Result<(), NotAwaiting> {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        let run = run.ok_or(NotAwaiting::NotHere)?;
        if run.waiting && run.phase == Phase::Starting {
            // Something has to end first.
            return Err(NotAwaiting::NotHere);
        }
        let RunWork::Awaited { program: Some(program), .. } = &run.orders.work else {
            return Err(NotAwaiting::NoMore);
        };
        if run.phase != Phase::Starting || run.stopping {
            return Err(NotAwaiting::NoMore);
        }
        run.orders.work = RunWork::Program(Box::new(complete((**program).clone())));
        out.push(AgentAction::Start(key, incarnation));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalRun, RestartBackoff, RunOrders};

    /// What is run.
    #[derive(Clone, Debug, Default)]
    struct Program {
        command: Vec<String>,
    }

    #[test]
    fn a_command_comes_once_and_only_to_who_waits() {
        let key = RunKey { unit: 1, ordinal: 0 };
        let awaited =
            |program| RunOrders { work: RunWork::Awaited { within_ms: 9, program }, ..RunOrders::default() };
        let mut life = NodeLife::new(RestartBackoff::default());
        let mut out = Vec::new();
        let complete =
            |program: Program| Program { command: [program.command, vec!["true".to_owned()]].concat() };
        let none = life.give_command(key, 0, complete, &mut out);
        assert_eq!((none, out.len()), (Err(NotAwaiting::NotHere), 0));
        life.assign(key, 0, awaited(Some(Box::default())), &mut out);
        let is_awaiting = |life: &NodeLife<Program>, incarnation| {
            life.live_run(key, incarnation).is_some_and(LocalRun::is_awaiting)
        };
        assert!(is_awaiting(&life, 0) && !is_awaiting(&life, 1));
        assert_eq!(life.give_command(key, 1, complete, &mut out), Err(NotAwaiting::NotHere));
        out.clear();
        assert_eq!(life.give_command(key, 0, complete, &mut out), Ok(()));
        assert_eq!(out, [AgentAction::Start(key, 0)]);
        assert!(!is_awaiting(&life, 0), "it has its command");
        let Some(RunWork::Program(program)) = life.live_run(key, 0).map(|run| &run.orders().work) else {
            panic!("no program")
        };
        assert_eq!(program.command, ["true"]);
        assert_eq!(life.give_command(key, 0, complete, &mut out), Err(NotAwaiting::NoMore));

        let other = RunKey { unit: 2, ordinal: 0 };
        life.assign(other, 0, awaited(None), &mut out);
        assert_eq!(life.give_command(other, 0, complete, &mut out), Err(NotAwaiting::NoMore), "simulated");
        let third = RunKey { unit: 3, ordinal: 0 };
        life.assign(third, 0, awaited(Some(Box::default())), &mut out);
        life.stop(third, 0, 0, &mut out);
        assert_eq!(life.give_command(third, 0, complete, &mut out), Err(NotAwaiting::NoMore), "leaving");
    }
}
