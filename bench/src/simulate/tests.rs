use super::*;

fn wanted(workload: Workload, partition: Split, schedulers: &[u32]) -> Simulate {
    #[derive(clap::Parser)]
    struct Parser {
        #[command(flatten)]
        simulate: Simulate,
    }
    let parsed: Parser = clap::Parser::parse_from(["simulate"]);
    let trace = |name: &str| PathBuf::from(format!("{}/../data/openb/{name}", env!("CARGO_MANIFEST_DIR")));
    Simulate {
        schedulers: schedulers.to_vec(),
        nodes: 60,
        partition,
        workload,
        units: Some(if workload == Workload::Single { 300 } else { 15 }),
        replicas: match workload {
            Workload::Service | Workload::Gang => Some(20),
            _ => None,
        },
        trace_nodes: trace("openb_node_list_all_node.csv"),
        trace: trace("openb_pod_list_default.csv"),
        ..parsed.simulate
    }
}

/// The sweep itself fails when an invariant does not hold on the history of a run.
#[test]
fn everything_is_bound_and_the_invariants_hold() {
    for workload in [Workload::Service, Workload::Single, Workload::Gang, Workload::Mix, Workload::Mixed] {
        for partition in [Split::Global, Split::Preferred] {
            let wanted = wanted(workload, partition, &[1, 3]);
            let plan = wanted.workload().unwrap().plan().unwrap();
            let submitted: usize = plan.steps.iter().map(|step| step.load.n_replicas()).sum();
            for run in sweep(&wanted).unwrap().runs {
                assert_eq!((run.placements, run.unplaced), (submitted as u64, 0), "{run:?}");
                assert!(run.seconds > 0.0 && run.placements_per_s > 0.0, "{run:?}");
            }
        }
    }
}

#[test]
fn equal_arguments_give_equal_figures_and_another_seed_others() {
    let figures = |seed: u64| {
        let wanted = Simulate { seed, ..wanted(Workload::Mixed, Split::Global, &[4]) };
        sweep(&wanted).unwrap().runs
    };
    assert_eq!(figures(1), figures(1));
    assert_ne!(figures(1), figures(2));
}

#[test]
fn one_scheduler_has_no_conflicts_and_many_have_some() {
    let tight = |schedulers: &[u32]| {
        let gangs = wanted(Workload::Gang, Split::Global, schedulers);
        sweep(&Simulate { nodes: 4, units: Some(39), ..gangs }).unwrap().runs.remove(0)
    };
    let alone = tight(&[1]);
    assert_eq!((alone.conflicts, alone.retries, alone.unplaced), (0, 0, 0), "{alone:?}");
    let many = tight(&[6]);
    assert!(many.conflicts > 0 && many.retries >= many.conflicts, "{many:?}");
    assert_eq!(many.unplaced, 0);
}

/// Slow schedulers are the bottleneck: twice as many give nearly twice as much. A slow store is one whatever they do.
#[test]
fn the_knee_is_where_schedulers_stop_being_the_bottleneck() {
    let report = |scheduler_us: &str, state_us: &str| {
        let mut wanted = wanted(Workload::Single, Split::Preferred, &[1, 2, 4]);
        wanted.units = Some(2_000);
        wanted.delays.scheduler_us = Some(scheduler_us.parse().unwrap());
        wanted.delays.state_us = state_us.parse().unwrap();
        sweep(&wanted).unwrap()
    };
    let slow = report("1000+0", "4+0");
    assert_eq!(slow.knee, Some(4), "{slow:?}");
    assert!(slow.runs[1].placements_per_s > 1.8 * slow.runs[0].placements_per_s, "{slow:?}");
    let slow_store = report("10+0", "1000+0");
    assert_eq!(slow_store.knee, Some(1), "{slow_store:?}");
}

#[test]
fn costs_are_read_and_shown_alike() {
    let cost: WorkCost = "12.5+0.25".parse().unwrap();
    assert_eq!(cost.to_string(), "12.5+0.25");
    assert_eq!(cost.of(2, 100), 50_000);
    for wrong in ["12", "a+1", "1+-1", "1e300+0"] {
        assert!(wrong.parse::<WorkCost>().is_err(), "{wrong}");
    }
}

#[test]
fn the_chart_shows_every_run_beside_what_was_published() {
    let wanted = wanted(Workload::Single, Split::Preferred, &[1, 2]);
    let svg = draw(&wanted, &sweep(&wanted).unwrap().runs).unwrap();
    for text in ["single, 60 nodes", "conflicts", "As published"] {
        assert!(svg.contains(text), "no `{text}` in {svg}");
    }
}

#[test]
fn simulate_needs_schedulers_and_a_known_workload() {
    let none = sweep(&wanted(Workload::Single, Split::Global, &[0]));
    assert_eq!(none.unwrap_err().code, Code::Usage);
    let unary = sweep(&wanted(Workload::Unary, Split::Global, &[1]));
    assert_eq!(unary.unwrap_err().code, Code::Usage);
}
