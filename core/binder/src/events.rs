//! What changes the parts of the binder from outside: records as they are read, the time of day, and the fates of
//! transactions. Each event reaches the parts that it concerns, in turn.

use godel_base::ids::{Revision, RunningUnitId, UnitId};
use godel_cluster::follow_record;
use godel_domain::{
    change::{Change, Commit},
    records::{Record, RecordKey, RecordKind},
    running_units::{RunChange, RunningUnits},
    unit::UnitRecord,
};

use super::{Binder, Ticket, maxima::settle_reliefs, squeeze::Cause, under_way::Open};

/// Records that the binder follows.
pub const FOLLOWS: &[RecordKind] = &[
    RecordKind::NodeSpec,
    RecordKind::NodeReport,
    RecordKind::NodeAllocatable,
    RecordKind::NodeUsage,
    RecordKind::Unit,
    RecordKind::Queue,
    RecordKind::PriorityClass,
    RecordKind::Budget,
    RecordKind::Reservation,
    RecordKind::Hold,
    RecordKind::Rows,
];

impl Binder {
    /// A list follows: forgets the records, keeps what is under way.
    pub fn reset(&mut self) {
        self.picture.reset();
        self.under_way.reset(&mut self.picture.quotas);
        self.requeues.clear();
        self.reservations.reset();
        self.evictions.reset(&mut self.picture.quotas);
        self.holds.reset(&mut self.picture);
        self.squeezes.reset();
    }

    /// A committed transaction, in order of revision: everything up to it has been read.
    pub fn apply(&mut self, commit: &Commit) {
        for change in &commit.changes {
            match change {
                // Rows are large, and by far the most: they are not copied, nor are records of nodes.
                Change::Rows(unit, rows) => {
                    if self.begin_change(change, commit.time_ms) {
                        self.on_rows(*unit, rows, commit.revision, commit.time_ms);
                    }
                }
                Change::Put(record) if record.node().is_some() => {
                    if self.begin_change(change, commit.time_ms) {
                        self.on_cluster(change, commit.revision);
                    }
                }
                other => self.on_change(other.clone(), commit.revision, commit.time_ms),
            }
        }
        self.on_revision(commit.revision);
    }

    /// A committed change, in order of revision. Older ones than what is known are ignored.
    pub fn on_change(&mut self, change: Change, revision: Revision, time_ms: i64) {
        if !self.begin_change(&change, time_ms) {
            return;
        }
        let picture = &mut self.picture;
        match change {
            Change::Put(Record::Unit(record)) => self.on_unit(&record, revision),
            Change::Put(Record::Queue(spec)) => picture.quotas.put(spec, revision),
            Change::Gone(RecordKey::Queue(path)) => picture.quotas.remove(&path, revision),
            Change::Put(Record::PriorityClass(class)) => picture.classes.put(class),
            Change::Gone(RecordKey::PriorityClass(name)) => picture.classes.remove(&name),
            Change::Put(Record::Budget(spec)) => picture.put_budget(spec, revision),
            Change::Put(Record::Reservation(spec)) => {
                self.reservations.put(spec, revision, &mut picture.cluster)
            }
            Change::Gone(RecordKey::Reservation(name)) => {
                self.reservations.remove(&name, &mut picture.cluster)
            }
            Change::Gone(RecordKey::Unit(unit)) => self.on_unit_deleted(unit),
            Change::Rows(unit, change) => self.on_rows(unit, &change, revision, time_ms),
            Change::RowsLoaded(unit, rows) => self.on_rows_loaded(unit, rows),
            Change::Put(Record::Hold(hold)) => {
                let (node, unit) = (hold.node, hold.unit);
                self.holds.put(hold, revision, picture);
                self.squeezes.look_at(node, Cause::Unit(unit), picture);
            }
            Change::Gone(RecordKey::Hold(id)) => self.holds.on_deleted(id, picture),
            Change::Unreadable(unreadable) => self.freeze(&unreadable.key),
            other => self.on_cluster(&other, revision),
        }
    }

    /// The time of day, Unix milliseconds: how long victims have run, and when holds expire.
    pub fn on_wall(&mut self, now_ms: i64) {
        self.picture.now_ms = self.picture.now_ms.max(now_ms);
    }

    /// Everything up to `revision` has been read.
    pub fn on_revision(&mut self, revision: Revision) {
        self.picture.revision = self.picture.revision.max(revision);
        while let Some(ticket) = self.under_way.take_landed(self.picture.revision) {
            self.close_read(ticket);
        }
        settle_reliefs(&mut self.holds, &mut self.picture);
    }

    /// The transaction of a ticket committed at `revision`. Its room stays taken until the records show it.
    pub fn commit(&mut self, ticket: Ticket, revision: Revision) {
        if revision <= self.picture.revision {
            self.close_read(ticket);
        } else {
            self.under_way.land(ticket, revision);
        }
    }

    /// The transaction of a ticket was refused: its room is free again.
    pub fn take_back(&mut self, ticket: Ticket) {
        if let Some(open) = self.close(ticket) {
            let concerns = open.holds();
            self.holds.take_back(ticket, &concerns.made, &concerns.converted, &mut self.picture);
            self.holds.keep_ended(&concerns.ended, &mut self.picture.cluster);
            for replica in open.replicas {
                self.picture.cluster.forget(RunningUnitId { unit: open.unit, replica });
            }
            self.holds.settle_movers(open.unit, &mut self.picture);
        }
    }

    /// The lease is lost: gives up everything whose fate is unknown. What was committed is read as records.
    pub fn take_back_all(&mut self) {
        for ticket in self.under_way.unknown() {
            self.take_back(ticket);
        }
        self.requeues.give_up();
        self.evictions.give_up(&mut self.picture.cluster);
        self.holds.cancel_all_ends(&mut self.picture);
        self.squeezes.reset();
    }

    /// The records show what became of a ticket.
    fn close_read(&mut self, ticket: Ticket) {
        if let Some(open) = self.close(ticket) {
            self.holds.forget_made(&open.holds().made, &mut self.picture);
            self.holds.converted(ticket, &open.holds().converted);
            if open.is_listed {
                // Its unit may have ended, or have gone, before the list: nothing in that takes its place.
                for replica in open.replicas {
                    self.picture.cluster.forget(RunningUnitId { unit: open.unit, replica });
                }
                self.holds.settle_movers(open.unit, &mut self.picture);
            }
        }
    }

    /// A decision is under way no longer: what it takes of queues is free, and its victims do not leave for it.
    fn close(&mut self, ticket: Ticket) -> Option<Open> {
        let mut open = self.under_way.close(ticket)?;
        self.holds.mark_stale();
        self.evictions.remove_victims(&open.holds().victims, &mut self.picture);
        open.give_back(&mut self.picture.quotas);
        Some(open)
    }

    /// What every change has to do with: the time, what cannot be read, and holds that it may end. Whether the change is to
    /// be applied.
    fn begin_change(&mut self, change: &Change, time_ms: i64) -> bool {
        self.on_wall(time_ms);
        let noted = self.picture.cluster.nodes_mut().note_unreadable(change);
        if noted.is_news {
            self.holds.mark_stale();
            self.reservations.look_anew();
            self.requeues.look_at_frozen(&self.picture);
        }
        if noted.is_void {
            return false;
        }
        self.holds.on_change(change, &self.picture.cluster);
        true
    }

    /// A change that concerns nothing but the cluster, and what is squeezed on its nodes.
    fn on_cluster(&mut self, change: &Change, revision: Revision) {
        follow_record(&mut self.picture.cluster, change, revision);
        let Change::Put(record) = change else { return };
        let cause = match record.kind() {
            RecordKind::NodeReport | RecordKind::NodeAllocatable => Cause::Node,
            RecordKind::NodeUsage => Cause::Usage,
            _ => return,
        };
        if let Some(node) = record.node() {
            self.squeezes.look_at(node, cause, &self.picture);
        }
    }

    fn on_unit(&mut self, record: &UnitRecord, revision: Revision) {
        let Some(put) = self.picture.put_unit(record, revision) else { return };
        if put.has_moved {
            self.holds.move_to(record.id, &mut self.picture);
        }
        if put.is_resumed
            && let Some(rows) = self.picture.cluster.rows().of(record.id)
        {
            self.requeues.look_at_all(record.id, rows, &self.picture);
        }
    }

    fn on_unit_deleted(&mut self, unit: UnitId) {
        self.requeues.remove_unit(unit);
        self.holds.forget_movers(unit, &mut self.picture);
        self.picture.remove_unit(unit);
        // What its holds were to become will be refused, and they take their room as long as they are there.
        let converted = self.under_way.of_unit(unit).map(|(ticket, open)| (ticket, &open.holds().converted));
        for (ticket, converted) in converted {
            self.holds.take_back(ticket, &[], converted, &mut self.picture);
        }
    }

    fn on_rows(&mut self, unit: UnitId, change: &RunChange, revision: Revision, time_ms: i64) {
        self.picture.apply_rows(unit, change, revision, time_ms);
        match change {
            RunChange::Bind(bind) => {
                self.squeezes.on_bind(unit, bind, &self.picture);
                self.under_way.on_bind(unit, bind, &mut self.picture.quotas);
            }
            RunChange::Evict(evict) => {
                let ordinals = evict.ordinals.iter().copied();
                self.evictions.end_promises(unit, ordinals, &mut self.picture.quotas);
                self.evictions.end(unit, evict.replicas(), &mut self.picture.cluster);
            }
            // The queue of a unit whose record was never read is the one that its terms name.
            RunChange::Terms(_) => self.place_unread(unit),
            RunChange::Statuses(_) | RunChange::Requeue(_) | RunChange::Compact(_) => {}
        }
        self.holds.settle_movers(unit, &mut self.picture);
        self.requeues.look_at(unit, touched(change), &self.picture);
    }

    fn on_rows_loaded(&mut self, unit: UnitId, rows: RunningUnits) {
        self.requeues.look_at_all(unit, &rows, &self.picture);
        self.picture.load_rows(unit, rows);
        self.place_unread(unit);
        let evicting = self.picture.cluster.rows().of(unit).into_iter().flat_map(RunningUnits::live);
        let evicting = evicting.filter(|(_, row)| row.eviction.is_some()).map(|(ordinal, _)| ordinal);
        self.evictions.end_promises(unit, evicting, &mut self.picture.quotas);
        self.evictions.on_rows_loaded(unit, &mut self.picture.cluster);
        if let Some(rows) = self.picture.cluster.rows().of(unit) {
            self.under_way.on_rows_loaded(unit, rows, &mut self.picture.quotas);
        }
        self.holds.settle_movers(unit, &mut self.picture);
    }

    /// A record cannot be read from now on.
    fn freeze(&mut self, subject: &RecordKey) {
        match subject {
            RecordKey::Unit(unit) => {
                self.picture.freeze_unit(*unit);
                self.place_unread(*unit);
            }
            // Nobody is known to own its slots; they stay.
            RecordKey::Reservation(name) => self.reservations.remove(name, &mut self.picture.cluster),
            _ => {}
        }
    }

    /// A unit whose record was never read, and its holds, count where its rows say.
    fn place_unread(&mut self, unit: UnitId) {
        if self.picture.place_unread(unit) {
            self.holds.move_to(unit, &mut self.picture);
        }
    }
}

/// Ordinals of which a change may alter whether they have to come back.
fn touched(change: &RunChange) -> &[u32] {
    match change {
        RunChange::Bind(_) | RunChange::Terms(_) => &[],
        RunChange::Compact(compaction) => &compaction.ordinals,
        RunChange::Evict(evict) => &evict.ordinals,
        RunChange::Statuses(statuses) => &statuses.ordinals,
        RunChange::Requeue(requeue) => &requeue.ordinals,
    }
}
