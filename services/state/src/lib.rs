//! The state service.
