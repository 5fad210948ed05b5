//! The binder service.
