//! Requests to move running units: each move is judged and written by itself, and the request answered once all are settled.

use std::collections::VecDeque;

use godel_base::ids::Revision;
use godel_domain::{
    decision::RejectionReason,
    requested_move::{MadeMove, MoveRefusal, RequestedMove},
};
use rustc_hash::FxHashMap;

use super::{BinderOutbox, EvictFailure, evict_jobs::JobId};
use crate::MoveTerms;

/// Moves that wait to be judged or written; those beyond are refused for now.
const N_WAITING_MAX: usize = 65_536;

/// A move of a request that still has to be judged, or written.
#[derive(Debug)]
pub(super) struct MovePart {
    pub(super) job: JobId,
    /// Position in the request.
    idx: usize,
    pub(super) asked: RequestedMove,
    pub(super) attempts: u32,
}

/// What became of the moves of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// Of each, in the order of the request: how it is made, or why it is not moved.
    pub moves: Vec<Result<MadeMove, MoveRefusal>>,
    /// From here on all of it is durable.
    pub revision: Revision,
}

#[derive(Debug)]
struct MoveJob {
    terms: MoveTerms,
    answers: Vec<Option<Result<MadeMove, MoveRefusal>>>,
    n_left: usize,
    revision: Revision,
}

/// Requests under way.
#[derive(Debug, Default)]
pub(super) struct MoveJobs {
    jobs: FxHashMap<JobId, MoveJob>,
    ready: VecDeque<MovePart>,
    waiting: Vec<(Revision, MovePart)>,
}

impl MoveJobs {
    /// Takes a request; its moves are judged once `from` is read, if that is later than `read`.
    pub(super) fn open(
        &mut self,
        id: JobId,
        terms: MoveTerms,
        moves: Vec<RequestedMove>,
        from: Revision,
        read: Revision,
        out: &mut impl BinderOutbox,
    ) {
        let is_full = self.ready.len() + self.waiting.len() + moves.len() > N_WAITING_MAX;
        if moves.is_empty() || is_full {
            let full = || MoveRefusal {
                reason: RejectionReason::Stale,
                later: true,
                detail: "too many moves wait at the binder".to_owned(),
            };
            let moves = moves.iter().map(|_| Err(full())).collect();
            return out.moved(id, Ok(MoveReport { moves, revision: read }));
        }
        let answers = vec![None; moves.len()];
        self.jobs.insert(id, MoveJob { terms, n_left: moves.len(), answers, revision: Revision(0) });
        let parts =
            moves.into_iter().enumerate().map(|(idx, asked)| MovePart { job: id, idx, asked, attempts: 0 });
        if from > read {
            self.waiting.extend(parts.map(|part| (from, part)));
        } else {
            self.ready.extend(parts);
        }
    }

    /// Something could be judged now.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Everything up to `revision` has been read.
    pub(super) fn on_read(&mut self, revision: Revision) {
        if !self.waiting.is_empty() {
            let ready = self.waiting.extract_if(.., |(at, _)| *at <= revision);
            self.ready.extend(ready.map(|(_, part)| part));
        }
    }

    /// Takes the next move to be judged, with the terms of its request.
    pub(super) fn pop(&mut self) -> Option<(MovePart, MoveTerms)> {
        while let Some(part) = self.ready.pop_front() {
            if let Some(job) = self.jobs.get(&part.job) {
                return Some((part, job.terms.clone()));
            }
        }
        None
    }

    /// A move is to be judged again: at once, or once `from` is read.
    pub(super) fn put_back(&mut self, part: MovePart, from: Option<Revision>) {
        match from {
            Some(from) => self.waiting.push((from, part)),
            None => self.ready.push_back(part),
        }
    }

    /// A move is settled as of `revision`; the last one of a request answers it.
    pub(super) fn settle(
        &mut self,
        part: &MovePart,
        answer: Result<MadeMove, MoveRefusal>,
        revision: Revision,
        out: &mut impl BinderOutbox,
    ) {
        let Some(job) = self.jobs.get_mut(&part.job) else { return };
        let Some(place) = job.answers.get_mut(part.idx).filter(|known| known.is_none()) else { return };
        *place = Some(answer);
        job.revision = job.revision.max(revision);
        job.n_left = job.n_left.saturating_sub(1);
        if job.n_left == 0
            && let Some(job) = self.jobs.remove(&part.job)
        {
            let moves = job.answers.into_iter().flatten().collect();
            out.moved(part.job, Ok(MoveReport { moves, revision: job.revision }));
        }
    }

    /// All requests fail, as this binder leads no longer.
    pub(super) fn fail_all(&mut self, out: &mut impl BinderOutbox) {
        self.ready.clear();
        self.waiting.clear();
        let mut ids: Vec<JobId> = self.jobs.drain().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| out.moved(id, Err(EvictFailure::NotLeader)));
    }
}
