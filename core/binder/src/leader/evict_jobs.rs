//! Requests to evict: each is answered once all its parts are durable.

use godel_base::ids::{Revision, UnitId};
use godel_domain::running_units::Evict;
use rustc_hash::FxHashMap;

use super::{BinderOutbox, EvictFailure};

/// Running units in one eviction operation.
const N_EVICT_PART: usize = 16_384;

/// Names a request to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

impl JobId {
    /// Nobody waits for an answer.
    pub(super) const NONE: Self = Self(0);
}

#[derive(Debug)]
struct EvictJob {
    n_left: usize,
    revision: Revision,
}

/// Requests under way.
#[derive(Debug, Default)]
pub(super) struct EvictJobs {
    jobs: FxHashMap<JobId, EvictJob>,
}

impl EvictJobs {
    /// Notes a request of `n_parts` parts.
    pub(super) fn open(&mut self, id: JobId, n_parts: usize) {
        self.jobs.insert(id, EvictJob { n_left: n_parts, revision: Revision(0) });
    }

    /// A part is durable since `revision`; the last one answers.
    pub(super) fn part_done(&mut self, id: JobId, revision: Revision, out: &mut impl BinderOutbox) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.revision = job.revision.max(revision);
        job.n_left = job.n_left.saturating_sub(1);
        if job.n_left == 0
            && let Some(job) = self.jobs.remove(&id)
        {
            out.evicted(id, Ok(job.revision));
        }
    }

    /// A part cannot be done: the request fails.
    pub(super) fn fail(&mut self, id: JobId, why: EvictFailure, out: &mut impl BinderOutbox) {
        if self.jobs.remove(&id).is_some() {
            out.evicted(id, Err(why));
        }
    }

    /// All requests fail, as this binder leads no longer.
    pub(super) fn fail_all(&mut self, out: &mut impl BinderOutbox) {
        let mut ids: Vec<JobId> = self.jobs.drain().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| out.evicted(id, Err(EvictFailure::NotLeader)));
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
    use super::{super::tests::Sent, *};

    #[test]
    fn the_last_part_answers() {
        let (mut jobs, mut sent) = (EvictJobs::default(), Sent::default());
        jobs.open(JobId(1), 2);
        jobs.part_done(JobId(1), Revision(7), &mut sent);
        assert!(sent.evicted.is_empty());
        jobs.part_done(JobId(1), Revision(5), &mut sent);
        jobs.part_done(JobId(1), Revision(9), &mut sent);
        assert_eq!(sent.evicted, [(JobId(1), Ok(Revision(7)))]);

        jobs.open(JobId(2), 1);
        let refused = EvictFailure::Refused("no".to_owned());
        jobs.fail(JobId(2), refused.clone(), &mut sent);
        assert_eq!(sent.evicted[1..], [(JobId(2), Err(refused))]);
    }
}
