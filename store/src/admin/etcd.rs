//! The same for a store in an etcd.

use std::path::{Path, PathBuf};

use godel_crash::CrashPoints;
use godel_proto::v1;

use super::{
    AdminError, CheckReport, ContentCheck, ExportReport, RemoveReport, TruncateReport, examine,
    export::{recover_state, write_new},
    repair::{refuse_removal, remove_from},
};
use crate::{
    identity,
    log::{
        Log as _, LogError,
        etcd::{EtcdConfig, EtcdLog},
    },
    loss::Loss,
    migration,
    record::Key,
    recovery,
    state::State,
    store::Engine,
};

/// How often a store is read whose state drops the generations that are being read.
const N_READS: u32 = 5;

/// As [`super::check`], of the store in an etcd, with the watermark of this machine. The process that serves the store is not disturbed; what is
/// committed meanwhile may look torn.
///
/// # Errors
/// etcd does not answer.
pub fn check_etcd(config: &EtcdConfig, content: ContentCheck<'_>) -> Result<CheckReport, AdminError> {
    let log = EtcdLog::open_to_look(config)?;
    let mut report = CheckReport::default();
    report.notes.extend(migration::describe(&Engine::Etcd(config.clone()))?);
    examine(&log, content, &mut report)?;
    Ok(report)
}

/// As [`super::export()`], of the store in an etcd. The process that serves the store is not disturbed: what it has acknowledged before is
/// exported, and what it commits meanwhile may be.
///
/// # Errors
/// There is no store, it is damaged, etcd does not answer, or the file is there already or cannot be written.
pub fn export_etcd(config: &EtcdConfig, file: &Path) -> Result<ExportReport, AdminError> {
    write_new(file, || read_state(config))
}

fn read_state(config: &EtcdConfig) -> Result<State, AdminError> {
    for _ in 0..N_READS {
        let log = EtcdLog::open_to_look(config)?;
        let generations = log.reader().generations();
        if generations.is_empty() && log.unopened().is_empty() {
            return Err(AdminError::NoStoreAt { place: Engine::Etcd(config.clone()).to_string() });
        }
        let state = recover_state(&log, str::to_owned);
        // The state is that of the newest complete generation and of those behind it. The log of one that is being deleted may
        // seem to end early.
        let newest = generations.iter().rfind(|generation| generation.manifest.is_some());
        let kept = EtcdLog::open_to_look(config)?.reader().generations();
        if newest.is_none_or(|newest| kept.iter().any(|generation| generation.base == newest.base)) {
            return state;
        }
    }
    let why = format!("the state that serves it dropped what was being read, {N_READS} times; try again");
    Err(LogError::Unknown(why).into())
}

/// As [`super::truncate`], of the store in an etcd: it accepts that the etcd is another one than that of the watermark, has gone back, or
/// has less than the watermark claims. The process that serves the store is fenced off. The keys of the damaged one stay, and begin with what
/// [`TruncateReport::kept_in`] says.
///
/// # Errors
/// The state is whole, or etcd does not answer.
pub fn truncate_etcd(config: &EtcdConfig) -> Result<TruncateReport, AdminError> {
    let log = EtcdLog::open_for_repair(config)?;
    let (reader, claimed) = (log.reader(), log.claimed());
    if log.unopened().is_empty()
        && let Ok(whole) = recovery::recover(&*reader, &claimed)
    {
        return Err(AdminError::NotDamaged { dir: config.dir.clone(), revision: whole.state.revision().0 });
    }
    let mut state = recovery::salvage(&*reader)?;
    let recovered = state.revision();
    let loss = Loss::after(recovered, &claimed);
    drop(reader);
    identity::renew(&mut state);
    let kept_in = PathBuf::from(log.replace(&state)?);
    Ok(TruncateReport { recovered: recovered.0, revision: state.revision().0, loss, kept_in })
}

/// As [`super::remove`], of the store in an etcd. The process that serves it is fenced off.
///
/// # Errors
/// It is damaged, etcd does not answer, or the record is not there or must stay.
pub fn remove_etcd(
    config: &EtcdConfig,
    kind: v1::Kind,
    key: &Key,
    now_ms: i64,
) -> Result<RemoveReport, AdminError> {
    refuse_removal(kind, key)?;
    let log = migration::open_unmarked(&Engine::Etcd(config.clone()), CrashPoints::default())?;
    remove_from(log, kind, key, now_ms)
}
