//! How the records of each kind are read, written and checked: one table, of which the compiler asks a line for each kind.
//!
//! The functions are those of `from_proto` and `to_proto`; what a kind is, and who writes it, is in the tables of `godel-domain` and `godel-proto`.

use godel_domain::records::{ForeignKey, Record, RecordKind};
use godel_proto::v1::record::Record as Pb;

use crate::{
    BadField,
    from_proto::{
        self,
        check::{names, sense},
    },
    to_proto,
};

pub(crate) mod change;
pub(crate) mod identity;
pub(crate) mod pause;
pub(crate) mod principal;

macro_rules! conversions {
    (
        [$($kind:ident = $message:ident: $read:path, $write:path, $names:path, $sense:path;)*]
        [$($foreign:ident: $key:path, $foreign_sense:path;)*]
    ) => {
        /// Reads a record that is written whole.
        ///
        /// # Errors
        /// A field is wrong, by its path from the record on.
        pub(crate) fn read(pb: Pb) -> Result<Record, BadField> {
            match pb {
                $(Pb::$message(pb) => $read(pb).map(|record| Record::$kind(record.into())),)*
                $(Pb::$foreign(pb) => {
                    $key(&pb).map(|key| Record::Foreign(ForeignKey { kind: RecordKind::$foreign, key }))
                })*
                Pb::Rows(_) => Err(BadField::new("record", "running units are written in parts")),
            }
        }

        /// Writes a record; `None` for one of which only the key is known here.
        pub(crate) fn write(record: &Record) -> Option<Pb> {
            match record {
                $(Record::$kind(record) => Some(Pb::$message($write(record))),)*
                Record::Foreign(_) => None,
            }
        }

        /// Checks the names in a record that could be read.
        ///
        /// # Errors
        /// The first that is no name, by its path from the record on.
        pub(crate) fn check_names(record: &Record) -> Result<(), BadField> {
            match record {
                $(Record::$kind(record) => $names(record),)*
                Record::Foreign(key) => names::foreign(key),
            }
        }

        /// Checks that a record makes sense.
        ///
        /// # Errors
        /// The first thing that makes none, by its path from the record on.
        pub(crate) fn check_sense(pb: &Pb) -> Result<(), BadField> {
            match pb {
                $(Pb::$message(pb) => $sense(pb),)*
                $(Pb::$foreign(pb) => $foreign_sense(pb),)*
                Pb::Rows(_) => Ok(()),
            }
        }
    };
}

conversions! {
    [
        NodeSpec = NodeSpec: from_proto::node_spec, to_proto::node_spec, names::node_spec, sense::node_spec;
        NodeReport = NodeReport: from_proto::node_report, to_proto::node_report, names::node_report, sense::node_report;
        NodeAllocatable = NodeAllocatable: from_proto::node_allocatable, to_proto::node_allocatable, names::node_allocatable, sense::node_allocatable;
        NodeUsage = NodeUsage: from_proto::node_usage, to_proto::node_usage, names::node_usage, sense::node_usage;
        Unit = Unit: from_proto::unit_record, to_proto::unit_record, names::unit, sense::units::unit;
        TaskGroup = TaskGroup: from_proto::task_group_record, to_proto::task_group_record, names::task_group, sense::units::task_group_record;
        UnitHistory = UnitHistory: from_proto::unit_history, to_proto::unit_history, names::unit_history, sense::units::history;
        Lease = Lease: from_proto::lease, to_proto::lease, names::lease, sense::lease;
        Partition = Partition: from_proto::partition, to_proto::partition, names::partition, sense::partition;
        PartitionBlock = PartitionBlock: from_proto::partition_block, to_proto::partition_block, names::none, sense::read_whole;
        Queue = Queue: from_proto::queue, to_proto::queue, names::queue, sense::queue;
        PriorityClass = PriorityClass: from_proto::priority_class, to_proto::priority_class, names::priority_class, sense::priority_class;
        Budget = DisruptionBudget: from_proto::budget, to_proto::budget, names::budget, sense::disruption_budget;
        Reservation = Reservation: from_proto::reservation, to_proto::reservation, names::reservation, sense::reservation;
        Hold = Hold: from_proto::hold, to_proto::hold, names::hold, sense::holds::hold;
        Pause = Pause: pause::read, pause::write, pause::check_names, pause::check_sense;
        YarnKeys = YarnKeys: from_proto::yarn_keys, to_proto::yarn_keys, names::yarn_keys, sense::yarn::keys;
    ]
    [
        YarnApplication: from_proto::yarn_application, sense::yarn::application;
        Movement: from_proto::movement, sense::moves::movement;
        MoveRate: from_proto::move_rate, sense::read_whole;
        TrustRoots: identity::trust_roots_key, identity::check_trust_roots;
        SealedSigner: identity::sealed_signer_key, identity::check_sealed_signer;
        Identity: identity::identity_key, identity::check_identity;
        JoinToken: identity::join_token_key, identity::check_join_token;
        Principal: principal::key, principal::check;
        PersonToken: identity::person_token_key, identity::check_person_token;
        Change: change::key, change::check;
    ]
}
