//! The table of targets: which verbs run, which bars their figures must reach, and which limit of the machine is shown
//! beside them. [`super::judge`] compares the figures with the bars.

use super::judge::{Check, Check::*, Figure};

/// One verb with its arguments.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: &'static str,
    /// Words after `godel bench`.
    pub(super) args: &'static str,
    /// The arguments in the quick subset; `None`: not in that subset.
    pub(super) quick: Option<&'static str>,
}

/// A limit of the machine, measured by the same suite.
#[derive(Debug)]
pub(super) struct MachineLimit {
    pub(super) name: &'static str,
    pub(super) of: Figure,
    pub(super) unit: &'static str,
}

/// One row of the table.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) goal: &'static str,
    pub(super) checks: &'static [Check],
    pub(super) limits: &'static [MachineLimit],
}

/// A chart of some runs.
#[derive(Debug)]
pub(super) struct Chart {
    /// Name of the chart's file.
    pub(super) name: &'static str,
    /// The horizontal axis, as `godel bench chart` names it.
    pub(super) over: &'static str,
    pub(super) runs: &'static [&'static str],
}

const fn run(key: &'static str, args: &'static str) -> Run {
    Run { key, args, quick: None }
}

const fn quick(key: &'static str, args: &'static str, quick: &'static str) -> Run {
    Run { key, args, quick: Some(quick) }
}

/// All runs, in order. Those that find the limits of the machine come first.
pub(super) const RUNS: &[Run] = &[
    quick("store", "store", "store"),
    run("store-etcd", "store --engine etcd"),
    run("store-etcd-3", "store --engine etcd --members 3"),
    quick("wire", "wire", "wire"),
    quick("service", "e2e --workload service --repeat 3", "e2e --workload service"),
    quick("service-agents", "e2e --workload service --agents --repeat 3", "e2e --workload service --agents"),
    run("mixed", "e2e --workload mixed --repeat 3"),
    quick("single", "e2e --workload single --repeat 3", "e2e --workload single"),
    run("service-etcd", "e2e --workload service --engine etcd --repeat 3"),
    run("single-etcd", "e2e --workload single --engine etcd --repeat 3"),
    quick("unary", "e2e --workload unary --repeat 3", "e2e --workload unary --units 20000"),
    quick(
        "gang-10",
        "e2e --workload gang --replicas 10 --units 50000 --repeat 3",
        "e2e --workload gang --replicas 10 --units 20000",
    ),
    quick(
        "gang-100",
        "e2e --workload gang --replicas 100 --units 5000 --repeat 3",
        "e2e --workload gang --replicas 100 --units 5000",
    ),
    run("online-0", "e2e --workload mix --online-share 0 --repeat 3"),
    run("online-25", "e2e --workload mix --online-share 25"),
    run("online-50", "e2e --workload mix --online-share 50"),
    run("online-75", "e2e --workload mix --online-share 75"),
    run("online-100", "e2e --workload mix --online-share 100"),
    run("services-25", "e2e --workload mix --online-share 25 --replicas 105 --repeat 3"),
    run("services-50", "e2e --workload mix --online-share 50 --replicas 105 --repeat 3"),
    run("services-75", "e2e --workload mix --online-share 75 --replicas 105 --repeat 3"),
    run("services-100", "e2e --workload mix --online-share 100 --replicas 105 --repeat 3"),
    run("nodes-1000", "e2e --nodes 1000 --units 100 --repeat 3"),
    run("nodes-10000", "e2e --nodes 10000 --units 100 --repeat 3"),
    run("nodes-20000", "e2e --nodes 20000 --units 100 --repeat 3"),
    run("nodes-100000", "e2e --nodes 100000 --units 100"),
    run("full", "e2e --workload full"),
    run("preempt", "e2e --workload preempt --agents --repeat 3"),
    run("schedulers-1", "e2e --workload single --partition preferred --schedulers 1"),
    run("schedulers-2", "e2e --workload single --partition preferred --schedulers 2"),
    run("schedulers-3", "e2e --workload single --partition preferred --schedulers 3"),
    run("schedulers-4", "e2e --workload single --partition preferred --schedulers 4"),
    run("schedulers-5", "e2e --workload single --partition preferred --schedulers 5"),
    run("schedulers-6", "e2e --workload single --partition preferred --schedulers 6"),
    run("capped-1", "e2e --workload mixed --partition preferred --schedulers 1 --cap-cpu 10 --repeat 3"),
    run("capped-4", "e2e --workload mixed --partition preferred --schedulers 4 --cap-cpu 10 --repeat 3"),
    run("shared-100-500", "latency --nodes 100 --schedulers 3 --fill 90 --rate 500 --units 10000"),
    run("shared-100-1000", "latency --nodes 100 --schedulers 3 --fill 90 --rate 1000 --units 20000"),
    run("shared-100-2000", "latency --nodes 100 --schedulers 3 --fill 90 --rate 2000 --units 40000"),
    run("shared-100-3000", "latency --nodes 100 --schedulers 3 --fill 90 --rate 3000 --units 60000"),
    run("shared-1000-500", "latency --nodes 1000 --schedulers 3 --fill 90 --rate 500 --units 10000"),
    run("shared-1000-1000", "latency --nodes 1000 --schedulers 3 --fill 90 --rate 1000 --units 20000"),
    run("shared-1000-2000", "latency --nodes 1000 --schedulers 3 --fill 90 --rate 2000 --units 40000"),
    run("shared-1000-3000", "latency --nodes 1000 --schedulers 3 --fill 90 --rate 3000 --units 60000"),
    run("simulate", "simulate"),
    run("simulate-shared", "simulate --workload mixed --partition global --schedulers 1,2,3,4,5,6"),
    quick("latency", "latency --rate 1000 --repeat 3", "latency --rate 1000 --units 5000"),
    run("latency-etcd", "latency --rate 1000 --engine etcd --repeat 3"),
    run("snapshot-etcd", "latency --rate 1000 --units 60000 --running-units 1000000 --engine etcd"),
    run("restart", "restart --nodes 20000 --running-units 1000000"),
    run("explain", "explain --nodes 20000"),
    run("agents", "agents --nodes 20000"),
    run("complete", "e2e --units 100"),
    run("without-cache", "e2e --units 100 --ablate cache"),
    run("without-scan", "e2e --units 100 --ablate scan"),
    run("mixed-without-cache", "e2e --workload mixed --ablate cache"),
    run("mixed-without-scan", "e2e --workload mixed --ablate scan"),
    run("two", "e2e --workload two --repeat 3"),
    run("affinity", "e2e --workload affinity --repeat 3"),
    run("rack", "e2e --workload rack --repeat 3"),
    run("tide", "tide --nodes 200 --minutes 2"),
    run("endurance", "endurance --running-units 1000000 --rate 25000 --replicas 500"),
    run("yarn", "yarn --masters 100 --containers 500 --seconds 20 --repeat 3"),
];

const SCHEDULERS: &[&str] =
    &["schedulers-1", "schedulers-2", "schedulers-3", "schedulers-4", "schedulers-5", "schedulers-6"];
const ONLINE: &[&str] = &["online-0", "online-25", "online-50", "online-75", "online-100"];
/// Three schedulers that share all nodes, which are nine tenths full: by nodes and units a second.
const SHARED_100: &[&str] = &["shared-100-500", "shared-100-1000", "shared-100-2000", "shared-100-3000"];
const SHARED_1000: &[&str] = &["shared-1000-500", "shared-1000-1000", "shared-1000-2000", "shared-1000-3000"];
/// Shares of services that are as large as the gangs are on average.
const SERVICES: &[&str] = &["online-0", "services-25", "services-50", "services-75", "services-100"];
const NODES: &[&str] = &["nodes-1000", "nodes-10000", "nodes-20000", "nodes-100000"];

/// In order.
pub(super) const CHARTS: &[Chart] = &[
    Chart { name: "nodes", over: "nodes", runs: NODES },
    Chart { name: "schedulers", over: "schedulers", runs: SCHEDULERS },
    Chart { name: "simulated", over: "schedulers", runs: &["simulate"] },
    Chart { name: "simulated-shared", over: "schedulers", runs: &["simulate-shared"] },
    Chart { name: "online", over: "online", runs: ONLINE },
    Chart { name: "ablation", over: "ablation", runs: &["complete", "without-cache", "without-scan"] },
];

const fn of(run: &'static str, at: &'static str) -> Figure {
    Figure { run, at }
}

const fn rate(run: &'static str) -> Figure {
    of(run, "/placements_per_s")
}

const fn per_s(run: &'static str, floor: f64) -> Check {
    AtLeast { of: rate(run), floor, unit: "/s" }
}

const fn cpu_us(run: &'static str, ceiling: f64) -> Check {
    AtMost { of: of(run, "/cpu_us_per_placement"), ceiling, unit: "CPU-µs" }
}

const fn at_most(run: &'static str, at: &'static str, ceiling: f64, unit: &'static str) -> Check {
    AtMost { of: of(run, at), ceiling, unit }
}

const fn store(name: &'static str, at: &'static str) -> MachineLimit {
    MachineLimit { name, of: of("store", at), unit: "/s" }
}

const fn wire(name: &'static str, at: &'static str) -> MachineLimit {
    MachineLimit { name, of: of("wire", at), unit: "/s" }
}

const BIND: MachineLimit = store("store, 1,000 placements a commit", "/bind-1000/ops_per_s");
const BIND_SINGLES: MachineLimit = store("store, placements of 100 units a commit", "/bind-100x1/ops_per_s");
const PUT: MachineLimit = store("store, 100 units a commit", "/put-100/ops_per_s");
const ITEMS: MachineLimit = wire("wire, small messages", "/stream-1/items_per_s");
const CALLS: MachineLimit = wire("wire, calls of 64 clients", "/unary-64-service/items_per_s");
const SERIAL: Figure = of("store", "/put-serial/latency_ms/p99");
const SERIAL_ETCD: Figure = of("store-etcd", "/put-serial/latency_ms/p99");

const fn of_bare(run: &'static str, at: &'static str) -> Check {
    AtLeast { of: of(run, at), floor: 0.6, unit: "×" }
}

/// In order. 10,000 nodes unless said.
pub(super) const TARGETS: &[Target] = &[
    Target {
        id: "P1",
        what: "services of 1,000 replicas",
        goal: "≥ 300,000/s, ≤ 5 CPU-µs",
        checks: &[per_s("service", 300_000.0), cpu_us("service", 5.0)],
        limits: &[BIND],
    },
    Target {
        id: "P1b",
        what: "the same, agents run it and report its end",
        goal: "≥ 50,000/s, ≤ 35 CPU-µs",
        checks: &[per_s("service-agents", 50_000.0), cpu_us("service-agents", 35.0)],
        limits: &[ITEMS],
    },
    Target {
        id: "P1e",
        what: "P1 with the store in an etcd of one member",
        goal: "≥ half of P1",
        checks: &[
            Times { of: "service-etcd", than: "service", factor: 0.5 },
            Shown { of: rate("service-etcd"), unit: "/s" },
        ],
        limits: &[],
    },
    Target {
        id: "P1m",
        what: "mixed: sizes, shapes and nodes of the trace, a tenth constrained",
        goal: "≥ 100,000/s",
        checks: &[per_s("mixed", 100_000.0)],
        limits: &[BIND],
    },
    Target {
        id: "P2",
        what: "single replicas, one stream",
        goal: "≥ 40,000/s, ≤ 45 CPU-µs",
        checks: &[per_s("single", 40_000.0), cpu_us("single", 45.0)],
        limits: &[PUT, BIND_SINGLES],
    },
    Target {
        id: "P2e",
        what: "P2 with the store in an etcd of one member",
        goal: "≥ half of P2",
        checks: &[
            Times { of: "single-etcd", than: "single", factor: 0.5 },
            Shown { of: rate("single-etcd"), unit: "/s" },
        ],
        limits: &[],
    },
    Target {
        id: "P3",
        what: "single replicas, a call each, 64 clients",
        goal: "≥ 12,000/s",
        checks: &[per_s("unary", 12_000.0)],
        limits: &[CALLS],
    },
    Target {
        id: "P4",
        what: "gangs of 10; of 100",
        goal: "≥ 100,000/s; ≥ 250,000/s",
        checks: &[per_s("gang-10", 100_000.0), per_s("gang-100", 250_000.0)],
        limits: &[BIND],
    },
    Target {
        id: "P5",
        what: "0, 25, 50, 75, 100 % online",
        goal: "within 10 % of each other",
        checks: &[
            Within { name: "single replicas", runs: ONLINE, share: 0.10 },
            Within { name: "services as large as the gangs", runs: SERVICES, share: 0.10 },
        ],
        limits: &[BIND_SINGLES],
    },
    Target {
        id: "P6",
        what: "1,000 → 20,000 nodes; → 100,000",
        goal: "≤ 15 % slower; ≤ 30 %",
        checks: &[
            AtMostSlower { of: rate("nodes-20000"), than: rate("nodes-1000"), share: 0.15 },
            AtMostSlower { of: rate("nodes-100000"), than: rate("nodes-1000"), share: 0.30 },
        ],
        limits: &[BIND],
    },
    Target {
        id: "P7",
        what: "half full → 99 % full",
        goal: "≤ 20 % slower",
        checks: &[AtMostSlower {
            of: rate("full"),
            than: of("full", "/half_full/placements_per_s"),
            share: 0.20,
        }],
        limits: &[BIND],
    },
    Target {
        id: "P8",
        what: "1 … 6 schedulers, own nodes preferred; 1 → 4 held to 10 % of a core each, mixed",
        goal: "conflicts < 1 %, never below one; ≥ 3 ×",
        checks: &[
            Conflicts { runs: SCHEDULERS, share: 0.01 },
            NeverBelowFirst { runs: SCHEDULERS },
            Times { of: "capped-4", than: "capped-1", factor: 3.0 },
            Told { of: of("simulate", "/knee"), name: "simulated with 1 … 32: adding one pays up to" },
        ],
        limits: &[PUT, BIND_SINGLES],
    },
    Target {
        id: "P8g",
        what: "3 schedulers share all nodes, 90 % full of what comes and goes: 500, 1,000, 2,000, 3,000 single units/s offered",
        goal: "told; with more than 1 % the mode changes by itself",
        checks: &[
            ConflictsTold { name: "100 nodes: conflicts", runs: SHARED_100 },
            ConflictsTold { name: "1,000 nodes: conflicts", runs: SHARED_1000 },
        ],
        limits: &[],
    },
    Target {
        id: "P8s",
        what: "1 … 6 schedulers share 10,000 nodes, mixed, simulated with delays and a core each",
        goal: "told, beside the paper's 2,000/s with 1, 4,000/s with 3, 4,600/s with 5",
        checks: &[SweepTold { run: "simulate-shared", name: "schedulers" }],
        limits: &[],
    },
    Target {
        id: "P9",
        what: "preemption of one victim a placement",
        goal: "≥ 20,000/s",
        checks: &[per_s("preempt", 20_000.0)],
        limits: &[BIND],
    },
    Target {
        id: "P10",
        what: "1,000 single units/s offered, submission → bound",
        goal: "p50 < 3 ms, p99 < 15 ms or < 3 × two serial commits",
        checks: &[
            at_most("latency", "/latency_ms/p50", 3.0, "ms at p50"),
            AtMostOr {
                of: of("latency", "/latency_ms/p99"),
                ceiling: 15.0,
                unit: "ms at p99",
                times: 6.0,
                other: SERIAL,
                name: "3 × two commits:",
            },
        ],
        limits: &[MachineLimit { name: "store, one commit", of: SERIAL, unit: "ms at p99" }],
    },
    Target {
        id: "P10e",
        what: "P10 with the store in an etcd of one member; the same while a snapshot of 1,000,000 running units is written",
        goal: "p99 < 3 × two serial commits; ≤ 1.5 × the p99 before the snapshot",
        checks: &[
            Shown { of: of("latency-etcd", "/latency_ms/p50"), unit: "ms at p50" },
            AtMostOr {
                of: of("latency-etcd", "/latency_ms/p99"),
                ceiling: 0.0,
                unit: "ms at p99",
                times: 6.0,
                other: SERIAL_ETCD,
                name: "3 × two commits:",
            },
            at_most("snapshot-etcd", "/snapshot/p99_ratio", 1.5, "× at p99 beside the snapshot"),
        ],
        limits: &[MachineLimit { name: "store in etcd, one commit", of: SERIAL_ETCD, unit: "ms at p99" }],
    },
    Target {
        id: "P11",
        what: "20,000 nodes, 1,000,000 running units: cold restart to the first new binding; memory",
        goal: "< 5 s; state ≤ 600 MiB, scheduler ≤ 400 MiB",
        checks: &[
            at_most("restart", "/first_binding_s", 5.0, "s"),
            at_most("restart", "/rss_mib/state", 600.0, "MiB in state"),
            at_most("restart", "/rss_mib/s1", 400.0, "MiB in the scheduler"),
        ],
        limits: &[],
    },
    Target {
        id: "P12",
        what: "affinity, anti-affinity and spread between units; gangs of 10 that require a rack",
        goal: "≥ 50,000/s; ≥ 10,000 gangs/s",
        checks: &[per_s("affinity", 50_000.0), per_s("rack", 100_000.0)],
        limits: &[BIND],
    },
    Target {
        id: "P13",
        what: "explain on a full cluster of 20,000 nodes",
        goal: "< 10 ms",
        checks: &[
            at_most("explain", "/explain/get_unit_ms/p99", 10.0, "ms at p99 for the last try"),
            at_most("explain", "/explain/plan_ms/p99", 10.0, "ms at p99 for a new one"),
        ],
        limits: &[],
    },
    Target {
        id: "P14",
        what: "20,000 agents, a heartbeat with usage each 10 s",
        goal: "< 5 % of a core in state",
        checks: &[at_most("agents", "/state_cpu_per_cent", 5.0, "% of a core")],
        limits: &[],
    },
    Target {
        id: "P15",
        what: "without candidate cache; without scan reduction",
        goal: "≥ 60 % slower; ≥ 30 %",
        checks: &[
            AtLeastSlower {
                name: "cache",
                pairs: &[("complete", "without-cache"), ("mixed", "mixed-without-cache")],
                share: 0.60,
            },
            AtLeastSlower {
                name: "scan reduction",
                pairs: &[("complete", "without-scan"), ("mixed", "mixed-without-scan")],
                share: 0.30,
            },
        ],
        limits: &[],
    },
    Target {
        id: "P16",
        what: "20,000 × (4 CPU, 8 GiB) beside 10,000 × (1 CPU, 4 GiB), both wholly bound",
        goal: "< 0.5 s",
        checks: &[at_most("two", "/seconds", 0.5, "s")],
        limits: &[BIND],
    },
    Target {
        id: "P17",
        what: "tide: 24 simulated hours in 2 minutes (10 by itself) on 200 nodes, online demand × 3 by day with one burst",
        goal: "online placed < 5 s at p99, offline back < 60 s after the burst, mean CPU use ≥ 60 % at peak, ≥ 40 % at trough",
        checks: &[
            at_most("tide", "/online_ms/p99", 5_000.0, "ms at p99 for online units"),
            at_most("tide", "/offline_back_s", 60.0, "s until offline work is back"),
            AtLeast { of: of("tide", "/use_peak_percent"), floor: 60.0, unit: "% of CPU at the peak" },
            AtLeast { of: of("tide", "/use_trough_percent"), floor: 40.0, unit: "% in the trough" },
        ],
        limits: &[],
    },
    Target {
        id: "P18",
        what: "a million running units made and finished after a warm-up of three, 25,000/s",
        goal: "memory < 1 MiB more a million in each process, disk within its contract, p99 of the last tenth ≤ 1.2 × the first's, audit clean",
        checks: &[
            at_most("endurance", "/endurance/memory_slope_max_mib_per_million", 1.0, "MiB a million"),
            Holds {
                of: of("endurance", "/endurance/disk_within_contract"),
                name: "disk within its contract",
            },
            at_most("endurance", "/endurance/p99_ratio", 1.2, "× at p99"),
            Holds { of: of("endurance", "/audit"), name: "audit clean" },
        ],
        limits: &[],
    },
    Target {
        id: "P19",
        what: "the store in an etcd: commits of one unit, of 64 writers, of 100 units, of 1,000 placements, of 100 times one; one member, then three",
        goal: "≥ 0.6 × a bare client with the same values",
        checks: &[
            of_bare("store-etcd", "/put-serial/of_bare"),
            of_bare("store-etcd", "/put-64/of_bare"),
            of_bare("store-etcd", "/put-100/of_bare"),
            of_bare("store-etcd", "/bind-1000/of_bare"),
            of_bare("store-etcd", "/bind-100x1/of_bare"),
            of_bare("store-etcd-3", "/put-serial/of_bare"),
            of_bare("store-etcd-3", "/put-64/of_bare"),
            of_bare("store-etcd-3", "/put-100/of_bare"),
            of_bare("store-etcd-3", "/bind-1000/of_bare"),
            of_bare("store-etcd-3", "/bind-100x1/of_bare"),
        ],
        limits: &[],
    },
    Target {
        id: "P20",
        what: "100 application masters of YARN over Hadoop RPC on 1,000 nodes: allocate() that changes nothing; 500 containers each",
        goal: "≥ 20,000 calls/s, none of which writes anything; containers told",
        checks: &[
            AtLeast { of: of("yarn", "/allocate_calls_per_s"), floor: 20_000.0, unit: "calls/s" },
            Shown { of: of("yarn", "/allocate_ms/p99"), unit: "ms at p99" },
            Shown { of: of("yarn", "/containers_per_s"), unit: "containers/s" },
            Holds { of: of("yarn", "/audit"), name: "audit clean" },
        ],
        limits: &[CALLS],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser as _;

    use super::*;
    use crate::Args;

    #[test]
    fn targets_and_charts_name_runs_that_there_are() {
        let keys: HashSet<&str> = RUNS.iter().map(|run| run.key).collect();
        assert_eq!(keys.len(), RUNS.len(), "a key twice");
        let mut used: HashSet<&str> = HashSet::new();
        for target in TARGETS {
            let limits = target.limits.iter().map(|limit| limit.of.run);
            used.extend(target.checks.iter().flat_map(Check::runs).chain(limits));
        }
        used.extend(CHARTS.iter().flat_map(|chart| chart.runs));
        assert_eq!(used, keys);
    }

    #[test]
    fn every_command_is_one_that_there_is() {
        for run in RUNS {
            for args in [Some(run.args), run.quick].into_iter().flatten() {
                let words = ["godel-bench"].into_iter().chain(args.split(' ')).chain(["--json", "x"]);
                assert!(Args::try_parse_from(words).is_ok(), "{args}");
            }
        }
    }

    #[test]
    fn the_design_has_a_row_for_each() {
        let ids: Vec<&str> = TARGETS.iter().map(|target| target.id).collect();
        let numbered = (1..=20).flat_map(|n| match n {
            1 => ["P1", "P1b", "P1e", "P1m"].map(str::to_owned).into(),
            2 | 10 => vec![format!("P{n}"), format!("P{n}e")],
            8 => vec!["P8".to_owned(), "P8g".to_owned(), "P8s".to_owned()],
            _ => vec![format!("P{n}")],
        });
        assert_eq!(ids, numbered.collect::<Vec<_>>());
        assert!(TARGETS.iter().all(|target| !target.checks.is_empty()));
    }
}
