//! What the RPC handlers ask of the loop that owns the dispatcher's state.

use std::collections::BTreeMap;

use godel_base::ids::{Epoch, NodeId, Revision, UnitId};
use godel_core_dispatcher::{
    Attach, ModeChoice, SchedulerCounts, SessionId,
    history::{HistoryChunk, HistoryFilter},
    leader::UnitChange,
    read::{ListFilter, SchedulerView, Summary},
    record_changes::Edit,
};
use godel_domain::{
    change::{Partition, PartitionMode},
    pause::{Pause, Scope},
    unit::UnitSpec,
    unit_report::{RoomReport, UnitReport},
};
use godel_kit::{
    CancellationToken,
    room::{MessageSender, Share},
    status,
};
use godel_proto::v1;
use godel_wire::BadField;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::Instant,
};
use tonic::Status;

use crate::{
    call_limiter::CallPermit,
    engine::{Editor, EngineOutbox},
};

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// A request to the loop.
pub(crate) enum LeaderRequest {
    /// Admitted units.
    Submit(Vec<PendingSubmission>),
    Change(UnitChange<EngineOutbox>),
    Get {
        namespace: String,
        name: String,
        page: RowsPage,
        reply: Reply<Result<v1::GetUnitResponse, Status>>,
    },
    List(ListCall),
    ListHistory(HistoryCall),
    Watch(WatchCall),
    Attach(AttachCall),
    FromScheduler(SessionId, SchedulerMessage),
    Detach(SessionId),
    Edit(EditCall),
    GetQueue {
        name: String,
        reply: Reply<Option<v1::QueueStatus>>,
    },
    ListQueues(PageCall<v1::QueueStatus>),
    GetPriorityClass {
        name: String,
        reply: Reply<Option<v1::PriorityClassStatus>>,
    },
    ListPriorityClasses(PageCall<v1::PriorityClassStatus>),
    GetBudget {
        name: String,
        reply: Reply<Option<v1::DisruptionBudgetStatus>>,
    },
    ListBudgets(PageCall<v1::DisruptionBudgetStatus>),
    GetReservation {
        name: String,
        reply: Reply<Option<v1::ReservationStatus>>,
    },
    ListReservations(PageCall<v1::ReservationStatus>),
    Schedulers(Reply<Schedulers>),
    /// What schedulers counted.
    Counted(Vec<SchedulerCounts>),
    SetMode {
        choice: ModeChoice,
        reply: Reply<Result<Option<Revision>, Status>>,
    },
    Drain(NodeId, Reply<v1::GetDrainResponse>),
    /// Whether evictions were paused.
    ResumeEvictions(Reply<(bool, Summary)>),
    SetPause(PauseCall),
    Status(Reply<StatusAnswer>),
}

/// What the dispatcher's status is made of.
pub(crate) struct StatusAnswer {
    pub(crate) summary: Summary,
    pub(crate) pauses: Vec<Pause>,
    pub(crate) epoch: Epoch,
    /// As committed.
    pub(crate) partition: Partition,
    /// What is bound asks for, and what all nodes have.
    pub(crate) allocated: (BTreeMap<String, i64>, BTreeMap<String, i64>),
}

/// An admitted unit on its way to the store.
pub(crate) struct PendingSubmission {
    /// Its id is given by the loop.
    pub(crate) spec: UnitSpec,
    pub(crate) waiter: Submitter,
    /// When it was admitted.
    pub(crate) since: Instant,
    /// Its share of the admission queue, given back when its answer has been read.
    pub(crate) room: OwnedSemaphorePermit,
    /// Of a call.
    pub(crate) pass: Option<CallPermit>,
}

/// Who waits for a unit to become durable.
pub(crate) enum Submitter {
    /// A unary call.
    Unary(Reply<Result<Submitted, Refused>>),
    /// An item of a stream.
    Stream { index: u64, done: mpsc::UnboundedSender<StreamItem> },
}

/// An item of a stream is done, or has to be tried again.
pub(crate) struct StreamItem {
    pub(crate) index: u64,
    pub(crate) result: Result<Submitted, Refused>,
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

/// A durable unit.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    pub(crate) unit: UnitId,
    /// For unary calls only.
    pub(crate) uid: String,
    pub(crate) revision: Revision,
    /// Why no node could ever hold it; for unary calls only.
    pub(crate) infeasible: String,
    /// What may not be meant; for unary calls only.
    pub(crate) warnings: Vec<String>,
    pub(crate) duplicate: bool,
}

/// Why a unit did not become durable.
pub(crate) enum Refused {
    /// For good.
    Status(Status),
    /// There is no room now: the unit, to be tried again.
    Full(Box<PendingSubmission>, Status),
}

/// A change of queues and priority classes, made together or not at all.
pub(crate) struct EditCall {
    pub(crate) edit: Edit,
    pub(crate) editor: Editor,
}

/// A page of a list of records, in order of name.
pub(crate) struct PageCall<T> {
    /// The last name of the page before.
    pub(crate) after: String,
    pub(crate) n_max: usize,
    pub(crate) reply: Reply<Page<T>>,
}

pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// Name of the last item; empty on the last page.
    pub(crate) next: String,
    pub(crate) total: usize,
    pub(crate) revision: Revision,
}

/// Something to be paused, or its pause to be ended.
pub(crate) struct PauseCall {
    pub(crate) scope: Scope,
    pub(crate) paused: bool,
    pub(crate) reason: String,
    /// `None`: it was so already.
    pub(crate) reply: Reply<Result<Option<Revision>, Status>>,
}

/// A page of a unit's running units.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsPage {
    /// At most so many.
    pub(crate) n_max: usize,
    /// The unit of the page before, and the ordinal to go on at; `None`: the first page.
    pub(crate) after: Option<(UnitId, u32)>,
}

impl RowsPage {
    /// The token of the page that begins at an ordinal.
    pub(crate) fn token(unit: UnitId, ordinal: u32) -> String {
        format!("{unit}.{ordinal}")
    }

    /// What [`RowsPage::token`] made; `None` if it did not.
    pub(crate) fn parse(token: &str) -> Option<(UnitId, u32)> {
        let (unit, ordinal) = token.split_once('.')?;
        Some((UnitId(unit.parse().ok()?), ordinal.parse().ok()?))
    }

    /// The ordinal that the page begins at.
    pub(crate) fn from(&self, unit: UnitId) -> Result<u32, Status> {
        match self.after {
            None => Ok(0),
            Some((of, ordinal)) if of == unit => Ok(ordinal),
            Some(_) => {
                let description = "the token belongs to another unit that had this name: start again";
                Err(status::invalid_argument([BadField::new("page_token", description)]))
            }
        }
    }
}

/// A bounded part of a list.
pub(crate) struct ListCall {
    pub(crate) filter: ListFilter,
    /// Name of a node of the filter; empty: none.
    pub(crate) node: String,
    pub(crate) after: String,
    pub(crate) n_scan: usize,
    pub(crate) n_units: usize,
    pub(crate) reply: Reply<Result<ListPart, Status>>,
}

/// A bounded part of a list of ended units.
pub(crate) struct HistoryCall {
    pub(crate) filter: HistoryFilter,
    pub(crate) before: Option<UnitId>,
    pub(crate) n_scan: usize,
    pub(crate) n_units: usize,
    pub(crate) reply: Reply<HistoryChunk>,
}

pub(crate) struct ListPart {
    pub(crate) units: Vec<v1::Unit>,
    pub(crate) n_matched: u32,
    pub(crate) next: String,
    pub(crate) total: Option<u64>,
    pub(crate) revision: Revision,
}

/// A watch to be opened.
pub(crate) struct WatchCall {
    pub(crate) namespace: String,
    /// Empty: every unit.
    pub(crate) name: String,
    /// 0: the present state first.
    pub(crate) from: Revision,
    pub(crate) messages: MessageSender<v1::WatchUnitsResponse, Status>,
    /// The reader's, for messages that it has not read.
    pub(crate) share: Share,
}

/// A scheduler's stream to be opened.
pub(crate) struct AttachCall {
    /// Its session is given by the loop.
    pub(crate) attach: Attach,
    pub(crate) messages: mpsc::Sender<Result<v1::AttachResponse, Status>>,
    /// Cancelled when the loop has done with the stream.
    pub(crate) over: CancellationToken,
    pub(crate) reply: Reply<Result<SessionId, Status>>,
}

/// What a scheduler says on its stream.
pub(crate) enum SchedulerMessage {
    Credits(u32),
    Reports(Vec<UnitReport>),
    Rooms(Vec<RoomReport>),
}

pub(crate) struct Schedulers {
    pub(crate) views: Vec<SchedulerView>,
    pub(crate) mode: PartitionMode,
}
