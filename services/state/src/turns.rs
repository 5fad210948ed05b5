//! The turns of a state that shares its store with others: it follows, leads once it takes the place of the one that did, and begins anew when another one
//! has taken its own.

use std::{pin::pin, time::Duration};

use godel_kit::CancellationToken;
use godel_store::{Engine, OpenError, Store};
use tokio::net::TcpListener;

use crate::{
    error::Error,
    serve::{StateParts, Turn, close, lead, open},
    standby::{Standby, StandbyEnd},
};

/// For so long a state that has given the store back leaves it to others.
const HOLDS_BACK: Duration = Duration::from_secs(5);
/// Pause before a state that can follow no more begins anew.
const AGAIN: Duration = Duration::from_millis(500);
/// How often in a row a state begins anew that has not come to follow.
const N_FAILED_MAX: u32 = 5;

/// How a turn has ended.
enum TurnEnd {
    /// The service is to stop.
    Stopped,
    /// Another state leads, or may; after so long this one may again, too.
    Over(Duration),
    /// It can follow no more.
    Failed(String),
}

/// Serves until `stop`, turn after turn.
///
/// # Errors
/// The store does not open, or the server fails.
pub(crate) async fn serve(
    parts: StateParts,
    listener: TcpListener,
    engine: Engine,
    stop: CancellationToken,
) -> Result<(), Error> {
    // Each turn listens on a clone: what connects between two turns waits for the next one.
    let listener = listener.into_std().map_err(Error::Listener)?;
    let (mut holds_back, mut n_failed) = (Duration::ZERO, 0);
    loop {
        let opened =
            open(&parts.config, engine.clone(), Store::follow, &parts.clock, parts.crash.clone(), &stop);
        let store = match opened.await {
            Ok(Some(store)) => store,
            Ok(None) => return Ok(()),
            // What is read may be dropped by the leader meanwhile.
            Err(Error::Open { source: OpenError::Damaged { what, .. }, .. }) if n_failed < N_FAILED_MAX => {
                n_failed += 1;
                tracing::warn!(what, "the store was not read to its end; it is read again");
                pause(AGAIN, &stop).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let ended = turn(&parts, &listener, &store, holds_back, &stop).await;
        close(store).await;
        match ended? {
            TurnEnd::Stopped => return Ok(()),
            TurnEnd::Over(next) => (holds_back, n_failed) = (next, 0),
            TurnEnd::Failed(why) => {
                tracing::warn!(why, "this state begins anew");
                holds_back = Duration::ZERO;
                pause(AGAIN, &stop).await;
            }
        }
    }
}

async fn pause(pause: Duration, stop: &CancellationToken) {
    // A stop ends what follows.
    let _ = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
}

async fn turn(
    parts: &StateParts,
    listener: &std::net::TcpListener,
    store: &Store,
    holds_back: Duration,
    stop: &CancellationToken,
) -> Result<TurnEnd, Error> {
    let clone = || listener.try_clone().and_then(TcpListener::from_std).map_err(Error::Listener);
    let standby = Standby { parts: parts.clone(), store: store.clone() };
    let meanwhile = match standby.run(clone()?, holds_back, stop).await? {
        StandbyEnd::Leads(meanwhile) => meanwhile,
        StandbyEnd::Stopped => return Ok(TurnEnd::Stopped),
        StandbyEnd::Failed(why) => return Ok(TurnEnd::Failed(why)),
    };
    // The service ends in order, for its tasks; a turn that is over ends at once, for those who call.
    let (term, over) = (CancellationToken::new(), CancellationToken::new());
    let turn = Turn { meanwhile: Some(meanwhile), over: over.clone() };
    let mut led = pin!(lead(parts, clone()?, store, turn, term.clone()));
    tokio::select! {
        ended = &mut led => return ended.map(|()| TurnEnd::Stopped),
        why = store.ended() => tracing::info!(why, "this state leads no more"),
        // Another state takes over at once, whatever this one still has to end.
        () = stop.cancelled() => store.give_back().await,
    }
    over.cancel();
    term.cancel();
    led.await?;
    Ok(if stop.is_cancelled() { TurnEnd::Stopped } else { TurnEnd::Over(HOLDS_BACK) })
}
