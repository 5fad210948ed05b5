//! Names of keys in etcd.
//!
//! ```text
//! <prefix>fence                                    who may write, and which line of keys counts
//! <prefix>migration                                the store comes here, or has gone
//! <prefix><line>/<base>/begin                      a generation begins behind this revision
//! <prefix><line>/<base>/dropping                   in its place: the generation is being deleted
//! <prefix><line>/<base>/end                        how its log ended
//! <prefix><line>/<base>/log/<first>/<part>         chunks of a group, by its first revision
//! <prefix><line>/<base>/manifest                   its snapshot is complete
//! <prefix><line>/<base>/snapshot/<attempt>/<piece>/<part>
//! ```
//!
//! Numbers are hexadecimal and of fixed width, so that keys are in order.

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_etcd::prefix_end;

/// Keys of one store: its prefix, and the valid line of keys. A repair writes another line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoreKeys {
    prefix: String,
    line: u32,
}

/// A range of keys, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) from: Bytes,
    pub(super) to: Bytes,
}

impl KeyRange {
    fn of_prefix(prefix: String) -> Self {
        Self { to: prefix_end(prefix.as_bytes()), from: prefix.into() }
    }

    /// Returns the rest of the range behind `key`.
    pub(super) fn behind(&self, key: &Bytes) -> Self {
        Self { from: next_key(key), to: self.to.clone() }
    }
}

/// Returns the key directly behind `key`.
pub(super) fn next_key(key: &Bytes) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}

impl StoreKeys {
    pub(super) fn new(prefix: &str, line: u32) -> Self {
        Self { prefix: prefix.to_owned(), line }
    }

    /// Returns the key of the fence below a prefix.
    pub(super) fn fence(prefix: &str) -> Bytes {
        format!("{prefix}fence").into()
    }

    /// Returns the key of the migration mark below a prefix.
    pub(super) fn mark(prefix: &str) -> Bytes {
        format!("{prefix}migration").into()
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn line(&self) -> u32 {
        self.line
    }

    /// Returns the range of all keys of the line.
    pub(super) fn all(&self) -> KeyRange {
        KeyRange::of_prefix(self.text())
    }

    pub(super) fn generation(&self, base: Revision) -> GenerationKeys {
        GenerationKeys { prefix: format!("{}{:016x}/", self.text(), base.0) }
    }

    /// Returns the base of the generation to which a key of the line belongs.
    pub(super) fn base_of(&self, key: &Bytes) -> Option<Revision> {
        let rest = key.strip_prefix(self.text().as_bytes())?;
        hexadecimal(rest.get(..16)?).filter(|_| rest.get(16) == Some(&b'/')).map(Revision)
    }

    /// Returns the prefix of the keys of the line.
    pub(super) fn text(&self) -> String {
        format!("{}{:08x}/", self.prefix, self.line)
    }
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Keys of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GenerationKeys {
    prefix: String,
}

impl GenerationKeys {
    fn key(&self, name: &str) -> Bytes {
        format!("{}{name}", self.prefix).into()
    }

    pub(super) fn all(&self) -> KeyRange {
        KeyRange::of_prefix(self.prefix.clone())
    }

    pub(super) fn begin(&self) -> Bytes {
        self.key("begin")
    }

    pub(super) fn dropping(&self) -> Bytes {
        self.key("dropping")
    }

    pub(super) fn end(&self) -> Bytes {
        self.key("end")
    }

    pub(super) fn manifest(&self) -> Bytes {
        self.key("manifest")
    }

    /// Returns the keys that describe the generation: its begin, or the mark that it is being deleted, and its end.
    pub(super) fn head(&self) -> KeyRange {
        KeyRange { from: self.begin(), to: next_key(&self.end()) }
    }

    /// Returns the keys that are deleted before the mark that the generation is being deleted.
    pub(super) fn body(&self) -> KeyRange {
        KeyRange { from: self.end(), to: self.all().to }
    }

    pub(super) fn value(&self, first: Revision, part: usize) -> Bytes {
        self.key(&format!("log/{:016x}/{part:04x}", first.0))
    }

    pub(super) fn log(&self) -> KeyRange {
        KeyRange::of_prefix(format!("{}log/", self.prefix))
    }

    /// Returns the keys of the log from the group with the first revision `first`.
    pub(super) fn log_from(&self, first: Revision) -> KeyRange {
        KeyRange { from: self.key(&format!("log/{:016x}/", first.0)), to: self.log().to }
    }

    /// Returns the first revision of the group to which a key of the log belongs.
    pub(super) fn first_of(&self, key: &Bytes) -> Option<Revision> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"log/")?;
        hexadecimal(rest.get(..16)?).map(Revision)
    }

    pub(super) fn piece(&self, attempt: u64, piece: u64, part: usize) -> Bytes {
        self.key(&format!("snapshot/{attempt:016x}/{piece:016x}/{part:04x}"))
    }

    pub(super) fn snapshots(&self) -> KeyRange {
        KeyRange::of_prefix(format!("{}snapshot/", self.prefix))
    }

    pub(super) fn attempt(&self, attempt: u64) -> KeyRange {
        KeyRange::of_prefix(format!("{}snapshot/{attempt:016x}/", self.prefix))
    }

    /// Returns the attempt to which a key of a snapshot belongs.
    pub(super) fn attempt_of(&self, key: &Bytes) -> Option<u64> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"snapshot/")?;
        hexadecimal(rest.get(..16)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_order_and_name_what_they_are_of() {
        let keys = StoreKeys::new("godel/", 3);
        let generation = keys.generation(Revision(0x1f));
        let all = [
            generation.begin(),
            generation.dropping(),
            generation.end(),
            generation.value(Revision(0x20), 0),
            generation.value(Revision(0x20), 1),
            generation.value(Revision(0x100), 0),
            generation.manifest(),
            generation.piece(1, 0, 0),
            generation.piece(1, 16, 0),
            generation.piece(2, 0, 0),
            keys.generation(Revision(0x20)).begin(),
        ];
        assert!(all.is_sorted());
        assert_eq!(all[0], "godel/00000003/000000000000001f/begin");
        assert!(all[..10].iter().all(|key| keys.base_of(key) == Some(Revision(0x1f))));
        assert_eq!(generation.first_of(&all[5]), Some(Revision(0x100)));
        assert_eq!((generation.first_of(&all[6]), generation.attempt_of(&all[9])), (None, Some(2)));
        let within =
            |range: &KeyRange| all.iter().filter(|key| (&range.from..&range.to).contains(key)).count();
        assert_eq!(
            [keys.all(), generation.all(), generation.head(), generation.body(), generation.log()]
                .map(|range| within(&range)),
            [11, 10, 3, 8, 3]
        );
        let ranges = [generation.log_from(Revision(0x21)), generation.snapshots(), generation.attempt(1)];
        assert_eq!(ranges.map(|range| within(&range)), [1, 3, 2]);
        assert_eq!(within(&generation.log().behind(&all[3])), 2);
        assert_eq!(keys.base_of(&StoreKeys::fence("godel/")), None);
        assert_eq!(StoreKeys::new("godel/", 4).base_of(&all[0]), None);
    }
}
