//! Applications as records: what the adapter keeps in state, and how it is read after a start.

use std::collections::BTreeMap;

use bytes::Bytes;
use godel_core_yarn::{
    adapter::{AppRecord, AppSubmission, AttemptRecord, OPPORTUNISTIC, Registration},
    application::{EndTarget, FinalStatus},
    asks::{AskGroup, ExecutionType},
    attempt::{FailedAttempt, UnstartedFate},
    exit_status::YarnExitStatus,
    ids::YarnApplicationId,
};
use godel_core_yarn_leader::{AppNotes, AttemptNotes};
use godel_proto::{raw, v1};

/// Containers of one application with allocation request ids: as many as a unit has running units.
const N_REQUEST_IDS_MAX: u64 = 1_000_000;

/// A record says what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub(crate) struct BadRecord {
    field: &'static str,
    problem: String,
}

fn bad(field: &'static str, problem: impl Into<String>) -> BadRecord {
    BadRecord { field, problem: problem.into() }
}

/// The operation that writes an application.
pub(crate) fn put(record: AppRecord, notes: &AppNotes) -> Bytes {
    raw::encode_op(v1::op::Op::PutYarnApplication(write(record, notes)))
}

fn write(record: AppRecord, notes: &AppNotes) -> v1::YarnApplication {
    let AppRecord {
        id,
        submission,
        attempts,
        failed,
        target,
        next_ordinal,
        next_opportunistic,
        request_ids,
        start_ms,
        finish_ms,
        diagnostics,
        version,
    } = record;
    let AppSubmission {
        name,
        user,
        queue,
        kind,
        priority,
        master,
        label,
        max_attempts,
        validity_interval_ms,
        keeps_containers,
        lifetime_ms,
    } = submission;
    let AppNotes { launch, tags, attempts: of_attempts, used_seconds: (memory_mb_seconds, vcore_seconds) } =
        notes;
    let none = AttemptNotes::default();
    let noted = of_attempts.iter().chain(std::iter::repeat(&none));
    v1::YarnApplication {
        application: id.to_string(),
        version,
        name,
        user,
        queue,
        r#type: kind,
        priority,
        master: master.map(|group| v1::YarnAskGroup {
            priority: group.priority,
            is_opportunistic: group.execution == ExecutionType::Opportunistic,
            capability: group.capability.into_iter().collect(),
            label: group.label,
        }),
        max_attempts,
        validity_interval_ms,
        keeps_containers,
        lifetime_ms,
        launch: launch.to_vec(),
        tags: tags.clone(),
        attempts: attempts
            .into_iter()
            .zip(noted)
            .map(|(attempt, notes)| write_attempt(attempt, notes))
            .collect(),
        failed: failed
            .into_iter()
            .map(|FailedAttempt { ended_ms, exit }| v1::YarnFailedAttempt { ended_ms, exit_status: exit.0 })
            .collect(),
        end: end_of(target).into(),
        next_ordinal,
        start_ms,
        finish_ms: finish_ms.map(|finish_ms| if finish_ms == 0 { 0 } else { finish_ms.max(start_ms) }),
        diagnostics,
        memory_mb_seconds: *memory_mb_seconds,
        vcore_seconds: *vcore_seconds,
        next_opportunistic_ordinal: own(next_opportunistic),
        allocation_requests: write_request_ids(request_ids),
        label,
    }
}

/// An ordinal as the unit of opportunistic containers counts it.
fn own(ordinal: u32) -> u32 {
    ordinal & !OPPORTUNISTIC
}

/// The same back; the first one of all is 1.
fn shown(ordinal: u32) -> u32 {
    OPPORTUNISTIC | ordinal.max(1)
}

/// Ordinals in a row with one number are one entry.
fn write_request_ids(ids: BTreeMap<u32, i64>) -> Vec<v1::YarnAllocationRequest> {
    let mut written: Vec<v1::YarnAllocationRequest> = Vec::new();
    for (ordinal, allocation_request_id) in ids {
        let (first_ordinal, is_opportunistic) = (own(ordinal), ordinal >= OPPORTUNISTIC);
        match written.last_mut() {
            Some(last)
                if last.allocation_request_id == allocation_request_id
                    && last.is_opportunistic == is_opportunistic
                    && last.first_ordinal + last.count == first_ordinal =>
            {
                last.count += 1;
            }
            _ => written.push(v1::YarnAllocationRequest {
                allocation_request_id,
                first_ordinal,
                count: 1,
                is_opportunistic,
            }),
        }
    }
    written
}

/// The same back.
///
/// # Errors
/// There are too many, or ordinals that no unit has.
fn read_request_ids(written: Vec<v1::YarnAllocationRequest>) -> Result<BTreeMap<u32, i64>, BadRecord> {
    let mut ids = BTreeMap::new();
    let mut n = 0_u64;
    for v1::YarnAllocationRequest { allocation_request_id, first_ordinal, count, is_opportunistic } in written
    {
        let end = u64::from(first_ordinal) + u64::from(count);
        n += u64::from(count);
        if end > u64::from(OPPORTUNISTIC) || n > N_REQUEST_IDS_MAX {
            return Err(bad("allocation_requests", format!("{count} ordinals from {first_ordinal}")));
        }
        let base = if is_opportunistic { OPPORTUNISTIC } else { 0 };
        ids.extend(
            (first_ordinal..first_ordinal + count).map(|ordinal| (base | ordinal, allocation_request_id)),
        );
    }
    Ok(ids)
}

fn write_attempt(attempt: AttemptRecord, notes: &AttemptNotes) -> v1::YarnAttemptRecord {
    let AttemptRecord {
        first_ordinal,
        first_opportunistic,
        node,
        registration,
        said,
        exit,
        target,
        unstarted,
    } = attempt;
    let AttemptNotes { start_ms, launch_ms, finish_ms, diagnostics } = notes;
    // Another leader's clock may be behind the one by which it began.
    let later = |time_ms: i64| if time_ms == 0 { 0 } else { time_ms.max(*start_ms) };
    let registration = registration.map(|Registration { host, rpc_port, tracking_url }| {
        let rpc_port = if (-1..=i32::from(u16::MAX)).contains(&rpc_port) { rpc_port } else { -1 };
        v1::YarnRegistration { host, rpc_port, tracking_url }
    });
    let said = said.map(|said| match said {
        FinalStatus::Undefined => v1::YarnFinalStatus::Unspecified,
        FinalStatus::Succeeded => v1::YarnFinalStatus::Succeeded,
        FinalStatus::Failed => v1::YarnFinalStatus::Failed,
        FinalStatus::Killed => v1::YarnFinalStatus::Killed,
    });
    v1::YarnAttemptRecord {
        first_ordinal,
        node: node.unwrap_or_default(),
        registration,
        said: said.map(Into::into),
        exit_status: exit.0,
        end: end_of(target).into(),
        start_ms: *start_ms,
        launch_ms: later(*launch_ms),
        finish_ms: later(*finish_ms),
        diagnostics: diagnostics.clone(),
        first_opportunistic_ordinal: own(first_opportunistic),
        unstarted: match unstarted {
            None => v1::YarnUnstartedFate::Unspecified,
            Some(UnstartedFate::Elsewhere) => v1::YarnUnstartedFate::Elsewhere,
            Some(UnstartedFate::Nowhere) => v1::YarnUnstartedFate::Nowhere,
        }
        .into(),
    }
}

/// An application as its record says.
///
/// # Errors
/// What cannot be.
pub(crate) fn read(pb: v1::YarnApplication) -> Result<(AppRecord, AppNotes), BadRecord> {
    let id: YarnApplicationId =
        pb.application.parse().map_err(|_| bad("application", format!("`{}` is no id", pb.application)))?;
    let target = target_of(pb.end)?;
    let master = pb.master.map(|group| AskGroup {
        priority: group.priority,
        execution: if group.is_opportunistic {
            ExecutionType::Opportunistic
        } else {
            ExecutionType::Guaranteed
        },
        capability: group.capability.into_iter().collect(),
        label: group.label,
    });
    let mut notes = AppNotes {
        launch: pb.launch.into(),
        tags: pb.tags,
        attempts: Vec::with_capacity(pb.attempts.len()),
        used_seconds: (pb.memory_mb_seconds, pb.vcore_seconds),
    };
    let mut attempts = Vec::with_capacity(pb.attempts.len());
    for attempt in pb.attempts {
        let (record, noted) = read_attempt(attempt)?;
        attempts.push(record);
        notes.attempts.push(noted);
    }
    let failed = pb
        .failed
        .into_iter()
        .map(|failed| FailedAttempt { ended_ms: failed.ended_ms, exit: YarnExitStatus(failed.exit_status) });
    let record = AppRecord {
        id,
        submission: AppSubmission {
            name: pb.name,
            user: pb.user,
            queue: pb.queue,
            kind: pb.r#type,
            priority: pb.priority,
            master,
            label: pb.label,
            max_attempts: pb.max_attempts,
            validity_interval_ms: pb.validity_interval_ms,
            keeps_containers: pb.keeps_containers,
            lifetime_ms: pb.lifetime_ms,
        },
        attempts,
        failed: failed.collect(),
        target,
        next_ordinal: pb.next_ordinal,
        next_opportunistic: shown(pb.next_opportunistic_ordinal),
        request_ids: read_request_ids(pb.allocation_requests)?,
        start_ms: pb.start_ms,
        finish_ms: pb.finish_ms,
        diagnostics: pb.diagnostics,
        version: pb.version,
    };
    Ok((record, notes))
}

fn read_attempt(pb: v1::YarnAttemptRecord) -> Result<(AttemptRecord, AttemptNotes), BadRecord> {
    let target = target_of(pb.end)?;
    let said = pb.said.map(|said| {
        v1::YarnFinalStatus::try_from(said).map_err(|_| bad("attempts.said", format!("{said} is not known")))
    });
    let said = said.transpose()?.map(|said| match said {
        v1::YarnFinalStatus::Unspecified => FinalStatus::Undefined,
        v1::YarnFinalStatus::Succeeded => FinalStatus::Succeeded,
        v1::YarnFinalStatus::Failed => FinalStatus::Failed,
        v1::YarnFinalStatus::Killed => FinalStatus::Killed,
    });
    let record = AttemptRecord {
        first_ordinal: pb.first_ordinal,
        first_opportunistic: shown(pb.first_opportunistic_ordinal),
        node: Some(pb.node).filter(|node| !node.is_empty()),
        registration: pb.registration.map(|said| Registration {
            host: said.host,
            rpc_port: said.rpc_port,
            tracking_url: said.tracking_url,
        }),
        said,
        exit: YarnExitStatus(pb.exit_status),
        target,
        unstarted: match v1::YarnUnstartedFate::try_from(pb.unstarted) {
            Ok(v1::YarnUnstartedFate::Unspecified) => None,
            Ok(v1::YarnUnstartedFate::Elsewhere) => Some(UnstartedFate::Elsewhere),
            Ok(v1::YarnUnstartedFate::Nowhere) => Some(UnstartedFate::Nowhere),
            Err(_) => return Err(bad("attempts.unstarted", format!("{} is not known", pb.unstarted))),
        },
    };
    let notes = AttemptNotes {
        start_ms: pb.start_ms,
        launch_ms: pb.launch_ms,
        finish_ms: pb.finish_ms,
        diagnostics: pb.diagnostics,
    };
    Ok((record, notes))
}

fn end_of(target: Option<EndTarget>) -> v1::YarnEnd {
    match target {
        None => v1::YarnEnd::Unspecified,
        Some(EndTarget::Finishing) => v1::YarnEnd::Finishing,
        Some(EndTarget::Finished) => v1::YarnEnd::Finished,
        Some(EndTarget::Failed) => v1::YarnEnd::Failed,
        Some(EndTarget::Killed) => v1::YarnEnd::Killed,
    }
}

fn target_of(end: i32) -> Result<Option<EndTarget>, BadRecord> {
    let end = v1::YarnEnd::try_from(end).map_err(|_| bad("end", format!("{end} is not known")))?;
    Ok(match end {
        v1::YarnEnd::Unspecified => None,
        v1::YarnEnd::Finishing => Some(EndTarget::Finishing),
        v1::YarnEnd::Finished => Some(EndTarget::Finished),
        v1::YarnEnd::Failed => Some(EndTarget::Failed),
        v1::YarnEnd::Killed => Some(EndTarget::Killed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> (AppRecord, AppNotes) {
        let capability = [("cpu".to_owned(), 1_000), ("memory".to_owned(), 1 << 30)].into();
        let master = AskGroup {
            priority: 0,
            execution: ExecutionType::Opportunistic,
            capability,
            label: "gpu".to_owned(),
        };
        let submission = AppSubmission {
            name: "pi".to_owned(),
            user: "ann".to_owned(),
            queue: "prod".to_owned(),
            kind: "SPARK".to_owned(),
            priority: -3,
            master: Some(master),
            label: "fast".to_owned(),
            max_attempts: 2,
            validity_interval_ms: -1,
            keeps_containers: true,
            lifetime_ms: Some(0),
        };
        let registration =
            Registration { host: "n1".to_owned(), rpc_port: -1, tracking_url: "http://n1:4040".to_owned() };
        let ends = [Some(EndTarget::Failed), None].map(|target| AttemptRecord {
            first_ordinal: 1,
            first_opportunistic: OPPORTUNISTIC | 3,
            node: Some("n1:8041".to_owned()),
            registration: Some(registration.clone()),
            said: Some(FinalStatus::Succeeded),
            exit: YarnExitStatus::ABORTED,
            target,
            unstarted: target.map(|_| UnstartedFate::Elsewhere),
        });
        let record = AppRecord {
            id: "application_17_0003".parse().unwrap(),
            submission,
            attempts: ends.to_vec(),
            failed: vec![FailedAttempt { ended_ms: 5, exit: YarnExitStatus(1) }],
            target: Some(EndTarget::Finishing),
            next_ordinal: 9,
            next_opportunistic: OPPORTUNISTIC | 5,
            request_ids: [(2, 7), (3, 7), (4, -5), (OPPORTUNISTIC | 5, -5), (OPPORTUNISTIC | 6, 0)].into(),
            start_ms: 7,
            finish_ms: Some(0),
            diagnostics: "well".to_owned(),
            version: 4,
        };
        let noted = AttemptNotes { start_ms: 1, launch_ms: 2, finish_ms: 3, diagnostics: "lost".to_owned() };
        let notes = AppNotes {
            launch: (*b"launch").into(),
            tags: vec!["a".to_owned()],
            attempts: vec![noted, AttemptNotes::default()],
            used_seconds: (5, 6),
        };
        (record, notes)
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let (record, notes) = full();
        assert_eq!(read(write(record.clone(), &notes)), Ok((record.clone(), notes.clone())));
        let bare = AppRecord {
            attempts: Vec::new(),
            target: None,
            finish_ms: None,
            submission: AppSubmission { master: None, lifetime_ms: None, ..record.submission.clone() },
            ..record
        };
        let notes = AppNotes { attempts: Vec::new(), ..notes };
        assert_eq!(read(write(bare.clone(), &notes)), Ok((bare, notes)));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let (record, notes) = full();
        let pb = write(record, &notes);
        let of = |pb| read(pb).unwrap_err().to_string();
        assert_eq!(
            of(v1::YarnApplication { application: "7".to_owned(), ..pb.clone() }),
            "application: `7` is no id"
        );
        assert_eq!(of(v1::YarnApplication { end: 9, ..pb.clone() }), "end: 9 is not known");
        let mut attempt = pb.clone();
        attempt.attempts[0].said = Some(7);
        assert_eq!(of(attempt), "attempts.said: 7 is not known");
        let mut ids = pb.clone();
        ids.allocation_requests[0].count = u32::MAX;
        assert_eq!(of(ids), "allocation_requests: 4294967295 ordinals from 2");
        let mut older = pb;
        (older.next_opportunistic_ordinal, older.allocation_requests) = (0, Vec::new());
        let (record, _) = read(older).unwrap();
        assert_eq!(record.next_opportunistic, OPPORTUNISTIC + 1);
    }
}
