//! What agents do about the bandwidths of running units, and what nodes and units send and receive.

use godel_base::{quantity, resources};
use godel_proto::v1;
use serde::Serialize;

use crate::view;

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

view! {
    /// Traffic, bits per second.
    #[derive(Copy, Default, Eq)]
    pub struct NetworkView from (rate: &v1::NetworkRate) {
        /// Received.
        pub received: i64 = rate.received,
        /// Sent.
        pub sent: i64 = rate.sent,
    }
}

impl NetworkView {
    /// Adds what another one carries.
    pub fn add(&mut self, other: Self) {
        self.received = self.received.saturating_add(other.received);
        self.sent = self.sent.saturating_add(other.sent);
    }
}

/// What is received, in words; `-` where it is not measured.
pub(crate) fn received(network: Option<NetworkView>) -> String {
    rate(network.map(|network| network.received))
}

/// What is sent, in words; `-` where it is not measured.
pub(crate) fn sent(network: Option<NetworkView>) -> String {
    rate(network.map(|network| network.sent))
}

fn rate(rate: Option<i64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| quantity::show_about(resources::NETWORK, rate))
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
