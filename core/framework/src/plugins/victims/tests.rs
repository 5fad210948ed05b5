//! Who may leave for a seeker, rule by rule.

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId};
use godel_cluster::{AffinityTerms, Cluster};
use godel_domain::{
    budget_spec::{Amount, BudgetSpec, Limit},
    demand::Pool,
    hold::{Hold, Slot},
    label_expression::parse,
    reservation_spec::ReservationSpec,
    running_units::{
        Bind, Evict, EvictionReason, GroupDemand, Phase, PreemptionTerms, RunChange, RunningUnits, Statuses,
    },
    unit::OnEviction,
    unit_affinity::{NODE, UnitAffinity, UnitTerm},
    unit_topology::UnitTopology,
};
use godel_rules::budget::{Spent, UnitIdentity, WantedOrdinals};

use crate::{
    plugins::{
        tests::{cluster, demand},
        victims::whole_gang::{group_minima, min_member},
    },
    point::{Rank, Seeker, Sides, Spared, VictimInput, WholeUnit},
    profile::{Profile, ProfileSpec},
    registry::{VICTIM_RULES, may_leave, may_leave_whole},
};

const SEEKER: Seeker =
    Seeker { unit: UnitId(9), priority: 50, pool: Pool::Guaranteed, now_ms: 10_000, spares_masters: false };
const VICTIM: UnitId = UnitId(1);

/// Two replicas of a unit on one node, bound at 1,000.
struct World {
    cluster: Cluster,
    /// Whom the seeker was preempted for.
    preemptors: Vec<UnitId>,
    sides: Sides,
}

fn world(change: impl Fn(&mut PreemptionTerms), pool: Pool) -> World {
    let mut cluster = cluster(0, |_, _| {});
    let mut terms =
        PreemptionTerms { priority: 5, preemptible: true, min_member: 1, ..PreemptionTerms::default() };
    change(&mut terms);
    let bind = Bind {
        demand: Arc::new(demand(1, 1, None)),
        pool,
        ordinals: vec![0, 1],
        nodes: vec![NodeId(1), NodeId(1)],
        standing: Some(Arc::new(terms)),
        ..Bind::default()
    };
    cluster.apply_rows(VICTIM, &RunChange::Bind(bind), Revision(2), 1_000);
    World { cluster, preemptors: Vec::new(), sides: Sides::default() }
}

fn plain() -> World {
    world(|_| {}, Pool::Guaranteed)
}

impl World {
    fn says(&self, seeker: &Seeker, spent: Option<&Spent>) -> Result<(), Spared> {
        let rows = self.cluster.rows().of(VICTIM).unwrap();
        let row = rows.row(0);
        let of = VictimInput::new(&self.cluster, seeker, &self.preemptors, VICTIM, rows, 0, &row, self.sides);
        may_leave(&VictimInput { spent, ..of })
    }
}

#[test]
fn each_rule_spares_what_its_name_says() {
    let terms = |change: fn(&mut PreemptionTerms)| world(change, Pool::Guaranteed);
    let evicted = {
        let mut world = plain();
        let evict = Evict {
            ordinals: vec![0],
            incarnations: Vec::new(),
            reason: EvictionReason::Drained,
            by: String::new(),
            preemptor: UnitId(0),
        };
        world.cluster.apply_rows(VICTIM, &RunChange::Evict(evict), Revision(3), 2_000);
        world
    };
    let refused = |why| Err(Spared::Refused(why));
    let cases: [(&str, World, Seeker, Result<(), Spared>); 14] = [
        ("all rules pass", plain(), SEEKER, Ok(())),
        ("not-leaving", evicted, SEEKER, refused("leaves already")),
        ("not-leaving: its own", plain(), Seeker { unit: VICTIM, ..SEEKER }, refused("leaves already")),
        ("same-pool", world(|_| {}, Pool::BestEffort), SEEKER, refused("is of another pool")),
        ("preemptible", terms(|terms| terms.preemptible = false), SEEKER, refused("is not preemptible")),
        ("lower-rank", plain(), Seeker { priority: 5, ..SEEKER }, refused("its rank is not lower")),
        (
            "lower-rank: its queue is within its guarantee",
            World { sides: Sides { seeker: false, other: true }, ..plain() },
            SEEKER,
            refused("its rank is not lower"),
        ),
        (
            "lower-rank: it borrows from the seeker",
            World { sides: Sides { seeker: true, other: false }, ..plain() },
            Seeker { priority: -5, ..SEEKER },
            Ok(()),
        ),
        ("no-loop", World { preemptors: vec![VICTIM], ..plain() }, SEEKER, Err(Spared::Loop)),
        ("no-loop: another one", World { preemptors: vec![UnitId(3)], ..plain() }, SEEKER, Ok(())),
        ("min-run", terms(|terms| terms.min_run_ms = 9_001), SEEKER, Err(Spared::Until(10_001))),
        ("min-run: it is over", terms(|terms| terms.min_run_ms = 9_000), SEEKER, Ok(())),
        ("master-last", terms(|terms| terms.has_master = true), SEEKER.sparing_masters(), Err(Spared::Last)),
        ("master-last: nobody else is enough", terms(|terms| terms.has_master = true), SEEKER, Ok(())),
    ];
    for (name, world, seeker, expected) in cases {
        assert_eq!(world.says(&seeker, None), expected, "{name}");
    }
}

#[test]
fn a_round_of_evictions_is_made_once() {
    // 1 was preempted for 9, and 9 for 2; 2 was preempted for 1 or for somebody else.
    for (preemptor_of_2, expected) in [(VICTIM, Err(Spared::Loop)), (UnitId(7), Ok(()))] {
        let mut world = World { preemptors: vec![UnitId(2)], ..plain() };
        let mut rows = world.cluster.rows().of(VICTIM).unwrap().clone();
        rows.set_lineage(vec![SEEKER.unit], Vec::new());
        world.cluster.load_rows(VICTIM, rows);
        let mut of_2 = RunningUnits::default();
        of_2.set_lineage(vec![preemptor_of_2], Vec::new());
        world.cluster.load_rows(UnitId(2), of_2);
        assert_eq!(world.says(&SEEKER, None), expected, "{preemptor_of_2:?}");
    }
}

#[test]
fn what_a_unit_has_to_be_near_to_does_not_leave_for_it() {
    let refused = Err(Spared::Refused("is what the preemptor has to be near to"));
    for (app, weight, expected) in [("db", 0, refused), ("db", 10, Ok(())), ("web", 0, Ok(()))] {
        let mut world = plain();
        let term = UnitTerm { units: parse("app = db").unwrap(), topology: NODE.to_owned(), weight };
        let near = UnitAffinity { near: vec![term], ..UnitAffinity::default() };
        let (topology, pool) = (UnitTopology::default(), Pool::Guaranteed);
        let terms =
            AffinityTerms { affinity: &near, topology: &topology, groups: &[], templates: Vec::new(), pool };
        world.cluster.units_mut().put_terms(
            SEEKER.unit,
            &UnitIdentity::new("default", "client", [].into_iter()),
            &terms,
        );
        let identity = UnitIdentity::new("default", "victim", [("app", app)].into_iter());
        world
            .cluster
            .units_mut()
            .offer(VICTIM, &identity, || WantedOrdinals::new([(0, 2)], OnEviction::Requeue));
        assert_eq!(world.says(&SEEKER, None), expected, "{app}, {weight}");
    }
}

#[test]
fn a_running_unit_in_a_slot_leaves_its_room_to_the_reservation() {
    for (occupant, expected) in [
        (RunningUnitId::new(VICTIM, 0, 0), Err(Spared::Refused("is in a slot of a reservation"))),
        (RunningUnitId::new(VICTIM, 1, 0), Ok(())),
        (RunningUnitId::new(VICTIM, 0, 1), Ok(())),
    ] {
        let mut world = plain();
        let spec = ReservationSpec { name: "r".to_owned(), slots: 1, ..ReservationSpec::default() };
        world.cluster.holds_mut().put_reservation(Arc::new(spec));
        world.cluster.held_mut().put(Arc::new(Hold {
            id: HoldId(1),
            node: NodeId(1),
            demand: Arc::new(demand(1, 1, None)),
            ordinals: vec![0],
            slot: Some(Slot { reservation: Arc::from("r"), occupant: Some(occupant) }),
            ..Hold::default()
        }));
        assert_eq!(world.says(&SEEKER, None), expected, "{occupant:?}");
    }
}

#[test]
fn a_budget_spares_what_it_does_not_allow_beside_what_leaves_already() {
    let mut world = plain();
    let limit = Limit::MaxUnavailable(Amount::Count(1));
    let namespace = "default".to_owned();
    let budget = BudgetSpec {
        name: "b".to_owned(),
        unit: "web".to_owned(),
        namespace,
        limit,
        ..BudgetSpec::default()
    };
    world.cluster.taken_mut().put_budget(Arc::new(budget), Revision(1));
    let phases = vec![Phase::Running; 2];
    let started = Statuses { ordinals: vec![0, 1], phases, ..Statuses::default() };
    world.cluster.apply_rows(VICTIM, &RunChange::Statuses(started), Revision(3), 2_000);
    let identity = UnitIdentity::new("default", "web", [].into_iter());
    world.cluster.units_mut().offer(VICTIM, &identity, || WantedOrdinals::new([(0, 2)], OnEviction::Requeue));
    let mut spent = Spent::default();
    assert_eq!(world.says(&SEEKER, Some(&spent)), Ok(()));
    let rows = world.cluster.rows().of(VICTIM).unwrap();
    world.cluster.taken().budgets().spend(VICTIM, 1, &rows.row(1), &mut spent);
    assert_eq!(world.says(&SEEKER, Some(&spent)), Err(Spared::Budget), "one of two leaves already");
    assert_eq!(world.says(&SEEKER, None), Ok(()), "the binder counts all victims of a decision together");
}

#[test]
fn a_unit_leaves_whole_only_if_all_of_it_may_leave() {
    assert!(may_leave_whole(&WholeUnit { n_spared: 0 }));
    assert!(!may_leave_whole(&WholeUnit { n_spared: 1 }));
    let group = |min_member, group_min_member| {
        let terms = PreemptionTerms { min_member, group_min_member, ..PreemptionTerms::default() };
        Some(GroupDemand {
            demand: Arc::new(demand(1, 1, None)),
            pool: Pool::Guaranteed,
            standing: Some(Arc::new(terms)),
        })
    };
    let rows = RunningUnits { groups: vec![group(4, 0), None, group(4, 2)], ..RunningUnits::default() };
    assert_eq!(min_member(&rows), 4);
    assert_eq!(group_minima(&rows).collect::<Vec<_>>(), [(2, 2)]);
    assert_eq!(min_member(&RunningUnits::default()), 0);
}

#[test]
fn a_profile_has_every_rule() {
    let of = |names: &[&str]| {
        let victim_rules = Some(names.iter().map(|name| (*name).to_owned()).collect());
        Profile::new(&ProfileSpec { victim_rules, ..ProfileSpec::of_scores(&[("spread", 1)]) })
    };
    let all = VICTIM_RULES.map(|rule| rule.name);
    assert_eq!(of(&all), Profile::new(&ProfileSpec::of_scores(&[("spread", 1)])));
    assert_eq!(
        of(&all[1..]).unwrap_err().to_string(),
        "`victim_rules`: the victim rule `not-leaving` cannot be left out, because the binder checks it; allowed is the whole list: \
         not-leaving, unreserved, same-pool, preemptible, lower-rank, no-loop, min-run, disruption-budget, \
         master-last, whole-gang"
    );
    assert_eq!(
        of(&["lower-ranks"]).unwrap_err().to_string(),
        "`victim_rules[0]`: there is no victim rule `lower-ranks` (did you mean `lower-rank`?); there are not-leaving, unreserved, \
         same-pool, preemptible, lower-rank, no-loop, min-run, disruption-budget, \
         master-last, whole-gang"
    );
}

#[test]
fn who_would_leave_anyway_does_not_rest_on_borrowing() {
    // Whether the seeker and the other are guaranteed; for a priority below, equal and above whether the other is
    // outranked, and whether it has to leave only because it borrows.
    let cases = [
        ((false, false), [false, false, true], [true, true, true]),
        ((false, true), [false, false, false], [false, false, false]),
        ((true, false), [true, true, true], [true, true, false]),
        ((true, true), [false, false, true], [false, false, false]),
    ];
    for ((seeker, other), outranked, rests) in cases {
        let sides = Sides { seeker, other };
        assert_eq!([4, 5, 6].map(|priority| sides.outranked(priority, 5)), outranked, "{sides:?}");
        assert_eq!([4, 5, 6].map(|priority| sides.rests_on_borrowing(priority, 5)), rests, "{sides:?}");
    }
}

#[test]
fn one_more_victim_is_never_less() {
    let rank = |guaranteed, priority| Rank { guaranteed, priority };
    assert_eq!(rank(false, i32::MIN).weight(), 1);
    assert_eq!(rank(false, i32::MAX).weight(), 1 << 32);
    assert!(rank(true, i32::MIN).weight() > rank(false, i32::MAX).weight());
}
