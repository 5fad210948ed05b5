//! What the RPC handlers ask of the loop that owns the dispatcher's state.

use godel_base::ids::{Revision, UnitId};
use godel_core_dispatcher::{
    Attach, Dispatcher, ModeChoice, SchedulerCounts, SessionId, leader::UnitChange, read::Summary,
    record_changes::Edit,
};
use godel_domain::{
    change_line::CallCause,
    pause::Scope,
    sight::Sight,
    unit::UnitSpec,
    unit_caller::UnitCaller,
    unit_report::{RoomReport, UnitReport},
};
use godel_kit::{
    CancellationToken,
    room::{MessageSender, Share},
};
use godel_proto::v1;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tonic::Status;

use crate::{
    admission_room::RoomTaken,
    call_limiter::CallPermit,
    engine::{Editor, EngineOutbox},
};

/// Where an answer goes.
pub(crate) type CallReply<T> = oneshot::Sender<T>;

/// A request to the loop.
pub(crate) enum LeaderRequest {
    /// Admitted units.
    Submit(Vec<PendingSubmission>),
    Change(UnitChange<EngineOutbox>),
    /// A change of queues and other records, made together or not at all.
    Edit(Edit, Editor),
    /// A look at the state, between two steps of the loop.
    Read(Box<dyn FnOnce(&Dispatcher) + Send>),
    Watch(WatchCall),
    Attach(AttachCall),
    FromScheduler(SessionId, SchedulerMessage),
    Detach(SessionId),
    /// What schedulers counted.
    Counted(Vec<SchedulerCounts>),
    SetMode {
        choice: ModeChoice,
        caller: ChangeCaller,
    },
    /// Whether evictions were paused.
    ResumeEvictions(CallReply<(bool, Summary)>),
    /// Something to be paused, or its pause to be ended.
    SetPause {
        scope: Scope,
        paused: bool,
        reason: String,
        caller: ChangeCaller,
    },
}

/// Who asked for the change of a unit, of the partition mode or of a pause.
pub(crate) struct ChangeCaller {
    /// For the change log.
    pub(crate) cause: Option<CallCause>,
    /// `None`: a pause was so already.
    pub(crate) reply: CallReply<Result<Option<Revision>, Status>>,
}

/// An admitted unit on its way to the store.
pub(crate) struct PendingSubmission {
    /// Its id is given by the loop.
    pub(crate) spec: UnitSpec,
    /// Who submits it.
    pub(crate) by: UnitCaller,
    pub(crate) waiter: Submitter,
    /// When it was admitted.
    pub(crate) since: Instant,
    /// Its share of the admission queue, given back when its answer has been read.
    pub(crate) room: RoomTaken,
    /// Of a call.
    pub(crate) pass: Option<CallPermit>,
}

/// Who waits for a unit to become durable.
pub(crate) enum Submitter {
    /// A unary call.
    Unary(CallReply<Result<SubmittedUnit, Refused>>),
    /// An item of a stream.
    Stream { index: u64, done: mpsc::UnboundedSender<StreamItem> },
}

/// An item of a stream is done, or has to be tried again.
pub(crate) struct StreamItem {
    pub(crate) index: u64,
    pub(crate) result: Result<SubmittedUnit, Refused>,
    pub(crate) room: Option<RoomTaken>,
}

/// A durable unit.
#[derive(Clone, Debug)]
pub(crate) struct SubmittedUnit {
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

/// A watch to be opened.
pub(crate) struct WatchCall {
    pub(crate) namespace: String,
    /// Empty: every unit.
    pub(crate) name: String,
    /// Units that the reader may see; others are not there for it.
    pub(crate) sight: Sight,
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
    pub(crate) reply: CallReply<Result<SessionId, Status>>,
}

/// What a scheduler says on its stream.
pub(crate) enum SchedulerMessage {
    Credits(u32),
    Reports(Vec<UnitReport>),
    Rooms(Vec<RoomReport>),
}
