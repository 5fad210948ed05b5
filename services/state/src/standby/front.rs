//! What a state that follows does with a call: it answers what reads records, and passes on the rest to the leader, or to the member that it is for.

use godel_base::ids::Epoch;
use godel_kit::{
    clock::SharedClock,
    server::{Admission, ForwardTo, Moved},
    status,
};
use godel_membership::{
    front_door::{self, Forwarding, ServingPart},
    leases::Leases,
};
use godel_store::{Standing, Store};
use godel_wire::from_proto;
use http::HeaderMap;
use tonic::Status;

use crate::freshness::{self, RevisionQuestions};

/// Where calls go that come to a state which follows.
pub(super) struct StandbyFront {
    /// The address of this state.
    pub(super) own: String,
    pub(super) store: Store,
    pub(super) clock: SharedClock,
    pub(super) questions: RevisionQuestions,
}

/// The address of the state that leads, which is another one than that at the address `own`; `None`: it is not known, or nobody does.
pub(super) fn leader_address(store: &Store, own: &str) -> Option<String> {
    match &*store.standing().borrow() {
        Standing::Follows(Some(holder)) if !["", own].contains(&holder.address.as_str()) => {
            Some(holder.address.clone())
        }
        Standing::Follows(Some(_)) => None,
        Standing::Follows(None) | Standing::Leads(_) | Standing::Ended(_) => None,
    }
}

impl ForwardTo for StandbyFront {
    fn address(&self, part: ServingPart, scheduler: Option<&str>) -> Result<String, Status> {
        if part == ServingPart::State {
            return leader_address(&self.store, &self.own).ok_or_else(|| status::not_leader(None));
        }
        // Which leases have run out, the leader writes down.
        let (records, floor) = self.store.read(|state| {
            let records: Vec<_> = state.leases().cloned().collect();
            (records, Epoch(state.epoch_floor()))
        });
        let records = records.into_iter().filter_map(|record| from_proto::lease(record).ok());
        let now = self.clock.now();
        let member = front_door::member(part, scheduler, &Leases::load(records, floor, now), now);
        member.map(|lease| lease.address).map_err(|nobody| status::no_leader(&nobody.lease))
    }

    fn forwarding(&self, path: &str) -> Forwarding {
        front_door::forwarding_of_follower(path)
    }

    fn moved(&self, part: ServingPart) -> Option<Moved> {
        if part != ServingPart::State {
            return None;
        }
        let mut standing = self.store.standing();
        let number = |standing: &Standing| match standing {
            Standing::Follows(holder) => holder.as_ref().map(|holder| holder.number),
            Standing::Leads(_) | Standing::Ended(_) => None,
        };
        let now = number(&standing.borrow_and_update());
        Some(Box::pin(async move {
            // The store may be closed, and then nobody leads.
            let _ = standing.wait_for(|standing| number(standing) != now).await;
        }))
    }

    fn admit(&self, path: &str, headers: &HeaderMap) -> Option<Admission> {
        if !front_door::reads_records(path) {
            return None;
        }
        Some(freshness::admit_to_follower(self.store.clone(), self.questions.clone(), headers))
    }
}

/// Where calls go that come to the state that leads, where another one may take its place.
pub(crate) struct LeaderFront<F> {
    pub(crate) store: Store,
    pub(crate) members: F,
}

impl<F: ForwardTo> ForwardTo for LeaderFront<F> {
    fn address(&self, part: ServingPart, scheduler: Option<&str>) -> Result<String, Status> {
        self.members.address(part, scheduler)
    }

    fn admit(&self, path: &str, headers: &HeaderMap) -> Option<Admission> {
        freshness::admit_to_leader(&self.store, path, headers)
    }
}
