//! The volumes that a node keeps, in `godel node describe`.

use std::fmt::Write as _;

use godel_base::{quantity, resources::MEMORY};
use godel_client::output::shown;
use godel_proto::v1;
use serde::Serialize;

/// A volume that the node keeps.
#[derive(Serialize)]
pub(super) struct VolumeView {
    /// `namespace/name`; empty: its record is gone.
    unit: String,
    ordinal: u32,
    name: String,
    bytes: u64,
}

pub(super) fn views(replicas: Vec<v1::ReplicaVolumes>) -> Vec<VolumeView> {
    let mut views = Vec::new();
    for v1::ReplicaVolumes { ordinal, volumes, unit_name, .. } in replicas {
        let view = |(name, bytes)| VolumeView { unit: unit_name.clone(), ordinal, name, bytes };
        views.extend(volumes.into_iter().map(view));
    }
    views.sort_by(|a, b| (&a.unit, a.ordinal, &a.name).cmp(&(&b.unit, b.ordinal, &b.name)));
    views
}

pub(super) fn text(volumes: &[VolumeView]) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let mut text = "\nvolumes\n".to_owned();
    for VolumeView { unit, ordinal, name, bytes } in volumes {
        let unit = if unit.is_empty() { "a unit that is gone" } else { unit };
        let size = quantity::show(MEMORY, i64::try_from(*bytes).unwrap_or(i64::MAX));
        let _written = writeln!(text, "{}/{ordinal}  {}  {size}", shown(unit), shown(name));
    }
    text
}
