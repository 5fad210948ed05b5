//! A standby follows the records, and leads as if it had read them at its election.

use godel_domain::pause::Scope;

use super::*;

#[test]
fn a_standby_leads_as_if_it_had_read_all_at_its_election() {
    let mut standby = Rig::loading(Config::default());
    standby.core.on_followed(Revision(standby.revision), NOW);
    standby.submit(1..=5);
    standby.bind(1, &[0, 1]);
    standby.bind(2, &[0]);
    standby.pause(Scope::All);
    standby.submit([6]);
    standby.go_on(&Scope::All);
    standby.next();
    standby.core.on_unit_deleted(UnitId(5), NOW);
    // A list that is read again shows nothing else.
    standby.core.on_reset();
    list_node(&mut standby.core, NOW);
    relist(&standby.units(), &mut standby);
    standby.core.on_followed(Revision(standby.revision), NOW);
    standby.core.assignments_mut().forget_counts();
    assert_eq!(standby.step(), [""; 0], "it decides nothing");
    assert!(!standby.core.is_loaded());

    let mut cold = Rig::loading(Config::default());
    relist(&standby.units(), &mut cold);
    for rig in [&mut standby, &mut cold] {
        (rig.now, rig.revision) = (NOW.plus(1_000_000), 100);
        rig.core.on_synced(Revision(100), rig.now);
        rig.attach("a", 1, 1, &[], 100);
    }
    let (warm, expected) = (standby.step(), cold.step());
    assert_eq!(warm.len(), 4, "{warm:?}");
    assert_eq!(warm, expected);
    assert_eq!(standby.core.summary(), cold.core.summary());
    standby.now = standby.now.plus(100_000);
    assert_eq!((standby.step(), standby.core.summary().counters.repairs), (Vec::new(), 0));
}

/// A unit as a list shows it.
type Listed = (Arc<UnitRecord>, Revision, RunningUnits);

impl Rig {
    fn units(&self) -> Vec<Listed> {
        let entries = self.core.assignments.units.entries.values();
        entries.map(|entry| (Arc::clone(&entry.record), entry.revision, entry.rows.clone())).collect()
    }
}

fn relist(units: &[Listed], rig: &mut Rig) {
    for (record, revision, rows) in units {
        let created = Receipt { revision: *revision, time_ms: 5 };
        rig.core.on_change(&Change::Put(Record::Unit(Arc::clone(record))), *revision, created, rig.now);
        rig.core.on_change(&Change::RowsLoaded(record.id, rows.clone()), *revision, created, rig.now);
    }
}
