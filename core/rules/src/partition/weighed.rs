//! Schedulers get as much free room each, in whole racks if racks must not be split.
//!
//! Nodes that nobody has go one by one, the largest first, to whoever has least (Graham's longest processing time rule,
//! 1969). Nodes of others move only when somebody has a fifth more or less than the average, and then only where that
//! makes the larger share smaller without making the smaller one larger than it was. What moves is taken from a share at
//! equal distances by weight, so that each keeps nodes of every kind.

use std::{cmp::Reverse, collections::BTreeMap};

use godel_base::ids::NodeId;

use super::{OwnedNodes, Strategy, Traits};

/// Somebody has so much more or less than the average, parts of it: nodes move.
const TOLERANCE: u64 = 5;

#[derive(Debug)]
pub(super) struct FreeResources;

#[derive(Debug)]
pub(super) struct Topology;

/// Nodes that have one owner.
#[derive(Clone, Debug)]
struct OwnedBlock {
    nodes: Vec<NodeId>,
    weight: u64,
}

/// Of what fails together, or else the node that is alone.
type Name<'a> = (Option<&'a str>, NodeId);

/// Blocks of one scheduler.
#[derive(Clone, Debug, Default)]
struct SchedulerShare {
    blocks: Vec<OwnedBlock>,
    weight: u64,
}

impl Strategy for FreeResources {
    fn assign(&self, traits: &Traits<'_>, owned: Vec<OwnedNodes>, homeless: OwnedNodes) -> Vec<OwnedNodes> {
        let block = |node: NodeId| OwnedBlock { nodes: vec![node], weight: weight(traits, node) };
        let shares = owned.into_iter().map(|own| own.into_iter().map(block).collect()).collect();
        balance(shares, homeless.into_iter().map(block).collect())
    }
}

impl Strategy for Topology {
    fn assign(&self, traits: &Traits<'_>, owned: Vec<OwnedNodes>, homeless: OwnedNodes) -> Vec<OwnedNodes> {
        let n_slots = owned.len();
        let mut blocks: BTreeMap<Name<'_>, (OwnedBlock, Vec<u64>)> = BTreeMap::new();
        // With what each slot has of it, nobody last.
        for (slot, own) in owned.into_iter().chain([homeless]).enumerate() {
            for node in own {
                let domain = traits.domains.and_then(|domains| domains.get(&node));
                let key = domain.map_or((None, node), |domain| (Some(&**domain), NodeId(0)));
                let none = || (OwnedBlock { nodes: Vec::new(), weight: 0 }, vec![0; n_slots + 1]);
                let (block, held) = blocks.entry(key).or_insert_with(none);
                let weight = weight(traits, node);
                block.nodes.push(node);
                block.weight = block.weight.saturating_add(weight);
                held[slot] = held[slot].saturating_add(weight);
            }
        }
        let mut shares = vec![SchedulerShare::default(); n_slots];
        let mut nobodys = Vec::new();
        for (mut block, held) in blocks.into_values() {
            block.nodes.sort_unstable();
            // Whoever has most of it gets the rest.
            let owner = (0..n_slots).max_by_key(|slot| (held[*slot], Reverse(*slot)));
            match owner.filter(|slot| held[*slot] > 0) {
                Some(slot) => shares[slot].push(block),
                None => nobodys.push(block),
            }
        }
        balance(shares, nobodys)
    }
}

fn weight(traits: &Traits<'_>, node: NodeId) -> u64 {
    traits.weights.get(node.idx()).copied().unwrap_or(1).max(1)
}

fn balance(mut shares: Vec<SchedulerShare>, mut nobodys: Vec<OwnedBlock>) -> Vec<OwnedNodes> {
    nobodys.sort_by_key(|block| (Reverse(block.weight), block.nodes[0]));
    for block in nobodys {
        let lightest = lightest(&shares);
        shares[lightest].push(block);
    }
    shares.iter_mut().for_each(SchedulerShare::sort);
    while is_uneven(&shares) && even_out(&mut shares) {}
    shares.into_iter().map(SchedulerShare::into_nodes).collect()
}

fn is_uneven(shares: &[SchedulerShare]) -> bool {
    let average = average(shares);
    shares.iter().any(|share| share.weight.abs_diff(average) > average / TOLERANCE)
}

/// Who has more than the average gives the surplus to whoever has least. False if nothing moved.
fn even_out(shares: &mut [SchedulerShare]) -> bool {
    let average = average(shares);
    let mut moved = false;
    for slot in 0..shares.len() {
        let surplus = shares[slot].weight.saturating_sub(average);
        for block in shares[slot].sample(surplus) {
            let to = lightest(shares);
            // Its own weight is without the block already.
            let to = if shares[to].weight < shares[slot].weight { to } else { slot };
            moved |= to != slot;
            shares[to].push(block);
        }
    }
    shares.iter_mut().for_each(SchedulerShare::sort);
    moved
}

fn average(shares: &[SchedulerShare]) -> u64 {
    let n_shares = u64::try_from(shares.len()).unwrap_or(u64::MAX).max(1);
    shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.weight)) / n_shares
}

fn lightest(shares: &[SchedulerShare]) -> usize {
    (0..shares.len()).min_by_key(|slot| (shares[*slot].weight, *slot)).unwrap_or(0)
}

impl FromIterator<OwnedBlock> for SchedulerShare {
    fn from_iter<I: IntoIterator<Item = OwnedBlock>>(blocks: I) -> Self {
        let mut share = Self::default();
        blocks.into_iter().for_each(|block| share.push(block));
        share
    }
}

impl SchedulerShare {
    fn push(&mut self, block: OwnedBlock) {
        self.weight = self.weight.saturating_add(block.weight);
        self.blocks.push(block);
    }

    fn sort(&mut self) {
        self.blocks.sort_unstable_by_key(|block| block.nodes[0]);
    }

    /// Takes blocks of this weight together out, at equal distances by weight.
    fn sample(&mut self, wanted: u64) -> Vec<OwnedBlock> {
        let all = i128::from(self.weight.max(1));
        // By how much what is taken lags behind its part.
        let mut owed = 0i128;
        let is_taken = |block: &mut OwnedBlock| {
            let weight = i128::from(block.weight);
            owed += weight * i128::from(wanted);
            let is_due = owed * 2 >= weight * all;
            owed -= if is_due { weight * all } else { 0 };
            is_due
        };
        let taken: Vec<OwnedBlock> = self.blocks.extract_if(.., is_taken).collect();
        self.weight -=
            taken.iter().fold(0u64, |sum, block| sum.saturating_add(block.weight)).min(self.weight);
        taken
    }

    fn into_nodes(self) -> OwnedNodes {
        let mut nodes: OwnedNodes = self.blocks.into_iter().flat_map(|block| block.nodes).collect();
        nodes.sort_unstable();
        nodes
    }
}
