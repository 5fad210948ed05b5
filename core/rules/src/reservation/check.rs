//! Whether reservations may be changed as asked: pure, all that is wrong at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_domain::{
    record_change::{Ground, RecordChange, Report, Users, Violation, existence},
    reservation_spec::ReservationSpec,
};

/// Most reservations.
pub const N_RESERVATIONS_MAX: usize = 1_024;

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
        existence(change, before.is_some(), "reservation", name, "name", &mut report);
        n_slots = n_slots.saturating_sub(before.map_or(0, |spec| u64::from(spec.slots)));
        match spec {
            Some(spec) => {
                spec.check_fields(&mut report);
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

#[cfg(test)]
mod tests {
    use godel_base::resources::Resources;
    use godel_domain::{
        demand::{Demand, DeviceRequest, DeviceTerms},
        names::ENTRIES_MAX,
        reservation_spec::N_SLOTS_MAX,
        zone::{CpuMode, ZonePolicy, ZoneRequest},
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
