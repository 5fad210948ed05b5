//! Has the linker fold functions with equal code: the same generic code made for several types takes a part of the binary.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release && links_with_lld() {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Whether the linker is the one that comes with Rust: others may not know the option.
fn links_with_lld() -> bool {
    // On other targets Rust uses the system's linker.
    if env::var("TARGET").is_ok_and(|target| target != "x86_64-unknown-linux-gnu") {
        return false;
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(rustc).args(["--print", "target-libdir"]).output() else { return false };
    let libdir = String::from_utf8_lossy(&output.stdout);
    Path::new(libdir.trim()).parent().is_some_and(|target| target.join("bin/gcc-ld/ld.lld").exists())
}
