//! Room for units that are parked, reported to the dispatcher, which says who gets it.
//!
//! Nodes that gain room are *offered*: for each group of parked units the places on them are counted, and counted again
//! whenever what is known of them changes, until they have room for nobody. A report holds the newest count, and how many
//! assignments were taken before it: the dispatcher takes off what it has called since. While a called unit has yet to be
//! tried nothing is stated, since its place is not taken yet. See ADR 0018.

use std::collections::BTreeSet;

use godel_base::ids::NodeId;
use godel_cluster::Cluster;
use godel_domain::unit_report::RoomReport;
use godel_placement::place::{Placer, templates::TemplateId};

use super::AssignedUnits;
use crate::{
    park::{Parked, WaitKey},
    picture::{Picture, may_serve},
};

/// Places counted of one need at most: more are reported once these are taken.
const N_PLACES_MAX: u32 = 1_024;
/// The same where every node has to be asked, which costs a look at each.
const N_ANYWHERE_MAX: u32 = 64;

impl AssignedUnits {
    /// Nodes that gained room since the last step are offered.
    pub(crate) fn offer_gained(&mut self, picture: &mut Picture) {
        let gained = picture.take_gained();
        if !self.parked.is_empty() {
            let Picture { cluster, placer, .. } = picture;
            if cluster.holds().is_any() {
                self.wake_units_with_holds(&gained, cluster, &mut placer.templates);
            }
            self.parked.offer(&gained);
            count_rooms(&mut self.parked, placer, cluster);
        }
        picture.give_back_gained(gained);
    }

    /// What the dispatcher has yet to hear of room, and the end of what is known of needs that nobody has.
    pub(crate) fn take_rooms(&mut self, picture: &mut Picture) -> Vec<RoomReport> {
        if self.parked.is_empty() || self.n_called > 0 {
            return Vec::new();
        }
        let Picture { cluster, placer, used_as_of, .. } = picture;
        count_rooms(&mut self.parked, placer, cluster);
        let (assigned, revision) = (self.reports.n_assigned, *used_as_of);
        let news = self.parked.take_news();
        for need in self.parked.take_dropped() {
            need.templates.iter().for_each(|(template, _)| placer.templates.release(*template));
        }
        news.into_iter().map(|(need, places)| RoomReport { need, places, assigned, revision }).collect()
    }
}

fn count_rooms(parked: &mut Parked, placer: &mut Placer, cluster: &Cluster) {
    if !parked.is_stale() {
        return;
    }
    let mut useful = BTreeSet::new();
    parked.count(|need, nodes| match nodes {
        None => count_anywhere(need, placer, cluster),
        Some(nodes) => count(need, nodes, placer, cluster, &mut useful),
    });
    if parked.n_offered() > 0 {
        parked.retain_offered(|node| useful.contains(node));
    }
}

/// Places on these nodes; those that have some are noted.
fn count(
    need: &WaitKey,
    nodes: &[NodeId],
    placer: &mut Placer,
    cluster: &Cluster,
    useful: &mut BTreeSet<NodeId>,
) -> u32 {
    let mut places = 0u32;
    for (idx, node) in nodes.iter().enumerate() {
        let on_node = need.templates.iter().map(|(template, _)| n_places(*template, *node, placer, cluster));
        let on_node = on_node.max().unwrap_or(0);
        if on_node > 0 {
            useful.insert(*node);
            places = places.saturating_add(on_node);
        }
        if places >= N_PLACES_MAX {
            // What comes after these is counted when they are taken.
            useful.extend(&nodes[idx..]);
            break;
        }
    }
    of_need(need, places)
}

/// Places on all nodes, as far as it is worth to ask.
fn count_anywhere(need: &WaitKey, placer: &mut Placer, cluster: &Cluster) -> u32 {
    let mut places = 0u32;
    for node in cluster.nodes().ids() {
        let on_node = need.templates.iter().map(|(template, _)| n_places(*template, node, placer, cluster));
        places = places.saturating_add(on_node.max().unwrap_or(0));
        if places >= N_ANYWHERE_MAX || (need.together > 0 && places > 0) {
            break;
        }
    }
    of_need(need, places)
}

fn n_places(template: TemplateId, node: NodeId, placer: &mut Placer, cluster: &Cluster) -> u32 {
    if !cluster.catalogue().sub_clusters().has(placer.templates.get(template).ask.sub_cluster(), node) {
        return 0;
    }
    match placer.n_fit(cluster, template, node, N_PLACES_MAX) {
        0 => u32::from(may_serve(placer, cluster, template, node)),
        n => n,
    }
}

/// What has to be placed together finds its other places elsewhere, or does not: only a try says so.
fn of_need(need: &WaitKey, places: u32) -> u32 {
    match need.together {
        0 => places,
        _ if places == 0 => 0,
        together => together,
    }
}
