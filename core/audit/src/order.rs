//! I10: what comes free goes to queues by their order.
//!
//! Each binding is looked at with the room and the usage of before its commit. A queue *waits* beside the one that got the place
//! if it has plain units that have waited for a while and would have fitted on that very node; it is *entitled* to the place if its
//! turn comes first even with one more running unit for each scheduler. What others get meanwhile is owed to it, and what it gets
//! itself takes off half as much: serving queues in turn, whatever their shares, is found as well as never serving one.
//!
//! Between bands the rule is a part of a hundred: what lower bands get while a higher one waits is neither much more nor much less
//! than the floor. That it is not much more is judged over a hundred places, that it is not much less over as many as make what may
//! have been under way small beside the floor.
//!
//! Not judged: room that is held, units of higher priority than the one that waits (they are tried at once, since they may have
//! it leave), best-effort running units, and queues in whose way something else may be (gangs, selectors,
//! maxima, pauses). What is judged is counted.

mod levels;

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::{NodeId, UnitId};
use godel_domain::{
    change::Change,
    demand::Pool,
    hold::Hold,
    queue_spec::Band,
    records::{Record, RecordKey, RecordKind},
    running_units::{Bind, RunChange},
    unit::{Template, UnitRecord},
};
use rustc_hash::FxHashMap;

use self::levels::{LevelIdx, Levels, N_BANDS, Turn};
use super::{
    History, Start,
    history::{Replay, node_name},
    moves::{QueueMove, counted, moves},
    pending::{Free, admits},
    queues::{Used, payer},
    room::Tenants,
    verdict::Findings,
    world::{Commit, RowStep, World, WorldRow},
};

/// Entitled siblings that are looked at for each place.
const N_SIBLINGS_MAX: usize = 4;
/// Places that are looked at of what one change binds.
const N_PLACES_MAX: usize = 8;
/// Places over which a band is judged that gets more than its floor.
const N_ABOVE_FLOOR: u32 = 100;
/// One that gets less is judged over so many places that its floor of them is so many times what may have been under way: one that gets less than
/// half of its floor is found, and one that gets nothing above all.
const N_TIMES_ALLOWANCE: i64 = 2;

/// What is known of how the dispatcher serves queues.
#[derive(Clone, Debug)]
pub struct Service {
    /// Of what is handed out so many per cent are of each lower band that waits; `None`: not known.
    pub floor_percent: Option<u8>,
    /// When each unit was handed to a scheduler, ascending; `None`: not known.
    pub handed_out: Option<BTreeMap<UnitId, Vec<HandedOut>>>,
    /// A unit that was submitted so long ago is known to whoever decides, milliseconds.
    pub known_after_ms: i64,
}

/// A unit is handed to a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOut {
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// Room that came free until then had been reported to the dispatcher, Unix milliseconds.
    pub heard_ms: i64,
}

impl Default for Service {
    fn default() -> Self {
        Self { floor_percent: None, handed_out: None, known_after_ms: 1_000 }
    }
}

/// What a lower band got of so many places while a higher one waited as well.
#[derive(Clone, Copy, Debug, Default)]
struct FloorWindow {
    n: u32,
    n_low: u32,
}

impl FloorWindow {
    fn count(&mut self, is_low: bool) {
        self.n += 1;
        self.n_low += u32::from(is_low);
    }
}

/// What is counted of one lower band.
#[derive(Clone, Copy, Debug, Default)]
struct FloorWindows {
    /// To find that it gets too much.
    above: FloorWindow,
    /// To find that it gets too little.
    below: FloorWindow,
}

/// What is followed from commit to commit.
pub(super) struct Probe {
    service: Service,
    levels: Levels,
    /// When a node last came to have more room, where that matters.
    gained_ms: FxHashMap<NodeId, i64>,
    windows: [FloorWindows; N_BANDS],
    /// Of units, when they were handed out last, and what was bound of them since.
    handed: FxHashMap<UnitId, Handed>,
    /// Units for which room was held: others had to leave for them, whatever their queues' turn.
    preemptors: BTreeSet<UnitId>,
    /// Units whose rows the commit at hand changes.
    touched: BTreeSet<UnitId>,
    n_schedulers: i64,
    /// Bindings with somebody beside them that waited.
    n_judged: usize,
    /// Those of them of whom the other one was entitled to the place.
    n_passed: usize,
    /// How often a band was judged for too much, and for too little.
    n_windows: [usize; 2],
    findings: Findings,
}

/// A unit as it was handed out: whole, when it was its turn.
#[derive(Clone, Debug, Default)]
struct Handed {
    at: HandedOut,
    /// Bound of it since.
    bound: Used,
    /// It was looked at.
    is_judged: bool,
}

/// A place that a commit gave away.
struct GivenPlace<'a> {
    bind: &'a Bind,
    unit: UnitId,
    queue: LevelIdx,
    band: Band,
    priority: i32,
}

/// What the history that was replayed says.
pub(super) fn check(history: &History, service: &Service, replay: &Replay) -> Findings {
    let mut findings = Findings::default();
    if let Some(gap) = history.gap() {
        findings.not_judged(gap);
        return findings;
    }
    let Some(Probe { n_judged, n_passed, n_windows, findings: found, .. }) = &replay.queues else {
        findings.checked(format!("one queue and one band have waited{}", history.since()));
        return findings;
    };
    findings.extend(found);
    let floors = match service.floor_percent {
        Some(_) => {
            let [above, below] = n_windows;
            format!("; two bands {above} times for more than the floor, {below} times for less")
        }
        None => "; bands are not compared, for the dispatcher did not say what lower ones get".to_owned(),
    };
    findings.checked(format!(
        "{n_judged} bindings beside a queue that waited for the same room, {n_passed} of them before that one's turn{floors}{}",
        history.since()
    ));
    findings
}

/// Whether units of more than one queue or band are in it.
fn has_several(history: &History) -> bool {
    let mut first = None;
    let mut is_other = |record: &UnitRecord| {
        let of = (record.spec.queue.clone(), Band::of(record.spec.pool, record.spec.priority));
        first.get_or_insert_with(|| of.clone()) != &of
    };
    let of_start = match &history.start {
        Start::Kept(world) => Some(world.units.values().filter_map(|unit| unit.record.as_ref())),
        Start::Empty | Start::Unknown(_) => None,
    };
    of_start.into_iter().flatten().any(|record| is_other(&record.value))
        || history
            .commits
            .iter()
            .flat_map(|commit| &commit.changes)
            .any(|change| matches!(change, Change::Put(Record::Unit(record)) if is_other(record)))
}

impl Probe {
    /// `None` where there is nothing to compare.
    pub(super) fn new(history: &History, service: &Service) -> Option<Self> {
        (history.has_start() && has_several(history)).then(|| Self {
            service: service.clone(),
            levels: Levels::default(),
            gained_ms: FxHashMap::default(),
            windows: [FloorWindows::default(); N_BANDS],
            handed: FxHashMap::default(),
            preemptors: BTreeSet::new(),
            touched: BTreeSet::new(),
            n_schedulers: 1,
            n_judged: 0,
            n_passed: 0,
            n_windows: [0; 2],
            findings: Findings::default(),
        })
    }

    /// Takes over what is there where the judgement begins.
    pub(super) fn begin(&mut self, world: &World, now_ms: i64) {
        self.levels.follow_records(world);
        for (id, unit) in &world.units {
            for row in unit.rows.values() {
                self.count_row(world, *id, &WorldRow::default(), row, now_ms);
            }
            self.levels.follow_unit(world, *id, now_ms);
        }
        for hold in world.holds.values() {
            self.preemptors.insert(hold.value.unit);
            self.count_hold(world, &hold.value, 1);
        }
        world.nodes.keys().for_each(|id| self.levels.follow_node(world, *id));
    }

    /// A commit comes; `world` and `tenants` are as before it.
    pub(super) fn before(&mut self, world: &World, tenants: &Tenants, commit: &Commit) {
        self.judge(world, tenants, commit);
        let now_ms = commit.time_ms;
        for QueueMove { unit, from, to } in moves(world, commit) {
            for (demand, n) in counted(world, unit, WorldRow::is_live) {
                self.levels.count(from, demand, -n, now_ms);
                self.levels.count(to, demand, n, now_ms);
            }
        }
        for change in &commit.changes {
            let hold = match change {
                Change::Gone(RecordKey::Hold(id)) => world.holds.get(id),
                Change::Put(Record::Hold(hold)) => world.holds.get(&hold.id),
                Change::Gone(RecordKey::Unit(id)) => {
                    for row in world.units.get(id).into_iter().flat_map(|unit| unit.rows.values()) {
                        self.count_row(world, *id, row, &WorldRow::default(), now_ms);
                    }
                    self.levels.forget_unit(*id);
                    None
                }
                _ => None,
            };
            if let Some(hold) = hold {
                self.gained_ms.insert(hold.value.node, now_ms);
                self.count_hold(world, &hold.value, -1);
            }
        }
    }

    /// A row changes with it.
    pub(super) fn on_row(&mut self, world: &World, step: &RowStep<'_>, now_ms: i64) {
        self.touched.insert(step.unit);
        if let Some(after) = &step.after {
            self.count_row(world, step.unit, &step.before, after, now_ms);
        }
    }

    /// It is applied.
    pub(super) fn after(&mut self, world: &World, commit: &Commit) {
        let now_ms = commit.time_ms;
        for change in &commit.changes {
            match change {
                Change::Put(Record::Hold(hold)) => {
                    self.preemptors.insert(hold.unit);
                    self.count_hold(world, hold, 1);
                }
                Change::Put(record) => self.touched.extend(record.unit()),
                _ => {}
            }
            match change.kind() {
                // What a node reported is still known of it.
                Some(RecordKind::NodeReport | RecordKind::NodeAllocatable)
                    if matches!(change, Change::Gone(_)) => {}
                Some(RecordKind::NodeSpec | RecordKind::NodeReport | RecordKind::NodeAllocatable) => {
                    change.node().into_iter().for_each(|node| self.on_node(world, node, now_ms));
                }
                Some(RecordKind::Queue) => self.levels.follow_records(world),
                Some(RecordKind::Lease) => {
                    let n = world.leases.keys().filter(|name| name.starts_with("scheduler/")).count();
                    self.n_schedulers = i64::try_from(n).unwrap_or(i64::MAX).max(1);
                }
                _ => {}
            }
        }
        for id in std::mem::take(&mut self.touched) {
            self.levels.follow_unit(world, id, now_ms);
        }
    }

    fn on_node(&mut self, world: &World, id: NodeId, now_ms: i64) {
        self.gained_ms.insert(id, now_ms);
        self.levels.follow_node(world, id);
    }

    fn count_row(&mut self, world: &World, id: UnitId, before: &WorldRow, after: &WorldRow, now_ms: i64) {
        let Some(unit) = world.units.get(&id) else { return };
        let Some(queue) = unit.record.as_ref().map(|record| record.value.spec.queue.as_str()) else { return };
        let turns = [(before, -1), (after, 1)];
        for (row, times) in
            turns.into_iter().filter(|(row, _)| before.is_live() != after.is_live() && row.is_live())
        {
            let Some((demand, _)) = unit.demands.get(&row.group) else { continue };
            self.levels.count(queue, demand, times, now_ms);
            if let Some(handed) = self.handed.get_mut(&id).filter(|_| times > 0) {
                handed.bound.add(demand, times);
            }
            if times < 0 {
                self.gained_ms.insert(row.node, now_ms);
            }
        }
    }

    fn count_hold(&mut self, world: &World, hold: &Hold, sign: i64) {
        if let Some(queue) = payer(world, hold) {
            let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
            self.levels.count(queue, &hold.demand, n.saturating_mul(sign), 0);
        }
    }

    /// What a commit gives away, by what was before it.
    fn judge(&mut self, world: &World, tenants: &Tenants, commit: &Commit) {
        let binds = commit.changes.iter().filter_map(|change| match change {
            Change::Rows(unit, RunChange::Bind(bind)) => Some((*unit, bind)),
            _ => None,
        });
        let given: Vec<GivenPlace<'_>> =
            binds.filter_map(|(unit, bind)| self.given(world, unit, bind)).collect();
        if given.is_empty()
            || !self.levels.has_others(&given.iter().map(|one| (one.queue, one.band)).collect())
        {
            return;
        }
        let mut gains: BTreeMap<LevelIdx, Used> = BTreeMap::new();
        for one in &given {
            let n = u32::try_from(one.bind.ordinals.len()).unwrap_or(u32::MAX);
            for level in self.levels.upwards(one.queue) {
                gains.entry(level).or_default().add(&one.bind.demand, i64::from(n));
                self.levels.pay(level, one.band, n);
            }
        }
        if !world.pauses.is_empty() {
            return;
        }
        let held: BTreeSet<NodeId> = world.holds.values().map(|hold| hold.value.node).collect();
        let preemptors = std::mem::take(&mut self.preemptors);
        for one in &given {
            self.note_handed(one, commit.time_ms);
        }
        for one in
            given.iter().filter(|one| one.bind.pool == Pool::Guaranteed && !preemptors.contains(&one.unit))
        {
            let places: BTreeSet<NodeId> = one.bind.nodes.iter().copied().collect();
            for node in places.into_iter().filter(|node| !held.contains(node)).take(N_PLACES_MAX) {
                if let Some(free) = free(world, tenants, node) {
                    self.judge_place(world, one, node, &free, &gains, commit);
                }
            }
        }
        self.preemptors = preemptors;
    }

    fn given<'a>(&self, world: &World, unit: UnitId, bind: &'a Bind) -> Option<GivenPlace<'a>> {
        let record = &world.units.get(&unit)?.record.as_ref()?.value;
        let queue = self.levels.find(&record.spec.queue)?;
        Some(GivenPlace {
            bind,
            unit,
            queue,
            band: levels::band(world, &record.spec),
            priority: levels::priority(world, &record.spec),
        })
    }

    fn judge_place(
        &mut self,
        world: &World,
        given: &GivenPlace<'_>,
        node: NodeId,
        free: &Free,
        gains: &BTreeMap<LevelIdx, Used>,
        commit: &Commit,
    ) {
        self.judge_bands(world, given, node, free, commit);
        let mut is_judged = false;
        let handed = self.handed.get(&given.unit).filter(|_| self.service.handed_out.is_some());
        if handed.is_some_and(|handed| handed.is_judged) {
            return;
        }
        // It was its turn, or was not, before anything of it was bound.
        let before = handed.map(|handed| handed.bound.negative());
        let at = HandedOut { at_ms: commit.time_ms, heard_ms: commit.time_ms };
        let at = handed.map_or(at, |handed| handed.at);
        // What came free is known once it is reported, or as long after as everything is.
        let gained_ms = self.gained_ms.get(&node).copied();
        let is_heard = gained_ms.is_none_or(|gained_ms| {
            gained_ms < at.at_ms
                && (gained_ms <= at.heard_ms
                    || gained_ms < at.at_ms.saturating_sub(self.service.known_after_ms))
        });
        for level in self.levels.upwards(given.queue) {
            let served = self.levels.rank_of(level, before.as_ref());
            let mut siblings: Vec<(Turn, LevelIdx)> = self
                .levels
                .siblings(level, given.band)
                .map(|other| (self.levels.rank_of(other, gains.get(&other)), other))
                .collect();
            siblings.sort_by(|(one, _), (other, _)| one.order(other));
            for (_, other) in siblings.into_iter().take(N_SIBLINGS_MAX) {
                let Some((waiting, since_ms)) =
                    self.fitting(world, other, given.band, given.priority, node, free, commit.time_ms)
                else {
                    continue;
                };
                is_judged = true;
                let mut more = gains.get(&other).cloned().unwrap_or_default();
                let template = world.units.get(&waiting).and_then(|unit| unit.record.as_ref());
                let Some(template) = template.map(|record| &record.value.spec.task_groups[0].template) else {
                    continue;
                };
                more.add(&template.demand, self.n_schedulers);
                if !self.levels.rank_of(other, Some(&more)).is_before(&served) {
                    continue;
                }
                let since_ms = self.levels.eased_ms(other).max(Some(since_ms));
                let is_known = is_heard && since_ms.is_none_or(|since_ms| since_ms < at.at_ms);
                if !is_known || self.is_being_served(other, given.band, at.at_ms) {
                    continue;
                }
                self.n_passed += 1;
                self.owe(world, given, node, other, waiting, commit);
                break;
            }
        }
        if let Some(handed) = self.handed.get_mut(&given.unit) {
            handed.is_judged = true;
        }
        self.n_judged += usize::from(is_judged);
    }

    fn owe(
        &mut self,
        world: &World,
        given: &GivenPlace<'_>,
        node: NodeId,
        other: LevelIdx,
        waiting: UnitId,
        commit: &Commit,
    ) {
        let owed = self.levels.owe(other, given.band);
        if i64::from(owed) <= 2 * self.allowance() {
            return;
        }
        self.levels.forgive(other, given.band);
        let name = |unit: UnitId| world.units.get(&unit).map_or_else(|| "?".to_owned(), |unit| unit.name());
        let (revision, entitled, served) =
            (commit.revision, self.levels.path(other), self.levels.path(given.queue));
        self.findings.add(|| {
            format!(
                "queue {entitled} is passed over again and again, the last time at revision {revision}: unit {} waits and \
                 fits on {}, which went to unit {} of queue {served}",
                name(waiting),
                node_name(world, node),
                name(given.unit),
            )
        });
    }

    /// Units that others may get before an entitled queue: one for each scheduler, two more since units that are called are
    /// counted in proportion against what other needs may take, and where it is not known what was under way as much as may have been.
    fn allowance(&self) -> i64 {
        match self.service.handed_out {
            Some(_) => self.n_schedulers + 2,
            None => 4 * self.n_schedulers + 8,
        }
    }

    /// What is bound of a unit belongs to when it was handed out.
    fn note_handed(&mut self, given: &GivenPlace<'_>, now_ms: i64) {
        let times = self.service.handed_out.as_ref().and_then(|all| all.get(&given.unit));
        let last = times.and_then(|times| times.iter().take_while(|at| at.at_ms <= now_ms).last().copied());
        let handed = self.handed.entry(given.unit).or_default();
        let at = match self.service.handed_out {
            Some(_) => last.unwrap_or_default(),
            None => HandedOut { at_ms: now_ms, heard_ms: now_ms },
        };
        if handed.at.at_ms != at.at_ms {
            *handed = Handed { at, ..Handed::default() };
        }
    }

    /// Whether a unit of a queue was on its way when another one was handed out.
    fn is_being_served(&self, queue: LevelIdx, band: Band, at_ms: i64) -> bool {
        let Some(handed_out) = &self.service.handed_out else { return false };
        let since_ms = at_ms.saturating_sub(self.service.known_after_ms);
        self.levels.waiting(queue, band).any(|unit| {
            handed_out
                .get(&unit)
                .is_some_and(|times| times.iter().any(|at| (since_ms..=at_ms).contains(&at.at_ms)))
        })
    }

    fn judge_bands(
        &mut self,
        world: &World,
        given: &GivenPlace<'_>,
        node: NodeId,
        free: &Free,
        commit: &Commit,
    ) {
        let Some(percent) = self.service.floor_percent else { return };
        let waits = |band: &Band| {
            self.fitting(world, LevelIdx::ROOT, *band, i32::MIN, node, free, commit.time_ms).is_some()
        };
        let guaranteed = [Band::System, Band::Online, Band::Batch];
        let higher = guaranteed.into_iter().filter(|band| *band < given.band).any(|band| waits(&band));
        let lower: Vec<Band> =
            guaranteed.into_iter().filter(|band| *band > given.band).filter(waits).collect();
        for band in lower.into_iter().chain(higher.then_some(given.band)) {
            self.count_for_floor(band, band == given.band, i64::from(percent.min(50)), commit);
        }
    }

    /// A place is given away while a lower band waits and a higher one does, to the lower one or not.
    fn count_for_floor(&mut self, band: Band, is_low: bool, percent: i64, commit: &Commit) {
        let (allowance, revision) = (self.allowance() + 1, commit.revision);
        let mut wrong = |FloorWindow { n, n_low }: FloorWindow| {
            let (n, floor) = (i64::from(n), i64::from(n) * percent / 100);
            self.findings.add(|| {
                format!(
                    "band {} got {n_low} of {n} places while a higher one waited as well, not {floor} (revision {revision})",
                    band.name()
                )
            });
        };
        let windows = &mut self.windows[band.idx()];
        windows.above.count(is_low);
        if windows.above.n >= N_ABOVE_FLOOR {
            let window = std::mem::take(&mut windows.above);
            self.n_windows[0] += 1;
            if i64::from(window.n_low) - i64::from(window.n) * percent / 100 > allowance {
                wrong(window);
            }
        }
        if percent == 0 {
            return;
        }
        windows.below.count(is_low);
        let due = i64::from(windows.below.n) * percent / 100;
        if due >= N_TIMES_ALLOWANCE * allowance {
            let window = std::mem::take(&mut windows.below);
            self.n_windows[1] += 1;
            if i64::from(window.n_low) < due - allowance {
                wrong(window);
            }
        }
    }

    /// A plain unit of a band, of a queue or one below it, that fits, and since when it waits.
    fn fitting(
        &self,
        world: &World,
        queue: LevelIdx,
        band: Band,
        priority: i32,
        node: NodeId,
        free: &Free,
        now_ms: i64,
    ) -> Option<(UnitId, i64)> {
        let of_node = world.nodes.get(&node)?;
        let fits = |template: &Template| {
            admits(of_node, template).is_ok()
                && free.clone().take(of_node, template, Pool::Guaranteed).is_ok()
        };
        let known_since_ms = now_ms.saturating_sub(self.service.known_after_ms);
        self.levels.find_waiting(world, queue, band, priority, known_since_ms, fits)
    }
}

/// What a node has left; `None` of one that has come to have less.
fn free(world: &World, tenants: &Tenants, node: NodeId) -> Option<Free> {
    let of_node = world.nodes.get(&node).filter(|_| !world.shrunk.contains(&node))?;
    Some(Free::new(of_node, &tenants.of_node(node), &BTreeSet::new()))
}
