//! What a replica asks of the zones and links of its node: `topology` of a template, and the flags for it.

use godel_base::{quantity, resources::MEMORY};
use godel_proto::v1;

use super::{
    notation::{InFile, Notation},
    unit, words,
    yaml_out::Yaml,
};

/// What a template asks of zones, and the devices that it asks for beside that.
#[derive(Clone, Default, PartialEq)]
pub(super) struct ZoneKeys {
    pub(super) request: v1::ZoneRequest,
    pub(super) devices: Vec<v1::DeviceRequest>,
}

impl InFile for ZoneKeys {
    fn visit(&mut self, file: &mut impl Notation) {
        let v1::ZoneRequest { policy, cpu_mode } = &mut self.request;
        file.word("policy", policy, &words::ZONE_POLICY);
        file.word("cpu_mode", cpu_mode, &words::CPU_MODE);
        unit::visit_devices(&mut self.devices, file);
    }
}

/// Reads what the flags say.
pub(super) fn of_flags(policy: Option<i32>, cpu_mode: Option<i32>) -> Option<v1::ZoneRequest> {
    given(v1::ZoneRequest { policy: policy.unwrap_or_default(), cpu_mode: cpu_mode.unwrap_or_default() })
}

fn given(zones: v1::ZoneRequest) -> Option<v1::ZoneRequest> {
    (zones != v1::ZoneRequest::default()).then_some(zones)
}

/// What devices have to be beside their kind and model.
pub(super) fn visit_terms(terms: &mut v1::DeviceTerms, file: &mut impl Notation) {
    let v1::DeviceTerms { link, gbps, memory, same_zone_as, profile } = terms;
    file.text("link", link);
    file.above_zero("gbps", gbps);
    let mut bytes = Some(*memory).filter(|bytes| *bytes > 0);
    let show = |bytes: &i64| Yaml::plain(quantity::show(MEMORY, *bytes));
    file.scalar("memory", &mut bytes, |text| quantity::parse(MEMORY, text), show);
    *memory = bytes.unwrap_or_default();
    file.text("same_zone_as", same_zone_as);
    file.text("profile", profile);
}

/// Reads one `key=value` of a flag for devices.
///
/// # Errors
/// The key is none of these, or the value is none of the key.
pub(super) fn take_term(terms: &mut v1::DeviceTerms, pair: &str) -> Result<(), String> {
    let Some((key, value)) = pair.split_once('=') else {
        return Err(format!("`{pair}` is not of the form key=value"));
    };
    match key.trim() {
        "link" => value.clone_into(&mut terms.link),
        "same_zone_as" => value.clone_into(&mut terms.same_zone_as),
        "profile" => value.clone_into(&mut terms.profile),
        "gbps" => terms.gbps = value.parse().map_err(|_| format!("gbps: `{value}` is not a number"))?,
        "memory" => {
            terms.memory = quantity::parse(MEMORY, value).map_err(|error| format!("memory: {error}"))?;
        }
        other => {
            return Err(format!("unknown key `{other}`: link, gbps, memory, same_zone_as or profile"));
        }
    }
    Ok(())
}
