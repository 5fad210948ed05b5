//! Leases in force, judged on one monotonic clock.
//!
//! Owns the deadlines and the soft facts that holders tell with each renewal; neither survives a restart:
//! [`Leases::load`] gives every held lease its full TTL anew. What a grant, a release or an expiry writes is
//! returned as a [`Lease`] record and counts once [`Leases::apply`] is told that it is durable, so a grant is
//! never seen before it is committed and an epoch is never given twice.

use std::collections::BTreeMap;

use godel_base::{ids::Epoch, time::Millis};
use godel_domain::{change::Lease, names};

/// Names of the registrations of states begin so.
pub const STATES: &str = "member/state/";
/// TTL of a lease that did not ask for one.
pub const TTL_MS_DEFAULT: u32 = 3_000;
/// Shortest TTL: below it one scheduling hiccup of a loaded machine loses the lease.
pub const TTL_MS_MIN: u32 = 500;
/// Longest TTL.
pub const TTL_MS_MAX: u32 = 60_000;
/// Most lease names that may ever exist: thousands of schedulers and members, a few MiB.
pub const N_LEASES_MAX: usize = 8_192;
/// Most counters that a member may report.
pub const N_COUNTERS_MAX: usize = 64;
/// Most addresses of plain text that a member may report.
pub const N_PLAIN_TEXT_MAX: usize = 16;
/// Most of those who stand by for one lease that are remembered.
pub const N_STANDBYS_MAX: usize = 64;

/// All leases by name.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    by_name: BTreeMap<String, LeaseEntry>,
    /// Epochs up to this one may have been given before a restore: none is in force, and the next one is above it.
    floor: Epoch,
}

#[derive(Clone, Debug)]
struct LeaseEntry {
    lease: Lease,
    /// `None`: nobody holds it.
    deadline: Option<Millis>,
    facts: MemberFacts,
    /// The connection on which the holder was heard last; `None`: it was not heard yet, or somebody else passed its call on.
    contact: Option<ConnectionId>,
    /// By holder: who asked in vain, where it serves, and when it did last.
    standbys: BTreeMap<String, (String, Millis)>,
}

/// What a holder says of itself with a renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberFacts {
    /// Counters since its start, by name.
    pub counters: BTreeMap<String, u64>,
    /// Version of its program; empty if it does not say.
    pub version: String,
    /// Addresses at which it listens in plain text in any case, by what they are for.
    pub plain_text: BTreeMap<String, String>,
}

/// A connection to state, of all that the process has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub u64);

/// How a lease was heard of last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseContact {
    /// Lease name.
    pub lease: String,
    /// Of the grant.
    pub epoch: Epoch,
    /// On which its holder called.
    pub connection: ConnectionId,
}

/// What a try to connect to the address of a holder has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderProbe {
    /// Nobody listens there: the machine answers, and the process is gone.
    Refused,
    /// Somebody listens, or nobody knows: a machine that is off and one that is cut off look alike.
    Unclear,
}

/// Who asks for which lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Lease name.
    pub name: String,
    /// Unique per process start.
    pub holder: String,
    /// Where it serves.
    pub address: String,
    /// In [`TTL_MS_MIN`] to [`TTL_MS_MAX`].
    pub ttl_ms: u32,
}

/// Why a lease is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseDenied {
    /// Somebody else holds it.
    #[error("lease {} is held by {} at {}", .held.name, .held.holder, .held.address)]
    Held {
        /// As granted.
        held: Lease,
        /// Time left.
        remaining_ms: u64,
    },
    /// No room for another name.
    #[error("there are {N_LEASES_MAX} leases already")]
    TooMany,
}

/// The lease is not in force under that epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease is not held under epoch {asked}; the last granted is {current}")]
pub struct Stale {
    /// Of the caller.
    pub asked: Epoch,
    /// Last granted; 0 when never.
    pub current: Epoch,
}

/// One lease as shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown<'a> {
    /// As granted; the holder is empty when nobody holds it.
    pub lease: &'a Lease,
    /// Time left; 0 when nobody holds it.
    pub remaining_ms: u64,
    /// Soft facts of the last renewal.
    pub facts: &'a MemberFacts,
    /// Who asked for it in vain, by holder: where it serves, and when it asked last.
    standbys: &'a BTreeMap<String, (String, Millis)>,
    now: Millis,
}

impl<'a> Shown<'a> {
    /// Who stands by for it, as holder and address: those who asked within its TTL.
    pub fn standbys(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let (now, ttl_ms) = (self.now, u64::from(self.lease.ttl_ms));
        let lately = move |at: Millis| now.since(at) <= ttl_ms;
        let standbys = self.standbys.iter().filter(move |(_, (_, at))| lately(*at));
        standbys.map(|(holder, (address, _))| (holder.as_str(), address.as_str()))
    }
}

impl Leases {
    /// From the records, after a start: every held lease has its full TTL from `now`, but those with an epoch up to
    /// `floor` are over.
    pub fn load(records: impl IntoIterator<Item = Lease>, floor: Epoch, now: Millis) -> Self {
        let mut leases = Self { floor, ..Self::default() };
        for record in records {
            leases.apply(record, now);
        }
        leases
    }

    /// What granting `ask` would write; changes nothing.
    ///
    /// # Errors
    /// [`LeaseDenied::Held`] while another holder's time runs, [`LeaseDenied::TooMany`] for one name too many.
    pub fn grant(&self, ask: &LeaseRequest, now: Millis) -> Result<Lease, LeaseDenied> {
        let entry = self.by_name.get(&ask.name);
        match entry {
            Some(entry) if entry.in_force(now) && entry.lease.holder != ask.holder => {
                Err(LeaseDenied::Held { held: entry.lease.clone(), remaining_ms: entry.remaining_ms(now) })
            }
            None if self.by_name.len() >= N_LEASES_MAX => Err(LeaseDenied::TooMany),
            Some(_) | None => Ok(self.grant_anyway(ask)),
        }
    }

    /// What registering the state that leads writes, whoever has its name now. Its epoch is higher than those of all registrations of states, whatever their names: it
    /// counts the turns of all of them.
    pub fn grant_to_state(&self, ask: &LeaseRequest) -> Lease {
        let states = self.by_name.values().filter(|entry| entry.lease.name.starts_with(STATES));
        let last = states.map(|entry| entry.lease.epoch.0).max().unwrap_or(0);
        let lease = self.grant_anyway(ask);
        Lease { epoch: lease.epoch.max(Epoch(last + 1)), ..lease }
    }

    /// What granting `ask` writes whoever holds it now.
    fn grant_anyway(&self, ask: &LeaseRequest) -> Lease {
        let last = self.by_name.get(&ask.name).map_or(0, |entry| entry.lease.epoch.0).max(self.floor.0);
        Lease {
            name: ask.name.clone(),
            holder: ask.holder.clone(),
            address: ask.address.clone(),
            epoch: Epoch(last + 1),
            ttl_ms: ask.ttl_ms,
        }
    }

    /// Extends a lease by its TTL from `now` and takes what the holder says of itself; returns the TTL.
    ///
    /// # Errors
    /// When its time is over, even if the expiry is not written yet, or another epoch is in force.
    pub fn renew(
        &mut self,
        name: &str,
        epoch: Epoch,
        facts: Option<MemberFacts>,
        now: Millis,
    ) -> Result<u32, Stale> {
        let Some(entry) = self.by_name.get_mut(name) else {
            return Err(Stale { asked: epoch, current: Epoch(0) });
        };
        if entry.lease.epoch != epoch || !entry.in_force(now) {
            return Err(Stale { asked: epoch, current: entry.lease.epoch });
        }
        entry.deadline = Some(now.plus(u64::from(entry.lease.ttl_ms)));
        if let Some(facts) = facts {
            entry.facts = facts;
        }
        Ok(entry.lease.ttl_ms)
    }

    /// Takes over on which connection the holder of `epoch` has called: with its grant, or a renewal. True: on another one than
    /// the last time, so that its end is to be watched, and that of the last one means nothing any more.
    pub fn note_contact(&mut self, name: &str, epoch: Epoch, connection: Option<ConnectionId>) -> bool {
        let entry = self.by_name.get_mut(name).filter(|entry| entry.lease.epoch == epoch);
        entry.is_some_and(|entry| std::mem::replace(&mut entry.contact, connection) != connection)
    }

    /// The lease whose holder may have died: its last connection has ended, and it has not given the lease back. The holder is asked for at its
    /// address, once. `None`: it was heard of on another connection since, or the lease is over.
    pub fn out_of_contact(&self, last: &LeaseContact, now: Millis) -> Option<&Lease> {
        let entry = self.by_name.get(&last.lease)?;
        let is_last = entry.lease.epoch == last.epoch && entry.contact == Some(last.connection);
        (is_last && entry.in_force(now)).then_some(&entry.lease)
    }

    /// What the end of the lease of a dead holder writes. `None`: the holder may live, or was heard of since it was asked for.
    pub fn end_of_dead(&self, last: &LeaseContact, probe: HolderProbe, now: Millis) -> Option<Lease> {
        match probe {
            HolderProbe::Refused => {}
            HolderProbe::Unclear => return None,
        }
        self.out_of_contact(last, now)?;
        self.by_name.get(&last.lease).map(LeaseEntry::vacated)
    }

    /// What giving a lease back writes; `None` when that epoch does not hold it (any more).
    pub fn release(&self, name: &str, epoch: Epoch) -> Option<Lease> {
        let entry = self.by_name.get(name)?;
        (entry.deadline.is_some() && entry.lease.epoch == epoch).then(|| entry.vacated())
    }

    /// What the end of every lease whose time is over writes, by name.
    pub fn expired(&self, now: Millis) -> Vec<Lease> {
        self.by_name
            .values()
            .filter(|entry| entry.deadline.is_some() && !entry.in_force(now))
            .map(LeaseEntry::vacated)
            .collect()
    }

    /// Takes over a durable record: a held lease runs from `now`.
    pub fn apply(&mut self, record: Lease, now: Millis) {
        let ttl_ms = if record.epoch > self.floor { record.ttl_ms } else { 0 };
        let deadline = (!record.holder.is_empty()).then(|| now.plus(u64::from(ttl_ms)));
        let known = self.by_name.remove(&record.name);
        let mut standbys = known.map(|entry| entry.standbys).unwrap_or_default();
        standbys.remove(&record.holder);
        let facts = MemberFacts::default();
        let entry = LeaseEntry { deadline, facts, contact: None, standbys, lease: record };
        self.by_name.insert(entry.lease.name.clone(), entry);
    }

    /// Somebody asked for a lease that another one holds. Soft: it is forgotten unless it asks again.
    pub fn note_standby(&mut self, ask: &LeaseRequest, now: Millis) {
        let Some(entry) = self.by_name.get_mut(&ask.name) else { return };
        let ttl_ms = u64::from(entry.lease.ttl_ms);
        entry.standbys.retain(|_, (_, at)| now.since(*at) <= ttl_ms);
        if entry.standbys.len() < N_STANDBYS_MAX || entry.standbys.contains_key(&ask.holder) {
            entry.standbys.insert(ask.holder.clone(), (ask.address.clone(), now));
        }
    }

    /// Leases whose name starts with `prefix`, by name; one whose time is over has no holder.
    pub fn list<'a>(&'a self, prefix: &'a str, now: Millis) -> impl Iterator<Item = Shown<'a>> {
        self.by_name.range(prefix.to_owned()..).take_while(move |(name, _)| name.starts_with(prefix)).map(
            move |(_, entry)| Shown {
                lease: &entry.lease,
                remaining_ms: entry.remaining_ms(now),
                facts: &entry.facts,
                standbys: &entry.standbys,
                now,
            },
        )
    }
}

impl LeaseEntry {
    fn in_force(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| now < deadline)
    }

    fn remaining_ms(&self, now: Millis) -> u64 {
        self.deadline.map_or(0, |deadline| deadline.since(now))
    }

    fn vacated(&self) -> Lease {
        Lease { holder: String::new(), ..self.lease.clone() }
    }
}

/// Whether `name` is one that a lease may have: `dispatcher`, `binder`, `yarn`, `rescheduler`, `scheduler/<name>` or
/// `member/<kind>/<name>`, each part a name of at most 63 characters.
pub fn is_lease_name(name: &str) -> bool {
    let part = |part: &str| names::name(part, names::NAMESPACE_LEN_MAX).is_ok();
    match name.split('/').collect::<Vec<_>>()[..] {
        ["dispatcher" | "binder" | "yarn" | "rescheduler"] => true,
        ["scheduler", name] => part(name),
        ["member", kind, name] => part(kind) && part(name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(holder: &str) -> LeaseRequest {
        LeaseRequest {
            name: "binder".to_owned(),
            holder: holder.to_owned(),
            address: format!("http://{holder}"),
            ttl_ms: 1_000,
        }
    }

    fn granted(leases: &mut Leases, holder: &str, now: u64) -> Option<u64> {
        let lease = leases.grant(&ask(holder), Millis(now)).ok()?;
        leases.apply(lease.clone(), Millis(now));
        Some(lease.epoch.0)
    }

    #[test]
    fn one_holder_at_a_time_and_every_grant_has_a_new_epoch() {
        let mut leases = Leases::default();
        assert_eq!(granted(&mut leases, "a", 0), Some(1));
        assert_eq!(granted(&mut leases, "b", 999), None);
        assert_eq!(granted(&mut leases, "a", 999), Some(2), "the holder may ask again");
        assert_eq!(granted(&mut leases, "b", 1_998), None, "the second grant runs from its own time");
        assert_eq!(granted(&mut leases, "b", 1_999), Some(3));
        let refusal = leases.grant(&ask("a"), Millis(2_000)).unwrap_err();
        assert_eq!(refusal.to_string(), "lease binder is held by b at http://b");
    }

    #[test]
    fn a_renewal_counts_from_its_arrival_and_never_revives() {
        let mut leases = Leases::default();
        granted(&mut leases, "a", 0);
        assert_eq!(leases.renew("binder", Epoch(1), None, Millis(900)), Ok(1_000));
        assert_eq!(leases.renew("binder", Epoch(1), None, Millis(1_899)), Ok(1_000));
        let stale = Err(Stale { asked: Epoch(1), current: Epoch(1) });
        assert_eq!(leases.renew("binder", Epoch(1), None, Millis(2_899)), stale);
        assert_eq!(leases.expired(Millis(2_898)), []);
        let over = leases.expired(Millis(2_899));
        assert_eq!((over.len(), over[0].holder.as_str(), over[0].epoch), (1, "", Epoch(1)));
        leases.apply(over[0].clone(), Millis(2_900));
        assert_eq!(leases.expired(Millis(9_000)), []);
        assert_eq!(granted(&mut leases, "b", 3_000), Some(2));
        assert_eq!(
            leases.renew("binder", Epoch(1), None, Millis(3_001)),
            Err(Stale { asked: Epoch(1), current: Epoch(2) })
        );
        assert_eq!(
            leases.renew("dispatcher", Epoch(1), None, Millis(3_001)),
            Err(Stale { asked: Epoch(1), current: Epoch(0) })
        );
    }

    #[test]
    fn a_release_is_for_its_own_epoch_and_idempotent() {
        let mut leases = Leases::default();
        granted(&mut leases, "a", 0);
        assert_eq!(leases.release("binder", Epoch(7)), None);
        let released = leases.release("binder", Epoch(1)).unwrap();
        leases.apply(released, Millis(1));
        assert_eq!(leases.release("binder", Epoch(1)), None);
        assert_eq!(granted(&mut leases, "b", 2), Some(2));
    }

    #[test]
    fn a_lease_ends_early_only_if_its_holder_was_last_heard_on_the_connection_that_ended() {
        let mut leases = Leases::default();
        granted(&mut leases, "a", 0);
        let on = |epoch, connection| LeaseContact {
            lease: "binder".to_owned(),
            epoch: Epoch(epoch),
            connection: ConnectionId(connection),
        };
        let ends = |leases: &Leases, last: &LeaseContact, now| {
            leases.end_of_dead(last, HolderProbe::Refused, Millis(now)).is_some()
        };
        assert!(!ends(&leases, &on(1, 7), 1), "it was not heard on any");
        assert!(leases.note_contact("binder", Epoch(1), Some(ConnectionId(7))));
        assert!(!leases.note_contact("binder", Epoch(1), Some(ConnectionId(7))), "watched already");
        assert!(!leases.note_contact("binder", Epoch(2), Some(ConnectionId(8))), "a stale holder");
        assert!(!leases.note_contact("yarn", Epoch(1), Some(ConnectionId(8))), "an unknown lease");
        let asked = leases.out_of_contact(&on(1, 7), Millis(1)).unwrap();
        assert_eq!(asked.address, "http://a");
        assert_eq!(leases.end_of_dead(&on(1, 7), HolderProbe::Unclear, Millis(1)), None);
        assert!(!ends(&leases, &on(1, 8), 1) && !ends(&leases, &on(2, 7), 1));
        assert!(!ends(&leases, &on(1, 7), 1_000), "it expires by itself");
        // A renewal on another connection, or one that somebody passes on, makes the first one irrelevant.
        for other in [Some(ConnectionId(8)), None] {
            assert!(leases.note_contact("binder", Epoch(1), other));
            assert!(leases.out_of_contact(&on(1, 7), Millis(1)).is_none() && !ends(&leases, &on(1, 7), 1));
            assert!(leases.note_contact("binder", Epoch(1), Some(ConnectionId(7))));
        }
        let over = leases.end_of_dead(&on(1, 7), HolderProbe::Refused, Millis(1)).unwrap();
        assert_eq!((over.holder.as_str(), over.epoch), ("", Epoch(1)));
        leases.apply(over, Millis(1));
        assert!(!ends(&leases, &on(1, 7), 1), "once");
        // The next holder has its whole time, also at the same connection.
        assert_eq!(granted(&mut leases, "b", 2), Some(2));
        assert!(leases.note_contact("binder", Epoch(2), Some(ConnectionId(7))));
        assert!(!ends(&leases, &on(1, 7), 3) && ends(&leases, &on(2, 7), 3));
        let released = leases.release("binder", Epoch(2)).unwrap();
        leases.apply(released, Millis(3));
        assert!(leases.out_of_contact(&on(2, 7), Millis(3)).is_none(), "given back");
    }

    #[test]
    fn a_restart_gives_held_leases_their_full_ttl_and_keeps_epochs() {
        let records = [("a", 7), ("", 3)].map(|(holder, epoch)| Lease {
            name: format!("scheduler/{epoch}"),
            holder: holder.to_owned(),
            epoch: Epoch(epoch),
            ttl_ms: 1_000,
            ..Lease::default()
        });
        let mut leases = Leases::load(records, Epoch(0), Millis(50_000));
        let shown: Vec<_> = leases.list("scheduler/", Millis(50_400)).map(|s| s.remaining_ms).collect();
        assert_eq!(shown, [0, 600]);
        assert_eq!(leases.renew("scheduler/7", Epoch(7), None, Millis(50_999)), Ok(1_000));
        assert_eq!(leases.expired(Millis(51_500)), []);
        let free = LeaseRequest { name: "scheduler/3".to_owned(), ..ask("b") };
        assert_eq!(leases.grant(&free, Millis(50_001)).map(|lease| lease.epoch), Ok(Epoch(4)));
    }

    #[test]
    fn a_restore_ends_every_lease_and_repeats_no_epoch() {
        let held = Lease {
            name: "binder".to_owned(),
            holder: "a".to_owned(),
            epoch: Epoch(7),
            ttl_ms: 1_000,
            ..Lease::default()
        };
        let mut leases = Leases::load([held], Epoch(100), Millis(0));
        assert_eq!(
            leases.renew("binder", Epoch(7), None, Millis(0)),
            Err(Stale { asked: Epoch(7), current: Epoch(7) })
        );
        let over = leases.expired(Millis(0));
        assert_eq!((over.len(), over[0].holder.as_str(), over[0].epoch), (1, "", Epoch(7)));
        assert_eq!(
            granted(&mut leases, "b", 0),
            Some(101),
            "nobody waits for the end of a lease that is over"
        );
        assert_eq!(granted(&mut leases, "a", 999), None);
        let unknown = LeaseRequest { name: "scheduler/s9".to_owned(), ..ask("c") };
        assert_eq!(leases.grant(&unknown, Millis(0)).map(|lease| lease.epoch), Ok(Epoch(101)));
    }

    #[test]
    fn names() {
        for (name, ok) in [
            ("dispatcher", true),
            ("binder", true),
            ("yarn", true),
            ("rescheduler", true),
            ("scheduler/s1", true),
            ("member/state/main", true),
            ("", false),
            ("scheduler", false),
            ("scheduler/", false),
            ("scheduler/A", false),
            ("scheduler/a/b", false),
            ("member/state", false),
            ("member//x", false),
            ("other", false),
        ] {
            assert_eq!(is_lease_name(name), ok, "{name}");
        }
        assert!(!is_lease_name(&format!("scheduler/{}", "a".repeat(64))));
    }

    #[test]
    fn the_epoch_of_the_state_that_leads_counts_the_turns_of_all() {
        let mut leases = Leases::default();
        let state = |name: &str| LeaseRequest { name: format!("member/state/{name}"), ..ask(name) };
        for (turn, name) in (1..).zip(["a", "a", "b", "c", "a"]) {
            let lease = leases.grant_to_state(&state(name));
            assert_eq!(lease.epoch, Epoch(turn), "{name}");
            leases.apply(lease, Millis(0));
        }
        // Registrations of those that follow count for their names.
        let later = Millis(1_000_000);
        for _ in 0..10 {
            let lease = leases.grant(&state("b"), later).unwrap();
            leases.apply(lease, later);
        }
        assert_eq!(leases.grant_to_state(&state("c")).epoch, Epoch(14));
    }

    #[test]
    fn who_stands_by_is_shown_as_long_as_it_asks() {
        let mut leases = Leases::default();
        leases.apply(leases.grant_anyway(&ask("a")), Millis(0));
        let ttl = u64::from(ask("a").ttl_ms);
        let shown = |leases: &Leases, now| {
            let lease = leases.list("binder", Millis(now)).next().unwrap();
            lease.standbys().map(|(holder, address)| format!("{holder} {address}")).collect::<Vec<_>>()
        };
        leases.note_standby(&LeaseRequest { address: "http://b".to_owned(), ..ask("b") }, Millis(10));
        leases.note_standby(&LeaseRequest { address: "http://c".to_owned(), ..ask("c") }, Millis(20));
        assert_eq!(shown(&leases, 20), ["b http://b", "c http://c"]);
        assert_eq!(shown(&leases, 11 + ttl), ["c http://c"], "b has not asked for a TTL");
        // Whoever gets the lease stands by no more; the others do.
        leases.apply(leases.grant_anyway(&ask("c")), Millis(15));
        assert_eq!(shown(&leases, 20), ["b http://b"]);
        for n in 0..2 * N_STANDBYS_MAX {
            leases.note_standby(&ask(&format!("h{n}")), Millis(20));
        }
        assert_eq!(shown(&leases, 20).len(), N_STANDBYS_MAX);
    }
}
