//! What the operator of an etcd does: members come and go, and room is made. One call at one member each.

use std::time::Duration;

use tonic::{Status, transport::Channel};

use crate::{
    connection::{Endpoint, TlsFiles},
    error::chain,
    wire::{
        self,
        proto::etcdserverpb::{
            AlarmMember, AlarmRequest, CompactionRequest, DefragmentRequest, MemberAddRequest,
            MemberListRequest, MemberRemoveRequest, RangeRequest, StatusRequest, alarm_request::AlarmAction,
            cluster_client::ClusterClient, kv_client::KvClient, maintenance_client::MaintenanceClient,
        },
    },
};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An operator's call that was not made, or not to its end.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct AdminError(pub(super) String);

/// An operator at one member.
#[derive(Debug)]
pub(super) struct Operator {
    endpoint: Endpoint,
}

impl Operator {
    pub(super) fn at(url: &str, tls: Option<&TlsFiles>) -> Result<Self, AdminError> {
        let endpoint = Endpoint::parse(url, tls).map_err(|error| AdminError(chain(&error)))?;
        Ok(Self { endpoint })
    }

    /// Makes a call and waits for its outcome, from any thread, also one of a runtime.
    fn call<T: Send>(
        &self,
        call: impl AsyncFnOnce(Channel) -> Result<T, Status> + Send,
    ) -> Result<T, AdminError> {
        let outcome: Result<T, String> = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.map_err(|error| error.to_string())?.block_on(async {
                    let channel = self.endpoint.connect().await.map_err(|error| error.to_string())?;
                    let answered = tokio::time::timeout(TIMEOUT, call(channel)).await;
                    answered.map_err(|_| "no answer in time".to_owned())?.map_err(|status| chain(&status))
                })
            });
            thread.join().expect("a call does not panic")
        });
        outcome.map_err(|why| AdminError(format!("{}: {why}", self.endpoint)))
    }

    /// Whether this member leads.
    pub(super) fn leads(&self) -> Result<bool, AdminError> {
        self.call(async |channel| {
            let status = MaintenanceClient::new(channel).status(StatusRequest {}).await?.into_inner();
            Ok(status.leader != 0 && status.header.is_some_and(|header| header.member_id == status.leader))
        })
    }

    /// Removes the member with a peer URL, if there is one.
    pub(super) fn remove_member(&self, peer_url: &str) -> Result<(), AdminError> {
        self.call(async |channel| {
            let mut client = ClusterClient::new(channel);
            let members = client.member_list(MemberListRequest {}).await?.into_inner().members;
            let is_meant = |urls: &[String]| urls.iter().any(|url| url == peer_url);
            if let Some(member) = members.iter().find(|member| is_meant(&member.peer_ur_ls)) {
                client.member_remove(MemberRemoveRequest { id: member.id }).await?;
            }
            Ok(())
        })
    }

    /// Adds a member with a peer URL, if there is none.
    pub(super) fn add_member(&self, peer_url: &str) -> Result<(), AdminError> {
        self.call(async |channel| {
            let mut client = ClusterClient::new(channel);
            let members = client.member_list(MemberListRequest {}).await?.into_inner().members;
            if members.iter().any(|member| member.peer_ur_ls.iter().any(|url| url == peer_url)) {
                return Ok(());
            }
            let peer_ur_ls = vec![peer_url.to_owned()];
            client.member_add(MemberAddRequest { peer_ur_ls }).await.map(drop)
        })
    }

    /// Forgets all history.
    pub(super) fn compact(&self) -> Result<(), AdminError> {
        self.call(async |channel| {
            let mut client = KvClient::new(channel);
            let range = RangeRequest { key: "a".into(), limit: 1, ..RangeRequest::default() };
            let now = wire::header(client.range(range).await?.into_inner().header.as_ref()).revision;
            let request = CompactionRequest { revision: wire::signed(now), physical: true };
            match client.compact(request).await {
                Err(status) if status.message().contains("has been compacted") => Ok(()),
                compacted => compacted.map(drop),
            }
        })
    }

    /// Gives back the room in the member's file that is not in use.
    pub(super) fn defragment(&self) -> Result<(), AdminError> {
        self.call(async |channel| {
            MaintenanceClient::new(channel).defragment(DefragmentRequest {}).await.map(drop)
        })
    }

    /// Takes all alarms back: each member that has no room raises its own.
    pub(super) fn disarm(&self) -> Result<(), AdminError> {
        self.call(async |channel| {
            let mut client = MaintenanceClient::new(channel);
            let list = AlarmRequest { action: AlarmAction::Get.into(), ..AlarmRequest::default() };
            for AlarmMember { member_id, alarm } in client.alarm(list).await?.into_inner().alarms {
                client
                    .alarm(AlarmRequest { action: AlarmAction::Deactivate.into(), member_id, alarm })
                    .await?;
            }
            Ok(())
        })
    }
}
