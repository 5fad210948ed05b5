//! Nodes that sessions want the writer of node records to look at before its next scan.

use godel_base::ids::NodeId;
use godel_domain::node::Quarantine;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Nodes to be looked at, by what for.
#[derive(Default)]
pub(crate) struct DueNodes {
    looks: Mutex<Vec<NodeId>>,
    /// Nodes whose use is to be recorded.
    usages: Mutex<Vec<NodeId>>,
    offenders: Mutex<Vec<(NodeId, Quarantine)>>,
    news: Notify,
}

impl DueNodes {
    /// Asks the writer of node records to look at a node now.
    pub(crate) fn look_at(&self, node: NodeId) {
        self.looks.lock().push(node);
        self.wake_writer();
    }

    /// The use of a node is worth a record: the writer of node records takes it along when it looks at the leases.
    pub(crate) fn record_usage(&self, node: NodeId) {
        self.usages.lock().push(node);
    }

    /// Asks the writer of node records to quarantine a node.
    pub(crate) fn quarantine(&self, node: NodeId, quarantine: Quarantine) {
        self.offenders.lock().push((node, quarantine));
        self.wake_writer();
    }

    /// Something is to be looked at that sessions keep elsewhere.
    pub(crate) fn wake_writer(&self) {
        self.news.notify_one();
    }

    /// Waits until there may be nodes to look at.
    pub(crate) async fn wait(&self) {
        self.news.notified().await;
    }

    /// Nodes to look at since the last call.
    pub(crate) fn take_looks(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.looks.lock())
    }

    /// Nodes whose use is to be recorded since the last call.
    pub(crate) fn take_usages(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.usages.lock())
    }

    /// Nodes to be quarantined since the last call.
    pub(crate) fn take_offenders(&self) -> Vec<(NodeId, Quarantine)> {
        std::mem::take(&mut *self.offenders.lock())
    }
}
