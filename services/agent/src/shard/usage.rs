//! Use of nodes: modelled or measured, told with heartbeats; and what gives way on a real node without memory.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use godel_domain::{demand::Pool, time::Millis};
use godel_proto::v1;
use tokio::sync::mpsc;

use super::Shard;
use crate::{
    detect::tree::Tree,
    life::Weight,
    measure::{Measured, Meter, Use, to_squeeze},
    runtime::{Event, process::Home},
    service::Mode,
};

/// Between looks at what is used: best-effort work gives way within two of them.
const PAUSE: Duration = Duration::from_secs(1);
/// Running units of one heartbeat.
const N_RUNNING_MAX: usize = 4_096;

impl Shard {
    /// Measures the use of this machine from now on, as long as `home` is there.
    pub(super) fn measure(&self, home: &Arc<Home>, events: mpsc::Sender<Event>) {
        let Some(slot) = self.slots.first() else { return };
        let mut meter = Meter::new(Tree::new("/".as_ref()), &slot.def);
        let (home, measured, clock) = (Arc::downgrade(home), Arc::clone(&self.measured), self.clock.clone());
        godel_kit::task::spawn("agent.usage", async move {
            let mut ticks = tokio::time::interval(PAUSE);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(home) = home.upgrade() else { return };
                let now = clock.now();
                let looked = tokio::task::spawn_blocking(move || {
                    let looked = meter.look(&home.usages(), now);
                    (meter, looked)
                });
                let Ok((again, looked)) = looked.await else { return };
                meter = again;
                if let Some(looked) = looked {
                    *measured.lock().unwrap_or_else(PoisonError::into_inner) = looked;
                    // A shard that is behind looks at the next one.
                    let _is_behind = events.try_send(Event::Measured);
                }
            }
        });
    }

    /// What guaranteed and best-effort running units of a node use, `age` after the start; `None`: it is not known.
    pub(super) fn used(&self, node: usize, age: Millis) -> Option<(Weight, Weight)> {
        let life = &self.slots[node].life;
        if self.mode == Mode::Simulated {
            return Some(self.use_model.used(node, life.weights(), age));
        }
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.memory_total == 0 {
            return None;
        }
        let mut best_effort = Weight::default();
        for ((key, incarnation), used) in &measured.runs {
            if life.pool(*key, *incarnation) == Some(Pool::BestEffort) {
                best_effort.cpu_milli += used.cpu_milli;
                best_effort.memory += used.memory;
            }
        }
        // What the machine itself uses is no less in the way of best-effort work than what it guarantees.
        let all = measured.node;
        let guaranteed = Weight {
            cpu_milli: (all.cpu - best_effort.cpu_milli).max(0),
            memory: (all.memory - best_effort.memory).max(0),
            network: all.network,
        };
        Some((guaranteed, best_effort))
    }

    /// What single running units and zones of a node use, where that is measured.
    pub(super) fn parts_of_use(&self, node: usize) -> (Vec<v1::RunUsage>, Vec<v1::ZoneUsage>) {
        if self.mode == Mode::Simulated {
            return (Vec::new(), Vec::new());
        }
        let life = &self.slots[node].life;
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let Measured { runs, zones, .. } = &*measured;
        let live = runs.iter().filter(|((key, incarnation), _)| life.pool(*key, *incarnation).is_some());
        let runs = live.take(N_RUNNING_MAX).map(|((key, incarnation), used)| v1::RunUsage {
            unit_id: key.unit,
            ordinal: key.ordinal,
            incarnation: *incarnation,
            cpu_milli: used.cpu_milli,
            memory: used.memory,
        });
        let zones = zones.iter().map(|(zone, Use { cpu_milli, memory })| v1::ZoneUsage {
            zone: u32::try_from(*zone).unwrap_or(u32::MAX),
            cpu_milli: *cpu_milli,
            memory: *memory,
        });
        (runs.collect(), zones.collect())
    }

    /// The use of this machine was measured: best-effort work gives way if it has no memory left.
    pub(super) fn squeeze(&mut self) {
        let Some(slot) = self.slots.first_mut() else { return };
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let low = measured.memory_total / 100 * i64::from(self.config.memory_low_percent);
        let short = low - measured.memory_available;
        if short <= 0 {
            return;
        }
        let runs: Vec<_> = slot
            .life
            .best_effort()
            .filter_map(|(key, incarnation, asked)| {
                let run = (key, incarnation);
                Some((run, *measured.runs.get(&run)?, asked))
            })
            .collect();
        drop(measured);
        let mut actions = Vec::new();
        let squeezed = to_squeeze(short, &runs);
        for (key, incarnation) in &squeezed {
            slot.life.squeeze(*key, *incarnation, &mut actions);
        }
        if !squeezed.is_empty() {
            tracing::warn!(node = %slot.name, n = squeezed.len(), short, "memory is short: best-effort running units are ended");
        }
        self.act(0, actions);
        self.note(0);
    }
}
