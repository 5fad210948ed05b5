//! Demands: one that takes only CPU, and its changes as a chain of calls.

use godel_base::resources::{CPU, MEMORY, Resources};
use godel_domain::demand::{Demand, DeviceRequest};

/// Returns a demand for so many milli-cores. [`BuildDemand`] changes it.
pub fn demand(cpu_milli: i64) -> Demand {
    Demand { requests: Resources::new([(CPU, cpu_milli)]).unwrap_or_default(), ..Demand::default() }
}

/// Changes of a demand as a chain of calls.
pub trait BuildDemand: Sized {
    /// Asks for so many bytes of memory.
    #[must_use]
    fn memory(self, bytes: i64) -> Demand;

    /// Asks for `count` GPUs of some models (any model if there are none), `milli` thousandths of each; not for any GPU
    /// if either number is 0.
    #[must_use]
    fn gpus(self, count: u32, milli: u32, models: &[&str]) -> Demand;
}

impl BuildDemand for Demand {
    fn memory(mut self, bytes: i64) -> Demand {
        self.requests.add_amount(MEMORY, bytes);
        self
    }

    fn gpus(mut self, count: u32, milli: u32, models: &[&str]) -> Demand {
        if count > 0 && milli > 0 {
            let models = models.iter().map(|model| (*model).to_owned()).collect();
            self.devices.push(DeviceRequest { kind: "gpu".to_owned(), count, milli, models, terms: None });
        }
        self
    }
}
