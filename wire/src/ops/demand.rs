//! What running units take on a node: demands, device requests and ports.

use godel_base::{
    quantity::MILLI_WHOLE,
    resources::{N_NAMES_MAX, Resources},
};
use godel_domain::{
    demand::{Demand, DeviceRequest, N_DEVICE_REQUESTS_MAX, N_DEVICES_MAX, repeated_kind},
    host_port::{HostPort, N_HOST_PORTS_MAX, Protocol},
};
use godel_proto::v1;

use super::OpError;
use crate::zones;

/// What one running unit takes; absent is nothing.
///
/// # Errors
/// A negative amount, too many names, or devices out of range.
pub fn demand_from_proto(demand: Option<v1::Demand>) -> Result<Demand, OpError> {
    let demand = demand.unwrap_or_default();
    let requests = demand.requests.unwrap_or_default().amounts;
    if requests.len() > N_NAMES_MAX {
        return Err(OpError::field("demand.requests", format!("has more than {N_NAMES_MAX} names")));
    }
    let requests = Resources::new(requests)
        .map_err(|name| OpError::field("demand.requests", format!("{name} is negative")))?;
    let devices = demand.devices.into_iter().map(device_request).collect::<Result<Vec<_>, _>>()?;
    if devices.len() > N_DEVICE_REQUESTS_MAX {
        return Err(OpError::field(
            "demand.devices",
            format!("has more than {N_DEVICE_REQUESTS_MAX} requests"),
        ));
    }
    if let Some(kind) = repeated_kind(devices.iter().map(|devices| devices.kind.as_str())) {
        return Err(OpError::field("demand.devices.kind", format!("duplicate kind `{kind}`")));
    }
    if demand.host_ports.len() > N_HOST_PORTS_MAX {
        return Err(OpError::field("demand.host_ports", format!("has more than {N_HOST_PORTS_MAX} ports")));
    }
    let host_ports = demand.host_ports.iter().map(|port| {
        host_port(port).ok_or_else(|| {
            OpError::field("demand.host_ports", format!("{} {} is not a port", port.port, port.protocol))
        })
    });
    let host_ports = host_ports.collect::<Result<_, _>>()?;
    let zones = demand.zones.map(zones::request).transpose();
    let zones = zones.map_err(|wrong| OpError::field("demand.zones", wrong))?.flatten();
    Ok(Demand { requests, devices, host_ports, zones })
}

/// A port; `None` if its number or its protocol stands for nothing.
pub fn host_port(port: &v1::HostPort) -> Option<HostPort> {
    let protocol = match v1::Protocol::try_from(port.protocol).ok()? {
        v1::Protocol::Unspecified | v1::Protocol::Tcp => Protocol::Tcp,
        v1::Protocol::Udp => Protocol::Udp,
    };
    let port = u16::try_from(port.port).ok().filter(|port| *port > 0)?;
    Some(HostPort { port, protocol })
}

fn device_request(request: v1::DeviceRequest) -> Result<DeviceRequest, OpError> {
    let v1::DeviceRequest { kind, count, milli_per_device, models, terms } = request;
    let milli = milli_per_device.unwrap_or(MILLI_WHOLE);
    if count == 0 || count as usize > N_DEVICES_MAX {
        return Err(OpError::field("demand.devices.count", format!("{count} is not 1 to {N_DEVICES_MAX}")));
    }
    if milli == 0 || milli > MILLI_WHOLE || (count > 1 && milli < MILLI_WHOLE) {
        return Err(OpError::field(
            "demand.devices.milli_per_device",
            format!("{milli} is not 1 to {MILLI_WHOLE}, or a share of several devices"),
        ));
    }
    Ok(DeviceRequest { kind, count, milli, models, terms: zones::device_terms(terms) })
}
