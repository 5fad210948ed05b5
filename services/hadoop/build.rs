//! Compiles `proto/*.proto` with protox: nobody has to install protoc.

use std::error::Error;

const FILES: [&str; 8] = [
    "common.proto",
    "yarn.proto",
    "containers.proto",
    "tokens.proto",
    "applications.proto",
    "masters.proto",
    "administration.proto",
    "ha.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        // Launch contexts and tokens are passed on as slices of what was received.
        .bytes(".hadoop")
        .compile_fds(descriptors)?;
    Ok(())
}
