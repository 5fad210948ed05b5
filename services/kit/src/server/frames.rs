//! How much a connection makes the server do: HTTP/2 frames are counted as they come in, and a connection that
//! sends more than its rate is read more slowly.

use std::time::Duration;

use tokio::time::Instant;

/// What a client sends first.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const KIND_DATA: u8 = 0;
const KIND_HEADERS: u8 = 1;
/// DATA frames from this length on bring content; shorter ones count as frames that only cost.
const CONTENT_BYTES: usize = 256;
/// The share of a second that may come at once.
const BURST: f64 = 0.1;

/// Frames that came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// HEADERS: calls.
    pub(super) calls: u32,
    /// All but DATA frames with content.
    pub(super) frames: u32,
}

/// Finds the frames in the bytes that a client sends, however they are cut into reads.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes to pass over: the preface, then the content of the present frame.
    skip: usize,
    head: [u8; HEAD_BYTES],
    n_head: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self { skip: PREFACE_BYTES, head: [0; HEAD_BYTES], n_head: 0 }
    }
}

impl Frames {
    /// Counts the frames whose heads end in `bytes`, which follow the bytes of the last time.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> Counted {
        let mut counted = Counted::default();
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return counted;
            }
            let taken = (HEAD_BYTES - self.n_head).min(bytes.len());
            self.head[self.n_head..self.n_head + taken].copy_from_slice(&bytes[..taken]);
            self.n_head += taken;
            bytes = &bytes[taken..];
            if self.n_head < HEAD_BYTES {
                return counted;
            }
            self.n_head = 0;
            let [high, mid, low, kind, ..] = self.head;
            self.skip = usize::from(high) << 16 | usize::from(mid) << 8 | usize::from(low);
            counted.calls += u32::from(kind == KIND_HEADERS);
            counted.frames += u32::from(kind != KIND_DATA || self.skip < CONTENT_BYTES);
        }
    }
}

/// What one connection may send: so many calls and so many frames a second.
#[derive(Debug)]
pub(super) struct FrameBudget {
    calls: Bucket,
    frames: Bucket,
}

impl FrameBudget {
    pub(super) fn new(calls_per_second: u32, frames_per_second: u32, now: Instant) -> Self {
        Self { calls: Bucket::new(calls_per_second, now), frames: Bucket::new(frames_per_second, now) }
    }

    /// Pays for what came in; how long to read nothing more, if it was more than there was.
    pub(super) fn pay(&mut self, counted: Counted, now: Instant) -> Option<Duration> {
        let calls = self.calls.pay(counted.calls, now);
        calls.max(self.frames.pay(counted.frames, now))
    }
}

/// Fills at its rate, up to what may come at once; may be overdrawn, and is then waited for.
#[derive(Debug)]
struct Bucket {
    rate: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_second: u32, now: Instant) -> Self {
        let rate = f64::from(per_second.max(1));
        Self { rate, level: (rate * BURST).max(1.0), at: now }
    }

    fn pay(&mut self, n: u32, now: Instant) -> Option<Duration> {
        let filled = self.level + self.rate * now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.level = filled.min((self.rate * BURST).max(1.0)) - f64::from(n);
        (self.level < 0.0).then(|| Duration::from_secs_f64(-self.level / self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        let mut bytes = vec![length_bytes[1], length_bytes[2], length_bytes[3], kind, 0, 0, 0, 0, 1];
        bytes.resize(HEAD_BYTES + length, 7);
        bytes
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // SETTINGS, HEADERS, RST_STREAM, DATA with content, DATA without, PING, CONTINUATION.
        for (kind, length) in [(4, 0), (1, 90), (3, 4), (0, 70_000), (0, 0), (6, 8), (9, 300)] {
            bytes.extend(frame(kind, length));
        }
        let expected = Counted { calls: 1, frames: 6 };
        for size in [1, 2, 3, 7, 9, 24, 25, 1_000, bytes.len()] {
            let mut frames = Frames::default();
            let mut sum = Counted::default();
            for part in bytes.chunks(size) {
                let counted = frames.count(part);
                sum.calls += counted.calls;
                sum.frames += counted.frames;
            }
            assert_eq!(sum, expected, "{size}");
        }
    }

    #[test]
    fn what_comes_in_faster_than_the_rate_is_waited_for() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let calls = |calls| Counted { calls, frames: calls };
        let mut budget = FrameBudget::new(1_000, 1_000_000, start);
        assert_eq!(budget.pay(calls(100), at(0)), None, "a burst of a tenth of a second");
        assert_eq!(budget.pay(calls(50), at(0)), Some(Duration::from_millis(50)));
        assert_eq!(budget.pay(calls(0), at(50)), None, "paid back by then");
        assert_eq!(budget.pay(calls(10), at(60)), None, "the rate itself goes on for ever");
        assert_eq!(budget.pay(calls(10), at(70)), None);
        assert_eq!(
            budget.pay(calls(101), at(9_000)),
            Some(Duration::from_millis(1)),
            "idle time is not saved"
        );
        let mut budget = FrameBudget::new(1_000, 10_000, start);
        let pings = Counted { calls: 0, frames: 11_000 };
        assert_eq!(budget.pay(pings, at(0)), Some(Duration::from_secs(1)), "pings count too");
    }
}
