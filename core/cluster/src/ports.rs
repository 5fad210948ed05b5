//! Ports of nodes that running units listen on.

use godel_domain::host_port::HostPort;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Ports taken, by node index; few nodes have any. One that is taken twice, as records of an outage may have it, is free once
/// both are gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct TakenPorts(FxHashMap<usize, SmallVec<[(HostPort, u32); 4]>>);

impl TakenPorts {
    /// A running unit takes ports (`sign` 1) or gives them back (-1).
    #[cold]
    pub(crate) fn shift(&mut self, idx: usize, ports: &[HostPort], sign: i8) {
        let taken = self.0.entry(idx).or_default();
        for port in ports {
            match taken.iter().position(|(known, _)| known == port) {
                Some(at) if sign > 0 => taken[at].1 += 1,
                Some(at) if taken[at].1 > 1 => taken[at].1 -= 1,
                Some(at) => drop(taken.swap_remove(at)),
                None if sign > 0 => taken.push((*port, 1)),
                None => {}
            }
        }
        if taken.is_empty() {
            self.0.remove(&idx);
        }
    }

    /// Returns the first of some ports that is taken on a node.
    pub(crate) fn first_taken(&self, idx: usize, ports: &[HostPort]) -> Option<HostPort> {
        let taken = self.0.get(&idx)?;
        ports.iter().find(|port| taken.iter().any(|(known, _)| known == *port)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_once_all_who_have_it_are_gone() {
        let [http, dns] = ["80/tcp", "53/udp"].map(|text| text.parse::<HostPort>().unwrap());
        let mut taken = TakenPorts::default();
        taken.shift(7, &[http, dns], 1);
        taken.shift(7, &[http], 1);
        assert_eq!(taken.first_taken(7, &[dns]), Some(dns));
        assert_eq!(taken.first_taken(8, &[dns, http]), None);
        taken.shift(7, &[http, dns], -1);
        assert_eq!(taken.first_taken(7, &[dns, http]), Some(http));
        taken.shift(7, &[http], -1);
        assert!(taken.first_taken(7, &[dns, http]).is_none() && taken.0.is_empty());
    }
}
