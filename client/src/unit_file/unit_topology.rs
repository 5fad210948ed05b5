//! Where the running units of a unit go in relation to one another: `topology` of a unit, and the flags for it.

use godel_proto::v1;

use super::{
    Submit,
    notation::{InFile, Notation},
};

impl InFile for v1::UnitTopology {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { required, preferred, homogeneous, segments } = self;
        file.text("required", required);
        file.texts_or_text("preferred", preferred);
        file.text("homogeneous", homogeneous);
        file.inside("segments", segments);
    }
}

impl InFile for v1::Segments {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { size, within } = self;
        file.above_zero("size", size);
        file.require("size");
        file.required_text("within", within);
    }
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
