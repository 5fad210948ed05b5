//! What keeps a real node from starting anything: its state directory is lost or cannot be written, or its engine is away.
//!
//! It is looked at once in a while, and state is told of each change. What is bound to the node before it knows is given back by whoever
//! tries to start it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    claim::{DirClaim, DirLoss},
    docker::Engine,
};

/// Between looks.
const LOOK: Duration = Duration::from_secs(1);
/// Looks between two questions to the engine.
const N_LOOKS_PER_QUESTION: u32 = 3;
/// The file that is written to see whether files can be written.
const PROBE: &str = ".probe";
/// Room that a node must have to start something; and to start something again, so that it does not come and go with each file.
const PROBE_BYTES: usize = 64 << 10;
const PROBE_AGAIN_BYTES: usize = 256 << 10;

/// What a node can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Why it can start nothing; empty: it can.
    pub(crate) trouble: String,
    /// Its state directory is not its own any more.
    pub(crate) loss: Option<DirLoss>,
    /// `None`: it has never had an engine that answered. Else why that cannot be used; empty: it can.
    pub(crate) images: Option<String>,
}

/// What is looked at.
pub(crate) struct Looked {
    /// The state directory, or the temporary one of an agent without.
    pub(crate) dir: PathBuf,
    pub(crate) claim: Option<Arc<DirClaim>>,
    /// The socket of the engine; `None`: the node is to run no images.
    pub(crate) engine: Option<PathBuf>,
}

/// Looks again and again, until nobody listens any more.
pub(crate) async fn follow(looked: Looked, conditions: watch::Sender<Condition>) {
    let Looked { dir, claim, engine } = looked;
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in 0u32.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = conditions.closed() => return,
        }
        let before = conditions.borrow().clone();
        let (of_look, claim, had) = (dir.clone(), claim.clone(), !before.trouble.is_empty());
        let found = tokio::task::spawn_blocking(move || look(&of_look, claim.as_deref(), had)).await;
        let Ok((trouble, loss)) = found else { return };
        let images = match &engine {
            Some(socket) if n % N_LOOKS_PER_QUESTION == 0 => images(socket, before.images.clone()).await,
            Some(_) | None => before.images.clone(),
        };
        let now = Condition { trouble, loss: loss.or(before.loss), images };
        conditions.send_if_modified(|known| {
            let is_new = *known != now;
            *known = now;
            is_new
        });
    }
}

/// Asks the engine whether it is there. One that never was is not missed.
async fn images(socket: &Path, before: Option<String>) -> Option<String> {
    match Engine::connect(socket).await {
        Ok(_) => Some(String::new()),
        Err(error) => before.map(|_| format!("{error} (socket {})", socket.display())),
    }
}

/// Whether a node can start something in its directory; if not, why, and whether the directory is lost.
pub(crate) fn look(dir: &Path, claim: Option<&DirClaim>, had_trouble: bool) -> (String, Option<DirLoss>) {
    if let Some(loss) = claim.and_then(|claim| claim.check().err()) {
        return (format!("its state directory {} {}", dir.display(), loss.words()), Some(loss));
    }
    let n_bytes = if had_trouble { PROBE_AGAIN_BYTES } else { PROBE_BYTES };
    match probe(&dir.join(PROBE), n_bytes) {
        Ok(()) => (String::new(), None),
        Err(error) => (format!("its state directory {} cannot be written: {error}", dir.display()), None),
    }
}

/// Writes a file and removes it.
fn probe(path: &Path, n_bytes: usize) -> io::Result<()> {
    // One look at a time: they use one file.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // What an agent left that was killed.
    let _absent = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(&vec![0; n_bytes]);
    let removed = fs::remove_file(path);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_trouble_until_it_can() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("state");
        let claim = DirClaim::take(&dir).unwrap();
        assert_eq!(look(&dir, Some(&claim), false), (String::new(), None));
        assert!(!dir.join(PROBE).exists());
        // Something that is no file stands in the way of every write, whoever the agent runs as.
        fs::create_dir(dir.join(PROBE)).unwrap();
        let (trouble, loss) = look(&dir, Some(&claim), false);
        assert!(trouble.contains("cannot be written: ") && loss.is_none(), "{trouble}");
        fs::remove_dir(dir.join(PROBE)).unwrap();
        assert_eq!(look(&dir, Some(&claim), true), (String::new(), None), "it comes back by itself");
    }

    #[test]
    fn a_directory_that_is_lost_is_said_with_the_reason() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("state");
        let claim = DirClaim::take(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let (trouble, loss) = look(&dir, Some(&claim), false);
        assert_eq!(loss, Some(DirLoss::Gone));
        assert!(trouble.ends_with("was removed, or cannot be reached"), "{trouble}");
    }

    #[tokio::test]
    async fn an_engine_that_was_there_is_missed_and_one_that_never_was_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("none.sock");
        assert_eq!(images(&socket, None).await, None);
        let away = images(&socket, Some(String::new())).await.unwrap();
        assert!(away.contains("the Docker engine does not answer"), "{away}");
    }
}
