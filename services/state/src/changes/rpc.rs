//! `ChangeService`: who changed what, and what members report of calls that they refused.

use std::sync::Arc;

use godel_domain::{
    change_line::{ChangeLine, OBJECT_LEN_MAX, WORD_LEN_MAX},
    names,
};
use godel_identity::change_log::ChangeFilter;
use godel_kit::{CancellationToken, clock::SharedClock, security::person_call};
use godel_proto::v1;
use godel_wire::{BadField, from_proto};
use tonic::{Request, Response, Status};

use super::{
    ChangeLog,
    list::{ChangeCursor, WantedChanges, page},
    watch::{ChangeStream, ChangeWatch},
};
use crate::{
    paging::{self, Token},
    sessions::NodeSessions,
};

/// Lines on a page unless asked otherwise, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 500;
/// Lines in one report.
const N_REPORTED_MAX: usize = 256;

/// The service.
pub(crate) struct ChangeRpc {
    hub: Arc<NodeSessions>,
    log: ChangeLog,
    clock: SharedClock,
    stop: CancellationToken,
}

impl ChangeRpc {
    pub(crate) fn new(
        hub: Arc<NodeSessions>,
        log: ChangeLog,
        clock: SharedClock,
        stop: CancellationToken,
    ) -> Self {
        Self { hub, log, clock, stop }
    }
}

#[tonic::async_trait]
impl v1::change_service_server::ChangeService for ChangeRpc {
    type WatchChangesStream = ChangeStream;

    async fn list_changes(
        &self,
        request: Request<v1::ListChangesRequest>,
    ) -> Result<Response<v1::ListChangesResponse>, Status> {
        let reader = person_call(&request).principal().cloned();
        let v1::ListChangesRequest { principal, object, since_ms, refused_only, page_size, page_token } =
            request.into_inner();
        check_filter(&principal, &object)?;
        let n_max = paging::size(page_size, PAGE_DEFAULT, PAGE_MAX)?;
        let bad = || BadField::new("page_token", "is not a token of a previous page of this list");
        let token = Token::parse(&page_token).map_err(|_| bad())?;
        let store = paging::of_this_store(token.as_ref(), self.hub.store_id())?;
        let from = match &token {
            None => ChangeCursor::default(),
            Some(token) => ChangeCursor::parse(&token.last).ok_or_else(bad)?,
        };
        let filter = ChangeFilter {
            principal: &principal,
            object: &object,
            is_refused_only: refused_only,
            reader: reader.as_deref(),
        };
        let (changes, next) = page(&self.hub.store, &WantedChanges { filter, since_ms, n_max }, from);
        let next = next.map(|next| Token { store, revision: 0, kind: 0, last: next.to_string() }.to_string());
        Ok(Response::new(v1::ListChangesResponse { changes, next_page_token: next.unwrap_or_default() }))
    }

    async fn watch_changes(
        &self,
        request: Request<v1::WatchChangesRequest>,
    ) -> Result<Response<ChangeStream>, Status> {
        let reader = person_call(&request).principal().cloned();
        let v1::WatchChangesRequest { principal, object, refused_only } = request.into_inner();
        check_filter(&principal, &object)?;
        let (store, clock) = (self.hub.store.clone(), Arc::clone(&self.clock));
        let watch = ChangeWatch { store, clock, principal, object, is_refused_only: refused_only, reader };
        Ok(Response::new(watch.start(self.stop.clone())))
    }

    async fn report_calls(
        &self,
        request: Request<v1::ReportCallsRequest>,
    ) -> Result<Response<v1::ReportCallsResponse>, Status> {
        let v1::ReportCallsRequest { calls, more_calls } = request.into_inner();
        if calls.len() > N_REPORTED_MAX {
            let why = format!("{}; at most {N_REPORTED_MAX}", calls.len());
            return Err(BadField::new("calls", why).into());
        }
        let read = |(idx, call): (usize, v1::ChangeRecord)| {
            from_proto::change_line(call).map_err(|bad| bad.under(&format!("calls[{idx}]")))
        };
        let lines: Result<Vec<ChangeLine>, BadField> = calls.into_iter().enumerate().map(read).collect();
        let now_ms = u64::try_from(self.hub.wall_ms()).unwrap_or(0);
        self.log.note(lines?, more_calls, now_ms);
        Ok(Response::new(v1::ReportCallsResponse {}))
    }
}

fn check_filter(principal: &str, object: &str) -> Result<(), BadField> {
    for (path, text, len_max) in [("principal", principal, WORD_LEN_MAX), ("object", object, OBJECT_LEN_MAX)]
    {
        names::text(text, len_max).map_err(|bad| BadField::new(path, bad.to_string()))?;
    }
    Ok(())
}
