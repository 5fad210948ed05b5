//! `godel reservation`.

use std::time::Duration;

use godel_base::{quantity, quantity::MILLI_WHOLE};
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    views::ReservationView,
};
use godel_kit::clock::{Clock as _, SystemClock};
use godel_proto::v1;

use super::{
    describe_each,
    each::{Done, each},
    print_described,
    queue::{created, exists, titled},
};
use crate::args::reservation::{Reservation, ReservationSettings};

const RESERVATION: &str = "reservation";

pub(super) async fn run(client: &Client, reservation: Reservation, format: Format) -> Result<(), Failure> {
    match reservation {
        Reservation::Create { names, settings } => {
            let create = each(format, RESERVATION, &names, async |name| {
                let mut reservation = v1::Reservation { name, slots: 1, ..v1::Reservation::default() };
                settle(&mut reservation, settings.clone())?;
                let answer = create(client, reservation).await?;
                Ok(created(answer.duplicate, answer.revision))
            });
            create.await.map(drop)
        }
        Reservation::List => {
            let reservations = client.list_reservations().await?;
            let views: Vec<ReservationView> = reservations.iter().map(ReservationView::from).collect();
            output::print_list(format, &views, "reservations")
        }
        Reservation::Describe { names } => {
            let look =
                async |name: String| Ok::<_, Failure>(ReservationView::from(&get(client, &name).await?));
            print_described(format, RESERVATION, describe_each(&names, look).await, |view| {
                format!("{}{}", titled(view), view.places())
            })
        }
        Reservation::Set { names, settings, revision } => {
            let set = each(format, RESERVATION, &names, async |name| {
                let status = get(client, &name).await?;
                let mut reservation = status.reservation.unwrap_or_default();
                settle(&mut reservation, settings.clone())?;
                // What was read is what is changed.
                let expected_revision = if revision == 0 { status.revision } else { revision };
                Ok(Done::at("updated", update(client, reservation, expected_revision).await?))
            });
            set.await.map(drop)
        }
        Reservation::Delete { names, revision } => {
            let deleted = each(format, RESERVATION, &names, async |name| {
                let request = v1::DeleteReservationRequest { name, expected_revision: revision };
                let call = client.reservations(async |mut reservations| {
                    reservations.delete_reservation(request.clone()).await
                });
                Ok(Done::at("deleted", call.await.map_err(hint)?.revision))
            });
            deleted.await.map(drop)
        }
    }
}

/// What a file says: created, changed, or there as given. The word for that, and the revision.
pub(super) async fn apply(
    client: &Client,
    reservation: &v1::Reservation,
) -> Result<(&'static str, u64), Failure> {
    match create(client, reservation.clone()).await {
        Ok(answer) if answer.duplicate => Ok(("unchanged", answer.revision)),
        Ok(answer) => Ok(("created", answer.revision)),
        Err(failure) if failure.code == Code::Conflict => {
            Ok(("updated", update(client, reservation.clone(), 0).await?))
        }
        Err(failure) => Err(failure),
    }
}

async fn create(
    client: &Client,
    reservation: v1::Reservation,
) -> Result<v1::CreateReservationResponse, Failure> {
    let request = v1::CreateReservationRequest { reservation: Some(reservation) };
    let answer = client
        .reservations(async |mut reservations| reservations.create_reservation(request.clone()).await)
        .await
        .map_err(|failure| match failure.code {
            Code::Conflict => {
                exists(failure).hint("`godel reservation set` changes it, `godel apply -f` replaces it")
            }
            _ => failure,
        })?;
    Ok(answer)
}

async fn update(
    client: &Client,
    reservation: v1::Reservation,
    expected_revision: u64,
) -> Result<u64, Failure> {
    let request = v1::UpdateReservationRequest { reservation: Some(reservation), expected_revision };
    let answer = client
        .reservations(async |mut reservations| reservations.update_reservation(request.clone()).await)
        .await
        .map_err(hint)?;
    Ok(answer.revision)
}

async fn get(client: &Client, name: &str) -> Result<v1::ReservationStatus, Failure> {
    let answer = client
        .reservations(async |mut reservations| {
            reservations.get_reservation(v1::GetReservationRequest { name: name.to_owned() }).await
        })
        .await
        .map_err(hint)?;
    Ok(answer.reservation.unwrap_or_default())
}

fn hint(failure: Failure) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint("`godel reservation list` shows what there is"),
        _ => failure,
    }
}

/// Changes what the flags name, and nothing else.
fn settle(reservation: &mut v1::Reservation, settings: ReservationSettings) -> Result<(), Failure> {
    let ReservationSettings { namespace, selector, slots, requests, gpus, node_selector, ttl, description } =
        settings;
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
