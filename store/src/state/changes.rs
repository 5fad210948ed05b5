//! Lines of the change log: what a transaction writes beside its own operations, for those on whose behalf it is made.

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_proto::{raw, v1};

use super::transact::{TxnRefusal, invalid};

/// Most lines of the change log that one transaction writes.
const N_CHANGES_MAX: usize = 1_024;

/// The number of the first line of the change log that the transaction of a revision writes; those that follow count up.
pub fn first_change_id(revision: Revision) -> u64 {
    revision.0.saturating_mul(N_CHANGES_MAX as u64)
}

/// The lines of a transaction for the change log. A number has the revision in it, so that none is given twice and the later one is the higher.
pub(super) fn change_ops(
    revision: Revision,
    changes: Vec<v1::ChangeRecord>,
) -> Result<Vec<Bytes>, TxnRefusal> {
    if changes.len() > N_CHANGES_MAX {
        return Err(invalid(format!("changes: {}; at most {N_CHANGES_MAX}", changes.len())));
    }
    let numbered = (first_change_id(revision)..).zip(changes);
    let op = |(change_id, change): (u64, v1::ChangeRecord)| {
        raw::encode_op(v1::op::Op::PutChange(v1::ChangeRecord { change_id, ..change }))
    };
    Ok(numbered.map(op).collect())
}
