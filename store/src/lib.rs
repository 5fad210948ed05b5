//! The state store: one revisioned state machine over a small log engine.
