//! Small integers for values that come and go with the units that have them.

use std::{borrow::Borrow, hash::Hash};

use rustc_hash::FxHashMap;

/// Values by small integer, each kept for as long as it is used; the integer is then given to another one.
#[derive(Clone, Debug)]
pub(super) struct Interned<T> {
    ids: FxHashMap<T, u32>,
    slots: Vec<Option<(T, u32)>>,
    free: Vec<u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { ids: FxHashMap::default(), slots: Vec::new(), free: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    /// The integer of a value, which is used once more.
    pub(super) fn intern(&mut self, value: T) -> u32 {
        if let Some(&id) = self.ids.get(&value) {
            self.retain(id);
            return id;
        }
        let slot = Some((value.clone(), 1));
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("memory ends before 2^32 values")
            }
        };
        self.ids.insert(value, id);
        id
    }

    /// The same for a value that is made only if it is not known yet.
    pub(super) fn intern_by<Q>(&mut self, like: &Q, make: impl FnOnce() -> T) -> u32
    where
        T: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        match self.ids.get(like).copied() {
            Some(id) => {
                self.retain(id);
                id
            }
            None => self.intern(make()),
        }
    }

    /// One use more of a value that is in use.
    pub(super) fn retain(&mut self, id: u32) {
        if let Some(Some((_, held))) = self.slots.get_mut(id as usize) {
            *held += 1;
        }
    }

    /// Ends one [`Self::intern`].
    pub(super) fn release(&mut self, id: u32) {
        let Some(slot) = self.slots.get_mut(id as usize) else { return };
        match slot {
            Some((_, held)) if *held > 1 => *held -= 1,
            Some((value, _)) => {
                self.ids.remove(value);
                *slot = None;
                self.free.push(id);
            }
            None => {}
        }
    }

    /// A held value.
    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref().map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lives_as_long_as_it_is_held() {
        let mut names = Interned::default();
        let (a, b) = (names.intern("a"), names.intern("b"));
        assert_eq!(names.intern("a"), a);
        names.retain(b);
        for id in [a, b, b] {
            names.release(id);
        }
        assert_eq!((names.get(a), names.get(b)), (Some(&"a"), None));
        assert_eq!(names.intern("c"), b, "a free integer is given again");
        names.release(a);
        names.release(a);
        assert_eq!((names.get(a), names.get(b)), (None, Some(&"c")));
        let mut texts: Interned<Box<str>> = Interned::default();
        let first = texts.intern_by("a", || "a".into());
        assert_eq!(texts.intern_by("a", || panic!("it is there")), first);
        texts.release(first);
        assert!(texts.get(first).is_some(), "held once more");
    }
}
