//! Answers to transactions.

use godel_base::ids::Revision;
use godel_domain::txn::{TxnRefusal, TxnRefusalReason};
use godel_proto::v1;

/// Why the store refused a transaction. A reason that this version does not know counts as final.
pub fn txn_refusal(pb: v1::TxnRefusal) -> TxnRefusal {
    let reason = match pb.reason() {
        v1::TxnRefusalReason::Precondition => TxnRefusalReason::Precondition,
        v1::TxnRefusalReason::FutureRevision => TxnRefusalReason::FutureRevision,
        v1::TxnRefusalReason::RowConflict => TxnRefusalReason::RowConflict,
        v1::TxnRefusalReason::NodeChanged => TxnRefusalReason::NodeChanged,
        v1::TxnRefusalReason::Invalid | v1::TxnRefusalReason::Unspecified => TxnRefusalReason::Invalid,
        v1::TxnRefusalReason::Forbidden => TxnRefusalReason::Forbidden,
        v1::TxnRefusalReason::StoreFull => TxnRefusalReason::StoreFull,
        v1::TxnRefusalReason::StaleEpoch => TxnRefusalReason::StaleEpoch,
        v1::TxnRefusalReason::StoreChanged => TxnRefusalReason::StoreChanged,
    };
    let v1::TxnRefusal { reason: _, index, revision, message } = pb;
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    TxnRefusal { reason, index, revision: Revision(revision), message }
}
