//! Use of nodes: modelled or measured, told with heartbeats; and what gives way on a real node without memory.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use godel_base::time::Millis;
use godel_domain::{demand::Pool, node_load::LoadAmounts};
use godel_proto::v1;
use tokio::sync::mpsc;

use super::{NodeEntry, Shard};
use crate::{
    bandwidth::{Care, Rates},
    detect::{
        CUDA,
        nvml::{GpuUse, Nvml},
        tree::Tree,
    },
    life::{Key, Weight},
    measure::{Meter, to_squeeze},
    runtime::{Event, process::Home},
    service::Mode,
};

/// Between looks at what is used: best-effort work gives way within two of them.
const PAUSE: Duration = Duration::from_secs(1);
/// Running units of one heartbeat.
const N_RUNNING_MAX: usize = 4_096;

/// Bytes of what is said of a bandwidth.
const N_WORDS_MAX: usize = 500;

/// GPUs of which nothing was heard for so long are not known, milliseconds: their driver may hang.
const GPU_AGE_MS_MAX: u64 = 5_000;

/// Use of GPUs in the order of their buses, and when it was measured.
pub(super) type GpuUses = Option<(Millis, Vec<GpuUse>)>;

/// What is used of the parts of a node.
#[derive(Debug, Default)]
pub(super) struct PartsOfUse {
    pub(super) running: Vec<v1::RunUsage>,
    pub(super) zones: Vec<v1::ZoneUsage>,
    pub(super) devices: Vec<v1::DeviceUsage>,
    pub(super) network: Option<v1::NetworkRate>,
    pub(super) bandwidth: Option<v1::BandwidthReport>,
}

impl Shard {
    /// Measures the use of NVIDIA's GPUs from now on, in a thread of its own: a driver that hangs holds up nothing else.
    fn measure_gpus(&self, home: &Arc<Home>) {
        let (home, gpus, clock) = (Arc::downgrade(home), Arc::clone(&self.gpus), self.clock.clone());
        let library = self.config.nvml_library.clone();
        let measure = move || {
            let Ok(nvml) = Nvml::open(&library) else { return };
            while home.strong_count() > 0 {
                let uses = nvml.uses();
                *gpus.lock().unwrap_or_else(PoisonError::into_inner) = Some((clock.now(), uses));
                std::thread::sleep(PAUSE);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gpu-usage".to_owned()).spawn(measure) {
            tracing::warn!(%error, "the use of GPUs is not measured");
        }
    }

    /// Measures the use of this machine from now on, as long as `home` is there.
    pub(super) fn measure(&self, home: &Arc<Home>, events: mpsc::Sender<Event>) {
        let Some(slot) = self.slots.first() else { return };
        if slot.def.visible.values().any(|(variable, _)| *variable == CUDA) {
            self.measure_gpus(home);
        }
        let mut meter = Meter::new(Tree::new("/".as_ref()), &slot.def);
        for (what, group) in meter.scope().groups() {
            tracing::info!(group = %group.dir().display(), "the {what} that this node uses is that of its control group");
        }
        let (home, measured, clock) = (Arc::downgrade(home), Arc::clone(&self.measured), self.clock.clone());
        godel_kit::task::spawn("agent.usage", async move {
            let mut ticks = tokio::time::interval(PAUSE);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(home) = home.upgrade() else { return };
                let now = clock.now();
                let looked = tokio::task::spawn_blocking(move || {
                    let looked = meter.look(&home.usages(now), now);
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
            let (guaranteed, best_effort) = life.weights();
            return Some(self.use_model.used(node, guaranteed, best_effort, age));
        }
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.machine_memory.total == 0 {
            return None;
        }
        let mut best_effort = Weight::default();
        for ((key, incarnation), used) in &measured.runs {
            if life.given(*key, *incarnation).is_some_and(|(pool, _)| pool == Pool::BestEffort) {
                best_effort.cpu_milli += used.cpu_milli;
                best_effort.memory += used.memory;
            }
        }
        // What the machine, or the group that bounds the agent, uses itself is no less in the way of best-effort work than what it guarantees.
        let all = measured.node;
        let guaranteed = Weight {
            cpu_milli: (all.cpu - best_effort.cpu_milli).max(0),
            memory: (all.memory - best_effort.memory).max(0),
            network: all.network,
        };
        Some((guaranteed, best_effort))
    }

    /// What is used of each zone of a node that running units are given, whoever uses it, `age` after the start.
    pub(super) fn zone_use(&self, node: usize, age: Millis) -> Vec<(usize, LoadAmounts)> {
        let NodeEntry { zone_loads, life, .. } = &self.slots[node];
        if zone_loads.is_empty() {
            return Vec::new();
        }
        if self.mode == Mode::Processes {
            let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
            return measured.zones.iter().map(|(zone, used)| (*zone, *used)).collect();
        }
        let zones: Vec<usize> = zone_loads.iter().map(|(zone, _)| *zone).collect();
        let asked = life.zone_weights(&zones);
        let used = asked.into_iter().map(|(guaranteed, best_effort)| {
            let (guaranteed, best_effort) = self.use_model.used(node, guaranteed, best_effort, age);
            load_of(guaranteed.plus(best_effort))
        });
        zones.iter().copied().zip(used).collect()
    }

    /// What is used of the parts of a node, where that is measured.
    pub(super) fn parts_of_use(&self, node: usize) -> PartsOfUse {
        if self.mode == Mode::Simulated {
            return PartsOfUse::default();
        }
        let NodeEntry { life, def, .. } = &self.slots[node];
        let gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gpus = gpus.filter(|(at, _)| self.clock.now().since(*at) < GPU_AGE_MS_MAX).unwrap_or_default().1;
        let of_device = |idx: usize| {
            let (_, number) = def.visible.get(&idx).filter(|(variable, _)| *variable == CUDA)?;
            gpus.get(usize::try_from(*number).ok()?).copied()
        };
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let running = measured.runs.iter().filter_map(|(&(key, incarnation), used)| {
            let (_, devices) = life.given(key, incarnation)?;
            let device_milli = devices.iter().filter_map(of_device).map(|gpu| 10 * gpu.percent).sum();
            let (cpu_milli, memory) = (used.cpu_milli, used.memory);
            let Key { unit, ordinal } = key;
            let Rates { network, memory: memory_bandwidth } =
                measured.rates.get(&(key, incarnation)).copied().unwrap_or_default();
            Some(v1::RunUsage {
                unit_id: unit,
                ordinal,
                incarnation,
                cpu_milli,
                memory,
                device_milli,
                network: network.map(|(received, sent)| v1::NetworkRate { received, sent }),
                memory_bandwidth,
            })
        });
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let zones = measured.zones.iter().map(|(zone, LoadAmounts { cpu, memory, network })| v1::ZoneUsage {
            zone: number(*zone),
            cpu_milli: *cpu,
            memory: *memory,
            network: *network,
        });
        let devices = (0..def.devices.len()).filter_map(|idx| {
            let GpuUse { percent, memory } = of_device(idx)?;
            Some(v1::DeviceUsage { device: number(idx), percent, memory })
        });
        let (received, sent) = measured.network;
        PartsOfUse {
            running: running.take(N_RUNNING_MAX).collect(),
            zones: zones.collect(),
            devices: devices.collect(),
            network: (measured.machine_memory.total > 0).then_some(v1::NetworkRate { received, sent }),
            bandwidth: measured.care.as_ref().map(|(network, memory)| bandwidth_report(network, memory)),
        }
    }

    /// The use of this machine was measured: best-effort work gives way if it has no memory left.
    pub(super) fn squeeze(&mut self) {
        let Some(slot) = self.slots.first_mut() else { return };
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let short = measured.memory_short(i64::from(self.config.memory_low_percent));
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

fn bandwidth_report(network: &Care, memory: &Care) -> v1::BandwidthReport {
    let care = |care: &Care| {
        let state = match care {
            Care::Accounted(_) => v1::BandwidthState::Accounted,
            Care::Measured(_) => v1::BandwidthState::Measured,
            Care::Kept(_) => v1::BandwidthState::Kept,
        };
        let mut reason = care.reason().to_owned();
        reason.truncate(reason.floor_char_boundary(N_WORDS_MAX));
        v1::BandwidthCare { state: state.into(), reason }
    };
    v1::BandwidthReport { network: Some(care(network)), memory: Some(care(memory)) }
}

/// Use as a window of it takes it.
pub(super) fn load_of(used: Weight) -> LoadAmounts {
    let Weight { cpu_milli, memory, network } = used;
    LoadAmounts { cpu: cpu_milli, memory, network }
}

/// Use on the wire.
pub(super) fn usage_of(used: Weight) -> v1::Resources {
    let amounts = [
        (godel_base::resources::CPU.to_owned(), used.cpu_milli),
        (godel_base::resources::MEMORY.to_owned(), used.memory),
    ];
    v1::Resources { amounts: amounts.into_iter().collect() }
}
