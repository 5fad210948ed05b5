//! Bad input of every kind, by raw clients, over every RPC: a clear refusal each time, and nothing is lost,
//! changed or brought down by it.

use godel_integration_tests::{
    cluster::Cluster,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use tonic::{Code, Response, Status, Streaming};
use tonic_types::StatusExt as _;

mod leaders;
mod nodes;
mod state;
mod units;

const UID: &str = "0197d4a6-3c1e-7d5b-8f3a-2b6c9d0e1f2a";

/// Collects what did not go as it should.
#[derive(Default)]
struct Cases {
    n_cases: usize,
    mismatches: Vec<String>,
}

impl Cases {
    /// `result` must be refused with `code`. For `INVALID_ARGUMENT` a violation must name `field`.
    fn refused<T>(&mut self, case: &str, result: Result<T, Status>, code: Code, field: &str) {
        self.refused_by(case, result, &[code], field);
    }

    /// The same where several codes are right.
    fn refused_by<T>(&mut self, case: &str, result: Result<T, Status>, codes: &[Code], field: &str) {
        self.n_cases += 1;
        let Err(status) = result else {
            self.mismatches.push(format!("{case}: was accepted"));
            return;
        };
        if !codes.contains(&status.code()) {
            self.mismatches.push(format!("{case}: not one of {codes:?}: {status:?}"));
            return;
        }
        if status.message().is_empty() {
            self.mismatches.push(format!("{case}: no message: {status:?}"));
        }
        let violations = violated_fields(&status);
        if !field.is_empty() && !violations.iter().any(|violated| violated.contains(field)) {
            self.mismatches
                .push(format!("{case}: no violation of {field}: {violations:?} {}", status.message()));
        }
    }

    /// `result` must be refused with an `ErrorInfo` of that constant reason.
    fn refused_for<T>(&mut self, case: &str, result: Result<T, Status>, code: Code, reason: &str) {
        self.n_cases += 1;
        match result {
            Ok(_) => self.mismatches.push(format!("{case}: was accepted")),
            Err(status) => {
                let found = status.get_details_error_info().map(|info| (info.domain, info.reason));
                let expected = Some(("godel".to_owned(), reason.to_owned()));
                if status.code() != code || found != expected {
                    self.mismatches.push(format!("{case}: not {code:?} for {reason}: {found:?} {status:?}"));
                }
            }
        }
    }

    /// A condition besides.
    fn holds(&mut self, case: &str, condition: bool, shown: &dyn std::fmt::Debug) {
        self.n_cases += 1;
        if !condition {
            self.mismatches.push(format!("{case}: {shown:?}"));
        }
    }
}

pub(crate) async fn bad_input_is_refused_clearly_and_harms_nothing(cluster: &mut Cluster) {
    let n_units_before = cluster.api.records().await.unwrap().units.len();
    let web = unit("web", UID, 3, resources(100, 16), None, 0);
    let web = cluster.api.submit(web).await.unwrap().unit_id;
    let before = cluster.wait_all_bound(n_units_before + 1).await;

    let mut cases = Cases::default();
    nodes::check(cluster, &mut cases).await;
    state::check(cluster, &mut cases).await;
    units::check(cluster, &mut cases).await;
    leaders::check(cluster, &mut cases, web).await;
    assert_eq!(cases.mismatches, Vec::<String>::new(), "of {} cases", cases.n_cases);

    let after = cluster.api.records().await.unwrap();
    assert_eq!(after.nodes, before.nodes, "the nodes are as before");
    assert_eq!(after.units[&web], before.units[&web], "the unit is as before");
    assert_eq!(after.rows[&web].blocks[0].node_ids, before.rows[&web].blocks[0].node_ids);
    for name in cluster.names() {
        assert!(cluster.is_running(&name), "{name} has ended");
    }
    wait_for("work after all that", LIMIT, async || {
        cluster.api.submit(unit("later", "", 1, resources(100, 16), None, 0)).await
    })
    .await;
    cluster.wait_all_bound(n_units_before + 2).await;
    cluster.audit(&[]);
    // Whoever sends nonsense is not ours to look after: no ERROR, but a WARN is in order.
    cluster.announce(&["WARN"]);
    cluster.assert_quiet();
}

/// The first answer of a stream, or its refusal.
async fn first<T>(opened: Result<Response<Streaming<T>>, Status>) -> Result<Option<T>, Status> {
    let mut stream = opened?.into_inner();
    match tokio::time::timeout(LIMIT, stream.message()).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded("the stream neither answers nor ends")),
    }
}

fn violated_fields(status: &Status) -> Vec<String> {
    let details = status.get_details_bad_request();
    details
        .into_iter()
        .flat_map(|details| details.field_violations)
        .map(|violation| violation.field)
        .collect()
}

/// Metadata with a name and a uid.
fn meta(name: &str, uid: &str) -> v1::ObjectMeta {
    v1::ObjectMeta { name: name.into(), uid: uid.into(), ..Default::default() }
}
