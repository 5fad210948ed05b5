//! What clients of YARN do and are refused, as the change log shows it, and what their users see of the units of their applications.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use godel_client::{client::Client, exit};
use godel_integration_tests::{
    secured::{SecuredCluster, SteppedClock},
    wait::{LIMIT, wait_for},
};
use godel_kit::clock::SharedClock;
use godel_proto::v1;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::Code;

const APPS: &str = "/ws/v1/cluster/apps";

/// Calls the REST API with a token: the status of the answer and its body.
async fn rest(at: SocketAddr, token: &str, call: &str, body: &Value) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(at).await?;
    let body = body.to_string();
    let head = format!(
        "{call} HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// An adapter that leads, and an application of `ann` whose unit is there.
async fn submit(cluster: &SecuredCluster, token: &str) -> String {
    let mut id = String::new();
    wait_for("a new application", LIMIT, async || {
        let (status, body) =
            rest(cluster.yarn_rest, token, &format!("POST {APPS}/new-application"), &Value::Null).await?;
        ensure!(status == 200, "{status} {body}");
        let body: Value = serde_json::from_str(&body)?;
        id = body["application-id"].as_str().context("no id")?.to_owned();
        Ok(())
    })
    .await;
    let app = json!({
        "application-id": id, "application-name": "pi", "queue": "default",
        "am-container-spec": {"commands": {"command": "sleep 1"}},
        "resource": {"memory": 512, "vCores": 1},
    });
    let (status, body) = rest(cluster.yarn_rest, token, &format!("POST {APPS}"), &app).await.unwrap();
    assert_eq!(status, 202, "{body}");
    wait_for("the unit of the application", LIMIT, async || {
        let unit = cluster.client.get_unit("yarn", &unit_of(&id)).await?.unit;
        ensure!(unit.is_some(), "no unit");
        Ok(())
    })
    .await;
    id
}

fn unit_of(id: &str) -> String {
    id.replace('_', "-")
}

/// Who has done what to an application, and what was refused, in order of their names.
async fn changes(cluster: &SecuredCluster, id: &str) -> Vec<(String, String, String)> {
    let request = v1::ListChangesRequest { object: format!("application/{id}"), ..Default::default() };
    let listed = cluster.client.changes().list_changes(request).await.unwrap().into_inner();
    let mut changes: Vec<_> = listed
        .changes
        .into_iter()
        .map(|logged| {
            let v1::ChangeRecord { call, refused, calls, .. } = logged.change.unwrap_or_default();
            let call = call.unwrap_or_default();
            assert_eq!((call.namespace.as_str(), calls), ("yarn", 1), "{call:?}");
            // Submissions are read from units, which do not say from where.
            assert!(
                call.address.starts_with("127.") || call.method.ends_with("/SubmitApplication"),
                "{call:?}"
            );
            (call.principal, call.method, refused)
        })
        .collect();
    changes.sort();
    changes
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_yarn_have_a_line_each_and_users_see_the_units_of_their_applications() {
    let clock = SteppedClock::new() as SharedClock;
    let mut cluster = SecuredCluster::new(&[]);
    for (part, name) in
        [("state", "state"), ("dispatcher", "d1"), ("binder", "b1"), ("scheduler", "s1"), ("yarn", "y1")]
    {
        cluster.start_inside(part, name, &clock).await;
    }
    cluster.start_agents_inside(1, &clock).await;
    cluster.wait_ready().await;
    let user = || v1::PrincipalTerms { role: "user".to_owned(), ..v1::PrincipalTerms::default() };
    let (ann, of_ann) = cluster.person_with_token("ann", user()).await;
    let (eve, of_eve) = cluster.person_with_token("eve", user()).await;
    let id = submit(&cluster, &of_ann).await;
    users_see_the_units_of_their_applications(&ann, &eve, &unit_of(&id)).await;

    let kill = async |token: &str| {
        let call = format!("PUT {APPS}/{id}/state");
        rest(cluster.yarn_rest, token, &call, &json!({"state": "KILLED"})).await.unwrap()
    };
    assert_eq!(kill(&of_eve).await.0, 403);
    wait_for("the end of the application", LIMIT, async || {
        let (status, body) = kill(&of_ann).await;
        ensure!(status == 200, "{status} {body}");
        Ok(())
    })
    .await;
    let line =
        |who: &str, method: &str, refused: &str| (who.to_owned(), method.to_owned(), refused.to_owned());
    let put = "rest/PUT /ws/v1/cluster/apps/ID/state";
    let expected = [
        line("ann", "/godel.v1.YarnService/SubmitApplication", ""),
        line("ann", put, ""),
        line("eve", put, "owner"),
    ];
    wait_for("the lines", LIMIT, async || {
        let changes = changes(&cluster, &id).await;
        ensure!(changes == expected, "{changes:?}");
        Ok(())
    })
    .await;
    let table = cluster.godel(&["changes", "--who", "ann", "--object", &format!("application/{id}")]);
    let kills: Vec<&str> =
        table.lines().filter(|line| line.contains("PUT /ws/v1/cluster/apps/ID/state")).collect();
    assert!(kills.len() == 1 && kills[0].contains("done"), "{table}");
    cluster.assert_all_run();
    cluster.stop().await;
}

/// The unit is in a namespace that is neither's. Its owner reads it and does not change it; to others it is not there.
async fn users_see_the_units_of_their_applications(ann: &Client, eve: &Client, name: &str) {
    let unit = ann.get_unit("yarn", name).await.unwrap().unit.unwrap();
    let is_listed = async |client: &Client, namespace: &str| {
        let request = v1::ListUnitsRequest { namespace: namespace.to_owned(), ..Default::default() };
        let listed = client.units(async |mut units| units.list_units(request.clone()).await).await.unwrap();
        listed.units.iter().any(|one| one.unit_id == unit.unit_id)
    };
    let log = async |client: &Client| {
        let request = v1::ReadLogRequest { unit_id: unit.unit_id, ..Default::default() };
        client.logs().read_log(request).await.map(drop).unwrap_err()
    };
    for namespace in ["", "yarn"] {
        assert!(is_listed(ann, namespace).await && !is_listed(eve, namespace).await, "{namespace}");
    }
    assert_eq!(eve.get_unit("yarn", name).await.unwrap_err().code, exit::Code::NotFound);
    let hidden = log(eve).await;
    assert!(hidden.code() == Code::NotFound && hidden.message().contains("no unit"), "{hidden}");
    // There is no node for its master, and so no log; that is said to its owner alone.
    let no_log = log(ann).await;
    assert_eq!(no_log.code(), Code::FailedPrecondition, "{no_log}");
    for client in [ann, eve] {
        let request = v1::CancelUnitRequest {
            namespace: "yarn".to_owned(),
            name: name.to_owned(),
            ..Default::default()
        };
        let cancelled = client.units(async |mut units| units.cancel_unit(request.clone()).await).await;
        assert_eq!(cancelled.unwrap_err().code, exit::Code::Denied);
    }
}
