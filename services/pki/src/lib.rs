//! The cryptography of identities.
