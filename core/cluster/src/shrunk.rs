//! Nodes that have come to have less than what is there takes: what is short is given to nobody until it fits.
//!
//! Resources show it by themselves: less than nothing of them is free. A device that is gone, or that has become another
//! one, does not, as devices are told apart: who holds which is kept for each node, and as long as somebody holds one that
//! is not there, or not of those that it asked for, the devices of that kind that are left count as not free.

use godel_domain::allocation::DeviceSet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{
    catalogue::Catalogue,
    devices::{DeviceAsk, DeviceClasses, NodeDevices},
    shapes::{Shape, ShapeId, Shapes},
};

/// Who holds devices of one node: what they asked for, which ones they hold, and how many hold the same.
#[derive(Clone, Debug, Default)]
struct Holders(Vec<(ShapeId, DeviceSet, i32)>);

impl Holders {
    /// One more (`sign` 1) or one less (-1).
    fn shift(&mut self, shape: ShapeId, devices: DeviceSet, sign: i32) {
        let same = |(of, held, _): &(ShapeId, DeviceSet, i32)| (*of, *held) == (shape, devices);
        match self.0.iter().position(same) {
            Some(at) => {
                self.0[at].2 += sign;
                if self.0[at].2 == 0 {
                    self.0.swap_remove(at);
                }
            }
            None => self.0.push((shape, devices, sign)),
        }
    }

    /// Devices of every kind of which somebody holds one that the node no longer has, or that has become another one than
    /// was asked for: of such a kind the node gives nothing away until those have ended.
    fn frozen(&self, classes: &[u16], all: &DeviceClasses, shapes: &Shapes) -> DeviceSet {
        let mut frozen = DeviceSet::NONE;
        for (shape, held, _) in &self.0 {
            let shape = shapes.get(*shape);
            if !is_astray(&shape.devices, *held, classes) {
                continue;
            }
            for kind in astray_kinds(shape, *held, classes) {
                let of_kind = classes.iter().enumerate().filter(|(_, class)| all.is_kind(**class, kind));
                of_kind.for_each(|(idx, _)| frozen.insert(idx));
            }
        }
        frozen
    }
}

/// Who holds which devices, by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceHolders {
    by_node: Vec<Holders>,
    /// Running units with several device requests, by node index; few nodes have any. What they take of a device follows from
    /// its class.
    mixed: FxHashMap<usize, Holders>,
}

impl DeviceHolders {
    /// Makes place for nodes; never shrinks.
    pub(crate) fn grow(&mut self, n_nodes: usize) {
        self.by_node.resize_with(n_nodes, Holders::default);
    }

    /// Devices of a node are held by one more (`sign` 1) or one less (-1).
    pub(crate) fn shift(
        &mut self,
        catalogue: &Catalogue,
        idx: usize,
        node: &mut NodeDevices,
        shape: ShapeId,
        devices: DeviceSet,
        sign: i32,
    ) {
        self.by_node[idx].shift(shape, devices, sign);
        if is_astray(&catalogue.shape(shape).devices, devices, &node.classes) {
            self.settle_frozen(catalogue, idx, node);
        }
    }

    /// Notes who takes devices by several requests.
    pub(crate) fn shift_mixed(&mut self, idx: usize, shape: ShapeId, devices: DeviceSet, sign: i32) {
        self.mixed.entry(idx).or_default().shift(shape, devices, sign);
    }

    /// A node has devices of other classes: what is taken of them by several requests follows.
    pub(crate) fn set_classes(
        &self,
        catalogue: &Catalogue,
        idx: usize,
        node: &mut NodeDevices,
        classes: SmallVec<[u16; 8]>,
    ) {
        let mixed = || self.mixed.get(&idx).into_iter().flat_map(|holders| &holders.0);
        for (shape, held, n) in mixed() {
            node.shift(*held, &catalogue.shape(*shape).devices, -n);
        }
        node.classes = classes;
        for (shape, held, n) in mixed() {
            node.shift(*held, &catalogue.shape(*shape).devices, *n);
        }
    }

    /// Devices of a node are what they are now: those that somebody holds may be others, or gone.
    pub(crate) fn settle_frozen(&self, catalogue: &Catalogue, idx: usize, node: &mut NodeDevices) {
        let frozen = self.by_node[idx].frozen(&node.classes, catalogue.classes(), catalogue.shapes());
        node.freeze(frozen);
    }
}

/// Whether some of the devices held are not there, or not of those asked for.
pub fn is_astray(asks: &[DeviceAsk], held: DeviceSet, classes: &[u16]) -> bool {
    let serves = |class: &u16| asks.iter().any(|ask| ask.accepts(*class));
    !asks.is_empty() && held.iter().any(|idx| !classes.get(idx).is_some_and(serves))
}

/// Returns the kinds of which devices that are held may be gone, or others than were asked for. Where not all devices of a
/// running unit are held together, nobody knows of which kind the missing one was: then it may be any that is asked for.
fn astray_kinds<'a>(shape: &'a Shape, held: DeviceSet, classes: &'a [u16]) -> impl Iterator<Item = &'a str> {
    let is_whole = held.len() == shape.devices.iter().map(|ask| ask.count).sum::<u32>();
    let n_serving = move |ask: &DeviceAsk| {
        held.iter().filter(|idx| classes.get(*idx).is_some_and(|class| ask.accepts(*class))).count()
    };
    let requests = shape.devices.iter().zip(&shape.demand.devices);
    requests
        .filter(move |(ask, _)| !is_whole || n_serving(ask) < ask.count as usize)
        .map(|(_, request)| request.kind.as_str())
}

/// Why nothing of a kind is given away though some of it may be left.
pub fn frozen_words(kind: &str) -> String {
    format!("{kind}: what runs there holds some that the node no longer has")
}
