//! Words of files and flags for numbers of the API; absent is always `UNSPECIFIED`.

use godel_proto::v1;

pub(crate) type WordTable<const N: usize> = [(&'static str, i32); N];

/// The number of a word.
///
/// # Errors
/// The words that there are.
pub(crate) fn of(text: &str, words: &[(&'static str, i32)]) -> Result<i32, String> {
    let known = words.iter().find(|(word, _)| *word == text);
    let all = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    known.map(|(_, number)| *number).ok_or_else(|| format!("expected one of {}", all()))
}

pub(crate) const CLASS: WordTable<8> = [
    ("service", v1::WorkloadClass::Service as i32),
    ("stateful", v1::WorkloadClass::Stateful as i32),
    ("batch", v1::WorkloadClass::Batch as i32),
    ("gang", v1::WorkloadClass::Gang as i32),
    ("stream", v1::WorkloadClass::Stream as i32),
    ("training", v1::WorkloadClass::Training as i32),
    ("yarn", v1::WorkloadClass::Yarn as i32),
    ("daemon", v1::WorkloadClass::Daemon as i32),
];
pub(crate) const POOL: WordTable<2> =
    [("guaranteed", v1::Pool::Guaranteed as i32), ("best-effort", v1::Pool::BestEffort as i32)];
pub(crate) const RESTART: WordTable<3> = [
    ("never", v1::RestartPolicy::Never as i32),
    ("on-failure", v1::RestartPolicy::OnFailure as i32),
    ("always", v1::RestartPolicy::Always as i32),
];
pub(crate) const ON_EVICTION: WordTable<2> =
    [("requeue", v1::OnEviction::Requeue as i32), ("fail", v1::OnEviction::Fail as i32)];
pub(crate) const ON_BELOW_MIN: WordTable<3> = [
    ("keep", v1::OnBelowMin::Keep as i32),
    ("restart", v1::OnBelowMin::Restart as i32),
    ("stop", v1::OnBelowMin::Stop as i32),
];
pub(crate) const ON_FAILURE: WordTable<3> = [
    ("keep", v1::OnFailure::Keep as i32),
    ("restart", v1::OnFailure::Restart as i32),
    ("stop", v1::OnFailure::Stop as i32),
];
pub(crate) const ZONE_POLICY: WordTable<5> = [
    ("none", v1::ZonePolicy::None as i32),
    ("best-effort", v1::ZonePolicy::BestEffort as i32),
    ("restricted", v1::ZonePolicy::Restricted as i32),
    ("single-zone", v1::ZonePolicy::SingleZone as i32),
    ("exclusive", v1::ZonePolicy::Exclusive as i32),
];
pub(crate) const CPU_MODE: WordTable<3> = [
    ("shared", v1::CpuMode::Shared as i32),
    ("dedicated", v1::CpuMode::Dedicated as i32),
    ("reclaimed", v1::CpuMode::Reclaimed as i32),
];
pub(crate) const EFFECT: WordTable<3> = [
    ("no-schedule", v1::TaintEffect::NoSchedule as i32),
    ("prefer-no-schedule", v1::TaintEffect::PreferNoSchedule as i32),
    ("no-execute", v1::TaintEffect::NoExecute as i32),
];
pub(crate) const POLICY: WordTable<4> = [
    ("fifo", v1::QueuePolicy::Fifo as i32),
    ("priority", v1::QueuePolicy::Priority as i32),
    ("drf", v1::QueuePolicy::Drf as i32),
    ("fair-share", v1::QueuePolicy::FairShare as i32),
];
