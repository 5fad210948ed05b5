//! Where the running units of a unit go in relation to one another: `topology` of a unit, and the flags for it.

use godel_proto::v1;

use super::{Submit, read::Fields};

/// Reads the key; `None`: it says nothing.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> Option<v1::UnitTopology> {
    let topology = fields.inside("topology", |fields| {
        let required = fields.text("required").unwrap_or_default();
        let preferred = fields.text_or_texts("preferred");
        let homogeneous = fields.text("homogeneous").unwrap_or_default();
        let segments = fields.inside("segments", |fields| {
            let size = fields.number("size");
            let within = fields.text("within");
            v1::Segments {
                size: fields.required("size", size).unwrap_or_default(),
                within: fields.required("within", within).unwrap_or_default(),
            }
        });
        v1::UnitTopology { required, preferred, homogeneous, segments }
    });
    topology.filter(|topology| *topology != v1::UnitTopology::default())
}

/// Reads what the flags say.
///
/// # Errors
/// What is wrong, with its flag.
pub(super) fn of_flags(submit: &Submit) -> Result<Option<v1::UnitTopology>, String> {
    let segments = submit.segments.as_ref().map(|text| {
        let parts = text.split_once('@').and_then(|(size, within)| Some((size.trim().parse().ok()?, within)));
        let (size, within) = parts
            .ok_or_else(|| format!("--segments: `{text}` is not of the form `SIZE@KEY`, as `8@rack`"))?;
        Ok::<_, String>(v1::Segments { size, within: within.trim().to_owned() })
    });
    let topology = v1::UnitTopology {
        required: submit.topology.clone().unwrap_or_default(),
        preferred: submit.prefer_topology.clone(),
        homogeneous: submit.homogeneous.clone().unwrap_or_default(),
        segments: segments.transpose()?,
    };
    Ok((topology != v1::UnitTopology::default()).then_some(topology))
}
