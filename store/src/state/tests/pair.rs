//! The writer's state and the readers' one, which must be the same after each transaction.

use bytes::Bytes;
use godel_proto::raw;

use super::{
    model,
    writes::{internal, leased, put_lease, put_node, put_report, put_unit},
};
use crate::{
    feed::Published,
    role::Role,
    state::{Committed, RefusalReason, State, TxnOutcome, TxnRefusal},
};

/// A state and what readers make of its commits.
#[derive(Default)]
pub(super) struct Pair {
    pub(super) head: State,
    visible: State,
    sequence: u64,
    pub(super) commits: Vec<Published>,
}

impl Pair {
    /// With both leases held under epoch 1, units 1 and 2 and nodes 1 and 2.
    pub(super) fn populated() -> Self {
        let mut pair = Self::default();
        let leases = [("dispatcher", "d"), ("binder", "b"), ("yarn", "y"), ("rescheduler", "r")];
        let leases = leases.map(|(lease, holder)| put_lease(lease, holder, 1));
        pair.ok(Role::State, internal(leases.to_vec()));
        pair.ok(Role::Agent, internal(vec![put_node(1), put_report(1), put_node(2), put_report(2)]));
        pair.by("dispatcher", vec![put_unit(1), put_unit(2)]).unwrap();
        pair
    }

    pub(super) fn run(&mut self, role: Role, txn: raw::TxnRequest) -> Result<Committed, TxnRefusal> {
        let before = self.head.clone();
        match self.head.transact(txn, role, 5) {
            Ok(TxnOutcome::Applied(published)) => {
                let again = Published::decode(published.encoded.clone()).unwrap();
                assert_eq!(again, published);
                self.visible.replay(&published);
                assert!(self.visible == self.head, "readers see another state");
                let commit_time_ms = published.commit.commit_time_ms;
                let revision = published.revision();
                self.commits.push(published);
                Ok(Committed { revision, commit_time_ms })
            }
            Ok(TxnOutcome::Repeated(committed)) => Ok(committed),
            Err(refusal) => {
                assert!(self.head == before, "a refused transaction changed something");
                assert_eq!(self.head.rows().n_rows(), before.rows().n_rows());
                assert_eq!(self.head.live_bytes(), before.live_bytes());
                Err(refusal)
            }
        }
    }

    pub(super) fn ok(&mut self, role: Role, txn: raw::TxnRequest) -> Committed {
        self.run(role, txn).unwrap()
    }

    /// A transaction of the model; whether it was accepted.
    pub(super) fn steps(&mut self, steps: &[model::Step]) -> bool {
        let ops = steps.iter().map(model::Step::op).collect();
        let result = match steps[0].writer() {
            "agent" => self.run(Role::Agent, internal(ops)),
            "admin" => self.run(Role::Admin, internal(ops)),
            lease => self.by(lease, ops),
        };
        result.is_ok()
    }

    pub(super) fn by(&mut self, lease: &str, ops: Vec<Bytes>) -> Result<Committed, TxnRefusal> {
        self.sequence += 1;
        self.run(Role::Leased, leased(lease, 1, self.sequence, ops))
    }
}

pub(super) fn reason(result: Result<Committed, TxnRefusal>) -> Option<RefusalReason> {
    result.err().map(|refusal| refusal.reason)
}
