//! Queues as clients see them, and the kinds of resources of the cluster.

use std::collections::BTreeMap;

use godel_core_yarn::QueueAccess;
use godel_core_yarn_leader::{AppFilter, QueueReport, YarnAmount};
use godel_hadoop::{
    Caller, Exception,
    yarn::{
        GetAllResourceTypeInfoRequestProto, GetAllResourceTypeInfoResponseProto, GetQueueInfoRequestProto,
        GetQueueInfoResponseProto, GetQueueUserAclsInfoRequestProto, GetQueueUserAclsInfoResponseProto,
        QueueAclProto, QueueConfigurationsMapProto, QueueConfigurationsProto, QueueInfoProto,
        QueueStateProto, QueueStatisticsProto, QueueUserAclInfoProto,
    },
};

use super::{amounts, client::ClientFace, refusal::for_clients};

/// A request without fields.
pub(super) type NoRequest = GetAllResourceTypeInfoRequestProto;

fn last_name(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, name)| name)
}

/// By whole path, or by the last name, as YARN finds queues.
fn find<'a>(queues: &'a [QueueReport], name: &str) -> Option<&'a QueueReport> {
    let by_path = queues.iter().find(|queue| queue.path == name);
    by_path.or_else(|| queues.iter().find(|queue| last_name(&queue.path) == name))
}

/// Queues by the path of the one above.
type Children<'a> = BTreeMap<&'a str, Vec<&'a QueueReport>>;

fn by_parent(queues: &[QueueReport]) -> Children<'_> {
    let mut by_parent = Children::new();
    for queue in queues {
        if let Some((above, _)) = queue.path.rsplit_once('.') {
            by_parent.entry(above).or_default().push(queue);
        }
    }
    by_parent
}

/// What of the answer a client wants.
#[derive(Clone, Copy)]
struct Wanted {
    children: bool,
    all_below: bool,
}

/// A queue. One that is not there is an empty answer, which clients of YARN show as such.
pub(super) fn info(
    face: &ClientFace,
    caller: &Caller,
    request: GetQueueInfoRequestProto,
) -> Result<GetQueueInfoResponseProto, Exception> {
    let queues = face.manager.queues().map_err(for_clients)?;
    let total = face.manager.cluster().map_err(for_clients)?.total;
    let Some(found) = find(&queues, request.queue_name()) else {
        return Ok(GetQueueInfoResponseProto::default());
    };
    let all_below = request.recursive();
    let wanted = Wanted { children: all_below || request.include_child_queues(), all_below };
    let mut queue_info = shown(found, &by_parent(&queues), &total, wanted);
    if request.include_applications() {
        let filter = AppFilter { queues: vec![found.path.clone()], ..AppFilter::default() };
        let mut applications = face.manager.applications(&filter).map_err(for_clients)?;
        face.hide(caller, &mut applications);
        let going_on = applications.iter().filter(|report| report.finish_ms == 0);
        queue_info.applications = going_on.map(|report| face.shown(caller, report)).collect();
    }
    Ok(GetQueueInfoResponseProto { queue_info: Some(queue_info) })
}

fn shown(queue: &QueueReport, below: &Children<'_>, total: &YarnAmount, wanted: Wanted) -> QueueInfoProto {
    let deeper = Wanted { children: wanted.all_below, ..wanted };
    let children = below.get(queue.path.as_str()).filter(|_| wanted.children).into_iter().flatten();
    let share = |percent: f32| Some(percent / 100.0);
    let state = if queue.is_running { QueueStateProto::QRunning } else { QueueStateProto::QStopped };
    QueueInfoProto {
        queue_name: Some(last_name(&queue.path).to_owned()),
        capacity: share(queue.capacity),
        maximum_capacity: share(queue.maximum_capacity),
        current_capacity: share(queue.used_capacity),
        state: Some(state.into()),
        child_queues: children.map(|child| shown(child, below, total, deeper)).collect(),
        applications: Vec::new(),
        accessible_node_labels: vec!["*".to_owned()],
        default_node_label_expression: None,
        queue_statistics: Some(statistics(queue, total)),
        preemption_disabled: Some(false),
        queue_configurations_map: vec![QueueConfigurationsMapProto {
            partition_name: String::new(),
            queue_configurations: Some(QueueConfigurationsProto {
                capacity: share(queue.capacity),
                absolute_capacity: share(queue.absolute_capacity),
                max_capacity: share(queue.maximum_capacity),
                absolute_max_capacity: share(queue.absolute_maximum_capacity),
            }),
        }],
        intra_queue_preemption_disabled: Some(false),
    }
}

/// What a queue has, and what it may have of the cluster beside.
fn statistics(queue: &QueueReport, total: &YarnAmount) -> QueueStatisticsProto {
    let QueueReport { used, pending, n_active, n_pending, n_containers, n_pending_containers, .. } = queue;
    // A share of millions of millions of MiB is exact enough in 64 bits; a queue has no more than four decimal places.
    let parts = i64::from(thousandths_of_percent(queue.absolute_maximum_capacity));
    let most = |all: i64| (i128::from(all) * i128::from(parts) / 100_000).try_into().unwrap_or(i64::MAX);
    let left = |all: i64, used: i64| i64::max(0, i64::saturating_sub(most(all), used));
    QueueStatisticsProto {
        num_apps_submitted: Some((*n_active).saturating_add(*n_pending).into()),
        num_apps_running: Some((*n_active).into()),
        num_apps_pending: Some((*n_pending).into()),
        available_memory_mb: Some(left(total.memory_mb, used.memory_mb)),
        allocated_memory_mb: Some(used.memory_mb),
        pending_memory_mb: Some(pending.memory_mb),
        available_v_cores: Some(left(total.vcores, used.vcores)),
        allocated_v_cores: Some(used.vcores),
        pending_v_cores: Some(pending.vcores),
        allocated_containers: Some((*n_containers).into()),
        pending_containers: Some((*n_pending_containers).into()),
    }
}

/// From 0 to 100,000.
fn thousandths_of_percent(percent: f32) -> u32 {
    let text = format!("{:.0}", f64::from(percent.clamp(0.0, 100.0)) * 1_000.0);
    text.parse().unwrap_or(0)
}

/// Where a user may submit and what a user may administer.
pub(super) fn user_acls(
    face: &ClientFace,
    caller: &Caller,
    _: GetQueueUserAclsInfoRequestProto,
) -> Result<GetQueueUserAclsInfoResponseProto, Exception> {
    let user = match &caller.identity {
        godel_hadoop::Identity::User { effective, .. } => effective.as_str(),
        godel_hadoop::Identity::Token(_) => "",
    };
    let queues = face.manager.queues().map_err(for_clients)?;
    let both = [
        (QueueAccess::Submit, QueueAclProto::QaclSubmitApplications),
        (QueueAccess::Administer, QueueAclProto::QaclAdministerQueue),
    ];
    let acls = queues.iter().map(|queue| QueueUserAclInfoProto {
        queue_name: Some(last_name(&queue.path).to_owned()),
        user_acls: both
            .iter()
            .filter(|(access, _)| face.manager.may_use(user, queue, *access))
            .map(|(_, acl)| (*acl).into())
            .collect(),
    });
    Ok(GetQueueUserAclsInfoResponseProto { queue_user_acls: acls.collect() })
}

/// Kinds of resources that clients may ask for.
pub(super) fn resource_types(
    face: &ClientFace,
    _: &Caller,
    _: GetAllResourceTypeInfoRequestProto,
) -> Result<GetAllResourceTypeInfoResponseProto, Exception> {
    let maximum = face.manager.cluster().map_err(for_clients)?.maximum_allocation;
    Ok(GetAllResourceTypeInfoResponseProto { resource_type_info: amounts::types(&maximum) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::samples::queue;

    fn amount(memory_mb: i64, vcores: i64) -> YarnAmount {
        YarnAmount { memory_mb, vcores, ..YarnAmount::default() }
    }

    #[test]
    fn queues_are_shown_as_deep_as_is_asked() {
        let queues = [queue("root", 100.0), queue("root.prod", 60.0), queue("root.prod.search", 50.0)];
        let total = amount(10_000, 10);
        let root = find(&queues, "root").unwrap();
        let of =
            |children, all_below| shown(root, &by_parent(&queues), &total, Wanted { children, all_below });
        assert!(of(false, false).child_queues.is_empty());
        let children = of(true, false).child_queues;
        assert_eq!((children.len(), children[0].queue_name()), (1, "prod"));
        assert!(children[0].child_queues.is_empty());
        assert_eq!(of(true, true).child_queues[0].child_queues[0].queue_name(), "search");
        assert!((children[0].capacity() - 0.6).abs() < 1e-6);
        assert_eq!(find(&queues, "search").unwrap().path, "root.prod.search");
        assert_eq!(find(&queues, "nope"), None);
    }

    #[test]
    fn a_queue_has_left_what_its_maximum_leaves() {
        let mut one = queue("root.a", 50.0);
        one.absolute_maximum_capacity = 50.0;
        one.used = amount(2_000, 6);
        let of = statistics(&one, &amount(10_000, 10));
        assert_eq!((of.available_memory_mb(), of.available_v_cores()), (3_000, 0));
        assert_eq!(thousandths_of_percent(33.333), 33_333);
        assert_eq!(thousandths_of_percent(f32::NAN), 0);
    }
}
