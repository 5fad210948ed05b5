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
}

/// A leaf as its holder has it.
#[derive(Clone, Debug)]
struct HeldLeaf {
    /// Number of the join.
    holder: usize,
    leaf: LeafGrant,
    /// Its name was revoked after its issue, or joined by another holder.
    is_ended: bool,
}

#[derive(Clone)]
struct Course {
    book: IdentityBook,
    now_ms: u64,
    leaves: Vec<HeldLeaf>,
    n_joins: usize,
    next_root: u8,
    steps: Vec<Step>,
}

fn overlap(one: &Identity, other: &Identity) -> bool {
    match (one.agent_names(), other.agent_names()) {
        (Some(one), Some(other)) => one.overlaps(&other),
        _ => one == other,
    }
}

impl Course {
    fn new() -> Self {
        let (book, leaves, steps) = (with_tokens(3), Vec::new(), Vec::new());
        Self { book, now_ms: NOW, leaves, n_joins: 0, next_root: 2, steps }
    }

    fn take(&mut self, step: Step) {
        self.steps.push(step);
        let before = self.book.clone();
        match step {
            Step::Join(at) => {
                let asked = identity(NAMES[at]);
                match join(&mut self.book, NAMES[at], self.now_ms) {
                    Ok(leaf) => {
                        for held in self.leaves.iter_mut().filter(|held| overlap(&held.leaf.identity, &asked))
                        {
                            held.is_ended = true;
                        }
                        self.n_joins += 1;
                        let holder = self.n_joins;
                        self.leaves.push(HeldLeaf { holder, leaf, is_ended: false });
                    }
                    Err(_) => self.changed_nothing(&before),
                }
            }
            Step::Renew(at) => self.renew(at, |leaves| leaves.last().cloned(), &before),
            Step::RenewFirst(at) => self.renew(at, |leaves| leaves.first().cloned(), &before),
            Step::Revoke(at) => {
                let revoked = identity(NAMES[at]);
                if self.book.revoke(&revoked, &identity("state/main")).is_ok() {
                    self.leaves.iter_mut().filter(|held| held.leaf.identity == revoked).for_each(|held| {
                        held.is_ended = true;
                    });
                }
            }
            Step::Allow(at) => drop(self.book.allow(&identity(NAMES[at])).cloned()),
            Step::Rotate => {
                if self.book.rotate(next_root(self.next_root, self.now_ms), self.now_ms).is_ok() {
                    self.next_root += 1;
                }
            }
            Step::Wait => self.now_ms += rotation::ROOT_LEAD_MS,
            Step::WaitLong => self.now_ms += 2 * DAY,
            Step::ClockBack => self.now_ms -= DAY,
        }
        self.book.tidy(self.now_ms);
        self.judge();
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
            assert!(is_trusted, "{steps:?}: {last:?} has no root");
        }
        for (idx, one) in counting.iter().enumerate() {
            for other in &counting[idx + 1..] {
                let is_apart =
                    one.holder == other.holder || !overlap(&one.leaf.identity, &other.leaf.identity);
                assert!(is_apart, "{steps:?}: {one:?} and {other:?} hold one name");
            }
        }
        for (token, n_uses) in [("agents", 3), ("schedulers", 3)] {
            let is_agents = token == "agents";
            let joined: std::collections::BTreeSet<usize> = self
                .leaves
                .iter()
                .filter(|held| (held.leaf.identity.role() == Role::Agent) == is_agents)
                .map(|held| held.holder)
                .collect();
            let left = self.book.token(token).map_or(0, |token| token.terms.uses_left);
            assert_eq!(usize::try_from(n_uses - left).unwrap(), joined.len(), "{steps:?}: {token}");
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
    ]);
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
    let steps = all_steps();
    for seed in 0..300_u64 {
        let mut course = Course::new();
        for n in 0..30_u64 {
            let random = godel_base::seed::mix(seed ^ godel_base::seed::mix(n));
            let at = usize::try_from(random % steps.len() as u64).unwrap();
            course.take(steps[at]);
        }
    }
}
