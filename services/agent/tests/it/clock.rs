//! Agents whose clock goes on while they do one thing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use godel_agent::{Mode, NodeDef};
use godel_base::{resources::Resources, time::Millis};
use godel_kit::clock::{Clock, SystemClock};
use godel_proto::v1::RunPhase;

use super::{
    Agents,
    fake::{Fake, assignment},
    phases,
};

/// A clock that goes on at each reading, as if whoever reads it were stopped for a moment between any two.
struct RestlessClock {
    clock: SystemClock,
    n_readings: AtomicU64,
}

impl Clock for RestlessClock {
    fn now(&self) -> Millis {
        self.clock.now().plus(self.n_readings.fetch_add(1, Ordering::Relaxed))
    }

    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }
}

#[tokio::test]
async fn the_end_of_a_run_is_told_however_the_clock_goes_on_while_it_starts() {
    let mut fake = Fake::start(10_000).await;
    let node = NodeDef::new("n", Resources::new([("cpu", 1000)]).unwrap());
    let clock = Arc::new(RestlessClock { clock: SystemClock::new(), n_readings: AtomicU64::new(0) });
    let mut agents = Agents::start_by(clock, &fake, vec![node], Mode::Simulated, |_| {});
    agents.connected(1).await;
    fake.send(1, assignment(1, 20, 0));
    let mut said = Vec::new();
    while !said.contains(&(1, RunPhase::Succeeded, 0)) {
        said.extend(phases(&fake.report_of(1).await));
    }
    agents.end().await;
}
