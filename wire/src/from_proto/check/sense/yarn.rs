//! What the YARN adapter keeps.

use godel_domain::names::{
    APPLICATION_NAME_LEN_MAX, APPLICATION_QUEUE_LEN_MAX, DIAGNOSTICS_LEN_MAX, N_TAGS_MAX, NAME_LEN_MAX,
    TAG_LEN_MAX,
};
use godel_proto::v1::{self, YarnEnd};

use super::{BadField, Result, required, resources, until, within, words};

/// Ordinals of one unit.
const ORDINALS_END: u64 = 1 << 31;
/// A port, or -1 for none.
const PORT_MAX: i32 = 65_535;

pub(crate) fn keys(pb: &v1::YarnKeys) -> Result<()> {
    required("name", &pb.name)
}

pub(crate) fn application(pb: &v1::YarnApplication) -> Result<()> {
    if !is_id(&pb.application) {
        let why = format!("`{}` is no id, as `application_1700000000000_0001`", pb.application);
        return Err(BadField::new("application", why));
    }
    if pb.version == 0 {
        return Err(BadField::new("version", "0: the first record of an application has version 1"));
    }
    for (path, text, most) in [
        ("name", &pb.name, APPLICATION_NAME_LEN_MAX),
        ("user", &pb.user, NAME_LEN_MAX),
        ("queue", &pb.queue, APPLICATION_QUEUE_LEN_MAX),
        ("type", &pb.r#type, NAME_LEN_MAX),
        ("label", &pb.label, NAME_LEN_MAX),
        ("diagnostics", &pb.diagnostics, DIAGNOSTICS_LEN_MAX),
    ] {
        words(path, text, most)?;
    }
    if let Some(master) = &pb.master {
        let amounts = master.capability.clone().into_iter().collect();
        let capability = v1::Resources { amounts };
        resources("master.capability", Some(&capability))?;
        words("master.label", &master.label, NAME_LEN_MAX)?;
    }
    if pb.tags.len() > N_TAGS_MAX {
        return Err(BadField::new("tags", format!("{} tags; at most {N_TAGS_MAX}", pb.tags.len())));
    }
    for (idx, tag) in pb.tags.iter().enumerate() {
        words(&format!("tags[{idx}]"), tag, TAG_LEN_MAX)?;
    }
    let finish_ms = pb.finish_ms.unwrap_or(0);
    until("finish_ms", pb.start_ms, finish_ms)?;
    if finish_ms != 0 && pb.end() == YarnEnd::Unspecified {
        return Err(BadField::new("finish_ms", "it has ended, and `end` does not say how"));
    }
    for (path, amount) in [("memory_mb_seconds", pb.memory_mb_seconds), ("vcore_seconds", pb.vcore_seconds)] {
        within(path, amount, 0, i64::MAX)?;
    }
    for (path, ordinal) in
        [("next_ordinal", pb.next_ordinal), ("next_opportunistic_ordinal", pb.next_opportunistic_ordinal)]
    {
        within(path, u64::from(ordinal), 0, ORDINALS_END)?;
    }
    for (idx, one) in pb.attempts.iter().enumerate() {
        attempt(one).map_err(|bad| bad.under(&format!("attempts[{idx}]")))?;
    }
    if pb.failed.len() > pb.attempts.len() {
        let why = format!("{} have failed of {} attempts", pb.failed.len(), pb.attempts.len());
        return Err(BadField::new("failed", why));
    }
    for (idx, one) in pb.allocation_requests.iter().enumerate() {
        let end = u64::from(one.first_ordinal) + u64::from(one.count);
        within(&format!("allocation_requests[{idx}].count"), u64::from(one.count), 1, ORDINALS_END)?;
        within(&format!("allocation_requests[{idx}].first_ordinal"), end, 1, ORDINALS_END)?;
    }
    Ok(())
}

fn attempt(pb: &v1::YarnAttemptRecord) -> Result<()> {
    until("launch_ms", pb.start_ms, pb.launch_ms)?;
    until("finish_ms", pb.start_ms, pb.finish_ms)?;
    words("diagnostics", &pb.diagnostics, DIAGNOSTICS_LEN_MAX)?;
    match &pb.registration {
        Some(registration) => within("registration.rpc_port", registration.rpc_port, -1, PORT_MAX),
        None => Ok(()),
    }
}

/// Whether a text is the id of an application: two numbers.
fn is_id(text: &str) -> bool {
    let numbers = text.strip_prefix("application_").and_then(|rest| rest.split_once('_'));
    let is_number =
        |text: &str| text.parse::<u64>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(begun, number)| is_number(begun) && is_number(number))
}
