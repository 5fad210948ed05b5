//! What a real node can do: state is told of each change, and an agent that has lost its state directory ends.

use std::sync::Arc;

use godel_proto::v1::{self, session_request::Message};
use tokio::sync::watch;

use super::{Shard, real_node::RealNode};
use crate::{
    NodeDef,
    claim::DirLoss,
    condition::{self, Condition, Looked},
    runtime::process::{Images, left},
    service::Mode,
};

/// Bytes of what is said of a trouble.
const N_WORDS_MAX: usize = 1_024;

/// What a node can do, and how its changes are heard.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// As state was told last.
    known: Condition,
    changes: Option<watch::Receiver<Condition>>,
    /// To be used once the engine answers for the first time.
    images: Option<Images>,
}

impl Watched {
    /// Waits for a change.
    pub(super) async fn changed(&mut self) {
        if let Some(changes) = &mut self.changes
            && changes.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// The state directory is lost.
    pub(super) fn loss(&self) -> Option<DirLoss> {
        self.known.loss
    }
}

impl RealNode {
    /// Begins to look at what a real node can do. `has_engine`: its engine has answered.
    pub(super) fn watch_condition(&mut self, looked: Looked, images: Option<Images>, has_engine: bool) {
        let known = Condition { images: has_engine.then(String::new), ..Condition::default() };
        let (tx, changes) = watch::channel(known.clone());
        self.condition = Watched { known, changes: Some(changes), images };
        // It ends when this shard does not listen any more.
        godel_kit::task::spawn("agent.condition", condition::follow(looked, tx));
    }

    /// What a node is, and what it can do just now.
    pub(super) fn report(&self, def: &NodeDef, mode: Mode) -> v1::NodeReport {
        let Condition { trouble, images, .. } = &self.condition.known;
        let runs_images = images.as_ref().is_some_and(String::is_empty);
        let runtime = match mode {
            Mode::Simulated => v1::NodeRuntime::Simulated,
            Mode::Processes if runs_images => v1::NodeRuntime::Containers,
            Mode::Processes => v1::NodeRuntime::Processes,
        };
        v1::NodeReport {
            runtime: runtime.into(),
            trouble: cut(trouble),
            images_trouble: cut(images.as_deref().unwrap_or_default()),
            ..def.report()
        }
    }

    /// What the node can do has changed. Returns whether its state directory is lost now.
    fn take_condition(&mut self) -> bool {
        let Some(changes) = &mut self.condition.changes else { return false };
        let before = std::mem::replace(&mut self.condition.known, changes.borrow_and_update().clone());
        let now = &self.condition.known;
        match (before.trouble.as_str(), now.trouble.as_str()) {
            (before, now) if before == now => {}
            (_, "") => tracing::info!("the node can start running units again"),
            (_, why) => tracing::error!(why, "the node can start nothing"),
        }
        match (before.images.as_deref(), now.images.as_deref()) {
            (before, now) if before == now => {}
            (_, Some("")) => tracing::info!("the engine answers: units that have an image run as containers"),
            (_, why) => tracing::warn!(why, "the node can run no images"),
        }
        if now.images.is_some()
            && let (Some(home), Some(images)) = (&self.home, self.condition.images.take())
        {
            home.set_images(images);
            let home = Arc::clone(home);
            godel_kit::task::spawn(
                "agent.containers",
                async move { left::end_unknown_containers(&home).await },
            );
        }
        before.loss.is_none() && self.condition.known.loss.is_some()
    }
}

impl Shard {
    /// What the only node can do has changed: state is told.
    pub(super) fn on_condition(&mut self) {
        let is_lost = self.real.take_condition();
        if let Some(node) = self.nodes.first() {
            // A queue that is full is that of a session that is about to be lost: the next one begins with the same words.
            node.send(Message::Report(self.real.report(&node.def, self.mode)));
        }
        if is_lost && self.ends_by.is_none() {
            self.begin_to_end();
        }
    }
}

fn cut(words: &str) -> String {
    words[..words.floor_char_boundary(N_WORDS_MAX)].to_owned()
}
