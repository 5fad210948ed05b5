//! Rows by ordinal.
//!
//! Most units are bound once and stay as they are: their rows are a column without gaps. A unit of which ended replicas were
//! compacted away, or of which few ordinals of many have rows, has them in a map: it takes what its rows take, however high
//! its ordinals are.

use std::collections::{BTreeMap, btree_map};

use super::RunningUnit;

/// A column may have so many rows that nothing ever changed, whatever its length; beyond that, as many as it has others.
const N_UNUSED_MAX: usize = 4_096;

/// The rows of one unit by ordinal. An ordinal without a row is as one with the default row: two tables are equal when they
/// have the same rows beside these.
#[derive(Clone, Debug)]
pub struct RowTable(RowStore);

#[derive(Clone, Debug)]
enum RowStore {
    /// From ordinal 0 on, without gaps.
    Column(Vec<RunningUnit>),
    /// With gaps.
    #[expect(
        clippy::box_collection,
        reason = "the table of a unit that does not grow, of which there are millions, is no larger than a column"
    )]
    Sparse(Box<BTreeMap<u32, RunningUnit>>),
}

/// Rows with their ordinals, ascending.
#[derive(Clone, Debug)]
pub struct RowIter<'a>(Inner<'a>);

#[derive(Clone, Debug)]
enum Inner<'a> {
    /// Ordinal of the first row that is left, and the rows that are left.
    Column(u32, std::slice::Iter<'a, RunningUnit>),
    Sparse(btree_map::Range<'a, u32, RunningUnit>),
}

impl Default for RowTable {
    fn default() -> Self {
        Self(RowStore::Column(Vec::new()))
    }
}

impl PartialEq for RowTable {
    fn eq(&self, other: &Self) -> bool {
        let used = |table: &Self| {
            table
                .iter()
                .filter(|(_, row)| **row != RunningUnit::default())
                .map(|(ordinal, row)| (ordinal, *row))
                .collect::<Vec<_>>()
        };
        match (&self.0, &other.0) {
            (RowStore::Column(a), RowStore::Column(b)) if a == b => true,
            _ => used(self) == used(other),
        }
    }
}

impl Eq for RowTable {}

impl RowTable {
    /// Number of rows that are kept.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            RowStore::Column(rows) => rows.len(),
            RowStore::Sparse(rows) => rows.len(),
        }
    }

    /// Whether no row is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ordinal behind the highest one with a row. Of what was compacted away nothing is known: the record of the unit says
    /// where new ordinals begin.
    pub fn end(&self) -> u32 {
        match &self.0 {
            RowStore::Column(rows) => u32::try_from(rows.len()).unwrap_or(u32::MAX),
            RowStore::Sparse(rows) => rows.last_key_value().map_or(0, |(last, _)| last.saturating_add(1)),
        }
    }

    /// The row of an ordinal; `None`: it has none.
    #[inline]
    pub fn get(&self, ordinal: u32) -> Option<&RunningUnit> {
        match &self.0 {
            RowStore::Column(rows) => rows.get(ordinal as usize),
            RowStore::Sparse(rows) => rows.get(&ordinal),
        }
    }

    /// The row of an ordinal, to be changed; `None`: it has none.
    #[inline]
    pub fn get_mut(&mut self, ordinal: u32) -> Option<&mut RunningUnit> {
        match &mut self.0 {
            RowStore::Column(rows) => rows.get_mut(ordinal as usize),
            RowStore::Sparse(rows) => rows.get_mut(&ordinal),
        }
    }

    /// Rows with their ordinals, ascending.
    #[inline]
    pub fn iter(&self) -> RowIter<'_> {
        self.from(0)
    }

    /// Rows with their ordinals, ascending, from an ordinal on.
    pub fn from(&self, first: u32) -> RowIter<'_> {
        RowIter(match &self.0 {
            RowStore::Column(rows) => {
                let at = (first as usize).min(rows.len());
                Inner::Column(first, rows[at..].iter())
            }
            RowStore::Sparse(rows) => Inner::Sparse(rows.range(first..)),
        })
    }

    /// Rows in order of their ordinals.
    #[inline]
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &RunningUnit> + Clone {
        self.iter().map(|(_, row)| row)
    }

    /// Rows in order of their ordinals, to be changed.
    pub fn values_mut(&mut self) -> Box<dyn Iterator<Item = &mut RunningUnit> + '_> {
        match &mut self.0 {
            RowStore::Column(rows) => Box::new(rows.iter_mut()),
            RowStore::Sparse(rows) => Box::new(rows.values_mut()),
        }
    }

    /// Makes rows for these ordinals, and for no more the first time: most units are bound once and stay as they are, the
    /// ones of a single replica by the million. Rows between them may be made too.
    #[inline]
    pub fn grow(&mut self, ordinals: &[u32]) {
        let len = ordinals.iter().max().map_or(0, |last| *last as usize + 1);
        if let RowStore::Column(rows) = &mut self.0 {
            if len <= rows.len() {
                return;
            }
            let n_unused = len - rows.len() - ordinals.len().min(len - rows.len());
            if n_unused <= N_UNUSED_MAX.max(rows.len() + ordinals.len()) {
                if rows.is_empty() {
                    rows.reserve_exact(len);
                }
                rows.resize(len, RunningUnit::default());
                return;
            }
        }
        let rows = self.sparse();
        for ordinal in ordinals {
            rows.entry(*ordinal).or_default();
        }
    }

    /// Puts a row behind the highest one.
    pub fn push(&mut self, row: RunningUnit) {
        let end = self.end();
        match &mut self.0 {
            RowStore::Column(rows) => rows.push(row),
            RowStore::Sparse(rows) => drop(rows.insert(end, row)),
        }
    }

    /// Takes rows away; nothing happens for one that is not there.
    pub fn compact(&mut self, ordinals: &[u32]) {
        let rows = self.sparse();
        for ordinal in ordinals {
            rows.remove(ordinal);
        }
    }

    /// Takes back what [`Self::grow`] made since the table had `n_rows` rows: rows that nothing has changed.
    pub fn shrink(&mut self, n_rows: usize) {
        match &mut self.0 {
            RowStore::Column(rows) => rows.truncate(n_rows),
            RowStore::Sparse(rows) if rows.len() > n_rows => {
                rows.retain(|_, row| *row != RunningUnit::default())
            }
            RowStore::Sparse(_) => {}
        }
    }

    /// The rows as a map, without those that nothing ever changed where they were a column.
    fn sparse(&mut self) -> &mut BTreeMap<u32, RunningUnit> {
        if let RowStore::Column(rows) = &self.0 {
            let used = (0u32..).zip(rows).filter(|(_, row)| **row != RunningUnit::default());
            self.0 = RowStore::Sparse(Box::new(used.map(|(ordinal, row)| (ordinal, *row)).collect()));
        }
        match &mut self.0 {
            RowStore::Sparse(rows) => rows,
            RowStore::Column(_) => unreachable!("a column was made a map"),
        }
    }
}

impl From<Vec<RunningUnit>> for RowTable {
    fn from(rows: Vec<RunningUnit>) -> Self {
        Self(RowStore::Column(rows))
    }
}

impl FromIterator<RunningUnit> for RowTable {
    fn from_iter<I: IntoIterator<Item = RunningUnit>>(rows: I) -> Self {
        Self(RowStore::Column(rows.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a RowTable {
    type Item = (u32, &'a RunningUnit);
    type IntoIter = RowIter<'a>;

    #[inline]
    fn into_iter(self) -> RowIter<'a> {
        self.iter()
    }
}

impl<'a> Iterator for RowIter<'a> {
    type Item = (u32, &'a RunningUnit);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Inner::Column(first, rows) => {
                let row = rows.next()?;
                let ordinal = *first;
                *first += 1;
                Some((ordinal, row))
            }
            Inner::Sparse(rows) => rows.next().map(|(ordinal, row)| (*ordinal, row)),
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Inner::Column(_, rows) => rows.size_hint(),
            Inner::Sparse(rows) => rows.size_hint(),
        }
    }
}

impl DoubleEndedIterator for RowIter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Inner::Column(first, rows) => {
                let row = rows.next_back()?;
                Some((*first + u32::try_from(rows.len()).unwrap_or(u32::MAX), row))
            }
            Inner::Sparse(rows) => rows.next_back().map(|(ordinal, row)| (*ordinal, row)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running_units::Phase;
    use godel_base::ids::Revision;

    fn row(revision: u64) -> RunningUnit {
        RunningUnit { revision: Revision(revision), phase: Phase::Succeeded, ..RunningUnit::default() }
    }

    fn ordinals(table: &RowTable) -> Vec<u32> {
        table.iter().filter(|(_, row)| row.revision > Revision(0)).map(|(ordinal, _)| ordinal).collect()
    }

    #[test]
    fn a_map_and_a_column_with_the_same_rows_are_equal() {
        let column: RowTable =
            vec![row(1), row(2), RunningUnit::default(), row(3), RunningUnit::default()].into();
        let mut sparse = column.clone();
        sparse.compact(&[]);
        assert_eq!(sparse, column);
        assert_eq!((ordinals(&sparse), sparse.len(), sparse.end()), (vec![0, 1, 3], 3, 4));
        let back = |table: &RowTable| table.iter().rev().map(|(ordinal, _)| ordinal).collect::<Vec<_>>();
        assert_eq!((back(&column), back(&sparse)), (vec![4, 3, 2, 1, 0], vec![3, 1, 0]));
        assert_eq!(column.from(3).map(|(ordinal, _)| ordinal).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(sparse.from(2).map(|(ordinal, _)| ordinal).collect::<Vec<_>>(), [3]);
        assert_eq!((column.from(9).count(), sparse.from(9).count()), (0, 0));
        sparse.compact(&[1, 7]);
        assert_ne!(sparse, column);
        assert_eq!((sparse.get(1), sparse.get(3)), (None, Some(&row(3))));
    }

    #[test]
    fn far_ordinals_take_no_room_for_those_before_them() {
        let mut table = RowTable::default();
        table.grow(&[3]);
        assert_eq!(table.len(), 4);
        *table.get_mut(3).unwrap() = row(1);
        table.grow(&[900_000, 900_002]);
        assert_eq!((table.len(), table.end()), (3, 900_003));
        table.shrink(1);
        assert_eq!((table.len(), ordinals(&table)), (1, vec![3]), "what nothing has changed goes again");
        let mut column = RowTable::default();
        column.grow(&(0..10_000).rev().collect::<Vec<_>>());
        assert_eq!((column.len(), column.end()), (10_000, 10_000));
        column.shrink(5);
        assert_eq!(column.len(), 5);
    }
}
