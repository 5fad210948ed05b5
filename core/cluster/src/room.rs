//! Free amounts of all nodes: one dense row per node, and per block of nodes an upper bound that lets scans
//! skip blocks in which nothing can fit.

use godel_base::ids::NodeId;
use smallvec::SmallVec;

/// Nodes per block of the index. 64 rows of two resources are 1 KiB: a block is tightened in about the time
/// of one cache miss per line.
pub const BLOCK: usize = 64;

/// Some nodes of a block, a bit each.
pub type BlockMask = u64;
const _: () = assert!(BLOCK == BlockMask::BITS as usize, "a bit is a node of a block");

/// Returns the block of a node, and the node alone as a mask of it.
pub fn block_of(node: NodeId) -> (usize, BlockMask) {
    (node.idx() / BLOCK, 1 << (node.idx() % BLOCK))
}

/// Amounts asked for, by resource integer; none is 0.
pub type Asks = SmallVec<[(u8, i64); 4]>;

/// A node's whole amount of a resource, in [`Room::share`].
pub const SHARE_WHOLE: i64 = 100_000;
/// Binary places of [`Room`]'s `scale`: as many as leave room for [`SHARE_WHOLE`] in front of them.
const SCALE_BITS: u32 = 44;
const _: () = assert!(SHARE_WHOLE <= i64::MAX >> SCALE_BITS, "a share of one unit overflows");

/// What is free for devices on a node, whatever their model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRoom {
    /// Devices wholly free.
    pub whole: u8,
    /// Thousandths left on the emptiest one.
    pub share: i32,
}

/// Rows by node index. Amounts may go negative while a node shrinks.
#[derive(Clone, Debug, Default)]
pub struct Room {
    stride: usize,
    n_nodes: usize,
    allocatable: Vec<i64>,
    foreign: Vec<i64>,
    /// Of allocatable what is neither taken nor foreign.
    free: Vec<i64>,
    /// Share of the node's whole that one unit is; 0 where the node has none. Multiplying beats dividing.
    scale: Vec<i64>,
    /// Per block and resource: at least the greatest `free` of its nodes.
    bound: Vec<i64>,
    device_bound: Vec<DeviceRoom>,
    /// Blocks whose bounds may be too high: less is free on one of their nodes than when they were exact.
    loose: Vec<bool>,
}

impl Room {
    /// Makes place for `n_nodes` nodes and `stride` resources; never shrinks.
    pub fn grow(&mut self, n_nodes: usize, stride: usize) {
        if stride > self.stride {
            let old = self.stride;
            let per_node = [&mut self.allocatable, &mut self.foreign, &mut self.free, &mut self.scale];
            for column in per_node.into_iter().chain([&mut self.bound]) {
                *column = widen(column, old, stride);
            }
            self.stride = stride;
        }
        if n_nodes > self.n_nodes {
            self.n_nodes = n_nodes;
            let len = n_nodes * self.stride;
            let per_node = [&mut self.allocatable, &mut self.foreign, &mut self.free, &mut self.scale];
            for column in per_node {
                column.resize(len, 0);
            }
            let n_blocks = n_nodes.div_ceil(BLOCK);
            self.bound.resize(n_blocks * self.stride, 0);
            self.device_bound.resize(n_blocks, DeviceRoom::default());
            self.loose.resize(n_blocks, false);
        }
    }

    fn range(&self, idx: usize) -> std::ops::Range<usize> {
        idx * self.stride..(idx + 1) * self.stride
    }

    /// Returns what is free on the node at an index, by resource; may be negative.
    #[inline]
    pub fn free(&self, idx: usize) -> &[i64] {
        &self.free[self.range(idx)]
    }

    /// Returns what the node at an index has in all, by resource.
    #[inline]
    pub fn allocatable(&self, idx: usize) -> &[i64] {
        &self.allocatable[self.range(idx)]
    }

    /// By resource integer.
    pub fn taken(&self, idx: usize) -> SmallVec<[i64; 8]> {
        self.range(idx).map(|at| self.taken_at(at)).collect()
    }

    fn taken_at(&self, at: usize) -> i64 {
        self.allocatable[at].saturating_sub(self.foreign[at]).saturating_sub(self.free[at])
    }

    /// What `left` of a resource is of the node's whole, in parts of [`SHARE_WHOLE`], rounded down; 0 where the node
    /// has none. Exact to one part up to 16 TiB; far beyond, it only gets coarser.
    #[inline]
    pub fn share(&self, idx: usize, id: usize, left: i64) -> i64 {
        let scaled = left.max(0).saturating_mul(self.scale[idx * self.stride + id]);
        (scaled >> SCALE_BITS).min(SHARE_WHOLE)
    }

    /// The first resource that is short.
    pub fn shortage(&self, idx: usize, asks: &Asks) -> Option<u8> {
        let free = self.free(idx);
        asks.iter().find(|(id, amount)| *amount > free[usize::from(*id)]).map(|(id, _)| *id)
    }

    /// Takes (`sign` 1) or gives back (-1).
    pub fn shift(&mut self, idx: usize, asks: &Asks, sign: i64) {
        let range = self.range(idx);
        let free = &mut self.free[range];
        for &(id, amount) in asks {
            let free = &mut free[usize::from(id)];
            *free = free.saturating_sub(amount.saturating_mul(sign));
        }
        if sign < 0 {
            self.raise(idx);
        } else {
            self.loose[idx / BLOCK] = true;
        }
    }

    /// Replaces what a node has; `amounts` by resource integer.
    pub(crate) fn set_allocatable(&mut self, idx: usize, amounts: &[(u8, i64)]) {
        let taken = self.taken(idx);
        let range = self.range(idx);
        self.allocatable[range].fill(0);
        for &(id, amount) in amounts {
            self.allocatable[idx * self.stride + usize::from(id)] = amount;
        }
        for at in self.range(idx) {
            let scale = (SHARE_WHOLE << SCALE_BITS).checked_div(self.allocatable[at]);
            self.scale[at] = scale.unwrap_or(0).max(0);
        }
        self.set_free(idx, &taken);
    }

    /// Replaces what others are believed to have taken unseen.
    pub(crate) fn set_foreign(&mut self, idx: usize, amounts: &[(u8, i64)]) {
        let taken = self.taken(idx);
        let range = self.range(idx);
        self.foreign[range].fill(0);
        for &(id, amount) in amounts {
            let at = idx * self.stride + usize::from(id);
            self.foreign[at] = amount.saturating_sub(taken[usize::from(id)]).max(0);
        }
        self.set_free(idx, &taken);
    }

    /// Something unseen became seen: no longer believed on top.
    pub(crate) fn consume_foreign(&mut self, idx: usize, asks: &Asks) {
        let taken = self.taken(idx);
        for &(id, amount) in asks {
            let at = idx * self.stride + usize::from(id);
            self.foreign[at] = self.foreign[at].saturating_sub(amount).max(0);
        }
        self.set_free(idx, &taken);
    }

    /// Nothing unseen is believed any more.
    pub(crate) fn has_foreign(&self, idx: usize) -> bool {
        self.foreign[self.range(idx)].iter().any(|amount| *amount > 0)
    }

    /// Free is what the rest leaves.
    fn set_free(&mut self, idx: usize, taken: &[i64]) {
        for (at, taken) in self.range(idx).zip(taken) {
            self.free[at] = self.allocatable[at].saturating_sub(*taken).saturating_sub(self.foreign[at]);
        }
        self.raise(idx);
        self.loose[idx / BLOCK] = true;
    }

    fn raise(&mut self, idx: usize) {
        let base = idx / BLOCK * self.stride;
        let range = self.range(idx);
        let bounds = &mut self.bound[base..base + self.stride];
        for (bound, free) in bounds.iter_mut().zip(&self.free[range]) {
            *bound = (*free).max(*bound);
        }
    }

    /// Devices of a node have become freer.
    pub(crate) fn raise_devices(&mut self, idx: usize, devices: DeviceRoom) {
        let bound = &mut self.device_bound[idx / BLOCK];
        bound.whole = bound.whole.max(devices.whole);
        bound.share = bound.share.max(devices.share);
        // It may as well be less than before.
        self.loose[idx / BLOCK] = true;
    }

    /// False only if no node of the block holds the asked amounts.
    #[inline]
    pub fn block_may_fit(&self, block: usize, asks: &Asks, devices: DeviceRoom) -> bool {
        let base = block * self.stride;
        asks.iter().all(|(id, amount)| *amount <= self.bound[base + usize::from(*id)])
            && devices.whole <= self.device_bound[block].whole
            && devices.share <= self.device_bound[block].share
    }

    /// Makes the bounds of a block exact.
    pub fn tighten(&mut self, block: usize, devices: impl Fn(usize) -> DeviceRoom) {
        if !self.loose[block] {
            return;
        }
        let end = ((block + 1) * BLOCK).min(self.n_nodes);
        let base = block * self.stride;
        self.bound[base..base + self.stride].fill(i64::MIN);
        self.device_bound[block] = DeviceRoom::default();
        for idx in block * BLOCK..end {
            self.raise(idx);
            self.raise_devices(idx, devices(idx));
        }
        self.loose[block] = false;
    }
}

fn widen(column: &[i64], old: usize, new: usize) -> Vec<i64> {
    let mut wide = vec![0; column.len().checked_div(old).unwrap_or(0) * new];
    for (from, to) in column.chunks_exact(old.max(1)).zip(wide.chunks_exact_mut(new)) {
        to[..old].copy_from_slice(from);
    }
    wide
}
