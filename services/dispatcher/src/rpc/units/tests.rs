use std::sync::Arc;

use godel_base::ids::{Epoch, StoreId};
use godel_kit::{
    config::ClientConfig,
    lease::{Fence, Leadership},
    metrics::Metrics,
    security::{Caller, Role},
};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::{admission_room::AdmissionRoom, call_limiter::CallLimiter};

#[test]
fn page_tokens_come_back_as_they_were() {
    let after = "default\0web".into();
    let token = PageToken { store: StoreId(5), revision: 7, total: Some(3), after };
    assert_eq!(token.text(), "5:7:3:default:web");
    assert_eq!(PageToken::parse(&token.text()), Some(token));
    assert_eq!(PageToken::parse(""), Some(PageToken::default()));
    for bad in [
        "7",
        "7:3:default:web",
        "5:7:3:default",
        "5:0:3:default:web",
        "5:x:3:default:web",
        "x:7:3:default:web",
        "5:7:3:Default:web",
        "5:7:3:default:a:b",
    ] {
        assert_eq!(PageToken::parse(bad), None, "{bad}");
    }
}

/// The front of a dispatcher that leads, and what its loop is asked.
fn leading() -> (UnitRpc, mpsc::Receiver<LeaderRequest>) {
    let fence = Fence::unlimited("dispatcher", Epoch(1));
    let (_, leadership) = watch::channel(Leadership::Leader { epoch: Epoch(1), since: Revision(1), fence });
    let (calls, asked) = mpsc::channel(8);
    let handle = LeaderHandle {
        calls,
        room: AdmissionRoom::new(64),
        call_limiter: CallLimiter::new(8, Duration::from_millis(1)),
        store: StoreId(1),
        epoch: Epoch(1),
        read: Arc::default(),
    };
    let (_, term) = watch::channel(Some(handle));
    let directory = Directory::new(&ClientConfig::default()).unwrap();
    let metrics = DispatcherMetrics::new(&Metrics::new("dispatcher"));
    (UnitRpc::new(Front::new(leadership, term), directory, metrics, None), asked)
}

#[tokio::test]
async fn who_calls_is_the_principal_of_what_is_submitted() {
    let (rpc, mut asked) = leading();
    let yarn = Caller::Member { role: Role::Yarn, name: "y1".to_owned() };
    for (caller, principal) in [
        (Some(Caller::admin()), "person/admin"),
        (Some(yarn), "yarn/y1"),
        (Some(Caller::Unjudged), ""),
        // A server in plain text judges nobody.
        (None, ""),
    ] {
        let meta = v1::ObjectMeta { name: "web".to_owned(), ..v1::ObjectMeta::default() };
        let group = v1::TaskGroup {
            replicas: 1,
            template: Some(v1::Template::default()),
            ..v1::TaskGroup::default()
        };
        let spec = v1::UnitSpec { meta: Some(meta), task_groups: vec![group], ..v1::UnitSpec::default() };
        let mut request = Request::new(v1::SubmitUnitRequest { unit: Some(spec.clone()) });
        let update = v1::UpdateUnitRequest { unit: Some(spec), ..v1::UpdateUnitRequest::default() };
        let mut update = Request::new(update);
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller.clone());
            update.extensions_mut().insert(caller);
        }
        let answers = async { tokio::join!(rpc.submit_unit(request), rpc.update_unit(update)) };
        let said = async {
            let mut said = Vec::new();
            while said.len() < 2 {
                match asked.recv().await {
                    Some(LeaderRequest::Submit(items)) => said.push(items[0].by.principal.to_string()),
                    Some(LeaderRequest::Change(change)) => said.push(change.by.principal.to_string()),
                    _ => panic!("a submission and an update"),
                }
            }
            said
        };
        let (_, said) = tokio::join!(answers, said);
        assert_eq!(said, [principal, principal]);
    }
}
