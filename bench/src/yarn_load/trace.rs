//! Jobs of a trace of MapReduce, as SWIM publishes them, and the containers that each of them needs.
//!
//! - A job has a map for each 128 MiB that it reads, the last one for what is left, and at least one.
//! - If maps hand nothing over (no bytes are shuffled), they write the output themselves and there is no reduce. Otherwise there
//!   is a reduce for each GiB that is shuffled and written, as Hive had it in those years, and each gets an equal part.
//! - A map or a reduce lasts 10 s and its bytes at 64 MiB/s.

use std::time::Duration;

use super::shares::N_QUEUES;

/// Bytes that one map reads.
const MAP_BYTES: u64 = 128 << 20;
/// Bytes that one reduce reads and writes.
const REDUCE_BYTES: u64 = 1 << 30;
/// Bytes that a container gets through in a second.
const BYTES_PER_S: u64 = 64 << 20;
/// What each container lasts beyond its bytes.
const START: Duration = Duration::from_secs(10);
/// Columns of the trace.
const N_COLUMNS: usize = 6;

/// One job; times are those of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceJob {
    pub(super) number: u64,
    pub(super) submitted: Duration,
    /// Maps, and reduces where there are any: each begins when the one before is over.
    pub(super) phases: Vec<JobPhase>,
}

/// Containers of a job that run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobPhase {
    /// Lower goes first, as MapReduce asks.
    pub(super) priority: i32,
    pub(super) n: u32,
    life: Duration,
    last_life: Duration,
}

impl TraceJob {
    /// By its number, in proportion 50, 30 and 20.
    pub(super) fn queue(&self) -> usize {
        const QUEUE_OF: [usize; 10] = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2];
        let last_digit = usize::try_from(self.number % 10).unwrap_or(0);
        QUEUE_OF[last_digit].min(N_QUEUES - 1)
    }

    /// Containers that it needs.
    pub(super) fn n_containers(&self) -> u64 {
        self.phases.iter().map(|phase| u64::from(phase.n)).sum()
    }
}

impl JobPhase {
    /// How long its container of this index lasts.
    pub(super) fn life(&self, idx: u32) -> Duration {
        if idx + 1 == self.n { self.last_life } else { self.life }
    }

    fn maps(bytes: u64) -> Result<Self, String> {
        let n = counted(bytes.div_ceil(MAP_BYTES).max(1))?;
        let left = bytes.saturating_sub(MAP_BYTES * u64::from(n - 1));
        Ok(Self { priority: 20, n, life: lasting(MAP_BYTES), last_life: lasting(left) })
    }

    fn reduces(bytes: u64) -> Result<Self, String> {
        let n = counted(bytes.div_ceil(REDUCE_BYTES).max(1))?;
        let life = lasting(bytes / u64::from(n));
        Ok(Self { priority: 10, n, life, last_life: life })
    }
}

fn counted(n: u64) -> Result<u32, String> {
    u32::try_from(n).map_err(|_| format!("{n} containers are too many"))
}

fn lasting(bytes: u64) -> Duration {
    START + Duration::from_secs(bytes) / u32::try_from(BYTES_PER_S).unwrap_or(u32::MAX)
}

/// Reads the trace, tab-separated and without a header: job, submitted (s), gap (s), bytes read, shuffled and written.
///
/// # Errors
/// The first line that says something impossible.
pub(super) fn read(text: &str) -> Result<Vec<TraceJob>, String> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| job(line).map_err(|wrong| format!("line {number}: {wrong}"))).collect()
}

fn job(line: &str) -> Result<TraceJob, String> {
    let columns: Vec<&str> = line.trim().split('\t').collect();
    let &[name, submitted, _, input, shuffled, output] = columns.as_slice() else {
        return Err(format!("{} columns instead of {N_COLUMNS}", columns.len()));
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is not a number"));
    let (shuffled, output) = (number(shuffled)?, number(output)?);
    let mut phases = vec![JobPhase::maps(number(input)?)?];
    if shuffled > 0 {
        phases.push(JobPhase::reduces(shuffled.saturating_add(output))?);
    }
    Ok(TraceJob {
        number: number(name.strip_prefix("job").unwrap_or(name))?,
        submitted: Duration::from_secs(number(submitted)?),
        phases,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_maps_and_reduces_by_their_bytes() {
        let (mib, gib) = (1_u64 << 20, 1_u64 << 30);
        let text =
            format!("job7\t49\t49\t{}\t{}\t{}\njob18\t50\t1\t0\t0\t{gib}\n", 300 * mib, gib, gib + 2 * mib);
        let jobs = read(&text).unwrap();
        let [job, map_only] = jobs.as_slice() else { panic!("{jobs:?}") };
        assert_eq!((job.number, job.submitted, job.queue(), job.n_containers()), (7, secs(49), 1, 6));
        let [maps, reduces] = job.phases.as_slice() else { panic!("{job:?}") };
        assert_eq!((maps.n, maps.life(0), maps.life(2)), (3, secs(12), ms(10_687) + ms(1) / 2));
        assert_eq!((reduces.n, reduces.life(0), reduces.life(2)), (3, reduces.life(1), reduces.life(1)));
        assert!(reduces.life(0) > secs(20) && reduces.life(0) < secs(21));
        assert_eq!((map_only.phases.len(), map_only.phases[0].n, map_only.queue()), (1, 1, 2));
        assert_eq!(map_only.phases[0].life(0), secs(10));
        assert_eq!(read("job1\t2\n"), Err("line 1: 2 columns instead of 6".to_owned()));
        assert!(read("job1\t2\t0\tx\t0\t0").unwrap_err().contains("`x` is not a number"));
    }

    #[test]
    fn the_trace_is_read_whole() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/swim/FB-2009_samples_24_times_1hr_0.tsv");
        let jobs = read(&std::fs::read_to_string(file).unwrap()).unwrap();
        let n = |phase: usize| -> u64 {
            jobs.iter().filter_map(|job| job.phases.get(phase)).map(|phase| u64::from(phase.n)).sum()
        };
        assert_eq!((jobs.len(), n(0), n(1)), (5_894, 205_713, 23_015));
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}
