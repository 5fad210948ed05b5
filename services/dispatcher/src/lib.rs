//! The dispatcher service.
