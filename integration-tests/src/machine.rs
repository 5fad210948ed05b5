//! What runs on this machine, counted from `/proc`: what godel says of it is not asked.

use std::{collections::BTreeMap, fs, path::Path};

use godel_proto::v1;
use rustix::process::{Pid, Signal, kill_process};

/// The variable by which processes of one test are known.
const MARK: &str = "GODEL_TEST_MARK";
/// What they run: it does nothing and ends when it is asked to.
const PROGRAM: &str = "sleep";

/// The processes of running units of one test. What is left of them ends when this is dropped.
#[derive(Debug)]
pub struct Processes {
    mark: String,
}

/// A process of a running unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitProcess {
    /// Name of the unit, without its namespace.
    pub unit: String,
    /// The replica.
    pub ordinal: u32,
    /// The life of the replica.
    pub incarnation: u32,
    /// Its number.
    pub pid: i32,
}

impl Default for Processes {
    fn default() -> Self {
        Self { mark: uuid::Uuid::new_v4().to_string() }
    }
}

impl Processes {
    /// Returns a command for running units whose processes are counted here.
    pub fn run(&self) -> v1::RunSpec {
        v1::RunSpec {
            command: [PROGRAM, "1000000"].map(str::to_owned).to_vec(),
            env: [(MARK.to_owned(), self.mark.clone())].into(),
            stop_grace_ms: 5_000,
            ..v1::RunSpec::default()
        }
    }

    /// Returns those that run now, in order of unit and replica.
    pub fn seen(&self) -> Vec<UnitProcess> {
        let mut seen: Vec<UnitProcess> =
            pids().into_iter().filter_map(|pid| self.unit_process(pid)).collect();
        seen.sort();
        seen
    }

    /// Returns how many run of each incarnation of each unit, as `web.0`.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for one in self.seen() {
            *counts.entry(format!("{}.{}", one.unit, one.incarnation)).or_default() += 1;
        }
        counts
    }

    /// Returns a replica of the unit of which two run.
    pub fn twice(&self, unit: &str) -> Option<(UnitProcess, UnitProcess)> {
        let seen: Vec<UnitProcess> = self.seen().into_iter().filter(|one| one.unit == unit).collect();
        let is_same = |pair: &&[UnitProcess]| pair[0].ordinal == pair[1].ordinal;
        seen.windows(2).find(is_same).map(|pair| (pair[0].clone(), pair[1].clone()))
    }

    /// Ends all of them at once, as the end of their machine does.
    pub fn kill(&self) {
        while let Some(pid) = self.seen().first().and_then(|one| Pid::from_raw(one.pid)) {
            // It may have ended meanwhile.
            let _gone = kill_process(pid, Signal::KILL);
            std::thread::yield_now();
        }
    }

    fn unit_process(&self, pid: i32) -> Option<UnitProcess> {
        let of = Path::new("/proc").join(pid.to_string());
        let env = fs::read(of.join("environ")).ok()?;
        let env: BTreeMap<&str, &str> = env
            .split(|byte| *byte == 0)
            .filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('='))
            .collect();
        // Others may hand on the variables of what they start.
        let is_own =
            *env.get(MARK)? == self.mark && fs::read_to_string(of.join("comm")).ok()?.trim() == PROGRAM;
        let unit = env.get("GODEL_UNIT")?.rsplit('/').next()?.to_owned();
        let number = |name: &str| env.get(name)?.parse().ok();
        let (ordinal, incarnation) = (number("GODEL_ORDINAL")?, number("GODEL_INCARNATION")?);
        is_own.then_some(UnitProcess { unit, ordinal, incarnation, pid })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
