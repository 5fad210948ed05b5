//! What godel makes of YARN's configuration: queues of the CapacityScheduler as godel's, with a report for each property.
//!
//! [`HadoopConfiguration`] is what the files say, [`import_queues`] what godel's queues are for it, and [`preflight`] what
//! becomes of every property. All of it is text in, records and reports out: no file is opened here and no service called.
//!
//! # Modules
//!
//! - `access`: lists of users and groups, as YARN's access controls are written.
//! - `capacity`: what a queue of the CapacityScheduler gets, as a percentage, a weight or an amount.
//! - `configuration`: configuration files of Hadoop, read as Hadoop reads them.
//! - `findings`: what becomes of one property: mapped, approximated or unsupported.
//! - `import`: the queues of a `capacity-scheduler.xml` as queues of godel.
//! - `properties`: properties that mean the same whatever their queue, with what becomes of them.
//! - `site`: what becomes of every property of a folder of configuration files.

mod access;
mod capacity;
mod configuration;
mod findings;
mod import;
mod properties;
mod site;

pub use self::{
    configuration::{BadConfiguration, HadoopConfiguration},
    findings::{Fidelity, PropertyFinding},
    import::{ImportOptions, QueueImport, import_queues},
    site::preflight,
};
