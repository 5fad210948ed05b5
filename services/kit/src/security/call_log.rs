//! Calls that leave a line in the change log without a transaction, mostly refused ones: noted where they are judged, and taken by whoever writes or reports them.

use std::{fmt, sync::Arc};

use godel_domain::change_line::{CallCause, ChangeLine};
use godel_identity::change_log::{CallNotes, refused_call};
use godel_pki::tls::WallClock;
use parking_lot::Mutex;

/// What a process has noted. Clones share it.
#[derive(Clone)]
pub struct CallLog(Arc<Mutex<CallNotes>>);

/// Where a call came from, and where it is noted.
#[derive(Clone)]
pub(crate) struct CallOrigin {
    pub(crate) address: Arc<str>,
    pub(crate) log: CallLog,
    pub(crate) clock: WallClock,
}

impl CallLog {
    /// Nothing is noted. `quiet_ms` is as of [`CallNotes::new`].
    pub fn new(quiet_ms: u64) -> Self {
        Self(Arc::new(Mutex::new(CallNotes::new(quiet_ms))))
    }

    /// See [`CallNotes::note`].
    pub fn note(&self, line: ChangeLine, now_ms: u64) {
        self.0.lock().note(line, now_ms);
    }

    /// See [`CallNotes::note_lost`].
    pub fn note_lost(&self, n_calls: u64) {
        self.0.lock().note_lost(n_calls);
    }

    /// See [`CallNotes::take`].
    pub fn take(&self, n_max: usize, now_ms: u64) -> Vec<ChangeLine> {
        self.0.lock().take(n_max, now_ms)
    }

    /// See [`CallNotes::take_lost`].
    pub fn take_lost(&self) -> u64 {
        self.0.lock().take_lost()
    }
}

impl CallOrigin {
    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// Notes that a call was refused.
    pub(crate) fn note_refused(&self, call: CallCause, why: &str) {
        let now_ms = self.now_ms();
        self.log.note(refused_call(call, why, now_ms), now_ms);
    }

    /// Notes that a call was done.
    pub(crate) fn note_done(&self, call: CallCause) {
        self.log.note(ChangeLine::done(call), self.now_ms());
    }
}

impl fmt::Debug for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallLog")
    }
}

impl fmt::Debug for CallOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOrigin").field("address", &self.address).finish_non_exhaustive()
    }
}
