//! Chains of backups, each of which continues the one before it: pure rules over manifests.

use std::collections::BTreeSet;

use super::BackupManifest;

fn find(backups: &[BackupManifest], number: u64) -> Option<&BackupManifest> {
    backups.iter().find(|backup| backup.number == number)
}

/// Returns a backup and all backups that it continues, the full one first.
///
/// # Errors
/// One of them is missing, or is not the backup that the next one continues; in words.
pub(super) fn chain(backups: &[BackupManifest], number: u64) -> Result<Vec<BackupManifest>, String> {
    let mut backup = find(backups, number).ok_or_else(|| format!("there is no backup {number}"))?;
    let mut chain = vec![backup.clone()];
    while !backup.is_full() {
        let (number, continues) = (backup.number, backup.continues);
        let before = find(backups, continues)
            .ok_or_else(|| format!("backup {number} continues backup {continues}, which cannot be used"))?;
        let is_next = before.number < number
            && before.store_id == backup.store_id
            && before.last_revision + 1 == backup.first_revision
            && before.crc == backup.previous_crc;
        if !is_next {
            return Err(format!("backup {number} does not begin where backup {continues} ends"));
        }
        chain.push(before.clone());
        backup = before;
    }
    if backup.snapshot.is_none() {
        return Err(format!("backup {} is full and has no snapshot", backup.number));
    }
    chain.reverse();
    Ok(chain)
}

/// Returns the chain from which revision `at` is restored, which is that of the newest backup with this revision.
///
/// # Errors
/// No backup has the revision; in words.
pub(super) fn covering(backups: &[BackupManifest], at: u64) -> Result<Vec<BackupManifest>, String> {
    let mut why = None;
    for backup in backups.iter().rev().filter(|backup| backup.last_revision >= at) {
        match chain(backups, backup.number) {
            Ok(chain) if chain[0].floor() <= at => {
                let needed =
                    chain.iter().take_while(|backup| backup.is_full() || backup.first_revision <= at);
                return Ok(needed.cloned().collect());
            }
            Ok(_) => {}
            Err(what) => why = why.or(Some(what)),
        }
    }
    let ranges: Vec<String> = ranges(backups).map(|(from, to)| format!("{from} to {to}")).collect();
    let known = if ranges.is_empty() { "none".to_owned() } else { ranges.join(", ") };
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    Err(format!("no backup has revision {at}{why}; those that can be restored are {known}"))
}

/// Returns the first and the last revision that each chain can restore, oldest first.
fn ranges(backups: &[BackupManifest]) -> impl Iterator<Item = (u64, u64)> {
    leaves(backups).filter_map(|leaf| {
        let chain = chain(backups, leaf.number).ok()?;
        Some((chain[0].floor(), leaf.last_revision))
    })
}

/// Returns the backups that no other backup continues.
pub(super) fn leaves(backups: &[BackupManifest]) -> impl Iterator<Item = &BackupManifest> {
    backups.iter().filter(|backup| backups.iter().all(|other| other.continues != backup.number))
}

/// Returns the numbers of the backups to remove so that the newest `keep` and all that they continue stay. The newest one is first: if the
/// removal is interrupted, no remaining backup lacks one that it continues.
pub(super) fn prunable(backups: &[BackupManifest], keep: usize) -> Vec<u64> {
    let mut needed = BTreeSet::new();
    for backup in backups.iter().rev().take(keep) {
        let mut next = Some(backup);
        while let Some(backup) = next.filter(|backup| needed.insert(backup.number)) {
            next = find(backups, backup.continues);
        }
    }
    let numbers = backups.iter().rev().map(|backup| backup.number);
    numbers.filter(|number| !needed.contains(number)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{backup::manifest::BackupSnapshot, log::Manifest};

    /// Backups of one store each ten revisions after the one before; `true`: full.
    fn backups(full: &[bool]) -> Vec<BackupManifest> {
        let made = (1u64..).zip(full).map(|(number, is_full)| {
            let is_full = *is_full;
            BackupManifest {
                number,
                store_id: 7,
                continues: if is_full { 0 } else { number - 1 },
                first_revision: (number - 1) * 10 + 1,
                last_revision: number * 10,
                previous_crc: u32::try_from(number).unwrap() - 1,
                crc: u32::try_from(number).unwrap(),
                snapshot: is_full.then(|| BackupSnapshot {
                    base_revision: (number - 1) * 10,
                    manifest: Manifest { end_revision: (number - 1) * 10 + 3, ..Manifest::default() },
                }),
                ..BackupManifest::default()
            }
        });
        made.collect()
    }

    fn numbers(chain: &[BackupManifest]) -> Vec<u64> {
        chain.iter().map(|backup| backup.number).collect()
    }

    #[test]
    fn a_chain_goes_back_to_its_full_backup() {
        let all = backups(&[true, false, false, true, false]);
        assert_eq!(numbers(&chain(&all, 3).unwrap()), [1, 2, 3]);
        assert_eq!(numbers(&chain(&all, 5).unwrap()), [4, 5]);
        let broken: [fn(&mut Vec<BackupManifest>); 5] = [
            |all| drop(all.remove(1)),
            |all| all[1].crc = 9,
            |all| all[1].last_revision = 21,
            |all| all[1].store_id = 8,
            |all| all[0].snapshot = None,
        ];
        for (idx, damage) in broken.into_iter().enumerate() {
            let mut all = all.clone();
            damage(&mut all);
            assert!(chain(&all, 3).is_err(), "{idx}");
            assert_eq!(numbers(&chain(&all, 5).unwrap()), [4, 5], "{idx}");
        }
    }

    #[test]
    fn a_revision_is_restored_from_the_newest_chain_that_has_it() {
        let all = backups(&[true, false, false, true, false]);
        for (at, expected) in [
            (3, Some(vec![1])),
            (10, Some(vec![1])),
            (11, Some(vec![1, 2])),
            (30, Some(vec![1, 2, 3])),
            (33, Some(vec![4])),
            (50, Some(vec![4, 5])),
            // In the middle of a snapshot, and beyond the end.
            (2, None),
            (32, None),
            (51, None),
        ] {
            let found = covering(&all, at).ok().map(|chain| numbers(&chain));
            assert_eq!(found, expected, "revision {at}");
        }
        let why = covering(&all, 51).unwrap_err();
        assert_eq!(why, "no backup has revision 51; those that can be restored are 3 to 30, 33 to 50");
    }

    #[test]
    fn pruning_leaves_the_newest_and_what_they_rest_on() {
        let all = backups(&[true, false, true, false, false, true]);
        for (keep, expected) in
            [(1, vec![5, 4, 3, 2, 1]), (2, vec![2, 1]), (4, vec![2, 1]), (5, vec![]), (9, vec![])]
        {
            assert_eq!(prunable(&all, keep), expected, "{keep}");
        }
    }

    proptest! {
        #[test]
        fn pruning_breaks_no_chain(mut full in prop::collection::vec(any::<bool>(), 1..12), keep in 1..12_usize) {
            full[0] = true;
            let all = backups(&full);
            let gone = prunable(&all, keep);
            // Cut off after each step.
            for n_done in 0..=gone.len() {
                let left: Vec<_> =
                    all.iter().filter(|backup| !gone[..n_done].contains(&backup.number)).cloned().collect();
                for backup in &left {
                    prop_assert!(chain(&left, backup.number).is_ok());
                }
                prop_assert!(left.len() >= keep.min(all.len()));
                prop_assert_eq!(left.last(), all.last());
            }
        }
    }
}
