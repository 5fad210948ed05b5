//! What masters ask for, read and checked as YARN does.

use std::collections::BTreeMap;

use godel_core_yarn::{
    adapter::AllocateCall,
    asks::{ANY, AskGroup, AskKey, AskRow, BadAsk, BlacklistChange, ExecutionType},
    ids::{YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::YarnAmount;
use godel_hadoop::{
    Exception,
    yarn::{
        AllocateRequestProto, ContainerIdProto, ExecutionTypeProto, ResourceProto, ResourceRequestProto,
        UpdateContainerErrorProto, UpdateContainerRequestProto,
    },
};

use super::{
    amounts, ids,
    refusal::{INVALID_RELEASE, INVALID_RESOURCE_REQUEST, refused},
};

/// Longest address of a page, or of a host.
const URL_LEN_MAX: usize = 4_096;

/// A call of `allocate`, read.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) call: AllocateCall,
    pub(super) progress: f32,
    /// Changes of containers, none of which is made.
    pub(super) not_updated: Vec<UpdateContainerErrorProto>,
}

/// What bounds a container: the least and the most. Not asked for before there is a row.
pub(super) type Bounds<'a> = &'a dyn Fn() -> Result<(YarnAmount, YarnAmount), Exception>;

/// Reads a call.
///
/// # Errors
/// It asks for something that cannot be; then nothing of it is done.
pub(super) fn read(
    request: AllocateRequestProto,
    attempt: YarnAttemptId,
    bounds: Bounds<'_>,
) -> Result<Asked, Exception> {
    if !request.scheduling_requests.is_empty() {
        return Err(refused(format!(
            "Found non empty SchedulingRequest in AllocateRequest for application={attempt}: godel places no containers by placement \
             constraints of YARN (yarn.resourcemanager.placement-constraints.handler is disabled); ask with ResourceRequests"
        )));
    }
    judge_address("tracking URL", request.tracking_url())?;
    let progress = progress(request.progress.unwrap_or(0.0));
    let asks = if request.ask.is_empty() { Vec::new() } else { rows(request.ask, bounds)? };
    let released = |pb: ContainerIdProto| released(pb, attempt);
    let release = request.release.into_iter().map(released).collect::<Result<_, _>>()?;
    let blacklist = request.blacklist_request.unwrap_or_default();
    Ok(Asked {
        call: AllocateCall {
            seen: request.response_id.unwrap_or(0),
            asks,
            blacklist: BlacklistChange {
                add: blacklist.blacklist_additions,
                remove: blacklist.blacklist_removals,
            },
            release,
            tracking_url: request.tracking_url.filter(|url| !url.is_empty()),
        },
        progress,
        not_updated: request.update_requests.into_iter().map(not_updated).collect(),
    })
}

/// Refuses an address that no record can keep.
pub(super) fn judge_address(what: &str, text: &str) -> Result<(), Exception> {
    let len = text.len();
    if len > URL_LEN_MAX {
        return Err(refused(format!("the {what} has {len} bytes; at most {URL_LEN_MAX} are taken")));
    }
    Ok(())
}

/// From 0 to 1, whatever was said.
fn progress(said: f32) -> f32 {
    if said.is_nan() { 0.0 } else { said.clamp(0.0, 1.0) }
}

fn rows(rows: Vec<ResourceRequestProto>, bounds: Bounds<'_>) -> Result<Vec<AskRow>, Exception> {
    let (least, most) = bounds()?;
    // Rows of a node, its rack and `*` have the same amount, one behind the other.
    let mut last: Option<(ResourceProto, BTreeMap<String, i64>)> = None;
    let mut read = Vec::with_capacity(rows.len());
    for row in rows {
        let asked = row
            .capability
            .as_ref()
            .ok_or_else(|| invalid("a row does not say what it asks for".to_owned()))?;
        let capability = match &last {
            Some((before, capability)) if before == asked => capability.clone(),
            Some(_) | None => {
                let capability = amounts::normalised(amounts::read(asked)?, &least, &most)?.to_capability();
                last = Some((asked.clone(), capability.clone()));
                capability
            }
        };
        read.push(ask(row, capability)?);
    }
    Ok(read)
}

fn ask(row: ResourceRequestProto, capability: BTreeMap<String, i64>) -> Result<AskRow, Exception> {
    let n = row.num_containers.unwrap_or(0);
    let n = u32::try_from(n).map_err(|_| {
        invalid(format!("Invalid resource request! {n} containers of {} were asked for", row.resource_name()))
    })?;
    let execution = match row.execution_type_request.as_ref().map(|request| request.execution_type()) {
        Some(ExecutionTypeProto::Opportunistic) => ExecutionType::Opportunistic,
        Some(ExecutionTypeProto::Guaranteed) | None => ExecutionType::Guaranteed,
    };
    let group = AskGroup {
        priority: row.priority.and_then(|priority| priority.priority).unwrap_or(0),
        execution,
        capability,
        label: String::new(),
    };
    let key = AskKey { group, allocation_request_id: row.allocation_request_id() };
    let name = row.resource_name().to_owned();
    let label = row.node_label_expression.as_deref().map(|label| label.trim().to_owned());
    if let Some(label) = label.as_ref().filter(|label| name != ANY && !label.is_empty()) {
        let bad = BadAsk::LabelOfPlace { name, label: label.clone() };
        return Err(Exception::new(bad.exception(), bad.to_string()));
    }
    let label = label.filter(|_| name == ANY);
    Ok(AskRow { key, name, n, relax_locality: row.relax_locality(), label })
}

fn invalid(message: String) -> Exception {
    Exception::new(INVALID_RESOURCE_REQUEST, message)
}

/// A master gives back what is of its application only.
fn released(pb: ContainerIdProto, attempt: YarnAttemptId) -> Result<YarnContainerId, Exception> {
    let id = ids::container(Some(pb))?;
    if id.attempt.application != attempt.application {
        return Err(Exception::new(
            INVALID_RELEASE,
            format!("Cannot release container : {id} not belonging to this application attempt : {attempt}"),
        ));
    }
    Ok(id)
}

/// A container keeps what it got.
fn not_updated(request: UpdateContainerRequestProto) -> UpdateContainerErrorProto {
    UpdateContainerErrorProto {
        reason: Some(
            "godel does not change containers that have their place: ask for another one, and release this one".to_owned(),
        ),
        current_container_version: Some(0),
        update_request: Some(request),
    }
}

#[cfg(test)]
mod tests {
    use godel_core_yarn::ids::YarnApplicationId;
    use godel_hadoop::yarn::{
        ContainerUpdateTypeProto, ExecutionTypeRequestProto, PriorityProto, ResourceBlacklistRequestProto,
        SchedulingRequestProto,
    };

    use super::*;

    const ATTEMPT: YarnAttemptId =
        YarnAttemptId { application: YarnApplicationId { cluster_timestamp: 9, number: 1 }, number: 1 };

    fn of(request: AllocateRequestProto) -> Result<Asked, Exception> {
        let amount = |memory_mb, vcores| YarnAmount { memory_mb, vcores, ..YarnAmount::default() };
        read(request, ATTEMPT, &|| Ok((amount(1_024, 1), amount(8_192, 4))))
    }

    fn row(memory: i64, n: i32) -> ResourceRequestProto {
        ResourceRequestProto {
            priority: Some(PriorityProto { priority: Some(5) }),
            resource_name: Some("*".to_owned()),
            capability: Some(ResourceProto { memory: Some(memory), ..ResourceProto::default() }),
            num_containers: Some(n),
            ..ResourceRequestProto::default()
        }
    }

    fn asks(ask: Vec<ResourceRequestProto>) -> Result<Vec<AskRow>, Exception> {
        of(AllocateRequestProto { ask, ..AllocateRequestProto::default() }).map(|asked| asked.call.asks)
    }

    #[test]
    fn rows_are_read_with_their_defaults() {
        let opportunistic = ExecutionTypeRequestProto {
            execution_type: Some(ExecutionTypeProto::Opportunistic.into()),
            ..ExecutionTypeRequestProto::default()
        };
        let node = ResourceRequestProto {
            resource_name: Some("n1".to_owned()),
            relax_locality: Some(false),
            execution_type_request: Some(opportunistic),
            allocation_request_id: Some(7),
            ..row(1_025, 2)
        };
        let labelled = |label: &str| ResourceRequestProto {
            node_label_expression: Some(label.to_owned()),
            ..row(1_025, 2)
        };
        let labels = asks(vec![row(1_025, 2), labelled(" fast "), labelled("")]).unwrap();
        let labels: Vec<Option<&str>> = labels.iter().map(|row| row.label.as_deref()).collect();
        assert_eq!(labels, [None, Some("fast"), Some("")]);
        let blacklist = ResourceBlacklistRequestProto {
            blacklist_additions: vec!["n9".to_owned()],
            blacklist_removals: vec!["n8".to_owned()],
        };
        let asked = of(AllocateRequestProto { blacklist_request: Some(blacklist), ..Default::default() });
        let BlacklistChange { add, remove } = asked.unwrap().call.blacklist;
        assert_eq!((add, remove), (vec!["n9".to_owned()], vec!["n8".to_owned()]));
        let read = asks(vec![row(1_025, 2), node]).unwrap();
        let [any, node] = &read[..] else { panic!("{read:?}") };
        assert_eq!((any.n, any.relax_locality, any.key.allocation_request_id), (2, true, -1));
        assert_eq!(any.key.group.capability["memory"], 2_048 << 20);
        assert_eq!((any.key.group.priority, any.key.group.execution), (5, ExecutionType::Guaranteed));
        assert_eq!((node.relax_locality, node.key.allocation_request_id), (false, 7));
        assert_eq!(node.key.group.execution, ExecutionType::Opportunistic);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_class() {
        let class = |request| of(request).unwrap_err().class.into_owned();
        assert!(asks(vec![row(9_000, 1)]).unwrap_err().message.contains("memory:9000"));
        assert!(asks(vec![row(1, -1)]).unwrap_err().message.contains("-1 containers"));
        assert!(asks(vec![ResourceRequestProto::default()]).is_err());
        let other =
            YarnAttemptId { application: YarnApplicationId { number: 2, ..ATTEMPT.application }, ..ATTEMPT };
        let id = YarnContainerId { attempt: other, epoch: 0, number: 2 };
        let release = AllocateRequestProto { release: vec![ids::container_pb(id)], ..Default::default() };
        assert_eq!(class(release), INVALID_RELEASE);
        let of_place = ResourceRequestProto {
            resource_name: Some("n1".to_owned()),
            node_label_expression: Some("fast".to_owned()),
            ..row(1, 1)
        };
        let refused = asks(vec![of_place]).unwrap_err();
        assert!(refused.class.ends_with(".InvalidLabelResourceRequestException"), "{refused}");
        let long = AllocateRequestProto { tracking_url: Some("u".repeat(4_097)), ..Default::default() };
        assert!(of(long).unwrap_err().message.contains("4097 bytes; at most 4096"));
        let constrained = AllocateRequestProto {
            scheduling_requests: vec![SchedulingRequestProto::default()],
            ..Default::default()
        };
        assert!(of(constrained).unwrap_err().message.contains("appattempt_9_0001_000001"));
    }

    #[test]
    fn containers_are_not_changed_and_masters_hear_it() {
        let update = UpdateContainerRequestProto {
            container_version: 0,
            container_id: ContainerIdProto::default(),
            update_type: ContainerUpdateTypeProto::IncreaseResource.into(),
            capability: None,
            execution_type: None,
        };
        let asked = of(AllocateRequestProto {
            update_requests: vec![update.clone()],
            progress: Some(f32::NAN),
            ..Default::default()
        });
        let asked = asked.unwrap();
        assert_eq!(asked.not_updated[0].update_request, Some(update));
        assert!(asked.progress.abs() < f32::EPSILON && (progress(7.0) - 1.0).abs() < f32::EPSILON);
    }
}
