//! Compiles `godel/v1/*.proto` with protox: nobody has to install protoc.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 16] = [
    "godel/v1/common.proto",
    "godel/v1/log.proto",
    "godel/v1/node.proto",
    "godel/v1/unit.proto",
    "godel/v1/queue.proto",
    "godel/v1/budget.proto",
    "godel/v1/reservation.proto",
    "godel/v1/yarn_application.proto",
    "godel/v1/movement.proto",
    "godel/v1/state.proto",
    "godel/v1/member.proto",
    "godel/v1/dispatch.proto",
    "godel/v1/bind.proto",
    "godel/v1/scheduler.proto",
    "godel/v1/yarn.proto",
    "godel/v1/reschedule.proto",
];

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts where to write by the environment")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=godel");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("godel_v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Says whose fault a message is that cannot be decoded.
        .codec_path("crate::codec::GodelCodec")
        // Transactions and commits keep their operations as encoded bytes, assignments their units: see src/raw.rs.
        .extern_path(".godel.v1.TxnRequest", "crate::raw::TxnRequest")
        .extern_path(".godel.v1.Commit", "crate::raw::Commit")
        .extern_path(".godel.v1.UnitAssignment", "crate::raw::UnitAssignment")
        // In order already where they are read: see `godel_base::resources`.
        .btree_map(".godel.v1.Resources")
        .compile_fds(descriptors)?;
    Ok(())
}
