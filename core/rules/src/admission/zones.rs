//! Checks of what a replica asks of the zones and links of its node.

use std::borrow::Cow;

use godel_base::{
    quantity,
    quantity::MILLI_WHOLE,
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    defaults::{AppliedDefault, DefaultValue},
    demand::{DeviceRequest, DeviceTerms, Pool},
    limits::{AMOUNT_MAX, amount_out_of_range},
    names,
    submission::{AskedCpuMode, Given, ZoneSubmission},
    zone::{CpuMode, ZonePolicy, ZoneRequest},
};

use super::TemplateReport;

/// Most gigabits per second that may be asked of a device.
const GBPS_MAX: u32 = 1_000_000;
/// Thousandths of one CPU.
const MILLI_CPU: i64 = 1_000;

/// Returns what a replica asks of zones; `None` if it has none.
pub(super) fn zones(
    given: ZoneSubmission,
    requests: &Resources,
    pool: Pool,
    report: &mut TemplateReport<'_>,
    defaults: &mut Vec<AppliedDefault>,
) -> Option<ZoneRequest> {
    let field = |leaf: &str| format!("demand.zones.{leaf}");
    let mut wrong = |leaf: &str, what: &str| report.add(field(leaf), what);
    let cpu_mode = match given.cpu_mode {
        Given::Absent => None,
        Given::Value(mode) => Some(mode),
        Given::Unknown(code) => {
            wrong("cpu_mode", &format!("{code} stands for nothing"));
            None
        }
    };
    let policy = match given.policy {
        Given::Absent => None,
        Given::Value(policy) => Some(policy),
        Given::Unknown(code) => {
            wrong("policy", &format!("{code} stands for nothing"));
            None
        }
    };
    match (pool, cpu_mode) {
        (Pool::Guaranteed, Some(AskedCpuMode::Reclaimed)) => {
            wrong("cpu_mode", "reclaimed CPUs are for units of the best-effort pool, which all have them");
        }
        (Pool::BestEffort, Some(AskedCpuMode::Shared | AskedCpuMode::Dedicated)) => {
            wrong(
                "cpu_mode",
                "units of the best-effort pool have reclaimed CPUs: leave it out, or change the pool",
            );
        }
        (Pool::Guaranteed | Pool::BestEffort, _) => {}
    }
    if pool == Pool::BestEffort {
        if policy.flatten().is_some() {
            wrong(
                "policy",
                "units of the best-effort pool are given no zones: leave it out, or change the pool",
            );
        }
        return None;
    }
    if cpu_mode != Some(AskedCpuMode::Dedicated) {
        return policy.flatten().map(|policy| ZoneRequest { policy, cpu_mode: CpuMode::Shared });
    }
    let milli = requests.get(CPU);
    if milli <= 0 || milli % MILLI_CPU != 0 {
        wrong("cpu_mode", "dedicated CPUs are whole ones: request a whole number of `cpu`, 1 or more");
    }
    let policy = match policy {
        None => {
            let value = DefaultValue::Word(ZonePolicy::SingleZone.name());
            defaults.push(AppliedDefault { field: Cow::Owned(report.path_of(field("policy"))), value });
            ZonePolicy::SingleZone
        }
        Some(None) => {
            wrong(
                "policy",
                "dedicated CPUs lie in zones: ask for single-zone, restricted, best-effort or exclusive",
            );
            ZonePolicy::SingleZone
        }
        Some(Some(policy)) => policy,
    };
    Some(ZoneRequest { policy, cpu_mode: CpuMode::Dedicated })
}

/// Checks what the devices of a request have to be besides; nothing is left of terms that say nothing.
pub(super) fn device_terms(
    at: usize,
    terms: DeviceTerms,
    count: u32,
    milli: u32,
    report: &mut TemplateReport<'_>,
) -> Option<Box<DeviceTerms>> {
    if terms == DeviceTerms::default() {
        return None;
    }
    let field = |leaf: &str| format!("demand.devices[{at}].terms.{leaf}");
    for (leaf, text) in
        [("link", &terms.link), ("same_zone_as", &terms.same_zone_as), ("profile", &terms.profile)]
    {
        if !text.is_empty() {
            report.named(field(leaf), names::text(text, names::NAMESPACE_LEN_MAX));
        }
    }
    let mut wrong = |leaf: &str, what: &str| report.add(field(leaf), what);
    if terms.gbps > GBPS_MAX {
        wrong("gbps", &format!("{} is more than {GBPS_MAX}", terms.gbps));
    }
    if !(0..=AMOUNT_MAX).contains(&terms.memory) {
        wrong("memory", &amount_out_of_range(MEMORY, terms.memory));
    }
    if !terms.profile.is_empty() {
        if count != 1 || milli != MILLI_WHOLE {
            let asked = quantity::show_devices(i64::from(count) * i64::from(milli));
            wrong("profile", &format!("a profile is asked of one whole device, not of {asked}"));
        }
        if !terms.link.is_empty() {
            wrong("profile", "the slices of a profile are of one device: leave out `link`");
        }
    }
    Some(Box::new(terms))
}

/// Checks that devices lie beside devices that are asked for.
pub(super) fn check_beside(devices: &[DeviceRequest], report: &mut TemplateReport<'_>) {
    let other_of = |request: &DeviceRequest| {
        request.terms.as_ref().map_or(String::new(), |terms| terms.same_zone_as.clone())
    };
    for (at, request) in devices.iter().enumerate() {
        let other = other_of(request);
        if other.is_empty() {
            continue;
        }
        let wrong = match devices.iter().find(|known| known.kind == other) {
            Some(known) if known.kind == request.kind => "names the kind of the request itself",
            Some(known) if !other_of(known).is_empty() => {
                "names a kind whose devices lie beside others themselves"
            }
            Some(_) => continue,
            None => "names a kind that is not requested",
        };
        report
            .add(format_args!("demand.devices[{at}].terms.same_zone_as"), format_args!("`{other}` {wrong}"));
    }
}
