//! What every part of godel speaks of: units, nodes, running units, the records of both, and their changes.
//!
//! No tokio, no clock, no input or output, no globals, no generated type.
//!
//! # Modules
//!
//! - `allocation`: what a running unit is given on its node: devices and zones.
//! - `assignment`: what the dispatcher hands over to a scheduler: a unit, and how the scheduler may place it.
//! - `budget_spec`: disruption budgets as people write them.
//! - `change_line`: a line of the change log: a call of a person that changed something, or was refused.
//! - `change`: one committed change, as every follower of the store sees it.
//! - `decision`: what schedulers decide, and what the binder answers.
//! - `defaults`: defaults by workload class, one table.
//! - `demand`: what one running unit takes on a node.
//! - `fields`: the fields of units and templates one after the other, for what is done with all of them.
//! - `frozen`: what is frozen because of records that this version cannot read.
//! - `hold`: room on a node that the binder keeps for a unit.
//! - `host_port`: ports of nodes that running units listen on.
//! - `label_expression`: conditions on labels, and the text in which people write them.
//! - `lifecycle`: the phase of a unit, derived from its running units.
//! - `limits`: how large units and what they ask for may be.
//! - `names`: the rules for names of units, queues, nodes, labels and resources.
//! - `node_affinity`: which nodes a replica may have and which it prefers.
//! - `node_load`: how much of a node is used, and how much of that a replica accepts.
//! - `node`: what a node is, its taints, and what its agent reports.
//! - `pause`: what administrators have paused.
//! - `priority_classes`: priority classes by name, with those that are built in.
//! - `queue_spec`: queues and priority classes as people write them.
//! - `record_change`: changes of records that people write, and what is found wrong with them.
//! - `records`: the records of the store, one table of their kinds and keys.
//! - `refusals`: why a unit waits, as reports and queues carry it.
//! - `requested_move`: moves of running units as somebody asks for them.
//! - `reservation_spec`: reservations as people write them.
//! - `run_end`: how a running unit ended, and when it ran.
//! - `running_units`: the life of running units, as one table per unit.
//! - `sight`: units that a caller may see, and what is shown in place of the names of others.
//! - `submission`: units as clients write them, for the checks of admission.
//! - `surge`: replicas that start before those stop that they replace.
//! - `sub_cluster`: the sub-cluster that a unit or a node is of.
//! - `task_group_record`: task groups that were added to a unit, and the unit as all of them make it.
//! - `template`: what one replica is: what it takes, where it may go, and what runs.
//! - `unit_affinity`: where replicas go in relation to running units.
//! - `unit_caller`: who submits or changes a unit.
//! - `unit_history`: what is kept of a unit once its record is deleted.
//! - `unit_report`: what a scheduler tells the dispatcher about units that it was assigned.
//! - `unit_topology`: where the running units of one unit go in relation to one another.
//! - `unit`: scheduling units: what was submitted, and what the control plane adds to it.
//! - `txn`: transactions as the leaders write them, and why the store refuses one.
//! - `unreadable`: records that this version cannot read.
//! - `unwelcome`: why a unit may not be submitted where it wants to go.
//! - `work_kind`: kinds of work that go well together on one node.
//! - `yarn_keys`: keys that sign the tokens of YARN, and when they roll over.
//! - `zone`: the zones of a node, as sockets and NUMA nodes, and what a running unit asks of them.

pub mod allocation;
pub mod assignment;
pub mod budget_spec;
pub mod change;
pub mod change_line;
pub mod decision;
pub mod defaults;
pub mod demand;
pub mod fields;
pub mod frozen;
pub mod hold;
pub mod host_port;
pub mod label_expression;
pub mod lifecycle;
pub mod limits;
pub mod names;
pub mod node;
pub mod node_affinity;
pub mod node_load;
pub mod pause;
pub mod priority_classes;
pub mod queue_spec;
pub mod record_change;
pub mod records;
pub mod refusals;
pub mod requested_move;
pub mod reservation_spec;
pub mod run_end;
pub mod running_units;
pub mod sight;
pub mod sub_cluster;
pub mod submission;
pub mod surge;
pub mod task_group_record;
pub mod template;
pub mod txn;
pub mod unit;
pub mod unit_affinity;
pub mod unit_caller;
pub mod unit_history;
pub mod unit_report;
pub mod unit_topology;
pub mod unreadable;
pub mod unwelcome;
pub mod work_kind;
pub mod yarn_keys;
pub mod zone;
