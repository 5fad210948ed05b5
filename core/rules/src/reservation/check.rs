//! Whether reservations may be changed as asked: pure, all that is wrong at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_domain::reservation_spec::ReservationSpec;
use godel_domain::{
    demand::{Demand, DeviceRequest, MILLI_WHOLE},
    names::{self, BadName, ENTRIES_MAX, NAME_LEN_MAX, NAMESPACE_LEN_MAX},
    record_change::{DESCRIPTION_LEN_MAX, Ground, RecordChange, Report, Users, Violation, existence},
    resources::CPU,
    zone::CpuMode,
};

use crate::admission::{AMOUNT_MAX, amount_out_of_range};

/// Thousandths of one CPU.
const MILLI_CPU: i64 = 1_000;

/// Most reservations.
pub const N_RESERVATIONS_MAX: usize = 1_024;

/// Most slots of one.
pub const N_SLOTS_MAX: u32 = 4_096;

/// Most slots of all: a follower keeps each, and the binder looks at all of them when something happens that may end one.
pub const N_SLOTS_ALL_MAX: u64 = 16_384;

/// A change of a reservation.
pub type ReservationChange = RecordChange<Arc<ReservationSpec>>;

/// Checks changes of reservations, made together. `users` says which units have running units in slots of one.
///
/// # Errors
/// Everything wrong, in order of the changes.
pub fn reservations(
    known: &BTreeMap<String, Arc<ReservationSpec>>,
    changes: &[ReservationChange],
    users: &dyn Fn(&str) -> Users,
) -> Result<(), Vec<Violation>> {
    let mut report = Report::default();
    let mut seen = BTreeSet::new();
    let mut n_known = known.len();
    let mut n_slots: u64 = known.values().map(|spec| u64::from(spec.slots)).sum();
    for (idx, change) in changes.iter().enumerate() {
        report.change = idx;
        let (name, spec) = match change {
            RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => {
                (spec.name.as_str(), Some(spec))
            }
            RecordChange::Delete(name) => (name.as_str(), None),
        };
        if !seen.insert(name) {
            report.add(Ground::Invalid, "name", format!("`{name}` stands twice"));
        }
        let before = known.get(name);
        existence(change, before.is_some(), ("reservation", name), "name", &mut report);
        n_slots = n_slots.saturating_sub(before.map_or(0, |spec| u64::from(spec.slots)));
        match spec {
            Some(spec) => {
                fields(spec, &mut report);
                n_known += usize::from(before.is_none());
                n_slots += u64::from(spec.slots);
            }
            None => {
                n_known = n_known.saturating_sub(usize::from(before.is_some()));
                let users = users(name);
                if users.n > 0 {
                    let named = users.named();
                    let description = format!(
                        "units run in it: {named}; with `slots: 0` they go on without it, then delete it"
                    );
                    report.add(Ground::State, "name", description);
                }
            }
        }
    }
    if n_known > N_RESERVATIONS_MAX {
        let description = format!("there are {N_RESERVATIONS_MAX} reservations; no more are kept");
        report.add(Ground::State, "name", description);
    }
    if n_slots > N_SLOTS_ALL_MAX {
        let description =
            format!("{n_slots} slots over all reservations; at most {N_SLOTS_ALL_MAX} are kept");
        report.add(Ground::State, "slots", description);
    }
    report.finish()
}

fn fields(spec: &ReservationSpec, report: &mut Report) {
    report.named("name", names::label(&spec.name));
    report.named("namespace", names::name(&spec.namespace, NAMESPACE_LEN_MAX));
    if spec.selector.is_empty() {
        let description = "no labels of units: say for whom the room is kept";
        report.add(Ground::Invalid, "selector", description.to_owned());
    }
    labels("selector", &spec.selector, report);
    labels("node_selector", &spec.node_selector, report);
    if spec.slots > N_SLOTS_MAX {
        report.add(Ground::Invalid, "slots", format!("{} is above {N_SLOTS_MAX}", spec.slots));
    }
    let demand = &spec.demand;
    if demand.amounts().all(|(_, amount)| amount == 0) {
        let description = "asks for nothing: say what a slot has room for";
        report.add(Ground::Invalid, "demand", description.to_owned());
    }
    for (name, amount) in demand.requests.iter() {
        report.named(&format!("demand.requests[{name:?}]"), names::asked(name));
        if !(0..=AMOUNT_MAX).contains(&amount) {
            let description = amount_out_of_range(name, amount);
            report.add(Ground::Invalid, &format!("demand.requests[{name:?}]"), description);
        }
    }
    for (at, devices) in demand.devices.iter().enumerate() {
        report.named(&format!("demand.devices[{at}].kind"), names::device_kind(&devices.kind));
        if devices.models.len() > ENTRIES_MAX {
            let description = format!("{} models; at most {ENTRIES_MAX}", devices.models.len());
            report.add(Ground::Invalid, &format!("demand.devices[{at}].models"), description);
        }
    }
    lies(demand, report);
    if let Some(at) = spec.expires_ms.filter(|at| *at <= 0) {
        report.add(Ground::Invalid, "expires_ms", format!("{at} is no time"));
    }
    report.named("description", names::text(&spec.description, DESCRIPTION_LEN_MAX));
}

/// Where a slot lies on its node: as for replicas, or no replica would ever take it.
fn lies(demand: &Demand, report: &mut Report) {
    if demand.zones.is_some_and(|zones| zones.cpu_mode == CpuMode::Dedicated) {
        let milli = demand.requests.get(CPU);
        if milli <= 0 || milli % MILLI_CPU != 0 {
            let description = "dedicated CPUs are whole ones: keep a whole number of `cpu`, 1 or more";
            report.add(Ground::Invalid, "demand.zones.cpu_mode", description.to_owned());
        }
    }
    for (at, request) in demand.devices.iter().enumerate() {
        let Some(terms) = &request.terms else { continue };
        let field = |leaf: &str| format!("demand.devices[{at}].terms.{leaf}");
        for (leaf, text) in [("link", &terms.link), ("profile", &terms.profile)] {
            report.named(&field(leaf), names::text(text, NAMESPACE_LEN_MAX));
        }
        let other = &terms.same_zone_as;
        let is_beside = |known: &DeviceRequest| known.kind == *other && known.kind != request.kind;
        if !other.is_empty() && !demand.devices.iter().any(is_beside) {
            let description = format!("`{other}` names no other kind that is kept");
            report.add(Ground::Invalid, &field("same_zone_as"), description);
        }
        if !terms.profile.is_empty() && (request.count, request.milli) != (1, MILLI_WHOLE) {
            let description = "a profile is of one whole device".to_owned();
            report.add(Ground::Invalid, &field("profile"), description);
        }
    }
}

fn labels(field: &str, labels: &BTreeMap<String, String>, report: &mut Report) {
    if labels.len() > ENTRIES_MAX {
        report.add(Ground::Invalid, field, format!("{} entries; at most {ENTRIES_MAX}", labels.len()));
    }
    for (key, value) in labels {
        let value: Result<(), BadName> = names::text(value, NAME_LEN_MAX);
        for checked in [names::label_key(key), value] {
            report.named(&format!("{field}[{key:?}]"), checked);
        }
    }
}

#[cfg(test)]
mod tests {
    use godel_domain::{
        demand::DeviceTerms,
        resources::Resources,
        zone::{ZonePolicy, ZoneRequest},
    };

    use super::*;

    fn spec(name: &str) -> ReservationSpec {
        ReservationSpec {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            selector: [("app".to_owned(), "web".to_owned())].into(),
            slots: 4,
            demand: Demand {
                requests: Resources::new([("cpu", 1_000)]).unwrap(),
                devices: Vec::new(),
                host_ports: Vec::new(),
                zones: None,
            },
            ..ReservationSpec::default()
        }
    }

    fn none(name: &str) -> Arc<ReservationSpec> {
        Arc::new(ReservationSpec { slots: 0, ..spec(name) })
    }

    fn wrong(change: ReservationChange) -> Vec<(Ground, String)> {
        let there = |name: &str| (name.to_owned(), Arc::new(spec(name)));
        let known = [there("there"), there("used")].into();
        let users = |name: &str| match name {
            "used" => Users { n: 1, first: vec!["default/web".to_owned()] },
            _ => Users::default(),
        };
        let violations = reservations(&known, &[change], &users).err().unwrap_or_default();
        violations.into_iter().map(|violation| (violation.ground, violation.field)).collect()
    }

    #[test]
    fn everything_wrong_is_named() {
        let create = |spec: ReservationSpec| wrong(RecordChange::Create(Arc::new(spec)));
        assert_eq!(create(spec("new")), []);
        let bad = ReservationSpec {
            name: "No".to_owned(),
            namespace: String::new(),
            selector: BTreeMap::new(),
            slots: N_SLOTS_MAX + 1,
            demand: Demand::default(),
            node_selector: [("a b".to_owned(), String::new())].into(),
            expires_ms: Some(-1),
            description: "\u{7}".to_owned(),
        };
        let fields: Vec<String> = create(bad).into_iter().map(|(_, field)| field).collect();
        let expected =
            ["name", "namespace", "selector", "node_selector[\"a b\"]", "slots", "demand", "expires_ms"];
        assert_eq!(fields[..7], expected);
    }

    #[test]
    fn a_slot_that_no_replica_could_take_is_refused() {
        let terms = |terms: DeviceTerms| Some(Box::new(terms));
        let gpu = |count, of: Option<Box<DeviceTerms>>| DeviceRequest {
            kind: "gpu".to_owned(),
            count,
            milli: 1_000,
            models: Vec::new(),
            terms: of,
        };
        let dedicated = |policy| Some(ZoneRequest { policy, cpu_mode: CpuMode::Dedicated });
        let link = DeviceTerms { link: "nvlink".to_owned(), ..DeviceTerms::default() };
        let beside = DeviceTerms { same_zone_as: "nic".to_owned(), ..DeviceTerms::default() };
        let profile = DeviceTerms { profile: "1g.10gb".to_owned(), ..DeviceTerms::default() };
        let cases = [
            (1_000, dedicated(ZonePolicy::SingleZone), vec![gpu(2, terms(link))], vec![]),
            (1_500, dedicated(ZonePolicy::Exclusive), vec![], vec!["demand.zones.cpu_mode"]),
            (1_000, None, vec![gpu(1, terms(beside))], vec!["demand.devices[0].terms.same_zone_as"]),
            (1_000, None, vec![gpu(1, terms(profile.clone()))], vec![]),
            (1_000, None, vec![gpu(2, terms(profile))], vec!["demand.devices[0].terms.profile"]),
        ];
        for (cpu, zones, devices, expected) in cases {
            let requests = Resources::new([("cpu", cpu)]).unwrap();
            let demand = Demand { requests, devices, zones, ..spec("new").demand };
            let found = wrong(RecordChange::Create(Arc::new(ReservationSpec { demand, ..spec("new") })));
            let fields: Vec<String> = found.into_iter().map(|(_, field)| field).collect();
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn one_in_use_is_not_deleted() {
        let name = || "name".to_owned();
        assert_eq!(wrong(RecordChange::Create(Arc::new(spec("there")))), [(Ground::AlreadyExists, name())]);
        assert_eq!(wrong(RecordChange::Update(Arc::new(spec("new")))), [(Ground::NotFound, name())]);
        assert_eq!(wrong(RecordChange::Delete("new".to_owned())), [(Ground::NotFound, name())]);
        assert_eq!(wrong(RecordChange::Delete("used".to_owned())), [(Ground::State, name())]);
        assert_eq!(wrong(RecordChange::Delete("there".to_owned())), []);
        assert_eq!(wrong(RecordChange::Put(Arc::new(spec("used")))), []);
    }

    #[test]
    fn as_many_are_kept_as_may_be_and_no_more() {
        let of = |name: &str, slots| Arc::new(ReservationSpec { slots, ..spec(name) });
        let known = |n: usize, slots| -> BTreeMap<String, Arc<ReservationSpec>> {
            (0..n).map(|idx| format!("r{idx}")).map(|name| (name.clone(), of(&name, slots))).collect()
        };
        let wrong = |known: &BTreeMap<String, Arc<ReservationSpec>>, puts: &[(&str, u32)]| {
            let changes: Vec<_> =
                puts.iter().map(|(name, slots)| RecordChange::Put(of(name, *slots))).collect();
            let violations = reservations(known, &changes, &|_| Users::default()).err().unwrap_or_default();
            violations.into_iter().map(|one| (one.ground, one.field)).collect::<Vec<_>>()
        };
        let one_less = known(N_RESERVATIONS_MAX - 1, 0);
        assert_eq!(wrong(&one_less, &[("new", 0), ("r0", 0)]), []);
        assert_eq!(wrong(&one_less, &[("new", 0), ("newer", 0)]), [(Ground::State, "name".to_owned())]);
        let three = known(3, N_SLOTS_MAX);
        assert_eq!(u64::from(N_SLOTS_MAX) * 4, N_SLOTS_ALL_MAX);
        assert_eq!(wrong(&three, &[("new", N_SLOTS_MAX), ("r0", N_SLOTS_MAX)]), []);
        let one_more = [("new", N_SLOTS_MAX), ("newer", 1)];
        assert_eq!(wrong(&three, &one_more), [(Ground::State, "slots".to_owned())]);
    }

    #[test]
    fn one_that_goes_makes_room_for_another() {
        let known: BTreeMap<String, Arc<ReservationSpec>> = (0..N_RESERVATIONS_MAX)
            .map(|idx| format!("r{idx}"))
            .map(|name| (name.clone(), none(&name)))
            .collect();
        let fields = |changes: &[ReservationChange]| {
            let violations = reservations(&known, changes, &|_| Users::default()).err().unwrap_or_default();
            violations.into_iter().map(|one| (one.ground, one.field)).collect::<Vec<_>>()
        };
        let delete = |name: &str| RecordChange::Delete(name.to_owned());
        let create = |name: &str| RecordChange::Create(none(name));
        let name = |ground| (ground, "name".to_owned());
        assert_eq!(fields(&[delete("r0"), create("new")]), []);
        assert_eq!(fields(&[create("new"), delete("r0")]), []);
        assert_eq!(fields(&[delete("r0"), create("new"), create("newer")]), [name(Ground::State)]);
        let unknown = [delete("gone"), create("new")];
        assert_eq!(fields(&unknown), [name(Ground::NotFound), name(Ground::State)], "nothing goes");
    }

    #[test]
    fn labels_and_models_are_bounded() {
        let wrong = |n: usize| {
            let models = vec!["A10".to_owned(); n];
            let devices =
                vec![DeviceRequest { kind: "gpu".to_owned(), count: 1, milli: 1_000, models, terms: None }];
            let demand = Demand { devices, ..spec("new").demand };
            let node_selector = (0..n).map(|idx| (format!("k{idx}"), String::new())).collect();
            let spec = ReservationSpec { demand, node_selector, ..spec("new") };
            wrong(RecordChange::Create(Arc::new(spec)))
                .into_iter()
                .map(|(_, field)| field)
                .collect::<Vec<_>>()
        };
        assert_eq!(wrong(1), [""; 0]);
        assert_eq!(wrong(ENTRIES_MAX), [""; 0]);
        assert_eq!(wrong(ENTRIES_MAX + 1), ["node_selector", "demand.devices[0].models"]);
    }
}
