//! Principals of a case: who may see and change which units, against a plain rule.
//!
//! As in the services, [`allow`] decides whether a call is made, and [`Principal::sight`] what a principal is shown. The plain rule beside them is every
//! namespace, queue and owner of a principal written out. Each verdict is compared with it, and so is what the parts do with the call while units are
//! preempted and moved, parts die, and principals get other rules: no record changes that nobody who may has asked to change, what was acknowledged is
//! in the history, every record says who submitted its unit, and nobody is shown a unit, or the name of one, that is out of sight.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::ids::UnitId;
use godel_core_dispatcher::{
    Dispatcher, Unresolved,
    leader::{ChangeFailure, UnitChangeKind},
    read::ListFilter,
};
use godel_core_rescheduler::MovementMove;
use godel_domain::{
    change::{Change, Commit},
    records::{Record, RecordKey},
    sight::Sight,
    unit::{UnitRecord, UnitSpec},
};
use godel_identity::permission::{ALL_NAMESPACES, CallObject, Permission, PersonRole, Principal, allow};

use super::{
    dispatcher::{Wish, principal_of},
    numbers::Numbers,
    reach::{Mark, MarkCounts},
    world::Model,
};

/// Namespaces of units.
const NAMESPACES: [&str; 3] = ["default", "team-a", "team-b"];
/// Queues that principals have, each with the leaves that they may use by it.
const OWN_QUEUES: [(&str, &[&str]); 5] = [
    ("a", &["a.x", "a.y"]),
    ("a.x", &["a.x"]),
    ("b", &["b"]),
    ("default", &["default"]),
    // Begins like the name of one, and is none above it.
    ("a.", &[]),
];
/// Groups of principals.
const GROUPS: [&str; 2] = ["o0", "o1"];
/// What principals are called. The last one always operates the cluster.
const NAMES: [&str; 4] = ["ann", "bob", "cyd", "dan"];
/// So many of a hundred times when something happens a principal gets another rule.
const REGRANT_PERCENT: u64 = 5;
/// Units of a page.
const PAGE: usize = 2;

/// A principal, and what it may do written out.
struct Person {
    principal: Principal,
    /// Every namespace is its own.
    has_all: bool,
    /// The namespace of what names none.
    default: &'static str,
    namespaces: BTreeSet<&'static str>,
    queues: BTreeSet<&'static str>,
    owners: BTreeSet<String>,
}

impl Person {
    fn draw(name: &str, numbers: &mut Numbers) -> Self {
        let role = numbers.draw(&[(2, PersonRole::Viewer), (5, PersonRole::User), (1, PersonRole::Admin)]);
        let role = if name == NAMES[NAMES.len() - 1] { PersonRole::Operator } else { role };
        let has_default = numbers.chance(30);
        let default = if has_default { "team-a" } else { "default" };
        let mut namespaces: Vec<&str> = NAMESPACES.to_vec();
        namespaces.retain(|_| numbers.chance(35));
        let mut queues = OWN_QUEUES.to_vec();
        queues.retain(|_| numbers.chance(35));
        let mut groups: Vec<&str> = GROUPS.to_vec();
        groups.retain(|_| numbers.chance(60));
        let has_all = numbers.chance(10);
        let words = |of: &[&str]| of.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let principal = Principal {
            groups: words(&groups),
            namespaces: if has_all { words(&[ALL_NAMESPACES]) } else { words(&namespaces) },
            queues: queues.iter().map(|(queue, _)| (*queue).to_owned()).collect(),
            default_namespace: if has_default { default.to_owned() } else { String::new() },
            ..Principal::new(name, role)
        };
        // None is every queue.
        let leaves = if queues.is_empty() { &OWN_QUEUES[..] } else { &queues[..] };
        Self {
            principal,
            has_all,
            default,
            namespaces: if has_all {
                NAMESPACES.into()
            } else {
                namespaces.into_iter().chain([default]).collect()
            },
            queues: leaves.iter().flat_map(|(_, leaves)| leaves.iter().copied()).collect(),
            owners: groups.into_iter().chain([name]).map(str::to_owned).collect(),
        }
    }

    fn operates(&self) -> bool {
        self.principal.role >= PersonRole::Operator
    }

    /// A unit of its own is seen wherever it is.
    fn sees_unit(&self, unit: &UnitSpec) -> bool {
        self.sees(&unit.namespace) || !unit.owner.is_empty() && unit.owner == self.principal.name
    }

    fn sees(&self, namespace: &str) -> bool {
        self.operates() || self.namespaces.contains(namespace)
    }

    fn may_change(&self, namespace: &str) -> bool {
        self.principal.role != PersonRole::Viewer && self.sees(namespace)
    }

    /// An empty owner is the principal itself.
    fn may_submit(&self, namespace: &str, queue: &str, owner: &str) -> bool {
        let is_own = owner.is_empty() || self.owners.contains(owner);
        self.may_change(namespace) && (self.operates() || (self.queues.contains(queue) && is_own))
    }
}

/// Kinds of what a unit may be asked for, as its record shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WishedChange {
    Cancel,
    Suspend(bool),
    /// Another size, another queue, or other work.
    Other,
    Retry,
}

impl WishedChange {
    fn of(kind: &UnitChangeKind) -> (Self, &'static str) {
        match kind {
            UnitChangeKind::Cancel => (Self::Cancel, "/godel.v1.UnitService/CancelUnit"),
            UnitChangeKind::Suspend => (Self::Suspend(true), "/godel.v1.UnitService/SuspendUnit"),
            UnitChangeKind::Resume => (Self::Suspend(false), "/godel.v1.UnitService/ResumeUnit"),
            UnitChangeKind::Scale { .. } => (Self::Other, "/godel.v1.UnitService/ScaleUnit"),
            UnitChangeKind::Stop { .. } => (Self::Other, "/godel.v1.UnitService/StopRunningUnits"),
            UnitChangeKind::Grow(_) | UnitChangeKind::Update(_) => {
                (Self::Other, "/godel.v1.UnitService/UpdateUnit")
            }
            UnitChangeKind::Retry(_) | UnitChangeKind::RetryReplicas { .. } => {
                (Self::Retry, "/godel.v1.UnitService/RetryUnit")
            }
            UnitChangeKind::Delete => unreachable!("nobody deletes units in a case"),
        }
    }

    /// What has to have been asked for between two records of a unit. Replicas that start before others stop, and those of daemons, change without that.
    fn between(before: &UnitRecord, after: &UnitRecord) -> Vec<Self> {
        let size = |record: &UnitRecord| {
            let n_surges = record.status.surges.len();
            if record.spec.is_daemon() { 0 } else { record.spec.replicas() as usize - n_surges }
        };
        let work = |record: &UnitRecord| {
            let mut spec = record.spec.clone();
            spec.task_groups.iter_mut().for_each(|group| group.replicas = 0);
            spec
        };
        let (old, new) = (&before.status, &after.status);
        let is_retried = new.retried_ms != old.retried_ms
            || (old.cancelled && !new.cancelled)
            || new.next_incarnations.iter().any(|next| !old.next_incarnations.contains(next));
        let mut asked = Vec::new();
        asked.extend((new.cancelled && !old.cancelled).then_some(Self::Cancel));
        asked.extend((new.suspended != old.suspended && !is_retried).then_some(Self::Suspend(new.suspended)));
        asked.extend((size(after) != size(before) || work(after) != work(before)).then_some(Self::Other));
        asked.extend(is_retried.then_some(Self::Retry));
        asked
    }
}

/// A call that was made, as its principal might.
#[derive(Clone, Debug)]
struct MadeCall {
    asked: WishedChange,
    namespace: String,
    /// The name or the uid of a unit.
    text: String,
    /// It reaches units of all namespaces, by their uids.
    reaches_all: bool,
    /// The unit that is meant.
    unit: UnitId,
}

impl MadeCall {
    fn is_about(&self, spec: &UnitSpec) -> bool {
        let is_here = spec.namespace == self.namespace;
        (is_here && spec.name == self.text) || (spec.uid == self.text && (self.reaches_all || is_here))
    }
}

/// How a unit is named by whoever wants something of it.
pub(super) struct UnitAddress {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Who asks.
    pub(super) principal: String,
    /// Units of that namespace only.
    pub(super) is_bound: bool,
    /// The call that was made, where principals are judged.
    pub(super) call: Option<usize>,
}

impl UnitAddress {
    /// Of whoever has submitted a unit.
    pub(super) fn of_own(record: &UnitRecord) -> Self {
        let UnitSpec { namespace, name, .. } = &record.spec;
        let principal = record.status.principal.clone();
        Self { namespace: namespace.clone(), name: name.clone(), principal, is_bound: false, call: None }
    }
}

/// A submission that was made.
struct MadeSubmission {
    principal: String,
    namespace: String,
    owner: String,
}

/// See the module.
pub(super) struct ModelPeople {
    numbers: Numbers,
    persons: Vec<Person>,
    calls: Vec<MadeCall>,
    /// By uid.
    submissions: BTreeMap<String, MadeSubmission>,
    /// Newest records of all units that there ever were.
    records: BTreeMap<UnitId, Arc<UnitRecord>>,
    /// Those of them that are there no longer.
    gone: BTreeSet<UnitId>,
    /// Changes of records that the history has.
    changes: Vec<(UnitId, WishedChange)>,
    n_commits: usize,
    has_moved: bool,
}

impl ModelPeople {
    pub(super) fn new(seed: u64) -> Self {
        let mut numbers = Numbers::new(seed ^ 0x9e_091e);
        Self {
            persons: NAMES.iter().map(|name| Person::draw(name, &mut numbers)).collect(),
            numbers,
            calls: Vec::new(),
            submissions: BTreeMap::new(),
            records: BTreeMap::new(),
            gone: BTreeSet::new(),
            changes: Vec::new(),
            n_commits: 0,
            has_moved: false,
        }
    }

    /// One of them, more often who operates the cluster.
    fn pick(&mut self) -> usize {
        let operator = self.persons.len() - 1;
        if self.numbers.chance(25) { operator } else { self.numbers.pick(&[0, 1, 2, 3]) }
    }

    /// Judges a call by the rules and plainly.
    fn judge(&self, at: usize, method: &str, object: &CallObject<'_>, may: bool) -> Result<bool, String> {
        let principal = &self.persons[at].principal;
        let verdict = allow(principal, method, object);
        if (verdict == Permission::Granted) != may {
            return Err(format!("{method} about {object:?} of {principal:?}: {verdict:?}"));
        }
        Ok(may)
    }

    /// Somebody submits a unit: where, and in whose name. Returns who; `None`: it may not.
    fn submit(&mut self, spec: &mut UnitSpec, reach: &mut MarkCounts) -> Result<Option<String>, String> {
        let at = self.pick();
        let given = self.numbers.pick(&["", "default", "team-a", "team-b"]);
        let own_name = self.persons[at].principal.name.clone();
        let owner = self.numbers.pick(&["", &own_name, &own_name, "o0", "o1"]).to_owned();
        let person = &self.persons[at];
        let namespace = if given.is_empty() { person.default } else { given };
        let may = person.may_submit(namespace, &spec.queue, &owner);
        let object =
            CallObject { namespace: Some(given), queue: Some(&spec.queue), node: None, owner: Some(&owner) };
        if !self.judge(at, "/godel.v1.UnitService/SubmitUnit", &object, may)? {
            reach.mark(Mark::Forbidden);
            return Ok(None);
        }
        let owner = if owner.is_empty() { own_name } else { owner };
        // Few names, so that units of several namespaces share them.
        spec.name = format!("u{}", self.numbers.below(12));
        (spec.namespace, spec.owner) = (namespace.to_owned(), owner.clone());
        let principal = format!("person/{}", person.principal.name);
        let made = MadeSubmission { principal: principal.clone(), namespace: namespace.to_owned(), owner };
        self.submissions.insert(spec.uid.clone(), made);
        Ok(Some(principal))
    }

    /// Somebody wants something of a unit. Returns how it names the unit; `None`: it may not.
    fn ask(
        &mut self,
        record: &UnitRecord,
        kind: &UnitChangeKind,
        reach: &mut MarkCounts,
    ) -> Result<Option<UnitAddress>, String> {
        let (at, unit) = (self.pick(), &record.spec);
        let elsewhere = self.numbers.pick(&["", "default", "team-a", "team-b"]);
        let given = if self.numbers.chance(50) { unit.namespace.clone() } else { elsewhere.to_owned() };
        let by_uid = self.numbers.chance(50);
        let person = &self.persons[at];
        let namespace = if given.is_empty() { person.default.to_owned() } else { given.clone() };
        let (asked, method) = WishedChange::of(kind);
        let (mut object, mut may) = (CallObject::default(), person.may_change(&namespace));
        if let UnitChangeKind::Update(spec) = kind {
            may = person.may_submit(&namespace, &spec.queue, &spec.owner);
            object = CallObject { queue: Some(&spec.queue), owner: Some(&spec.owner), ..object };
        }
        object.namespace = Some(&given);
        if !self.judge(at, method, &object, may)? {
            reach.mark(Mark::Forbidden);
            return Ok(None);
        }
        let name = if by_uid { unit.uid.clone() } else { unit.name.clone() };
        let (text, reaches_all) = (name.clone(), person.operates());
        if by_uid && !reaches_all && namespace != unit.namespace {
            reach.mark(Mark::ForeignUid);
        }
        let address = UnitAddress {
            namespace: namespace.clone(),
            name,
            principal: format!("person/{}", person.principal.name),
            is_bound: !reaches_all,
            call: Some(self.calls.len()),
        };
        self.calls.push(MadeCall { asked, namespace, text, reaches_all, unit: record.id });
        Ok(Some(address))
    }

    /// Somebody wants running units to be moved; `None`: it may not.
    fn ask_for_moves(&mut self, reach: &mut MarkCounts) -> Result<Option<()>, String> {
        let at = self.pick();
        let may = self.persons[at].operates();
        let method = self.numbers.pick(&["RunPolicy", "MakeRoomFor", "AbortMovement"]);
        let method = format!("/godel.v1.RescheduleService/{method}");
        let may = self.judge(at, &method, &CallObject::default(), may)?;
        reach.mark(if may { Mark::Permitted } else { Mark::Forbidden });
        self.has_moved |= may;
        Ok(may.then_some(()))
    }

    /// What is wrong with commits that were not looked at yet.
    pub(super) fn on_commits(&mut self, commits: &[Commit], reach: &mut MarkCounts) -> Result<(), String> {
        let new = &commits[self.n_commits..];
        self.n_commits = commits.len();
        for change in new.iter().flat_map(|commit| &commit.changes) {
            match change {
                Change::Put(Record::Unit(record)) => self.on_record(record, reach)?,
                Change::Gone(RecordKey::Unit(unit)) => drop(self.gone.insert(*unit)),
                Change::Put(Record::Hold(hold)) if !self.has_moved => {
                    // Room is made without being asked for as well.
                    let of_policy = hold.movement.iter().find(|target| !target.movement.starts_with("room-"));
                    if let Some(target) = of_policy {
                        return Err(format!("nobody who may has asked for a move: {target:?}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn on_record(&mut self, record: &Arc<UnitRecord>, reach: &mut MarkCounts) -> Result<(), String> {
        let UnitSpec { uid, namespace, owner, .. } = &record.spec;
        let Some(made) = self.submissions.get(uid) else {
            return Err(format!("nobody who may has submitted {record:?}"));
        };
        let is = (&record.status.principal, namespace, owner);
        if is != (&made.principal, &made.namespace, &made.owner) {
            return Err(format!("{} came to be of {is:?}", record.id));
        }
        let Some(before) = self.records.insert(record.id, Arc::clone(record)) else {
            reach.mark(Mark::Permitted);
            return Ok(());
        };
        for asked in WishedChange::between(&before, record) {
            let mut calls = self.calls.iter().filter(|call| call.asked == asked);
            if !calls.any(|call| call.is_about(&record.spec)) {
                return Err(format!("nobody who may has asked for {asked:?} of {before:?}: {record:?}"));
            }
            reach.mark(Mark::Permitted);
            self.changes.push((record.id, asked));
        }
        Ok(())
    }

    /// Once nothing happens any more: calls that might be made came to something, and others to nothing.
    pub(super) fn at_rest(&self, answers: &BTreeMap<usize, Result<(), ChangeFailure>>) -> Result<(), String> {
        for (call, answer) in answers {
            let call = &self.calls[*call];
            if !self.is_fit(answer, call) {
                return Err(format!("a call came to {answer:?}: {call:?}"));
            }
        }
        Ok(())
    }

    fn is_fit(&self, answer: &Result<(), ChangeFailure>, call: &MadeCall) -> bool {
        let means = self.records.get(&call.unit).is_some_and(|record| call.is_about(&record.spec));
        match answer {
            // It may have been so already, as somebody else has asked for it.
            Ok(()) => {
                let mut known = self.records.iter().filter(|(_, record)| call.is_about(&record.spec));
                let shows = matches!(call.asked, WishedChange::Cancel | WishedChange::Suspend(true));
                known.any(|(unit, _)| !shows || self.changes.contains(&(*unit, call.asked)))
            }
            Err(ChangeFailure::Unresolved { why, .. }) if means => {
                self.gone.contains(&call.unit) && matches!(why, Unresolved::NotFound(_))
            }
            // Nothing is told of a unit elsewhere.
            Err(ChangeFailure::Unresolved { why: Unresolved::NotFound(names), .. }) => {
                let is_here = |name: &String| {
                    let mut known = self.records.values().map(|record| &record.spec);
                    known.any(|spec| spec.namespace == call.namespace && spec.name == *name)
                };
                names.iter().all(is_here)
            }
            Err(ChangeFailure::Unresolved { why: Unresolved::Ambiguous(_), .. }) => false,
            Err(failure) => !matches!(failure, ChangeFailure::NotOwn(..)),
        }
    }

    /// Somebody looks at all that it is shown; and now and then somebody gets another rule.
    fn look<'a>(
        &mut self,
        core: &Dispatcher,
        moves: impl Iterator<Item = &'a MovementMove>,
        reach: &mut MarkCounts,
    ) -> Result<(), String> {
        let at = self.numbers.pick(&[0, 1, 2, 3]);
        if self.numbers.chance(REGRANT_PERCENT) {
            self.persons[at] = Person::draw(NAMES[at], &mut self.numbers);
            reach.mark(Mark::Regranted);
        }
        let person = &self.persons[at];
        let sight = person.principal.sight();
        person.check_lists(core, &sight)?;
        person.check_names(core, &sight)?;
        if person.check_sentences(core, &sight)? {
            reach.mark(Mark::Hidden);
        }
        for one in moves {
            let Some(record) = self.records.get(&one.id.unit) else { continue };
            // Whoever sees all sees the moves of units that are gone as well, which are named by their ids.
            let is_named = one.unit.contains('/');
            let sees_all = person.operates() || person.has_all;
            if sight.sees_unit(&one.unit) != (sees_all || is_named && person.sees(&record.spec.namespace)) {
                return Err(format!("a move of {} before {:?}", one.unit, person.principal));
            }
        }
        Ok(())
    }
}

/// Somebody submits a unit, as it may where principals are judged.
pub(super) fn submit(model: &mut Model, mut spec: UnitSpec) {
    let principal = match &mut model.people {
        None => Ok(Some(principal_of(&spec.uid).to_owned())),
        Some(people) => people.submit(&mut spec, &mut model.net.reach),
    };
    if let Some(principal) = unless_wrong(principal, model) {
        model.dispatcher.submit(spec, &principal, &model.net);
    }
}

/// Somebody wants something else of a unit, as it may where principals are judged.
pub(super) fn change(model: &mut Model, unit: UnitId, wish: Wish) {
    let Some((wish, kind, record)) = model.dispatcher.wished(unit, wish) else { return };
    let address = match &mut model.people {
        None => Ok(Some(UnitAddress::of_own(&record))),
        Some(people) => people.ask(&record, &kind, &mut model.net.reach),
    };
    if let Some(address) = unless_wrong(address, model) {
        model.dispatcher.change(wish, kind, address, &mut model.net);
    }
}

/// Whether somebody who wants running units to be moved may.
pub(super) fn may_move(model: &mut Model) -> bool {
    let Some(people) = &mut model.people else { return true };
    let judged = people.ask_for_moves(&mut model.net.reach);
    unless_wrong(judged, model).is_some()
}

/// Somebody looks at what the dispatcher shows.
pub(super) fn look(model: &mut Model) {
    if let Some(people) = model.people.as_mut().filter(|_| model.dispatcher.is_up()) {
        let looked = people.look(model.dispatcher.core(), model.movements.moves(), &mut model.net.reach);
        unless_wrong(looked.map(Some), model);
    }
}

/// What a call comes to; a wrong verdict ends the case.
fn unless_wrong<T>(judged: Result<Option<T>, String>, model: &mut Model) -> Option<T> {
    judged.unwrap_or_else(|wrong| {
        model.wrong.get_or_insert(wrong);
        None
    })
}

/// Everything that a principal is shown.
impl Person {
    /// Pages have the units of its namespaces, in order of their names, and no others.
    fn check_lists(&self, core: &Dispatcher, sight: &Sight) -> Result<(), String> {
        let mut seen: Vec<(&str, &str, UnitId)> = Vec::new();
        for view in core.units().ids_after(UnitId(0)).filter_map(|unit| core.unit(unit)) {
            let UnitSpec { namespace, name, .. } = &view.record.spec;
            if self.sees_unit(&view.record.spec) {
                seen.push((namespace, name, view.record.id));
            }
        }
        seen.sort_unstable();
        for within in ["", "default", "team-a", "team-b"] {
            let filter = ListFilter { sight: sight.clone().within(within), ..ListFilter::default() };
            let (mut listed, mut after) = (Vec::new(), String::new());
            loop {
                let chunk = core.units().list(&filter, &after, PAGE, PAGE);
                listed.extend(chunk.units);
                after = chunk.next;
                if after.is_empty() {
                    break;
                }
            }
            let is_within = |namespace: &str| within.is_empty() || namespace == within;
            let expected = seen.iter().filter(|(namespace, ..)| is_within(namespace)).map(|(.., unit)| *unit);
            if !listed.iter().copied().eq(expected) {
                let principal = &self.principal;
                return Err(format!("a list of `{within}` before {principal:?}: {listed:?} of {seen:?}"));
            }
        }
        Ok(())
    }

    /// Names and uids stand for units in sight alone.
    fn check_names(&self, core: &Dispatcher, sight: &Sight) -> Result<(), String> {
        for view in core.units().ids_after(UnitId(0)).filter_map(|unit| core.unit(unit)) {
            let UnitSpec { namespace, name, uid, .. } = &view.record.spec;
            let expected = match self.sees_unit(&view.record.spec) {
                true => Ok(view.record.id),
                false => Err(Unresolved::NotFound(Vec::new())),
            };
            for (place, text) in [(namespace.as_str(), name), (namespace, uid), (self.default, uid)] {
                let found = core.units().resolve(sight, place, text);
                if found != expected {
                    return Err(format!("{place}/{text} stands for {found:?} before {:?}", self.principal));
                }
            }
        }
        Ok(())
    }

    /// What is said of units in sight names no others, once their names are hidden. Whether one was hidden.
    fn check_sentences(&self, core: &Dispatcher, sight: &Sight) -> Result<bool, String> {
        let is_foreign =
            |text: &str| NAMESPACES.iter().any(|name| !self.sees(name) && text.contains(&format!("{name}/")));
        let mut has_hidden = false;
        for view in core.units().ids_after(UnitId(0)).filter_map(|unit| core.unit(unit)) {
            if !self.sees(&view.record.spec.namespace) {
                continue;
            }
            let evicted_by = view.rows.evictions().iter().map(|eviction| core.units().evicted_by(eviction));
            let mut sentences: Vec<String> = evicted_by.filter(|by| by.starts_with("unit ")).collect();
            sentences.push(view.waits_for);
            let mut names = view.preempted_by;
            has_hidden |= sentences.iter().chain(&names).any(|text| is_foreign(text));
            sentences.iter_mut().for_each(|sentence| sight.hide_within(sentence));
            names.iter_mut().for_each(|name| sight.hide_name(name));
            let reasons = view.refusals.iter().flat_map(|refusals| &refusals.reasons);
            let shown = sentences.into_iter().chain(names).chain(reasons.map(|one| one.reason.to_string()));
            if let Some(text) = shown.into_iter().find(|text| is_foreign(text)) {
                return Err(format!("{:?} reads of {}: {text}", self.principal, view.record.spec.name));
            }
        }
        Ok(has_hidden)
    }
}
