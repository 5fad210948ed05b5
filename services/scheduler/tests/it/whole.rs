//! With the real dispatcher: schedulers that join and leave while units come.

use godel_kit::{CancellationToken, client::channel};
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use godel_wire::to_proto;

use crate::{
    Binder, Scheduler,
    harness::{client_config, eventually, lease_config, listener, server_config, soon, unit},
    world,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_join_and_leave_while_units_come() {
    let (state, _agents) = world(6).await;
    let listener = listener().await;
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = godel_dispatcher::Config {
        server: server_config(),
        client: client_config(&state.url),
        lease: lease_config(),
        ..godel_dispatcher::Config::default()
    };
    let deps = godel_dispatcher::Deps { listener: Some(listener), ..godel_dispatcher::Deps::default() };
    let stop = CancellationToken::new();
    let dispatcher = tokio::spawn(godel_dispatcher::serve(config, deps, stop.clone()));
    let binder = Binder::start(&state.url);
    let first = Scheduler::start(&state.url, "s1").await;
    let client = UnitServiceClient::new(channel(&url, &client_config(&state.url)).unwrap());
    let submit = |id: u64| {
        let (client, state_url) = (client.clone(), &state.url);
        let unit = to_proto::unit_spec(&unit(id, 2, 2, 20).spec);
        async move {
            eventually(&format!("unit {id} is taken ({state_url})"), || {
                let (mut client, unit) = (client.clone(), unit.clone());
                async move {
                    let answer = client.submit_unit(v1::SubmitUnitRequest { unit: Some(unit) }).await;
                    answer.ok().map(|answer| answer.into_inner().unit_id)
                }
            })
            .await
        }
    };
    let mut ids = Vec::new();
    for id in 1..=30 {
        ids.push(submit(id).await);
    }
    let second = Scheduler::start(&state.url, "s2").await;
    for id in 31..=60 {
        ids.push(submit(id).await);
    }
    // What it holds goes to the other one.
    first.stop().await;
    for id in 61..=90 {
        ids.push(submit(id).await);
    }
    for id in ids {
        state.bound(id, 2).await;
    }
    state.assert_bound_once().await;
    second.shows(|status| status.in_flight == 0 && status.parked_units == 0).await;
    second.stop().await;
    binder.stop().await;
    stop.cancel();
    soon("the dispatcher stops", dispatcher).await.unwrap().unwrap();
}
