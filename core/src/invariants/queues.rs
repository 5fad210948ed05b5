//! I5: what each queue uses, summed anew.

use std::collections::BTreeMap;

use super::{Findings, Invariant, Report, room, world::World};
use crate::resources::Resources;

pub(super) fn check(world: &World, maxima: &[(String, Resources)]) -> Report {
    let mut findings = Findings::default();
    let mut by_queue: BTreeMap<&str, Resources> = BTreeMap::new();
    let mut n = 0usize;
    for (id, unit) in &world.units {
        let live = unit.rows.values().filter(|row| row.is_live());
        for row in live {
            n += 1;
            let Some(spec) = &unit.spec else {
                findings
                    .add(|| format!("unit id {id} has running units but no record: no queue pays for them"));
                break;
            };
            if let Some((demand, _)) = unit.demands.get(&row.group) {
                // Every level of the tree pays: `a/b` counts in `a` and in `a/b`.
                let path = spec.value.queue.as_str();
                let ends = path.match_indices('/').map(|(idx, _)| idx).chain([path.len()]);
                for end in ends {
                    by_queue.entry(&path[..end]).or_default().add(&demand.requests, 1);
                }
            }
        }
    }
    for (queue, maximum) in maxima {
        let Some(used) = by_queue.get(queue.as_str()) else { continue };
        for (name, most) in maximum.iter() {
            if used.get(name) > most {
                findings.add(|| format!("queue {queue}: {name} {} of {most}", used.get(name)));
            }
        }
    }
    let on_nodes: usize = room::usage(world, |_| true).values().map(|usage| usage.n).sum();
    if on_nodes != n {
        findings.add(|| format!("queues pay for {n} running units, nodes hold {on_nodes}"));
    }
    findings.checked(format!(
        "{} queues pay for {n} running units; {} maxima set",
        by_queue.len(),
        maxima.len()
    ));
    findings.report(Invariant::I5)
}
