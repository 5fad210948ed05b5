//! What an earlier agent has left: runs that go on, and ends that nobody has read yet.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::join_all;
use godel_core_agent::RunKey;

use super::{
    Home,
    home::LiveKeeper,
    strays::{self, NodeMark},
    waiting,
};
use crate::{
    docker::{self, Labelled},
    keeper::{
        self, FoundRun,
        files::{self, END, KEEPER, RUN},
    },
};

/// Between looks at a keeper that has just been started, or is just ending.
const PAUSE: Duration = Duration::from_millis(10);
/// Looks until such a keeper is given up.
const N_LOOKS: u32 = 1_000;

/// A run that an earlier agent has started.
#[derive(Debug)]
pub(crate) struct Left {
    pub(super) dir: PathBuf,
    pub(crate) run: files::Run,
    /// When its command was started, Unix milliseconds; 0: it was not.
    pub(crate) started_ms: i64,
    pub(super) state: LeftRunState,
}

/// What is of it.
#[derive(Debug)]
pub(super) enum LeftRunState {
    /// It goes on, and this is its keeper.
    Kept(LiveKeeper),
    /// It has ended since.
    Over(files::Ended),
}

impl Left {
    pub(crate) fn key(&self) -> RunKey {
        RunKey { unit: self.run.unit, ordinal: self.run.ordinal }
    }

    pub(crate) fn goes_on(&self) -> bool {
        matches!(self.state, LeftRunState::Kept(_))
    }
}

/// Finds everything that is left, and ends what has lost its keeper, or its directory. Groups in which nothing is are removed.
pub(crate) async fn find(home: Arc<Home>) -> io::Result<Vec<Left>> {
    let found = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        for entry in fs::read_dir(home.runs())? {
            found.extend(look(&entry?.path()));
        }
        end_strays(&home, &found);
        let kept: Vec<_> = found.iter().filter_map(|left: &Left| left.run.group.clone()).collect();
        home.sweep_groups(&kept);
        Ok(found)
    });
    found.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Ends what is of this node, and of no run that was found.
fn end_strays(home: &Home, found: &[Left]) {
    let marks = found.iter().filter(|left| left.goes_on()).map(|left| left.run.mark.clone()).collect();
    let node = home.unheard_mark();
    end_processes(|environment| node.is_of(environment), &marks);
}

fn end_processes(is_of: impl Fn(&[String]) -> bool, marks: &BTreeSet<String>) {
    let (n_ended, n_left) = strays::end(is_of, marks);
    if n_ended > 0 {
        tracing::warn!(
            n_ended,
            n_left,
            "processes of this node were found that no run of its state directory owns, as of a directory that was removed \
             or copied: they are ended"
        );
    }
}

/// Ends what agents have left that spoke for the node before in this store, under whatever directory.
pub(crate) async fn end_predecessors(home: Arc<Home>, store: u64) {
    let node = NodeMark { store, ..home.node_mark() };
    // What was taken over says the uid that the node had when it was started. What is started from now on says the new one.
    let kept: Vec<files::Run> = runs(&home).collect();
    let (marks, names): (BTreeSet<String>, BTreeSet<Option<String>>) =
        kept.into_iter().map(|run| (run.mark, run.container.map(|container| container.name))).unzip();
    let of_processes = node.clone();
    let ended = tokio::task::spawn_blocking(move || {
        end_processes(|environment| of_processes.is_of_predecessor(environment), &marks);
    });
    // It has no reason to panic, and what is left is seen by an audit.
    let _ended = ended.await;
    end_containers_of(&home, &node, |one| one.is_own || names.contains(&Some(one.name.clone()))).await;
}

/// Ends the containers of this node that are not kept, as of a directory that was removed or copied.
pub(crate) async fn end_containers(home: &Home, is_kept: impl Fn(&Labelled) -> bool) {
    end_containers_of(home, &home.unheard_mark(), is_kept).await;
}

async fn end_containers_of(home: &Home, node: &NodeMark, is_kept: impl Fn(&Labelled) -> bool) {
    let Some(images) = home.images() else { return };
    let ended = async {
        let mut strays = docker::of_node(&images.socket, node).await?;
        strays.retain(|one| !is_kept(one));
        docker::end(&images.socket, &strays).await?;
        Ok::<_, docker::Error>(strays)
    };
    match ended.await {
        Ok(strays) if strays.is_empty() => {}
        Ok(strays) => {
            let names: Vec<String> = strays.into_iter().map(|one| one.name).collect();
            tracing::info!(
                ?names,
                "containers of this node that no run of its state directory owns are removed"
            );
        }
        Err(error) => tracing::warn!(%error, "containers of this node that no run owns cannot be removed"),
    }
}

/// Ends the containers of this node of which no run here has a record: its engine answers for the first time.
pub(crate) async fn end_unknown_containers(home: &Home) {
    // Looked for once the containers are listed: a run has its record before its container.
    let names: OnceLock<BTreeSet<String>> = OnceLock::new();
    let all = || runs(home).filter_map(|run| Some(run.container?.name)).collect();
    end_containers(home, |one| names.get_or_init(all).contains(&one.name)).await;
}

/// The runs that have a directory.
fn runs(home: &Home) -> impl Iterator<Item = files::Run> + use<> {
    let dirs = fs::read_dir(home.runs()).into_iter().flatten().flatten();
    dirs.filter_map(|dir| files::read(&dir.path().join(RUN)).ok())
}

fn look(dir: &Path) -> Option<Left> {
    for _ in 0..N_LOOKS {
        let run: Option<files::Run> = files::read(&dir.join(RUN)).ok();
        let keeper: Option<files::Keeper> = files::read(&dir.join(KEEPER)).ok();
        let started_ms =
            keeper.as_ref().and_then(|keeper| keeper.started.as_ref()).map_or(0, |started| started.at_ms);
        let state = match keeper::end_left_over(dir) {
            Ok(FoundRun::Nothing) => {
                remove(dir);
                return None;
            }
            Ok(FoundRun::Over(ended)) => Some(LeftRunState::Over(ended)),
            // One that has written down the end is about to end itself.
            Ok(FoundRun::Kept) if dir.join(END).exists() => None,
            Ok(FoundRun::Kept) => keeper.and_then(|keeper| {
                let process = keeper.process();
                let group = run.as_ref().and_then(|run| run.group.clone());
                Some(LeftRunState::Kept(LiveKeeper { opened: process.open()?, process, group }))
            }),
            Err(error) => {
                tracing::error!(%error, dir = %dir.display(), "what an earlier agent has left cannot be ended");
                return None;
            }
        };
        if let (Some(run), Some(state)) = (run, state) {
            return Some(Left { dir: dir.to_owned(), run, started_ms, state });
        }
        std::thread::sleep(PAUSE);
    }
    tracing::error!(dir = %dir.display(), "a keeper that an earlier agent has started does nothing");
    None
}

/// Splits what is left into what may go on, the newest incarnation of each replica of this node, and the rest.
pub(crate) fn newest(left: Vec<Left>, node: &str) -> (Vec<Left>, Vec<Left>) {
    let (mut own, mut rest): (Vec<Left>, Vec<Left>) =
        left.into_iter().partition(|left| left.run.node == node);
    // What goes on counts more than an end of the same incarnation.
    own.sort_by_key(|left| (left.key(), left.run.incarnation, left.run.restarts, left.goes_on()));
    let mut kept: Vec<Left> = Vec::new();
    for left in own {
        if kept.last().is_some_and(|last| last.key() == left.key()) {
            rest.extend(kept.pop());
        }
        kept.push(left);
    }
    (kept, rest)
}

/// Ends runs that nobody wants any more, and waits until they have.
pub(crate) async fn end(left: Vec<Left>) {
    join_all(left.into_iter().map(end_one)).await;
}

async fn end_one(left: Left) {
    let Left { dir, run, state, .. } = left;
    if let LeftRunState::Kept(keeper) = state {
        let (unit, ordinal) = (run.unit, run.ordinal);
        tracing::info!(unit_id = unit, ordinal, "a run of an earlier agent is over and is ended");
        let grace = Duration::from_millis(run.grace_ms.into());
        if !waiting::end(&dir, keeper, grace).await {
            tracing::error!(unit_id = unit, ordinal, "a run of an earlier agent does not end");
            return;
        }
        let of_blocking = dir.clone();
        let _ended = tokio::task::spawn_blocking(move || keeper::end_left_over(&of_blocking)).await;
    }
    remove(&dir);
}

/// Removes the directory of a run.
pub(super) fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, dir = %dir.display(), "the directory of a run cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_incarnation_of_each_replica_may_go_on() {
        let left = |node: &str, ordinal, incarnation, restarts| Left {
            dir: PathBuf::from(format!("{node}/{ordinal}-{incarnation}.{restarts}")),
            run: files::Run {
                node: node.to_owned(),
                unit: 1,
                ordinal,
                incarnation,
                restarts,
                ..files::Run::default()
            },
            started_ms: 0,
            state: LeftRunState::Over(files::Ended::default()),
        };
        let all = vec![
            left("n", 0, 1, 0),
            left("n", 1, 0, 2),
            left("other", 0, 7, 0),
            left("n", 0, 0, 5),
            left("n", 1, 0, 3),
        ];
        let (kept, rest) = newest(all, "n");
        let shown = |left: Vec<Left>| -> Vec<String> {
            left.iter().map(|left| left.dir.display().to_string()).collect()
        };
        assert_eq!(shown(kept), ["n/0-1.0", "n/1-0.3"]);
        assert_eq!(shown(rest), ["other/0-7.0", "n/0-0.5", "n/1-0.2"]);
    }
}
