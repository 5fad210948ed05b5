//! The agent service.
