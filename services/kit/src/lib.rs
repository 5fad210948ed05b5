//! The kit service.
