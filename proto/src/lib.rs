//! The `godel.v1` API: messages, clients, servers and the descriptor set for reflection.
//!
//! [`raw`] holds the messages that keep a part of theirs encoded, so that the bytes a writer sent are
//! the bytes that are logged and watched. [`kinds`] is the table of record kinds, [`fields`] writes messages field by field.
//! Messages with secrets show none in logs (`secrets`).

pub mod codec;
pub mod fields;
pub mod kinds;
pub mod raw;

mod secrets;

/// Messages, clients and servers of package `godel.v1`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("godel.v1");
}

/// Encoded `FileDescriptorSet` of the package, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/godel_v1.bin"));
