//! Page tokens: opaque to clients, checked like any other input.
//!
//! A token is `<store>.<revision>.<kind>.<key>`: the store and the revision of the first page, the kind of records the
//! next page begins with (0 where there is only one), and where in it: the last key delivered, or what a list says
//! instead. That comes last because names may contain dots. In another store the pages before mean nothing, and the
//! token is refused.

use godel_base::ids::StoreId;
use godel_kit::status;
use godel_wire::BadField;
use tonic::Status;

/// Where the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Of the first page.
    pub(crate) store: StoreId,
    /// Store revision of the first page.
    pub(crate) revision: u64,
    /// Field number of the kind.
    pub(crate) kind: i32,
    /// The last key delivered; empty when none of this kind was. Of rows, the unit and ordinal to go on at.
    pub(crate) last: String,
}

/// A token that state did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a token of a previous page")]
pub(crate) struct BadToken;

impl Token {
    /// From the wire; `None` for the first page.
    ///
    /// # Errors
    /// It is not one of ours.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, BadToken> {
        if text.is_empty() {
            return Ok(None);
        }
        let mut parts = text.splitn(4, '.');
        let (Some(store), Some(revision)) = (parts.next(), parts.next()) else { return Err(BadToken) };
        let (Some(kind), Some(last)) = (parts.next(), parts.next()) else { return Err(BadToken) };
        Ok(Some(Self {
            store: StoreId(store.parse().map_err(|_| BadToken)?),
            revision: revision.parse().map_err(|_| BadToken)?,
            kind: kind.parse().map_err(|_| BadToken)?,
            last: last.to_owned(),
        }))
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { store, revision, kind, last } = self;
        write!(f, "{store}.{revision}.{kind}.{last}")
    }
}

/// The store `id` of a list whose page has this `token`.
///
/// # Errors
/// The list began in another store.
pub(crate) fn of_this_store(token: Option<&Token>, id: StoreId) -> Result<StoreId, Status> {
    match token {
        Some(token) if token.store != id => Err(status::store_changed(token.store, id)),
        Some(_) | None => Ok(id),
    }
}

/// A page size from the wire: `default` for 0, else 1 to `max`.
///
/// # Errors
/// It is more than `max`.
pub(crate) fn size(asked: u32, default: usize, max: usize) -> Result<usize, BadField> {
    match usize::try_from(asked) {
        Ok(0) => Ok(default),
        Ok(asked) if asked <= max => Ok(asked),
        _ => Err(BadField::new("page_size", format!("{asked} is not in 1..={max}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_were() {
        for last in ["", "7", "node.with.dots", "scheduler/s1"] {
            let token = Token { store: StoreId(7), revision: u64::MAX, kind: 20, last: last.to_owned() };
            assert_eq!(Token::parse(&token.to_string()), Ok(Some(token)));
        }
        assert_eq!(Token::parse(""), Ok(None));
        for bad in ["x", "1.2", "1.2.3", "7.1.x.3", "7.-1.2.3", "x.1.2.3", "..."] {
            assert_eq!(Token::parse(bad), Err(BadToken), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!([0, 7, 1_000].map(|asked| size(asked, 500, 1_000)), [Ok(500), Ok(7), Ok(1_000)]);
        assert_eq!(size(1_001, 500, 1_000).unwrap_err().path, "page_size");
    }
}
