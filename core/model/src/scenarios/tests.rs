use super::*;

#[test]
fn each_scenario_does_all_its_work_and_the_same_twice() {
    for scenario in ALL {
        let [first, second] = [(), ()].map(|()| {
            let mut work = scenario.prepare(Size::Small);
            work.run();
            work.done()
        });
        assert_eq!(first, second, "{}", scenario.name);
        let n_ops = match scenario.name {
            "scheduler-service" | "scheduler-service-20k" | "binder-service" | "scheduler-follow" => 20_000,
            "audit-service" | "audit-preempt" => 20_000,
            "scheduler-single" | "scheduler-single-20k" => 2_000,
            "binder-single" | "dispatcher-single" | "admission" => 5_000,
            "scheduler-gang-10" | "scheduler-gang-100" => 10_000,
            "scheduler-single-no-cache" | "scheduler-full-service" => 1_000,
            "scheduler-single-no-scan-limit" => 100,
            "scheduler-full-single" => 1_500,
            "scheduler-preempt" | "scheduler-rack-gang" => 5_000,
            "scheduler-affinity" => 3_000,
            "scheduler-rack-preempt" => 100,
            "dispatcher-service" => 50_000,
            "rows-life" => 80_000,
            "permission" => 20_000,
            "explain" => 10,
            // Some constrained units fit nowhere.
            mixed => {
                assert!(
                    mixed.starts_with("scheduler-mixed") && first.n_ops > 150,
                    "{mixed}: {}",
                    first.n_ops
                );
                first.n_ops
            }
        };
        assert_eq!(first.n_ops, n_ops, "{}", scenario.name);
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = ALL.iter().map(|scenario| scenario.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
}
