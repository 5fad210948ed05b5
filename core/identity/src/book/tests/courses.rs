//! Every course of a few steps over a few names, with all leaves that were ever issued on a list.

use super::*;

/// Steps of a course.
const N_STEPS: usize = 5;
const NAMES: [&str; 4] = ["agent/a", "agent/ab", "agent/a*", "scheduler/a"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Join(usize),
    /// The holder of the leaf that was issued last for a name renews it.
    Renew(usize),
    /// The holder of the first one does.
    RenewFirst(usize),
    Revoke(usize),
    Allow(usize),
    Rotate,
    /// Until the next root signs.
    Wait,
    /// Until all leaves have ended, and may renew.
    WaitLong,
    /// The clock goes back by a day.
    ClockBack,
    /// Whoever joined a name last repeats it, as if it had got no answer.
    Repeat(usize),
    /// The store is restored from the last backup.
    Restore,
    Backup,
    /// New tokens, for the same as the first ones.
    NewTokens,
    /// The clock is months ahead at one look.
    ClockAheadOnce,
    /// Until names are forgotten.
    WaitMonths,
}

/// A leaf as its holder has it.
#[derive(Clone, Debug)]
struct HeldLeaf {
    /// Number of the join.
    holder: usize,
    /// What its holder joined with.
    join: JoinAsk,
    leaf: LeafGrant,
    /// Its name was revoked after its issue, or joined by another holder.
    is_ended: bool,
    /// Issued after the backup that was restored since: it counts, and others may have the name.
    is_unrecorded: bool,
}

#[derive(Clone)]
struct Course {
    book: IdentityBook,
    now_ms: u64,
    monotonic_ms: u64,
    leaves: Vec<HeldLeaf>,
    n_joins: usize,
    next_root: u8,
    /// How often each token was used.
    uses: BTreeMap<String, u32>,
    n_tokens: usize,
    /// The book, and which leaves had ended.
    backup: (IdentityBook, Vec<bool>),
    steps: Vec<Step>,
}

/// Uses of each token.
const N_USES: u32 = 3;

fn overlap(one: &Identity, other: &Identity) -> bool {
    match (one.agent_names(), other.agent_names()) {
        (Some(one), Some(other)) => one.overlaps(&other),
        _ => one == other,
    }
}

impl Course {
    fn new() -> Self {
        let mut course = Self {
            book: book(),
            now_ms: NOW,
            monotonic_ms: 0,
            leaves: Vec::new(),
            n_joins: 0,
            next_root: 2,
            uses: BTreeMap::new(),
            n_tokens: 0,
            backup: (book(), Vec::new()),
            steps: Vec::new(),
        };
        course.make_tokens();
        course.backup.0 = course.book.clone();
        course
    }

    fn make_tokens(&mut self) {
        self.n_tokens += 1;
        for (kind, role, names) in [("agents", Role::Agent, "*"), ("schedulers", Role::Scheduler, "")] {
            let id = format!("{kind}{}", self.n_tokens);
            self.book.create_token(id.clone(), [7; 32], ask(role, names, N_USES), self.now_ms).unwrap();
            self.uses.insert(id, 0);
        }
    }

    fn join(&mut self, ask: JoinAsk, repeated: Option<&HeldLeaf>, before: &IdentityBook) {
        let Ok(leaf) = self.book.join(&ask, at_now(self.now_ms)) else { return self.changed_nothing(before) };
        let uses_left = |book: &IdentityBook| book.token(&ask.token).unwrap().terms.uses_left;
        if uses_left(&self.book) == uses_left(before) {
            let held = repeated.expect("a join that is not repeated counts a use");
            assert!(!held.is_ended, "{:?}: an ended join was answered again", self.steps);
            self.leaves.push(HeldLeaf { leaf, ..held.clone() });
            return;
        }
        *self.uses.get_mut(&ask.token).unwrap() += 1;
        for held in self.leaves.iter_mut().filter(|held| !held.is_unrecorded) {
            held.is_ended |= overlap(&held.leaf.identity, &ask.identity);
        }
        self.n_joins += 1;
        let holder = self.n_joins;
        self.leaves.push(HeldLeaf { holder, join: ask, leaf, is_ended: false, is_unrecorded: false });
    }

    /// As the writer does every few seconds.
    fn tidy(&mut self) {
        look(&mut self.book, self.now_ms, self.monotonic_ms);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.monotonic_ms += ms;
    }

    fn take(&mut self, step: Step) {
        self.steps.push(step);
        let before = self.book.clone();
        match step {
            Step::Join(at) => {
                let name = identity(NAMES[at]);
                let kind = if name.role() == Role::Agent { "agents" } else { "schedulers" };
                let ask = asked(&format!("{kind}{}", self.n_tokens), &name, 0);
                self.join(ask, None, &before);
            }
            Step::Repeat(at) => {
                let name = identity(NAMES[at]);
                let last = self.leaves.iter().rev().find(|held| held.leaf.identity == name).cloned();
                if let Some(last) = last {
                    self.join(last.join.clone(), Some(&last), &before);
                }
            }
            Step::Renew(at) => self.renew(at, |leaves| leaves.last().cloned(), &before),
            Step::RenewFirst(at) => self.renew(at, |leaves| leaves.first().cloned(), &before),
            Step::Revoke(at) => {
                let revoked = identity(NAMES[at]);
                if self.book.revoke(&revoked, &identity("state/main")).is_ok() {
                    let recorded = self.leaves.iter_mut().filter(|held| !held.is_unrecorded);
                    recorded.filter(|held| held.leaf.identity == revoked).for_each(|held| {
                        held.is_ended = true;
                    });
                }
            }
            Step::Allow(at) => {
                drop(self.book.allow(&identity(NAMES[at]), &identity("state/main")).cloned());
            }
            Step::Rotate => {
                if self.book.rotate(next_root(self.next_root, self.now_ms), self.now_ms).is_ok() {
                    self.next_root += 1;
                }
            }
            Step::Wait => self.wait(rotation::ROOT_LEAD_MS),
            Step::WaitLong => self.wait(2 * DAY),
            Step::ClockBack => self.now_ms -= DAY,
            Step::Backup => {
                self.backup = (self.book.clone(), self.leaves.iter().map(|held| held.is_ended).collect());
            }
            Step::Restore => self.restore(),
            Step::NewTokens => self.make_tokens(),
            // A root that signs by then would be another reason to drop one.
            Step::ClockAheadOnce
                if self.book.trust().roots.iter().any(|root| root.signs_from_ms > self.now_ms) => {}
            Step::ClockAheadOnce => {
                let content = |book: &IdentityBook| book.all().collect::<Vec<_>>();
                self.tidy();
                let before = content(&self.book);
                look(&mut self.book, self.now_ms + 400 * DAY, self.monotonic_ms);
                let mut after = content(&self.book);
                // Tokens of persons end by the clock alone.
                if let (Some(IdentityChange::Trust(after)), IdentityChange::Trust(before)) =
                    (after.first_mut(), &before[0])
                {
                    after.person_keys.clone_from(&before.person_keys);
                }
                assert_eq!(after, before, "{:?}", self.steps);
            }
            Step::WaitMonths => {
                self.wait(70 * DAY);
                self.tidy();
                self.wait(SURELY_ENDED_MS);
            }
        }
        // What one decision changes fits a commit with those before it.
        assert!(self.book.take_changes().len() <= N_ROUND_CHANGES_MAX, "{:?}", self.steps);
        self.tidy();
        self.judge();
    }

    fn restore(&mut self) {
        let (book, ended) = self.backup.clone();
        self.book = book;
        let id = self.book.trust().store.0 + u64::try_from(self.steps.len()).unwrap();
        assert!(self.book.enter_store(StoreId(id)));
        assert_eq!(self.book.tokens().count(), 0, "some may have been used since");
        for (idx, held) in self.leaves.iter_mut().enumerate() {
            // What has ended since is not known.
            held.is_ended = ended.get(idx).copied().unwrap_or(false);
            held.is_unrecorded |= idx >= ended.len();
        }
    }

    fn renew(&mut self, at: usize, which: impl Fn(&[HeldLeaf]) -> Option<HeldLeaf>, before: &IdentityBook) {
        let name = identity(NAMES[at]);
        let of_name: Vec<HeldLeaf> =
            self.leaves.iter().filter(|held| held.leaf.identity == name).cloned().collect();
        let Some(held) = which(&of_name) else { return };
        match self.book.renew(&name, held.leaf.times, at_now(self.now_ms)) {
            Ok(leaf) => {
                assert!(!held.is_ended, "{:?}: an ended leaf was renewed", self.steps);
                self.leaves.push(HeldLeaf { leaf, ..held });
            }
            Err(_) => self.changed_nothing(before),
        }
    }

    fn changed_nothing(&self, before: &IdentityBook) {
        assert_eq!(format!("{:?}", self.book), format!("{before:?}"), "{:?}", self.steps);
    }

    fn judge(&self) {
        let steps = &self.steps;
        let counts = |held: &&HeldLeaf| {
            !matches!(standing(&self.book, &held.leaf, self.now_ms), LeafStanding::Refused(_))
        };
        let counting: Vec<&HeldLeaf> = self.leaves.iter().filter(counts).collect();
        let trust = self.book.trust();
        for held in &counting {
            assert!(!held.is_ended, "{steps:?}: {held:?} counts after its end");
            // The last leaf of a holder is the one that it uses.
            let last = self.leaves.iter().rev().find(|other| other.holder == held.holder).unwrap();
            let is_trusted = trust.roots.iter().any(|root| root.fingerprint == last.leaf.root);
            assert!(is_trusted || last.is_unrecorded, "{steps:?}: {last:?} has no root");
        }
        for (idx, one) in counting.iter().enumerate() {
            for other in &counting[idx + 1..] {
                let is_apart =
                    one.holder == other.holder || !overlap(&one.leaf.identity, &other.leaf.identity);
                let is_restored = one.is_unrecorded || other.is_unrecorded;
                assert!(is_apart || is_restored, "{steps:?}: {one:?} and {other:?} hold one name");
            }
        }
        for (token, n_uses) in &self.uses {
            assert!(*n_uses <= N_USES, "{steps:?}: {token}");
            let left = self.book.token(token).map(|token| token.terms.uses_left);
            assert!(left.is_none_or(|left| N_USES - left == *n_uses), "{steps:?}: {token}");
        }
        assert!(trust.roots.last().is_some_and(|root| !root.is_leaving), "{steps:?}");
    }
}

fn at_now(now_ms: u64) -> IssueClock {
    at(now_ms)
}

fn all_steps() -> Vec<Step> {
    let mut steps = vec![Step::Rotate, Step::Wait, Step::WaitLong, Step::ClockBack];
    for at in 0..3 {
        steps.extend([Step::Join(at), Step::Allow(at)]);
    }
    // One of each is as good as another.
    steps.extend([
        Step::Join(3),
        Step::Renew(0),
        Step::RenewFirst(0),
        Step::Revoke(0),
        Step::Renew(2),
        Step::Revoke(2),
        Step::Repeat(0),
        Step::Restore,
    ]);
    steps
}

fn more_steps() -> Vec<Step> {
    let mut steps = all_steps();
    steps.extend([Step::Backup, Step::NewTokens, Step::NewTokens, Step::ClockAheadOnce, Step::WaitMonths]);
    steps.extend([Step::Repeat(2), Step::Repeat(3)]);
    steps
}

fn follow(course: &Course, steps: &[Step], n_left: usize, n_courses: &mut usize) {
    if n_left == 0 {
        *n_courses += 1;
        return;
    }
    for step in steps {
        let mut next = course.clone();
        next.take(*step);
        follow(&next, steps, n_left - 1, n_courses);
    }
}

#[test]
fn no_course_of_steps_gives_a_name_to_two_or_a_token_too_often() {
    let mut course = Course::new();
    // Nobody has joined before the first step is one.
    course.take(Step::Join(0));
    let (steps, mut n_courses) = (all_steps(), 0);
    follow(&course, &steps, N_STEPS - 1, &mut n_courses);
    assert_eq!(n_courses, steps.len().pow(4));
}

/// Longer ones, by chance.
#[test]
fn long_courses_keep_to_it_too() {
    let steps = more_steps();
    for seed in 0..600_u64 {
        let mut course = Course::new();
        for n in 0..30_u64 {
            let random = godel_base::seed::mix(seed ^ godel_base::seed::mix(n));
            let at = usize::try_from(random % steps.len() as u64).unwrap();
            course.take(steps[at]);
        }
    }
}
