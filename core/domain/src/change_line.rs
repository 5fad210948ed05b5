//! A line of the change log: a call of a person that changed something, or was refused.

/// Most objects of one call that are named.
pub const N_OBJECTS_MAX: usize = 8;
/// Longest name of an object, bytes: a kind, a namespace and a name.
pub const OBJECT_LEN_MAX: usize = 400;
/// Longest principal, method, namespace, address or reason, bytes.
pub const WORD_LEN_MAX: usize = 256;
/// Longest line as it is encoded, bytes: eight objects, five words, and a few numbers.
pub const LINE_BYTES_MAX: usize = N_OBJECTS_MAX * (OBJECT_LEN_MAX + 4) + 5 * (WORD_LEN_MAX + 4) + 128;

/// A call of a person, or of a program that acts as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCause {
    /// Name of the principal.
    pub principal: String,
    /// Path of the method.
    pub method: String,
    /// What it was about, as `unit/team-a/web` or `node/n1`.
    pub objects: Vec<String>,
    /// Further objects.
    pub n_more_objects: u32,
    /// The namespace of the objects; empty: they are in none.
    pub namespace: String,
    /// Where the call came from; empty: that is not known.
    pub address: String,
}

/// A line of the change log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeLine {
    /// The call; of several that were merged, the last one.
    pub call: CallCause,
    /// Why it was refused; empty: it was done.
    pub refused: String,
    /// Number of calls.
    pub n_calls: u64,
    /// Time of the first of several calls, Unix milliseconds; 0: the commit has the only time.
    pub first_ms: i64,
    /// Further refused calls of which no line tells.
    pub n_more_calls: u64,
}

impl CallCause {
    /// A call of `method` by `principal` from `address`. What is too long is cut, and control characters are left out: a caller chooses some of it.
    pub fn new(principal: &str, method: &str, address: &str) -> Self {
        Self {
            principal: bounded(principal, WORD_LEN_MAX),
            method: bounded(method, WORD_LEN_MAX),
            address: bounded(address, WORD_LEN_MAX),
            ..Self::default()
        }
    }

    /// The same call with what it is about, cut in the same way.
    #[must_use]
    pub fn about(self, namespace: &str, objects: impl IntoIterator<Item = String>) -> Self {
        let (mut kept, mut n_more_objects) = (Vec::new(), 0u32);
        for object in objects {
            if kept.len() < N_OBJECTS_MAX {
                kept.push(bounded(&object, OBJECT_LEN_MAX));
            } else {
                n_more_objects = n_more_objects.saturating_add(1);
            }
        }
        Self { objects: kept, n_more_objects, namespace: bounded(namespace, WORD_LEN_MAX), ..self }
    }
}

impl ChangeLine {
    /// A call that was done.
    pub fn done(call: CallCause) -> Self {
        Self { call, n_calls: 1, ..Self::default() }
    }

    /// Whether it is a call that was refused.
    pub fn is_refused(&self) -> bool {
        !self.refused.is_empty()
    }
}

fn bounded(text: &str, len_max: usize) -> String {
    let mut kept = String::with_capacity(text.len().min(len_max));
    for char in text.chars().filter(|char| !char.is_control()) {
        if kept.len() + char.len_utf8() > len_max {
            break;
        }
        kept.push(char);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_choose_is_cut() {
        let call =
            CallCause::new("ann", "/m", "10.0.0.1:7").about("a\nb", (0..11).map(|n| format!("unit/u{n}")));
        assert_eq!(
            (call.namespace.as_str(), call.objects.len(), call.n_more_objects),
            ("ab", N_OBJECTS_MAX, 3)
        );
        let long = "é".repeat(OBJECT_LEN_MAX);
        let call = CallCause::new(&long, &long, &long).about(&long, [long.clone()]);
        assert_eq!(call.objects, ["é".repeat(OBJECT_LEN_MAX / 2)]);
        for word in [call.principal, call.method, call.address, call.namespace] {
            assert_eq!(word, "é".repeat(WORD_LEN_MAX / 2));
        }
    }
}
