//! Pages of ended units, as accounting asks for them.

use godel_base::ids::UnitId;
use godel_core_dispatcher::{
    Dispatcher,
    history::{HistoryChunk, HistoryFilter},
};
use godel_domain::sight::Sight;
use godel_kit::status;
use godel_proto::v1;
use godel_wire::{BadField, to_proto};
use prost::Message as _;
use tonic::Status;

use super::records;
use crate::{convert, leader_client::Front};

const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 1_000;
/// A page that has so many bytes takes no further unit; one has 50 KiB at most.
const PAGE_BYTES: usize = 768 << 10;
/// Units looked at in one go while others wait.
const SCAN_PER_CALL: usize = 4_096;
/// Units taken in one go.
const UNITS_PER_CALL: usize = 64;

/// Fills a page bit by bit, so that a long list holds nobody up.
pub(super) async fn list(
    front: &Front,
    request: v1::ListUnitHistoryRequest,
    sight: Sight,
) -> Result<v1::ListUnitHistoryResponse, Status> {
    let v1::ListUnitHistoryRequest { namespace, owner, queue, phase, since_ms, page_size, page_token } =
        request;
    let phase = convert::phase_filter(phase);
    let mut wrong = Vec::new();
    let n_units = records::page_size(page_size, PAGE_DEFAULT, PAGE_MAX, &mut wrong);
    let before = page_token.parse().ok().map(UnitId);
    if before.is_none() && !page_token.is_empty() {
        wrong.push(records::bad_token());
    }
    match &phase {
        Err(bad) => wrong.push(bad.clone()),
        Ok(Some(phase)) if !phase.is_terminal() => {
            wrong.push(BadField::new("phase", "only completed, failed and cancelled units have ended"));
        }
        Ok(_) => {}
    }
    let (Ok(phase), true) = (phase, wrong.is_empty()) else { return Err(status::invalid_argument(wrong)) };
    let filter = HistoryFilter { sight: sight.within(&namespace), owner, queue, phase, since_ms };
    let (mut page, mut before, mut n_bytes) = (v1::ListUnitHistoryResponse::default(), before, 0);
    loop {
        let (filter, from, n_max) =
            (filter.clone(), before, (n_units - page.units.len()).min(UNITS_PER_CALL));
        let look = move |core: &Dispatcher| core.units().list_history(&filter, from, SCAN_PER_CALL, n_max);
        let HistoryChunk { units, next } = front.read(look).await?;
        for (kept, is_kept) in &units {
            let unit = v1::UnitHistory { is_kept: *is_kept, ..to_proto::unit_history(kept) };
            n_bytes += unit.encoded_len();
            before = Some(kept.id);
            page.units.push(unit);
            if n_bytes >= PAGE_BYTES {
                break;
            }
        }
        if n_bytes < PAGE_BYTES {
            let Some(next) = next else { return Ok(page) };
            before = Some(next);
        }
        if n_bytes >= PAGE_BYTES || page.units.len() >= n_units {
            page.next_page_token = before.map(|unit| unit.0.to_string()).unwrap_or_default();
            return Ok(page);
        }
    }
}
