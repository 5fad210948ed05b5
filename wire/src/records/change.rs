//! What the lines of the change log must be. State alone reads what they say, so that only their keys are read as records.

use godel_domain::{
    change_line::{CallCause, ChangeLine, N_OBJECTS_MAX, OBJECT_LEN_MAX, WORD_LEN_MAX},
    names,
    records::StoredKey,
};
use godel_proto::v1;

use crate::{BadField, from_proto::check::sense::until};

pub(super) fn key(pb: &v1::ChangeRecord) -> Result<StoredKey, BadField> {
    if pb.change_id == 0 {
        return Err(BadField::new("change_id", "missing"));
    }
    Ok(StoredKey::Id(pb.change_id))
}

pub(super) fn check(pb: &v1::ChangeRecord) -> Result<(), BadField> {
    read(pb.clone()).map(drop)
}

/// Reads a line, whatever its number.
///
/// # Errors
/// Something is missing, too long, or has control characters.
pub fn read(pb: v1::ChangeRecord) -> Result<ChangeLine, BadField> {
    let v1::ChangeRecord { change_id: _, call, refused, calls, first_ms, more_calls } = pb;
    let call = call.ok_or_else(|| BadField::new("call", "missing"))?;
    let call = cause(call).map_err(|bad| bad.under("call"))?;
    word("refused", &refused)?;
    if calls == 0 {
        return Err(BadField::new("calls", "0: there is at least one"));
    }
    until("first_ms", 0, first_ms)?;
    Ok(ChangeLine { call, refused, n_calls: calls, first_ms, n_more_calls: more_calls })
}

fn cause(pb: v1::CallCause) -> Result<CallCause, BadField> {
    let v1::CallCause { principal, method, objects, more_objects, namespace, address } = pb;
    for (path, text) in [("principal", &principal), ("method", &method)] {
        if text.is_empty() {
            return Err(BadField::new(path, "missing"));
        }
    }
    for (path, text) in
        [("principal", &principal), ("method", &method), ("namespace", &namespace), ("address", &address)]
    {
        word(path, text)?;
    }
    if objects.len() > N_OBJECTS_MAX {
        return Err(BadField::new("objects", format!("{}; at most {N_OBJECTS_MAX}", objects.len())));
    }
    for (idx, object) in objects.iter().enumerate() {
        let path = || format!("objects[{idx}]");
        names::text(object, OBJECT_LEN_MAX).map_err(|bad| BadField::new(path(), bad.to_string()))?;
    }
    Ok(CallCause { principal, method, objects, n_more_objects: more_objects, namespace, address })
}

fn word(path: &str, text: &str) -> Result<(), BadField> {
    names::text(text, WORD_LEN_MAX).map_err(|bad| BadField::new(path, bad.to_string()))
}

/// Writes a line; state gives it its number.
pub fn write(line: &ChangeLine) -> v1::ChangeRecord {
    let ChangeLine { call, refused, n_calls, first_ms, n_more_calls } = line;
    let CallCause { principal, method, objects, n_more_objects, namespace, address } = call;
    let call = v1::CallCause {
        principal: principal.clone(),
        method: method.clone(),
        objects: objects.clone(),
        more_objects: *n_more_objects,
        namespace: namespace.clone(),
        address: address.clone(),
    };
    v1::ChangeRecord {
        change_id: 0,
        call: Some(call),
        refused: refused.clone(),
        calls: *n_calls,
        first_ms: *first_ms,
        more_calls: *n_more_calls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were() {
        let call = CallCause::new("ann", "/godel.v1.UnitService/CancelUnit", "10.0.0.1:7");
        let call = call.about("team-a", (0..9).map(|n| format!("unit/team-a/u{n}")));
        let line =
            ChangeLine { call, refused: "its role".to_owned(), n_calls: 7, first_ms: 5, n_more_calls: 3 };
        assert_eq!(read(write(&line)), Ok(line));
    }

    #[test]
    fn the_longest_line_fits_what_is_reserved_for_one() {
        use godel_domain::change_line::LINE_BYTES_MAX;
        use prost::Message as _;

        let long = "x".repeat(1_000);
        let call = CallCause::new(&long, &long, &long).about(&long, std::iter::repeat_n(long.clone(), 20));
        let line = ChangeLine {
            call: CallCause { n_more_objects: u32::MAX, ..call },
            refused: "x".repeat(WORD_LEN_MAX),
            n_calls: u64::MAX,
            first_ms: i64::MAX,
            n_more_calls: u64::MAX,
        };
        let pb = v1::ChangeRecord { change_id: u64::MAX, ..write(&line) };
        assert!(check(&pb).is_ok() && pb.encoded_len() <= LINE_BYTES_MAX, "{}", pb.encoded_len());
    }
}
