//! Where each container of a request may go, and where it would rather go: one function of all rows of the request.
//!
//! Rows overlap: `h1: 2, h2: 1, /r1: 3, *: 3` is three containers, of which two would rather go to `h1` and one to `h2`. [`wishes`] deals the
//! names out to the waiting containers so that each name is wished for by as many containers as its row asks for, and the names of hosts to
//! those that have the name of their rack. So no host gets more than was asked for there, whichever of the containers is placed first.
//!
//! Whether a place is allowed follows YARN (`LocalityAppPlacementAllocator`): a host that is named always is; else the row of its rack
//! decides by its `relax_locality`; else the row `*` by its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use super::ANY;

/// Bytes that the names of hosts and racks of one request may take in what is asked of the dispatcher, of about 1,500 hosts.
pub const NAMES_BYTES_MAX: usize = 32 << 10;
/// Hosts and racks that one wish, and so a strict request, names at most: a task group has 16 alternatives of 64 values each.
pub const N_PLACES_MAX: usize = 896;
/// Hosts and racks on a blacklist: a task group has 64 conditions of 64 values each, of which some say other things.
pub const N_REFUSED_MAX: usize = 2_500;
/// Bytes that a name takes beside its letters, at most.
const NAME_BYTES: usize = 6;
/// Wishes of one application for which the dispatcher is asked at a time, at most, and the bytes that all of them may take: a unit has at
/// most 1,024 task groups with 128 KiB.
const N_WISHES_MAX: usize = 128;
const WISHES_BYTES_MAX: usize = 64 << 10;
/// Bytes of a wish without names.
const WISH_BYTES: usize = 512;

/// Where a container may go, and where it would rather go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AskWish {
    /// Label expression of its node; empty: a node without a partition.
    pub label: String,
    /// Hosts that are better than all other places, none of them refused.
    pub hosts: BTreeSet<String>,
    /// Racks that are better than other racks, none of them refused.
    pub racks: BTreeSet<String>,
    /// Only `hosts` and nodes of `racks` will do.
    pub is_strict: bool,
    /// Racks of which only `hosts` will do.
    pub closed_racks: BTreeSet<String>,
    /// Hosts and racks that will not do at all.
    pub refused: Arc<BTreeSet<String>>,
}

/// One row of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceRow {
    /// How many containers are wanted there.
    pub n: u32,
    /// Places beyond the rows below are as good, after a while.
    pub relax_locality: bool,
}

/// All rows of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRows {
    /// Label expression that the row `*` has; `None`: it has none of its own.
    pub label: Option<String>,
    /// By host, `/rack` or `*`; each wants at least one container.
    pub places: BTreeMap<String, PlaceRow>,
    /// What the names of the rows take.
    n_bytes: usize,
}

/// What the wishes of all requests of an application follow, beside the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WishTerms {
    /// Label expression of requests that have none.
    pub label: String,
    /// Hosts and racks that the master does not want.
    pub refused: Arc<BTreeSet<String>>,
    /// The rack of each host of the cluster.
    pub racks: Arc<BTreeMap<String, String>>,
}

/// Bytes that names take in what is asked of the dispatcher.
pub fn names_bytes<'a>(names: impl IntoIterator<Item = &'a str>) -> usize {
    names.into_iter().map(|name| name.len() + NAME_BYTES).sum()
}

/// A row that names a rack.
pub fn is_rack(name: &str) -> bool {
    name.starts_with('/')
}

impl AskWish {
    /// Whether a host of a rack will do.
    pub fn permits(&self, host: &str, rack: &str) -> bool {
        if self.refused.contains(host) || self.refused.contains(rack) {
            return false;
        }
        let is_named = self.hosts.contains(host);
        let rack_does =
            if self.is_strict { self.racks.contains(rack) } else { !self.closed_racks.contains(rack) };
        is_named || rack_does
    }
}

impl RequestRows {
    /// The number at `*`: how many containers are wanted.
    pub fn n_wanted(&self) -> u32 {
        self.places.get(ANY).map_or(0, |any| any.n)
    }

    /// Bytes that the names of the rows take.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Sets a row, or takes it away if nothing is wanted there. Returns what was there.
    pub fn put(&mut self, name: &str, row: PlaceRow) -> Option<PlaceRow> {
        let before =
            if row.n == 0 { self.places.remove(name) } else { self.places.insert(name.to_owned(), row) };
        match (before.is_some(), row.n > 0) {
            (false, true) => self.n_bytes += names_bytes([name]),
            (true, false) => self.n_bytes -= names_bytes([name]),
            (true, true) | (false, false) => {}
        }
        before
    }
}

/// So many wishes of one request may differ, of an application with so many requests that refuses these places: each wish takes their names,
/// too.
pub fn n_wishes_max(n_requests: usize, refused: &BTreeSet<String>) -> usize {
    let bytes = WISH_BYTES + names_bytes(refused.iter().map(String::as_str));
    (WISHES_BYTES_MAX / bytes / n_requests.max(1)).clamp(1, N_WISHES_MAX)
}

/// A name, and the containers that wish for it, counted from 0.
struct Dealt<'a> {
    name: &'a str,
    containers: Range<u32>,
}

/// The wishes of the containers that a request waits for, and how many containers have each: as many as it wants, without those for which
/// no place will do. The same rows and terms give the same wishes, in the same order.
///
/// Each host and each rack is in the wishes of as many containers as its row asks for, but for these bounds: no row counts for more than
/// the row above it; with more than `n_max` different wishes those of neighbours are put together; and of hosts whose names are too long
/// together, see [`NAMES_BYTES_MAX`] and [`N_PLACES_MAX`], some are left out unless the request is strict, those with the smallest numbers first.
///
/// Costs `O(rows * log(rows))` and what the names of the wishes take.
pub fn wishes(rows: &RequestRows, terms: &WishTerms, n_max: usize) -> Vec<(AskWish, u32)> {
    let Some(any) = rows.places.get(ANY).filter(|any| any.n > 0) else { return Vec::new() };
    let dealt = deal(rows, *any, &terms.racks);
    let spans = spans(&dealt, any.n, n_max.max(1));
    let is_closed = |rack: &str| rows.places.get(rack).is_some_and(|row| !row.relax_locality);
    let racks = rows.places.keys().filter(|name| is_rack(name) && any.relax_locality);
    let plain = AskWish {
        label: rows.label.as_ref().unwrap_or(&terms.label).clone(),
        hosts: BTreeSet::new(),
        racks: BTreeSet::new(),
        is_strict: !any.relax_locality,
        closed_racks: racks.filter(|rack| is_closed(rack)).cloned().collect(),
        refused: Arc::clone(&terms.refused),
    };
    let mut of_spans = vec![plain; spans.len()];
    for Dealt { name, containers } in dealt.iter().filter(|dealt| !terms.refused.contains(dealt.name)) {
        let first = spans.partition_point(|span| span.end <= containers.start);
        let concerned = spans.iter().zip(&mut of_spans).skip(first);
        for (_, wish) in concerned.take_while(|(span, _)| span.start < containers.end) {
            // A strict request was judged when it came.
            if !wish.is_strict && wish.hosts.len() + wish.racks.len() >= N_PLACES_MAX {
                continue;
            }
            if !is_rack(name) {
                wish.hosts.insert((*name).to_owned());
            } else if !is_closed(name) {
                wish.racks.insert((*name).to_owned());
            }
        }
    }
    let mut given: Vec<(AskWish, u32)> = Vec::new();
    for (wish, span) in of_spans.into_iter().zip(spans) {
        if wish.is_strict && wish.hosts.is_empty() && wish.racks.is_empty() {
            continue;
        }
        let n = span.end - span.start;
        match given.iter_mut().find(|(known, _)| *known == wish) {
            Some((_, known)) => *known += n,
            None => given.push((wish, n)),
        }
    }
    given
}

/// Deals the names out: racks one after the other and round again, hosts in the same way among the containers of their racks.
fn deal<'a>(rows: &'a RequestRows, any: PlaceRow, racks: &'a BTreeMap<String, String>) -> Vec<Dealt<'a>> {
    let hosts = kept_hosts(rows, any);
    // Hosts whose rack has no row come last, under no name.
    let mut by_rack: BTreeMap<(bool, &str), Vec<(&str, u32)>> = BTreeMap::new();
    let of_rows = rows.places.keys().map(String::as_str).filter(|name| is_rack(name));
    by_rack.extend(of_rows.map(|rack| ((false, rack), Vec::new())));
    for (host, n) in hosts {
        let rack = racks.get(host).map(String::as_str).filter(|rack| rows.places.contains_key(*rack));
        by_rack.entry(rack.map_or((true, ""), |rack| (false, rack))).or_default().push((host, n));
    }
    let mut dealt = Vec::new();
    let mut begin = 0;
    for ((has_no_row, rack), hosts) in by_rack {
        let of_hosts = hosts.iter().map(|(_, n)| *n).fold(0, u32::saturating_add);
        let n = if has_no_row { of_hosts } else { rows.places.get(rack).map_or(0, |row| row.n) };
        let n = n.min(any.n);
        if !has_no_row {
            dealt.extend(around(begin, n, any.n).map(|containers| Dealt { name: rack, containers }));
        }
        let mut within = 0;
        for (host, of_host) in hosts {
            for part in around(within, of_host, n) {
                let start = (begin + part.start) % any.n;
                let parts = around(start, part.end - part.start, any.n);
                dealt.extend(parts.map(|containers| Dealt { name: host, containers }));
            }
            within = (within + of_host.min(n)) % n.max(1);
        }
        begin = (begin + n) % any.n;
    }
    dealt
}

/// Hosts whose names are given, with their numbers.
fn kept_hosts(rows: &RequestRows, any: PlaceRow) -> Vec<(&str, u32)> {
    let named = rows.places.iter().filter(|(name, _)| name.as_str() != ANY && !is_rack(name));
    let mut hosts: Vec<(&str, u32)> = named.map(|(name, row)| (name.as_str(), row.n)).collect();
    if any.relax_locality && rows.n_bytes > NAMES_BYTES_MAX {
        hosts.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
        let mut n_bytes = 0;
        hosts.retain(|(name, _)| {
            n_bytes += names_bytes([*name]);
            n_bytes <= NAMES_BYTES_MAX
        });
        hosts.sort_unstable();
    }
    hosts
}

/// `n` places from one on, on a circle: one range, or two where they go over its end.
fn around(start: u32, n: u32, circle: u32) -> impl Iterator<Item = Range<u32>> {
    let start = if n >= circle { 0 } else { start };
    let n = n.min(circle);
    let head = n.min(circle - start);
    [start..start + head, 0..n - head].into_iter().filter(|part| part.start < part.end)
}

/// Neighbouring containers that wish for the same, at most so many lots of them.
fn spans(dealt: &[Dealt<'_>], n: u32, n_max: usize) -> Vec<Range<u32>> {
    let ends = dealt.iter().flat_map(|dealt| [dealt.containers.start, dealt.containers.end]);
    let mut bounds: Vec<u32> = ends.chain([0, n]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let n_spans = bounds.len() - 1;
    let step = n_spans.div_ceil(n_max).max(1);
    let last = bounds.last().copied().filter(|_| !n_spans.is_multiple_of(step));
    let kept: Vec<u32> = bounds.iter().copied().step_by(step).chain(last).collect();
    kept.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

#[cfg(test)]
mod tests;
