//! Compiles etcd's protocol with protox: nobody has to install protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd/kv.proto", "etcd/rpc.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
