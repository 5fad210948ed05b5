//! YARN on godel: what becomes of its configuration, and the life of its applications, attempts and containers.
//!
//! [`HadoopConfiguration`] is what the files say, [`import_queues`] what godel's queues are for it, and [`preflight`] what
//! becomes of every property: text in, records and reports out, without opening a file or calling a service.
//!
//! [`adapter::YarnAdapter`] is the ResourceManager's part without its protocols: what clients and application masters ask for goes in,
//! changes of units and answers come out. `services/yarn` runs it.
//!
//! # Modules
//!
//! - `access`: who may do what with queues, applications and the cluster, as YARN's access controls say.
//! - `adapter`: the adapter's applications: what happens to them, and what is to be done about it.
//! - `application`: the life of an application, as YARN's ResourceManager has it.
//! - `asks`: what an application master asks for: the table behind `allocate`.
//! - `attempt`: the life of an attempt, and which failed attempts count.
//! - `capacity`: what a queue of the CapacityScheduler gets, as a percentage, a weight or an amount.
//! - `configuration`: configuration files of Hadoop, read as Hadoop reads them.
//! - `container`: the life of a container, as YARN's ResourceManager has it.
//! - `exit_status`: how containers end, in YARN's numbers.
//! - `findings`: what becomes of one property: mapped, approximated or unsupported.
//! - `ids`: ids of applications, attempts and containers, parsed and printed as YARN does.
//! - `import`: the queues of a `capacity-scheduler.xml` as queues of godel.
//! - `mapping`: which queue an application goes to by who submits it.
//! - `properties`: properties that mean the same whatever their queue, with what becomes of them.
//! - `site`: what becomes of every property of a folder of configuration files.

mod access;
pub mod adapter;
pub mod application;
pub mod asks;
pub mod attempt;
mod capacity;
mod configuration;
pub mod container;
pub mod exit_status;
mod findings;
pub mod ids;
mod import;
mod mapping;
mod properties;
mod site;

pub use self::{
    access::{AppAccess, AppAcls, AskedApp, QueueAccess, YarnAcls, YarnUser},
    configuration::{BadConfiguration, HadoopConfiguration},
    findings::{Fidelity, PropertyFinding},
    import::{ImportOptions, QueueImport, import_queues},
    mapping::QueueMappings,
    site::preflight,
};
