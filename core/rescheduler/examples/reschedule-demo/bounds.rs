//! Bounds from linear programs: what no plan can do better, moves unlimited unless said.

use std::collections::BTreeMap;

use godel_base::ids::UnitId;
use godel_core_rescheduler::{ClusterSnapshot, Layout, LayoutDomains, NodeIdx, OwnerIdx};
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, microlp, variable};

use crate::openb::{PlacedTask, Trace};

fn number(value: i64) -> f64 {
    format!("{value}").parse().unwrap_or(0.0)
}

/// Nodes that are alike.
type NodeClass = (i64, i64, usize, String);

/// The tasks of each shape on the nodes of each class, as a relaxation: amounts are shared by all nodes of a class.
struct Relaxed {
    variables: ProblemVariables,
    classes: Vec<(NodeClass, f64)>,
    /// Shape, class, number of tasks.
    placed: Vec<(usize, usize, Variable)>,
    n_of_shape: BTreeMap<usize, f64>,
}

fn relax(trace: &Trace, tasks: &[PlacedTask]) -> Relaxed {
    let mut classes: BTreeMap<NodeClass, f64> = BTreeMap::new();
    for node in &trace.nodes {
        *classes.entry((node.cpu, node.memory, node.n_gpus, node.model.clone())).or_default() += 1.0;
    }
    let classes: Vec<(NodeClass, f64)> = classes.into_iter().collect();
    let mut n_of_shape: BTreeMap<usize, f64> = BTreeMap::new();
    for task in tasks {
        *n_of_shape.entry(task.shape).or_default() += 1.0;
    }
    let mut variables = ProblemVariables::new();
    let mut placed = Vec::new();
    for shape in n_of_shape.keys() {
        let asked = &trace.shapes[*shape];
        for (at, ((cpu, memory, n_gpus, model), _)) in classes.iter().enumerate() {
            let accepted = asked.gpus == 0 || asked.models.is_empty() || asked.models.contains(model);
            if accepted && asked.cpu <= *cpu && asked.memory <= *memory && asked.gpus as usize <= *n_gpus {
                placed.push((*shape, at, variables.add(variable().min(0.0))));
            }
        }
    }
    Relaxed { variables, classes, placed, n_of_shape }
}

/// The most nodes of eight GPUs that could be wholly free: a linear program over node classes and shapes.
pub(crate) fn most_whole_nodes(trace: &Trace, tasks: &[PlacedTask]) -> Option<f64> {
    let Relaxed { mut variables, classes, placed, n_of_shape } = relax(trace, tasks);
    let free: Vec<Variable> = classes
        .iter()
        .map(|((_, _, n_gpus, _), n)| {
            let most = if *n_gpus == 8 { *n } else { 0.0 };
            variables.add(variable().min(0.0).max(most))
        })
        .collect();
    let objective: Expression = free.iter().copied().sum();
    let mut model = variables.maximise(objective.clone()).using(microlp);
    for (shape, n) in &n_of_shape {
        let sum: Expression = placed.iter().filter(|one| one.0 == *shape).map(|one| one.2).sum();
        model = model.with(constraint!(sum == *n));
    }
    for (at, ((cpu, memory, n_gpus, _), n)) in classes.iter().enumerate() {
        let gpus = 1_000 * i64::try_from(*n_gpus).ok()?;
        let of = |amount: &dyn Fn(usize) -> i64| -> Expression {
            let here = placed.iter().filter(|one| one.1 == at);
            here.map(|one| number(amount(one.0)) * one.2).sum()
        };
        // A node whose GPUs are all free may still have tasks without a GPU.
        for (used, has, is_gpu) in [
            (of(&|shape| trace.shapes[shape].cpu), *cpu, false),
            (of(&|shape| trace.shapes[shape].memory), *memory, false),
            (of(&|shape| trace.shapes[shape].gpu_milli()), gpus, true),
        ] {
            let has = number(has);
            let kept: Expression = if is_gpu { has * free[at] } else { Expression::from(0.0) };
            // In units of one node, so that coefficients are of a size.
            model = model.with(constraint!((used + kept) * (1.0 / has.max(1.0)) <= *n));
        }
    }
    let solution = model.solve().ok()?;
    Some(solution.eval(objective))
}

/// The least fragmentation rate that could be: what is idle is shared by all nodes of a class, and a typical shape uses as much
/// of it as GPUs of its models and the CPUs beside them allow.
pub(crate) fn least_rate(trace: &Trace, tasks: &[PlacedTask]) -> Option<f64> {
    let Relaxed { mut variables, classes, placed, n_of_shape } = relax(trace, tasks);
    let total: f64 = classes
        .iter()
        .map(|((_, _, n_gpus, _), n)| n * number(1_000 * i64::try_from(*n_gpus).unwrap_or(0)))
        .sum();
    let used: f64 = n_of_shape.iter().map(|(shape, n)| n * number(trace.shapes[*shape].gpu_milli())).sum();
    let mut usable = Vec::new();
    for (shape, weight) in trace.typical_shares() {
        let asked = &trace.shapes[*shape];
        for (at, ((_, _, n_gpus, model), _)) in classes.iter().enumerate() {
            let accepted = asked.models.is_empty() || asked.models.contains(model);
            if asked.gpus > 0 && accepted && asked.gpus as usize <= *n_gpus {
                usable.push((*shape, at, *weight, variables.add(variable().min(0.0))));
            }
        }
    }
    let free: Vec<(Variable, Variable)> = classes
        .iter()
        .map(|_| (variables.add(variable().min(0.0)), variables.add(variable().min(0.0))))
        .collect();
    let objective: Expression = usable.iter().map(|one| one.2 * one.3).sum();
    let mut model = variables.maximise(objective.clone()).using(microlp);
    for (shape, n) in &n_of_shape {
        let sum: Expression = placed.iter().filter(|one| one.0 == *shape).map(|one| one.2).sum();
        model = model.with(constraint!(sum == *n));
    }
    for (at, ((cpu, _, n_gpus, _), n)) in classes.iter().enumerate() {
        let gpus = n * number(1_000 * i64::try_from(*n_gpus).ok()?);
        let here = || placed.iter().filter(|one| one.1 == at);
        let cpu_used: Expression = here().map(|one| number(trace.shapes[one.0].cpu) * one.2).sum();
        let gpu_used: Expression = here().map(|one| number(trace.shapes[one.0].gpu_milli()) * one.2).sum();
        let (idle, free_cpu) = free[at];
        model = model.with(constraint!((cpu_used + free_cpu) * 1e-3 == n * number(*cpu) * 1e-3));
        model = model.with(constraint!((gpu_used + idle) * 1e-3 == gpus * 1e-3));
        for (shape, _, _, amount) in usable.iter().filter(|one| one.1 == at) {
            let asked = &trace.shapes[*shape];
            let gpu_each = number(asked.gpu_milli().max(1));
            let cpu_each = number(asked.cpu);
            model = model.with(constraint!(Expression::from(*amount) <= idle));
            model = model.with(constraint!(*amount * (cpu_each / gpu_each) <= free_cpu));
        }
    }
    let solution = model.solve().ok()?;
    Some(((total - used) - solution.eval(objective)) / total)
}

/// The fewest running units that have to leave hot nodes so that none is: the linear program falls apart by node, and is solved by
/// taking the largest first, the last one in part.
pub(crate) fn least_moves_to_cool(layout: &Layout<'_>, hot: f64) -> f64 {
    use godel_base::resources::{CPU, NETWORK};
    let of_node = |node| -> f64 {
        let capacity = &layout.node(node).capacity;
        let by = |has: i64, use_of: &dyn Fn(godel_core_rescheduler::RunIdx) -> i64| -> f64 {
            let mut uses: Vec<f64> = layout.on(node).iter().map(|unit| number(use_of(*unit))).collect();
            uses.sort_by(|a, b| b.total_cmp(a));
            let mut excess = uses.iter().sum::<f64>() - hot * number(has);
            let mut n = 0.0;
            for usage in uses {
                if excess <= 0.0 || usage <= 0.0 {
                    break;
                }
                n += (excess / usage).min(1.0);
                excess -= usage;
            }
            n
        };
        let cpu = by(capacity.get(CPU), &|unit| layout.facts(unit).usage.cpu_milli);
        cpu.max(by(capacity.get(NETWORK), &|unit| layout.facts(unit).usage.network_bps))
    };
    layout.nodes().map(of_node).sum()
}

/// The most traffic that could stay on a node with some moves: a linear program over services. A move of one of the A replicas of
/// a service changes what each of its pairs keeps by at most the A-th part, and a pair keeps no more than all.
pub(crate) fn most_traffic_kept(
    snapshot: &ClusterSnapshot,
    layout: &Layout<'_>,
    n_moves: usize,
) -> Option<f64> {
    let mut variables = ProblemVariables::new();
    let ids: BTreeMap<UnitId, usize> =
        snapshot.units.iter().enumerate().map(|(at, unit)| (unit.id, at)).collect();
    let n_of = |at: usize| -> f64 {
        number(i64::try_from(layout.replicas(OwnerIdx::at(at)).len()).unwrap_or(0)).max(1.0)
    };
    let moved: Vec<Variable> =
        (0..snapshot.units.len()).map(|at| variables.add(variable().min(0.0).max(n_of(at)))).collect();
    let total: f64 = snapshot.traffic.iter().map(|pair| pair.weight).sum();
    let mut pairs = Vec::new();
    let mut kept_now = 0.0;
    for pair in &snapshot.traffic {
        let (one, other) = (*ids.get(&pair.between.0)?, *ids.get(&pair.between.1)?);
        let kept: f64 = layout
            .nodes()
            .map(|node| {
                let part = |at: usize| {
                    let here = layout
                        .replicas(OwnerIdx::at(at))
                        .iter()
                        .filter(|unit| layout.node_of(**unit) == node);
                    number(i64::try_from(here.count()).unwrap_or(0)) / n_of(at)
                };
                part(one).min(part(other))
            })
            .sum();
        kept_now += pair.weight / total * kept;
        let gained = variables.add(variable().min(0.0).max((1.0 - kept).max(0.0)));
        pairs.push((one, other, pair.weight / total, gained));
    }
    let objective: Expression = pairs.iter().map(|pair| pair.2 * pair.3).sum();
    let mut model = variables.maximise(objective.clone()).using(microlp);
    for (one, other, _, gained) in &pairs {
        let most = moved[*one] * (1.0 / n_of(*one)) + moved[*other] * (1.0 / n_of(*other));
        model = model.with(constraint!(Expression::from(*gained) <= most));
    }
    let sum: Expression = moved.iter().copied().sum();
    model = model.with(constraint!(sum <= number(i64::try_from(n_moves).ok()?)));
    let solution = model.solve().ok()?;
    Some(kept_now + solution.eval(objective))
}

/// The greatest share of services of at least two replicas of which no domain could have more than one part of `n_domains`. Of a
/// service that is spread, some domains have at least what the others may not have; if that is more of all services together than
/// those domains have room for, as many services as make up the difference, greatest first, are not spread.
pub(crate) fn most_spread(layout: &Layout<'_>, label: &str, n_domains: u32) -> f64 {
    let domains = LayoutDomains::new(layout, Some(label));
    let n_all = u32::try_from(domains.len()).unwrap_or(u32::MAX);
    let services: Vec<(u32, OwnerIdx)> = (0..layout.snapshot().units.len())
        .map(OwnerIdx::at)
        .map(|owner| (u32::try_from(layout.replicas(owner).len()).unwrap_or(u32::MAX), owner))
        .filter(|(n, _)| *n >= 2)
        .collect();
    let mut n_worst = 0;
    for chosen in 1u32..1 << n_all.min(16) {
        let nodes = layout.nodes().filter(|node| domains.of(*node).is_some_and(|of| chosen >> of & 1 == 1));
        let nodes: Vec<NodeIdx> = nodes.collect();
        let n_columns = nodes.first().map_or(0, |node| layout.rooms().capacity(*node).len());
        for column in 0..n_columns {
            let room: f64 = nodes.iter().map(|node| number(layout.rooms().capacity(*node)[column])).sum();
            let mut needs: Vec<f64> = services
                .iter()
                .map(|(n, owner)| {
                    let elsewhere = (n_all - chosen.count_ones()) * n.div_ceil(n_domains.min(n_all));
                    let each =
                        layout.rooms().shape(layout.shape_of(layout.replicas(*owner)[0])).amounts[column];
                    f64::from(n.saturating_sub(elsewhere)) * number(each)
                })
                .collect();
            needs.sort_by(|a, b| b.total_cmp(a));
            let mut excess = needs.iter().sum::<f64>() - room;
            let n_not = needs.iter().take_while(|need| {
                let is_short = excess > 0.0;
                excess -= **need;
                is_short
            });
            n_worst = n_worst.max(n_not.count());
        }
    }
    let n = services.len().max(1);
    number(i64::try_from(n - n_worst.min(n)).unwrap_or(0)) / number(i64::try_from(n).unwrap_or(1))
}
