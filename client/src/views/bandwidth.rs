//! What agents do about the bandwidths of running units, and what nodes and units send and receive.

use godel_base::{quantity, resources};
use godel_proto::v1;
use serde::Serialize;

/// What an agent does about one bandwidth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CareView {
    /// `network` or `memory-bandwidth`, as the resource is called.
    pub of: &'static str,
    /// `kept`, `measured, not kept` or `neither measured nor kept`.
    pub state: &'static str,
    /// Why no more is done; empty: everything is.
    pub reason: String,
}

impl CareView {
    /// All of it in a line.
    pub fn line(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{} {}{reason}", self.of, self.state)
    }
}

/// What an agent does about each bandwidth of which it says something.
pub(crate) fn cares(report: &v1::BandwidthReport) -> Vec<CareView> {
    let all = [(resources::NETWORK, &report.network), (resources::MEMORY_BANDWIDTH, &report.memory)];
    let view = |(of, care): (&'static str, &Option<v1::BandwidthCare>)| {
        let care = care.as_ref()?;
        let state = match care.state() {
            v1::BandwidthState::Kept => "kept",
            v1::BandwidthState::Measured => "measured, not kept",
            v1::BandwidthState::Accounted => "neither measured nor kept",
            v1::BandwidthState::Unspecified => return None,
        };
        Some(CareView { of, state, reason: care.reason.clone() })
    };
    all.into_iter().filter_map(view).collect()
}

/// Traffic, bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkView {
    /// Received.
    pub received: i64,
    /// Sent.
    pub sent: i64,
}

impl From<&v1::NetworkRate> for NetworkView {
    fn from(rate: &v1::NetworkRate) -> Self {
        let v1::NetworkRate { received, sent } = *rate;
        Self { received, sent }
    }
}

impl NetworkView {
    /// Adds what another one carries.
    pub fn add(&mut self, other: Self) {
        self.received = self.received.saturating_add(other.received);
        self.sent = self.sent.saturating_add(other.sent);
    }
}

/// Received and sent in words; `-` where it is not measured.
pub(crate) fn cells(network: Option<NetworkView>) -> [String; 2] {
    let show = |rate: fn(NetworkView) -> i64| {
        network
            .map_or_else(|| "-".to_owned(), |network| quantity::show_about(resources::NETWORK, rate(network)))
    };
    [show(|network| network.received), show(|network| network.sent)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_says_why() {
        let care = |state: v1::BandwidthState, reason: &str| {
            Some(v1::BandwidthCare { state: state.into(), reason: reason.to_owned() })
        };
        let report = v1::BandwidthReport {
            network: care(v1::BandwidthState::Kept, ""),
            memory: care(v1::BandwidthState::Accounted, "no resctrl"),
        };
        let lines: Vec<String> = cares(&report).iter().map(CareView::line).collect();
        assert_eq!(lines, ["network kept", "memory-bandwidth neither measured nor kept: no resctrl"]);
        assert!(cares(&v1::BandwidthReport::default()).is_empty());
    }
}
