//! The faces over real connections, in front of the fake manager.

mod admins;
mod clients;
mod fuzz;
mod masters;
mod nodes;
mod real;
mod rows;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use godel_core_yarn::ids::YarnAttemptId;
use godel_core_yarn_leader::{ManagerRefusal, YarnNodeReport};
use godel_domain::yarn_keys::{YARN_SECRET_LEN, YarnKey, YarnKeys};
use godel_hadoop::{
    Exception, Server,
    client::{CallError, Client, Shows},
    common::TokenProto,
    yarn::{
        ApplicationIdProto, ApplicationReportProto, ApplicationSubmissionContextProto,
        ContainerLaunchContextProto, GetApplicationReportRequestProto, GetApplicationReportResponseProto,
        GetNewApplicationRequestProto, GetNewApplicationResponseProto, ResourceProto,
        SubmitApplicationRequestProto, SubmitApplicationResponseProto,
    },
};
use godel_kit::{CancellationToken, clock::SystemClock};
use tokio::{net::TcpListener, sync::watch};

use super::{FaceSettings, HadoopAddresses, HadoopFaces, NodeCalls, TokenKeys, Tokens};
use crate::tests::{fake::FakeManager, samples::node};

const WITHIN: Duration = Duration::from_secs(30);
const CLIENT: &str = super::client::PROTOCOL;
const MASTER: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
const ADMIN: &str = "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB";
const AVAILABILITY: &str = "org.apache.hadoop.ha.HAServiceProtocol";

fn key(id: i32) -> YarnKey {
    YarnKey { id, secret: [u8::try_from(id).unwrap(); YARN_SECRET_LEN], from_ms: 0 }
}

fn keys(name: &str, ids: &[i32]) -> YarnKeys {
    YarnKeys { name: name.to_owned(), keys: ids.iter().map(|id| key(*id)).collect() }
}

/// The faces, served until the test ends.
struct Rig {
    manager: Arc<FakeManager>,
    tokens: Tokens,
    amrm: watch::Sender<YarnKeys>,
    nm: watch::Sender<YarnKeys>,
    container: watch::Sender<YarnKeys>,
    client_at: SocketAddr,
    master_at: SocketAddr,
    admin_at: SocketAddr,
    _stop: CancellationToken,
}

async fn serve(server: Server, stop: &CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    godel_kit::task::spawn("test.hadoop", server.serve(listener, stop.clone()));
    address
}

impl Rig {
    async fn new(settings: FaceSettings) -> Self {
        let attributes = [("godel.dev/yarn-port".to_owned(), "8041".to_owned())].into();
        let labelled = YarnNodeReport { label: "fast".to_owned(), attributes, ..node("n2") };
        let manager = Arc::new(FakeManager::new(vec![node("n1"), labelled]));
        let (amrm, amrm_keys) = watch::channel(keys("amrm", &[1]));
        let (nm, nm_keys) = watch::channel(keys("nm", &[1]));
        let (container, container_keys) = watch::channel(keys("container", &[1]));
        let clock = SystemClock::shared();
        let token_keys = TokenKeys { amrm: amrm_keys, nm: nm_keys, container: container_keys };
        let tokens = Tokens::new(token_keys, Arc::clone(&clock), 600_000);
        let nodes = NodeCalls::new(tokens.clone()).within(Duration::from_secs(5));
        let shared = Arc::clone(&manager);
        let faces = HadoopFaces::new(shared, tokens.clone(), nodes, clock, settings);
        let stop = CancellationToken::new();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = faces.bind(HadoopAddresses { client: any, master: any, admin: any }).await.unwrap();
        let HadoopAddresses { client, master, admin } = bound.addresses();
        let taken = faces.bind(bound.addresses()).await.unwrap_err().to_string();
        assert!(taken.starts_with(&format!("{client} cannot be used")), "{taken}");
        godel_kit::task::spawn("test.faces", bound.serve(stop.clone()));
        Self {
            client_at: client,
            master_at: master,
            admin_at: admin,
            manager,
            tokens,
            amrm,
            nm,
            container,
            _stop: stop,
        }
    }

    async fn client(&self, user: &str) -> Client {
        let shows = Shows::User { effective: user.to_owned(), real: None };
        Client::connect(self.client_at, CLIENT, 1, &shows, WITHIN).await.unwrap()
    }

    async fn admin(&self, protocol: &'static str) -> Client {
        let shows = Shows::User { effective: "admin".to_owned(), real: None };
        Client::connect(self.admin_at, protocol, 1, &shows, WITHIN).await.unwrap()
    }

    async fn master(&self, token: &TokenProto) -> Client {
        Client::connect(self.master_at, MASTER, 1, &Shows::Token(token.clone()), WITHIN).await.unwrap()
    }
}

/// Submits an application as YARN's clients do, and returns its id.
async fn submit(client: &mut Client, context: ApplicationSubmissionContextProto) -> ApplicationIdProto {
    let new: GetNewApplicationResponseProto =
        client.call("getNewApplication", &GetNewApplicationRequestProto {}).await.unwrap();
    let context = ApplicationSubmissionContextProto {
        application_id: new.application_id,
        am_container_spec: Some(ContainerLaunchContextProto {
            command: vec!["true".to_owned()],
            ..ContainerLaunchContextProto::default()
        }),
        resource: Some(ResourceProto {
            memory: Some(512),
            virtual_cores: Some(1),
            resource_value_map: Vec::new(),
        }),
        ..context
    };
    let request = SubmitApplicationRequestProto { application_submission_context: Some(context) };
    let _submitted: SubmitApplicationResponseProto =
        client.call("submitApplication", &request).await.unwrap();
    new.application_id.unwrap()
}

async fn report(client: &mut Client, id: ApplicationIdProto) -> ApplicationReportProto {
    let request = GetApplicationReportRequestProto { application_id: Some(id) };
    let answer: GetApplicationReportResponseProto =
        client.call("getApplicationReport", &request).await.unwrap();
    answer.application_report.unwrap()
}

/// Submits an application whose master runs elsewhere. Its attempt and the token of its master.
async fn unmanaged(rig: &Rig) -> (YarnAttemptId, TokenProto) {
    let mut client = rig.client("anna").await;
    let context = ApplicationSubmissionContextProto {
        unmanaged_am: Some(true),
        ..ApplicationSubmissionContextProto::default()
    };
    let id = submit(&mut client, context).await;
    let report = report(&mut client, id).await;
    let attempt = super::ids::attempt(report.current_application_attempt_id).unwrap();
    (attempt, report.am_rm_token.unwrap())
}

fn refused<A: std::fmt::Debug>(result: Result<A, CallError>) -> Exception {
    match result {
        Err(CallError::Refused(exception)) => exception,
        other => panic!("{other:?}"),
    }
}
