//! `godel reservation`.

use std::time::Duration;

use godel_base::{quantity, quantity::MILLI_WHOLE};
use godel_client::{client::Client, exit::Failure, output::Format, views::ReservationView};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;

use super::{
    each::Done,
    records::{self, CreatedRecord, NamedRecord, StoredRecord, exists, hint, titled},
};
use crate::args::reservation::{Reservation, ReservationSettings};

pub(super) async fn run(client: &Client, verb: Reservation, format: Format) -> Result<(), Failure> {
    match verb {
        Reservation::Create(new) => records::create::<NamedReservations>(client, new, format).await,
        Reservation::List => records::list::<NamedReservations>(client, format).await,
        Reservation::Describe(names) => records::describe::<NamedReservations>(client, names, format).await,
        Reservation::Set(changed) => records::set::<NamedReservations>(client, changed, format).await,
        Reservation::Delete(deleted) => records::delete::<NamedReservations>(client, deleted, format).await,
    }
}

/// Reservations.
pub(super) struct NamedReservations;

impl NamedRecord for NamedReservations {
    const NAMES: [&str; 2] = ["reservation", "reservations"];
    const VERB: &str = "reservation";
    type Settings = ReservationSettings;
    type Record = v1::Reservation;
    type View = ReservationView;

    fn fresh(name: String) -> Self::Record {
        v1::Reservation { name, slots: 1, ..v1::Reservation::default() }
    }

    fn settle(reservation: &mut Self::Record, settings: ReservationSettings) -> Result<(), Failure> {
        let ReservationSettings {
            namespace,
            selector,
            slots,
            requests,
            gpus,
            node_selector,
            ttl,
            description,
        } = settings;
        reservation.namespace = namespace.unwrap_or(std::mem::take(&mut reservation.namespace));
        if !selector.is_empty() {
            reservation.selector = selector.into_iter().collect();
        }
        reservation.slots = slots.unwrap_or(reservation.slots);
        let demand = reservation.demand.get_or_insert_default();
        for (name, text) in requests {
            let amount = quantity::parse(&name, &text)
                .map_err(|error| Failure::usage(format!("--requests {name}: {error}")))?;
            demand.requests.get_or_insert_default().amounts.insert(name, amount);
        }
        if let Some(count) = gpus {
            let kind = quantity::GPU.to_owned();
            let gpus = v1::DeviceRequest {
                kind,
                count,
                milli_per_device: Some(MILLI_WHOLE),
                models: Vec::new(),
                terms: None,
            };
            demand.devices.retain(|devices| devices.kind != quantity::GPU);
            demand.devices.extend((count > 0).then_some(gpus));
        }
        if !node_selector.is_empty() {
            reservation.node_selector = node_selector.into_iter().collect();
        }
        if let Some(ttl) = ttl {
            let ends_ms = |ttl: Duration| {
                let ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
                SystemClock::new().wall_ms().saturating_add(ms)
            };
            reservation.expires_ms = (!ttl.is_zero()).then(|| ends_ms(ttl));
        }
        reservation.description = description.unwrap_or(std::mem::take(&mut reservation.description));
        Ok(())
    }

    async fn list(client: &Client) -> Result<Vec<ReservationView>, Failure> {
        Ok(client.list_reservations().await?.iter().map(ReservationView::from).collect())
    }

    async fn get(client: &Client, name: String) -> Result<StoredRecord<Self>, Failure> {
        let request = v1::GetReservationRequest { name };
        let call = client.reservations(async |mut kept| kept.get_reservation(request.clone()).await);
        let status = call.await.map_err(hint::<Self>)?.reservation.unwrap_or_default();
        let (view, revision) = (ReservationView::from(&status), status.revision);
        Ok(StoredRecord { view, record: status.reservation.unwrap_or_default(), revision })
    }

    async fn create(client: &Client, reservation: Self::Record) -> Result<CreatedRecord, Failure> {
        let request = v1::CreateReservationRequest { reservation: Some(reservation) };
        let call = client.reservations(async |mut kept| kept.create_reservation(request.clone()).await);
        let answer = call.await.map_err(exists::<Self>)?;
        Ok(CreatedRecord { is_duplicate: answer.duplicate, revision: answer.revision })
    }

    async fn update(client: &Client, reservation: Self::Record, revision: u64) -> Result<Done, Failure> {
        let (reservation, expected_revision) = (Some(reservation), revision);
        let request = v1::UpdateReservationRequest { reservation, expected_revision };
        let call = client.reservations(async |mut kept| kept.update_reservation(request.clone()).await);
        Ok(Done::at("updated", call.await.map_err(hint::<Self>)?.revision))
    }

    async fn delete(client: &Client, name: String, revision: u64) -> Result<u64, Failure> {
        let request = v1::DeleteReservationRequest { name, expected_revision: revision };
        let call = client.reservations(async |mut kept| kept.delete_reservation(request.clone()).await);
        Ok(call.await.map_err(hint::<Self>)?.revision)
    }

    fn text(view: &ReservationView) -> String {
        format!("{}{}", titled(view), view.places())
    }
}
