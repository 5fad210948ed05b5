//! Demands as small integers, with everything resolved that a fit needs.

use std::sync::Arc;

use godel_base::resources::{CPU, MEMORY, N_NAMES_MAX, RUNNING_UNITS};
use godel_domain::{
    demand::{Demand, DeviceRequest, Pool},
    node_load::MaxLoad,
    zone::ZoneRequest,
};
use rustc_hash::FxHashMap;

use super::{
    devices::{DeviceAsk, DeviceAsks, DeviceClasses, least_of},
    loads::LoadLimits,
    room::{Asks, DeviceRoom},
};

/// An interned demand of a pool: valid for the cluster that gave it, for as long as that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeId(u32);

impl ShapeId {
    /// Returns its position among all shapes.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Small integer of what every running unit takes one of, in every cluster.
pub const COUNT: u8 = 2;
/// What a running unit counts in scores that asks for no cpu, milli-cores, and for no memory, bytes: as in Kubernetes. Such
/// ones would all look for the same node otherwise. They take nothing of it.
pub(crate) const NOMINAL: [i64; 2] = [100, 200 << 20];

/// Resource names that nodes have or something took, by small integer: `cpu` is 0, `memory` 1, the number of running
/// units [`COUNT`].
#[derive(Clone, Debug)]
pub struct Names(Vec<String>);

impl Default for Names {
    fn default() -> Self {
        Self(vec![CPU.to_owned(), MEMORY.to_owned(), RUNNING_UNITS.to_owned()])
    }
}

impl Names {
    /// Returns the number of resources known.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the name of a resource; `?` for a number that no resource has.
    pub fn name(&self, id: usize) -> &str {
        self.0.get(id).map_or("?", String::as_str)
    }

    /// There are few: looking through them beats hashing.
    pub fn find(&self, name: &str) -> Option<u8> {
        self.0.iter().position(|known| known == name).and_then(|id| u8::try_from(id).ok())
    }

    /// The integer of `name`, given now if it is new; `None` when there are too many names.
    pub fn id(&mut self, name: &str) -> Option<u8> {
        self.find(name).or_else(|| {
            // The number of running units is not one that people name.
            let id = (self.0.len() <= N_NAMES_MAX).then(|| u8::try_from(self.0.len()).ok())??;
            self.0.push(name.to_owned());
            Some(id)
        })
    }
}

/// A demand, resolved.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The demand as it was written.
    pub demand: Arc<Demand>,
    /// The pool that pays.
    pub pool: Pool,
    /// Amounts by resource, ascending.
    pub asks: Asks,
    /// Of `asks` cpu and memory, which nearly all demands name, and the number of running units; `i64::MIN` for one that
    /// is not asked for. A row shows at once whether it has them: an amount of nothing fits even where more than everything
    /// is taken.
    pub first: [i64; 3],
    /// What it counts in scores beyond what it asks for: of cpu and memory, see `NOMINAL`.
    pub nominal: [i64; 2],
    /// The rest of `asks`.
    pub others: Asks,
    /// Asks for a resource that no node has ever had.
    pub unknown: Option<String>,
    /// Devices asked for, in the order of the demand's requests.
    pub devices: DeviceAsks,
    /// It listens on ports of the node.
    pub has_ports: bool,
    /// What it asks of the zones of the node.
    pub zones: Option<ZoneRequest>,
    /// How much may be used of the zones that it is given; `None`: however much, or the node is judged.
    pub zone_limits: Option<LoadLimits>,
    /// It matters where on the node its resources and devices lie.
    pub is_placed: bool,
    /// It asks for amounts of the whole node and nothing else.
    pub(crate) is_plain: bool,
    pub(crate) least_devices: DeviceRoom,
}

impl Shape {
    /// Whether a row of free amounts holds it; false while a resource is unknown.
    #[inline]
    pub fn fits(&self, free: &[i64]) -> bool {
        self.first[0] <= free[0]
            && self.first[1] <= free[1]
            && self.first[2] <= free[2]
            && self.unknown.is_none()
            && self.others.iter().all(|(id, amount)| *amount <= free[usize::from(*id)])
    }

    /// How many a row of free amounts holds, `max` at most; one where nothing is asked for that a row knows.
    pub fn n_fit(&self, free: &[i64], max: u32) -> u32 {
        let fitting = self.asks.iter().filter(|(_, amount)| *amount > 0);
        let n = fitting.map(|(id, amount)| free[usize::from(*id)] / amount).min().unwrap_or(1);
        u32::try_from(n.max(0)).unwrap_or(max).min(max)
    }

    /// Whether the devices of a request lie beside others, or others beside them.
    pub(crate) fn is_with_others(&self, ask: &DeviceAsk) -> bool {
        ask.is_beside_any(&self.devices)
    }

    /// Of `asks` what best-effort running units may have while it is not used: cpu and memory.
    pub fn measured(&self) -> Asks {
        self.asks.iter().filter(|(id, _)| *id < 2).copied().collect()
    }
}

/// Interner of demands. Resource names are known once a node has them or something took them.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    shapes: Vec<Shape>,
    guaranteed: FxHashMap<Arc<Demand>, ShapeId>,
    best_effort: FxHashMap<Arc<Demand>, ShapeId>,
    /// Those of replicas that accept so much use of their zones, by what they ask for.
    below: FxHashMap<(ShapeId, MaxLoad), ShapeId>,
}

impl Shapes {
    /// Returns what a shape asks for.
    #[inline]
    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.shapes[id.idx()]
    }

    /// Returns the shape of a demand; equal demands of one pool have the same shape.
    pub fn intern(&mut self, demand: &Demand, pool: Pool, names: &Names, classes: &DeviceClasses) -> ShapeId {
        let ids = match pool {
            Pool::Guaranteed => &mut self.guaranteed,
            Pool::BestEffort => &mut self.best_effort,
        };
        if let Some(id) = ids.get(demand) {
            return *id;
        }
        let id = ShapeId(u32::try_from(self.shapes.len()).expect("memory ends before 2^32 shapes"));
        let demand = Arc::new(demand.clone());
        ids.insert(Arc::clone(&demand), id);
        let devices: DeviceAsks =
            (0..demand.devices.len()).map(|at| DeviceAsk::new(&demand.devices, at, classes)).collect();
        let is_about_places =
            |request: &DeviceRequest| request.terms.as_ref().is_some_and(|terms| terms.is_about_places());
        let is_placed = demand.zones.is_some() || demand.devices.iter().any(is_about_places);
        let (has_ports, zones) = (!demand.host_ports.is_empty(), demand.zones);
        let is_plain = devices.is_empty() && !is_placed && !has_ports;
        let mut shape = Shape {
            demand,
            pool,
            asks: Asks::new(),
            first: [i64::MIN; 3],
            nominal: NOMINAL,
            others: Asks::new(),
            unknown: None,
            least_devices: least_of(&devices),
            devices,
            has_ports,
            zones,
            zone_limits: None,
            is_placed,
            is_plain,
        };
        resolve(&mut shape, names);
        self.shapes.push(shape);
        id
    }

    /// Returns the shape that asks for the same as another one, and accepts so much use of its zones.
    pub fn intern_below(&mut self, shape: ShapeId, max_load: MaxLoad) -> ShapeId {
        if let Some(id) = self.below.get(&(shape, max_load)) {
            return *id;
        }
        let id = ShapeId(u32::try_from(self.shapes.len()).expect("memory ends before 2^32 shapes"));
        let limited =
            Shape { zone_limits: Some(LoadLimits::of(max_load)), ..self.shapes[shape.idx()].clone() };
        self.shapes.push(limited);
        self.below.insert((shape, max_load), id);
        id
    }

    /// Whether anything of best-effort was ever asked for.
    pub fn has_best_effort(&self) -> bool {
        !self.best_effort.is_empty()
    }

    /// New resource names are known.
    pub(crate) fn resolve_names(&mut self, names: &Names) {
        for shape in self.shapes.iter_mut().filter(|shape| shape.unknown.is_some()) {
            resolve(shape, names);
        }
    }

    /// New device models are known.
    pub(crate) fn resolve_devices(&mut self, classes: &DeviceClasses) {
        for shape in &mut self.shapes {
            for (ask, request) in shape.devices.iter_mut().zip(&shape.demand.devices) {
                ask.resolve(request, classes);
            }
        }
    }
}

fn resolve(shape: &mut Shape, names: &Names) {
    shape.asks.clear();
    shape.others.clear();
    shape.unknown = None;
    for (name, amount) in shape.demand.requests.iter().filter(|(name, _)| *name != RUNNING_UNITS) {
        let Some(id) = names.find(name) else {
            shape.unknown = Some(name.to_owned());
            continue;
        };
        shape.asks.push((id, amount));
        match shape.first.get_mut(usize::from(id)) {
            Some(first) => *first = amount,
            None => shape.others.push((id, amount)),
        }
    }
    shape.asks.push((COUNT, 1));
    shape.first[usize::from(COUNT)] = 1;
    let is_named = |id: usize| shape.first[id] > 0;
    shape.nominal = [0, 1].map(|id| if is_named(id) { 0 } else { NOMINAL[id] });
}
