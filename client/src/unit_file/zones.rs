//! What a replica asks of the zones and links of its node: `topology` of a template, and the flags for it.

use godel_base::{quantity, resources::MEMORY};
use godel_proto::v1;

use super::{read::Fields, unit, words};

/// Reads the key: what it asks of zones, and the devices that stand there.
pub(super) fn read(fields: &mut Fields<'_, '_>) -> (Option<v1::ZoneRequest>, Vec<v1::DeviceRequest>) {
    let topology = fields.inside("topology", |fields| {
        let policy = fields.word("policy", &words::ZONE_POLICY);
        let cpu_mode = fields.word("cpu_mode", &words::CPU_MODE);
        (v1::ZoneRequest { policy, cpu_mode }, unit::device_list(fields))
    });
    let (zones, devices) = topology.unwrap_or_default();
    (given(zones), devices)
}

/// Reads what the flags say.
pub(super) fn of_flags(policy: Option<i32>, cpu_mode: Option<i32>) -> Option<v1::ZoneRequest> {
    given(v1::ZoneRequest { policy: policy.unwrap_or_default(), cpu_mode: cpu_mode.unwrap_or_default() })
}

fn given(zones: v1::ZoneRequest) -> Option<v1::ZoneRequest> {
    (zones != v1::ZoneRequest::default()).then_some(zones)
}

/// Reads what devices have to be beside their kind and model.
pub(super) fn device_terms(fields: &mut Fields<'_, '_>) -> Option<v1::DeviceTerms> {
    let terms = v1::DeviceTerms {
        link: fields.text("link").unwrap_or_default(),
        gbps: fields.number("gbps").unwrap_or_default(),
        memory: fields.scalar("memory", |text| quantity::parse(MEMORY, text)).unwrap_or_default(),
        same_zone_as: fields.text("same_zone_as").unwrap_or_default(),
        profile: fields.text("profile").unwrap_or_default(),
    };
    (terms != v1::DeviceTerms::default()).then_some(terms)
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
