//! What clients submit, read and checked as YARN does.

use std::sync::Arc;

use godel_core_yarn::{
    adapter::AppSubmission,
    asks::{AskGroup, ExecutionType},
    ids::YarnApplicationId,
};
use godel_core_yarn_leader::{SubmittedApp, YarnAmount};
use godel_hadoop::{
    Exception,
    yarn::{ApplicationSubmissionContextProto, ResourceRequestProto},
};
use prost::Message as _;

use super::{amounts, ids, refusal::refused};

/// YARN cuts longer types.
const TYPE_LEN_MAX: usize = 20;
const N_TAGS_MAX: usize = 10;
const TAG_LEN_MAX: usize = 100;

/// Reads a submission of a user, whose master may have what is between least and most.
///
/// # Errors
/// It asks for something that cannot be.
pub(super) fn read(
    context: ApplicationSubmissionContextProto,
    user: &str,
    least: &YarnAmount,
    most: &YarnAmount,
) -> Result<(YarnApplicationId, SubmittedApp), Exception> {
    let id = ids::application(context.application_id)?;
    if context.reservation_id.is_some() {
        return Err(refused(format!(
            "{id} is for a reservation of YARN, and godel has none of these: reserve with `godel reservation` and submit without"
        )));
    }
    let is_unmanaged = context.unmanaged_am();
    let lifetimes = context.application_timeouts.iter().map(|timeout| timeout.timeout.unwrap_or(0));
    let lifetime_s: Option<i64> = lifetimes.min();
    if let Some(timeout) = lifetime_s.filter(|timeout| *timeout <= 0) {
        return Err(refused(format!(
            "Invalid application timeout, value={timeout} for type=LIFETIME. It should be greater than 0."
        )));
    }
    let launch: Arc<[u8]> = match &context.am_container_spec {
        Some(spec) if !is_unmanaged => spec.encode_to_vec().into(),
        None if !is_unmanaged => {
            return Err(refused(format!("{id} does not say how its master is started (am_container_spec)")));
        }
        Some(_) | None => Arc::default(),
    };
    let submission = AppSubmission {
        name: context.application_name().to_owned(),
        user: user.to_owned(),
        queue: context.queue().to_owned(),
        kind: context.application_type().chars().take(TYPE_LEN_MAX).collect(),
        priority: context.priority.and_then(|priority| priority.priority).unwrap_or(0),
        master: if is_unmanaged { None } else { Some(master(&context, least, most)?) },
        label: context.node_label_expression().trim().to_owned(),
        max_attempts: context.max_app_attempts(),
        validity_interval_ms: context.attempt_failures_validity_interval(),
        keeps_containers: context.keep_containers_across_application_attempts(),
        lifetime_ms: lifetime_s.map(|seconds| seconds.saturating_mul(1_000)),
    };
    Ok((id, SubmittedApp { submission, launch, tags: tags(context.application_tags)? }))
}

/// What the master needs: its own row at `*`, or what stands beside it.
fn master(
    context: &ApplicationSubmissionContextProto,
    least: &YarnAmount,
    most: &YarnAmount,
) -> Result<AskGroup, Exception> {
    let rows = &context.am_container_resource_request;
    let is_any = |row: &&ResourceRequestProto| row.resource_name() == godel_core_yarn::asks::ANY;
    let row = rows.iter().find(is_any).or(rows.first());
    let asked = row.and_then(|row| row.capability.as_ref()).or(context.resource.as_ref());
    let asked = amounts::read(asked.unwrap_or(&godel_hadoop::yarn::ResourceProto::default()))?;
    let amount = amounts::normalised(asked, least, most)?;
    // An empty one says that the master does not go where its application goes.
    let own = row.and_then(|row| row.node_label_expression.as_deref());
    Ok(AskGroup {
        priority: 0,
        execution: ExecutionType::Guaranteed,
        capability: amount.to_capability(),
        label: own.unwrap_or(context.node_label_expression()).trim().to_owned(),
    })
}

/// YARN compares tags in lower case.
fn tags(tags: Vec<String>) -> Result<Vec<String>, Exception> {
    if tags.len() > N_TAGS_MAX {
        return Err(refused(format!(
            "Too many applicationTags, a maximum of only {N_TAGS_MAX} are allowed!"
        )));
    }
    if let Some(long) = tags.iter().find(|tag| tag.len() > TAG_LEN_MAX) {
        return Err(refused(format!(
            "Tag {long} is too long, maximum allowed length of a tag is {TAG_LEN_MAX}"
        )));
    }
    if let Some(odd) = tags.iter().find(|tag| !tag.is_ascii()) {
        return Err(refused(format!("A tag can only have ASCII characters! Invalid tag - {odd}")));
    }
    Ok(tags.into_iter().map(|tag| tag.to_ascii_lowercase()).collect())
}

#[cfg(test)]
mod tests {
    use godel_hadoop::yarn::{
        ApplicationTimeoutMapProto, ContainerLaunchContextProto, ReservationIdProto, ResourceProto,
    };

    use super::*;

    fn amount(memory_mb: i64, vcores: i64) -> YarnAmount {
        YarnAmount { memory_mb, vcores, ..YarnAmount::default() }
    }

    fn context() -> ApplicationSubmissionContextProto {
        let id = YarnApplicationId { cluster_timestamp: 9, number: 1 };
        ApplicationSubmissionContextProto {
            application_id: Some(ids::application_pb(id)),
            am_container_spec: Some(ContainerLaunchContextProto::default()),
            resource: Some(ResourceProto { memory: Some(1_500), ..ResourceProto::default() }),
            ..ApplicationSubmissionContextProto::default()
        }
    }

    fn of(context: ApplicationSubmissionContextProto) -> Result<SubmittedApp, Exception> {
        read(context, "anna", &amount(1_024, 1), &amount(8_192, 4)).map(|(_, app)| app)
    }

    #[test]
    fn a_submission_has_the_defaults_of_yarn() {
        let AppSubmission { name, user, queue, kind, master, validity_interval_ms, .. } =
            of(context()).unwrap().submission;
        assert_eq!([name, user, queue, kind], ["N/A", "anna", "default", "YARN"]);
        assert_eq!(
            (master.unwrap().capability, validity_interval_ms),
            (amount(2_048, 1).to_capability(), -1)
        );
    }

    #[test]
    fn the_row_of_a_master_counts_more_than_what_is_beside() {
        let row = |name: &str, memory| ResourceRequestProto {
            resource_name: Some(name.to_owned()),
            capability: Some(ResourceProto { memory: Some(memory), ..ResourceProto::default() }),
            node_label_expression: Some(" fast ".to_owned()),
            ..ResourceRequestProto::default()
        };
        let asked = ApplicationSubmissionContextProto {
            am_container_resource_request: vec![row("/r1", 1_024), row("*", 4_096)],
            ..context()
        };
        let master = of(asked).unwrap().submission.master.unwrap();
        assert_eq!((master.capability, master.label.as_str()), (amount(4_096, 1).to_capability(), "fast"));
    }

    #[test]
    fn the_label_of_an_application_is_that_of_its_master_unless_it_says_otherwise() {
        let labels = |own: Option<&str>| {
            let row = ResourceRequestProto {
                resource_name: Some("*".to_owned()),
                node_label_expression: own.map(str::to_owned),
                ..ResourceRequestProto::default()
            };
            let asked = ApplicationSubmissionContextProto {
                node_label_expression: Some(" fast ".to_owned()),
                am_container_resource_request: vec![row],
                ..context()
            };
            let submission = of(asked).unwrap().submission;
            (submission.label, submission.master.unwrap().label)
        };
        assert_eq!(labels(None), ("fast".to_owned(), "fast".to_owned()));
        assert_eq!(labels(Some("slow")), ("fast".to_owned(), "slow".to_owned()));
        assert_eq!(labels(Some("")), ("fast".to_owned(), String::new()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let message = |context| of(context).unwrap_err().message;
        let reserved = ApplicationSubmissionContextProto {
            reservation_id: Some(ReservationIdProto::default()),
            ..context()
        };
        assert!(message(reserved).contains("godel reservation"));
        let nothing = ApplicationSubmissionContextProto { am_container_spec: None, ..context() };
        assert!(message(nothing.clone()).contains("am_container_spec"));
        let unmanaged = ApplicationSubmissionContextProto { unmanaged_am: Some(true), ..nothing };
        assert_eq!(of(unmanaged).unwrap().submission.master, None);
        let timeouts = |timeout| ApplicationSubmissionContextProto {
            application_timeouts: vec![ApplicationTimeoutMapProto {
                timeout: Some(timeout),
                ..ApplicationTimeoutMapProto::default()
            }],
            ..context()
        };
        assert!(message(timeouts(0)).contains("value=0"));
        assert_eq!(of(timeouts(2)).unwrap().submission.lifetime_ms, Some(2_000));
        let tagged = |tag: &str, n| ApplicationSubmissionContextProto {
            application_tags: vec![tag.to_owned(); n],
            ..context()
        };
        assert_eq!(of(tagged("Nightly", 1)).unwrap().tags, ["nightly"]);
        assert!(message(tagged("a", 11)).contains("Too many"));
        assert!(message(tagged(&"a".repeat(101), 1)).contains("too long"));
        assert!(message(tagged("ä", 1)).contains("ASCII"));
        let huge = ResourceProto { memory: Some(9_000), ..ResourceProto::default() };
        assert!(
            message(ApplicationSubmissionContextProto { resource: Some(huge), ..context() }).contains("9000")
        );
    }
}
