//! The change log: what of it a principal sees, which calls are merged into one line, and which lines go.
//!
//! A change has its line in its own transaction. Calls without a transaction, mostly refused ones, are noted in [`CallNotes`], merged by principal,
//! method and reason: each member has one for what it refuses, and state another for what all of them report, of which it writes
//! [`N_NOTES_PER_SECOND`] lines at most. What a flood of refused calls costs is bounded by that, whatever is in the calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_domain::change_line::{CallCause, ChangeLine};

use crate::permission::{Permission, PersonRole, Principal};

/// Who called where no token proved it, and what was called where there is no such method.
pub const UNKNOWN: &str = "unknown";
/// Lines of noted calls that state writes in a second.
pub const N_NOTES_PER_SECOND: usize = 10;
/// Principals, methods and reasons that differ and are noted at a time. A note takes a few hundred bytes; with 140 methods that is room for the
/// refusals of many principals, and whatever is beyond is counted.
pub const N_NOTES_MAX: usize = 1_024;
/// For how long state merges further calls into one line after it has written one: whoever is refused all the time has 60 lines an hour.
pub const QUIET_MS: u64 = 60_000;

impl Permission {
    /// Why a call was refused, for the change log; empty for [`Permission::Granted`].
    pub fn refused_for(self) -> &'static str {
        match self {
            Self::Granted => "",
            Self::NotForPersons => "not for people",
            Self::Role(_) => "role",
            Self::Namespace => "namespace",
            Self::Queue => "queue",
            Self::Owner => "owner",
            Self::OtherPrincipal => "another principal",
            Self::Unproven => "not proved",
        }
    }
}

/// What is alike in calls that are merged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NoteKey {
    principal: String,
    method: String,
    refused: String,
}

#[derive(Clone, Debug)]
struct CallNote {
    line: ChangeLine,
    /// It is not taken before, milliseconds since 1970.
    due_ms: u64,
}

/// Calls that wait to be written or reported, merged. A note that was taken stays for a while without calls, so that those which follow are merged.
#[derive(Clone, Debug)]
pub struct CallNotes {
    notes: BTreeMap<NoteKey, CallNote>,
    /// Refused calls for which there was no room.
    n_lost: u64,
    quiet_ms: u64,
}

impl CallNotes {
    /// Nothing is noted. `quiet_ms` is the time for which calls like those of a line that was taken are merged, milliseconds.
    pub fn new(quiet_ms: u64) -> Self {
        Self { notes: BTreeMap::new(), n_lost: 0, quiet_ms }
    }

    /// Notes calls, merged with those that are alike: the last one is described. What does not fit is counted.
    pub fn note(&mut self, line: ChangeLine, now_ms: u64) {
        let ChangeLine { call, refused, .. } = &line;
        let (principal, method) = (call.principal.clone(), call.method.clone());
        let key = NoteKey { principal, method, refused: refused.clone() };
        if let Some(note) = self.notes.get_mut(&key) {
            let n_calls = note.line.n_calls.saturating_add(line.n_calls);
            let first_ms =
                if note.line.n_calls == 0 { line.first_ms } else { note.line.first_ms.min(line.first_ms) };
            self.n_lost = self.n_lost.saturating_add(line.n_more_calls);
            note.line = ChangeLine { n_calls, first_ms, n_more_calls: 0, ..line };
            return;
        }
        if self.notes.len() >= N_NOTES_MAX {
            self.notes.retain(|_, note| note.line.n_calls > 0);
        }
        self.n_lost = self.n_lost.saturating_add(line.n_more_calls);
        if self.notes.len() >= N_NOTES_MAX {
            self.n_lost = self.n_lost.saturating_add(line.n_calls);
            return;
        }
        self.notes.insert(key, CallNote { line: ChangeLine { n_more_calls: 0, ..line }, due_ms: now_ms });
    }

    /// Counts calls of which nothing else is known.
    pub fn note_lost(&mut self, n_calls: u64) {
        self.n_lost = self.n_lost.saturating_add(n_calls);
    }

    /// Takes up to `n_max` lines that are due, those whose first call came first before others. The last one has what was not noted.
    pub fn take(&mut self, n_max: usize, now_ms: u64) -> Vec<ChangeLine> {
        self.notes.retain(|_, note| note.line.n_calls > 0 || now_ms < note.due_ms);
        let due = self.notes.iter().filter(|(_, note)| note.line.n_calls > 0 && note.due_ms <= now_ms);
        let mut due: Vec<(i64, NoteKey)> = due.map(|(key, note)| (note.line.first_ms, key.clone())).collect();
        due.sort();
        due.truncate(n_max);
        let mut lines = Vec::with_capacity(due.len());
        for (_, key) in due {
            let Some(note) = self.notes.get_mut(&key) else { continue };
            let line = ChangeLine { n_calls: 0, ..note.line.clone() };
            lines.push(std::mem::replace(&mut note.line, line));
            note.due_ms = now_ms.saturating_add(self.quiet_ms);
        }
        if let Some(last) = lines.last_mut() {
            last.n_more_calls = std::mem::take(&mut self.n_lost);
        }
        lines
    }

    /// Takes the number of calls for which there was no room.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.n_lost)
    }
}

/// Which lines somebody wants to see, and may.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChangeFilter<'a> {
    /// Only those of this principal; empty: of all.
    pub principal: &'a str,
    /// Only those about this object; empty: about all.
    pub object: &'a str,
    /// Only refused calls.
    pub is_refused_only: bool,
    /// Who reads; `None`: one who sees everything.
    pub reader: Option<&'a Principal>,
}

impl ChangeFilter<'_> {
    /// What of a line is shown; `None`: nothing. Of others, a principal below an operator sees what was done in its namespaces, without where it came from.
    pub fn shown(&self, mut line: ChangeLine) -> Option<ChangeLine> {
        let Self { principal, object, is_refused_only, reader } = *self;
        let is_wanted = (principal.is_empty() || line.call.principal == principal)
            && (object.is_empty() || line.call.objects.iter().any(|known| is_about(known, object)))
            && (!is_refused_only || line.is_refused());
        if !is_wanted {
            return None;
        }
        let Some(reader) = reader.filter(|reader| reader.role < PersonRole::Operator) else {
            return Some(line);
        };
        if line.call.principal != reader.name {
            let namespace = &line.call.namespace;
            if line.is_refused() || namespace.is_empty() || !reader.owns_namespace(namespace) {
                return None;
            }
            line.call.address.clear();
        }
        // How much else was refused is not about the reader.
        line.n_more_calls = 0;
        Some(line)
    }
}

/// Whether an object as `unit/team-a/web` is meant by its kind, by its name, by what these begin with, or by both.
fn is_about(object: &str, asked: &str) -> bool {
    let begins =
        |text: &str| text.strip_prefix(asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    begins(object) || object.split_once('/').is_some_and(|(_, name)| begins(name))
}

/// How many lines there may be, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeLimits {
    /// A line goes after this time, milliseconds.
    pub age_ms: u64,
    /// Most lines; at most half of them are of refused calls.
    pub n_max: usize,
}

/// A line as its limits are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgedLine {
    /// Its number.
    pub id: u64,
    /// When it was written, milliseconds since 1970.
    pub written_ms: u64,
}

/// The numbers of lines that go, of `n_lines`: what is too old, refusals above half of all that there may be, and then whatever is the oldest. `oldest` are the
/// first lines, and `refused` the numbers of all refusals, both in order. At most as many go at once as `oldest` has, and as many refusals again.
///
/// Refused calls have their own bound: whoever is refused can push out of the log what others were refused, but not what was done.
pub fn surplus(
    oldest: &[AgedLine],
    refused: &VecDeque<u64>,
    n_lines: usize,
    limits: ChangeLimits,
    now_ms: u64,
) -> BTreeSet<u64> {
    let before_ms = now_ms.saturating_sub(limits.age_ms);
    let n_refused_over = refused.len().saturating_sub(limits.n_max / 2).min(oldest.len());
    let mut gone: BTreeSet<u64> = refused.iter().take(n_refused_over).copied().collect();
    for line in oldest {
        if line.written_ms < before_ms || n_lines.saturating_sub(gone.len()) > limits.n_max {
            gone.insert(line.id);
        } else {
            break;
        }
    }
    gone
}

/// A call of a person that is refused, as it is noted.
pub fn refused_call(call: CallCause, refused: &str, now_ms: u64) -> ChangeLine {
    let first_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    ChangeLine { call, refused: refused.to_owned(), n_calls: 1, first_ms, n_more_calls: 0 }
}

#[cfg(test)]
mod tests;
