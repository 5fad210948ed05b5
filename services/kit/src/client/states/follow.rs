//! Follows who leads at each address.

use std::sync::Arc;

use godel_membership::state_choice::{StateChoice, StateContact, choose};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    ChosenState, KnownStates,
    ask::{FirstAnswer, PATIENCE, ask, contact},
};
use crate::{client::Backoff, task};

/// What is known of all addresses, and which is called.
pub(super) struct Followed {
    known: Arc<KnownStates>,
    board: Mutex<Board>,
    chosen: watch::Sender<Chosen>,
    /// Any of them has answered.
    answered: watch::Sender<bool>,
    end: CancellationToken,
}

#[derive(Clone, Debug)]
enum Chosen {
    /// It is not clear yet.
    Wait,
    State(ChosenState),
    Nobody(Status),
}

struct Board {
    contacts: Vec<StateContact>,
    /// Why each does not answer.
    reasons: Vec<String>,
    /// The last one that was called.
    present: Option<ChosenState>,
    is_patient: bool,
    /// The tasks run.
    has_begun: bool,
}

impl Followed {
    /// Follows from the first call on until `end`.
    pub(super) fn new(known: Arc<KnownStates>, end: CancellationToken) -> Self {
        let board = Board {
            contacts: vec![StateContact::Asked; known.len()],
            reasons: vec![String::new(); known.len()],
            present: None,
            is_patient: true,
            has_begun: false,
        };
        let (chosen, answered) = (watch::channel(Chosen::Wait).0, watch::channel(false).0);
        Self { known, board: Mutex::new(board), chosen, answered, end }
    }

    /// The state to call.
    ///
    /// # Errors
    /// None answers.
    pub(super) async fn chosen(self: &Arc<Self>) -> Result<ChosenState, Status> {
        self.begin();
        let mut changes = self.chosen.subscribe();
        loop {
            match &*changes.borrow_and_update() {
                Chosen::State(chosen) => return Ok(chosen.clone()),
                Chosen::Nobody(nobody) => return Err(nobody.clone()),
                Chosen::Wait => {}
            }
            // Each address answers or fails in time; the sender is this one's own.
            let _ = changes.changed().await;
        }
    }

    fn begin(self: &Arc<Self>) {
        if std::mem::replace(&mut self.board.lock().has_begun, true) {
            return;
        }
        for idx in 0..self.known.len() {
            let (this, end) = (Arc::clone(self), self.end.clone());
            task::spawn("leader", async move { end.run_until_cancelled(this.follow(idx)).await });
        }
        let (this, end) = (Arc::clone(self), self.end.clone());
        task::spawn("leader", async move { end.run_until_cancelled(this.lose_patience()).await });
    }

    /// Follows one state for ever.
    async fn follow(&self, idx: usize) {
        let config = &self.known.config;
        let (base, max) = (*config.retry_base, *config.state_retry_max);
        let mut backoff = Backoff::new(base, max.max(base));
        loop {
            let asked_at = Instant::now();
            let first = ask(self.known.states[idx].channel.clone(), *config.connect_timeout).await;
            self.listen(idx, first).await;
            // One that takes streams and ends them at once is not asked without a pause.
            if asked_at.elapsed() > max {
                backoff.reset();
            }
            sleep(backoff.pause()).await;
        }
    }

    /// Takes in what a state says until its stream ends.
    async fn listen(&self, idx: usize, FirstAnswer { contact: first, messages, why }: FirstAnswer) {
        self.note(idx, first, why);
        let Some(mut messages) = messages else { return };
        let why = loop {
            match messages.message().await {
                Ok(Some(message)) => self.note(idx, contact(&message), String::new()),
                Ok(None) => break "the state has ended the stream".to_owned(),
                Err(status) => break status.message().to_owned(),
            }
        };
        self.note(idx, StateContact::Away, why);
    }

    /// Once a state has answered, one that leads gets a moment to do so too, at the beginning alone.
    async fn lose_patience(&self) {
        let mut answered = self.answered.subscribe();
        // The sender is this one's own.
        let _ = answered.wait_for(|answered| *answered).await;
        sleep(PATIENCE).await;
        let mut board = self.board.lock();
        board.is_patient = false;
        self.decide(&mut board);
    }

    fn note(&self, idx: usize, contact: StateContact, why: String) {
        let mut board = self.board.lock();
        (board.contacts[idx], board.reasons[idx]) = (contact, why);
        if contact != StateContact::Away {
            self.answered.send_replace(true);
        }
        self.decide(&mut board);
    }

    /// Publishes which state is called. What is under way at another one ends.
    fn decide(&self, board: &mut Board) {
        let present = board.present.as_ref().map(|present| present.idx);
        match choose(&board.contacts, present, board.is_patient) {
            StateChoice::Wait => {}
            StateChoice::Call(idx) => {
                if let Some(before) = board.present.take_if(|before| before.idx != idx) {
                    let states = &self.known.states;
                    let (before_at, now_at) = (&states[before.idx].address, &states[idx].address);
                    tracing::info!(before = before_at, now = now_at, "another state is called");
                    before.over.cancel();
                }
                let fresh = || ChosenState { idx, over: CancellationToken::new() };
                let present = board.present.get_or_insert_with(fresh).clone();
                self.chosen.send_if_modified(|chosen| {
                    let is_other = !matches!(chosen, Chosen::State(known) if known.idx == idx);
                    *chosen = Chosen::State(present);
                    is_other
                });
            }
            // What is under way may still be answered: a state that stops ends its streams first.
            StateChoice::Nobody => {
                self.chosen.send_replace(Chosen::Nobody(self.known.nobody(&board.reasons)));
            }
        }
    }
}
