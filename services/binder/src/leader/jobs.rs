//! Requests to evict: each is answered once all its parts are durable.

use godel_domain::{
    ids::{Revision, UnitId},
    running_units::Evict,
};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;
use tonic::Status;

/// Running units in one eviction operation.
const N_EVICT_PART: usize = 16_384;

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobId(pub(crate) u64);

impl JobId {
    /// Nobody waits for an answer.
    pub(crate) const NONE: Self = Self(0);
}

pub(crate) type Reply = oneshot::Sender<Result<Revision, Status>>;

#[derive(Debug)]
struct Job {
    n_left: usize,
    revision: Revision,
    reply: Reply,
}

/// Requests under way.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: FxHashMap<JobId, Job>,
    last: u64,
}

impl Jobs {
    /// A request of so many parts.
    pub(crate) fn open(&mut self, n_parts: usize, reply: Reply) -> JobId {
        self.last += 1;
        let id = JobId(self.last);
        self.jobs.insert(id, Job { n_left: n_parts, revision: Revision(0), reply });
        id
    }

    /// A part is durable since `revision`; the last one answers.
    pub(crate) fn part_done(&mut self, id: JobId, revision: Revision) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.revision = job.revision.max(revision);
        job.n_left = job.n_left.saturating_sub(1);
        if job.n_left == 0
            && let Some(job) = self.jobs.remove(&id)
        {
            // The caller may have gone.
            let _ = job.reply.send(Ok(job.revision));
        }
    }

    /// A part cannot be done: the request fails.
    pub(crate) fn fail(&mut self, id: JobId, status: Status) {
        if let Some(job) = self.jobs.remove(&id) {
            let _ = job.reply.send(Err(status));
        }
    }

    /// All fail.
    pub(crate) fn fail_all(&mut self, status: &Status) {
        for (_, job) in self.jobs.drain() {
            let _ = job.reply.send(Err(status.clone()));
        }
    }
}

/// An eviction in parts of bounded size.
pub(super) fn split(unit: UnitId, evict: Evict) -> Vec<(UnitId, Evict)> {
    let incarnation = |idx: usize| evict.incarnations.get(idx).copied().unwrap_or(0);
    evict
        .ordinals
        .chunks(N_EVICT_PART)
        .enumerate()
        .map(|(part, ordinals)| {
            let start = part * N_EVICT_PART;
            let incarnations = (start..start + ordinals.len()).map(incarnation).collect();
            let evict = Evict {
                ordinals: ordinals.to_vec(),
                incarnations,
                reason: evict.reason,
                by: evict.by.clone(),
                preemptor: evict.preemptor,
            };
            (unit, evict)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_answers() {
        let mut jobs = Jobs::default();
        let (reply, mut answer) = oneshot::channel();
        let id = jobs.open(2, reply);
        jobs.part_done(id, Revision(7));
        assert!(answer.try_recv().is_err());
        jobs.part_done(id, Revision(5));
        assert_eq!(answer.try_recv().unwrap().unwrap(), Revision(7));
        jobs.part_done(id, Revision(9));

        let (reply, mut answer) = oneshot::channel();
        let id = jobs.open(1, reply);
        jobs.fail(id, Status::aborted("no"));
        assert!(answer.try_recv().unwrap().is_err());
    }
}
