//! YARN containers: what masters start on this node over the ContainerManagementProtocol.
//!
//! A running unit whose command comes later waits here for `startContainers`, whose container token names the running unit. From then
//! on the running unit is a command like any other, with a keeper, a control group and a log; its keeper makes the directories of the container first
//! and brings its resources there, so that an agent that is started again finds the container as it was.
//!
//! ```text
//! STATE_DIR/runs/UNIT-ORDINAL-INCARNATION.N/container/    working directory: resources, launch_container.sh, container_tokens
//!                                           local/        LOCAL_DIRS
//!                                           logs/         LOG_DIRS; stdout and stderr there are those of the running unit
//! ```
//! All of it goes with the run.

mod http;
pub(crate) mod ids;
pub(crate) mod launch;
pub(crate) mod localise;
pub(crate) mod server;
pub(crate) mod table;
