//! Asks states whether they lead: each once, the first one with a head start.

use std::time::Duration;

use godel_membership::state_choice::{StateChoice, StateContact, choose};
use godel_proto::v1::{self, member_service_client::MemberServiceClient};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{ChosenState, KnownStates};
use crate::client::Channel;

/// Head start of the first address: a command that finds a leader there opens one connection.
const HEAD_START: Duration = Duration::from_millis(200);
/// Time that a leader gets once a state has answered that does not lead.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// Messages of a state about who leads.
pub(super) type LeaderMessages = Streaming<v1::WatchLeaderResponse>;

/// What a state answers first.
pub(super) struct FirstAnswer {
    pub(super) contact: StateContact,
    /// The stream, if it goes on.
    pub(super) messages: Option<LeaderMessages>,
    /// Why there is none.
    pub(super) why: String,
}

impl FirstAnswer {
    fn failed(status: &Status) -> Self {
        // What a state refuses, it answers: an older version, or one that does not know who calls.
        let contact = match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                StateContact::Away
            }
            _ => StateContact::Answers { leads: false, term: 0 },
        };
        Self { contact, messages: None, why: status.message().to_owned() }
    }
}

pub(super) fn contact(message: &v1::WatchLeaderResponse) -> StateContact {
    StateContact::Answers { leads: message.leads, term: message.term }
}

/// Asks a state whether it leads, and waits for its first answer.
pub(super) async fn ask(channel: Channel, limit: Duration) -> FirstAnswer {
    let first = async {
        let mut client = MemberServiceClient::new(channel);
        let mut messages = client.watch_leader(v1::WatchLeaderRequest::default()).await?.into_inner();
        let first = messages.message().await?;
        let first = first.ok_or_else(|| Status::unavailable("the state has ended the stream"))?;
        Ok(FirstAnswer { contact: contact(&first), messages: Some(messages), why: String::new() })
    };
    let answer = timeout(limit, first).await;
    let late = || {
        let limit = godel_base::duration::show(limit);
        Err(Status::deadline_exceeded(format!("no answer within {limit}")))
    };
    answer.unwrap_or_else(|_| late()).unwrap_or_else(|status: Status| FirstAnswer::failed(&status))
}

/// The state that answered when states were asked last.
#[derive(Default)]
pub(super) struct AskedStates {
    chosen: parking_lot::Mutex<Option<usize>>,
    /// Held while states are asked: other calls wait for the same answer.
    turn: Mutex<()>,
}

impl AskedStates {
    /// The state to call.
    ///
    /// # Errors
    /// None answers.
    pub(super) async fn chosen(&self, known: &KnownStates) -> Result<ChosenState, Status> {
        // What is chosen here lasts: other calls may go on at a state where one has failed.
        let chosen = |idx| ChosenState { idx, over: CancellationToken::new() };
        let last = || self.chosen.lock().map(chosen);
        if let Some(last) = last() {
            return Ok(last);
        }
        let _turn = self.turn.lock().await;
        if let Some(last) = last() {
            return Ok(last);
        }
        let idx = ask_all(known).await?;
        *self.chosen.lock() = Some(idx);
        Ok(chosen(idx))
    }

    /// A call has failed at this state: the next one asks again.
    pub(super) fn forget(&self, idx: usize) {
        self.chosen.lock().take_if(|chosen| *chosen == idx);
    }
}

/// Asks one state after the other until it is clear which to call. The next one is asked once the one before has had its head start, and all of them
/// at once when one has answered, or failed.
async fn ask_all(known: &KnownStates) -> Result<usize, Status> {
    let mut contacts = vec![StateContact::Asked; known.len()];
    let mut reasons = vec![String::new(); known.len()];
    let mut asked = JoinSet::new();
    let mut next_at = Instant::now();
    // `None`: none has answered yet.
    let mut patient_until: Option<Instant> = None;
    let mut is_patient = true;
    loop {
        match choose(&contacts, None, is_patient) {
            StateChoice::Call(idx) => return Ok(idx),
            StateChoice::Nobody => return Err(known.nobody(&reasons)),
            StateChoice::Wait => {}
        }
        let n_asked = asked_of(&contacts, asked.len());
        tokio::select! {
            Some(answer) = asked.join_next(), if !asked.is_empty() => {
                let Ok((idx, FirstAnswer { contact, why, .. })) = answer else { continue };
                (contacts[idx], reasons[idx]) = (contact, why);
                next_at = Instant::now();
                if contact != StateContact::Away {
                    patient_until.get_or_insert(next_at + PATIENCE);
                }
            }
            () = sleep_until(next_at), if n_asked < known.len() => {
                let (channel, limit) = (known.states[n_asked].channel.clone(), *known.config.connect_timeout);
                asked.spawn(async move { (n_asked, ask(channel, limit).await) });
                if contacts.iter().all(|contact| *contact == StateContact::Asked) {
                    next_at = Instant::now() + HEAD_START;
                }
            }
            () = sleep_until(patient_until.unwrap_or(next_at)), if is_patient && patient_until.is_some() => {
                is_patient = false;
            }
        }
    }
}

/// How many were asked: those that have answered, and those that are `under_way`.
fn asked_of(contacts: &[StateContact], under_way: usize) -> usize {
    contacts.iter().filter(|contact| **contact != StateContact::Asked).count() + under_way
}
