//! Power loss: what the kernel had not been told to write is gone.
//!
//! A child writes to an ext4 file system on a loop device whose journal commits every 300 s. It is stopped, the
//! device's backing file is copied, and the copy is what a machine would find after its power was cut: without
//! the page cache. A device's own volatile cache is not modelled.

use std::{fs, path::Path};

use godel_crash::CrashPoints;
use godel_store::{OpenError, Store};
use godel_testkit::skip;

use crate::{
    child::{Acks, Home, Orders, Writer},
    disk::{Mount, make_ext4, scratch},
    support::{clock, holes_in_history},
};

const IMAGE_BYTES: u64 = 48 << 20;
const OPTIONS: &str = "loop,commit=300";

/// What the copies of one or more running writers showed.
#[derive(Debug, Default)]
struct Trials {
    n_trials: u64,
    n_acks: u64,
    /// Trials that found a generation in the making.
    n_changing: u64,
    lost: Vec<String>,
}

impl Trials {
    /// Cuts the power of a fresh writer `n_trials` times.
    fn run(&mut self, dir: &Path, orders: &Orders, n_trials: u64) -> Result<(), String> {
        let (image, copy) = (dir.join("image"), dir.join("copy"));
        make_ext4(&image, IMAGE_BYTES)?;
        let mount = Mount::new(&image, &dir.join("live"), "ext4", OPTIONS)?;
        let mut writer = Writer::spawn(&Home::sled(mount.path().join("store")), orders);
        for trial in 0..n_trials {
            writer.wait_for_more(1 + trial * 7_919 % 60);
            let acks = writer.stop();
            fs::copy(&image, &copy).map_err(|error| error.to_string())?;
            writer.go_on();
            self.check(dir, &copy, &acks)?;
        }
        writer.kill();
        mount.unmount();
        Ok(())
    }

    fn check(&mut self, dir: &Path, copy: &Path, acks: &Acks) -> Result<(), String> {
        self.n_trials += 1;
        self.n_acks += acks.count;
        let mount = Mount::new(copy, &dir.join("after"), "ext4", "loop")?;
        let path = mount.path().join("store");
        let has = |number: u64, what: &str| path.join(format!("gen-{number:08}.{what}")).exists();
        let n_written = (0..2_000).filter(|number| has(*number, "ready") && !has(*number, "sealed")).count();
        self.n_changing += u64::from(n_written > 1);
        let opened = std::panic::catch_unwind(|| {
            Store::open(Home::sled(&path).config(false), clock(), CrashPoints::default())
        });
        let lost = match opened {
            // The watermark claims nothing that was not synced before, and one of its slots is always whole.
            Ok(Ok(store)) => {
                let unproven = store.opened().unproven.clone().into_iter().collect();
                [acks.missing_in(&store), holes_in_history(&store), unproven].concat()
            }
            Ok(Err(error)) => vec![chain(&error)],
            Err(_) => vec!["opening panicked".to_owned()],
        };
        if !lost.is_empty() {
            self.lost.push(format!("trial {}: {}", self.n_trials, lost.join("; ")));
        }
        mount.unmount();
        Ok(())
    }
}

fn chain(error: &OpenError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[test]
fn power_loss_loses_nothing_that_was_acknowledged() {
    let mut trials = Trials::default();
    for _ in 0..4 {
        let dir = scratch();
        if let Err(why) = trials.run(dir.path(), &Orders::default(), 27) {
            return skip(why);
        }
    }
    assert_eq!(trials.lost, [""; 0]);
    assert!(trials.n_trials >= 100 && trials.n_acks > 10_000, "{trials:?}");
    assert!(trials.n_changing >= 10, "too few trials met a generation change: {trials:?}");
}

/// A group of one chunk goes to the engine in another way than larger ones.
#[test]
fn power_loss_loses_no_lone_small_commit() {
    let mut trials = Trials::default();
    let orders = Orders { is_lone: true, ..Orders::default() };
    for _ in 0..2 {
        let dir = scratch();
        if let Err(why) = trials.run(dir.path(), &orders, 27) {
            return skip(why);
        }
    }
    assert_eq!(trials.lost, [""; 0]);
    assert!(trials.n_trials >= 50 && trials.n_acks > 1_000, "{trials:?}");
}

/// The control: without the syncs the same trials must show loss, or they would prove nothing.
#[test]
fn power_loss_without_the_sync_is_seen() {
    let mut trials = Trials::default();
    let dir = scratch();
    let orders = Orders { is_unsafe: true, ..Orders::default() };
    if let Err(why) = trials.run(dir.path(), &orders, 5) {
        return skip(why);
    }
    assert!(!trials.lost.is_empty(), "{trials:?}");
}
