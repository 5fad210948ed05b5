//! What the API promises to those who use it from elsewhere, checked on the descriptors: every part has a comment, names
//! follow one style, and nothing that was there is changed or gone unless somebody says that it is meant.

#![allow(clippy::unwrap_used, reason = "tests")]

mod comments;
mod elements;
mod snapshot;
mod style;
