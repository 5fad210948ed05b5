//! Replicas that are added to the units of an application and released again.
//!
//! Opportunistic containers are replicas of a unit of the best-effort pool, which is submitted with the first of them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use godel_base::ids::Revision;
use godel_core_yarn::{
    adapter::{MASTER, OPPORTUNISTIC},
    asks::{AskGrowth, ExecutionType},
    ids::YarnApplicationId,
};
use godel_proto::v1;
use tonic::{Code, Status};

use super::{
    act::{LOOK, call, submit_spec},
    shared::{Growing, Inner, Shared},
};
use crate::{
    picture::ordinals_of,
    unit::{group_name, opportunistic_unit_spec, task_group, unit_name_of},
};

/// Ordinals in one request.
const N_ORDINALS_MAX: usize = 10_000;
/// Requests for replicas of groups of which some were emptied in the meantime.
const N_GROWTHS_MAX: u32 = 3;

/// What is to be asked of the dispatcher so that a unit has so many replicas more.
fn growth(
    shared: &Shared,
    inner: &Inner,
    id: YarnApplicationId,
    side: u32,
    add: &[AskGrowth],
) -> Option<(v1::TaskGroupChanges, Growing)> {
    let config = &shared.context.config;
    inner.application(id).ok()?;
    let unit = inner.picture.unit_of(id, side)?;
    let mut by_group: BTreeMap<String, VecDeque<AskGrowth>> = BTreeMap::new();
    for growth in add {
        by_group.entry(group_name(&growth.group(), &growth.wish)).or_default().push_back(growth.clone());
    }
    let mut changes = v1::TaskGroupChanges {
        namespace: config.namespace.clone(),
        name: unit_name_of(id, side),
        ..v1::TaskGroupChanges::default()
    };
    for (name, growing) in &by_group {
        let n: u32 = growing.iter().map(|growth| growth.n).fold(0, u32::saturating_add);
        let Some(first) = growing.front() else { continue };
        match ordinals_of(&unit.record, name) {
            Some(known) => {
                let replicas = u32::try_from(known.len()).unwrap_or(u32::MAX).saturating_add(n);
                changes.sizes.push(v1::TaskGroupSize { task_group: name.clone(), replicas });
            }
            None => changes.added.push(task_group(config, name, &first.group(), &first.wish, n)),
        }
    }
    Some((changes, by_group.into_iter().collect()))
}

/// Adds replicas, those of opportunistic containers to a unit of their own.
pub(super) async fn grow(shared: &Arc<Shared>, id: YarnApplicationId, add: Vec<AskGrowth>) {
    let is_opportunistic = |growth: &AskGrowth| growth.key.group.execution == ExecutionType::Opportunistic;
    let (opportunistic, guaranteed): (Vec<_>, Vec<_>) = add.into_iter().partition(is_opportunistic);
    for (side, add) in [(MASTER, guaranteed), (OPPORTUNISTIC, opportunistic)] {
        if !add.is_empty() {
            grow_side(shared, id, side, add).await;
        }
    }
}

/// Adds replicas to one unit. If it has no room for all of their task groups, those that come first are added.
async fn grow_side(shared: &Arc<Shared>, id: YarnApplicationId, side: u32, add: Vec<AskGrowth>) {
    let mut lots = vec![add];
    let mut is_full = false;
    while let Some(mut lot) = lots.pop() {
        let answer = if is_full {
            Err(Status::invalid_argument("others before them were refused"))
        } else {
            match submit_opportunistic(shared, id, side).await {
                Ok(()) => added(shared, id, side, &lot).await,
                Err(status) => Err(status),
            }
        };
        let is_refused = answer.as_ref().is_err_and(|status| status.code() == Code::InvalidArgument);
        if is_refused && !is_full && lot.len() > 1 {
            let second = lot.split_off(lot.len().div_ceil(2));
            lots.extend([second, lot]);
            continue;
        }
        is_full |= is_refused;
        note_growth(shared, id, answer, lot).await;
    }
}

/// Replicas were added, or could not be.
async fn note_growth(
    shared: &Arc<Shared>,
    id: YarnApplicationId,
    answer: Result<Revision, Status>,
    add: Vec<AskGrowth>,
) {
    shared.context.crash.hit("yarn.after-grow");
    match &answer {
        Ok(revision) => shared.until_read(*revision).await,
        Err(status) => {
            tracing::warn!(application = %id, why = status.message(), "no containers could be added to the unit");
        }
    }
    // Who follows begins anew.
    let _ = shared.run(|inner, _, _| {
        let Some(entry) = inner.entries.get_mut(&id) else { return };
        let left = match answer {
            Ok(_) => {
                std::mem::take(&mut entry.growing).into_iter().flat_map(|(_, growing)| growing).collect()
            }
            Err(_) => {
                entry.growing.clear();
                entry.is_growth_refused = true;
                add
            }
        };
        // There is one: its entry is there.
        let _ = inner.adapter.with(id, |application, _| {
            left.iter().for_each(|growth| application.not_grown(growth));
        });
    });
}

/// Asks the dispatcher for replicas. Groups that were emptied in the meantime are added again.
async fn added(
    shared: &Arc<Shared>,
    id: YarnApplicationId,
    side: u32,
    add: &[AskGrowth],
) -> Result<Revision, Status> {
    let mut n_tries = 0;
    loop {
        n_tries += 1;
        let changes = {
            let mut inner = shared.inner.lock();
            let growth = growth(shared, &inner, id, side, add);
            growth.map(|(changes, growing)| {
                if let Some(entry) = inner.entries.get_mut(&id) {
                    // Ordinals are given to keys when the unit is read, before any of them can have a place.
                    entry.growing = growing;
                }
                changes
            })
        };
        let Some(changes) = changes else {
            return Err(Status::not_found("its unit is not there any more"));
        };
        let sized: Vec<String> = changes.sizes.iter().map(|size| size.task_group.clone()).collect();
        let answer = change_groups(shared, changes).await;
        let may_pass = n_tries < N_GROWTHS_MAX && !sized.is_empty();
        if !answer.as_ref().is_err_and(|status| may_pass && status.code() == Code::InvalidArgument) {
            return answer;
        }
        // The dispatcher may have emptied a group of which the adapter has not read that yet.
        let has_lost_one = |inner: &Inner| {
            let unit = inner.picture.unit_of(id, side);
            unit.is_none_or(|unit| sized.iter().any(|name| ordinals_of(&unit.record, name).is_none()))
        };
        if !shared.until_in(LOOK, has_lost_one).await {
            return answer;
        }
    }
}

/// The unit of opportunistic containers is there once one of them is asked for.
async fn submit_opportunistic(shared: &Arc<Shared>, id: YarnApplicationId, side: u32) -> Result<(), Status> {
    let spec = {
        let inner = shared.inner.lock();
        if side != OPPORTUNISTIC || inner.picture.unit_of(id, side).is_some() {
            return Ok(());
        }
        let application = inner.application(id).ok().map(|(application, _)| application.submission());
        application
            .map(|of| opportunistic_unit_spec(&shared.context.config, id, &of.user, &of.queue, of.priority))
    };
    let Some(spec) = spec else { return Ok(()) };
    let revision = submit_spec(shared, spec).await?;
    shared.until_read(revision).await;
    Ok(())
}

async fn change_groups(shared: &Shared, changes: v1::TaskGroupChanges) -> Result<Revision, Status> {
    let request = v1::UpdateUnitRequest { groups: Some(changes), ..v1::UpdateUnitRequest::default() };
    let answer = call(shared, async |mut client| client.update_unit(request.clone()).await).await?;
    Ok(Revision(answer.revision))
}

pub(super) async fn release(shared: &Arc<Shared>, id: YarnApplicationId, ordinals: &[u32]) {
    let (opportunistic, guaranteed): (Vec<u32>, Vec<u32>) =
        ordinals.iter().partition(|ordinal| **ordinal >= OPPORTUNISTIC);
    for (side, ordinals) in [(MASTER, guaranteed), (OPPORTUNISTIC, opportunistic)] {
        for ordinals in ordinals.chunks(N_ORDINALS_MAX) {
            release_side(shared, id, side, ordinals).await;
        }
    }
}

async fn release_side(shared: &Arc<Shared>, id: YarnApplicationId, side: u32, ordinals: &[u32]) {
    let released_ordinals = {
        let inner = shared.inner.lock();
        let unit = inner.picture.unit_of(id, side).filter(|unit| !unit.record.status.cancelled);
        let Some(unit) = unit else { return };
        ordinals.iter().map(|ordinal| unit.own(*ordinal)).collect()
    };
    let changes = v1::TaskGroupChanges {
        namespace: shared.context.config.namespace.clone(),
        name: unit_name_of(id, side),
        released_ordinals,
        ..v1::TaskGroupChanges::default()
    };
    match change_groups(shared, changes).await {
        // The next size of a group counts from here.
        Ok(revision) => shared.until_read(revision).await,
        // The unit is over: so is what was to be released.
        Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {}
        Err(status) => {
            tracing::warn!(application = %id, why = status.message(), "containers could not be released");
        }
    }
}
