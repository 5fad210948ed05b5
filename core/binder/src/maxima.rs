//! Maxima of queues where victims leave them: a hold that they back takes there only what they do not.

use std::collections::BTreeMap;

use godel_base::ids::{HoldId, IdMap, RunningUnitId, UnitId};
use godel_cluster::Cluster;
use godel_domain::decision::Claim;
use godel_queueing::{Amounts, Need, QueueIdx, QueueMaximum, Quota, at};

use super::{
    holds::{BinderHolds, KnownHolds, replace::TakenOver},
    picture::BinderPicture,
    unit::Unit,
};

/// What victims give up in queues is counted as things are: before anything is asked of a queue.
pub(super) fn settle_reliefs(holds: &mut BinderHolds, picture: &mut BinderPicture) {
    if holds.known.reliefs.is_stale() {
        let (cluster, units) = (&picture.cluster, &picture.units);
        let pays = |quota: &Quota, victim: &RunningUnitId| pays_still(quota, victim, cluster, units);
        holds.known.reliefs.recount(picture.quotas.quota_mut(), pays);
    }
}

/// Whether a decision whose victims leave has room in its queue only because they do, and then those of them on other nodes
/// that have to leave for that.
///
/// # Errors
/// Not even then: a maximum that is in the way.
pub(super) fn at_maximum(
    holds: &mut BinderHolds,
    picture: &mut BinderPicture,
    unit: UnitId,
    queue: QueueIdx,
    needs: &[Need],
    claim: &Claim,
    taken: &TakenOver,
) -> Result<Option<Vec<RunningUnitId>>, QueueMaximum> {
    settle_reliefs(holds, picture);
    let quota = picture.quotas.quota();
    let (cluster, units) = (&picture.cluster, &picture.units);
    let payer = units.get(&unit).map_or(queue.into(), |unit| unit.payer);
    let Some(limit) = quota.usage().lacking(payer, needs) else { return Ok(None) };
    let pays = |quota: &Quota, victim: &RunningUnitId| pays_still(quota, victim, cluster, units);
    let asked = quota.usage().sum(needs);
    let victims = claim.victims().chain(taken.victims()).copied();
    let more = holds.known.reliefs.more(quota, unit, queue, &asked, victims, pays);
    let lent = |level: QueueIdx, idx: usize| {
        more.iter().find(|(other, _)| *other == level).map_or(0, |(_, amounts)| at(amounts, idx))
    };
    let preemption = claim.preemption().filter(|_| !holds.known.ends_at_maximum(unit));
    let Some(preemption) = preemption else { return Err(limit) };
    if let Some(limit) = quota.usage().exceeded(payer, &asked, lent) {
        return Err(limit);
    }
    let others = preemption.others.iter().filter(|victim| {
        pays(quota, victim).is_some_and(|(of, _)| quota.usage().sums().share_maximum(queue, of))
    });
    Ok(Some(others.copied().collect()))
}

/// Of a unit's holds those at a maximum, which count together: they are bound together, and go together. `dead` and `ready`
/// are made to say so.
pub(super) fn keep_together(
    holds: &KnownHolds,
    ids: &[HoldId],
    dead: &mut BTreeMap<&'static str, Vec<HoldId>>,
    ready: &mut Vec<HoldId>,
) -> Vec<HoldId> {
    let is_of_them = |id: &HoldId| holds.get(*id).is_some_and(|hold| hold.at_maximum);
    let team: Vec<HoldId> = ids.iter().copied().filter(is_of_them).collect();
    if team.iter().all(|id| ready.contains(id)) {
        return team;
    }
    ready.retain(|id| !team.contains(id));
    let ends = dead.iter().find(|(_, dead)| dead.iter().any(|id| team.contains(id)));
    if let Some(why) = ends.map(|(why, _)| *why) {
        dead.values_mut().for_each(|dead| dead.retain(|id| !team.contains(id)));
        dead.retain(|_, dead| !dead.is_empty());
        dead.entry(why).or_default().extend(&team);
    }
    team
}

/// The queue of a victim that is still there, and what it takes of it.
fn pays_still(
    quota: &Quota,
    victim: &RunningUnitId,
    cluster: &Cluster,
    units: &IdMap<UnitId, Box<Unit>>,
) -> Option<(QueueIdx, Amounts)> {
    let row = cluster.rows().remains(victim)?;
    let group = cluster.rows().of(victim.unit)?.groups.get(usize::from(row.group))?.as_ref()?;
    let queue = units.get(&victim.unit).map(|unit| unit.queue)?;
    Some((queue, quota.usage().amounts_of(&group.demand)))
}
