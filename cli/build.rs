//! Has the linker make the binary smaller: functions with equal code are folded, as the same generic code that is made for several types, and the
//! table of addresses that are set at the start is packed.

use std::{env, path::Path, process::Command};

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts what is built by the environment")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release && links_with_lld() {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // A binary that is made where the C library unpacks the table runs where it does.
        if glibc().is_some_and(|version| version >= (2, 36)) {
            println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        }
    }
}

/// The version of the C library of this machine, if it is GNU's.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// Whether the linker is the one that comes with Rust: others may not know the option.
#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts what is built by the environment")]
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
