//! What goes out, cut into messages of bounded size, in order.

use godel_base::ids::{Revision, UnitId};
use godel_kit::message::parts;
use godel_proto::v1::{self, attach_request, decide_request};

/// Decisions. One is bounded by the running units that it may place (16,384, of 33 bytes at most).
pub(crate) fn decisions(decisions: impl IntoIterator<Item = v1::Decision>) -> Vec<v1::DecideRequest> {
    let wrap = |decisions| decide_request::Message::Decisions(v1::Decisions { decisions });
    parts(decisions).into_iter().map(|part| v1::DecideRequest { message: Some(wrap(part)) }).collect()
}

/// Reports. One is bounded by its 16 reasons.
pub(crate) fn reports(reports: impl IntoIterator<Item = v1::UnitReport>) -> Vec<v1::AttachRequest> {
    let wrap = |reports| attach_request::Message::Reports(v1::UnitReports { reports });
    parts(reports).into_iter().map(|part| v1::AttachRequest { message: Some(wrap(part)) }).collect()
}

/// Room for parked units.
pub(crate) fn rooms(rooms: impl IntoIterator<Item = v1::RoomReport>) -> Vec<v1::AttachRequest> {
    let wrap = |rooms| attach_request::Message::Rooms(v1::RoomReports { rooms });
    parts(rooms).into_iter().map(|part| v1::AttachRequest { message: Some(wrap(part)) }).collect()
}

/// The opening message with what is held, and what of it needs further messages.
pub(crate) fn open(
    name: &str,
    epoch: u64,
    store_id: u64,
    credits: u32,
    held: Vec<(UnitId, Revision)>,
) -> Vec<v1::AttachRequest> {
    let held =
        held.into_iter().map(|(unit, revision)| v1::HeldUnit { unit_id: unit.0, spec_revision: revision.0 });
    let mut rest = parts(held).into_iter().peekable();
    let inventory = rest.next().unwrap_or_default();
    let more = rest.peek().is_some();
    let open = v1::AttachOpen { name: name.to_owned(), epoch, inventory, credits, more, store_id };
    let mut messages = vec![attach_request::Message::Open(open)];
    while let Some(units) = rest.next() {
        let more = rest.peek().is_some();
        messages.push(attach_request::Message::Inventory(v1::Inventory { units, more }));
    }
    messages.into_iter().map(|message| v1::AttachRequest { message: Some(message) }).collect()
}

#[cfg(test)]
mod tests {
    use godel_domain::decision::N_PLACEMENTS_MAX;
    use godel_kit::message::MESSAGE_BYTES_MAX;
    use prost::Message as _;

    use super::*;

    #[test]
    fn an_inventory_goes_in_as_many_messages_as_it_needs() {
        let name = "s".repeat(253);
        for (n_held, n_messages) in [(0, 1), (1, 1), (20_000, 1), (100_000, 5), (1_000_000, 46)] {
            let held: Vec<_> = (0..n_held).map(|low| (UnitId(u64::MAX - low), Revision(u64::MAX))).collect();
            let messages = open(&name, 7, u64::MAX, 9, held.clone());
            assert_eq!(messages.len(), n_messages, "{n_held}");
            let (mut found, mut more) = (Vec::new(), true);
            for (idx, message) in messages.into_iter().enumerate() {
                assert!(message.encoded_len() <= MESSAGE_BYTES_MAX && more);
                let units = match message.message {
                    Some(attach_request::Message::Open(open)) if idx == 0 => {
                        assert_eq!((open.name.as_str(), open.epoch, open.credits), (name.as_str(), 7, 9));
                        more = open.more;
                        open.inventory
                    }
                    Some(attach_request::Message::Inventory(inventory)) if idx > 0 => {
                        more = inventory.more;
                        inventory.units
                    }
                    other => panic!("{other:?}"),
                };
                found.extend(units.iter().map(|held| (UnitId(held.unit_id), Revision(held.spec_revision))));
            }
            assert!(!more && found == held, "{n_held}");
        }
    }

    #[test]
    fn decisions_and_reports_are_cut_in_order() {
        let group = v1::GroupPlacement {
            task_group: 63,
            ordinals: vec![(1 << 20) - 1; N_PLACEMENTS_MAX],
            incarnations: vec![u32::MAX; N_PLACEMENTS_MAX],
            node_ids: vec![u32::MAX; N_PLACEMENTS_MAX],
            device_masks: vec![u64::MAX; N_PLACEMENTS_MAX],
            zone_masks: vec![u64::MAX; N_PLACEMENTS_MAX],
            core_masks: vec![u64::MAX; N_PLACEMENTS_MAX],
        };
        let widest =
            |decision_id| v1::Decision { decision_id, groups: vec![group.clone()], ..Default::default() };
        let messages = decisions((1..=5).map(widest));
        assert!(messages.iter().all(|message| message.encoded_len() <= MESSAGE_BYTES_MAX));
        let ids = messages.iter().flat_map(|message| match &message.message {
            Some(decide_request::Message::Decisions(part)) => &part.decisions[..],
            other => panic!("{other:?}"),
        });
        assert_eq!(ids.map(|decision| decision.decision_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(decisions([]).is_empty() && reports([]).is_empty());

        let refusals = v1::Refusals { nearest_miss: "x".repeat(500), ..v1::Refusals::default() };
        let report =
            |unit_id| v1::UnitReport { unit_id, refusals: Some(refusals.clone()), ..Default::default() };
        let messages = reports((0..5_000).map(report));
        assert!(messages.len() > 4);
        assert!(messages.iter().all(|message| message.encoded_len() <= MESSAGE_BYTES_MAX));
        let units = messages.iter().flat_map(|message| match &message.message {
            Some(attach_request::Message::Reports(part)) => &part.reports[..],
            other => panic!("{other:?}"),
        });
        assert!(units.map(|report| report.unit_id).eq(0..5_000));
    }
}
