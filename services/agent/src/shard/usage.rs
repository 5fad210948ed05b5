//! Use of nodes: modelled or measured, told with heartbeats; and what gives way on a real node without memory.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use godel_base::time::Millis;
use godel_core_agent::{MemoryUse, PoolWeights, RunKey, RunWeight, to_squeeze};
use godel_domain::{demand::Pool, node_load::LoadAmounts};
use godel_kit::clock::SharedClock;
use godel_proto::v1;
use godel_wire::to_proto;
use tokio::sync::mpsc;

use super::{HostedNode, Shard};
use crate::{
    Config, NodeDef,
    bandwidth::{Care, Rates},
    detect::{
        CUDA,
        nvml::{GpuUse, Nvml},
        tree::Tree,
    },
    measure::{Measured, Meter},
    runtime::{Event, process::Home},
    use_model::UseModel,
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
type GpuUses = Option<(Millis, Vec<GpuUse>)>;

/// What is used of the parts of a node.
#[derive(Debug, Default)]
struct PartsOfUse {
    running: Vec<v1::RunUsage>,
    zones: Vec<v1::ZoneUsage>,
    devices: Vec<v1::DeviceUsage>,
    network: Option<v1::NetworkRate>,
    bandwidth: Option<v1::BandwidthReport>,
}

/// What nodes use: modelled, or measured on a real one.
pub(super) struct NodeUse {
    config: Arc<Config>,
    clock: SharedClock,
    use_model: UseModel,
    load_window_ms: u64,
    /// The modelled day begins here.
    started: Millis,
    /// What a real node uses; `None`: nodes are simulated.
    measured: Option<Arc<Mutex<Measured>>>,
    /// What is used of its GPUs.
    gpus: Arc<Mutex<GpuUses>>,
}

impl NodeUse {
    pub(super) fn new(config: &Arc<Config>, clock: &SharedClock, seed: u64) -> Self {
        Self {
            config: Arc::clone(config),
            clock: clock.clone(),
            use_model: config.use_model(seed),
            load_window_ms: u64::try_from(config.load_window.as_millis()).unwrap_or(u64::MAX),
            started: clock.now(),
            measured: None,
            gpus: Arc::default(),
        }
    }

    /// The next heartbeat of node number `at`.
    pub(super) fn heartbeat(&self, at: usize, node: &mut HostedNode, now: Millis) -> v1::Heartbeat {
        let (age, window_ms) = (Millis(now.since(self.started)), self.load_window_ms);
        let used = self.used(at, node, age);
        let zone_use = if used.is_some() { self.zone_use(at, node, age) } else { Vec::new() };
        let all = used.map(|used| used.guaranteed.plus(used.best_effort));
        let load = all.map(|all| to_proto::node_load(&node.load.add(&load_of(all), age, window_ms)));
        let zone_loads = zone_use.iter().filter_map(|(zone, used)| {
            let (_, window) = node.zone_loads.iter_mut().find(|(known, _)| known == zone)?;
            let load = Some(to_proto::node_load(&window.add(used, age, window_ms)));
            Some(v1::ZoneLoad { zone: u32::try_from(*zone).ok()?, load })
        });
        let zone_loads = zone_loads.collect();
        let PartsOfUse { running, zones, devices, network, bandwidth } = self.parts_of_use(node);
        v1::Heartbeat {
            usage: all.map(usage_of),
            echo: node.agent.echo(now),
            guaranteed_usage: used.map(|used| usage_of(used.guaranteed)),
            load,
            running,
            zones,
            devices,
            zone_loads,
            network,
            bandwidth,
        }
    }

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
    pub(super) fn measure(&mut self, home: &Arc<Home>, def: &NodeDef, events: mpsc::Sender<Event>) {
        if def.visible.values().any(|(variable, _)| *variable == CUDA) {
            self.measure_gpus(home);
        }
        let mut meter = Meter::new(Tree::new("/".as_ref()), def);
        for (what, group) in meter.scope().groups() {
            tracing::info!(group = %group.dir().display(), "the {what} that this node uses is that of its control group");
        }
        let measured = Arc::clone(self.measured.insert(Arc::default()));
        let (home, clock) = (Arc::downgrade(home), self.clock.clone());
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
    fn used(&self, at: usize, node: &HostedNode, age: Millis) -> Option<PoolWeights> {
        let life = node.agent.life();
        let Some(measured) = &self.measured else {
            return Some(self.use_model.used(at, life.live().weights(), age));
        };
        let measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.machine_memory.total == 0 {
            return None;
        }
        let mut best_effort = RunWeight::default();
        for ((key, incarnation), used) in &measured.runs {
            if life.live_run(*key, *incarnation).is_some_and(|run| run.orders().pool == Pool::BestEffort) {
                best_effort.cpu_milli += used.cpu_milli;
                best_effort.memory += used.memory;
            }
        }
        // What the machine, or the group that bounds the agent, uses itself is no less in the way of best-effort work than what it guarantees.
        let all = measured.node;
        let guaranteed = RunWeight {
            cpu_milli: (all.cpu - best_effort.cpu_milli).max(0),
            memory: (all.memory - best_effort.memory).max(0),
            network: all.network,
        };
        Some(PoolWeights { guaranteed, best_effort })
    }

    /// What is used of each zone of a node that running units are given, whoever uses it, `age` after the start.
    fn zone_use(&self, at: usize, node: &HostedNode, age: Millis) -> Vec<(usize, LoadAmounts)> {
        if node.zone_loads.is_empty() {
            return Vec::new();
        }
        if let Some(measured) = &self.measured {
            let measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
            return measured.zones.iter().map(|(zone, used)| (*zone, *used)).collect();
        }
        let zones: Vec<usize> = node.zone_loads.iter().map(|(zone, _)| *zone).collect();
        let asked = node.agent.life().zone_weights(&zones);
        let used = asked.into_iter().map(|asked| {
            let used = self.use_model.used(at, asked, age);
            load_of(used.guaranteed.plus(used.best_effort))
        });
        zones.iter().copied().zip(used).collect()
    }

    /// What is used of the parts of a node, where that is measured.
    fn parts_of_use(&self, node: &HostedNode) -> PartsOfUse {
        let Some(measured) = &self.measured else { return PartsOfUse::default() };
        let HostedNode { agent, def, .. } = node;
        let gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gpus = gpus.filter(|(at, _)| self.clock.now().since(*at) < GPU_AGE_MS_MAX).unwrap_or_default().1;
        let of_device = |idx: usize| {
            let (_, number) = def.visible.get(&idx).filter(|(variable, _)| *variable == CUDA)?;
            gpus.get(usize::try_from(*number).ok()?).copied()
        };
        let measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        let running = measured.runs.iter().filter_map(|(&(key, incarnation), used)| {
            let devices = agent.life().live_run(key, incarnation)?.orders().allocation.devices;
            let device_milli = devices.iter().filter_map(of_device).map(|gpu| 10 * gpu.percent).sum();
            let (cpu_milli, memory) = (used.cpu_milli, used.memory);
            let RunKey { unit, ordinal } = key;
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

    /// Best-effort running units of a node that end, as it has too little memory left; and the bytes that are wanting.
    fn to_squeeze(&self, node: &HostedNode) -> Option<(Vec<MemoryUse>, i64)> {
        let measured = self.measured.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let short = measured.memory_short(i64::from(self.config.memory_low_percent));
        if short <= 0 {
            return None;
        }
        let runs = node.agent.life().best_effort().filter_map(|(key, incarnation, asked)| {
            let used = measured.runs.get(&(key, incarnation))?.memory;
            Some(MemoryUse { key, incarnation, used, asked })
        });
        Some((to_squeeze(short, &runs.collect::<Vec<_>>()).collect(), short))
    }
}

impl Shard {
    /// The use of this machine was measured: best-effort work gives way if it has no memory left.
    pub(super) fn squeeze(&mut self) {
        let Some(node) = self.nodes.first_mut() else { return };
        let Some((squeezed, short)) = self.node_use.to_squeeze(node) else { return };
        for MemoryUse { key, incarnation, .. } in &squeezed {
            node.agent.life_mut().squeeze(*key, *incarnation, &mut self.out);
        }
        if !squeezed.is_empty() {
            tracing::warn!(node = %node.name, n = squeezed.len(), short, "memory is short: best-effort running units are ended");
        }
        self.act(0);
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
fn load_of(used: RunWeight) -> LoadAmounts {
    let RunWeight { cpu_milli, memory, network } = used;
    LoadAmounts { cpu: cpu_milli, memory, network }
}

/// Use on the wire.
fn usage_of(used: RunWeight) -> v1::Resources {
    let amounts = [
        (godel_base::resources::CPU.to_owned(), used.cpu_milli),
        (godel_base::resources::MEMORY.to_owned(), used.memory),
    ];
    v1::Resources { amounts: amounts.into_iter().collect() }
}
