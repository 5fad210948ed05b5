use std::{collections::BTreeMap, sync::Arc};

use godel_base::resources::Resources;
use godel_domain::queue_spec::QueueSpec;
use godel_testkit::BuildDemand as _;
use proptest::{collection::vec, prelude::*};

use super::{columns::N_RESOURCES_MAX, *};
use crate::Quota;

fn demand(cpu: i64, memory: i64, gpu_milli: u32) -> Demand {
    godel_testkit::demand(cpu).memory(memory).gpus(gpu_milli.div_ceil(1_000), gpu_milli.min(1_000), &[])
}

fn spec(path: &str, max: &[(&str, i64)], max_running_units: u32) -> Arc<QueueSpec> {
    let max = max.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    Arc::new(QueueSpec { max, max_running_units, ..QueueSpec::new(path) })
}

#[test]
fn headroom_names_the_maximum_that_ends_it() {
    let mut quota = Quota::default();
    quota.put(spec("a", &[("cpu", 100), ("gpu", 8_000)], 0));
    quota.put(spec("a.b", &[("cpu", 60), ("memory", 0)], 20));
    let (b, c) = (quota.queue("a.b"), quota.queue("a.c"));
    let usage = quota.usage_mut();
    let (thin, fat) = (usage.intern(&demand(1, 0, 0)), usage.intern(&demand(10, 0, 2_000)));
    let (memory, nothing) = (usage.intern(&demand(1, 1, 0)), usage.intern(&demand(0, 0, 0)));
    let cases = [
        (b, thin, 20, Some(("a.b", "running units"))),
        (b, fat, 4, Some(("a", "gpu"))),
        (b, memory, 0, Some(("a.b", "memory"))),
        (b, nothing, 20, Some(("a.b", "running units"))),
        (c, thin, 100, Some(("a", "cpu"))),
        (c, memory, 100, Some(("a", "cpu"))),
        (c, nothing, u32::MAX, None),
        (QueueIdx::DEFAULT, fat, u32::MAX, None),
    ];
    for (queue, ask, n, limit) in cases {
        let headroom = quota.usage().headroom(queue, ask);
        let named = headroom.limit.map(|limit| quota.limit(limit));
        assert_eq!((headroom.n, named), (n, limit), "{ask:?} in {}", quota.tree().path(queue));
    }
    quota.put(spec("a.e", &[("cpu", 100)], 0));
    let e = quota.queue("a.e");
    let named = quota.usage().headroom(e, thin).limit.map(|limit| quota.limit(limit));
    assert_eq!(named, Some(("a.e", "cpu")), "of equal ones the lowest");
    quota.usage_mut().add(c, Need { ask: thin, n: 95 });
    let headroom = quota.usage().headroom(b, thin);
    assert_eq!((headroom.n, headroom.limit.map(|limit| quota.limit(limit))), (5, Some(("a", "cpu"))));
    // A maximum below what is used admits nothing and breaks nothing.
    quota.put(spec("a", &[("cpu", 50)], 0));
    assert_eq!(quota.usage().headroom(b, thin).n, 0);
    quota.usage_mut().sub(c, Need { ask: thin, n: 95 });
    assert_eq!(quota.usage().headroom(c, thin).n, 50);
}

#[test]
fn what_never_fits_is_told_from_what_does_not_fit_now() {
    let mut quota = Quota::default();
    quota.put(spec("a", &[("cpu", 10)], 0));
    quota.put(spec("a.b", &[("cpu", 100)], 0));
    let b = quota.queue("a.b");
    let usage = quota.usage_mut();
    let ask = usage.intern(&demand(3, 0, 0));
    usage.add(b, Need { ask, n: 2 });
    let short = |quota: &Quota, n| {
        let shortage = quota.usage().shortage(b, Need { ask, n })?;
        Some((quota.limit(shortage.limit).0.to_owned(), shortage.is_hopeless))
    };
    assert_eq!(short(&quota, 1), None);
    assert_eq!(short(&quota, 2), Some(("a".to_owned(), false)));
    assert_eq!(short(&quota, 4), Some(("a".to_owned(), true)));
    assert_eq!(short(&quota, 40), Some(("a.b".to_owned(), true)));
}

#[test]
fn devices_count_by_kind_in_thousandths() {
    let mut quota = Quota::default();
    let queue = quota.queue("a");
    let usage = quota.usage_mut();
    let share = usage.intern(&demand(5, 0, 250));
    let whole = usage.intern(&demand(5, 0, 2_000));
    let gang =
        usage.asks_mut().intern_least(&[(Need { ask: share, n: 4 }, 0), (Need { ask: whole, n: 2 }, 0)], 6);
    usage.add(queue, Need { ask: gang, n: 1 });
    assert_eq!((usage.used(queue, "gpu"), usage.used(queue, "cpu")), (5_000, 30));
    assert_eq!((usage.running_units(queue), usage.used(queue, "fpga")), (6, 0));
    assert!(usage.columns().named(usage.sums().used(QueueIdx::ROOT)).eq([("cpu", 30), ("gpu", 5_000)]));
}

#[test]
fn devices_add_to_what_is_asked_for_under_their_name() {
    // Alone, and beside another resource that comes before it by name and was known later.
    for disk in [0, 1] {
        let mut quota = Quota::default();
        quota.put(spec("a", &[("gpu", 6_000)], 0));
        let queue = quota.queue("a");
        let requests = Resources::new([("disk", disk), ("gpu", 2_000)]).unwrap();
        let ask = quota.usage_mut().intern(&Demand { requests, ..demand(0, 0, 1_000) });
        assert_eq!(quota.usage().headroom(queue, ask).n, 2);
        assert!(quota.usage().shortage(queue, Need { ask, n: 3 }).is_some_and(|short| short.amount == 9_000));
    }
}

#[test]
fn a_choice_is_known_as_long_as_it_is_held() {
    let mut quota = Quota::default();
    let usage = quota.usage_mut();
    let [a, b, c] = [1, 2, 3].map(|cpu| usage.intern(&demand(cpu, 0, 0)));
    let first = usage.asks_mut().intern_any([a, b]);
    assert!(first.is_choice());
    usage.asks_mut().retain(first);
    usage.asks_mut().release(first);
    assert_ne!(usage.asks_mut().intern_any([b, c]), first, "it is held still");
    usage.asks_mut().release(first);
    assert_eq!(usage.asks_mut().intern_any([a, c]), first, "its number is given again");
}

#[test]
fn guarantees_come_first_then_the_weighted_dominant_share() {
    let mut quota = Quota::default();
    let queue = |path: &str, weight, min: &[(&str, i64)]| {
        let min = min.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        Arc::new(QueueSpec { weight, min, ..QueueSpec::new(path) })
    };
    quota.put(queue("plain", 1, &[]));
    quota.put(queue("heavy", 4, &[]));
    quota.put(queue("sure", 1, &[("cpu", 10), ("gpu", 1)]));
    assert!(quota.usage_mut().set_total([("cpu", 1_000), ("memory", 1 << 50)]));
    let mut count = |path: &str, cpu, memory| {
        let queue = quota.queue(path);
        let usage = quota.usage_mut();
        let ask = usage.intern(&demand(cpu, memory, 0));
        usage.add(queue, Need { ask, n: 1 });
        usage.share_key(queue)
    };
    let whole = 1u64 << super::scale::SHARE_BITS;
    let near = |share: u64, expected: u64| share.abs_diff(expected) < whole >> 20;
    assert_eq!(count("plain", 0, 0), ShareKey { borrows: true, share: 0 });
    // With half of the second, the third and the first of them.
    assert!(near(count("plain", 100, 0).share, whole / 10 * 5 / 4));
    assert!(near(count("plain", 0, 1 << 49).share, whole / 2 * 7 / 6), "memory dominates");
    assert!(near(count("heavy", 400, 0).share, whole / 10 * 3 / 2));
    let sure = count("sure", 9, 0);
    assert!(!sure.borrows && near(sure.share, whole * 9 / 1_000 * 3 / 2));
    assert!(count("sure", 1, 0).borrows, "one of the guaranteed resources is used up");
    assert!(!quota.usage_mut().set_total([("cpu", 1_006), ("memory", 1 << 50)]), "hardly more than before");
    assert!(quota.usage_mut().set_total([("cpu", 1_007), ("memory", 1 << 50)]));
}

#[test]
fn a_guarantee_has_room_for_what_it_names() {
    let mut quota = Quota::default();
    assert!(!quota.usage().guarantees().is_any());
    let min = [("cpu".to_owned(), 100), ("memory".to_owned(), 10)].into();
    quota.put(Arc::new(QueueSpec { min, ..QueueSpec::new("a") }));
    assert!(quota.usage().guarantees().is_any());
    let queue = quota.queue("a");
    let used = Need { ask: quota.usage_mut().intern(&demand(40, 0, 0)), n: 1 };
    let leaving = Need { ask: quota.usage_mut().intern(&demand(10, 0, 0)), n: 1 };
    quota.usage_mut().add(queue, used);
    // Devices are known.
    quota.usage_mut().intern(&demand(0, 0, 500));
    quota.usage_mut().note_leaving(queue, leaving, 1);
    let cases = [
        (demand(0, 0, 0), demand(10, 0, 0), 7),
        (demand(20, 0, 0), demand(10, 0, 0), 5),
        (demand(70, 0, 0), demand(10, 0, 0), 0),
        // Of what is used up it takes nothing more.
        (demand(70, 0, 0), demand(0, 1, 0), 10),
        (demand(71, 0, 0), demand(0, 1, 0), 0),
        (demand(0, 4, 0), demand(10, 3, 0), 2),
        (demand(0, 0, 0), demand(10, 0, 500), 0),
        (demand(0, 0, 0), demand(0, 0, 0), 0),
    ];
    for (before, ask, n) in cases {
        let row = |demand: &Demand| quota.usage().amounts_of(demand);
        assert_eq!(
            quota.usage().guarantees().fits_within(queue, &row(&before), &row(&ask)),
            n,
            "{ask:?} beside {before:?}"
        );
    }
    // What is not asked for may be used up.
    let beyond = Need { ask: quota.usage_mut().intern(&demand(0, 11, 0)), n: 1 };
    quota.usage_mut().add(queue, beyond);
    let (nothing, ask) = (Amounts::new(), quota.usage().amounts_of(&demand(10, 0, 0)));
    assert_eq!(quota.usage().guarantees().fits_within(queue, &nothing, &ask), 7);
    let nothing = [("cpu".to_owned(), 0)].into();
    quota.put(Arc::new(QueueSpec { min: nothing, ..QueueSpec::new("a") }));
    assert!(!quota.usage().guarantees().is_any(), "of nothing");
    quota.remove("a");
    assert!(!quota.usage().guarantees().is_any());
}

#[test]
fn resources_are_told_apart_up_to_a_number() {
    let mut quota = Quota::default();
    let queue = quota.queue("a");
    let usage = quota.usage_mut();
    for n in 0..100 {
        let ask = usage.intern(&Demand {
            requests: Resources::new([(format!("r{n}"), 1)]).unwrap(),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        });
        usage.add(queue, Need { ask, n: 1 });
    }
    assert_eq!(usage.running_units(queue), 100);
    assert_eq!(usage.columns().named(usage.sums().used(queue)).count(), N_RESOURCES_MAX - 3);
    let nobody = |_: &str| godel_domain::record_change::Users::default();
    let change = |name: &str| godel_domain::record_change::RecordChange::Put(spec("b", &[(name, 1)], 0));
    assert_eq!(quota.check(&[change("r7")], &nobody), Ok(()));
    let refused = quota.check(&[change("r99")], &nobody).unwrap_err();
    assert_eq!(refused[0].field, "max[\"r99\"]");
    assert_eq!(Quota::default().check(&[change("r99")], &nobody), Ok(()), "there is place for it");
}

const PATHS: [&str; 6] = ["a", "a.b", "a.b.c", "a.d", "e", "default"];
const LEAVES: [&str; 4] = ["a.b.c", "a.d", "e", "default"];

#[derive(Clone, Debug)]
enum Op {
    Spec { at: usize, cpu: Option<i64>, gpu: Option<i64>, n: u32 },
    Add { at: usize, demand: usize, n: u32, obey: bool },
    Sub { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0..PATHS.len(), prop::option::of(0i64..200), prop::option::of(0i64..9_000), 0u32..30)
            .prop_map(|(at, cpu, gpu, n)| Op::Spec { at, cpu, gpu, n }),
        6 => (0..LEAVES.len(), 0usize..5, 1u32..20, prop::bool::weighted(0.8))
            .prop_map(|(at, demand, n, obey)| Op::Add { at, demand, n, obey }),
        3 => (0usize..1_000).prop_map(|which| Op::Sub { which }),
    ]
}

/// Used by level and resource, summed anew.
fn naive(counted: &[(usize, Demand, u32)], path: &str, resource: &str) -> i64 {
    let below = |leaf: &str| leaf == path || leaf.starts_with(&format!("{path}."));
    counted
        .iter()
        .filter(|(leaf, _, _)| below(LEAVES[*leaf]))
        .map(|(_, demand, n)| of(demand, resource) * i64::from(*n))
        .sum()
}

fn of(demand: &Demand, resource: &str) -> i64 {
    match resource {
        "running units" => 1,
        "gpu" => demand.devices.iter().map(|one| i64::from(one.count) * i64::from(one.milli)).sum(),
        _ => demand.requests.get(resource),
    }
}

proptest! {
    #[test]
    fn usage_is_as_summed_anew_and_headroom_is_exact(ops in vec(op(), 1..60)) {
        let demands = [demand(1, 10, 0), demand(7, 0, 0), demand(0, 3, 500), demand(20, 1, 2_000), demand(0, 0, 0)];
        let mut quota = Quota::default();
        let mut maxima: BTreeMap<&str, Vec<(&str, i64)>> = BTreeMap::new();
        let mut counted: Vec<(usize, Demand, u32)> = Vec::new();
        for op in ops {
            match op {
                Op::Spec { at, cpu, gpu, n } => {
                    let max: Vec<(&str, i64)> =
                        [("cpu", cpu), ("gpu", gpu)].into_iter().filter_map(|(name, max)| Some((name, max?))).collect();
                    quota.put(spec(PATHS[at], &max, n));
                    let n = (n > 0).then_some(("running units", i64::from(n)));
                    maxima.insert(PATHS[at], max.into_iter().chain(n).collect());
                }
                Op::Add { at, demand, n, obey } => {
                    let queue = quota.queue(LEAVES[at]);
                    let ask = quota.usage_mut().intern(&demands[demand]);
                    let headroom = quota.usage().headroom(queue, ask);
                    let fits = |n: u32| {
                        maxima.iter().filter(|(path, _)| format!("{}.", LEAVES[at]).starts_with(&format!("{path}."))).all(
                            |(path, max)| max.iter().all(|(name, max)| {
                                let more = of(&demands[demand], name) * i64::from(n);
                                more == 0 || naive(&counted, path, name) + more <= *max
                            }),
                        )
                    };
                    prop_assert!(headroom.n == 0 || fits(headroom.n.min(1_000)));
                    prop_assert!(headroom.n == u32::MAX || !fits(headroom.n + 1));
                    prop_assert_eq!(headroom.limit.is_none(), headroom.n == u32::MAX);
                    prop_assert_eq!(quota.usage().shortage(queue, Need { ask, n }).is_none(), n <= headroom.n);
                    let n = if obey { n.min(headroom.n) } else { n };
                    quota.usage_mut().add(queue, Need { ask, n });
                    counted.push((at, demands[demand].clone(), n));
                    let need = Need { ask, n };
                    let is_kept = |level: QueueIdx| {
                        let usage = quota.usage();
                        let asked = usage.sums().limits(level).filter(|resource| usage.asks().amount(need, *resource) > 0);
                        asked.into_iter().all(|resource| usage.sums().room(level, resource) >= 0)
                    };
                    prop_assert!(!obey || quota.usage().sums().limited_upwards(queue).all(is_kept));
                }
                Op::Sub { which } if !counted.is_empty() => {
                    let (at, demand, n) = counted.swap_remove(which % counted.len());
                    let queue = quota.queue(LEAVES[at]);
                    let ask = quota.usage_mut().intern(&demand);
                    quota.usage_mut().sub(queue, Need { ask, n });
                }
                Op::Sub { .. } => {}
            }
            for path in PATHS {
                let Some(queue) = quota.tree().find(path) else { continue };
                for name in ["cpu", "memory", "gpu"] {
                    prop_assert_eq!(quota.usage().used(queue, name), i128::from(naive(&counted, path, name)));
                }
                let n = i128::from(naive(&counted, path, "running units"));
                prop_assert_eq!(quota.usage().running_units(queue), n);
            }
        }
    }
}
