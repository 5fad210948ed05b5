//! What is refused because those who read it could not: before the store's writer sees it.
//!
//! Every record that a transaction puts is read once here, by the functions that followers read with. Columns of rows are left to the
//! store: it parses them anyway, with the same functions, so they are read once. What can be read and makes no sense is refused here
//! whatever it is: a store that holds such a record already is read as ever.

use godel_base::ids::Revision;
use godel_proto::raw;
use godel_store::{RefusalReason, TxnRefusal};
use godel_wire::{BadField, from_proto};

/// Whether readers can read all that a transaction writes.
///
/// # Errors
/// `INVALID`, with the index of the operation and the path of the field, as `ops[0].put_queue.policy`.
pub(crate) fn readable(txn: &raw::TxnRequest) -> Result<(), TxnRefusal> {
    for (index, op) in txn.ops.iter().enumerate() {
        let checked = if from_proto::changes_rows(op) {
            from_proto::check_rows_op(op)
        } else {
            from_proto::check_op(op)
        };
        checked.map_err(|bad| {
            let bad = bad.under(&format!("ops[{index}]"));
            TxnRefusal {
                reason: RefusalReason::Invalid,
                index: u32::try_from(index).unwrap_or(u32::MAX),
                revision: Revision(0),
                message: bad.to_string(),
            }
        })?;
    }
    for (index, change) in txn.changes.iter().enumerate() {
        let read = from_proto::change_line(change.clone());
        let done = read.and_then(|line| match line.is_refused() {
            true => Err(BadField::new("refused", "a transaction does what its call asked for")),
            false => Ok(()),
        });
        done.map_err(|bad| {
            let bad = bad.under(&format!("changes[{index}]"));
            let (reason, message) = (RefusalReason::Invalid, bad.to_string());
            TxnRefusal { reason, index: 0, revision: Revision(0), message }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
