//! The store as its users see it, on each engine and on real disks.
#![allow(clippy::unwrap_used, reason = "tests")]

mod admin;
mod backup;
mod child;
mod contract;
mod damage;
mod disk;
mod etcd;
mod golden;
mod history;
mod integrity;
mod kill;
mod lives;
mod migration;
mod power;
mod recovery;
mod support;
