//! Stores that have no watermark, the watermark of another store, or no generation that was finished.

use super::*;
use crate::{log::Claimed, store};

#[test]
fn a_store_of_an_older_version_gets_a_watermark() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, config) = (dir.path(), SledConfig::new(dir.path()));
    let base = Base { revision: 0, previous_crc: 0, store: 0 };
    let generation = SledGeneration::create(dir, 1, base, SyncMode::Full).unwrap();
    generation.complete(Manifest::default()).unwrap();
    drop(generation);
    let log = SledLog::open(&config, CrashPoints::default()).unwrap();
    assert_eq!(log.claimed(), Claimed::Never);
    let (log, ..) = store::recover(Box::new(log)).unwrap();
    drop(log);
    let found = Found::read(dir).unwrap();
    let Found::Whole(watermark) = found else { panic!("{found:?}") };
    assert!(watermark.store > 0 && (watermark.oldest, watermark.newest) == (1, 1));
    let log = SledLog::open(&config, CrashPoints::default()).unwrap();
    assert!(log.claimed().claim().is_some());
    let (log, ..) = store::recover(Box::new(log)).unwrap();
    // It can be lost again without harm: its generation does not know it.
    drop(log);
    remove_file(&dir.join("watermark")).unwrap();
    assert_eq!(SledLog::open(&config, CrashPoints::default()).unwrap().claimed(), Claimed::Never);
}

#[test]
fn a_store_that_was_never_finished_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, config) = (dir.path(), SledConfig::new(dir.path()));
    let first = Watermark { store: 7, oldest: 1, newest: 0, floor: 1, ..Watermark::default() };
    drop(WatermarkFile::open(dir, first).unwrap());
    let base = Base { revision: 0, previous_crc: 0, store: 7 };
    drop(SledGeneration::create(dir, 1, base, SyncMode::Full).unwrap());
    assert!(!is_store(dir));
    let log = SledLog::open(&config, CrashPoints::default()).unwrap();
    store::recover(Box::new(log)).unwrap();
    assert!(is_store(dir));
    // The watermark of another store proves nothing.
    let mut other = Found::read(dir).unwrap().watermark().copied().unwrap();
    other.store += 1;
    other.revision = 1_000;
    drop(WatermarkFile::open(dir, other).unwrap());
    let log = SledLog::open(&config, CrashPoints::default()).unwrap();
    assert!(matches!(log.claimed(), Claimed::Lost(why) if why.contains("another store")));
}
